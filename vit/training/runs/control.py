"""Control training runs: start, list, queue, stop, resume. A run is a process and a folder; the folder has its state.

    <runs>/<time>-<name>-<4 hex>/
        config.json        settings (`vit.training.loop.config.TrainConfig`)
        base.json          settings from the initial checkpoint (`vit.training.loop.fine_tuning.Base`)
        about.json         name, notes, owner, devices; everything that people may edit
        environment.json, metrics.jsonl, events/, checkpoints/, probes/    see `vit.training.loop.train`
        log.txt            output of the processes
        alive.lock         every process of the run holds a shared lock on it
        heartbeat          rewritten by the training loop: current activity and progress
        stop, kill         requests to the current attempt: present or not
        pruned.json        why this run ended early, if it is a trial of a search
        outcome.json       how the last attempt ended: finished, stopped or failed, and why
    <runs>/.queue/queue.json, lock     runs that wait for a device, and runs that have one

No file states that a run is running. A run is alive while its lock is held, and the operating system releases the lock
when the last of its processes exits for any reason; process ids are never checked. Requests and the outcome are kept
until the next attempt starts, so that a reported state is valid until the attempt ends. Each run has a supervisor
process (`vit.training.runs.supervisor`), so training needs neither page, browser nor server.
"""

import shutil
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.checkpoints import load, manage, save
from vit.errors import InvalidRun, UserError
from vit.files import check_locks, remove_folder
from vit.paths import runs_folder
from vit.training.engines import watch
from vit.training.engines.clusters import find_cluster
from vit.training.engines.contract import HERE, Engine, Handle, Request, read_handle
from vit.training.engines.factory import cluster_engine
from vit.training.engines.local import Local
from vit.training.loop import fine_tuning, presets
from vit.training.loop.run_folder import (
    START,
    check_resumable,
    new_id,
    read_document,
    read_json,
    write_errors,
    write_json,
)
from vit.training.loop.trial_pruning import Halving
from vit.training.runs.launch_checks import (
    Limits,
    ValidatedRun,
    check_request,
    check_room,
    devices_of_setting,
    validated,
)
from vit.training.runs.queue_file import launch_lock, open_queue
from vit.training.runs.registry import MAX_NAME, MAX_NOTES, Run, find_run, list_runs, shorten

if TYPE_CHECKING:
    from vit.training.loop.config import TrainConfig


PATIENCE_SECONDS = 6.0  # [s] timeout for a cluster to report a run's state before it is changed


class NewRun(NamedTuple):
    """A run to launch.

    Attributes:
        config: settings; `device` is replaced according to the devices.
        name: default: from `run_name`.
        nonce: of the submitted form, or of the trial; launching it twice starts one run.
    """

    config: "TrainConfig"
    name: str = ""
    notes: str = ""
    nonce: str = ""


def launch(config: "TrainConfig", *, name: str = "", notes: str = "", nonce: str = "", **where: Any) -> Run:
    """Start a run, or queue it until its devices are free, in processes that outlive this one.

    Args:
        config, name, notes, nonce: see `NewRun`.
        where: arguments of `launch_all`, which also describes the errors.
    """
    return launch_all([NewRun(config, name, notes, nonce)], **where)[0]


def launch_all(
    runs: Sequence[NewRun],
    *,
    on: str = HERE,
    devices: Sequence[str] = ("cpu",),
    nodes: int = 1,
    minutes: int | None = None,
    share: bool = False,
    owner: str = "",
    search: str = "",
    halving: Halving | None = None,
    limits: Limits | None = None,
) -> list[Run]:
    """Start runs, or queue them until their devices are free, in processes that outlive this one.

    Args:
        on: this machine, or the name of a cluster.
        devices: of one node. On this machine "cpu", "mps", "cuda:0" and so on, or `ANY_GPU`; several for several
            processes. On a cluster "cpu" or `ANY_GPU`, once for each process.
        nodes: machines of the cluster.
        minutes: time limit of an attempt on the cluster; None for the cluster's own limit.
        share: do not wait for other runs on these devices.
        search: id that the trials of a search share, or runs that are started together.
        halving: when a trial ends itself if it is behind the others; None to train it to its end.

    Raises:
        InvalidConfig: no devices, too many runs of this owner, too little disk space, unknown cluster or its limits
            exceeded, or settings that contradict the initial checkpoint.
        InvalidCheckpoint: the initial checkpoint cannot be opened.
        RequestRejected, Unreachable: the cluster rejects a run, or does not respond; the ones before it stay queued.
        UserError: this system does not support locks.
    """
    check_locks()
    request = Request(tuple(devices), share, nodes, minutes)
    engine, root = _engine_and_root(on)
    every_checked = [validated(run.config, request, on, limits or Limits()) for run in runs]
    about = {
        "owner": owner,
        "search": search,
        "halving": halving._asdict() if halving else None,
        "devices": list(devices),
        "nodes": nodes,
        "minutes": minutes,
        "share": share,
    }
    folders: dict[Path, ValidatedRun] = {}
    try:
        for run, checked in zip(runs, every_checked, strict=True):
            folder = _new_folder(root, run, checked, about)
            folders[folder] = checked if on == HERE else _with_copy(folder, checked)  # may take long, so without lock
        with launch_lock(root):
            before = list_runs()
            known = {one.nonce: one for one in before if one.nonce}
            fresh = [folder for run, folder in zip(runs, folders, strict=True) if run.nonce not in known]
            if fresh:
                check_room(root, before, owner, every_checked[0].limits, len(fresh), search if on == HERE else None)
                for folder in fresh:
                    _write_settings(folder, folders[folder])
                engine.submit_all(fresh, request)
    except (UserError, OSError):
        for folder in folders:
            if not read_handle(folder):  # it was not started
                shutil.rmtree(folder, ignore_errors=True)
        raise
    for folder in folders.keys() - set(fresh):
        shutil.rmtree(folder, ignore_errors=True)
    return [known.get(run.nonce) or find_run(folder.name) for run, folder in zip(runs, folders, strict=True)]


