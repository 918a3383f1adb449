"""Checks before a run: its cost, whether the model can learn at all, and what its checkpoint reaches without training.

Steps use the real training loop in a separate process, which may run out of memory or be killed without consequences.
The cost is estimated within seconds: batches grow as long as there is time, and the rest is extrapolated.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import torch

from vit.devices import memory
from vit.errors import InvalidConfig
from vit.explain.timing import products
from vit.training.config import TrainConfig
from vit.training.distributed import Process, memory_budget, set_up_process
from vit.training.dry_run_launch import run_process
from vit.training.fine_tuning import model_config
from vit.training.ladder import RungResult
from vit.training.memory import count_memory, parameters_of, parts_that_fit
from vit.training.picture_sample import Sample, sample

LIMIT_SECONDS = 10.0  # [s] for timing, including the start of the process
TOO_LONG_SECONDS = 12 * 3600.0  # [s]; longer runs are considered too expensive for this machine
FEATURES_SECONDS = 1800.0  # [s] limit for computing features of all pictures on the page

_MARGIN_SECONDS = 0.5  # [s] of the limit reserved for the response
_MATRIX_SIDE = 768  # of matrices whose product measures the speed of a CPU
_SPEED_SHARE = 0.5  # share of that speed that training reaches
_OVERFIT_SECONDS = 30.0  # [s] maximum duration of overfitting


class DryRun(NamedTuple):
    """Estimated cost of a run, from a few steps on its device.

    Attributes:
        params: number of trained parameters.
        streamed: the pictures do not fit into memory, and are decoded on demand.
        memory: for the model, one step and the pictures, calculated [bytes], on each device.
        seconds_per_epoch: [s], including the evaluation; assumes an even split over several devices.
        pictures_per_second: in training, over all devices.
        timed: pictures in the largest batch that was timed; 0 if only a matrix product was timed.
        batch: pictures in a batch of the run, on each device.
        share: of the model's work per picture that was timed, 0 to 1.
        parts: number of parts in which each batch is computed to fit into memory; 1 for no split.
        device: its name.
    """

    params: int
    streamed: bool
    memory: int
    seconds_per_epoch: float
    pictures_per_second: float
    timed: int
    batch: int
    share: float
    parts: int
    device: str

    @property
    def extrapolated(self) -> bool:
        """Whether less than a full step of the run was timed."""
        return self.timed < self.batch or self.share < 1


class Point(NamedTuple):
    """State of overfitting: steps done, loss, and accuracy on the batch."""

    step: int
    loss: float
    accuracy: float


def try_steps(
    config: TrainConfig, devices: Sequence[str] = ("cpu",), sampled: Sample | None = None, limit: float = LIMIT_SECONDS
) -> Generator[float | DryRun, None, None]:
    """Time training steps on the first of `devices`, with its share of the batch, within the time limit.

    Args:
        sampled: the run's pictures, from `sample`; None to open them.
        limit: for everything [s].

    Yields:
        The share of the time that has passed, several times a second, and finally the result. Closing stops the work.

    Raises:
        InvalidDataset: the pictures cannot be opened.
        InvalidConfig: steps fail, or another dry run is in progress; on a GPU, no step was completed in time.
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
    with closing(run_process("time", share, devices[0], limit, request)) as answers:
        for values in answers:
            facts |= values or {}
            steps += [values["step"]] if values and "step" in values else []
            if devices[0] == "cpu" and guess is None:  # while the process starts
                guess = _estimate_from_speed(share, devices, sampled)
            yield min((time.time() - started) / limit, 1.0)
    if steps:
        yield _estimate_from_steps(share, devices, sampled, facts, steps)
    elif devices[0] == "cpu":  # time ran out before the first response
        yield guess or _estimate_from_speed(share, devices, sampled)
    else:
        raise InvalidConfig(f"Not one step was done within {limit:.0f} s. Try again when this machine has less to do.")


def _estimate_from_steps(
    config: TrainConfig, devices: Sequence[str], sampled: Sample, facts: dict[str, Any], steps: list[tuple[int, float]]
) -> DryRun:
    """Estimate the cost of a run from timed steps.

    Args:
        facts: from `_time_steps`.
        steps: number of pictures and seconds [s] of each timed step, with growing batches.
    """
    batch = min(config.batch_size, sampled.train_pictures)
    fixed, each = extrapolated(steps)
    fixed, each = fixed / facts["share_params"], each / facts["share"]
    seconds, count = fixed + batch * each, len(devices)
    forward = facts["forward"] / facts["share"] if "forward" in facts else each / 3  # backward takes twice as long
    every = sampled.train_pictures + sampled.validation_pictures + sampled.test_pictures
    bytes_, on_gpu = sampled.images[0].numel() * every, devices[0] != "cpu"
    evaluated = sampled.validation_pictures * (2 if config.ema else 1)  # raw and averaged weights
    streamed = bytes_ > facts["budget"]
    training = seconds * max(sampled.train_pictures / batch, 1) / count
    opening = sampled.seconds * sampled.train_pictures / max(config.workers, 1) if streamed else 0.0
    together = max(training, opening) if on_gpu else training + opening  # a CPU also decodes
    return DryRun(
        params=facts["params"],
        streamed=streamed,
        memory=facts["memory"] + (0 if streamed else bytes_),
        seconds_per_epoch=together + forward * evaluated / count,
        pictures_per_second=sampled.train_pictures / together,
        timed=steps[-1][0],
        batch=batch,
        share=facts["share"],
        parts=facts.get("parts", 1),
        device=devices[0],
    )


def _estimate_from_speed(config: TrainConfig, devices: Sequence[str], sampled: Sample) -> DryRun:
    """Estimate the cost from the speed of a matrix product, for a CPU too busy to complete a step in time."""
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
    """Compute facts about a run without running a step."""
    model, on_gpu = model_config(config, classes), process.device.type != "cpu"
    parts = 1 if on_gpu else parts_that_fit(model, config, batch, memory()[1], process.autocast)
    return {
        "params": parameters_of(model),
        "memory": count_memory(model, config, batch, on_gpu, process.autocast, parts),
        "parts": parts,
        "budget": memory_budget(process.device),
    }


def extrapolated(steps: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Split the time of a step into a fixed part and a part per picture [s].

    Fits a line through the two largest batches; as timing is noisy, at least half of the time is attributed to the
    pictures.

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
