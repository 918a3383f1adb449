"""A Ray cluster, spoken to over HTTP through its Jobs API: whoever submits and watches needs no Ray.

A run is one job, whose driver is `vit.runs.engines.ray_job`. It starts the trainer's processes on the cluster's
machines, starts them again when one dies, and writes into the run's folder what they wait for and where they are. Ray
has no queue: a job that waits for room counts as running there, and its driver's note says otherwise.

Source: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html
"""

import json
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from vit.runs.attempts import KILLED
from vit.runs.engines.clusters import Cluster
from vit.runs.engines.contract import (
    Capacity,
    Engine,
    Handle,
    Look,
    Refused,
    Request,
    Share,
    Unreachable,
    conclude,
    each,
    leave_stop,
    submitting,
)
from vit.training.run_folder import ENGINE, changing, read_json
from vit.untrusted import brief, is_text

_ALIVE = ("PENDING", "RUNNING")
NOTE = "driver.json"  # in a run's folder: what its driver, or the leading process, says of a job
_TIMEOUT_SECONDS = 5.0  # [s] of one call
_ANSWER_BYTES = 64 << 20  # of one answer
_RUNS_ASKED_SINGLY = 5  # runs that are asked about one by one: a list of jobs holds all that have ended, too
_LASTING_SECONDS = 20.0  # [s] for a job that was stopped to be gone; Ray kills it after three


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to the address that it is for, and nowhere else."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


class Ray(Engine):
    """A Ray cluster."""

    def __init__(self, cluster: Cluster):
        self.cluster, self.name = cluster, cluster.name

    def capacity(self) -> Capacity:
        """Machines, processors and GPUs, as of some seconds ago."""
        report = self._request("GET", "/api/cluster_status")
        try:
            status = report["data"]["clusterStatus"]
            usage, nodes = status["loadMetricsReport"]["usage"], status["autoscalerReport"]["activeNodes"]
            cpus, gpus = (
                Share(int(total - used), int(total)) for used, total in (usage.get(k, (0, 0)) for k in ("CPU", "GPU"))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(f"{self.name} does not say what it has: its version of Ray may be too old.") from error
        return Capacity(len(nodes), cpus, gpus)

    def submit(self, folder: Path, request: Request) -> Handle:
        """Hand the job over; it is named before, so that one that was sent twice is one."""
        with submitting(self, folder, request) as handle:
            variables = {ENGINE: "ray", "OMP_NUM_THREADS": str(self.cluster.cpus), "PYTHONUNBUFFERED": "1"}
            if self.cluster.code:
                variables["PYTHONPATH"] = str(self.cluster.code)
            program = "vit.runs.engines.ray_batch" if request.workers else "vit.runs.engines.ray_job"
            driver = ["-m", program, str(folder), handle.job, str(self.cluster.cpus)]
            job = {
                "entrypoint": shlex.join([self.cluster.python, *driver]),
                "submission_id": handle.job,
                "runtime_env": {"env_vars": variables},
                "metadata": {"run": folder.name},
            }
            self._request("POST", "/api/jobs/", job)
        return handle

    def look(self, handle: Handle) -> Look:
        """Ask for the job; of one that runs, its driver knows whether its processes do."""
        return self._look_at_job(handle, self._find_job(handle))

    def look_all(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, Look | Exception]]:
        """Ask for all jobs that Ray remembers where several are asked about."""
        if len(handles) < _RUNS_ASKED_SINGLY:
            return each(lambda: self.look, handles)

        def ask() -> Callable[[Handle], Look]:
            jobs = {job.get("submission_id"): job for job in self._request("GET", "/api/jobs/")}
            return lambda handle: self._look_at_job(handle, jobs.get(handle.job))

        return each(ask, handles)

    def _look_at_job(self, handle: Handle, job: dict[str, Any] | None) -> Look:
        status = job.get("status") if job else None
        if status == "PENDING":
            return Look("waiting", f"{self.name} starts its driver.")
        if status != "RUNNING":
            message = job.get("message") if job and status == "FAILED" else ""
            return Look("gone", f"Ray says: {brief(message)}." if is_text(message) and message else "")
        note = read_json(handle.folder / NOTE)
        if note.get("job") != handle.job:
            return Look("waiting", f"{self.name} starts its driver.")
        word, reason, hosts = note.get("word"), note.get("reason"), note.get("hosts")
        return Look(
            word if word in ("waiting", "retrying") else "running",
            reason[:500] if is_text(reason) else "",
            nodes=tuple(host[:100] for host in hosts[:64] if is_text(host)) if isinstance(hosts, list) else (),
        )

    def ask_to_stop(self, folder: Path) -> None:
        """The trainer sees the file; of one that waits, the job is ended."""
        leave_stop(self, folder)

    def kill(self, handle: Handle) -> None:
        """Ray ends the driver and with it all of its processes.

        It starts the driver of a job that was ended while it was pending, and that one finds a request to stop.
        """
        self._end_job(handle)
        with changing(handle.folder):
            (handle.folder / "stop").touch()
        conclude(handle, "stopped", KILLED)

    def _end_job(self, handle: Handle) -> None:
        self._request("POST", f"/api/jobs/{handle.job}/stop", {}, absent=True)
        until = time.monotonic() + _LASTING_SECONDS
        while (job := self._find_job(handle)) and job.get("status") in _ALIVE:
            if time.monotonic() > until:
                raise Unreachable(f"{self.name} was told to end the run and has not done so. Try again in a minute.")
            time.sleep(0.2)

    def _find_job(self, handle: Handle) -> dict[str, Any] | None:
        """What Ray knows of a job; None for nothing."""
        return self._request("GET", f"/api/jobs/{handle.job}", absent=True)

    def _request(self, method: str, path: str, body: object = None, *, absent: bool = False) -> Any:
        """One call of the API.

        Args:
            absent: answer None to "there is no such thing".

        Raises:
            Refused, Unreachable: in one sentence.
        """
        assert self.cluster.token_file
        try:
            token = self.cluster.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise Unreachable(f"The token file of {self.name} cannot be read on this server.") from error
        call = urllib.request.Request(  # noqa: S310 # http or https, as `Cluster` has it
            self.cluster.address.rstrip("/") + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
            method=method,
        )
        try:
            with _OPENER.open(call, timeout=_TIMEOUT_SECONDS) as answer:
                return json.loads(answer.read(_ANSWER_BYTES) or b"null")
        except urllib.error.HTTPError as error:
            if error.code == 404 and absent:
                return None
            if error.code in (401, 403):
                raise Unreachable(f"{self.name} does not accept the token in its token_file.") from error
            detail = error.read(2000).decode(errors="replace").strip().split("\n")[-1]
            raise Refused(f"{self.name} refuses ({error.code}): {brief(detail)}.") from error
        except (OSError, HTTPException) as error:  # nobody there, or nobody who answers in time
            raise Unreachable(f"{self.name} does not answer.") from error
        except ValueError as error:
            raise Unreachable(f"What answers at the address of {self.name} is no Ray cluster.") from error
