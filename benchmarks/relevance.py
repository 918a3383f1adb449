"""Measure the cost of relevance and other methods, relative to a plain forward pass of the same model.

    python benchmarks/relevance.py                        # ViT-B/16 at 224 and 512 px, one picture
    python benchmarks/relevance.py --sizes 1024 --rounds 3

All of them alternate in one process, so that other load on the machine affects all; each ratio is that of two
consecutive timings. Memory is the peak of a fresh process, minus its memory with the loaded model.
"""

import statistics
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import alternating
from vit.explain.relevance import legrad, relevance_record
from vit.model.transformer import VisionTransformer

PLAIN, RELEVANCE = "one plain forward", "relevance of one class, with its pass"
WAYS = (PLAIN, RELEVANCE, "the pass alone", "gradient rollout, with its pass", "LeGrad")
ROUNDS = {224: 15, 512: 7}
GOAL = 3  # forward passes, for relevance
TARGET = 7


def ways(model: VisionTransformer) -> dict[str, Callable[[Tensor], Any]]:
    """Return the functions to measure, which take pixels (1, 3, height, width)."""

    def plain(pixels: Tensor) -> Any:
        with torch.inference_mode():
            return model(pixels)

    return dict(
        zip(
            WAYS,
            (
                plain,
                lambda pixels: relevance_record(model, pixels, TARGET).relevance(),
                lambda pixels: relevance_record(model, pixels, TARGET),
                lambda pixels: relevance_record(model, pixels, TARGET).gradient_rollout(discard=0.9),
                lambda pixels: legrad(model, pixels, TARGET),
            ),
            strict=True,
        )
    )


def times(size: int, rounds: int) -> dict[str, list[float]]:
    """Return the duration of each function in every round [s]."""
    every, pixels = (
        ways(alternating.random_b16()),
        torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1)),
    )
    for run in every.values():
        run(pixels)  # warm-up
    return alternating.times({name: partial(run, pixels) for name, run in every.items()}, rounds)


def main() -> None:
    """Measure time and memory of each function at each size, and print the ratios."""
    parser = alternating.parser(__doc__, "15 and 7")
    alternating.add_sizes(parser, list(ROUNDS), WAYS)
    options = parser.parse_args()
    if options.memory_of:
        torch.set_num_threads(options.threads)
        print(alternating.extra_memory(ways(alternating.random_b16())[options.memory_of], options.sizes[0]))
        return
    print("ViT-B/16, one picture, ", end="")
    alternating.start(options.threads)
    for size in options.sizes:
        tokens = (size // 16) ** 2 + 1
        print(f"\n{size} px; every matrix and its gradient would take {2 * 144 * tokens**2 * 4 / 1e6:,.0f} MB")
        if options.skip != "time":
            taken = times(size, options.rounds or ROUNDS.get(size, 5))
            for way, seconds in taken.items():
                ratios = alternating.spread(alternating.ratios(seconds, taken[PLAIN]))
                goal = f"   goal {GOAL}" if way == RELEVANCE else ""
                print(f"{way:<38} time   {statistics.median(seconds):7.2f} s   {ratios}{goal}", flush=True)
        if options.skip != "memory":
            for way in WAYS:
                command = [sys.executable, __file__, "--memory-of", way, "--sizes", str(size)]
                extra = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(f"{way:<38} memory {extra:7,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
