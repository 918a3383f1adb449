"""Check what a run requests, before anything is written or started: devices, paths, limits, disk space."""

import math
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vit.errors import InvalidConfig
from vit.training.engines.clusters import Cluster, downloads_of, find_cluster
from vit.training.engines.contract import HERE, Request
from vit.training.loop import fine_tuning
from vit.training.runs.registry import ANY_GPU, Run
from vit.training.runs.scheduler import gpu_names

if TYPE_CHECKING:
    from vit.training.loop.config import TrainConfig
    from vit.training.loop.fine_tuning import Base


class Limits(NamedTuple):
    """Limits that a server imposes.

    Attributes:
        runs_per_person: waiting and running ones together, see `check_room`; None for no limit.
        free_bytes: disk space that new runs must leave free.
    """

    runs_per_person: int | None = None
    free_bytes: int = 2 << 30


class ValidatedRun(NamedTuple):
    """The settings of a run after all checks.

    Attributes:
        config: its settings, valid on any machine.
        base: settings from the initial checkpoint; None without one.
        limits: of the machine or cluster that computes it.
    """

    config: "TrainConfig"
    base: "Base | None"
    limits: Limits


def validated(config: "TrainConfig", request: Request, on: str, limits: Limits) -> ValidatedRun:
    """Validate a run's settings, and check its request against the limits of this machine or of the cluster.

    Raises:
        InvalidConfig: as `vit.training.runs.control.launch`.
        InvalidCheckpoint: the initial checkpoint cannot be opened.
    """
    config = with_absolute_paths(config).model_copy(update={"device": check_request(request, on)})
    if on != HERE:
        config, limits = _check_cluster(config, request, find_cluster(on), limits)
    base = fine_tuning.resolve(config).base if config.init_from else None  # avoids importing torch otherwise
    return ValidatedRun(config, base, limits)


def check_request(request: Request, on: str) -> str:
    """Check that the devices make sense, and return their kind."""
    allowed = rf"cpu|mps|cuda:\d+|{ANY_GPU}" if on == HERE else rf"cpu|{ANY_GPU}"
    if not request.devices or not all(re.fullmatch(allowed, device) for device in request.devices):
        raise InvalidConfig("devices: choose cpu, or one or more GPUs.")
    kinds = {device.partition(":")[0].replace(ANY_GPU, "cuda") for device in request.devices}
    if len(kinds) > 1:
        raise InvalidConfig("devices: a run uses either the CPU or GPUs, not both.")
    if on == HERE:
        if request.nodes != 1:
            raise InvalidConfig("nodes: this machine is one. Name a cluster.")
        _check_gpus(request.devices)
    return kinds.pop()


def has_gpus(devices: Sequence[str]) -> bool:
    """Whether this machine has the GPUs among these devices."""
    try:
        _check_gpus(devices)
    except InvalidConfig:
        return False
    return True


def _check_gpus(devices: Sequence[str]) -> None:
    """Check that this machine has the requested GPUs; otherwise the run would wait or fail only after its start."""
    requested = [device for device in devices if device == ANY_GPU or device.startswith("cuda:")]
    gpus = gpu_names() if requested else []
    if requested and not gpus:
        raise InvalidConfig("devices: this machine has no GPU. Choose cpu.")
    for device in requested:
        if device not in (ANY_GPU, *gpus):
            raise InvalidConfig(f"devices: this machine has no {device}. Choose {', '.join(gpus)} or cpu.")
    if requested.count(ANY_GPU) > len(gpus):
        raise InvalidConfig(f"devices: this machine has {len(gpus)} GPUs, not {requested.count(ANY_GPU)}.")


def with_absolute_paths(config: "TrainConfig") -> "TrainConfig":
    """Make paths absolute, so that the run can be resumed from any folder."""

    def absolute(path: str) -> str:
        return str(Path(path).expanduser().absolute())

    kind, colon, path = config.data.partition(":")
    paths = {"data": kind + colon + (absolute(path) if colon else path), "data_root": absolute(config.data_root)}
    if os.sep in config.init_from and Path(config.init_from).expanduser().exists():  # otherwise it is a name
        paths["init_from"] = absolute(config.init_from)
    return config.model_copy(update=paths)


def devices_of_setting(device: str, on: str = HERE) -> tuple[str, ...]:
    """Return the devices that the setting `device` of a single process stands for on an engine.

    "auto" is any GPU if there is one, "cuda" any GPU; on a cluster, whose scheduler numbers them, so is "cuda:1".
    """
    if device == "auto":
        return (ANY_GPU,) if on != HERE or gpu_names() else ("cpu",)
    return (ANY_GPU,) if device == "cuda" or (on != HERE and device.startswith("cuda")) else (device,)


def _check_cluster(
    config: "TrainConfig", request: Request, cluster: Cluster, limits: Limits
) -> tuple["TrainConfig", Limits]:
    """Check a cluster's limits; return the settings with its own folder of downloads, and the limits."""
    for what, requested, most in (
        ("nodes", request.nodes, cluster.limits.nodes),
        ("processes on a node", len(request.devices), cluster.limits.processes),
        ("minutes", request.minutes or 0, cluster.limits.minutes or math.inf),
    ):
        if requested > most:
            raise InvalidConfig(f"{what}: {cluster.name} grants a run at most {most}, not {requested}.")
    config = config.model_copy(update={"data_root": downloads_of(cluster, config.data, config.data_root)})
    return config, limits._replace(runs_per_person=cluster.limits.runs_per_person or limits.runs_per_person)


def check_room(
    root: Path, every: Sequence[Run], owner: str, limits: Limits, new: int = 1, search: str | None = None
) -> None:
    """Check the number of the owner's runs, and the free disk space.

    Args:
        new: number of runs to launch.
        search: of these runs, "" for none. Runs of one search count as one, because they let other runs pass in the
            queue; None to count every run.
    """
    active = [run for run in every if run.alive and run.owner == owner and run.folder.parent == root]
    mine = len({run.id if search is None else run.search or run.id for run in active} - {search})
    new = 1 if search else new
    if limits.runs_per_person is not None and mine + new > limits.runs_per_person:
        do = "Stop one, or start this one later." if new == 1 else f"Start fewer than these {new}, or start them later."
        raise InvalidConfig(f"You have {mine} runs waiting or running, and {limits.runs_per_person} are allowed. {do}")
    free = shutil.disk_usage(root).free
    if free < limits.free_bytes:
        raise InvalidConfig(
            f"The disk has {free / 1e9:.1f} GB free, and {limits.free_bytes / 1e9:.1f} GB are kept free. "
            "Delete old runs first."
        )
