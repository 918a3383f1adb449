"""The steps of `gpu.py` that measure speed: training against other loops, the record, masks, ablation of heads."""

import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from gpu_job import Job, Result, picture, relative_difference, tiny, wait_for, within


def speed(job: Job) -> Result:
    """Pictures per second of this project's loop in three configs, of the tutorial's loop, and of one like timm's."""
    import numpy as np
    import torch
    import train_speed

    device, result = torch.device(job.device), {}
    sizes = {
        "tintn": (32, 256, 10_000, "tintn"),
        "cifar": (32, 512, 10_000, "cifar"),
    }
    if job.dry:
        sizes = {"tintn": (32, 32, 64, "tintn")}
    for name, (side, batch, count, preset) in sizes.items():
        dice = np.random.default_rng(0)
        arrays = dice.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        labels = dice.integers(0, 10, count)
        settings: dict[str, Any] = {"batch_size": batch, "image_size": side}
        if job.dry:
            settings["compile"] = False
        loops: dict[str, Callable[[], Iterator[None]]] = {
            "ours": partial(train_speed.our_steps, arrays, labels, job.device, settings, preset),
            "tutorial": partial(train_speed.tutorial_steps, arrays, labels, device, batch, name),
            "timm-like": partial(train_speed.timm_steps, arrays, labels, device, batch, name),
        }
        figures: dict[str, float] = {}
        for loop, begin in loops.items():  # one after the other: the workers of one loop would slow down another
            steps = begin()
            # Discard batches that were prepared while the model was compiled.
            discarded, seconds = (1, 0.0) if job.dry else (24, 4.0)
            train_speed.timed(steps, discarded, device, batch)
            count, begun = 0, time.perf_counter()
            while not count or time.perf_counter() - begun < seconds:
                next(steps)
                count += 1
            wait_for(job.device)
            figures[loop] = count * batch / (time.perf_counter() - begun)
            steps.close()
        result[name] = {f"{loop} [pictures/s]": round(value, 1) for loop, value in figures.items()}
        result[name] |= {
            f"ours / {loop}": round(figures["ours"] / figures[loop], 2) for loop in ("tutorial", "timm-like")
        }
    return result | {
        "model of timm's loop": "timm" if train_speed.timm_model("tintn", 32) is not None else "ours: timm is missing"
    }


def masks(job: Job) -> Result:
    """Class score drops under masks, and the fitted map, equal those of the CPU; time of 256 masks with ViT-B/16."""
    import torch

    from vit.explain.sensitivity import random_masks, removal_map, score_drops
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    ours, pixels = tiny(), picture()
    some = random_masks(16, 64)
    expected = score_drops(ours, pixels, 2, some), removal_map(ours, pixels, 2)
    ours.to(job.device)
    result = score_drops(ours, pixels.to(job.device), 2, some), removal_map(ours, pixels.to(job.device), 2)
    figures = {
        "drops": relative_difference(result[0], expected[0]),
        "removal map": relative_difference(result[1], expected[1]),
    }
    side = 32 if job.dry else 224
    config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
    network, pixels = VisionTransformer(config).to(job.device).eval(), picture(side).to(job.device)
    several, seconds = random_masks(math.prod(config.grid), 256), []
    for _ in range(3):
        begun = time.perf_counter()
        score_drops(network, pixels, 3, several)
        wait_for(job.device)
        seconds.append(time.perf_counter() - begun)
    return within(figures, 1e-3) | {"256 masks [s]": round(min(seconds), 4), "torch": torch.__version__}


def forward(job: Job) -> Result:
    """Time and memory of one picture through ViT-B/16, plain and with a record of all attention rows."""
    import torch

    from vit.explain.record import record as recorded
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    result: Result = {}
    for side in (32, 64) if job.dry else (224, 512, 1024):
        config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
        network, pixels = VisionTransformer(config).to(job.device).eval(), picture(side).to(job.device)
        ways: dict[str, Callable[[], Any]] = {
            "plain": lambda network=network, pixels=pixels: network(pixels),
            "record": lambda network=network, pixels=pixels: recorded(network, pixels),
        }
        result[f"{side} px"] = figures = {}
        with torch.inference_mode():
            for way, run in ways.items():
                for _ in range(3):
                    run()
                wait_for(job.device)
                times = []
                if job.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                for _ in range(3 if job.dry else 20):
                    begun = time.perf_counter()
                    run()
                    wait_for(job.device)
                    times.append(time.perf_counter() - begun)
                figures[f"{way} [ms]"] = round(1e3 * statistics.median(times), 2)
                if job.device.startswith("cuda"):
                    figures[f"{way} [MB]"] = round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)
            figures["record / plain"] = round(figures["record [ms]"] / figures["plain [ms]"], 2)
    return result


def ablation(job: Job) -> Result:
    """Time to ablate each head of ViT-B/16, in batches and one by one."""
    import torch

    from vit.explain.head_ablation import ablation_hook, importance
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    side = 32 if job.dry else 224
    config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
    network, pixels = VisionTransformer(config).eval(), picture(side).to(job.device)
    with torch.no_grad():
        torch.nn.init.normal_(network.head.weight, std=0.1)
    network.to(job.device)
    heads = [(block, head) for block in range(config.depth) for head in range(config.heads)]

    def one_by_one() -> Any:
        whole = network(pixels).logits[0, 3]
        return torch.stack([whole - network(pixels, hook=ablation_hook([head])).logits[0, 3] for head in heads])

    figures, answers = {}, {}
    with torch.inference_mode():
        for way, run in {"in batches": lambda: importance(network, pixels, 3), "one by one": one_by_one}.items():
            run()
            wait_for(job.device)
            begun = time.perf_counter()
            answers[way] = run().flatten()
            wait_for(job.device)
            figures[f"{way} [s]"] = round(time.perf_counter() - begun, 4)
    difference = relative_difference(answers["in batches"], answers["one by one"])
    if not difference < 1e-2:
        raise AssertionError(f"Both ways differ by {difference:g}.")
    ratio = figures["one by one [s]"] / figures["in batches [s]"]
    return figures | {"heads": len(heads), "times as fast": round(ratio, 1), "relative difference": difference}
