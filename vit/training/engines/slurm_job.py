"""The main program of a run's Slurm job, on its first node: starts the trainer on all nodes, and requeues the job.

    python -m vit.training.engines.slurm_job RUN JOB

Slurm sends USR1 when the time limit is near: the trainer saves and exits, and the job is requeued. On TERM, which
scancel and preemption send, the trainer saves and exits. When a person stops the run, the job is not requeued.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vit.training.engines.contract import claim_job, end_when_replaced, mark_ended
from vit.training.loop.run_folder import read_json
from vit.training.runs.attempts import train_until_done

_RANK = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'


def main(folder: Path, name: str) -> None:
    """Train the run in `folder` until it is done or the job's time limit is near."""
    handle, number = claim_job(folder, name), os.environ["SLURM_JOB_ID"]
    if handle is None:
        return
    for leftover in ("outcome.json", "heartbeat"):  # of the previous attempt, which the time limit ended
        (folder / leftover).unlink(missing_ok=True)
    job = _Job(folder, number)
    for which in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(which, job.forward_signal)
    end_when_replaced(handle, job.cancel)
    train_until_done(folder, job.train_once)
    if job.limit and read_json(folder / "outcome.json").get("outcome") == "stopped" and not (folder / "stop").exists():
        print("The time limit is near: saved, and back into the queue.", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # requeueing sends TERM
        if subprocess.run(["scontrol", "requeue", number], check=False).returncode == 0:
            time.sleep(600)  # Slurm kills this process in the meantime
    mark_ended(handle)


class _Job:
    """Runs the trainer's processes as Slurm job steps.

    Attributes:
        limit: whether the time limit is near.
        step: index of the current step; each start of the trainer is a step.
    """

    def __init__(self, folder: Path, number: str):
        self.folder, self.number = folder, number
        self.limit, self.step = False, -1

    def forward_signal(self, signal_number: int, _: Any) -> None:
        """Forward a signal to the trainer, which saves and exits."""
        self.limit = signal_number == signal.SIGUSR1
        subprocess.run(["scancel", "--signal=TERM", f"{self.number}.{self.step}"], check=False, capture_output=True)

    def cancel(self) -> None:
        """Kill the job and prevent its requeueing."""
        subprocess.run(["scontrol", "update", f"JobId={self.number}", "Requeue=0"], check=False)
        subprocess.run(["scancel", "--signal=KILL", "--full", self.number], check=False)

    def train_once(self) -> int | None:
        """Run the trainer on all nodes; returns the exit status of the first process that failed."""
        self.step += 1
        hosts = subprocess.run(
            ["scontrol", "show", "hostnames", os.environ["SLURM_JOB_NODELIST"]],
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        rendezvous = {
            "MASTER_ADDR": os.environ.get("VIT_MASTER_ADDR", hosts[0]),
            "MASTER_PORT": str(20000 + int(self.number) % 10000),
        }
        trainer = [sys.executable, "-m", "vit", "train", "--resume", str(self.folder)]
        step = subprocess.Popen(
            ["srun", "--kill-on-bad-exit=1", "bash", "-c", _RANK, "-", *trainer],
            env=dict(os.environ) | rendezvous,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that only `forward_signal` forwards signals, and only once
        )
        return step.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
