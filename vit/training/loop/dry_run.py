"""Checks before a run: its cost, whether the model can learn at all, and what its checkpoint reaches without training.

Steps use the real training loop in a separate process, which may run out of memory or be killed without consequences.
"""

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import NamedTuple

from vit.errors import InvalidConfig
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.dry_run_launch import run_process
from vit.training.loop.fine_tuning import model_config
from vit.training.loop.ladder import RungResult
from vit.training.loop.memory import parts_that_fit
from vit.training.loop.picture_sample import Sample, sample

STEPS = 3  # maximum number of steps to time
STEPS_SECONDS = 600.0  # [s] limit for all steps, including the start of the process
TOO_LONG_SECONDS = 12 * 3600.0  # [s]; longer runs are considered too expensive for this machine
FEATURES_SECONDS = 1800.0  # [s] limit for computing features of all pictures on the page

_OVERFIT_SECONDS = 30.0  # [s] maximum duration of overfitting


class DryRun(NamedTuple):
    """Estimated cost of a run, from a few steps on its device.

    Attributes:
        streamed: the pictures do not fit into memory, and are decoded on demand.
        memory: peak of the steps, and the pictures that stay in memory [bytes], on each device.
        seconds_per_epoch: [s], including the evaluation; assumes an even split over several devices.
        pictures_per_second: in training, over all devices.
        parts: number of parts in which each batch is computed to fit into memory; 1 for no split.
        device: its name.
    """

    streamed: bool
    memory: int
    seconds_per_epoch: float
    pictures_per_second: float
    parts: int
    device: str


class Point(NamedTuple):
    """State of overfitting: steps done, loss, and accuracy on the batch."""

    step: int
    loss: float
    accuracy: float


def try_steps(
    config: TrainConfig, devices: Sequence[str] = ("cpu",), sampled: Sample | None = None, limit: float = STEPS_SECONDS
) -> Generator[int | DryRun, None, None]:
    """Time training steps on the first of `devices`, with its share of the batch.

    Args:
        sampled: the run's pictures, from `sample`; None to open them.
        limit: for everything [s].

    Yields:
        The number of steps done, several times a second, and finally the result. Closing stops the work.

    Raises:
        InvalidDataset: the pictures cannot be opened.
        InvalidConfig: a step fails or takes longer than `limit`, or another dry run is in progress.
    """
    sampled = sampled or sample(config, 4)
    share = config.model_copy(update={"batch_size": max(config.batch_size // len(devices), 1)})
    request = {"classes": len(sampled.classes), "batch": min(share.batch_size, sampled.train_pictures)}
    done = 0
    with closing(run_process("time", share, devices[0], limit, request)) as answers:
        for values in answers:
            if values and "seconds" in values:
                yield _estimate(share, devices, sampled, **values)
                return
            done = values["steps"] if values else done
            yield done
    raise InvalidConfig(f"Not one step was done within {limit / 60:.0f} minutes. Choose a smaller model or batch.")


def _estimate(
    config: TrainConfig,
    devices: Sequence[str],
    sampled: Sample,
    *,
    seconds: float,
    forward: float,
    memory: int,
    budget: int,
    parts: int,
) -> DryRun:
    """Estimate the cost of a run.

    Args:
        seconds: of a step [s].
        forward: of a forward pass of the same pictures [s].
        memory: at the peak of the steps, without the dataset's pictures [bytes].
        budget: for the dataset's pictures [bytes].
        parts: micro-batches per batch.
    """
    batch, count = min(config.batch_size, sampled.train_pictures), len(devices)
    every = sampled.train_pictures + sampled.validation_pictures + sampled.test_pictures
    pictures, on_gpu = sampled.images[0].numel() * every, devices[0] != "cpu"
    evaluated = sampled.validation_pictures * (2 if config.ema else 1)  # raw and averaged weights
    streamed = pictures > budget
    training = seconds * max(sampled.train_pictures / batch, 1) / count
    opening = sampled.seconds * sampled.train_pictures / max(config.workers, 1) if streamed else 0.0
    together = max(training, opening) if on_gpu else training + opening  # a CPU also decodes
    return DryRun(
        streamed=streamed,
        memory=memory + (0 if streamed else pictures),
        seconds_per_epoch=together + forward / batch * evaluated / count,
        pictures_per_second=sampled.train_pictures / together,
        parts=parts,
        device=devices[0],
    )


def too_large(config: TrainConfig, classes: int, batch: int, free: int) -> str:
    """Return why a step does not fit into a CPU's memory, "" if it does; on a GPU, only running a step tells.

    Args:
        free: memory [bytes], 0 if unknown.
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
    """Overfit one batch of training pictures without augmentation; a model that cannot do this is broken.

    Args:
        seconds: time limit [s].

    Yields:
        A point from time to time, and None in between. Closing stops the work.

    Raises:
        InvalidConfig, InvalidDataset: it fails, or another dry run is in progress.
    """
    with closing(run_process("overfit", config, device, 6 * seconds, {"seconds": seconds})) as answers:
        for values in answers:
            yield Point(**values) if values else None


def without_training(
    config: TrainConfig, device: str = "cpu", limit: float = FEATURES_SECONDS
) -> Generator[float | dict[str, RungResult], None, None]:
    """Evaluate nearest neighbours and a linear probe on the run's initial checkpoint.

    Args:
        limit: time limit [s].

    Yields:
        The share done from time to time, and finally the result by rung. Closing stops the work.

    Raises:
        InvalidConfig, InvalidDataset: it fails.
    """
    done = 0.0
    with closing(run_process("features", config, device, limit, {})) as answers:
        for values in answers:
            if values and "results" in values:
                yield {name: RungResult(*result) for name, result in values["results"].items()}
                return
            done = values["share"] if values else done
            yield done
    raise InvalidConfig(f"The pictures take longer than {limit / 60:.0f} minutes. Lower limit.")
