"""The batch script of a run for sbatch: requested resources and the program to start.

It starts `vit.training.engines.slurm_job` on the job's first node.

Source: https://slurm.schedmd.com/sbatch.html
"""

import shlex

from vit.training.engines.clusters import Cluster
from vit.training.engines.contract import Handle, Request
from vit.training.loop.run_folder import ENGINE

SCRIPT = "job.sh"  # in a run's folder


def batch_script(cluster: Cluster, handle: Handle, request: Request) -> str:
    """Return the batch script of a run."""
    folder = handle.folder
    short = request.minutes is not None and request.minutes <= 5
    options = {
        "job-name": handle.job,
        "comment": f"vit: {folder}",
        "output": str(folder / "log.txt"),
        "open-mode": "append",
        "partition": cluster.partition,
        "nodes": str(request.nodes),
        "ntasks-per-node": str(len(request.devices)),
        "cpus-per-task": str(cluster.cpus),
        "gres": f"gpu:{len(request.devices)}" if request.gpus else "",
        "time": "" if request.minutes is None else str(request.minutes),
        "signal": f"B:USR1@{45 if short else 120}",  # [s] before the time limit; USR1, because scancel sends TERM
    }
    variables = {ENGINE: "slurm", "OMP_NUM_THREADS": str(cluster.cpus), "PYTHONUNBUFFERED": "1"}
    if cluster.code:
        variables["PYTHONPATH"] = str(cluster.code)
    lines = ["#!/bin/bash", *(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items() if value)]
    lines += ["#SBATCH --requeue", *cluster.setup]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    program = [cluster.python, "-m", "vit.training.engines.slurm_job", str(folder), handle.job]
    lines += [f"exec {shlex.join(program)}"]
    return "\n".join(lines) + "\n"
