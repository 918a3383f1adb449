"""Engines with the operations that tests need: this machine, a fake cluster, real clusters."""

import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_cluster import set_up
from ray_cluster import RayCluster, enter_own_network
from slurm_cluster import SlurmCluster, missing

from vit.files import replaced
from vit.paths import PROJECT
from vit.training.engines import factory, local
from vit.training.engines.contract import HERE, Engine, read_handle
from vit.training.runs import registry


class Lab(NamedTuple):
    """An engine, and the operations that a test needs on it.

    Attributes:
        processes: returns all processes of a run.
        cluster: the real cluster behind it, if there is one.
        unreachable: context in which the engine does not answer; None if that cannot happen.
        nodes: number of nodes that a run takes, which is all there are.
    """

    name: str
    engine: Engine
    processes: Callable[[registry.Run], list[int]]
    unreachable: Callable[[], AbstractContextManager[None]] | None = None
    nodes: int = 1
    end: Callable[[], None] | None = None
    cluster: RayCluster | SlurmCluster | None = None


def leave_out(why: str) -> None:
    """Skip if this machine lacks a requirement; fail under `make cluster-test`, which exists to run these tests."""
    (pytest.fail if "VIT_NEED_CLUSTERS" in os.environ else pytest.skip)(why)


def lab_here(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    return Lab(HERE, local.Local(), lambda run: local.lock_holders(run.folder))


def lab_fake(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """One slot; all processes of a job are in one process group."""
    engine = set_up(root.parent, patch)

    def processes(run: registry.Run) -> list[int]:
        handle = read_handle(run.folder)
        return [int((engine.jobs / handle.job / "pid").read_text())] if handle else []

    return Lab("lab", engine, processes, engine.unreachable)


def lab_ray(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """A head and two machines of one processor.

    Its name is unique, because a thread polling another cluster stays in that cluster's network.
    """
    if find_spec("ray") is None:
        leave_out("Ray is not installed: make cluster installs it")
    try:
        enter_own_network()
    except PermissionError as error:
        leave_out(f"a network of its own needs administrator rights: {error}")
    cluster = RayCluster(root.with_name("ray"))
    try:
        cluster.start_head()
        for number in (1, 2):
            cluster.start_node(number)
    except BaseException:
        cluster.end()
        raise
    folder = root.with_name("shared")
    folder.mkdir()
    settings = {"kind": "ray", "runs": folder, "token_file": cluster.token, "python": sys.executable, "code": PROJECT}
    file = root.with_name("clusters.toml")
    patch.setenv("VIT_CLUSTERS", str(file))

    def set_up(address: str) -> None:
        lines = [f'{key} = "{value}"' for key, value in (settings | {"address": address}).items()]
        with replaced(file) as whole:  # it is read at every access
            whole.write("\n".join(["[clusters.ray]", *lines, "[clusters.ray.limits]", "nodes = 2"]).encode())

    @contextmanager
    def unreachable() -> Iterator[None]:
        """Accept connections without answering, as a stuck head does."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            set_up(f"http://127.0.0.1:{silent.getsockname()[1]}")
            try:
                yield
            finally:
                set_up(cluster.address)

    set_up(cluster.address)

    def processes(run: registry.Run) -> list[int]:
        drivers = cluster.processes(f"vit.training.engines.ray_job {run.folder}")
        return drivers + local.lock_holders(run.folder)

    engine = factory.cluster_engine("ray")
    return Lab("ray", engine, processes, unreachable, 2, cluster.end, cluster)


def lab_slurm(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """Two machines of one processor."""
    if program := missing():
        leave_out(f"{program} is not installed: make cluster installs it")
    cluster = SlurmCluster(root.with_name("slurm"))
    for name, value in cluster.environment.items():
        patch.setenv(name, value)
    try:
        cluster.start()
    except BaseException:
        cluster.end()
        raise
    folder = root.with_name("shared")
    folder.mkdir()
    settings = {"kind": "slurm", "runs": folder, "python": sys.executable, "code": PROJECT}
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    patch.setenv("VIT_CLUSTERS", str(root.with_name("clusters.toml")))
    root.with_name("clusters.toml").write_text(
        "\n".join(["[clusters.lab]", *lines, "[clusters.lab.limits]", "nodes = 2"])
    )

    def processes(run: registry.Run) -> list[int]:
        script = cluster.processes(f"vit.training.engines.slurm_job {run.folder}")
        return script + cluster.processes(f"--resume {run.folder}") + local.lock_holders(run.folder)

    @contextmanager
    def unreachable() -> Iterator[None]:
        """Stop the controller, and restart it with its saved state."""
        cluster.save()
        for pid in cluster.processes("slurmctld"):
            os.kill(pid, signal.SIGKILL)
        try:
            yield
        finally:
            cluster.start_controller()

    return Lab("lab", factory.cluster_engine("lab"), processes, unreachable, 2, cluster.end, cluster)
