"""The command lines that do what the description of a run, or of a search, says."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from vit.runs.engines.contract import HERE
from vit.runs.search.plan import SearchPlan
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
    alone = len(devices) == 1 or on != HERE
    arguments = ["python"] if alone else ["torchrun", "--standalone", f"--nproc-per-node={len(devices)}"]
    arguments += ["-m", "vit", "train", *_what(config, preset, name)]
    if on != HERE:
        arguments += _where(on, devices, nodes, minutes)
    gpus = [name.removeprefix("cuda:") for name in devices if name.startswith("cuda:")]
    chosen = f"CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(gpus)} " if gpus else ""
    return chosen + shlex.join(arguments)


def search_command_line(plan: SearchPlan, preset: str | None = None, name: str = "") -> str:
    """A shell command for `python -m vit search`.

    Args:
        plan: what to do.
        preset: the recipe that its runs are a variation of; None for none.
        name: what the search is called; empty for what is trained.
    """
    arguments = ["python", "-m", "vit", "search", *_what(plan.config, preset, name)]
    for setting, text in plan.space.items():
        arguments += ["--space", f"{setting}={text}"]
    arguments += ["--trials", str(plan.trials), "--min-epochs", str(plan.min_epochs)]
    for option, value in (("at-once", plan.at_once), ("seed", plan.seed), ("reduction-factor", plan.reduction_factor)):
        if value != SearchPlan.model_fields[option.replace("-", "_")].default:
            arguments += [f"--{option}", str(value)]
    return shlex.join(arguments + _where(plan.on, plan.devices, plan.nodes, plan.minutes))


def _what(config: TrainConfig, preset: str | None, name: str) -> list[str]:
    """Options that say what is trained."""
    base = TrainConfig(**PRESETS[preset].settings if preset else {}).model_dump()
    changed = {name: value for name, value in config.model_dump().items() if value != base[name]}
    arguments = ["--preset", preset] if preset else []
    if not preset or "data" in changed:
        arguments += ["--data", config.data]
    if name:
        arguments += ["--name", name]
    changed.pop("data", None)
    for setting, value in changed.items():
        arguments += ["--set", f"{setting}={_written(value)}"]
    return arguments


def _where(on: str, devices: Sequence[str], nodes: int, minutes: int | None) -> list[str]:
    """Options that say where it computes."""
    arguments = ["--on", on] if on != HERE else []
    arguments += ["--devices", *devices]
    arguments += ["--nodes", str(nodes)] if nodes > 1 else []
    return arguments + (["--minutes", str(minutes)] if minutes else [])


def _written(value: Any) -> str:
    """So that `--set` reads it back: it takes JSON, and everything else as text."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)
