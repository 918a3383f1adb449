"""Training runs: start, list, queue, stop, resume. A run is a process and a folder, and the folder is the truth.

    <runs>/<time>-<name>-<4 hex>/
        config.json        what is trained (`vit.training.presets.TrainConfig`)
        base.json          what follows from the checkpoint that it starts from (`vit.training.fine_tuning.Base`)
        about.json         name, notes, owner, devices; all that a person may change
        environment.json, metrics.jsonl, events/, checkpoints/, probes/    see `vit.training.train`
        log.txt            what the processes printed
        alive.lock         every process of the run holds a shared lock on it
        heartbeat          written anew by the training loop: what it does, and how far that is
        stop, kill         requests to this attempt: present or not
        pruned.json        why the search that the run is a trial of asked it to stop
        outcome.json       the last word of an attempt: finished, stopped or failed, and why
    <runs>/.queue/queue.json, lock     who waits for a device, and who has one

Nothing stores that a run is running. It is alive while its lock is held, and the operating system releases the lock
when the last of its processes is gone, however it went; a process id is never asked. Requests and the last word stay
until the next attempt begins, so that a state, once told, holds until it ends. Each run has a supervisor
(`vit.runs.supervisor`), a process of its own, so neither page, browser nor server is needed while it trains.
"""

import math
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
from vit.runs.queue_file import one_launch, open_queue
from vit.runs.registry import ANY_GPU, MAX_NAME, MAX_NOTES, Run, find_run, list_runs, shorten
from vit.training import fine_tuning, presets
from vit.training.run_folder import (
    PRUNED,
    START,
    changing,
    check_resumable,
    new_id,
    read_document,
    read_json,
    write_json,
)

if TYPE_CHECKING:
    from vit.training.config import TrainConfig
    from vit.training.fine_tuning import Base


PATIENCE_SECONDS = 6.0  # [s] for a cluster to say how a run is, before something is done to it


class Limits(NamedTuple):
    """What a server grants.

    Attributes:
        runs_per_person: waiting and running ones together; None for no limit.
        free_bytes: of the disk that no new run may use.
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
        config: what to do; its `device` is replaced by what `devices` says.
        name: what `run_name` says, unless it is given.
        on: this machine, or a cluster by its name.
        devices: of one node. Here "cpu", "mps", "cuda:0" and so on, `ANY_GPU`; several for several processes. On a
            cluster "cpu" or `ANY_GPU`, once for each process.
        nodes: machines of the cluster.
        minutes: after which the cluster may end an attempt; None for its own limit.
        share: do not wait for other runs on these devices.
        nonce: of the form that was sent; sent twice, it starts one run.

    Raises:
        InvalidConfig: no devices, too many runs of this owner, too little disk, no such cluster or more than it
            grants, or settings that contradict the checkpoint that the run starts from.
        InvalidCheckpoint: that checkpoint cannot be opened.
        Refused, Unreachable: the cluster takes no such run, or does not answer.
        UserError: this system has no locks.
    """
    check_locks()
    request = Request(tuple(devices), share, nodes, minutes)
    engine, root = _engine_and_root(on)
    checked = _checked(config, request, on, limits or Limits())
    name = name or presets.run_name(checked.config)
    with one_launch(root):
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
            shutil.rmtree(folder, ignore_errors=True)  # nothing was begun
            raise
    return find_run(folder.name)


