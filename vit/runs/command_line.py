"""The command line that does what a run's description says."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from vit.runs.engines.contract import HERE
from vit.training.config import TrainConfig
from vit.training.presets import PRESETS


def command_line(
    config: TrainConfig,
    preset: str | None = None,
    devices: Sequence[str] = ("cpu",),
    on: str = HERE,
    nodes: int = 1,
    minutes: int | None = None,
    name: str = "",
) -> str:
    """A shell command for `python -m vit train`, as short as the preset allows.

    Args:
        config: what to do.
        preset: the recipe that it is a variation of; None for none.
        devices: "cpu", or GPUs by number in the order of PCI addresses: "cuda:0", "cuda:1", ...; on a cluster "cpu"
            or "gpu" for each process of a machine.
        on: a cluster by its name; for this machine the command trains by itself, without its queue.
        nodes: machines of the cluster.
        minutes: after which the cluster may end an attempt.
        name: what the run is called; empty for what is trained.
    """
    base = TrainConfig(**PRESETS[preset].settings if preset else {}).model_dump()
    changed = {name: value for name, value in config.model_dump().items() if value != base[name]}
    alone = len(devices) == 1 or on != HERE
    arguments = ["python"] if alone else ["torchrun", "--standalone", f"--nproc-per-node={len(devices)}"]
    arguments += ["-m", "vit", "train"]
    if preset:
        arguments += ["--preset", preset]
    if not preset or "data" in changed:
        arguments += ["--data", config.data]
    if name:
        arguments += ["--name", name]
    changed.pop("data", None)
    for name, value in changed.items():
        arguments += ["--set", f"{name}={_written(value)}"]
    if on != HERE:
        arguments += ["--on", on, "--devices", *devices]
        arguments += ["--nodes", str(nodes)] if nodes > 1 else []
        arguments += ["--minutes", str(minutes)] if minutes else []
    gpus = [name.removeprefix("cuda:") for name in devices if name.startswith("cuda:")]
    chosen = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(gpus)} " if gpus else ""
    return chosen + shlex.join(arguments)


def _written(value: Any) -> str:
    """So that `--set` reads it back: it takes JSON, and everything else as text."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)
