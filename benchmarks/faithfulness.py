"""Measure the cost of the faithfulness of maps in forward passes of the same model.

    python benchmarks/faithfulness.py                       # ViT-B/16, and the shipped checkpoint
    python benchmarks/faithfulness.py --rounds 5 --skip-heads

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
from benchmarks.alternating import seconds
from vit.checkpoints.load import load_checkpoint
from vit.explain.faithfulness import SACO_GROUPS, faithfulness, noise
from vit.explain.faithfulness_correlation import correlations, random_masks, score_drops
from vit.explain.head_ablation import head_means, importance
from vit.model.transformer import VisionTransformer

SACO_GOAL = 12.0  # forward passes
HEADS_GOAL = 0.25  # forward passes per head
MASKS = 256
MASK_GOAL = 0.5  # forward passes per mask, for a large model
MASKS_GOAL = 1.0  # time for all masks with the shipped model [s]


def ratios(one: Callable[[], Any], other: Callable[[], Any], rounds: int) -> list[float]:
    """Return the ratios of two calls that alternate, sorted."""
    one(), other()
    return alternating.ratios(*alternating.times({"one": one, "other": other}, rounds).values())


def verdict_line(what: str, result: list[float], goal: float) -> None:
    """Print median, minimum, maximum and goal."""
    print(f"  {what:<44} {alternating.spread(result)}   goal {goal:.2f}", flush=True)


def measure(name: str, model: VisionTransformer, rounds: int, heads: bool) -> None:
    """Measure SaCo, masks and heads with one model."""
    config = model.config
    pixels = torch.randn(1, config.channels, *config.image_size)
    forward = torch.inference_mode()(partial(model, pixels))

    print(
        f"{name}: {config.depth} x {config.heads} heads, {len(config.prefix) + config.grid[0] * config.grid[1]} tokens"
    )
    heatmap = noise(config.grid, 0)
    result = ratios(lambda: faithfulness(model, pixels, 0, [heatmap]), forward, rounds)
    verdict_line(f"SaCo at {SACO_GROUPS} groups, in forwards", result, SACO_GOAL)
    masks, patches = random_masks(config.grid[0] * config.grid[1], MASKS), heatmap.flatten()
    rows = max(3, rounds // 4)
    result = ratios(lambda: score_drops(model, pixels, 0, masks), forward, rows)
    verdict_line(f"{MASKS} masks, in forwards a mask", [ratio / MASKS for ratio in result], MASK_GOAL)
    times = sorted(seconds(lambda: score_drops(model, pixels, 0, masks)) for _ in range(rows))
    verdict_line(f"{MASKS} masks [s]; the goal is the shipped model's", times, MASKS_GOAL)
    drops = score_drops(model, pixels, 0, masks)
    times = sorted(seconds(lambda: correlations(patches, masks, drops)) for _ in range(rows))
    print(f"  a map by these in Python {1e3 * times[0]:.2f} ms", flush=True)
    if heads:
        means = head_means(model, pixels)
        result = ratios(lambda: importance(model, pixels, 0, means), forward, max(3, rounds // 4))
        every = config.depth * config.heads
        verdict_line("importance of all heads, in forwards a head", [ratio / every for ratio in result], HEADS_GOAL)


def main() -> None:
    """Measure and print."""
    parser = alternating.parser(__doc__)
    parser.add_argument("--skip-heads", action="store_true")
    options = parser.parse_args()
    rounds = options.rounds or 15
    alternating.start(options.threads)
    measure("ViT-B/16, 224 px", alternating.random_b16(), rounds, not options.skip_heads)
    measure("cifar10", load_checkpoint("cifar10").model, rounds, not options.skip_heads)


if __name__ == "__main__":
    main()
