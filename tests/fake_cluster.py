"""A cluster of one processor, made of files and locks: the smallest engine that fulfils the contract."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vit.files import is_locked
from vit.paths import environment_with_package
from vit.training.engines import contract, factory
from vit.training.engines.cluster_engine import ClusterEngine
from vit.training.engines.clusters import Cluster, find_cluster
from vit.training.engines.contract import Capacity, Handle, JobStatus, Request, Share
from vit.training.loop.run_folder import ENGINE

JOB = """
exec 9>alive; flock 9; echo $$ > pid
exec 8>../slot; flock 8; touch started
cd {code} && {{ {work} ; }} >> {folder}/log.txt 2>&1
"""
TRAIN = "exec {python} -m vit train --resume {folder}"


class Fake(ClusterEngine):
    """Engine with one slot; jobs get it in no particular order."""

    def __init__(self, cluster: Cluster):
        super().__init__(cluster)
        self.jobs = cluster.runs / ".fake"
        self.jobs.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Make every request fail until the block ends."""
        (self.jobs / "down").touch()
        try:
            yield
        finally:
            (self.jobs / "down").unlink()

    def _answer(self) -> None:
        if (self.jobs / "down").exists():
            raise contract.Unreachable(f"{self.name} does not answer.")

    def capacity(self) -> Capacity:
        """Report one processor."""
        self._answer()
        return Capacity(1, Share(int(not is_locked(self.jobs / "slot")), 1), Share(0, 0))

    def submit(self, folder: Path, request: Request) -> Handle:
        """Start a shell that waits for the slot."""
        with contract.submitting(self, folder, request) as handle:
            self._answer()
            if request.nodes > 1:
                raise contract.RequestRejected(f"{self.name} has one machine.")
            job = self.jobs / handle.job
            job.mkdir()
            words = {"code": os.getcwd(), "python": sys.executable, "folder": str(folder)}
            words = {name: shlex.quote(word) for name, word in words.items()}
            work = TRAIN.format(**words)
            subprocess.Popen(
                ["bash", "-c", JOB.format(work=work, **words)],
                cwd=job,
                env=environment_with_package() | {ENGINE: "fake"},
                start_new_session=True,
            )
            while not (job / "pid").exists():
                pass
        return handle

    def status(self, handle: Handle) -> JobStatus:
        """Read the state from the locks."""
        self._answer()
        job = self.jobs / handle.job
        if not is_locked(job / "alive"):
            return JobStatus("gone")
        return (
            JobStatus("running", nodes=("one",))
            if (job / "started").exists()
            else JobStatus("waiting", "The slot is taken.")
        )

    def _end_job(self, handle: Handle) -> None:
        """Kill the job's session."""
        self._answer()
        job = self.jobs / handle.job
        while is_locked(job / "alive"):
            os.killpg(int((job / "pid").read_text()), signal.SIGKILL)


factory.KINDS["fake"] = Fake


def set_up(folder: Path, patch: pytest.MonkeyPatch, **limits: int) -> Fake:
    """Configure a cluster named "lab" whose file and runs are in a folder."""
    file = folder / "clusters.toml"
    bounds = "".join(f"{name} = {value}\n" for name, value in limits.items())
    file.write_text(f'[clusters.lab]\nkind = "fake"\nruns = "{folder / "shared"}"\n[clusters.lab.limits]\n{bounds}')
    patch.setenv("VIT_CLUSTERS", str(file))
    return Fake(find_cluster("lab"))
