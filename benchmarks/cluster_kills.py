"""Runs on a real cluster of this machine, in each something killed at a random moment: does it end with the same bits?

    python benchmarks/cluster_kills.py ray|apart|slurm [--kills 20] [--seed 0]

Kills in turn one of the trainer's processes and one of the machines (Ray's raylet, Slurm's slurmd), which comes back
half a minute later. A run that its cluster does not start again by itself is resumed, as a person would. Needs what
`make cluster` installs, and administrator rights.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "engines")]

from labs import Lab, lab_apart, lab_ray, lab_slurm
from short_runs import done, place_for_runs, tiny

from vit.runs import control, registry

LABS = {"ray": lab_ray, "apart": lab_apart, "slurm": lab_slurm}
RUN = tiny(epochs=12, limit=160, seed=3, device="cpu")  # 960 steps
STEPS = 960
PATIENCE = 300  # [s]


def digest(folder: Path) -> str:
    """Of the weights that a run ended with."""
    return hashlib.sha256((folder / "checkpoints" / "last" / "model.safetensors").read_bytes()).hexdigest()[:16]


def reference(folder: Path) -> str:
    """The same run by torchrun on this machine, undisturbed."""
    (folder / "config.json").write_text(RUN.model_dump_json())
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "vit", "train"]
    command = [
        sys.executable,
        "-m",
        *torchrun,
        "--config",
        str(folder / "config.json"),
        "--run-dir",
        str(folder / "run"),
    ]
    subprocess.run(command, env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, cwd=ROOT)
    return digest(folder / "run")


def kill_something(lab: Lab, run: registry.Run, machine: bool, chance: random.Random) -> str:
    """Returns what it was."""
    if not machine:
        trainers = [pid for pid in lab.processes(run) if "_job" not in Path(f"/proc/{pid}/cmdline").read_text()]
        pid = chance.choice(trainers)
        os.kill(pid, signal.SIGKILL)
        return "a process"
    number = chance.choice((1, 2))
    name = number if hasattr(lab.cluster, "start_head") else f"n{number}"
    lab.cluster.kill_node(name)  # type: ignore[union-attr,arg-type]
    threading.Timer(30, lab.cluster.start_node, [name]).start()  # type: ignore[union-attr]
    return f"machine {number}"


def wait(run: registry.Run, until: float) -> registry.Run:
    """The run at its end."""
    while (now := registry.find_run(run.id, patience=6)).alive:
        if time.monotonic() > until:
            raise TimeoutError(f"{now.status}: {now.reason}")
        time.sleep(0.5)
    return now


def main() -> None:
    """A line for each kill."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", choices=LABS)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, folder = random.Random(options.seed), Path(tempfile.mkdtemp(prefix="vit-kills-"))
    folder.chmod(0o755)
    expected, same = reference(folder), 0
    print(f"undisturbed, torchrun: {expected}", flush=True)
    with pytest.MonkeyPatch.context() as patch, place_for_runs(folder / "runs"):
        lab = LABS[options.place](folder / "runs", patch)
        try:
            for number in range(options.kills):
                begun = time.monotonic()
                run, step = control.launch(RUN, on=lab.name, nodes=2), chance.randrange(1, STEPS - 50)
                while done(run) < step:
                    time.sleep(0.02)
                    assert time.monotonic() - begun < PATIENCE, registry.find_run(run.id, patience=6)
                killed, resumed = kill_something(lab, run, number % 2 == 1, chance), 0
                ended = wait(run, begun + PATIENCE)
                while ended.status != "finished" and resumed < 3:
                    control.resume(run.id)
                    resumed += 1
                    ended = wait(run, begun + PATIENCE + 120 * resumed)
                found = digest(run.folder)
                same += found == expected
                how = f"resumed {resumed} times" if resumed else "by itself"
                took = time.monotonic() - begun
                print(
                    f"{number + 1:>3} {killed:<10} at step {step:>4}: {ended.status} {how}, {found}, {took:.0f} s",
                    flush=True,
                )
                time.sleep(max(0.0, 32 - took))
            left = [run.id for run in registry.list_runs(patience=6) if lab.processes(run)]
            print(f"{same} of {options.kills} with the same bits; processes left of {len(left)} runs")
        finally:
            if lab.end:
                lab.end()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
