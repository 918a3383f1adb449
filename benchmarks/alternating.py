"""What benchmarks share that measure calls which alternate in one process."""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


def random_b16() -> VisionTransformer:
    """Return a ViT-B/16 with random weights, also in its head: a zero head would give one output for every input."""
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig.preset("B/16")).eval()
    torch.nn.init.normal_(model.head.weight, std=0.1)
    return model


def seconds(run: Callable[[], Any]) -> float:
    """Return the duration of a call [s]."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def times(ways: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Return the durations of calls that alternate [s]; each has been called before."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, run in ways.items():
            taken[name].append(seconds(run))
    return taken


def ratios(one: list[float], other: list[float]) -> list[float]:
    """Return the ratios of consecutive durations, sorted."""
    return sorted(mine / theirs for mine, theirs in zip(one, other, strict=True))


def spread(values: list[float]) -> str:
    """Format the median, and the ends of sorted values."""
    return f"{statistics.median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})"


def parser(doc: str | None, rounds: str = "15") -> argparse.ArgumentParser:
    """Return a parser with the options that all of these benchmarks have."""
    result = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--rounds", type=int, help=f"instead of {rounds}")
    result.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    return result


def start(threads: int) -> None:
    """Set the number of threads, and print the conditions of the measurement."""
    torch.set_num_threads(threads)
    print(f"{threads} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f}")
