"""Kill processes of real clusters on this machine; check that weights are bit-identical and the reported status true.

    python benchmarks/clusters.py ray|alone|slurm WHAT... [--kills 20] [--seed 0] [--minutes 5]

bits      a run on two machines against torchrun with two processes
kills     kill alternately one of the trainer's processes and one machine's daemon (Ray's raylet, Slurm's slurmd), at
          random moments; the daemon restarts half a minute later. Needs `bits`
outages   kill the scheduler (Ray's GCS, Slurm's slurmctld), alone and together with the watching process; on Ray the
          head's other processes are killed a minute later, and the head is restarted
answers   time to report a missing token, a wrong token, and no server; Ray only
limit     a run of several minutes under a time limit of two; Slurm only
speed     a run of several minutes against torchrun, two alternating rounds; Ray only. The cluster `alone` has one
          machine, so that the daemons of three machines do not share the two processors with the training;
          `--processes 1` leaves one processor to Ray

    python benchmarks/clusters.py both

Start six runs on two clusters side by side and print which runs wait, why, and until when.

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
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "engines")]

from labs import Lab, lab_ray, lab_slurm
from ray_cluster import RayCluster, enter_own_network
from short_runs import last_step, temporary_runs_folder, tiny

from vit.errors import UserError
from vit.runs import control, registry
from vit.runs.engines import watch
from vit.training.config import TrainConfig
from vit.training.metrics import read_metrics

LABS = {"ray": lab_ray, "alone": partial(lab_ray, alone=True), "slurm": lab_slurm}
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

    def until(
        self, run: registry.Run, good: Callable[[registry.Run], bool], within: float = PATIENCE, pause: float = 0.2
    ) -> registry.Run:
        """Wait until a run satisfies a condition, and return it.

        Args:
            pause: between two queries [s]; each takes processor time from the cluster.
        """
        before = time.monotonic()
        while not good(now := self.now(run)):
            if time.monotonic() - before > within:
                raise TimeoutError(f"{now.status}: {now.reason}")
            time.sleep(pause)
        return now

    def launch(self, config: TrainConfig = RUN, minutes: int | None = None) -> registry.Run:
        """Launch a run on both machines, or on the only one."""
        devices, nodes = (("cpu",) * self.options.processes, 1) if self.options.place == "alone" else (("cpu",), 2)
        return control.launch(config, on=self.lab.name, devices=devices, nodes=nodes, minutes=minutes)

    def finish(self, run: registry.Run, within: float = PATIENCE, pause: float = 0.2) -> tuple[str, str]:
        """Resume a run until it is finished; return how often as text, and the digest of its weights."""
        for resumed in range(4):
            ended = self.until(run, lambda now: not now.alive, within, pause)
            if ended.status == "finished":
                return f"resumed {resumed} times" if resumed else "by itself", digest(run.folder)
            control.resume(run.id)
        return f"{ended.status}: {ended.reason}", ""


def digest(folder: Path) -> str:
    """Return a digest of the final weights of a run."""
    return hashlib.sha256((folder / "checkpoints" / "last" / "model.safetensors").read_bytes()).hexdigest()[:16]


def torchrun(config: TrainConfig, folder: Path, processes: int = 2) -> float:
    """Run the same training on this machine, undisturbed; return its duration [s]."""
    folder.mkdir()
    (folder / "config.json").write_text(config.model_dump_json())
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += ["-m", "vit", "train", "--config", str(folder / "config.json"), "--run-dir", str(folder / "run")]
    begun = time.monotonic()
    subprocess.run(command, env=dict(os.environ) | {"OMP_NUM_THREADS": "1"}, check=True, capture_output=True, cwd=ROOT)
    return time.monotonic() - begun


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


def answers(site: Site) -> None:
    """Print each error message and the time until it arrives."""
    cluster = site.lab.cluster
    assert isinstance(cluster, RayCluster)
    token = cluster.token.read_text()

    def ask(what: str) -> None:
        begun = time.monotonic()
        try:
            site.lab.engine.capacity()
            said = "an answer"
        except UserError as error:
            said = str(error)
        took = time.monotonic() - begun
        begun = time.monotonic()
        watch.capacity(site.lab.name)
        say(f"answers: {what}: {said} {took:.2f} s; a page waits {(time.monotonic() - begun) * 1e3:.1f} ms")

    ask("all is well")
    cluster.token.unlink()
    ask("no token")
    cluster.token.write_text("0" * 64)
    ask("a wrong token")
    cluster.token.write_text(token)
    cluster.end()
    ask("nobody there")


def long(site: Site, dim: int = 32, depth: int = 2) -> TrainConfig:
    """Return the config of a run that takes `--minutes` on this machine, extrapolated from two shorter runs."""
    config = tiny(epochs=5, limit=400, seed=3, device="cpu", dim=dim, depth=depth)
    few, many = (
        torchrun(
            config.model_copy(update={"epochs": epochs}),
            site.folder / f"timed-{epochs}-{time.time()}",
            site.options.processes,
        )
        for epochs in (5, 25)
    )
    return config.model_copy(update={"epochs": round(60 * site.options.minutes / ((many - few) / 20))})


def limit(site: Site) -> None:
    """Check that a run queues again until it is finished, and that a cancelled run stays cancelled."""
    config = long(site)
    took = torchrun(config, site.folder / "long")
    begun = time.monotonic()
    run = site.launch(config, minutes=2)
    how, result = site.finish(run, 3600)
    same = result == digest(site.folder / "long" / "run")
    starts = [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "start"]
    say(f"limit: {config.epochs} epochs, torchrun {took:.0f} s; under a limit of two minutes {how} in {len(starts)}")
    say(f"  attempts and {time.monotonic() - begun:.0f} s, the same bits: {same}")
    run = site.launch(config, minutes=2)
    site.until(run, lambda now: last_step(now) > 80)
    control.kill(run.id)
    time.sleep(200)
    now = site.now(run)
    say(f"  cancelled: {now.status} after 200 s, {len(site.lab.processes(run))} processes")


def speed(site: Site) -> None:
    """Measure from first to last step and from launch to end, with a model of the size of `cifar10`."""
    config = long(site, dim=128, depth=6)
    for turn in (1, 2):
        alone = torchrun(config, site.folder / f"speed-{turn}", site.options.processes)
        begun = time.time()
        run = site.launch(config)
        site.finish(run, 3600, pause=10)  # rarely: the server usually runs on another machine
        whole = (run.folder / "outcome.json").stat().st_mtime - begun
        loops = [loop(folder) for folder in (site.folder / f"speed-{turn}" / "run", run.folder)]
        say(
            f"speed {turn}: whole {whole:.0f} s against torchrun's {alone:.0f} s, {whole / alone:.3f}; first to last"
            f" step {loops[1]:.1f} s against {loops[0]:.1f} s, {loops[1] / loops[0]:.3f}"
        )


def loop(folder: Path) -> float:
    """Return the time from the first recorded step to the last one [s]."""
    times = [record["t"] for record in read_metrics(folder / "metrics.jsonl") if record["kind"] == "step"]
    return times[-1] - times[0]


def both(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Start three runs on each cluster. Slurm's have a time limit, which lets it predict when a waiting run starts."""
    enter_own_network()
    labs: list[Lab] = []
    with temporary_runs_folder(folder / "runs"):
        try:
            texts = []
            for make in (lab_slurm, lab_ray):
                (folder / make.__name__).mkdir()
                labs.append(make(folder / make.__name__ / "runs", patch))
                texts.append((folder / make.__name__ / "clusters.toml").read_text())
            (folder / "clusters.toml").write_text("\n".join(texts))
            patch.setenv("VIT_CLUSTERS", str(folder / "clusters.toml"))
            runs = [
                control.launch(RUN, on=lab.name, nodes=nodes, minutes=10 if lab.name == "lab" else None)
                for nodes in (2, 1, 2)
                for lab in labs
            ]
            begun, seen = time.monotonic(), dict[str, list[str]]()
            while (result := [registry.find_run(run.id, patience=6) for run in runs]) and any(r.alive for r in result):
                for run in result:
                    expected = f", expected in {run.starts - time.time():.0f} s" if run.starts else ""
                    words = f"{run.status} {run.reason}{expected}" if run.status == "waiting" else run.status
                    seen.setdefault(run.id, [])
                    if not seen[run.id] or seen[run.id][-1].partition(": ")[2].split(",")[0] != words.split(",")[0]:
                        seen[run.id].append(f"{time.monotonic() - begun:.0f} s: {words}")
                assert time.monotonic() - begun < PATIENCE
                time.sleep(0.2)
            for run in result:
                say(f"{run.on} on {run.nodes}: {'; '.join(seen[run.id])}; {run.status}")
        finally:
            for lab in labs:
                if lab.end:
                    lab.end()


WHAT = {
    "bits": bits, "kills": kills, "outages": outages, "answers": answers, "limit": limit, "speed": speed,
}  # fmt: skip


def main() -> None:
    """Run the measurements and print a line for each observation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("place", choices=[*LABS, "both"], nargs="?")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=", ".join(WHAT))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--processes", type=int, default=2, choices=[1, 2], help="processes in `speed`")
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
    with pytest.MonkeyPatch.context() as patch:
        try:
            if options.place == "both":
                both(folder, patch)
                return
            with temporary_runs_folder(folder / "runs"):
                lab = LABS[options.place](folder / "runs", patch)
                try:
                    for name in options.what:
                        WHAT[name](Site(lab, folder, options))
                finally:
                    if lab.end:
                        lab.end()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
