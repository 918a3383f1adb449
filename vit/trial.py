"""Before a run is started: what it will cost, whether it can learn at all, and what augmentation makes of the pictures.

Steps are the training loop's own, computed in a process of their own: running out of memory there hurts nobody.

    python -m vit.trial time|overfit < config.json      prints one JSON object per line
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from vit.errors import InvalidConfig, UserError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from vit.recipes import TrainConfig

_PATIENCE = 180  # [s] for a whole trial, compilation included
_ENOUGH = 2.0  # [s] of timed steps
_FEW = 3  # timed steps, at least
_BATCH = 64  # pictures that are overfitted
_STEPS = 120  # of overfitting, at most
_SECONDS = 30  # of overfitting, at most
_VERSIONS = 3  # augmented versions of each picture in the preview
_CELL = 72  # side of a picture in the preview [px], at least

_one_at_a_time = threading.BoundedSemaphore(1)


class Trial(NamedTuple):
    """What a run will cost, from a few steps on its device.

    Attributes:
        params: numbers that are learned.
        tokens: per picture, prefix included.
        classes: of the data.
        train_pictures, test_pictures: of the data.
        memory: of the model, one step and the pictures [bytes], on each device.
        seconds_per_step: [s].
        seconds_per_epoch: [s], with the evaluation after it; several devices are taken to share the work evenly.
        pictures_per_second: in training, over all devices.
        parts: in which each batch is computed, because the whole needs more memory than there is; 1 for whole.
        device: its name.
    """

    params: int
    tokens: int
    classes: int
    train_pictures: int
    test_pictures: int
    memory: int
    seconds_per_step: float
    seconds_per_epoch: float
    pictures_per_second: float
    parts: int
    device: str


class Point(NamedTuple):
    """One moment of overfitting: steps done, the loss, and the share of the batch that is right."""

    step: int
    loss: float
    accuracy: float


class Sample(NamedTuple):
    """A few training pictures, and what is known of the rest.

    Attributes:
        images: uint8 (n, channels, height, width) at the input size.
        labels: (n,) int64.
        classes: one name per label.
        train_pictures, test_pictures: how many there are.
    """

    images: "Tensor"
    labels: "Tensor"
    classes: tuple[str, ...]
    train_pictures: int
    test_pictures: int


def time_steps(config: "TrainConfig", devices: Sequence[str] = ("cpu",)) -> Trial:
    """Time a few training steps on the first of `devices`, with its share of the batch.

    Raises:
        InvalidConfig: they cannot be done, take too long, or another trial is under way.
    """
    share = config.model_copy(update={"batch_size": max(config.batch_size // len(devices), 1)})
    *_, values = _ask("time", share, devices[0])
    count = len(devices)
    training, evaluation = values.pop("training"), values.pop("evaluation")
    values["seconds_per_epoch"] = training / count + evaluation
    values["pictures_per_second"] *= count
    return Trial(**values, device=devices[0])


def overfit(config: "TrainConfig", device: str = "cpu") -> Iterator[Point]:
    """Learn one batch of the training pictures by heart, without augmentation: a model that cannot do this is broken.

    Raises:
        InvalidConfig, InvalidDataset: it cannot be done, or another trial is under way.
    """
    for values in _ask("overfit", config, device):
        yield Point(**values)


def sample(config: "TrainConfig", count: int) -> Sample:
    """Open a few training pictures without reading the others; the same ones for the same seed.

    Raises:
        InvalidDataset: there are none.
        InvalidCheckpoint, InvalidConfig: of the checkpoint that the run starts from, see `vit.start.resolve`.
    """
    import torch

    from vit.datasets import SHAPES, load_dataset, shapes
    from vit.images import Preprocess
    from vit.start import model_config

    model = model_config(config, num_classes=1)
    if config.data == "shapes" and model.channels == 3:
        pictures, _ = shapes(count, model.image_size[0], seed=1)
        train, test = (4000, 1000)
        return Sample(pictures.images, pictures.labels, SHAPES, min(train, config.limit or train), test)
    as_they_are = Preprocess(model.image_size, mean=(0.0,) * model.channels, std=(1.0,) * model.channels)
    root = Path(config.data_root)
    dataset = load_dataset(config.data, as_they_are, root=root, budget=0, workers=0, limit=config.limit)
    train = len(dataset.train.labels)
    order = torch.randperm(train, generator=torch.Generator().manual_seed(config.seed))[:count]
    images, labels = next(dataset.train.batches(order, max(len(order), 1), torch.device("cpu")))
    return Sample(images, labels, dataset.classes, train, len(dataset.test.labels))


def preview(config: "TrainConfig", images: "Tensor") -> "Image.Image":
    """Pictures as they are in the first row, and what a model in training would see of them in the rows below.

    Args:
        config: its augmentation is shown.
        images: uint8 (n, channels, height, width) at the input size.
    """
    import numpy as np
    import torch
    from PIL import Image

    from vit.augment import Chance

    augment, chance = config.augmentation(), Chance(torch.device("cpu"))
    rows = [images]
    for version in range(_VERSIONS):
        chance.seed(config.seed, version)
        seen = augment(images, chance).float()  # (n, channels, height, width), 0 to 255
        seen, _ = augment.mix(seen, torch.zeros(len(images), 1), chance)
        rows.append(seen.round().clamp(0, 255).to(torch.uint8))
    factor = max(1, -(-_CELL // images.shape[-1]))
    gap = max(4, images.shape[-1] * factor // 16)
    cells = torch.stack(rows).repeat_interleave(factor, 3).repeat_interleave(factor, 4)  # (rows, n, channels, h, w)
    down, across, channels, height, width = cells.shape
    sheet = np.zeros((down * (height + gap) + gap, across * (width + gap) - gap, 4), np.uint8)  # transparent
    for row in range(down):
        for col in range(across):
            pixels = cells[row, col].permute(1, 2, 0).numpy()
            y = row * (height + gap) + (gap if row else 0)  # the originals stand apart
            x = col * (width + gap)
            sheet[y : y + height, x : x + width, :3] = pixels if channels == 3 else pixels[..., :1]
            sheet[y : y + height, x : x + width, 3] = 255
    return Image.fromarray(sheet)


def _ask(what: str, config: "TrainConfig", device: str) -> Iterator[dict[str, Any]]:
    """Run this file in a process of its own; yields what it prints."""
    if not _one_at_a_time.acquire(blocking=False):
        raise InvalidConfig("Another trial is under way on this server. Try again in a few seconds.")
    try:
        with tempfile.TemporaryFile("w+") as log:
            yield from _listen(what, config, device, log)
    finally:
        _one_at_a_time.release()


def _listen(what: str, config: "TrainConfig", device: str, log: IO[str]) -> Iterator[dict[str, Any]]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": "1"}
    if device.startswith("cuda:"):
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.removeprefix("cuda:")}
    config = config.model_copy(update={"device": device.partition(":")[0]})
    process = subprocess.Popen(
        [sys.executable, "-m", "vit.trial", what],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert process.stdin and process.stdout
    late = threading.Timer(_PATIENCE, process.kill)
    late.start()
    try:
        with process.stdin as stdin:
            stdin.write(config.model_dump_json())
        for line in process.stdout:
            values = json.loads(line)
            if "error" in values:
                raise InvalidConfig(values["error"])
            yield values
        if process.wait() == 0:
            return
        if not late.is_alive():
            raise InvalidConfig(
                f"A few steps took longer than {_PATIENCE} s. Choose a smaller model or batch, or a faster device."
            )
        if process.returncode == -9:
            raise InvalidConfig(
                "The system ended the trial, most likely for lack of memory. Choose a smaller batch_size."
            )
        log.seek(0)
        raise RuntimeError(f"The trial ended with status {process.returncode}:\n{log.read()[-4000:]}")
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()


def main(what: str) -> int:
    """The process's own side: settings from the standard input, one JSON object per line to the standard output."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to the log

    def tell(values: dict[str, Any]) -> None:
        print(json.dumps(values), file=out, flush=True)

    import torch

    from vit.recipes import train_config

    settings = json.load(sys.stdin)
    try:
        config = train_config(None, **settings)
        for values in {"time": _time, "overfit": _overfit}[what](config):
            tell(values)
    except UserError as error:
        tell({"error": str(error)})
    except torch.OutOfMemoryError:
        tell({"error": f"batch_size: {config.batch_size} pictures need more memory than the device has. Lower it."})
    return 0


