"""Before a run is started: what it will cost, whether it can learn at all, what its checkpoint reaches without it.

Steps are the training loop's own, computed in a process of their own: running out of memory there hurts nobody, and
ending it ends the work. What a run costs is found out within seconds whatever it costs: batches grow as long as there
is time, and the rest is extrapolated.
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
from vit.training.ladder import Reached
from vit.training.memory import count_memory, parameters_of, parts_that_fit
from vit.training.picture_sample import Sample, sample

LIMIT_SECONDS = 10.0  # [s] for timing, the start of the process included
DEAR_SECONDS = 12 * 3600.0  # [s]; a run that takes longer on this machine is too dear for it
FEATURES_SECONDS = 1800.0  # [s] that looking at all pictures once may take on the page

_MARGIN_SECONDS = 0.5  # [s] of the limit that are left for the answer
_MATRIX_SIDE = 768  # of matrices whose product tells how fast a CPU is
_SPEED_SHARE = 0.5  # of that speed that training reaches
_OVERFIT_SECONDS = 30.0  # of overfitting, at most


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
    with closing(run_process("time", share, devices[0], limit, request)) as answers:
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
    with closing(run_process("overfit", config, device, 6 * seconds, {"seconds": seconds})) as answers:
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
    with closing(run_process("features", config, device, limit, {})) as answers:
        for values in answers:
            if values and "reached" in values:
                yield {name: Reached(*reached) for name, reached in values["reached"].items()}
                return
            done = values["share"] if values else done
            yield done
    raise InvalidConfig(f"The pictures take longer than {limit / 60:.0f} minutes. Lower limit.")
