"""The steps of `gpu.py` that measure speed: the record of attention, masks, ablation of heads; each of ViT-B/16."""

import math
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from alternating import times
from gpu_job import Job, Result

from vit.explain.faithfulness_correlation import random_masks, score_drops
from vit.explain.head_ablation import ablation_hook, importance
from vit.explain.record import record
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


def large_model(job: Job, side: int) -> tuple[VisionTransformer, Any]:
    """Return ViT-B/16 for pictures of `side` px with a random head, and one picture; a small one in a dry run."""
    config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
    network = VisionTransformer(config).eval()
    torch.nn.init.normal_(network.head.weight, std=0.1)
    return network.to(job.device), torch.randn(1, 3, side, side).to(job.device)


def seconds(job: Job, rounds: int, **ways: Callable[[], Any]) -> dict[str, float]:
    """Return the median duration of alternating calls, to the end of their work on the device [s]."""

    def to_the_end(run: Callable[[], Any]) -> None:
        run()
        if job.device.startswith("cuda"):
            torch.cuda.synchronize(job.device)

    calls = {name: partial(to_the_end, run) for name, run in ways.items()}
    times(calls, 3)  # warm-up
    return {name: statistics.median(taken) for name, taken in times(calls, rounds).items()}


@torch.inference_mode()
def forward(job: Job) -> Result:
    """Time of one picture, plain and with a record of all attention rows."""
    result: Result = {}
    for side in (32, 64) if job.dry else (224, 512, 1024):
        network, pixels = large_model(job, side)
        ways = {"plain": partial(network, pixels), "record": partial(record, network, pixels)}
        taken = seconds(job, 3 if job.dry else 20, **ways)
        result[f"{side} px"] = {f"{way} [ms]": round(1e3 * value, 2) for way, value in taken.items()}
        result[f"{side} px"]["record / plain"] = round(taken["record"] / taken["plain"], 2)
    return result


def masks(job: Job) -> Result:
    """Time of the class score drops under 256 masks."""
    network, pixels = large_model(job, 32 if job.dry else 224)
    several = random_masks(math.prod(network.config.grid), 256)
    return {"256 masks [s]": round(seconds(job, 3, masks=lambda: score_drops(network, pixels, 3, several))["masks"], 4)}


@torch.inference_mode()
def ablation(job: Job) -> Result:
    """Time to ablate each head, in batches and one by one."""
    network, pixels = large_model(job, 32 if job.dry else 224)
    heads = [(block, head) for block in range(network.config.depth) for head in range(network.config.heads)]

    def one_by_one() -> None:
        for head in heads:
            network(pixels, hook=ablation_hook([head]))

    taken = seconds(job, 1, batches=lambda: importance(network, pixels, 3), single=one_by_one)
    return {"heads": len(heads), "times as fast in batches": round(taken["single"] / taken["batches"], 1)}