def _run(config: "TrainConfig", pictures: Sample, test: "Tensor") -> Any:
    """The training loop's own parts around these pictures; nothing is written."""
    import torch

    from vit import train
    from vit.datasets import Dataset, Resident

    labels = torch.arange(len(test)) % len(pictures.classes)
    held_out = Resident(test, labels)
    dataset = Dataset(config.data, pictures.classes, Resident(pictures.images, pictures.labels), held_out, held_out)
    return train.Training(config, Path(tempfile.gettempdir()) / "vit-trial", train.choose_place(config), dataset)


def _time(config: "TrainConfig") -> Iterator[dict[str, Any]]:
    import torch

    from vit import train  # noqa: F401  before memory is looked at
    from vit.datasets import Resident
    from vit.evaluate import evaluate

    known = sample(config, 1)
    count = min(config.batch_size, known.train_pictures)
    noise = torch.randint(0, 256, (count, *known.images.shape[1:]), dtype=torch.uint8)
    labels = torch.arange(count) % len(known.classes)
    before = _forget_peak()
    run = _run(config.model_copy(update={"limit": None}), known._replace(images=noise, labels=labels), noise[:1])
    on_gpu = run.place.device.type == "cuda"
    images, labels = run.train_set.images, run.train_set.labels
    run.model.train()

    def step() -> None:
        loss, _ = run.take_step(images, labels, _unheard)
        loss.item()  # waits for the device

    step()  # allocates, and compiles where that is asked for
    times: list[float] = []
    while len(times) < _FEW or sum(times) < _ENOUGH:
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
        if times[-1] > _ENOUGH:
            break
    seconds = sorted(times)[len(times) // 2]
    memory = torch.cuda.max_memory_allocated(run.place.device) if on_gpu else _peak() - before

    few = max(1, min(count, known.test_pictures, round(count / seconds)))
    test = Resident(images[:few], labels[:few])
    evaluate(run.shown, test, run.normalise, device=run.place.device)
    started = time.perf_counter()
    evaluate(run.shown, test, run.normalise, device=run.place.device)
    evaluation = (time.perf_counter() - started) * known.test_pictures / few

    yield {
        "params": sum(parameter.numel() for parameter in run.model.parameters()),
        "tokens": run.model.config.tokens,
        "classes": len(known.classes),
        "train_pictures": known.train_pictures,
        "test_pictures": known.test_pictures,
        "memory": memory + (known.train_pictures + known.test_pictures - count) * noise[0].numel(),
        "seconds_per_step": seconds,
        "training": seconds * max(known.train_pictures / count, 1),
        "evaluation": evaluation,
        "pictures_per_second": count / seconds,
        "parts": run.parts,
    }


def _forget_peak() -> int:
    """Let `_peak` count from here where the system can; returns this process's memory [bytes]."""
    with suppress(OSError):  # not Linux, or not allowed
        Path("/proc/self/clear_refs").write_text("5")
    return _peak()


def _peak() -> int:
    """The most memory that this process had [bytes]."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return int(lines["VmHWM"].split()[0]) * 1024
    except (OSError, KeyError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _overfit(config: "TrainConfig") -> Iterator[dict[str, Any]]:
    import torch

    pictures = sample(config, min(config.batch_size, _BATCH))
    plain = config.model_copy(
        update={
            "limit": None, "epochs": _STEPS, "schedule": "constant", "warmup_epochs": 5, "compile": False, "ema": 0.0,
            "crop_padding": 0, "crop_scale": 1.0, "flip": False, "operations": 0, "erase": 0.0, "mixup": 0.0,
            "cutmix": 0.0, "dropout": 0.0, "drop_path": 0.0, "label_smoothing": 0.0, "batch_size": len(pictures.labels),
        }
    )  # fmt: skip
    run = _run(plain, pictures, pictures.images[:1])
    images, labels = run.train_set.images, run.train_set.labels
    run.model.train()
    until = time.monotonic() + _SECONDS
    for step in range(_STEPS + 1):
        with torch.no_grad(), run.place.arithmetic():
            logits = run.logits(run.normalise(images)).float()
        loss = torch.nn.functional.cross_entropy(logits, labels).item()
        accuracy = (logits.argmax(1) == labels).float().mean().item()
        yield {"step": step, "loss": loss, "accuracy": accuracy}
        if (accuracy == 1 and loss < 0.05) or time.monotonic() > until:
            return
        run.take_step(images, labels, _unheard)
        run.step += 1


def _unheard(text: str) -> None:
    """Nobody listens to a trial; `Trial.parts` tells what there was to tell."""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
