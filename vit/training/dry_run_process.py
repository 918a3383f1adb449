"""The process of a dry run: times a few steps, overfits one batch or evaluates features, and reports as JSON lines.

python -m vit.training.dry_run_process time|overfit|features < request.json      prints one JSON object per line
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
from vit.errors import UserError
from vit.explain.timing import products
from vit.out_of_memory import describe_failure, is_out_of_memory
from vit.training import probe, trainer
from vit.training.config import TrainConfig
from vit.training.distributed import set_up_process
from vit.training.dry_run import run_facts
from vit.training.fine_tuning import model_config
from vit.training.ladder import RungResult
from vit.training.memory import parameters_of
from vit.training.picture_sample import Sample, sample
from vit.training.presets import train_config

_TIMED_SECONDS = 2.0  # [s] of steps with the largest batch
_LIGHT_PRODUCTS = 60e9  # multiply-adds per picture and step above which a smaller model is timed on a CPU
_NOISE_BYTES = 1 << 28  # [bytes] maximum size of the noise pictures
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


def _time_steps(config: TrainConfig, classes: int, pictures: int, until: float) -> Iterator[dict[str, Any]]:
    """Yield facts about the run, then timings of steps."""
    whole, process = model_config(config, classes), set_up_process(config)
    part = reduced_config(config, classes) if process.device.type == "cpu" else config
    own, batch = model_config(part, classes), min(config.batch_size, pictures)
    facts = run_facts(config, classes, batch, process)
    yield facts | {
        "share": products(own, own.image_size) / products(whole, whole.image_size),
        "share_params": parameters_of(own) / parameters_of(whole),
    }
    shape = (own.channels, *(round(part.train_scale * side) for side in own.image_size))
    most = max(1, min(batch, _NOISE_BYTES // torch.Size(shape).numel()))
    noise = torch.randint(0, 256, (most, *shape), dtype=torch.uint8)
    labels = torch.arange(most) % classes
    names = tuple(map(str, range(classes)))
    sampled = Sample(noise, labels, names, most, 1)
    run = _make_trainer(part.model_copy(update={"limit": None, "compile": False}), sampled, noise[:1])
    update, images, labels = run.update, run.data.train.images, run.data.train.labels
    run.fit_into_memory()
    update.model.train()

    def step(count: int) -> None:
        loss, _ = update.train_step(0, images[:count], labels[:count], _discard)
        loss.item()  # synchronises with the device

    for count, seconds in batches_in_time(step, most, until):
        yield {"step": (count, seconds), "parts": max(facts["parts"], update.parts)}
    if time.time() + seconds / 2 < until:
        update.model.eval()
        started = time.time()
        with torch.inference_mode():
            seen = images[:count, :, : own.image_size[0], : own.image_size[1]]
            update.model(run.data.normalise(seen)).logits.sum().item()
        yield {"forward": (time.time() - started) / count}


def reduced_config(config: TrainConfig, classes: int) -> TrainConfig:
    """Return the config, or one with fewer blocks and a smaller input if a step takes long on a CPU."""
    model = model_config(config, classes)
    if 3 * products(model, model.image_size) <= _LIGHT_PRODUCTS:
        return config
    changes: dict[str, Any] = {"crop_padding": 0}
    if not config.init_from:
        changes["depth"] = max(1, int(model.depth * _LIGHT_PRODUCTS / (3 * products(model, model.image_size))))
        model = model_config(config.model_copy(update=changes), classes)
    side = min(model.image_size)
    while 3 * products(model, (side, side)) > _LIGHT_PRODUCTS and side > 8 * model.patch_size:
        side -= model.patch_size
    return config.model_copy(update=changes | ({"image_size": side} if side < min(model.image_size) else {}))


def batches_in_time(
    step: Callable[[int], None], most: int, until: float, clock: Callable[[], float] = time.time
) -> Iterator[tuple[int, float]]:
    """Time steps with growing batches while there is time.

    Args:
        step: runs a training step with this number of pictures.
        most: largest batch.
        until: deadline for optional steps, by the clock [s].

    Yields:
        Batch size, and time of a step [s]. The first step is a warm-up and not reported.
    """
    step(1)
    count, spent = 1, 0.0
    while True:
        started = clock()
        step(count)
        seconds = clock() - started
        yield count, seconds
        spent += seconds if count == most else 0.0
        if spent > _TIMED_SECONDS:
            return
        count = min(2 * count, most)
        if clock() + 2 * seconds > until:  # assumes that the time doubles with the batch
            return


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
