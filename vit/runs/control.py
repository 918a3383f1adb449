"""Control training runs: start, list, queue, stop, resume. A run is a process and a folder; the folder has its state.

    <runs>/<time>-<name>-<4 hex>/
        config.json        settings (`vit.training.presets.TrainConfig`)
        base.json          settings from the initial checkpoint (`vit.training.fine_tuning.Base`)
        about.json         name, notes, owner, devices; everything that people may edit
        environment.json, metrics.jsonl, events/, checkpoints/, probes/    see `vit.training.train`
        log.txt            output of the processes
        alive.lock         every process of the run holds a shared lock on it
        heartbeat          rewritten by the training loop: current activity and progress
        stop, kill         requests to the current attempt: present or not
        pruned.json        why a search stopped this run, if it is a trial
        outcome.json       how the last attempt ended: finished, stopped or failed, and why
    <runs>/.queue/queue.json, lock     runs that wait for a device, and runs that have one

No file states that a run is running. A run is alive while its lock is held, and the operating system releases the lock
when the last of its processes exits for any reason; process ids are never checked. Requests and the outcome are kept
until the next attempt starts, so that a reported state is valid until the attempt ends. Each run has a supervisor
process (`vit.runs.supervisor`), so training needs neither page, browser nor server.
"""

import math
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.checkpoints import load, manage, save
from vit.errors import InvalidConfig, InvalidRun, UserError
from vit.files import check_locks, replaced
from vit.paths import runs_folder
from vit.runs.batch import cluster_dry_run
from vit.runs.engines import watch
from vit.runs.engines.clusters import Cluster, downloads_of, find_cluster
from vit.runs.engines.contract import HERE, Engine, Handle, Request, read_handle
from vit.runs.engines.factory import cluster_engine
from vit.runs.engines.local import Local
from vit.runs.queue_file import launch_lock, open_queue
from vit.runs.registry import ANY_GPU, MAX_NAME, MAX_NOTES, Run, find_run, list_runs, shorten
from vit.runs.scheduler import gpu_names
from vit.training import fine_tuning, presets
from vit.training.run_folder import (
    PRUNED,
    START,
    check_resumable,
    new_id,
    read_document,
    read_json,
    write_errors,
    write_json,
)

if TYPE_CHECKING:
    from vit.training.config import TrainConfig
    from vit.training.fine_tuning import Base


PATIENCE_SECONDS = 6.0  # [s] timeout for a cluster to report a run's state before it is changed


class Limits(NamedTuple):
    """Limits that a server imposes.

    Attributes:
        runs_per_person: waiting and running ones together; None for no limit.
        free_bytes: disk space that new runs must leave free.
    """

    runs_per_person: int | None = None
    free_bytes: int = 2 << 30


# --- Acting ---------------------------------------------------------------------------------------------------------


def launch(
    config: "TrainConfig",
    *,
    name: str = "",
    notes: str = "",
    on: str = HERE,
    devices: Sequence[str] = ("cpu",),
    nodes: int = 1,
    minutes: int | None = None,
    share: bool = False,
    owner: str = "",
    sweep: str = "",
    nonce: str = "",
    limits: Limits | None = None,
) -> Run:
    """Start a run, or queue it until its devices are free, in processes that outlive this one.

    Args:
        config: settings; `device` is replaced according to `devices`.
        name: default: from `run_name`.
        on: this machine, or the name of a cluster.
        devices: of one node. On this machine "cpu", "mps", "cuda:0" and so on, or `ANY_GPU`; several for several
            processes. On a cluster "cpu" or `ANY_GPU`, once for each process.
        nodes: machines of the cluster.
        minutes: time limit of an attempt on the cluster; None for the cluster's own limit.
        share: do not wait for other runs on these devices.
        nonce: of the submitted form; submitting it twice starts one run.

    Raises:
        InvalidConfig: no devices, too many runs of this owner, too little disk space, unknown cluster or its limits
            exceeded, or settings that contradict the initial checkpoint.
        InvalidCheckpoint: the initial checkpoint cannot be opened.
        Refused, Unreachable: the cluster rejects the run, or does not respond.
        UserError: this system does not support locks.
    """
    check_locks()
    request = Request(tuple(devices), share, nodes, minutes)
    engine, root = _engine_and_root(on)
    checked = _checked(config, request, on, limits or Limits())
    name = name or presets.run_name(checked.config)
    with launch_lock(root):
        every = list_runs()
        if again := next((run for run in every if nonce and run.nonce == nonce), None):
            return again
        _check_room(root, every, owner, checked.limits)
        folder = root / new_id(name)
        folder.mkdir()
        about = {
            "name": shorten(name, MAX_NAME),
            "notes": notes[:MAX_NOTES],
            "owner": owner,
            "sweep": sweep,
            "created": time.time(),
            "devices": list(devices),
            "nodes": nodes,
            "minutes": minutes,
            "share": share,
            "nonce": nonce,
        }
        try:
            _write_run(folder, checked, about, elsewhere=on != HERE)
            engine.submit(folder, request)
        except (UserError, OSError):
            shutil.rmtree(folder, ignore_errors=True)  # nothing was started
            raise
    return find_run(folder.name)