def _new_folder(root: Path, run: NewRun, checked: ValidatedRun, about: dict[str, Any]) -> Path:
    """Create the folder of a run, which is none before it has a config.json."""
    name = run.name or presets.run_name(checked.config)
    folder = root / new_id(name)
    own = {"name": shorten(name, MAX_NAME), "notes": run.notes[:MAX_NOTES], "created": time.time(), "nonce": run.nonce}
    with write_errors(root):
        folder.mkdir(parents=True)
        write_json(folder / "about.json", about | own)
    return folder


def _engine_and_root(on: str) -> tuple[Engine, Path]:
    """Return the engine with this name, and the folder of its runs."""
    return (Local(), runs_folder()) if on == HERE else (cluster_engine(on), find_cluster(on).runs)


def _with_copy(folder: Path, checked: ValidatedRun) -> ValidatedRun:
    """Copy the initial checkpoint into a run's folder, the only one that the machines of a cluster can read."""
    if not checked.base:
        return checked
    start = load.load_checkpoint(checked.base.name)
    place = folder / START / presets.checkpoint_name(checked.base.name)
    copy = str(save.save_checkpoint(place, start.model, start.labels, start.preprocess))
    config = checked.config.model_copy(update={"init_from": copy})
    return checked._replace(config=config, base=checked.base._replace(name=copy))


def _write_settings(folder: Path, checked: ValidatedRun) -> None:
    """Write a run's settings; `config.json` comes last, because it marks the folder as a run."""
    if checked.base:
        fine_tuning.write_base(folder, checked.base)
    write_json(folder / "config.json", checked.config.model_dump(mode="json"))


def stop(run_id: str) -> None:
    """Ask a run to finish its step, save, and exit; a waiting one leaves the queue.

    Raises:
        InvalidRun: it is not alive, or another program trains it.
    """
    run = _active_run(run_id)
    _engine_and_root(run.on)[0].request_stop(run.folder)
    watch.forget()


def can_stop(run: Run) -> bool:
    """Whether a run is alive, has a supervisor that receives requests, and is not ending already."""
    return run.alive and not run.loop and run.status not in ("stopping", "ending")


def stop_all(runs: Iterable[Run]) -> None:
    """Stop several runs, waiting ones first, so that none of them starts when a running one ends."""
    for run in sorted(filter(can_stop, runs), key=lambda run: run.status != "waiting"):
        with suppress(InvalidRun):  # it has just ended
            stop(run.id)


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

    A trial that its search ended early, or that has finished, is then trained to its end.

    Args:
        devices: None for those that the run had; for those that the setting `device` names, if a terminal started it.
        epochs: new total; None for the present one.

    Raises:
        InvalidRun: it is alive, it has finished all its epochs, its state is missing, or another program trains it.
        InvalidConfig: `epochs` is not a number of epochs, or the machine no longer has its devices.
        RequestRejected, Unreachable: its cluster rejects the run, or does not respond.
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
        if run.status in ("pruned", "finished"):
            _change_about(run.folder, halving=None)
        if request.devices != run.devices:
            _change_about(run.folder, devices=list(request.devices))
        settings = read_document(run.folder / "config.json")
        if config:
            _write_config(run.folder, config.model_dump(mode="json"))
        try:
            engine.submit(run.folder, request)
        except (UserError, OSError):
            if request.devices != run.devices:
                _change_about(run.folder, devices=list(run.devices))
            if config:
                _write_config(run.folder, settings)
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
    with write_errors(run.folder):
        remove_folder(run.folder)


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


def _write_config(folder: Path, settings: dict[str, Any]) -> None:
    with write_errors(folder):
        write_json(folder / "config.json", settings)


def _change_about(folder: Path, **values: Any) -> None:
    with write_errors(folder):
        write_json(folder / "about.json", read_json(folder / "about.json") | values)
