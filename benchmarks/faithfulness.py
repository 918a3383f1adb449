"""Measure the cost of the faithfulness of maps in forward passes of the same model.

    python benchmarks/faithfulness.py                       # ViT-B/16, and the shipped checkpoint
    python benchmarks/faithfulness.py --rounds 5

Forward passes and measurements alternate in one process; each ratio is that of two consecutive timings. The forward
pass is one picture through the model without a record. Weights are random, because the time does not depend on them.
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import alternating
from vit.checkpoints.load import load_checkpoint
from vit.explain.faithfulness import SACO_GROUPS, faithfulness, noise
from vit.explain.faithfulness_correlation import random_masks, score_drops
from vit.explain.head_ablation import head_means, importance
from vit.model.transformer import VisionTransformer

MASKS = 256


def ratios(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> list[float]:
    """Return the ratios of two calls that alternate, sorted."""
    one(), other()
    return alternating.ratios(*alternating.times({"one": one, "other": other}, rounds).values())


def measure(name: str, model: VisionTransformer, rounds: int) -> None:
    """Measure SaCo, masks and heads with one model, and print medians and ranges."""
    config = model.config
    pixels = torch.randn(1, config.channels, *config.image_size)
    forward = torch.inference_mode()(partial(model, pixels))
    rows = max(3, rounds // 4)

    print(
        f"{name}: {config.depth} x {config.heads} heads, {len(config.prefix) + config.grid[0] * config.grid[1]} tokens"
    )
    heatmap = noise(config.grid, 0)
    result = ratios(lambda: faithfulness(model, pixels, 0, [heatmap]), forward, rounds)
    print(f"  SaCo at {SACO_GROUPS} groups, in forwards: {alternating.spread(result)}", flush=True)
    masks = random_masks(config.grid[0] * config.grid[1], MASKS)
    result = ratios(lambda: score_drops(model, pixels, 0, masks), forward, rows)
    each = alternating.spread([ratio / MASKS for ratio in result])
    print(f"  {MASKS} masks, in forwards a mask: {each}", flush=True)
    means, every = head_means(model, pixels), config.depth * config.heads
    result = ratios(lambda: importance(model, pixels, 0, means), forward, rows)
    each = alternating.spread([ratio / every for ratio in result])
    print(f"  importance of all heads, in forwards a head: {each}", flush=True)


def main() -> None:
    """Measure and print."""
    options = alternating.parser(__doc__).parse_args()
    rounds = options.rounds or 15
    alternating.start(options.threads)
    measure("ViT-B/16, 224 px", alternating.random_b16(), rounds)
    measure("cifar10", load_checkpoint("cifar10").model, rounds)


if __name__ == "__main__":
    main()