def start_dry_run(config: "TrainConfig", *, on: str, devices: Sequence[str], nodes: int = 1) -> Path:
    """Submit a few steps of a run to a cluster; return the folder for `vit.runs.batch.cluster_dry_run`.

    Raises:
        InvalidConfig, InvalidCheckpoint, Refused, Unreachable: as `launch`.
    """
    request = Request(tuple(devices), nodes=nodes)
    checked = _checked(config, request, on, Limits())
    folder = cluster_dry_run.new_folder(find_cluster(on).runs)
    try:
        config = _with_copy(checked, folder).config
        cluster_dry_run.write(folder, config, [config.device] * (len(devices) * nodes))
        cluster_engine(on).submit(folder, Request((devices[0],), workers=1))
    except (UserError, OSError):
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def end_dry_run(folder: Path) -> None:
    """Remove a dry run, and kill it if it is not finished."""
    handle = read_handle(folder)
    with suppress(UserError):
        if handle and (engine := cluster_engine(handle.engine_name)).status(handle).state != "gone":
            engine.kill(handle)
    shutil.rmtree(folder, ignore_errors=True)


def _engine_and_root(on: str) -> tuple[Engine, Path]:
    """Return the engine with this name, and the folder of its runs."""
    return (Local(), runs_folder()) if on == HERE else (cluster_engine(on), find_cluster(on).runs)


class _ValidatedRun(NamedTuple):
    """A validated run.

    Attributes:
        config: its settings, valid on any machine.
        base: settings from the initial checkpoint; None without one.
        limits: that apply there.
    """

    config: "TrainConfig"
    base: "Base | None"
    limits: Limits


def _checked(config: "TrainConfig", request: Request, on: str, limits: Limits) -> _ValidatedRun:
    """Validate the settings and check them against the limits."""
    config = with_absolute_paths(config).model_copy(update={"device": check_request(request, on)})
    if on != HERE:
        config, limits = _check_cluster(config, request, find_cluster(on), limits)
    base = fine_tuning.resolve(config).base if config.init_from else None  # avoids importing torch otherwise
    return _ValidatedRun(config, base, limits)


def _write_run(folder: Path, checked: _ValidatedRun, about: dict[str, Any], elsewhere: bool) -> None:
    """Write the files of a run's folder; `config.json` comes last, because it marks the folder as a run."""
    write_json(folder / "about.json", about)
    if elsewhere:
        checked = _with_copy(checked, folder)
    if checked.base:
        fine_tuning.write_base(folder, checked.base)
    with replaced(folder / "config.json") as file:
        file.write(checked.config.model_dump_json(indent=2).encode() + b"\n")


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


def _with_copy(checked: _ValidatedRun, folder: Path) -> _ValidatedRun:
    """Copy the initial checkpoint into the run's folder, which is the only one that a cluster's machines can read."""
    if not checked.base:
        return checked
    start = load.load_checkpoint(checked.base.name)
    copy = save.save_checkpoint(
        folder / START / presets.checkpoint_name(checked.base.name), start.model, start.labels, start.preprocess
    )
    config = checked.config.model_copy(update={"init_from": str(copy)})
    return checked._replace(config=config, base=checked.base._replace(name=str(copy)))


def _check_room(root: Path, every: Sequence[Run], owner: str, limits: Limits) -> None:
    """Check the number of the owner's runs, and the free disk space."""
    mine = sum(run.alive and run.owner == owner and run.folder.parent == root for run in every)
    if limits.runs_per_person is not None and mine >= limits.runs_per_person:
        raise InvalidConfig(
            f"You have {mine} runs waiting or running, and {limits.runs_per_person} are allowed. "
            "Stop one, or start this one later."
        )
    free = shutil.disk_usage(root).free
    if free < limits.free_bytes:
        raise InvalidConfig(
            f"The disk has {free / 1e9:.1f} GB free, and {limits.free_bytes / 1e9:.1f} GB are kept free. "
            "Delete old runs first."
        )


def stop(run_id: str) -> None:
    """Ask a run to finish its step, save, and exit; a waiting one leaves the queue.

    Raises:
        InvalidRun: it is not alive, or another program trains it.
    """
    run = _active_run(run_id)
    _engine_and_root(run.on)[0].request_stop(run.folder)
    watch.forget()


def end_early(run_id: str, reason: str) -> None:
    """Stop a trial that its search has pruned, and record the reason; it can be resumed.

    Raises:
        InvalidRun: it is not alive.
    """
    run = _active_run(run_id)
    with write_errors(run.folder):
        write_json(run.folder / PRUNED, {"reason": reason})
    stop(run_id)


def kill(run_id: str) -> None:
    """Kill a run; the last complete state is kept.

    Raises:
        InvalidRun: it is not alive, or another program trains it.
        Unreachable: its cluster does not respond.
    """
    run = _active_run(run_id)
    _engine_and_root(run.on)[0].kill(read_handle(run.folder) or Handle(run.folder, HERE, run.id, run.created))
    watch.forget()


