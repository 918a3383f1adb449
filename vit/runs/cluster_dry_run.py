"""A few training steps on a cluster node before a long run is queued: does it work there, and how fast is it?

    <runs>/.trials/trial-<12 hex>/
        trial.json     settings, devices, and this server's software versions
        result.json    the node's software versions, and the measured times

A dry run is submitted like a run (`vit.runs.control.start_dry_run`). On the node, Ray calls `main`, and Slurm starts

    python -m vit.runs.cluster_dry_run FOLDER
"""

import hashlib
import platform
import shutil
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import vit
from vit.errors import InvalidRun, UserError
from vit.runs.engines.contract import JobStatus, is_new, read_handle
from vit.training import dry_run, presets
from vit.training.config import TrainConfig
from vit.training.run_folder import read_json, record_outcome, write_json
from vit.untrusted import Unreadable, brief, is_text, read_tail
from vit.validation import as_tuple

REQUEST, RESULT = "trial.json", "result.json"
_OTHER_VERSION = "The machine has another version of this program. Bring it up to date before a long run."
LIMIT_SECONDS = 30.0  # [s] of training steps
_OLD_SECONDS = 24 * 3600.0  # [s] after which an abandoned dry run is removed


class ClusterDryRun(NamedTuple):
    """Result of a dry run on a cluster.

    Attributes:
        host: host name of the node.
        doubts: sentences about software that differs between the node and this machine.
        result: the measurements.
    """

    host: str
    doubts: tuple[str, ...]
    result: "dry_run.DryRun"


class _Versions(NamedTuple):
    """What `software_versions` returns."""

    python: str
    torch: str
    code: str


def software_versions() -> dict[str, str]:
    """Return the versions that decide whether a run behaves the same on two machines."""
    package = Path(vit.__file__).parent
    code = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        code.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, "torch": version("torch"), "code": code.hexdigest()[:12]}


def new_folder(runs: Path) -> Path:
    """Create the folder of a dry run, and remove abandoned ones."""
    parent = runs / ".trials"
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.iterdir():
        if time.time() - old.stat().st_mtime > _OLD_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    folder = parent / f"trial-{hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:12]}"
    folder.mkdir()
    return folder


def write(folder: Path, config: TrainConfig, devices: Sequence[str]) -> None:
    """Write the request for a dry run.

    Args:
        devices: one for each process of the run, over all nodes.
    """
    settings = config.model_dump(mode="json")
    write_json(folder / REQUEST, {"config": settings, "devices": list(devices), "here": software_versions()})


def main(folder: Path) -> int:
    """Do the dry run, and write its result or why it failed; return the exit status."""
    try:
        _measure(folder)
    except UserError as error:
        record_outcome(folder, "failed", str(error))
        print(error, flush=True)
        return 2
    return 0


def _measure(folder: Path) -> None:
    request = read_json(folder / REQUEST)
    settings, devices = request.get("config"), request.get("devices")
    if not isinstance(settings, dict) or not isinstance(devices, list) or not devices or not all(map(is_text, devices)):
        raise InvalidRun(f"{REQUEST} is damaged. Try again.")
    tried = dry_run.time_steps(presets.train_config(None, **settings), devices, limit=LIMIT_SECONDS)
    write_json(folder / RESULT, {"host": platform.node(), "there": software_versions(), "trial": tried._asdict()})


def read(folder: Path) -> ClusterDryRun | None:
    """Read the result of a dry run; None before it is done.

    Raises:
        InvalidRun: the node runs a version of this program whose result has another format.
    """
    result = read_json(folder / RESULT)
    if not result:
        return None
    try:
        here = as_tuple(_Versions, read_json(folder / REQUEST).get("here"), REQUEST)
        there = as_tuple(_Versions, result.get("there"), RESULT)
        tried = as_tuple(dry_run.DryRun, result.get("trial"), RESULT)
    except Unreadable as error:  # other fields than this version's
        raise InvalidRun(_OTHER_VERSION) from error
    doubts = [
        f"{name} is {brief(remote)} there and {brief(local)} here, so numbers may differ in their last digits."
        for name, remote, local in (("Python", there.python, here.python), ("torch", there.torch, here.torch))
        if remote != local
    ]
    if there.code != here.code:
        doubts.append(_OTHER_VERSION)
    return ClusterDryRun(brief(str(result.get("host"))), tuple(doubts), tried)


def failure(folder: Path, status: JobStatus) -> str:
    """Explain why a dry run ended without a result; "" while it is still active."""
    handle = read_handle(folder)
    if handle is None:
        return "The trial is gone: its folder was removed."
    if status.state != "gone" or (is_new(handle) and not (folder / "outcome.json").exists()):
        return ""
    reason = read_json(folder / "outcome.json").get("reason")
    if is_text(reason) and reason:
        return reason[:1000]
    return f"The trial ended without a result. {status.reason or _last_line_of_log(folder)}".strip()


def _last_line_of_log(folder: Path) -> str:
    """Return a sentence with the last line that its processes printed; "" without one."""
    lines = read_tail(folder / "log.txt", 2000).decode(errors="replace").splitlines()
    printed = [line.strip() for line in lines if line.strip()]
    return f"The last line of its log: {printed[-1][:500]}" if printed else ""


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
