"""The driver of a run on a Ray cluster: starts its processes there, and again when one dies.

    python -m vit.runs.engines.ray_job RUN JOB CPUS

Submitted by `vit.runs.engines.ray`, and run by Ray on one of its machines. Each process is one of Ray's actors, and
trains as torchrun's would, told by the same variables who it is. Ray finds the machines; the run's state is the truth,
and a death that no progress lies before is not tried again for ever.

This is Ray's core: Ray Train starts four processes more, one after the other, before those that train.
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
from vit.runs.attempts import train_to_the_end
from vit.runs.engines.contract import Handle, claim_job, mark_over, read_handle, read_request
from vit.runs.engines.ray import NOTE
from vit.training.run_folder import AGAIN, STATES, read_document, read_json, write_json

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_GIVEN_UP = "given up"  # noted by a process: what stands in outcome.json would be so again
_WAITING_AFTER = 10.0  # [s] without machines after which a run that began before is said to wait for them
_FRUITLESS_DEATHS = 3  # deaths in a row without another saved state between them, after which it is given up


def main(folder: Path, job: str, cpus: int) -> None:
    """Train the run in `folder` to its end."""
    handle = claim_job(folder, job)
    if handle is None:
        return
    try:
        train_to_the_end(folder, lambda: _train_once(folder, handle, cpus))
    finally:
        mark_over(handle)


def note(handle: Handle, word: str, reason: str = "", hosts: tuple[str, ...] = ()) -> None:
    """Leave word in the run's folder for whoever asks how it is."""
    write_json(handle.folder / NOTE, {"job": handle.job, "word": word, "reason": reason, "hosts": hosts})


def _train_once(folder: Path, handle: Handle, cpus: int) -> int:
    """Run the trainer's processes until they end well, want smaller parts, or die without progress."""
    import ray  # noqa: PLC0415 # there is no Ray but on a cluster

    request = read_request(folder)
    processes = request.nodes * len(request.devices)
    parts, fruitless, reason = read_json(folder / AGAIN), 0, ""
    while True:
        before = _saved(folder)
        goes = "goes on" if reason else "starts"
        waits = f"{reason} It {goes} when {handle.engine_name} has room for {_needs(processes, cpus, request.gpus)}."
        if not reason:
            note(handle, "waiting", waits.lstrip())
        try:
            ray.init()
            try:
                _train_on(_reserved(folder, handle, cpus, waits.lstrip()), folder)
            finally:
                ray.shutdown()  # its processes and what was reserved for them are gone
            return 0
        except Exception as error:  # whatever it was: Ray wraps it
            if read_json(folder / AGAIN) != parts or read_json(folder / NOTE).get("word") == _GIVEN_UP:
                return 1
            fruitless = 0 if _saved(folder) != before else fruitless + 1
            with (folder / "log.txt").open("a") as log:
                traceback.print_exception(error, file=log)
            if fruitless >= _FRUITLESS_DEATHS:
                return 1
            reason = "One of its processes died."
            note(handle, "retrying", reason)


def _reserved(folder: Path, handle: Handle, cpus: int, waits: str) -> "PlacementGroup":
    """Room for the run's processes, once there is some.

    Args:
        waits: what to say until then.
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
    """Start the run's processes where there is room for them, and wait until they are done.

    Raises:
        RayError: one of them failed, and none is left.
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
        for process in processes:  # the others wait for it
            ray.kill(process)
        raise


class Place(NamedTuple):
    """Where one of the run's processes is.

    Attributes:
        node: Ray's name of the machine.
        host: the machine's own.
        address, port: under which the first process can be met.
        gpus: those that Ray gave it, by their numbers or names.
    """

    node: str
    host: str
    address: str
    port: int
    gpus: tuple[str, ...]


def torchrun_variables(places: Sequence[Place]) -> list[dict[str, str]]:
    """What torchrun would tell each process; those of a machine follow each other.

    All GPUs of the run on a machine are seen by each of its processes there, as NCCL reaches no others directly.
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


class Trainer:
    """One of the run's processes, on a machine of the cluster: an actor."""

    def __init__(self, folder: str):
        self._folder = Path(folder)

    def place(self) -> Place:
        """Where this is."""
        import ray  # noqa: PLC0415

        context, address = ray.get_runtime_context(), ray.util.get_node_ip_address()
        with socket.socket() as free:
            free.bind(("", 0))
            port = free.getsockname()[1]
        gpus = tuple(context.get_accelerator_ids().get("GPU", ()))
        return Place(context.get_node_id(), platform.node(), address, port, gpus)

    def train(self, variables: dict[str, str], hosts: tuple[str, ...]) -> None:
        """Train, as torchrun's process would.

        Args:
            variables: of the environment.
            hosts: of all processes; of the leading one alone.
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
            raise  # so that the driver ends the others, which may wait for this one

    def _train(self) -> None:
        from vit.training.presets import train_config  # noqa: PLC0415 # what takes long is not imported by the driver
        from vit.training.train import train  # noqa: PLC0415

        train(train_config(**read_document(self._folder / "config.json")), self._folder, resume=True)


if __name__ == "__main__":
    from vit.runs.engines import ray_job  # not as "__main__", which Ray would send to the workers whole

    ray_job.main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
