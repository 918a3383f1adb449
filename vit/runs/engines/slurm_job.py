"""What a run's batch script does on the first of its machines: starts the trainer on all of them, and queues again.

    python -m vit.runs.engines.slurm_job RUN JOB

Slurm sends USR1 when the time limit is near: the trainer then saves and ends, and the job goes back into the queue. On
TERM, which scancel and pre-emption send, it saves and ends. A person's stop ends the run for good.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vit.runs.attempts import train_to_the_end
from vit.runs.engines.contract import claim_job, end_when_replaced, mark_over
from vit.training.run_folder import read_json

_RANK = 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; exec "$@"'


def main(folder: Path, name: str) -> None:
    """Train the run in `folder` until it is done, or the job's time is."""
    handle, number = claim_job(folder, name), os.environ["SLURM_JOB_ID"]
    if handle is None:
        return
    for leftover in ("outcome.json", "heartbeat"):  # of an attempt that the time limit ended
        (folder / leftover).unlink(missing_ok=True)
    job = _Job(folder, number)
    for which in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(which, job.hear)
    end_when_replaced(handle, job.cancel)
    train_to_the_end(folder, job.train_once)
    if job.limit and read_json(folder / "outcome.json").get("outcome") == "stopped" and not (folder / "stop").exists():
        print("The time limit is near: saved, and back into the queue.", flush=True)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # which the requeueing sends
        if subprocess.run(["scontrol", "requeue", number], check=False).returncode == 0:
            time.sleep(600)  # until Slurm ends this attempt
    mark_over(handle)


class _Job:
    """The trainer's processes as one of Slurm's steps.

    Attributes:
        limit: whether the time limit is near.
        step: number of the present step; each start of the trainer is one.
    """

    def __init__(self, folder: Path, number: str):
        self.folder, self.number = folder, number
        self.limit, self.step = False, -1

    def hear(self, signal_number: int, _: Any) -> None:
        """Pass a signal on to the trainer, which saves and ends."""
        self.limit = signal_number == signal.SIGUSR1
        subprocess.run(["scancel", "--signal=TERM", f"{self.number}.{self.step}"], check=False, capture_output=True)

    def cancel(self) -> None:
        """End the job for good, without a word."""
        subprocess.run(["scontrol", "update", f"JobId={self.number}", "Requeue=0"], check=False)
        subprocess.run(["scancel", "--signal=KILL", "--full", self.number], check=False)

    def train_once(self) -> int | None:
        """Run the trainer on all machines; returns the exit status of the first process that failed."""
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
            start_new_session=True,  # a signal for this process is passed on once, by `hear`
        )
        return step.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
