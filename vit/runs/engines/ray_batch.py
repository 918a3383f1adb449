"""The driver of a measurement on a Ray cluster: Ray Data distributes its parts to processes that hold the model.

    python -m vit.runs.engines.ray_batch FOLDER JOB CPUS

Submitted by `vit.runs.engines.ray`. If a process dies, Ray replaces it and reassigns its part.
"""

import os
import sys
from pathlib import Path
from typing import Any

from vit.errors import UserError
from vit.runs.batch import cluster_dry_run, parts, worker
from vit.runs.engines.contract import claim_job, mark_ended, read_request
from vit.runs.engines.ray_job import note
from vit.training.run_folder import record_outcome


class Worker:
    """A worker process on the cluster."""

    def __init__(self, folder: str):
        self.folder = Path(folder)
        with (self.folder / "log.txt").open("ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        self.work = parts.read_measurement(self.folder).opened()

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Compute the parts with these numbers."""
        for number in batch["part"].tolist():
            if not parts.path_of(self.folder, number).exists() and not (self.folder / "stop").exists():
                parts.write_part(self.folder, number, self.work.part(number))
        return batch


def _dry_run(folder: str) -> None:
    """Do a dry run on a node of the cluster."""
    worker.main(Path(folder), 0, 1)


def main(folder: Path, job: str, cpus: int) -> None:
    """Compute the missing parts, or do a dry run if one was requested."""
    import ray  # noqa: PLC0415 # Ray is installed on clusters only
    from ray.data import ActorPoolStrategy  # noqa: PLC0415

    handle = claim_job(folder, job)
    if handle is None:
        return
    request = read_request(folder)
    needs = f"a process with {cpus} processors{' and a GPU' if request.gpus else ''}"
    note(handle, "waiting", f"It starts when {handle.engine_name} has room for {needs}.")
    try:
        if (folder / cluster_dry_run.REQUEST).exists():
            attempt = ray.remote(num_cpus=cpus, num_gpus=1 if request.gpus else 0, max_retries=0)(_dry_run)
            ray.get(attempt.remote(str(folder)))
            return
        work = parts.read_measurement(folder).opened()
        parts.write_plan(folder, work)
        missing = sorted(set(range(work.parts)) - parts.done(folder))
        if missing:
            numbers = ray.data.from_items([{"part": number} for number in missing], override_num_blocks=len(missing))
            workers = min(request.workers, len(missing))
            for _ in numbers.map_batches(
                Worker,
                fn_constructor_args=(str(folder),),
                batch_size=1,
                compute=ActorPoolStrategy(min_size=1, max_size=workers),
                num_cpus=cpus,
                num_gpus=1 if request.gpus else 0,
            ).iter_batches(batch_size=1):
                note(handle, "running")
    except UserError as error:
        record_outcome(folder, "failed", str(error))
    finally:
        mark_ended(handle)


if __name__ == "__main__":
    from vit.runs.engines import ray_batch  # Ray pickles functions of "__main__" by value, of modules by name

    ray_batch.main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
