"""The engine of a Slurm cluster, through the commands sbatch, squeue and scancel, which this machine needs.

A run is one batch job. Its script, job.sh in the run's folder (`vit.training.engines.slurm_script`), requests the
resources and starts `vit.training.engines.slurm_job` on the job's first node. Near the time limit the run saves its
state and the job is requeued, until the run is done. Slurm forgets ended jobs after some minutes; the run's folder
keeps the outcome.

Source: https://slurm.schedmd.com/sbatch.html
"""

import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from vit.files import replaced
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
from vit.training.engines.slurm_script import SCRIPT, batch_script
from vit.training.loop.run_folder import write_errors
from vit.untrusted import brief

_TIMEOUT_SECONDS = 5.0  # [s] per command; without a reachable controller they fail only after 9 s
_STOP_SECONDS = 60.0  # [s] to wait until a cancelled job has ended; Slurm kills it after 30 s
_PENDING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED", "RESIZING")
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "STAGE_OUT", "SIGNALING")
_WAITING = {
    "Resources": "It starts when enough machines are free.",
    "Priority": "Other jobs are before it.",
    "BeginTime": "It is queued again, and starts in a minute or two.",
    "None": "It has just been queued.",
    "PartitionTimeLimit": "It asks for more time than the partition grants, and will never start.",
    "PartitionNodeLimit": "It asks for more machines than the partition grants, and will never start.",
    "ReqNodeNotAvail": "The machines that it needs are down or reserved.",
    "JobHeldUser": "A user holds it (release it with scontrol release).",
    "JobHeldAdmin": "An administrator holds it.",
    "QOSMaxJobsPerUserLimit": "You have reached Slurm's limit of jobs per user.",
}
_ENDS = {
    "TIMEOUT": "Its time limit was reached.",
    "NODE_FAIL": "A machine of it failed.",
    "OUT_OF_MEMORY": "A machine's memory ran out.",
    "PREEMPTED": "A job with precedence took its machines.",
}


class _Job(NamedTuple):
    """A job as squeue lists it."""

    number: str
    state: str
    reason: str
    starts: float | None
    hosts: tuple[str, ...]


class Slurm(ClusterEngine):
    """A Slurm cluster."""

    def capacity(self) -> Capacity:
        """Return nodes, processors and GPUs of the partition, without nodes that are down."""
        output = self._run_command(
            [
                "sinfo",
                "--noheader",
                "--Node",
                "--Format=NodeList:|,CPUsState:|,Gres:|,GresUsed:",
                *self._partition_option(),
            ]
        )
        nodes: dict[str, tuple[Share, Share]] = {}
        for line in output.splitlines():
            name, processors, gpus, used = (part.strip() for part in line.split("|"))
            taken, idle, _, total = map(int, processors.split("/"))
            if taken + idle:
                nodes[name] = Share(idle, total), Share(_count_gpus(gpus) - _count_gpus(used), _count_gpus(gpus))
        cpus, cards = (
            Share(sum(share.free for share in kind), sum(share.total for share in kind))
            for kind in ([node[0] for node in nodes.values()], [node[1] for node in nodes.values()])
        )
        return Capacity(len(nodes), cpus, cards)

    def submit(self, folder: Path, request: Request) -> Handle:
        """Write the batch script and submit it."""
        with submitting(self, folder, request) as handle:
            self._check_time(request)
            with write_errors(folder), replaced(folder / SCRIPT) as file:
                file.write(batch_script(self.cluster, handle, request).encode())
            self._run_command(["sbatch", "--parsable", str(folder / SCRIPT)], refuses=True)
        return handle

    def status(self, handle: Handle) -> JobStatus:
        """Query squeue by the job's name."""
        return _job_status(self._find_job(handle))

    def statuses(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, JobStatus | Exception]]:
        """Query squeue once for all runs."""

        def ask() -> Callable[[Handle], JobStatus]:
            jobs = self._find_jobs(handles)
            return lambda handle: _job_status(jobs.get(handle.job))

        return query_each(ask, handles)

    def _end_job(self, handle: Handle) -> None:
        """Cancel the job and prevent its requeueing; Slurm sends TERM, then KILL after KillWait."""
        for _ in self._attempts(_STOP_SECONDS, 0.5):
            job = self._find_job(handle)
            if not job or self.status(handle).state == "gone":
                return
            self._run_command(["scontrol", "update", f"JobId={job.number}", "Requeue=0"], lenient=True)
            self._run_command(["scancel", job.number], lenient=True)

    def _find_job(self, handle: Handle) -> _Job | None:
        """Return the job of a run, ended or not; None if Slurm does not list it."""
        return self._find_jobs([handle]).get(handle.job)

    def _find_jobs(self, handles: Sequence[Handle]) -> dict[str, _Job]:
        """Return the jobs of several runs by job name, ended or not; without those that Slurm does not list."""
        names, shape = ",".join(handle.job for handle in handles), "%j|%A|%T|%r|%S|%N"
        output = self._run_command(["squeue", "--noheader", "--states=all", f"--name={names}", f"--format={shape}"])
        jobs = {}
        for line in output.splitlines():
            name, number, state, reason, starts, hosts = line.split("|", 5)
            jobs[name] = _Job(number, state, reason, _parse_time(starts), _expand_hosts(hosts))
        return jobs

    def _check_time(self, request: Request) -> None:
        """Reject a time limit above the partition's: sbatch accepts such a job, but it would wait forever."""
        output = self._run_command(["sinfo", "--noheader", "--format=%P|%l", *self._partition_option()])
        for line in output.splitlines():
            name, _, limit = line.partition("|")
            most = _parse_minutes(limit)
            if (self.cluster.partition or name.endswith("*")) and most and (request.minutes or 0) > most:
                raise RequestRejected(f"{self.name} ends every run after {most} minutes. Request at most that.")

    def _partition_option(self) -> list[str]:
        return [f"--partition={self.cluster.partition}"] if self.cluster.partition else []

    def _run_command(self, command: list[str], *, refuses: bool = False, lenient: bool = False) -> str:
        """Run a Slurm command and return its output.

        Args:
            refuses: an error means that the request was rejected, unless it is about the connection.
            lenient: ignore errors; the job is already in the desired state.
        """
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_SECONDS)
        except FileNotFoundError as error:
            raise Unreachable(
                f"{command[0]} is not installed on this server, so {self.name} cannot be asked."
            ) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unreachable(f"{self.name} does not answer.") from error
        if done.returncode and not lenient:
            message = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
            message = re.sub(r"^\w+: (error: )?", "", message)
            if refuses and not any(word in message for word in ("contact", "onnect", "socket")):
                raise RequestRejected(f"{self.name} refuses: {message[:300]}.")
            raise Unreachable(f"{self.name} does not answer ({message[:300]}).")
        return done.stdout


