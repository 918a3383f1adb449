"""Build the shell command that reproduces a run or a search."""

import json
import shlex
from collections.abc import Sequence
from typing import Any

from vit.devices import visibility
from vit.training.engines.contract import HERE
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, run_name
from vit.training.loop.run_folder import slug
from vit.training.search.plan import SearchPlan


def command_line(
    config: TrainConfig,
    preset: str | None = None,
    devices: Sequence[str] = ("cpu",),
    on: str = HERE,
    nodes: int = 1,
    minutes: int | None = None,
    name: str = "",
) -> str:
    """Return a shell command for `python -m vit train`, without the options that the preset implies.

    Args:
        config: settings of the run.
        preset: recipe that the settings start from; None for none.
        devices: "cpu", or GPUs numbered by PCI address: "cuda:0", "cuda:1", ...; on a cluster "cpu" or "gpu", one
            per process of a node.
        on: name of the cluster; for this machine, the command trains directly and bypasses the queue.
        nodes: number of cluster nodes.
        minutes: time limit of an attempt on the cluster.
        name: name of the run; empty for the default.
    """
    alone = len(devices) == 1 or on != HERE
    arguments = ["python"] if alone else ["torchrun", "--standalone", f"--nproc-per-node={len(devices)}"]
    arguments += ["-m", "vit", "train", *_training_options(config, preset, name)]
    if not alone:  # all processes share one folder
        arguments += ["--run-dir", f"runs/{slug(name or run_name(config)) or 'run'}"]
    if on != HERE:
        arguments += _compute_options(on, devices, nodes, minutes)
    chosen = [f"{name}={value}" for name, value in visibility(devices).items()]
    return " ".join([*chosen, shlex.join(arguments)])


def search_command_line(plan: SearchPlan, preset: str | None = None, name: str = "") -> str:
    """Return a shell command for `python -m vit search`.

    Args:
        plan: the search.
        preset: recipe that the runs' settings start from; None for none.
        name: name of the search; empty for the default.
    """
    arguments = ["python", "-m", "vit", "search", *_training_options(plan.config, preset, name)]
    for setting, text in plan.space.items():
        arguments += ["--space", f"{setting}={text}"]
    arguments += ["--grid"] if plan.grid else ["--trials", str(plan.trials)]
    for field in ("min_epochs", "reduction_factor", "seed"):
        value = getattr(plan, field)
        if value != SearchPlan.model_fields[field].default and not (plan.grid and field == "seed"):
            arguments += [f"--{field.replace('_', '-')}", str(value)]
    return shlex.join(arguments + _compute_options(plan.on, plan.devices, plan.nodes, plan.minutes))


def _training_options(config: TrainConfig, preset: str | None, name: str) -> list[str]:
    """Return the options that select data, preset, name and settings."""
    base = TrainConfig(**PRESETS[preset].settings if preset else {}).model_dump()
    changed = {name: value for name, value in config.model_dump().items() if value != base[name]}
    arguments = ["--preset", preset] if preset else []
    if not preset or "data" in changed:
        arguments += ["--data", config.data]
    if name:
        arguments += ["--name", name]
    changed.pop("data", None)
    for setting, value in changed.items():
        arguments += ["--set", f"{setting}={_format_value(value)}"]
    return arguments


def _compute_options(on: str, devices: Sequence[str], nodes: int, minutes: int | None) -> list[str]:
    """Return the options that select cluster, devices, nodes and time limit."""
    arguments = ["--on", on] if on != HERE else []
    arguments += ["--devices", *devices]
    arguments += ["--nodes", str(nodes)] if nodes > 1 else []
    return arguments + (["--minutes", str(minutes)] if minutes else [])


def _format_value(value: Any) -> str:
    """Format a value for `--set`, which parses JSON and takes everything else as text."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except ValueError:
            return value
    return json.dumps(value)
