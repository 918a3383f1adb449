"""The driver of a run on a Ray cluster: starts its processes there, and again when one of them dies.

    python -m vit.runs.engines.ray_job RUN JOB CPUS

Submitted by `vit.runs.engines.ray`, and run by Ray on one of its machines. Each process trains as torchrun's would; the
process group is Ray's. Ray's own checkpoints and retries are not used: the run's state is the truth, and a death that
no progress lies before is not tried again for ever.
"""

import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import torch.distributed as dist

from vit.errors import InvalidRun, UserError
from vit.files import is_locked
from vit.runs.attempts import train_to_the_end
from vit.runs.engines.contract import Handle, claim_job, mark_over, read_handle, read_request
from vit.runs.engines.ray import NOTE
from vit.runs.mirror import ENVIRONMENT, Mirror
from vit.training.presets import train_config
from vit.training.run_folder import AGAIN, STATES, forget_attempt, read_document, read_json, write_json
from vit.training.train import train

_SCRATCH = "VIT_SCRATCH"  # in the environment of a machine: its folder for runs that no folder is shared for
_LEFTOVER_SECONDS = 24 * 3600.0  # [s] after which the folder of a run that is not at work here is removed
_RAYS_OWN = ".ray"  # folder in which Ray wants to keep checkpoints, of which there are none
_GIVEN_UP = "given up"  # noted by a process: what stands in outcome.json would be so again
# Ray gives up waiting for machines after a minute and asks for them anew. Where one comes back at that moment, what it
# had reserved stays so without end (Ray 2.60), so there is only one request, which waits for as long as it takes.
_ROOM_TIMEOUT = {"RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(30 * 24 * 3600)}
_WAITING_AFTER = 10.0  # [s] without machines after which a run that began before is said to wait for them
_FRUITLESS_DEATHS = 3  # deaths in a row without another saved state between them, after which it is given up


def main(folder: Path, job: str, cpus: int) -> None:
    """Train the run in `folder` to its end."""
    if mirror := mirror_of(folder):
        mirror.pull_all()
        forget_attempt(folder)  # which the server did in its own folder
        mirror.fetch_requests()
    handle = claim_job(folder, job)
    if handle is None:
        return
    try:
        train_to_the_end(folder, lambda: _train_once(folder, handle, cpus))
    finally:
        shutil.rmtree(folder / _RAYS_OWN, ignore_errors=True)
        if mirror := mirror_of(folder):
            mirror.push()
            mirror.remove(_RAYS_OWN)
        mark_over(handle)


def folder_of(folder: str) -> Path:
    """A run's folder on this machine: the shared one, or one of its own, which only its name tells.

    Raises:
        InvalidRun: somebody else has the folder for those.
    """
    if ENVIRONMENT not in os.environ:
        return Path(folder)
    own = Path(os.environ.get(_SCRATCH) or Path(tempfile.gettempdir()) / f"vit-runs-{os.getuid()}")
    own.mkdir(mode=0o700, parents=True, exist_ok=True)
    if own.stat().st_uid != os.getuid():
        raise InvalidRun(f"{own} belongs to somebody else. Name another folder in {_SCRATCH}.")
    for other in own.iterdir():  # what is worth keeping is in the image
        with suppress(OSError):
            lock = other / "alive.lock"
            if time.time() - other.stat().st_mtime > _LEFTOVER_SECONDS and not (lock.exists() and is_locked(lock)):
                shutil.rmtree(other, ignore_errors=True)
    return own / Path(folder).name


def mirror_of(folder: Path) -> Mirror | None:
    """The image of a run's folder, on machines that share none with the server; another one for each turn to write."""
    url = os.environ.get(ENVIRONMENT)
    return Mirror(url, folder) if url else None


def note(handle: Handle, word: str, reason: str = "", hosts: tuple[str, ...] = ()) -> None:
    """Leave word in the run's folder for whoever asks how it is."""
    write_json(handle.folder / NOTE, {"job": handle.job, "word": word, "reason": reason, "hosts": hosts})


def _train_once(folder: Path, handle: Handle, cpus: int) -> int:
    """Run the trainer's processes until they end well, want smaller parts, or die without progress."""
    import ray  # noqa: PLC0415 # there is no Ray but on a cluster
    from ray.train import FailureConfig, RunConfig, ScalingConfig  # noqa: PLC0415
    from ray.train.torch import TorchConfig, TorchTrainer  # noqa: PLC0415

    os.environ |= _ROOM_TIMEOUT
    request = read_request(folder)
    processes = request.nodes * len(request.devices)
    parts, fruitless, reason = read_json(folder / AGAIN), 0, ""
    while True:
        before = _saved(folder)
        goes = "goes on" if reason else "starts"
        waits = f"{reason} It {goes} when {handle.engine_name} has room for {_needs(processes, cpus, request.gpus)}."
        if not reason:
            note(handle, "waiting", waits.lstrip())
        rays_own: dict[str, Any] = {"storage_path": str(folder / _RAYS_OWN)}
        if mirror := mirror_of(folder):
            mirror.push()
            rays_own = {"storage_path": f"{mirror.path}/{_RAYS_OWN}", "storage_filesystem": mirror.storage}
        trainer = TorchTrainer(
            work,
            train_loop_config={"folder": folder.name if mirror else str(folder), "cpus": cpus},
            scaling_config=ScalingConfig(
                num_workers=processes,
                use_gpu=request.gpus,
                resources_per_worker={"CPU": cpus} | ({"GPU": 1} if request.gpus else {}),
                placement_strategy="STRICT_SPREAD" if processes == request.nodes > 1 else "SPREAD",
            ),
            torch_config=TorchConfig(backend="nccl" if request.gpus else "gloo"),
            run_config=RunConfig(
                name=handle.job,
                failure_config=FailureConfig(controller_failure_limit=0),  # else it tries for ever
                **rays_own,
            ),
        )
        try:
            with _noted_where_it_waits(handle, waits.lstrip(), mirror):
                trainer.fit()
            if mirror:
                mirror.pull_all()
            return 0
        except Exception as error:  # whatever it was: Ray wraps it
            ray.shutdown()  # what a start that failed had reserved is free again, which Ray else keeps for this job
            if mirror:
                mirror.pull_all()
            if read_json(folder / AGAIN) != parts or read_json(folder / NOTE).get("word") == _GIVEN_UP:
                return 1
            fruitless = 0 if _saved(folder) != before else fruitless + 1
            with (folder / "log.txt").open("a") as log:
                traceback.print_exception(error, file=log)
            if fruitless >= _FRUITLESS_DEATHS:
                return 1
            reason = "One of its processes died."
            note(handle, "retrying", reason)


@contextmanager
def _noted_where_it_waits(handle: Handle, reason: str, mirror: Mirror | None) -> Iterator[None]:
    """Say that a run waits where its machines are not there after a while."""
    import ray  # noqa: PLC0415
    from ray.util import placement_group_table  # noqa: PLC0415

    def look() -> None:
        with suppress(Exception):  # nobody answers, so nobody knows
            own = ray.get_runtime_context().get_job_id()  # what Ray's names of groups end with
            if any(name.endswith(own) and one["state"] == "PENDING" for name, one in placement_group_table().items()):
                note(handle, "waiting", reason)
                if mirror:
                    mirror.push()

    timer = threading.Timer(_WAITING_AFTER, look)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _needs(processes: int, cpus: int, gpus: bool) -> str:
    """What a run waits for, in words."""
    each = f"{_counted(cpus, 'processor')}{' and a GPU' if gpus else ''}"
    return f"{_counted(processes, 'process', 'processes')} with {each}{' each' if processes > 1 else ''}"


def _counted(number: int, one: str, more: str = "") -> str:
    return f"{number} {one if number == 1 else more or one + 's'}"


def _saved(folder: Path) -> list[int]:
    """Tells one saved state from another."""
    states = (folder / "checkpoints" / name for name in STATES)
    return [state.stat().st_mtime_ns for state in states if state.exists()]


def work(settings: dict[str, Any]) -> None:
    """One of the run's processes, on a machine of the cluster."""
    import torch  # noqa: PLC0415 # the process of Ray that runs this has imported nothing of the module

    folder = folder_of(settings["folder"])
    mirror = mirror_of(folder)
    if mirror:
        mirror.pull_all()
    torch.set_num_threads(settings["cpus"])
    with (folder / "log.txt").open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    hosts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, platform.node())  # all have what the image holds before one of them changes it
    handle, leads = read_handle(folder), dist.get_rank() == 0
    with mirror.pushing() if mirror and leads else nullcontext():
        _train_here(folder, handle, tuple(dict.fromkeys(hosts)) if leads else ())


def _train_here(folder: Path, handle: Handle | None, hosts: tuple[str, ...]) -> None:
    """Train.

    Args:
        hosts: of all processes; of the leading one alone.
    """
    if hosts and handle:
        note(handle, "running", hosts=hosts)
    try:
        train(train_config(**read_document(folder / "config.json")), folder, resume=True)
    except UserError:
        if handle:
            note(handle, _GIVEN_UP)
        raise  # so that Ray ends the others, which may wait for this one


if __name__ == "__main__":
    from vit.runs.engines import ray_job  # not as "__main__", which Ray would send to the workers whole

    ray_job.main(ray_job.folder_of(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
