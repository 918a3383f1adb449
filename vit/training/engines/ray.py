"""The engine of a Ray cluster, through the HTTP Jobs API, so that this machine needs no Ray.

A run is one job, whose driver is `vit.training.engines.ray_job`. The driver starts the trainer's processes on the
nodes, restarts them when one dies, and writes to the run's folder what they wait for and where they run. Ray has no
queue: it reports a job that waits for resources as running, and only the driver's note says that it waits.

Source: https://docs.ray.io/en/latest/cluster/running-applications/job-submission/rest.html
"""

import json
import shlex
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any

from vit.training.engines.cluster_engine import ClusterEngine
from vit.training.engines.contract import (
    Capacity,
    Handle,
    JobStatus,
    Request,
    RequestRejected,
    Share,
    Unreachable,
    query_each,
    submitting,
)
from vit.training.loop.run_folder import ENGINE, read_json, write_errors
from vit.untrusted import brief, is_text

_ALIVE = ("PENDING", "RUNNING")
NOTE = "driver.json"  # in a run's folder: the job's status as its driver, or the process of rank 0, writes it
_TIMEOUT_SECONDS = 5.0  # [s] per request
_ANSWER_BYTES = 64 << 20  # size limit of a response
_LIST_FROM_RUNS = 5  # from here on, list all jobs instead: the list also holds every job that has ended
_STOP_SECONDS = 20.0  # [s] to wait until a stopped job has ended; Ray kills it after 3 s


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Reject redirects, so that the token is sent to the configured address only."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: do not follow."""


_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)


class Ray(ClusterEngine):
    """A Ray cluster."""

    def capacity(self) -> Capacity:
        """Return nodes, processors and GPUs, some seconds old."""
        report = self._request("GET", "/api/cluster_status")
        try:
            status = report["data"]["clusterStatus"]
            usage, nodes = status["loadMetricsReport"]["usage"], status["autoscalerReport"]["activeNodes"]
            cpus, gpus = (
                Share(int(total - used), int(total)) for used, total in (usage.get(k, (0, 0)) for k in ("CPU", "GPU"))
            )
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(
                f"{self.name} does not report its resources: its version of Ray may be too old."
            ) from error
        return Capacity(len(nodes), cpus, gpus)

    def submit(self, folder: Path, request: Request) -> Handle:
        """Submit the job under an id chosen beforehand, so that a repeated request does not start a second job."""
        with submitting(self, folder, request) as handle:
            variables = {ENGINE: "ray", "OMP_NUM_THREADS": str(self.cluster.cpus), "PYTHONUNBUFFERED": "1"}
            if self.cluster.code:
                variables["PYTHONPATH"] = str(self.cluster.code)
            driver = ["-m", "vit.training.engines.ray_job", str(folder), handle.job, str(self.cluster.cpus)]
            job = {
                "entrypoint": shlex.join([self.cluster.python, *driver]),
                "submission_id": handle.job,
                "runtime_env": {"env_vars": variables},
                "metadata": {"run": folder.name},
            }
            self._request("POST", "/api/jobs/", job)
        return handle

    def status(self, handle: Handle) -> JobStatus:
        """Return the job's status; for a running job, the driver's note tells whether its processes run."""
        return self._job_status(handle, self._find_job(handle))

    def statuses(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, JobStatus | Exception]]:
        """Query runs one by one if they are few, else list all jobs that Ray remembers."""
        if len(handles) < _LIST_FROM_RUNS:
            return query_each(lambda: self.status, handles)

        def ask() -> Callable[[Handle], JobStatus]:
            jobs = {job.get("submission_id"): job for job in self._request("GET", "/api/jobs/")}
            return lambda handle: self._job_status(handle, jobs.get(handle.job))

        return query_each(ask, handles)

    def _job_status(self, handle: Handle, job: dict[str, Any] | None) -> JobStatus:
        status = job.get("status") if job else None
        if status == "PENDING":
            return JobStatus("waiting", f"{self.name} starts its driver.")
        if status != "RUNNING":
            message = job.get("message") if job and status == "FAILED" else ""
            return JobStatus("gone", f"Ray says: {brief(message)}." if is_text(message) and message else "")
        note = read_json(handle.folder / NOTE)
        if note.get("job") != handle.job:
            return JobStatus("waiting", f"{self.name} starts its driver.")
        word, reason, hosts = note.get("word"), note.get("reason"), note.get("hosts")
        return JobStatus(
            word if word in ("waiting", "retrying") else "running",
            reason[:500] if is_text(reason) else "",
            nodes=tuple(host[:100] for host in hosts[:64] if is_text(host)) if isinstance(hosts, list) else (),
        )

    def _end_job(self, handle: Handle) -> None:
        """Stop the driver, and with it all of its processes.

        Ray still starts the driver of a job that was stopped while pending; the stop file makes that driver exit.
        """
        self._request("POST", f"/api/jobs/{handle.job}/stop", {}, absent=True)
        for _ in self._attempts(_STOP_SECONDS, 0.2):
            job = self._find_job(handle)
            if not job or job.get("status") not in _ALIVE:
                break
        with write_errors(handle.folder):
            (handle.folder / "stop").touch()

    def _find_job(self, handle: Handle) -> dict[str, Any] | None:
        """Return Ray's record of a job; None if there is none."""
        return self._request("GET", f"/api/jobs/{handle.job}", absent=True)

    def _request(self, method: str, path: str, body: object = None, *, absent: bool = False) -> Any:
        """Call the API.

        Args:
            absent: return None for status 404.

        Raises:
            RequestRejected, Unreachable: with a one-sentence message.
        """
        assert self.cluster.token_file
        try:
            token = self.cluster.token_file.read_text().strip()
        except (OSError, ValueError) as error:
            raise Unreachable(f"The token file of {self.name} cannot be read on this server.") from error
        call = urllib.request.Request(  # noqa: S310 # `Cluster` allows http and https only
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
            raise RequestRejected(f"{self.name} refuses ({error.code}): {brief(detail)}.") from error
        except (OSError, HTTPException) as error:  # refused, unreachable or timed out
            raise Unreachable(f"{self.name} does not answer.") from error
        except ValueError as error:
            raise Unreachable(f"The address of {self.name} is not that of a Ray cluster.") from error
