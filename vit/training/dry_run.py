"""Before a run is started: what it will cost, whether it can learn at all, and what augmentation makes of the pictures.

Steps are the training loop's own, computed in a process of their own: running out of memory there hurts nobody, and
ending it ends the work. What a run costs is found out within seconds whatever it costs: batches grow as long as there
is time, and the rest is extrapolated.
"""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vit.data.augment import Chance
from vit.data.datasets import load_dataset
from vit.data.shapes import SHAPES, shapes
from vit.devices import memory
from vit.errors import InvalidConfig
from vit.explain.timing import products
from vit.images.preprocess import Preprocess
from vit.out_of_memory import die_first, ended, kills
from vit.paths import environment_with_package
from vit.training.config import TrainConfig
from vit.training.distributed import Process, memory_budget, set_up_process
from vit.training.fine_tuning import model_config
from vit.training.ladder import Reached
from vit.training.memory import count_memory, parameters_of, parts_that_fit

LIMIT_SECONDS = 10.0  # [s] for timing, the start of the process included
DEAR_SECONDS = 12 * 3600.0  # [s]; a run that takes longer on this machine is too dear for it
FEATURES_SECONDS = 1800.0  # [s] that looking at all pictures once may take on the page
FITTING_SECONDS = 2 * 3600.0  # [s] that a run which is offered instead takes at most

_MARGIN_SECONDS = 0.5  # [s] of the limit that are left for the answer
_MATRIX_SIDE = 768  # of matrices whose product tells how fast a CPU is
_SPEED_SHARE = 0.5  # of that speed that training reaches
_TICK_SECONDS = 0.2  # [s] between two signs of life
_OVERFIT_SECONDS = 30.0  # of overfitting, at most
_VERSIONS = 3  # augmented versions of each picture in the preview
_CELL_PIXELS = 72  # side of a picture in the preview [px], at least

_one_at_a_time = threading.BoundedSemaphore(1)


class DryRun(NamedTuple):
    """What a run will cost, from a few steps on its device.

    Attributes:
        params: numbers that are learned.
        tokens: per picture, prefix included.
        classes: of the data.
        train_pictures, test_pictures: of the data.
        streamed: the pictures do not fit into memory, and are decoded whenever they are needed.
        memory: of the model, one step and the pictures, counted [bytes], on each device.
        seconds_per_step: [s].
        seconds_per_epoch: [s], with the evaluation after it; several devices are taken to share the work evenly.
        pictures_per_second: in training, over all devices.
        timed: pictures in the largest batch that was timed; 0 where a product of matrices had to do.
        batch: pictures in a batch of the run, on each device.
        share: of the model's work for a picture that was timed, 0 to 1.
        parts: in which each batch is computed, because the whole needs more memory than there is; 1 for whole.
        device: its name.
    """

    params: int
    tokens: int
    classes: int
    train_pictures: int
    test_pictures: int
    streamed: bool
    memory: int
    seconds_per_step: float
    seconds_per_epoch: float
    pictures_per_second: float
    timed: int
    batch: int
    share: float
    parts: int
    device: str

    @property
    def extrapolated(self) -> bool:
        """Whether less was timed than a step of the run."""
        return self.timed < self.batch or self.share < 1


class Point(NamedTuple):
    """One moment of overfitting: steps done, the loss, and the share of the batch that is right."""

    step: int
    loss: float
    accuracy: float


