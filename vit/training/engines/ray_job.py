"""The driver of a run on a Ray cluster: starts the trainer's processes and restarts them when one dies.

    python -m vit.training.engines.ray_job RUN JOB CPUS

Submitted by `vit.training.engines.ray`, and run by Ray on a node. Each process is a Ray actor and trains like a
torchrun process, with the same environment variables. Ray picks the nodes. Each restart resumes from the last saved
state; after a few deaths in a row without a new one, the driver gives up.

It uses Ray core: Ray Train would start four more processes, one after the other, before the trainers.
"""

import os
import platform
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from vit.errors import UserError
from vit.training.engines.contract import Handle, claim_job, mark_ended, read_handle, read_request
from vit.training.engines.ray import NOTE
from vit.training.loop.run_folder import AGAIN, STATES, read_document, read_json, write_json
from vit.training.runs.attempts import train_until_done
from vit.untrusted import counted

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_GIVEN_UP = "given up"  # noted by a process whose failure would repeat: the reason is in outcome.json
_WAITING_AFTER = 10.0  # [s] without resources after which a restarted run is shown as waiting
_FRUITLESS_DEATHS = 3  # deaths in a row without a new saved state, after which the driver gives up


def main(folder: Path, job: str, cpus: int) -> None:
    """Train the run in `folder` until it is done."""
    handle = claim_job(folder, job)
    if handle is None:
        return
    try:
        train_until_done(folder, lambda: _train_once(folder, handle, cpus))
    finally:
        mark_ended(handle)


def note(handle: Handle, word: str, reason: str = "", hosts: tuple[str, ...] = ()) -> None:
    """Write the job's status to the run's folder, where `Ray.status` reads it."""
    write_json(handle.folder / NOTE, {"job": handle.job, "word": word, "reason": reason, "hosts": hosts})


def _train_once(folder: Path, handle: Handle, cpus: int) -> int:
    """Run the trainer's processes until they succeed, ask for smaller micro-batches, or die without progress."""
    import ray  # noqa: PLC0415 # Ray is installed on clusters only

    request = read_request(folder)
    processes = request.nodes * len(request.devices)
    parts, fruitless, reason = read_json(folder / AGAIN), 0, ""
    while True:
        before = _state_times(folder)
        goes = "goes on" if reason else "starts"
        waits = (
            f"{reason} It {goes} when {handle.engine_name} has room for {_resources(processes, cpus, request.gpus)}."
        )
        if not reason:
            note(handle, "waiting", waits.lstrip())
        try:
            ray.init()
            try:
                _train_on(_reserve(folder, handle, cpus, waits.lstrip()), folder)
            finally:
                ray.shutdown()  # ends its processes and releases the placement group
            return 0
        except Exception as error:  # Ray wraps whatever a process raised
            if read_json(folder / AGAIN) != parts or read_json(folder / NOTE).get("word") == _GIVEN_UP:
                return 1
            fruitless = 0 if _state_times(folder) != before else fruitless + 1
            with (folder / "log.txt").open("a") as log:
                traceback.print_exception(error, file=log)
            if fruitless >= _FRUITLESS_DEATHS:
                return 1
            reason = "One of its processes died."
            note(handle, "retrying", reason)


def _reserve(folder: Path, handle: Handle, cpus: int, waits: str) -> "PlacementGroup":
    """Reserve resources for the run's processes, and wait until they are available.

    Args:
        waits: status text while it waits.
    """
    from ray.util import placement_group  # noqa: PLC0415

    request = read_request(folder)
    processes = request.nodes * len(request.devices)
    each = {"CPU": float(cpus)} | ({"GPU": 1.0} if request.gpus else {})
    group = placement_group([each] * processes, "STRICT_SPREAD" if processes == request.nodes > 1 else "SPREAD")
    if not group.wait(_WAITING_AFTER):
        note(handle, "waiting", waits)
        while not group.wait(_WAITING_AFTER):
            pass
    return group


