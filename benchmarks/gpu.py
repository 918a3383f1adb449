"""Measure the speed of ViT-B/16 on a GPU: the record of attention, masks, ablation of heads.

    python benchmarks/gpu.py [--device cuda:0] [--rounds 20]

A bare machine needs torch 2.11, torchvision 0.26 and pydantic. The ways of one line alternate, and each time is to the
end of the work on the device.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.alternating import times
from vit.explain.faithfulness_correlation import random_masks, score_drops
from vit.explain.head_ablation import ablation_hook, importance
from vit.explain.record import record
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


def large_model(device: str, side: int) -> tuple[VisionTransformer, Tensor]:
    """Return ViT-B/16 for pictures of `side` px with a random head, and one picture."""
    network = VisionTransformer(ViTConfig.preset("B/16", image_size=(side, side), num_classes=10)).eval()
    torch.nn.init.normal_(network.head.weight, std=0.1)
    return network.to(device), torch.randn(1, 3, side, side).to(device)


def seconds(device: str, rounds: int, *ways: Callable[[], Any]) -> list[float]:
    """Return the median duration of each of several alternating calls, to the end of their work on the device [s]."""

    def to_the_end(run: Callable[[], Any]) -> None:
        run()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)

    calls = {str(number): partial(to_the_end, run) for number, run in enumerate(ways)}
    times(calls, 3)  # warm-up
    return [statistics.median(taken) for taken in times(calls, rounds).values()]


@torch.inference_mode()
def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    for side in (224, 512, 1024):
        network, pixels = large_model(options.device, side)
        ways = partial(network, pixels), partial(record, network, pixels)
        plain, recorded = seconds(options.device, options.rounds, *ways)
        print(f"{side} px: record {1e3 * recorded:.2f} ms, {recorded / plain:.2f} forward passes", flush=True)
    network, pixels = large_model(options.device, 224)
    several = random_masks(math.prod(network.config.grid), 256)
    (drops,) = seconds(options.device, 3, lambda: score_drops(network, pixels, 3, several))
    print(f"256 masks: {drops:.2f} s", flush=True)

    def one_by_one() -> None:
        for block in range(network.config.depth):
            for head in range(network.config.heads):
                network(pixels, hook=ablation_hook([(block, head)]))

    batches, single = seconds(options.device, 1, lambda: importance(network, pixels, 3), one_by_one)
    print(f"ablating all heads: {single / batches:.1f} times as fast in batches as one by one")


if __name__ == "__main__":
    main()
