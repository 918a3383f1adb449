"""Measure the cost of relevance and other methods, relative to a plain forward pass of the same model.

    python benchmarks/relevance.py                        # ViT-B/16 at 224 and 512 px, one picture
    python benchmarks/relevance.py --sizes 1024 --rounds 3

All of them alternate in one process, so that other load on the machine affects all; each ratio is that of two
consecutive timings. Memory is the peak of a fresh process, minus its memory with the loaded model.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from vit.explain.relevance import legrad, relevance_record
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

PLAIN, RELEVANCE = "one plain forward", "relevance of one class, with its pass"
WAYS = (PLAIN, RELEVANCE, "the pass alone", "gradient rollout, with its pass", "LeGrad")
ROUNDS = {224: 15, 512: 7}
GOAL = 3  # forward passes, for relevance
TARGET = 7


def b16() -> VisionTransformer:
    """Return a ViT-B/16 with random weights, also in its head."""
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig.preset("B/16")).eval()
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model


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
    every, pixels = ways(b16()), torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(1))
    for run in every.values():
        run(pixels)  # warm-up
    taken: dict[str, list[float]] = {name: [] for name in every}
    for _ in range(rounds):
        for name, run in every.items():
            begun = time.perf_counter()
            run(pixels)
            taken[name].append(time.perf_counter() - begun)
    return taken


def resident(field: str) -> float:
    """Return this process's memory according to its status file [MB]."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) / 1024


def extra_memory(size: int, way: str) -> float:
    """Return the additional peak memory of a function [MB]; call it in a fresh process."""
    run = ways(b16())[way]
    run(torch.zeros(1, 3, 64, 64))  # libraries make their one-time allocations here
    pixels = torch.randn(1, 3, size, size)
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
    before = resident("VmRSS")
    recorded = run(pixels)
    del recorded
    return resident("VmHWM") - before


def main() -> None:
    """Measure time and memory of each function at each size, and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(ROUNDS), help="[px]")
    parser.add_argument("--rounds", type=int, help="instead of 15 and 7")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--skip", choices=("time", "memory"))
    parser.add_argument("--memory-of", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        print(extra_memory(options.sizes[0], options.memory_of))
        return
    print(f"ViT-B/16, one picture, {options.threads} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
    for size in options.sizes:
        tokens = (size // 16) ** 2 + 1
        print(f"\n{size} px; every matrix and its gradient would take {2 * 144 * tokens**2 * 4 / 1e6:,.0f} MB")
        if options.skip != "time":
            taken = times(size, options.rounds or ROUNDS.get(size, 5))
            for way, seconds in taken.items():
                ratios = sorted(mine / plain for mine, plain in zip(seconds, taken[PLAIN], strict=True))
                goal = f"   goal {GOAL}" if way == RELEVANCE else ""
                print(
                    f"{way:<38} time   {statistics.median(seconds):7.2f} s   "
                    f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}){goal}",
                    flush=True,
                )
        if options.skip != "memory":
            for way in WAYS:
                command = [sys.executable, __file__, "--memory-of", way, "--sizes", str(size)]
                extra = float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
                print(f"{way:<38} memory {extra:7,.0f} MB", flush=True)


if __name__ == "__main__":
    main()
