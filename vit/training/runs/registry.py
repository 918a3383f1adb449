"""List training runs and their status."""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vit.errors import InvalidRun
from vit.files import heartbeat_age
from vit.paths import clusters_file, runs_folder
from vit.training.engines import clusters, watch
from vit.training.engines.contract import HERE, Handle, JobStatus, has_ended, is_new, read_handle
from vit.training.loop.run_folder import (
    MAX_NAME,
    MOST_EPOCHS,
    PRUNED,
    RUN_ID,
    is_alive,
    later_format,
    read_document,
    read_json,
    search_of,
)
from vit.training.runs.queue_file import read_queue
from vit.untrusted import Unreadable, is_number, is_text, is_whole

Status = Literal[
    "waiting", "starting", "running", "validating", "testing", "stopping", "ending", "stalled",
    "retrying", "unknown",
    "finished", "stopped", "pruned", "failed", "interrupted", "unreadable",
]  # fmt: skip
ALIVE = (
    "waiting", "starting", "running", "validating", "testing", "stopping", "ending", "stalled",
    "retrying", "unknown",
)  # fmt: skip
EVALUATIONS: tuple[Status, ...] = ("validating", "testing")
ANY_GPU = "gpu"  # device name that stands for the first free GPU

STALLED_SECONDS = 300  # [s] without a heartbeat; compiling a large model takes minutes
MAX_NOTES, MAX_REASON = 5000, 2000  # characters
MOST_DEVICES = 64  # per run
MOST_NODES = 1024
_ENDING = "Its outcome is recorded, and it is cleaning up."
_LATEST = 2.0**32  # the year 2106, unix time [s]; later dates are damage
_DEVICE = re.compile(rf"cpu|mps|cuda:\d{{1,4}}|{ANY_GPU}", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """A run, as read from its folder and its engine.

    Attributes:
        created: unix time [s].
        devices: requested devices, such as ("cuda:0", "cuda:1"); a device listed twice runs two processes.
        search: id shared by the trials of a search, or by runs that were started together; "" for none.
        status: waiting (for a device), starting, running, validating, testing, stopping (on request), ending (outcome
            recorded, cleaning up), stalled (alive without heartbeat), retrying (a process died and the cluster restarts
            it), unknown (the cluster does not respond); finished, stopped (by a person), pruned (early, by its search),
            failed, interrupted (died without an outcome; can be resumed), unreadable.
        reason: explains the status, for the user; "" for none.
        on: engine: this machine or the name of a cluster.
        nodes: requested cluster nodes, 1 on this machine.
        minutes: time limit of an attempt; None for the cluster's own limit.
        hosts: cluster nodes that it runs on, as far as the cluster reports them.
        starts: when the cluster expects a waiting run to start, unix time [s]; None if it does not report it.
        problem: which file cannot be read, and why; "" for none.
        queue_position: from 1; 0 if the run is not queued.
        evaluated: share of images processed by the current validation or test, 0 to 1; None if there is none.
        step: last step of the heartbeat, which may be ahead of the records.
        loop: name of the foreign training loop that writes the run; "" for this project's.
    """

    id: str
    folder: Path
    name: str
    notes: str
    owner: str
    search: str
    created: float
    devices: tuple[str, ...]
    status: Status
    reason: str
    on: str = HERE
    nodes: int = 1
    minutes: int | None = None
    hosts: tuple[str, ...] = ()
    starts: float | None = None
    problem: str = ""
    queue_position: int = 0
    evaluated: float | None = None
    step: int = 0
    loop: str = ""
    share: bool = field(default=False, repr=False)
    nonce: str = field(default="", repr=False)

    @property
    def alive(self) -> bool:
        """Whether one of its processes may still exist."""
        return self.status in ALIVE

    @property
    def trial(self) -> int | None:
        """Number of the trial in its search, from 0; None for other runs."""
        number = self.nonce.removeprefix(f"{self.search}-") if self.search else ""
        return int(number) if number != self.nonce and number.isdecimal() else None

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's readable settings by name."""
        return _settings_of(self.folder)[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The run's settings by name, updated from the best checkpoint once there is one.

        A named model size, or a checkpoint to start from, determines settings that only the saved model states.
        """
        config, model = self.config, read_json(self.best / "config.json").get("vit") if self.best else None
        used = {name: model[name] for name in config if name in model} if isinstance(model, dict) else {}
        if isinstance(sides := used.get("image_size"), list) and sides:
            used["image_size"] = sides[0]
        used = {name: value for name, value in used.items() if _is_setting_value(value)}
        return config | used | ({"size": None, "start": None} if config.get("init_from") else {})

    @property
    def best(self) -> Path | None:
        """The checkpoint of its best epoch; None before there is one."""
        path = self.folder / "checkpoints" / "best"
        return path if os.path.isdir(path) else None


# --- Listing --------------------------------------------------------------------------------------------------------


def list_runs(patience: float = 0.0) -> list[Run]:
    """Return every run, newest first, with the unreadable ones, whose `reason` says why.

    Args:
        patience: how long to wait for each cluster to respond [s]; 0 for its cached response.
    """
    runs = []
    for root in _roots():
        try:
            names = [e.name for e in os.scandir(root) if RUN_ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        waiting = read_queue(root)["waiting"]
        runs += [read_guarded(root / name, waiting, patience) for name in sorted(names) if _is_run(root / name)]
    return sorted(runs, key=lambda run: (run.created, run.id), reverse=True)


def find_run(run_id: str, patience: float = 0.0) -> Run:
    """Look up a run among those that exist; safe for untrusted ids.

    Args:
        patience: how long to wait for its cluster to respond [s]; 0 for its cached response.

    Raises:
        InvalidRun: it does not exist.
    """
    if isinstance(run_id, str) and RUN_ID.fullmatch(run_id):
        for root in _roots():
            if _is_run(root / run_id) and not (root / run_id).is_symlink():
                return read_guarded(root / run_id, read_queue(root)["waiting"], patience)
    raise InvalidRun("There is no such run. It may have been deleted.")


def _roots() -> list[Path]:
    """Return the folders that hold runs: this machine's, then those of clusters."""
    on_clusters = clusters.run_folders() if clusters_file().exists() else []
    return list(dict.fromkeys([runs_folder(), *on_clusters]))


def queue() -> list[Run]:
    """Return the runs that wait for a device, in queue order."""
    return sorted(
        (run for run in list_runs() if run.status == "waiting" and run.queue_position),
        key=lambda run: run.queue_position,
    )


def _is_run(folder: Path) -> bool:
    """Whether a folder holds a run; also True if the folder's permissions do not let us tell."""
    try:
        os.stat(folder / "config.json")
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def read_guarded(folder: Path, waiting: Sequence[str], patience: float = 0.0) -> Run:
    """Read a run, whatever its folder holds: a damaged run must not hide the others.

    Args:
        waiting: ids of the runs in this machine's queue, in order.
        patience: how long to wait for its cluster, if any, to respond [s]; 0 for the cached response.
    """
    try:
        return read_run(folder, waiting, patience)
    except OSError as error:
        reason = f"Its folder cannot be read: {error.strerror}."
    except Exception as error:
        _log.exception("The run %s cannot be read", folder)
        reason = f"It cannot be read: {type(error).__name__}. The server's log says more."
    name = _default_name(folder)
    return Run(folder.name, folder, name, "", "", "", 0.0, (), "unreadable", reason, reason)


def read_run(folder: Path, waiting: Sequence[str], patience: float = 0.0) -> Run:
    """Read a run from its folder; unreadable files are reported in `problem`.

    Args:
        waiting: ids of the runs in this machine's queue, in order.
        patience: how long to wait for its cluster, if any, to respond [s].

    Raises:
        OSError: the folder is gone, or this user may not read it.
    """
    os.stat(folder / "config.json")  # raises PermissionError, where the readers below would report missing files
    about, problem = _read_or_problem(folder / "about.json")

    def text(name: str, most: int) -> str:
        value = about.get(name)
        return value[:most] if isinstance(value, str) else ""

    created = about.get("created")
    if not is_number(created, 0, _LATEST):
        created = min(max(os.stat(folder / "config.json").st_mtime, 0.0), _LATEST)
    pulse = read_json(folder / "heartbeat")
    handle = read_handle(folder)
    job_status = local_status(folder, waiting) if handle is None else _cluster_status(handle, patience)
    loop = read_json(folder / "environment.json").get("loop")
    loop = shorten(loop, MAX_NAME) if isinstance(loop, str) else ""
    status, reason = _status_of(folder, handle, job_status, pulse, loop)
    settings, unreadable = _settings_of(folder)
    later = later_format(folder)
    if status not in ALIVE and (later or (unreadable and not settings)):
        status, reason = "unreadable", later or unreadable
    return Run(
        id=folder.name,
        folder=folder,
        name=shorten(text("name", MAX_NAME), MAX_NAME) or _default_name(folder),
        notes=text("notes", MAX_NOTES),
        owner=text("owner", MAX_REASON),
        search=search_of(about)[:MAX_REASON],
        created=float(created),
        devices=valid_devices(about.get("devices")),
        status=status,
        reason=reason,
        on=handle.engine_name if handle else HERE,
        nodes=nodes if is_whole(nodes := about.get("nodes"), 1, MOST_NODES) else 1,
        minutes=minutes if is_whole(minutes := about.get("minutes"), 1) else None,
        hosts=job_status.nodes if isinstance(job_status, JobStatus) else (),
        starts=job_status.starts if isinstance(job_status, JobStatus) and status == "waiting" else None,
        problem=later or unreadable or problem,
        queue_position=waiting.index(folder.name) + 1 if status == "waiting" and folder.name in waiting else 0,
        evaluated=_evaluation_status(pulse)[1] if status in (*EVALUATIONS, "stopping") else None,
        step=pulse["step"] if is_whole(pulse.get("step")) else 0,
        loop=loop,
        share=about.get("share") is True,
        nonce=text("nonce", MAX_REASON),
    )


def valid_devices(names: object) -> tuple[str, ...]:
    """Return the requested devices; () if any name is invalid."""
    some = [name for name in names if is_text(name) and _DEVICE.fullmatch(name)] if isinstance(names, list) else []
    return tuple(some) if isinstance(names, list) and len(some) == len(names) <= MOST_DEVICES else ()


def _default_name(folder: Path) -> str:
    return re.sub(r"^\d{8}-\d{6}-|-[0-9a-f]{4}$", "", folder.name)


def _read_or_problem(path: Path) -> tuple[dict[str, Any], str]:
    """Return a file's JSON object and "", or {} and why it cannot be read; a missing file reads as {}."""
    try:
        return read_document(path), ""
    except FileNotFoundError:
        return {}, ""
    except Unreadable as error:
        return {}, str(error)


def _settings_of(folder: Path) -> tuple[dict[str, Any], str]:
    """Return the valid settings, and a sentence about the first invalid one."""
    values, problem = _read_or_problem(folder / "config.json")
    settings = {name: value for name, value in values.items() if _is_setting_value(value)}
    if not is_whole(settings.get("epochs", 1), 1, MOST_EPOCHS):
        del settings["epochs"]
    if values and len(settings) < len(values):
        wrong = next(name for name in values if name not in settings)
        problem = f"config.json cannot be read: {wrong[:MAX_NAME]} has a value that it cannot have."
    return settings, problem


def _is_setting_value(value: object) -> bool:
    """Whether any setting can have this value; `vit.training.loop.presets` validates by setting."""
    return value is None or isinstance(value, bool) or is_number(value) or is_text(value)


def _evaluation_status(pulse: dict[str, Any]) -> tuple[Status, float | None]:
    """Return the evaluation that a heartbeat reports, and the share of images processed."""
    share, doing = pulse.get("share"), pulse.get("doing")
    for evaluation in EVALUATIONS:
        if doing == evaluation and is_number(share, 0, 1):
            return evaluation, float(share)
    return "running", None


def local_status(folder: Path, waiting: Sequence[str]) -> JobStatus:
    """Return the status of a local run from its lock, which the system releases when its last process exits.

    Args:
        waiting: ids of the runs in the queue.
    """
    if not is_alive(folder):
        return JobStatus("gone")
    return JobStatus("waiting" if folder.name in waiting else "running", "It starts by itself when its device is free.")


def _cluster_status(handle: Handle, patience: float) -> JobStatus | str:
    """Return the status of a cluster's run, or why it is unknown; a run that is over causes no request."""
    if has_ended(handle):
        return JobStatus("gone")
    if handle.engine_name not in clusters.read_clusters().usable:
        return JobStatus(
            "gone", f"The cluster {handle.engine_name} is no longer set up here, so the run's status is unknown."
        )
    job_status, problem = watch.status(handle, patience)
    if is_new(handle) and not problem and (job_status is None or job_status.state == "gone"):
        return JobStatus("waiting", f"It is being submitted to {handle.engine_name}.")
    return job_status or problem or f"Waiting for {handle.engine_name} to report its status."


def _status_of(
    folder: Path, handle: Handle | None, job_status: JobStatus | str, pulse: dict[str, Any], loop: str = ""
) -> tuple[Status, str]:
    """Determine a run's status, from its engine first and then from its folder.

    Args:
        handle: None for a run of this machine.
        job_status: the engine's response, or a sentence that says why there is none.
        loop: name of the foreign training loop; "" for ours.
    """
    outcome = read_json(folder / "outcome.json")
    if isinstance(job_status, str):
        return "unknown", f"{job_status}{_last_heartbeat(folder)}"
    if job_status.state != "gone":
        if os.path.lexists(folder / "stop") or os.path.lexists(folder / "kill"):
            until = {"validating": "validation", "testing": "test"}.get(_evaluation_status(pulse)[0], "step")
            return "stopping", f"It ends after the current {until}."
        if outcome and handle is None:
            return "ending", _ENDING
        if job_status.state == "waiting":
            return "waiting", job_status.reason
        if job_status.state == "retrying":
            return "retrying", f"{job_status.reason} It is restarted from the last saved state.".strip()
        if handle and outcome.get("outcome") == "failed":
            return "ending", f"One of its processes failed; {handle.engine_name} may start it again."
        if outcome:
            return "ending", _ENDING if handle is None else f"Its state is saved; {handle.engine_name} is cleaning up."
        try:
            silent = heartbeat_age(folder / "heartbeat")
        except OSError:
            return "starting", "It loads PyTorch and its pictures."
        if silent > STALLED_SECONDS:
            why = "Its own program may say why." if loop else "The log may say why."
            return "stalled", f"No step in the last {silent / 60:.0f} minutes. {why}"
        return _evaluation_status(pulse)[0], ""
    ends: dict[Any, Status] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
    word, reason = outcome.get("outcome"), outcome.get("reason")
    if word == "stopped" and is_text(early := read_json(folder / PRUNED).get("reason")):
        return "pruned", early[:MAX_REASON]
    if isinstance(word, str) and word in ends:
        return ends[word], reason[:MAX_REASON] if isinstance(reason, str) else ""
    if loop:
        return "interrupted", "Its program ended without recording an outcome. Everything it wrote before is here."
    why = "perhaps by a restart of the machine or for lack of memory"
    cut_off = f"It was cut off, {why}. Resume it: no complete epoch is lost."
    return "interrupted", f"{job_status.reason} {cut_off}".strip() if handle else cut_off


def _last_heartbeat(folder: Path) -> str:
    """Return a sentence about the last heartbeat of a run whose status is unknown; "" without one."""
    try:
        silent = heartbeat_age(folder / "heartbeat")
    except OSError:
        return ""
    ago = f"{silent:.0f} seconds" if silent < 120 else f"{silent / 60:.0f} minutes"
    return f" Its last heartbeat was {ago} ago."


def shorten(text: str, length: int) -> str:
    """Collapse whitespace and truncate to `length` characters.

    >>> shorten(" a\\n  line ", 4)
    'a li'
    """
    return " ".join(text.split())[:length]
