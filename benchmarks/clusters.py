"""Kill processes of real clusters on this machine; check that weights are bit-identical and the reported status true.

    python benchmarks/clusters.py ray|slurm WHAT... [--kills 20] [--seed 0]

bits      a run on two machines against torchrun with two processes
kills     kill alternately one of the trainer's processes and one machine's daemon (Ray's raylet, Slurm's slurmd), at
          random moments; the daemon restarts half a minute later. Needs `bits`
outages   kill the scheduler (Ray's GCS, Slurm's slurmctld), alone and together with the watching process; on Ray the
          head's other processes are killed a minute later, and the head is restarted

If a cluster does not restart a run itself, the script resumes it, as a person would. It needs what `make cluster`
installs, and root, because it runs in a network namespace of its own.
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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "training" / "engines")]

from labs import Lab, lab_ray, lab_slurm
from ray_cluster import RayCluster
from short_runs import last_step, temporary_runs_folder, tiny

from vit.training.loop.config import TrainConfig
from vit.training.runs import control, registry

LABS = {"ray": lab_ray, "slurm": lab_slurm}
RUN = tiny(epochs=12, limit=160, seed=3, device="cpu")  # 960 steps
STEPS = 960
LONGER = tiny(epochs=60, limit=160, seed=3, device="cpu")
PATIENCE = 300  # timeout [s]
TRUE = 90  # deadline for a correct status [s]


class Site(NamedTuple):
    """A cluster, and a folder on this machine."""

    lab: Lab
    folder: Path
    options: argparse.Namespace

    def now(self, run: registry.Run) -> registry.Run:
        """Return the run with the status that its cluster reports now."""
        return registry.find_run(run.id, patience=6)

    def until(self, run: registry.Run, good: Callable[[registry.Run], bool], within: float = PATIENCE) -> registry.Run:
        """Wait until a run satisfies a condition, and return it."""
        before = time.monotonic()
        while not good(now := self.now(run)):
            if time.monotonic() - before > within:
                raise TimeoutError(f"{now.status}: {now.reason}")
            time.sleep(0.2)
        return now

    def launch(self, config: TrainConfig = RUN) -> registry.Run:
        """Launch a run on both machines."""
        return control.launch(config, on=self.lab.name, devices=("cpu",), nodes=2)

    def finish(self, run: registry.Run) -> tuple[str, str]:
        """Resume a run until it is finished; return how often as text, and the digest of its weights."""
        for resumed in range(4):
            ended = self.until(run, lambda now: not now.alive)
            if ended.status == "finished":
                return f"resumed {resumed} times" if resumed else "by itself", digest(run.folder)
            control.resume(run.id)
        return f"{ended.status}: {ended.reason}", ""


def digest(folder: Path) -> str:
    """Return a digest of the final weights of a run."""
    return hashlib.sha256((folder / "checkpoints" / "last" / "model.safetensors").read_bytes()).hexdigest()[:16]


def torchrun(config: TrainConfig, folder: Path) -> None:
    """Run the same training in two processes on this machine, undisturbed."""
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", "vit", "train", "--config", str(folder / "config.json"), "--run-dir", str(folder / "run")]
    subprocess.run(command, env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, cwd=ROOT)


def say(text: str) -> None:
    """Print a line without buffering."""
    print(text, flush=True)


# --- Measurements ---------------------------------------------------------------------------------------------------


def bits(site: Site) -> None:
    """Compare the weights with torchrun's, which are also the reference of the other measurements."""
    torchrun(RUN, site.folder / "reference")
    expected = digest(site.folder / "reference" / "run")
    how, result = site.finish(site.launch())
    say(f"bits: torchrun {expected}, {site.lab.name} on two machines {result} ({how}): {result == expected}")


def kill_something(site: Site, run: registry.Run, machine: bool, chance: random.Random) -> str:
    """Kill a trainer process or a machine's daemon; return which."""
    lab = site.lab
    if not machine:
        trainers = [pid for pid in lab.processes(run) if "_job" not in Path(f"/proc/{pid}/cmdline").read_text()]
        os.kill(chance.choice(trainers), signal.SIGKILL)
        return "a process"
    number = chance.choice((1, 2))
    name = number if isinstance(lab.cluster, RayCluster) else f"n{number}"
    lab.cluster.kill_node(name)  # type: ignore[union-attr,arg-type]
    threading.Timer(30, lab.cluster.start_node, [name]).start()  # type: ignore[union-attr]
    return f"machine {number}"