def resume(run_id: str, *, devices: Sequence[str] | None = None, epochs: int | None = None) -> Run:
    """Continue a run from its last saved state on its original machine, at the end of the queue if it has to wait.

    Args:
        devices: None for those that the run had; for those that the setting `device` names, if a terminal started it.
        epochs: new total; None for the present one.

    Raises:
        InvalidRun: it is alive, it has finished all its epochs, its state is missing, or another program trains it.
        InvalidConfig: `epochs` is not a number of epochs, or the machine no longer has its devices.
        Refused, Unreachable: its cluster rejects the run, or does not respond.
    """
    run = find_run(run_id, PATIENCE_SECONDS)
    _check_ours(run)
    if run.alive:
        raise InvalidRun("This run is already active.")
    if run.status == "unreadable":
        raise InvalidRun(run.reason)
    check_resumable(run.folder)
    if run.status == "finished" and (epochs is None or epochs <= run.config.get("epochs", 0)):
        raise InvalidRun("This run has finished. Give it more epochs to continue it.")
    engine, root = _engine_and_root(run.on)
    before = read_document(run.folder / "config.json")
    setting = str(before.get("device", "auto"))
    assigned = tuple(devices or run.devices)
    request = Request(assigned or devices_of_setting(setting), run.share, run.nodes, run.minutes)
    kind = check_request(request, run.on)
    # "auto" may be a device that no list names, such as Apple's GPU, so it is kept.
    changed = before | ({"device": kind} if assigned or setting != "auto" else {})
    changed |= {} if epochs is None else {"epochs": epochs}
    config = presets.train_config(**changed) if changed != before else None
    with launch_lock(root):
        if request.devices != run.devices:
            _change_about(run.folder, devices=list(request.devices))
        settings = (run.folder / "config.json").read_bytes()
        if config:
            _replace_file(run.folder / "config.json", config.model_dump_json(indent=2).encode() + b"\n")
        try:
            engine.submit(run.folder, request)
        except (UserError, OSError):
            if request.devices != run.devices:
                _change_about(run.folder, devices=list(run.devices))
            if config:
                _replace_file(run.folder / "config.json", settings)
            raise
    watch.forget()
    return find_run(run_id)


def delete(run_id: str) -> None:
    """Delete a run with all its files.

    Raises:
        InvalidRun: it is alive.
    """
    run = find_run(run_id, PATIENCE_SECONDS)
    if run.alive:
        raise InvalidRun("This run is active. Stop it first.")
    trash = run.folder.with_name(f".{run.id}.deleted")
    with write_errors(run.folder):
        run.folder.rename(trash)  # removed for everybody at once
    shutil.rmtree(trash, ignore_errors=True)


def rename(run_id: str, name: str) -> None:
    """Change the display name; the folder's name is kept.

    Raises:
        InvalidRun: no such run, or the name is empty.
    """
    if not (short := shorten(name, MAX_NAME)):
        raise InvalidRun("A run needs a name of at least one letter.")
    with open_queue(runs_folder()):
        _change_about(find_run(run_id).folder, name=short)


def annotate(run_id: str, notes: str) -> None:
    """Replace a run's notes."""
    with open_queue(runs_folder()):
        _change_about(find_run(run_id).folder, notes=notes[:MAX_NOTES])


def move(run_id: str, position: int) -> None:
    """Move a waiting run to another position of the queue, 0 for the first.

    Raises:
        InvalidRun: it is not waiting.
    """
    with open_queue(runs_folder()) as line:
        waiting = line["waiting"]
        if run_id not in waiting:
            raise InvalidRun("This run does not wait any more.")
        waiting.remove(run_id)
        waiting.insert(max(position, 0), run_id)
        line["waiting"] = waiting


def keep_checkpoint(run_id: str, name: str) -> Path:
    """Copy a run's best checkpoint to `checkpoints/<name>`.

    Raises:
        InvalidRun: it has none yet.
        InvalidCheckpoint: the name is taken or invalid.
    """
    best = find_run(run_id).best
    if best is None:
        raise InvalidRun("This run has no checkpoint yet: it is written after the first epoch.")
    return manage.copy(best, name)


def _active_run(run_id: str) -> Run:
    run = find_run(run_id, PATIENCE_SECONDS)
    _check_ours(run)
    if not run.alive:
        raise InvalidRun("This run has ended already.")
    return run


def _check_ours(run: Run) -> None:
    """Raise an error for a run that another program trains, as it has no supervisor to receive requests."""
    if run.loop:
        raise InvalidRun(f"This run is trained by another program ({run.loop}). Stop and resume it there.")


def _replace_file(path: Path, content: bytes) -> None:
    with write_errors(path.parent), replaced(path) as file:
        file.write(content)


def _change_about(folder: Path, **values: Any) -> None:
    with write_errors(folder):
        write_json(folder / "about.json", read_json(folder / "about.json") | values)