class Sample(NamedTuple):
    """A few training pictures, and what is known of the rest.

    Attributes:
        images: uint8 (n, channels, height, width) as they are held for training, see `TrainConfig.train_scale`.
        labels: (n,) int64.
        classes: one name per label.
        train_pictures, test_pictures, validation_pictures: how many there are.
        seconds: that one took to open and cut [s].
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    train_pictures: int
    test_pictures: int
    validation_pictures: int = 0
    seconds: float = 0.0


def time_steps(
    config: TrainConfig, devices: Sequence[str] = ("cpu",), sampled: Sample | None = None, limit: float = LIMIT_SECONDS
) -> DryRun:
    """Time training steps as `try_steps` does, and wait for the result that it ends with.

    Args:
        sampled: the run's pictures as `sample` gives them; they are opened without it.
        limit: for everything [s].

    Raises:
        InvalidDataset: the pictures cannot be opened.
        InvalidConfig: steps cannot be done, or another dry run is under way; on a GPU, not one was done in time.
    """
    *_, result = try_steps(config, devices, sampled, limit)
    assert isinstance(result, DryRun)
    return result


def try_steps(
    config: TrainConfig, devices: Sequence[str] = ("cpu",), sampled: Sample | None = None, limit: float = LIMIT_SECONDS
) -> Generator[float | DryRun, None, None]:
    """Time training steps on the first of `devices`, with its share of the batch, as far as the limit allows.

    Args:
        sampled: the run's pictures as `sample` gives them; they are opened without it.
        limit: for everything [s].

    Yields:
        the share of the time that is gone, several times a second, and at last the result. Closing it ends the work.

    Raises:
        InvalidDataset: the pictures cannot be opened.
        InvalidConfig: steps cannot be done, or another dry run is under way; on a GPU, not one was done in time.
    """
    started = time.time()
    sampled = sampled or sample(config, 4)
    share = config.model_copy(update={"batch_size": max(config.batch_size // len(devices), 1)})
    request = {
        "classes": len(sampled.classes),
        "pictures": sampled.train_pictures,
        "until": started + limit - _MARGIN_SECONDS,
    }
    facts: dict[str, Any] = {}
    steps: list[tuple[int, float]] = []
    guess: DryRun | None = None
    with closing(_run_process("time", share, devices[0], limit, request)) as answers:
        for values in answers:
            facts |= values or {}
            steps += [values["step"]] if values and "step" in values else []
            if devices[0] == "cpu" and guess is None:  # while the process starts
                guess = _estimate_from_speed(share, devices, sampled)
            yield min((time.time() - started) / limit, 1.0)
    if steps:
        yield _estimate_from_steps(share, devices, sampled, facts, steps)
    elif devices[0] == "cpu":  # where time was over before the process said anything, the guess is still to be made
        yield guess or _estimate_from_speed(share, devices, sampled)
    else:
        raise InvalidConfig(f"Not one step was done within {limit:.0f} s. Try again when this machine has less to do.")


def _estimate_from_steps(
    config: TrainConfig, devices: Sequence[str], sampled: Sample, facts: dict[str, Any], steps: list[tuple[int, float]]
) -> DryRun:
    """What a run will cost, by what was timed.

    Args:
        facts: from `_time`.
        steps: pictures and seconds [s] of each that was timed, of ever larger batches.
    """
    batch = min(config.batch_size, sampled.train_pictures)
    fixed, each = extrapolated(steps)
    fixed, each = fixed / facts["share_params"], each / facts["share"]
    seconds, count = fixed + batch * each, len(devices)
    forward = facts["forward"] / facts["share"] if "forward" in facts else each / 3  # back takes twice as long
    every = sampled.train_pictures + sampled.validation_pictures + sampled.test_pictures
    bytes_, on_gpu = sampled.images[0].numel() * every, devices[0] != "cpu"
    evaluated = sampled.validation_pictures * (2 if config.ema else 1)  # by raw weights and by averaged ones
    streamed = bytes_ > facts["budget"]
    training = seconds * max(sampled.train_pictures / batch, 1) / count
    opening = sampled.seconds * sampled.train_pictures / max(config.workers, 1) if streamed else 0.0
    together = max(training, opening) if on_gpu else training + opening  # a CPU does both
    return DryRun(
        params=facts["params"],
        tokens=facts["tokens"],
        classes=len(sampled.classes),
        train_pictures=sampled.train_pictures,
        test_pictures=sampled.test_pictures,
        streamed=streamed,
        memory=facts["memory"] + (0 if streamed else bytes_),
        seconds_per_step=seconds,
        seconds_per_epoch=together + forward * evaluated / count,
        pictures_per_second=sampled.train_pictures / together,
        timed=steps[-1][0],
        batch=batch,
        share=facts["share"],
        parts=facts.get("parts", 1),
        device=devices[0],
    )


def _estimate_from_speed(config: TrainConfig, devices: Sequence[str], sampled: Sample) -> DryRun:
    """What a run will cost on a CPU too busy to do a single step in time, by how fast it multiplies matrices."""
    model = model_config(config, len(sampled.classes))
    process = set_up_process(config.model_copy(update={"device": "cpu"}))
    facts = run_facts(config, len(sampled.classes), min(config.batch_size, sampled.train_pictures), process)
    matrix, times = torch.ones(_MATRIX_SIDE, _MATRIX_SIDE), []
    for _ in range(5):
        started = time.perf_counter()
        matrix @ matrix
        times.append(time.perf_counter() - started)
    speed = _SPEED_SHARE * _MATRIX_SIDE**3 / min(times)
    step = (1, 3 * products(model, model.image_size) / speed)
    return _estimate_from_steps(config, devices, sampled, facts | {"share": 1.0, "share_params": 1.0}, [step])._replace(
        timed=0
    )


def run_facts(config: TrainConfig, classes: int, batch: int, process: Process) -> dict[str, Any]:
    """What is known of a run without a step."""
    model, on_gpu = model_config(config, classes), process.device.type != "cpu"
    parts = 1 if on_gpu else parts_that_fit(model, config, batch, memory()[1], process.autocast)
    return {
        "params": parameters_of(model),
        "tokens": model.tokens,
        "memory": count_memory(model, config, batch, on_gpu, process.autocast, parts),
        "parts": parts,
        "budget": memory_budget(process.device),
    }


def extrapolated(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """What a step takes whatever its batch, and what each picture adds [s].

    A line through the two largest batches; as timing is noisy, pictures are taken to have at least half of the time.

    >>> extrapolated([(1, 3.0), (2, 4.0), (4, 6.0)])
    (2.0, 1.0)
    """
    fastest: dict[int, float] = {}
    for count, seconds in steps:
        fastest[count] = min(seconds, fastest.get(count, seconds))
    (largest, most), *others = sorted(fastest.items(), reverse=True)
    each = most / largest
    if others:
        smaller, less = others[0]
        each = min(max((most - less) / (largest - smaller), each / 2), each)
    return most - largest * each, each


class Fitting(NamedTuple):
    """A recipe that suits a machine.

    Attributes:
        settings: that change.
        params: numbers that are learned.
        seconds: that it will take [s].
    """

    settings: dict[str, Any]
    params: int
    seconds: float


# Models that still learn something, the larger first: input size and model.
_SMALLER_MODELS: tuple[dict[str, Any], ...] = (
    dict(image_size=96, size="cifar-small", patch_size=8, dim=192, heads=3, mlp_dim=768),
    dict(image_size=64, size="cifar-small", patch_size=8),
    dict(image_size=32, size="cifar-small", patch_size=4, dim=64, depth=4, mlp_dim=128),
)
_INPUT_SIZES = (224, 160, 128, 96, 64, 32)  # of the input, for a model that is given [px]
_FEWER_EPOCHS = (30, 10)


def fitting(config: TrainConfig, dry_run: DryRun, seconds: float = FITTING_SECONDS) -> Fitting | None:
    """The largest recipe for the same pictures that takes at most so long on this machine; None without one.

    Args:
        dry_run: of the run as it is set.
        seconds: that it may take [s].
    """
    own = model_config(config, dry_run.classes)
    work, side = products(own, own.image_size), min(own.image_size)
    each = dry_run.seconds_per_epoch / work  # [s] of an epoch
    if config.init_from:
        sides = sorted({size - size % own.patch_size for size in _INPUT_SIZES if size >= own.patch_size}, reverse=True)
        options: list[dict[str, Any]] = [dict(image_size=smaller) for smaller in sides]
    else:
        follows = dict.fromkeys(("patch_size", "dim", "depth", "heads", "mlp_dim", "pool", "norm", "activation"))
        options = [follows | changes for changes in _SMALLER_MODELS]
    options = [one | {"crop_padding": min(config.crop_padding, one["image_size"] // 8)} for one in options]
    fewer = ({"epochs": epochs} for epochs in _FEWER_EPOCHS if epochs < config.epochs)
    for epochs in ({}, *fewer):
        for changes in ({}, *(one for one in options if one["image_size"] <= side)):
            settings = changes | epochs
            changed = config.model_copy(update=settings)
            model = model_config(changed, dry_run.classes)
            share = products(model, model.image_size) / work
            if (share < 1 or (share == 1 and epochs)) and (takes := changed.epochs * each * work * share) <= seconds:
                return Fitting(settings, parameters_of(model), takes)
    return None


def too_large(config: TrainConfig, classes: int, batch: int, free: int) -> str:
    """Why a step of a run cannot be done on a CPU, "" where it can; a GPU finds out as its memory runs out.

    Args:
        free: memory [bytes], 0 where it is not known.
    """
    model = model_config(config, classes)
    half = set_up_process(config.model_copy(update={"device": "cpu"})).autocast
    try:
        parts_that_fit(model, config, batch, free, half)
    except InvalidConfig as error:
        return str(error)
    return ""


def overfit(
    config: TrainConfig, device: str = "cpu", seconds: float = _OVERFIT_SECONDS
) -> Generator[Point | None, None, None]:
    """Learn one batch of the training pictures by heart, without augmentation: a model that cannot do this is broken.

    Args:
        seconds: for it, at most [s].

    Yields:
        a point now and then, and None in between. Closing it ends the work.

    Raises:
        InvalidConfig, InvalidDataset: it cannot be done, or another dry run is under way.
    """
    with closing(_run_process("overfit", config, device, 6 * seconds, {"seconds": seconds})) as answers:
        for values in answers:
            yield Point(**values) if values else None


def without_training(
    config: TrainConfig, device: str = "cpu", limit: float = FEATURES_SECONDS
) -> Generator[float | dict[str, Reached], None, None]:
    """What nearest neighbours and a linear probe reach from the checkpoint that a run starts from.

    Args:
        limit: for it [s].

    Yields:
        the share that is done now and then, and at last the result by rung. Closing it ends the work.

    Raises:
        InvalidConfig, InvalidDataset: it cannot be done, or another dry run is under way.
    """
    done = 0.0
    with closing(_run_process("features", config, device, limit, {})) as answers:
        for values in answers:
            if values and "reached" in values:
                yield {name: Reached(*reached) for name, reached in values["reached"].items()}
                return
            done = values["share"] if values else done
            yield done
    raise InvalidConfig(f"The pictures take longer than {limit / 60:.0f} minutes. Lower limit.")


def sample(config: TrainConfig, count: int) -> Sample:
    """Open a few training pictures without reading the others; the same ones for the same seed.

    Raises:
        InvalidDataset: there are none.
        InvalidCheckpoint, InvalidConfig: of the checkpoint that the run starts from, see `fine_tuning.resolve`.
    """
    model = model_config(config, num_classes=1)
    if config.data == "shapes" and model.channels == 3:
        pictures, _ = shapes(count, model.image_size[0], seed=1)
        train, test, validation = 4000, 1000, 1000
        return Sample(pictures.images, pictures.labels, SHAPES, min(train, config.limit or train), test, validation)
    as_they_are = Preprocess(model.image_size, mean=(0.0,) * model.channels, std=(1.0,) * model.channels)
    root = Path(config.data_root)
    scale = config.train_scale
    dataset = load_dataset(
        config.data, as_they_are, root=root, budget=0, workers=0, limit=config.limit, train_scale=scale
    )
    train = len(dataset.train.labels)
    order = torch.randperm(train, generator=torch.Generator().manual_seed(config.seed))[:count]
    started = time.perf_counter()
    images, labels = next(dataset.train.batches(order, max(len(order), 1), torch.device("cpu")))
    seconds = (time.perf_counter() - started) / max(len(order), 1)
    test, validation = len(dataset.test.labels), len(dataset.validation.labels)
    return Sample(images, labels, dataset.classes, train, test, validation, seconds)


def preview(config: TrainConfig, images: Tensor) -> Image.Image:
    """Pictures as they are in the first row, and what a model in training would see of them in the rows below.

    Args:
        config: its augmentation is shown.
        images: uint8 (n, channels, height, width), as `sample` gives them.
    """
    size = model_config(config, num_classes=1).image_size
    augment, chance = config.augmentation(size), Chance(torch.device("cpu"))
    rows = [images]
    if images.shape[2:] != size:
        rows = [F.interpolate(images.float(), size, mode="bilinear", antialias=True).round().to(torch.uint8)]
    for version in range(_VERSIONS):
        chance.seed(config.seed, version)
        augmented = augment(images, chance).float()  # (n, channels, height, width), 0 to 255
        augmented, _ = augment.mix(augmented, torch.zeros(len(images), 1), chance)
        rows.append(augmented.round().clamp(0, 255).to(torch.uint8))
    factor = max(1, -(-_CELL_PIXELS // size[1]))
    gap = max(4, size[1] * factor // 16)
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


def _run_process(
    what: str, config: TrainConfig, device: str, limit: float, request: dict[str, Any]
) -> Generator[dict[str, Any] | None, None, None]:
    """Run this file in a process of its own; yields what it prints, and None now and then.

    Args:
        limit: after which the process is ended [s].
        request: for it, beside the settings.
    """
    if not _one_at_a_time.acquire(blocking=False):
        raise InvalidConfig("Another trial is under way on this server. Try again in a few seconds.")
    try:
        with tempfile.TemporaryFile("w+") as log:
            yield from _read_process(what, config, device, limit, request, log)
    finally:
        _one_at_a_time.release()


def _read_process(
    what: str, config: TrainConfig, device: str, limit: float, request: dict[str, Any], log: IO[str]
) -> Generator[dict[str, Any] | None, None, None]:
    environment = environment_with_package() | {"PYTHONUNBUFFERED": "1"}
    if device.startswith("cuda:"):
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": device.removeprefix("cuda:")}
    config = config.model_copy(update={"device": device.partition(":")[0]})
    until, kills_before = time.monotonic() + limit, kills()
    process = subprocess.Popen(
        [sys.executable, "-m", "vit.training.dry_run_process", what],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    die_first(process.pid)
    assert process.stdin and process.stdout
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_forward_lines, args=(process.stdout, lines), daemon=True)
    try:
        with process.stdin as stdin:
            json.dump(request | {"config": config.model_dump()}, stdin)
        reader.start()
        while time.monotonic() < until:
            try:
                line = lines.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
                continue
            if not line:
                break
            values = json.loads(line)
            if "error" in values:
                raise InvalidConfig(values["error"])
            yield values
        else:
            return  # what was told by now has to do
        if process.wait() == 0:
            return
        if who := ended(process.returncode, kills_before):
            raise InvalidConfig(f"{who}. Set a smaller image_size or batch_size, or close other programs.")
        log.seek(0)
        raise RuntimeError(f"The trial ended with status {process.returncode}:\n{log.read()[-4000:]}")
    finally:
        process.kill()
        process.wait()
        if reader.ident is not None:
            reader.join()
        process.stdout.close()


def _forward_lines(source: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Put each line into a queue, and an empty one at the end."""
    for line in source:
        lines.put(line)
    lines.put("")