def _train_on(group: "PlacementGroup", folder: Path) -> None:
    """Start the run's processes in the placement group, and wait until they are done.

    Raises:
        RayError: a process failed; the others were killed.
    """
    import ray  # noqa: PLC0415
    from ray.exceptions import RayError  # noqa: PLC0415
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # noqa: PLC0415

    processes = [
        ray.remote(Trainer)
        .options(
            num_cpus=each.get("CPU", 0),
            num_gpus=each.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, index),
        )
        .remote(str(folder))
        for index, each in enumerate(group.bundle_specs)
    ]
    try:
        places = ray.get([process.place.remote() for process in processes])
        hosts = tuple(dict.fromkeys(place.host for place in places))
        left = [
            process.train.remote(variables, hosts if variables["RANK"] == "0" else ())
            for process, variables in zip(processes, torchrun_variables(places), strict=True)
        ]
        while left:
            done, left = ray.wait(left)
            ray.get(done)
    except RayError:
        for process in processes:  # the others block in a collective operation that the failed one never joins
            ray.kill(process)
        raise


class ProcessPlacement(NamedTuple):
    """Where one of the run's processes runs.

    Attributes:
        node: Ray's id of the node.
        host: host name of the node.
        address, port: rendezvous address if this is the process of rank 0.
        gpus: GPUs that Ray assigned to it, by index or UUID.
    """

    node: str
    host: str
    address: str
    port: int
    gpus: tuple[str, ...]


def torchrun_variables(places: Sequence[ProcessPlacement]) -> list[dict[str, str]]:
    """Return the environment variables that torchrun would set for each process; ranks on a node are consecutive.

    Each process sees all of the run's GPUs on its node, because NCCL needs that for direct access between GPUs.
    """
    nodes = list(dict.fromkeys(place.node for place in places))
    order = sorted(range(len(places)), key=lambda index: nodes.index(places[index].node))
    first, result = places[order[0]], [dict[str, str]()] * len(places)
    for rank, index in enumerate(order):
        here = [one for one in order if places[one].node == places[index].node]
        result[index] = {
            "RANK": str(rank),
            "WORLD_SIZE": str(len(places)),
            "LOCAL_RANK": str(here.index(index)),
            "MASTER_ADDR": first.address,
            "MASTER_PORT": str(first.port),
        }
        if gpus := [gpu for one in here for gpu in places[one].gpus]:
            result[index]["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return result


def _resources(processes: int, cpus: int, gpus: bool) -> str:
    """Describe the resources that a run waits for."""
    each = f"{counted(cpus, 'processor')}{' and a GPU' if gpus else ''}"
    return f"{counted(processes, 'process', 'processes')} with {each}{' each' if processes > 1 else ''}"


def _state_times(folder: Path) -> list[int]:
    """Return the modification times of the saved states, which change with every save."""
    states = (folder / "checkpoints" / name for name in STATES)
    return [state.stat().st_mtime_ns for state in states if state.exists()]


class Trainer:
    """One of the run's processes on a node: a Ray actor."""

    def __init__(self, folder: str):
        self._folder = Path(folder)

    def place(self) -> ProcessPlacement:
        """Return where this process runs, with a free port."""
        import ray  # noqa: PLC0415

        context, address = ray.get_runtime_context(), ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        return ProcessPlacement(context.get_node_id(), platform.node(), address, port, gpus)

    def train(self, variables: dict[str, str], hosts: tuple[str, ...]) -> None:
        """Train as a torchrun process would.

        Args:
            variables: environment variables to set.
            hosts: hosts of all processes, for rank 0; empty for the others.
        """
        os.environ |= variables
        with (self._folder / "log.txt").open("ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        handle = read_handle(self._folder)
        if hosts and handle:
            note(handle, "running", hosts=hosts)
        try:
            self._train()
        except UserError:
            if handle:
                note(handle, _GIVEN_UP)
            raise  # lets the driver kill the other processes, which may wait for this one

    def _train(self) -> None:
        from vit.training.loop.presets import train_config  # noqa: PLC0415 # slow import, which the driver does not need
        from vit.training.loop.train import train  # noqa: PLC0415

        train(train_config(**read_document(self._folder / "config.json")), self._folder, resume=True)


if __name__ == "__main__":
    from vit.training.engines import ray_job  # Ray pickles functions of "__main__" by value, of modules by name

    ray_job.main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
