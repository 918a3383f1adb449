"""The process of a dry run: times a few steps, overfits one batch or evaluates features, and reports as JSON lines.

python -m vit.training.loop.dry_run_process time|overfit|features < request.json      prints one JSON object per line
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.data.datasets import Dataset
from vit.data.pictures import InMemoryPictures
from vit.devices import peak_memory
from vit.errors import UserError
from vit.out_of_memory import describe_failure, is_out_of_memory
from vit.training.loop import probe, trainer
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import memory_budget, set_up_process
from vit.training.loop.dry_run import STEPS
from vit.training.loop.fine_tuning import model_config
from vit.training.loop.ladder import RungResult
from vit.training.loop.picture_sample import Sample, sample
from vit.training.loop.presets import train_config

_ENOUGH_SECONDS = 20.0  # [s] of steps, after which no further step is timed
_OVERFIT_BATCH = 64  # maximum number of pictures to overfit
_OVERFIT_STEPS = 120  # maximum number of steps


def main(what: str) -> int:
    """Read a request from stdin and write one JSON object per line to stdout; returns the exit status."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout carries JSON only; output of libraries goes to stderr

    def send(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=out, flush=True)

    request = json.load(sys.stdin)
    try:
        config = train_config(None, **request.pop("config"))
        does: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {"time": _time_steps, "overfit": _overfit}
        if what == "features":
            send({"results": _without_training(config, send)})
            return 0
        for values in does[what](config, **request):
            send(values)
    except UserError as error:
        send({"error": str(error)})
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        send({"error": describe_failure(error, "The trial", "Set a smaller image_size or batch_size.")})
    return 0


def _make_trainer(config: TrainConfig, pictures: Sample, test: Tensor) -> Any:
    """Build a trainer on these pictures, with the parts of a real run; it writes no files."""
    labels = torch.arange(len(test)) % len(pictures.classes)
    held_out = InMemoryPictures(test, labels)
    dataset = Dataset(
        config.data, pictures.classes, InMemoryPictures(pictures.images, pictures.labels), held_out, held_out
    )
    return trainer.Trainer(config, Path(tempfile.gettempdir()) / "vit-trial", set_up_process(config), dataset)


def _time_steps(config: TrainConfig, classes: int, batch: int) -> Iterator[dict[str, Any]]:
    """Take steps and a forward pass on pictures of noise; yield the number of steps done, then what was measured."""
    model = model_config(config, classes)
    shape = (model.channels, *(round(config.train_scale * side) for side in model.image_size))
    noise = torch.randint(0, 256, (batch, *shape), dtype=torch.uint8)
    sampled = Sample(noise, torch.arange(batch) % classes, tuple(map(str, range(classes))), batch, 1)
    run = _make_trainer(config.model_copy(update={"limit": None, "compile": False}), sampled, noise[:1])
    update, images, labels = run.update, run.data.train.images, run.data.train.labels
    run.fit_into_memory()
    update.model.train()
    steps: list[float] = []
    while len(steps) < STEPS and sum(steps) < _ENOUGH_SECONDS:
        started = time.perf_counter()
        update.train_step(0, images, labels, _discard)[0].item()  # synchronises with the device
        steps.append(time.perf_counter() - started)
        yield {"steps": len(steps)}
    update.model.eval()
    started = time.perf_counter()
    with torch.inference_mode():
        for part in images[:, :, : model.image_size[0], : model.image_size[1]].chunk(update.parts):
            update.model(run.data.normalise(part)).logits.sum().item()
    forward, device = time.perf_counter() - started, run.process.device
    peak = torch.cuda.max_memory_reserved(device) if device.type == "cuda" else peak_memory()
    yield {
        "seconds": min(steps),  # the first one includes set-up
        "forward": forward,
        "memory": peak,
        "budget": memory_budget(device),
        "parts": update.parts,
    }


def _overfit(config: TrainConfig, seconds: float) -> Iterator[dict[str, Any]]:
    config = config.model_copy(update={"crop_scale": 1.0})  # otherwise pictures would be larger in memory
    pictures = sample(config, min(config.batch_size, _OVERFIT_BATCH))
    plain = config.model_copy(
        update={
            "limit": None, "epochs": _OVERFIT_STEPS, "schedule": "constant", "warmup_epochs": 5, "compile": False,
            "ema": 0.0, "crop_padding": 0, "flip": False, "operations": 0, "erase": 0.0,
            "mixup": 0.0, "cutmix": 0.0, "dropout": 0.0, "drop_path": 0.0, "label_smoothing": 0.0,
            "batch_size": len(pictures.labels),
        }
    )  # fmt: skip
    run = _make_trainer(plain, pictures, pictures.images[:1])
    run.fit_into_memory()
    update, images, labels = run.update, run.data.train.images, run.data.train.labels
    update.model.train()
    until = time.monotonic() + seconds
    for step in range(_OVERFIT_STEPS + 1):
        with torch.no_grad(), run.process.arithmetic():
            logits = update.logits(run.data.normalise(images)).float()
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        yield {"step": step, "loss": loss, "accuracy": accuracy}
        if (accuracy == 1 and loss < 0.05) or time.monotonic() > until:
            return
        update.train_step(step, images, labels, _discard)


def _without_training(config: TrainConfig, send: Callable[[dict[str, Any]], None]) -> dict[str, RungResult]:
    config = config.model_copy(update={"crop_scale": 1.0})  # keeps pictures in memory at the size of the input
    run = trainer.Trainer(config, Path(tempfile.gettempdir()) / "vit-trial", set_up_process(config))
    reported = 0.0

    def tick(share: float) -> None:
        nonlocal reported
        if share >= reported + 0.01:
            reported = share
            send({"share": share})

    return probe.without_training(run.update.model, run.data, run.process.device, tick)


def _discard(text: str) -> None:
    """Drop the message; `DryRun.parts` has the same information."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