def _job_status(job: _Job | None) -> JobStatus:
    """Convert a job's state to the status of its run."""
    if job is None:
        return JobStatus("gone")
    if job.state in _PENDING:
        return JobStatus("waiting", _WAITING.get(job.reason, f"Slurm says: {brief(job.reason)}."), job.starts)
    if job.state in _RUNNING:
        return JobStatus("running", nodes=job.hosts)
    return JobStatus("gone", _ENDS.get(job.state, ""))


def _count_gpus(gres: str) -> int:
    """Count the GPUs in a list of generic resources.

    The count is the last part of an entry; the type before it may begin with a digit.

    >>> _count_gpus("gpu:a100:4(IDX:0-3),tmpdisk:100"), _count_gpus("gpu:2"), _count_gpus("(null)")
    (4, 2, 0)
    >>> _count_gpus("gpu:2080ti:8"), _count_gpus("gpu:3090:4(S:0-1)"), _count_gpus("gpu:1g.10gb:7,gpu:a100:1")
    (8, 4, 8)
    """
    entries = re.findall(r"(?:^|,)gpu((?::[^:,()]+)*)", gres)
    numbers = [entry.rpartition(":")[2] for entry in entries]
    return sum(int(number) if number.isdecimal() else 1 for number in numbers)  # "gpu" or "gpu:a100" alone is one


def _parse_minutes(limit: str) -> int | None:
    """Parse a time limit of sinfo into minutes; None for no limit.

    >>> _parse_minutes("2:00"), _parse_minutes("1-00:00:00"), _parse_minutes("12:30:00"), _parse_minutes("infinite")
    (2, 1440, 750, None)
    """
    days, _, clock = limit.strip().rpartition("-")
    parts = clock.split(":")
    if not all(part.isdecimal() for part in parts):
        return None
    hours, minutes = (int(parts[0]), int(parts[1])) if len(parts) == 3 else (0, int(parts[0]))
    return int(days or 0) * 1440 + hours * 60 + minutes


def _parse_time(text: str) -> float | None:
    """Parse a time of squeue, in this machine's time zone; None for "N/A"."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _expand_hosts(names: str) -> tuple[str, ...]:
    """Expand squeue's list of hosts to one name per host.

    >>> _expand_hosts("n[1-3,7],login"), _expand_hosts("gpu-01"), _expand_hosts("a[08-10]"), _expand_hosts("")
    (('n1', 'n2', 'n3', 'n7', 'login'), ('gpu-01',), ('a08', 'a09', 'a10'), ())
    """
    hosts: list[str] = []
    for stem, ranges in re.findall(r"([^,\[]+)(?:\[([^\]]*)\])?", names.strip()):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if first.isdecimal() and (last or first).isdecimal() and len(hosts) < 1024:
                numbers = range(int(first), min(int(last or first), int(first) + 1023) + 1)
                hosts += [f"{stem}{number:0{len(first)}}" for number in numbers]
            else:
                hosts.append(f"{stem}{part}")
    return tuple(hosts)
