"""Which runs there are, and how each is."""

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from vit.errors import InvalidRun
from vit.files import silence
from vit.paths import clusters_file, runs_folder
from vit.runs.engines import clusters, watch
from vit.runs.engines.contract import HERE, Handle, Look, is_new, is_over, read_handle
from vit.runs.queue_file import read_queue
from vit.training.run_folder import (
    MAX_NAME,
    MOST_EPOCHS,
    PRUNED,
    RUN_ID,
    is_alive,
    later_format,
    read_document,
    read_json,
)
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
ANY_GPU = "gpu"  # in place of a device's name: the first that is free

STALLED_SECONDS = 300  # [s] without a sign of life; compiling a large model takes minutes
MAX_NOTES, MAX_REASON = 5000, 2000  # characters
MOST_DEVICES = 64  # of one run
MOST_NODES = 1024
_ENDING = "It has said its last word, and clears up."
_LATEST = 2.0**32  # a moment in 2106 [s]
_DEVICE = re.compile(rf"cpu|mps|cuda:\d{{1,4}}|{ANY_GPU}", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    """One run, as it was found.

    Attributes:
        created: unix time [s].
        devices: that it asks for, such as ("cuda:0", "cuda:1"); the same twice means two processes on it.
        sweep: shared by runs that were started together to be compared, "" for none.
        status: waiting (for a device), starting, running, validating, testing, stopping (asked to), ending (said its
            last word), stalled (alive but silent), retrying (a process of it died and its cluster starts it again),
            unknown (its cluster gives no answer); finished, stopped (by a person), pruned (by its search, early),
            failed, or interrupted: it died without a last word, and can be resumed; unreadable: nobody can say.
        reason: more about the status, in words; "" where there is nothing to say.
        on: where it computes: this machine, or a cluster by its name.
        nodes: machines of its cluster that it asks for, 1 here.
        minutes: after which its cluster may end an attempt; None for the cluster's own limit.
        hosts: the machines of its cluster that it is on, as far as the cluster says.
        starts: when its cluster expects a waiting one to start, unix time [s]; None where it does not say.
        problem: what of its files cannot be read, and why; "" where all can.
        queue_position: from 1; 0 for a run that does not wait.
        evaluated: share of the pictures that the present validation or test has seen, 0 to 1; None where there is none.
        step: done, as its last sign of life says, which may be ahead of its records.
        loop: whose training loop it is that writes the run; "" for this project's.
    """

    id: str
    folder: Path
    name: str
    notes: str
    owner: str
    sweep: str
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
        """Whether a process of it exists, or nobody can say that none does."""
        return self.status in ALIVE

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's settings by name, those that can be read."""
        return _settings_of(self.folder)[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The run's settings by name, as its model has them once that is saved.

        Only then is it known what follows from a named size, or from the checkpoint that it starts from.
        """
        config, model = self.config, read_json(self.best / "config.json").get("vit") if self.best else None
        used = {name: model[name] for name in config if name in model} if isinstance(model, dict) else {}
        if isinstance(sides := used.get("image_size"), list) and sides:
            used["image_size"] = sides[0]
        used = {name: value for name, value in used.items() if _is_setting(value)}
        return config | used | ({"size": None, "start": None} if config.get("init_from") else {})

    @property
    def best(self) -> Path | None:
        """The checkpoint of its best epoch, once there is one."""
        path = self.folder / "checkpoints" / "best"
        return path if os.path.isdir(path) else None


# --- Finding --------------------------------------------------------------------------------------------------------


def list_runs(patience: float = 0.0) -> list[Run]:
    """Every run, newest first; those that cannot be read are among them, and say why.

    Args:
        patience: how long to wait for clusters to answer, each; 0 for what they said last [s].
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
    """One run, looked up among those that exist; for ids that strangers send.

    Args:
        patience: how long to wait for its cluster to answer; 0 for what it said last [s].

    Raises:
        InvalidRun: there is none.
    """
    if isinstance(run_id, str) and RUN_ID.fullmatch(run_id):
        for root in _roots():
            if _is_run(root / run_id) and not (root / run_id).is_symlink():
                return read_guarded(root / run_id, read_queue(root)["waiting"], patience)
    raise InvalidRun("There is no such run. It may have been deleted.")


def _roots() -> list[Path]:
    """Folders that hold runs: this machine's, then those of clusters."""
    on_clusters = clusters.run_folders() if clusters_file().exists() else []
    return list(dict.fromkeys([runs_folder(), *on_clusters]))


def queue() -> list[Run]:
    """The runs that wait for a device, in their order."""
    return sorted(
        (run for run in list_runs() if run.status == "waiting" and run.queue_position),
        key=lambda run: run.queue_position,
    )


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, or is closed to this user, who then cannot know."""
    try:
        os.stat(folder / "config.json")
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def read_guarded(folder: Path, waiting: Sequence[str], patience: float = 0.0) -> Run:
    """A run, whatever its folder holds: what is wrong with one of them hides none of the others.

    Args:
        waiting: ids of the runs in this machine's queue, in order.
        patience: how long to wait for the answer of its cluster, if it has one; 0 for what it said last [s].
    """
    try:
        return read_run(folder, waiting, patience)
    except OSError as error:
        reason = f"Its folder cannot be read: {error.strerror}."
    except Exception as error:
        _log.exception("The run %s cannot be read", folder)
        reason = f"It cannot be read: {type(error).__name__}. The server's log says more."
    name = _name_of(folder)
    return Run(folder.name, folder, name, "", "", "", 0.0, (), "unreadable", reason, reason)


def read_run(folder: Path, waiting: Sequence[str], patience: float = 0.0) -> Run:
    """A run as its folder tells it; what cannot be read of it is said in the result.

    Args:
        waiting: ids of the runs in this machine's queue, in order.
        patience: how long to wait for the answer of its cluster, if it has one [s].

    Raises:
        OSError: the folder is gone, or closed to this user.
    """
    os.stat(folder / "config.json")  # a closed folder is told as such, before anything is taken for absent
    about, problem = _read_or_problem(folder / "about.json")

    def text(name: str, most: int) -> str:
        value = about.get(name)
        return value[:most] if isinstance(value, str) else ""

    created = about.get("created")
    if not is_number(created, 0, _LATEST):
        created = min(max(os.stat(folder / "config.json").st_mtime, 0.0), _LATEST)
    pulse = read_json(folder / "heartbeat")
    handle = read_handle(folder)
    look = look_local(folder, waiting) if handle is None else _look_cluster(handle, patience)
    loop = read_json(folder / "environment.json").get("loop")
    loop = shorten(loop, MAX_NAME) if isinstance(loop, str) else ""
    status, reason = _status_of(folder, handle, look, pulse, loop)
    settings, unreadable = _settings_of(folder)
    later = later_format(folder)
    if status not in ALIVE and (later or (unreadable and not settings)):
        status, reason = "unreadable", later or unreadable
    return Run(
        id=folder.name,
        folder=folder,
        name=shorten(text("name", MAX_NAME), MAX_NAME) or _name_of(folder),
        notes=text("notes", MAX_NOTES),
        owner=text("owner", MAX_REASON),
        sweep=text("sweep", MAX_REASON),
        created=float(created),
        devices=_valid_devices(about.get("devices")),
        status=status,
        reason=reason,
        on=handle.engine_name if handle else HERE,
        nodes=nodes if is_whole(nodes := about.get("nodes"), 1, MOST_NODES) else 1,
        minutes=minutes if is_whole(minutes := about.get("minutes"), 1) else None,
        hosts=look.nodes if isinstance(look, Look) else (),
        starts=look.starts if isinstance(look, Look) and status == "waiting" else None,
        problem=later or unreadable or problem,
        queue_position=waiting.index(folder.name) + 1 if status == "waiting" and folder.name in waiting else 0,
        evaluated=_evaluation_status(pulse)[1] if status in (*EVALUATIONS, "stopping") else None,
        step=pulse["step"] if is_whole(pulse.get("step")) else 0,
        loop=loop,
        share=about.get("share") is True,
        nonce=text("nonce", MAX_REASON),
    )


def _valid_devices(names: object) -> tuple[str, ...]:
    """Devices as a run may ask for them; none where a name is no device."""
    some = [name for name in names if is_text(name) and _DEVICE.fullmatch(name)] if isinstance(names, list) else []
    return tuple(some) if isinstance(names, list) and len(some) == len(names) <= MOST_DEVICES else ()


def _name_of(folder: Path) -> str:
    return re.sub(r"^\d{8}-\d{6}-|-[0-9a-f]{4}$", "", folder.name)


def _read_or_problem(path: Path) -> tuple[dict[str, Any], str]:
    """A file's JSON object and "", or an empty one and why it cannot be read; no file is an empty object."""
    try:
        return read_document(path), ""
    except FileNotFoundError:
        return {}, ""
    except Unreadable as error:
        return {}, str(error)


def _settings_of(folder: Path) -> tuple[dict[str, Any], str]:
    """The settings that can be one, and in words those that cannot."""
    values, problem = _read_or_problem(folder / "config.json")
    settings = {name: value for name, value in values.items() if _is_setting(value)}
    if not is_whole(settings.get("epochs", 1), 1, MOST_EPOCHS):
        del settings["epochs"]
    if values and len(settings) < len(values):
        wrong = next(name for name in values if name not in settings)
        problem = f"config.json cannot be read: {wrong[:MAX_NAME]} has a value that it cannot have."
    return settings, problem


def _is_setting(value: object) -> bool:
    """Whether a run's setting may have this value; which one of them, `vit.training.presets` knows."""
    return value is None or isinstance(value, bool) or is_number(value) or is_text(value)


def _evaluation_status(pulse: dict[str, Any]) -> tuple[Status, float | None]:
    """The evaluation that a sign of life tells of, and the share of its pictures that were seen."""
    share, doing = pulse.get("share"), pulse.get("doing")
    for evaluation in EVALUATIONS:
        if doing == evaluation and is_number(share, 0, 1):
            return evaluation, float(share)
    return "running", None


def look_local(folder: Path, waiting: Sequence[str]) -> Look:
    """How a run of this machine is: its lock answers, which the system drops when the last of its processes is gone.

    Args:
        waiting: ids of the runs in the queue.
    """
    if not is_alive(folder):
        return Look("gone")
    return Look("waiting" if folder.name in waiting else "running", "It starts by itself when its device is free.")


def _look_cluster(handle: Handle, patience: float) -> Look | str:
    """How a run of a cluster is, or why nobody knows; of one that is over nobody is asked."""
    if is_over(handle):
        return Look("gone")
    if handle.engine_name not in clusters.read_clusters().usable:
        return Look(
            "gone", f"The cluster {handle.engine_name} is not set up here any more, so nobody can say how it is."
        )
    look, problem = watch.look(handle, patience)
    if is_new(handle) and not problem and (look is None or look.word == "gone"):
        return Look("waiting", f"It is being handed over to {handle.engine_name}.")
    return look or problem or f"{handle.engine_name} is being asked how it is."


def _status_of(
    folder: Path, handle: Handle | None, look: Look | str, pulse: dict[str, Any], loop: str = ""
) -> tuple[Status, str]:
    """How a run is, from what its engine says first, then from its folder.

    Args:
        handle: None for a run of this machine.
        look: what the engine says; in words why it says nothing.
        loop: whose training loop it is; "" for ours.
    """
    outcome = read_json(folder / "outcome.json")
    if isinstance(look, str):
        return "unknown", f"{look}{_last_sign(folder)}"
    if look.word != "gone":
        if os.path.lexists(folder / "stop") or os.path.lexists(folder / "kill"):
            until = {"validating": "the validation", "testing": "the test"}.get(
                _evaluation_status(pulse)[0], "the step"
            )
            return "stopping", f"It ends after {until} that it is in."
        if outcome and handle is None:
            return "ending", _ENDING
        if look.word == "waiting":
            return "waiting", look.reason
        if look.word == "retrying":
            return "retrying", f"{look.reason} It is started again and goes on from the last saved state.".strip()
        if handle and outcome.get("outcome") == "failed":
            return "ending", f"One of its processes failed; {handle.engine_name} may start it again."
        if outcome:
            return "ending", _ENDING if handle is None else f"It has saved itself, and {handle.engine_name} clears up."
        try:
            silent = silence(folder / "heartbeat")
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
        return "interrupted", "Its program ended without a last word. All that it wrote until then is here."
    cut_off = "It was cut off, by a restart of the machine perhaps. Resume it: no complete epoch is lost."
    return "interrupted", f"{look.reason} {cut_off}".strip() if handle else cut_off


def _last_sign(folder: Path) -> str:
    """A sentence about the last sign of life of a run of which nobody knows."""
    try:
        silent = silence(folder / "heartbeat")
    except OSError:
        return ""
    ago = f"{silent:.0f} seconds" if silent < 120 else f"{silent / 60:.0f} minutes"
    return f" Its last sign of life was {ago} ago."


def shorten(text: str, length: int) -> str:
    """Text in one line of at most so many characters.

    >>> shorten(" a\\n  line ", 4)
    'a li'
    """
    return " ".join(text.split())[:length]