def start_dry_run(config: "TrainConfig", *, on: str, devices: Sequence[str], nodes: int = 1) -> Path:
    """Submit a few steps of a run to a cluster; returns the folder that `vit.runs.batch.cluster_dry_run` reads.

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
    """Remove a dry run, and end it where it is not over."""
    handle = read_handle(folder)
    with suppress(UserError):
        if handle and (engine := cluster_engine(handle.engine_name)).look(handle).word != "gone":
            engine.kill(handle)
    shutil.rmtree(folder, ignore_errors=True)


def _engine_and_root(on: str) -> tuple[Engine, Path]:
    """The engine by its name, and the folder of its runs."""
    return (Local(), runs_folder()) if on == HERE else (cluster_engine(on), find_cluster(on).runs)


class _Checked(NamedTuple):
    """What is started, once nothing speaks against it.

    Attributes:
        config: its settings, valid wherever it computes.
        base: what it takes over from the checkpoint that it starts from; None where it starts from none.
        limits: that hold there.
    """

    config: "TrainConfig"
    base: "Base | None"
    limits: Limits


def _checked(config: "TrainConfig", request: Request, on: str, limits: Limits) -> _Checked:
    """Refuse what makes no sense or is not granted."""
    config = _with_absolute_paths(config, _check_request(request, on))
    if on != HERE:
        config, limits = _check_cluster(config, request, find_cluster(on), limits)
    base = fine_tuning.resolve(config).base if config.init_from else None  # the import of torch is left out
    return _Checked(config, base, limits)


def _write_run(folder: Path, checked: _Checked, about: dict[str, Any], elsewhere: bool) -> None:
    """Fill the folder of a run; `config.json`, which makes it one, comes last."""
    write_json(folder / "about.json", about)
    if elsewhere:
        checked = _with_copy(checked, folder)
    if checked.base:
        fine_tuning.write_base(folder, checked.base)
    with replaced(folder / "config.json") as file:
        file.write(checked.config.model_dump_json(indent=2).encode() + b"\n")


def _check_request(request: Request, on: str) -> str:
    """Refuse devices that make no sense; returns their kind."""
    allowed = rf"cpu|mps|cuda:\d+|{ANY_GPU}" if on == HERE else rf"cpu|{ANY_GPU}"
    if not request.devices or not all(re.fullmatch(allowed, device) for device in request.devices):
        raise InvalidConfig("devices: choose cpu, or one or more GPUs.")
    kinds = {device.partition(":")[0].replace(ANY_GPU, "cuda") for device in request.devices}
    if len(kinds) > 1:
        raise InvalidConfig("devices: a run uses either the CPU or GPUs, not both.")
    if on == HERE and request.nodes != 1:
        raise InvalidConfig("nodes: this machine is one. Name a cluster.")
    return kinds.pop()


def _with_absolute_paths(config: "TrainConfig", device: str) -> "TrainConfig":
    """The same settings wherever the run is resumed from."""
    kind, colon, path = config.data.partition(":")
    absolute = {"data": kind + colon + (str(Path(path).expanduser().absolute()) if colon else path)}
    return config.model_copy(update=absolute | {"data_root": str(Path(config.data_root).absolute()), "device": device})


def _check_cluster(
    config: "TrainConfig", request: Request, cluster: Cluster, limits: Limits
) -> tuple["TrainConfig", Limits]:
    """Refuse what a cluster does not grant; returns the settings with its own folder of downloads, and its bounds."""
    for what, requested, most in (
        ("nodes", request.nodes, cluster.limits.nodes),
        ("processes on a node", len(request.devices), cluster.limits.processes),
        ("minutes", request.minutes or 0, cluster.limits.minutes or math.inf),
    ):
        if requested > most:
            raise InvalidConfig(f"{what}: {cluster.name} grants a run at most {most}, not {requested}.")
    config = config.model_copy(update={"data_root": downloads_of(cluster, config.data, config.data_root)})
    return config, limits._replace(runs_per_person=cluster.limits.runs_per_person or limits.runs_per_person)


def _with_copy(checked: _Checked, folder: Path) -> _Checked:
    """Save the checkpoint that a cluster's run starts from in the run's folder: the machines see no other of ours."""
    if not checked.base:
        return checked
    start = load.load_checkpoint(checked.base.name)
    copy = save.save_checkpoint(
        folder / START / presets.checkpoint_name(checked.base.name), start.model, start.labels, start.preprocess
    )
    config = checked.config.model_copy(update={"init_from": str(copy)})
    return checked._replace(config=config, base=checked.base._replace(name=str(copy)))


def _check_room(root: Path, every: Sequence[Run], owner: str, limits: Limits) -> None:
    """Refuse a run where its owner has enough of them, or the disk is nearly full."""
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
    """Ask a run to finish its step, save, and end; a waiting one leaves the queue.

    Raises:
        InvalidRun: it is not alive, or another program trains it.
    """
    run = _active_run(run_id)
    _engine_and_root(run.on)[0].ask_to_stop(run.folder)
    watch.forget()


def end_early(run_id: str, reason: str) -> None:
    """Stop a trial of a search, which has judged it: it reads as pruned for this reason, and can be resumed.

    Raises:
        InvalidRun: it is not alive.
    """
    run = _active_run(run_id)
    with changing(run.folder):
        write_json(run.folder / PRUNED, {"reason": reason})
    stop(run_id)


def kill(run_id: str) -> None:
    """End a run now; the last complete state stays.

    Raises:
        InvalidRun: it is not alive, or another program trains it.
        Unreachable: its cluster does not answer.
    """
    run = _active_run(run_id)
    _engine_and_root(run.on)[0].kill(read_handle(run.folder) or Handle(run.folder, HERE, run.id, run.created))
    watch.forget()


def resume(run_id: str, *, devices: Sequence[str] | None = None, epochs: int | None = None) -> Run:
    """Continue a run from its last saved state, where it was started, in the last place if it has to wait.

    Raises:
        InvalidRun: it is alive, it has finished all its epochs, its state is gone, or another program trains it.
        InvalidConfig: `epochs` is no number of epochs.
        Refused, Unreachable: its cluster takes no such run, or does not answer.
    """
    run = find_run(run_id, PATIENCE_SECONDS)
    _check_ours(run)
    if run.alive:
        raise InvalidRun("This run is going on already.")
    if run.status == "unreadable":
        raise InvalidRun(run.reason)
    check_resumable(run.folder)
    if run.status == "finished" and (epochs is None or epochs <= run.config.get("epochs", 0)):
        raise InvalidRun("This run has finished. Give it more epochs to continue it.")
    engine, root = _engine_and_root(run.on)
    config = None
    if epochs is not None:
        config = presets.train_config(**read_document(run.folder / "config.json") | {"epochs": epochs})
    with one_launch(root):
        if devices is not None:
            _change_about(run.folder, devices=list(devices))
        settings = (run.folder / "config.json").read_bytes()
        if config:
            _write_whole(run.folder / "config.json", config.model_dump_json(indent=2).encode() + b"\n")
        try:
            engine.submit(run.folder, Request(tuple(devices or run.devices), run.share, run.nodes, run.minutes))
        except UserError:
            if config:
                _write_whole(run.folder / "config.json", settings)
            raise
    watch.forget()
    return find_run(run_id)


def delete(run_id: str) -> None:
    """Remove a run with everything that it wrote.

    Raises:
        InvalidRun: it is alive.
    """
    run = find_run(run_id, PATIENCE_SECONDS)
    if run.alive:
        raise InvalidRun("This run is going on. Stop it first.")
    doomed = run.folder.with_name(f".{run.id}.deleted")
    with changing(run.folder):
        run.folder.rename(doomed)  # gone at once, for everybody
    shutil.rmtree(doomed, ignore_errors=True)


def rename(run_id: str, name: str) -> None:
    """Change the name that is shown; the folder keeps its own.

    Raises:
        InvalidRun: there is no such run, or the name is empty.
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
    """Put a waiting run at another place of the queue, 0 for the first.

    Raises:
        InvalidRun: it does not wait.
    """
    with open_queue(runs_folder()) as line:
        waiting = line["waiting"]
        if run_id not in waiting:
            raise InvalidRun("This run does not wait any more.")
        waiting.remove(run_id)
        waiting.insert(max(position, 0), run_id)
        line["waiting"] = waiting


def keep(run_id: str, name: str) -> Path:
    """Copy a run's best checkpoint to `checkpoints/<name>`.

    Raises:
        InvalidRun: it has none yet.
        InvalidCheckpoint: the name is taken, or none that a checkpoint may have.
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
    """Refuse to stop or to resume what another program trains: it has no supervisor that would hear of it."""
    if run.loop:
        raise InvalidRun(f"This run is trained by another program ({run.loop}). Stop and resume it there.")


def _write_whole(path: Path, content: bytes) -> None:
    with changing(path.parent), replaced(path) as file:
        file.write(content)


def _change_about(folder: Path, **values: Any) -> None:
    with changing(folder):
        write_json(folder / "about.json", read_json(folder / "about.json") | values)