def kills(site: Site) -> None:
    """Kill something in each of several runs, resume them, and compare their weights with the reference."""
    chance, same, count = random.Random(site.options.seed), 0, site.options.kills
    expected = digest(site.folder / "reference" / "run")
    for number in range(count):
        begun = time.monotonic()
        run, step = site.launch(), chance.randrange(1, STEPS - 50)
        site.until(run, lambda now, step=step: now.step >= step or last_step(now) >= step)  # type: ignore[misc]
        killed = kill_something(site, run, number % 2 == 1, chance)
        how, result = site.finish(run)
        same += result == expected
        took = time.monotonic() - begun
        say(f"kills {number + 1:>3} {killed:<10} at step {step:>4}: {how}, {result}, {took:.0f} s")
        time.sleep(max(0.0, 32 - took))
    left, ended = registry.list_runs(patience=6), time.monotonic()
    while (left := [run for run in left if site.lab.processes(run)]) and time.monotonic() - ended < TRUE:
        time.sleep(1)
    say(f"kills: {same} of {count} with the same bits; runs with processes left: {len(left)}")


def outages(site: Site) -> None:
    """Kill the scheduler, check the reported status, restart the scheduler, and compare the weights."""
    torchrun(LONGER, site.folder / "longer")
    expected, cluster = digest(site.folder / "longer" / "run"), site.lab.cluster
    assert cluster is not None
    for together in (False, True):
        if together:  # the process that starts and watches the run is killed at the same moment
            program = [sys.executable, __file__, "--launch", site.lab.name]
            with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as watcher:
                assert watcher.stdout is not None
                run = registry.find_run(watcher.stdout.readline().strip())
                site.until(run, lambda now: last_step(now) > 80)
                down(site)
                watcher.kill()
        else:
            run = site.launch(LONGER)
            site.until(run, lambda now: last_step(now) > 80)
            down(site)
        begun = time.monotonic()
        silent = site.until(run, lambda now: now.status in ("unknown", "interrupted"), TRUE)
        say(f"outages{' together' if together else ''}: {silent.status} after {time.monotonic() - begun:.1f} s:")
        say(f"  {silent.reason}")
        time.sleep(70)  # raylets exit after a minute without their head
        if isinstance(cluster, RayCluster):
            cluster.kill_head()
            cluster.start_head()
            for number in (1, 2):
                if not cluster.raylets(number):
                    say(f"  machine {number} had given up, and is started again")
                    cluster.start_node(number)
        else:
            cluster.start_controller()
        begun = time.monotonic()
        back = site.until(run, lambda now: now.status != "unknown", TRUE)
        say(f"  it is back: {back.status} after {time.monotonic() - begun:.1f} s. {back.reason}")
        how, result = site.finish(run)
        begun = time.monotonic()
        while (left := site.lab.processes(run)) and time.monotonic() - begun < TRUE:
            time.sleep(0.2)
        say(f"  {how}, the same bits: {result == expected}")
        say(f"  {len(left)} of its processes are left {time.monotonic() - begun:.1f} s after that")


def down(site: Site) -> None:
    """Kill the scheduler."""
    cluster = site.lab.cluster
    assert cluster is not None
    pids = cluster.processes("gcs_server" if isinstance(cluster, RayCluster) else "slurmctld")
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


WHAT = {"bits": bits, "kills": kills, "outages": outages}


def main() -> None:
    """Run the measurements and print a line for each observation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", choices=LABS, nargs="?")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.what) - set(WHAT):
        parser.error(f"{', '.join(unknown)}: choose from {', '.join(WHAT)}")
    if options.launch:
        say(control.launch(LONGER, on=options.launch, nodes=2).id)
        time.sleep(3600)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Ended."))  # set only after the cluster has started
    folder = Path(tempfile.mkdtemp(prefix="vit-clusters-"))
    folder.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, temporary_runs_folder(folder / "runs"):
        lab = LABS[options.place](folder / "runs", patch)
        try:
            for name in options.what:
                WHAT[name](Site(lab, folder, options))
        finally:
            if lab.end:
                lab.end()
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
