"""What grows with the number of processes and of runs, measured piece by piece on one machine.

    python benchmarks/scale.py [--ranks 512] [--runs 1000]

1. Ranks: so many processes do to one run's folder what the processes of a run do (count themselves to it, write to its
   log), without torch. How long until all are counted, and until nobody is once they are killed.
2. Watching: so many runs of a cluster, each with the records of a long one. What one look at all of them takes, and
   one page's table; what an engine is asked for it.
3. The state: bytes for each number that a model learns.
4. Reading: pictures that one processor decodes and scales in a second, JPEGs of ImageNet's usual size.
5. Plans: what follows from 3 and 4 for ImageNet-1k on many GPUs, by arithmetic (docs/scale.md says what is assumed).
"""

import argparse
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


from vit.files import is_locked
from vit.images.decode import decode_image
from vit.images.preprocess import Preprocess
from vit.runs import registry
from vit.runs.engines import contract, factory
from vit.runs.engines.clusters import Cluster
from vit.runs.engines.contract import Capacity, Handle, Look, Request, Share
from vit.training.presets import train_config

RANK = """
import sys, time
from pathlib import Path
from vit.training.run_folder import hold_run
folder = Path(sys.argv[1])
with hold_run(folder), (folder / "log.txt").open("ab", buffering=0) as log:
    log.write(b"counted\\n")
    time.sleep(3600)
"""
PLANS = {  # parameters, products of one forward pass (multiplied and added), machines of 8 GPUs, pictures of a step
    "ViT-B/16": (86.6e6, 17.6e9, 8, 4096),
    "ViT-g/14": (1136e6, 292e9, 64, 16384),
}
GPU = 0.4 * 989e12  # [operations/s] an H100 in bfloat16, of which two fifths are used
NETWORK = {"eight cards of 400 Gb/s": 8 * 50e9, "one card of 100 Gb/s": 12.5e9}  # [bytes/s] of a machine
STORAGE = 2e9  # [bytes/s] that one process writes
TRAIN, VALIDATION, JPEG = 1_281_167, 50_000, 110e3  # ImageNet-1k: pictures, and bytes of one
TOGETHER = 500  # validation pictures that one process classifies at once
RECORDS = 20_000  # of a long run: 400,000 steps, one in twenty of them recorded
asked = 0


class Counting(contract.Engine):
    """An engine that answers at once and counts how often it is asked."""

    def __init__(self, cluster: Cluster):
        self.name = cluster.name

    def capacity(self) -> Capacity:
        """One machine."""
        return Capacity(1, Share(1, 1), Share(0, 0))

    def submit(self, folder: Path, request: Request) -> Handle:
        """Nothing is submitted."""
        raise NotImplementedError

    def look(self, handle: Handle) -> Look:
        """Every run runs."""
        global asked
        asked += 1
        return Look("running", nodes=("n1",))

    def ask_to_stop(self, folder: Path) -> None:
        """Nothing is asked."""

    def kill(self, handle: Handle) -> None:
        """Nothing is killed."""


def ranks(count: int, folder: Path) -> None:
    """Processes that count themselves to one run."""
    run = folder / "20261123-000000-ranks-0000"
    run.mkdir()
    begun = time.perf_counter()
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT), "VIT_ENGINE": "simulated"}
    command = [sys.executable, "-c", RANK, str(run)]
    processes = [subprocess.Popen(command, env=environment) for _ in range(count)]
    log = run / "log.txt"
    while not log.exists() or log.read_bytes().count(b"\n") < count:
        time.sleep(0.05)
    started = time.perf_counter() - begun
    begun = time.perf_counter()
    for process in processes:
        process.send_signal(signal.SIGKILL)
    while is_locked(run / "alive.lock"):
        time.sleep(0.01)
    gone = time.perf_counter() - begun
    for process in processes:
        process.wait()
    files = sum(1 for path in run.rglob("*") if path.is_file())
    print(
        f"{count} ranks: all counted after {started:.1f} s (their starts among it), the run over {gone:.2f} s after a"
    )
    print(f"  SIGKILL of all; {files} files in the folder, whatever their number")


def watching(count: int, folder: Path) -> None:
    """Looks at many runs of a cluster."""
    runs = folder / "shared"
    runs.mkdir()
    (folder / "clusters.toml").write_text(f'[clusters.lab]\nkind = "counting"\nruns = "{runs}"\n')
    os.environ |= {"VIT_CLUSTERS": str(folder / "clusters.toml"), "VIT_RUNS": str(folder / "here")}
    factory.KINDS["counting"] = Counting
    record = {"kind": "step", "loss": 2.3025, "lr": 0.001, "t": time.time(), "attempt": 0, "pictures_per_second": 900.0}
    records = "".join(json.dumps(record | {"step": 20 * i}) + "\n" for i in range(RECORDS))
    first = runs / "20261123-000000-run-0000"
    for number in range(count):
        run = runs / f"20261123-000000-run-{number:04x}"
        run.mkdir()
        (run / "config.json").write_text(train_config("cifar").model_dump_json())
        (run / "about.json").write_text(json.dumps({"name": f"run {number}", "created": time.time()}))
        (run / "heartbeat").write_text('{"doing": "training", "share": null, "step": 400000}')
        if run == first:
            (run / "metrics.jsonl").write_text(records)
        else:
            os.link(first / "metrics.jsonl", run / "metrics.jsonl")
        handle = contract.next_handle(run, "lab")._replace(submitted=time.time() - 3600)
        contract.write_handle(handle, Request())
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        result = registry.list_runs()
        times.append(time.perf_counter() - begun)
    assert len(result) == count
    begun, before = time.perf_counter(), asked
    while asked - before < count:
        registry.list_runs()
    print(
        f"{count} runs: a look at all of them takes {median(times) * 1e3:.0f} ms ({times[0] * 1e3:.0f} the first time);"
    )
    print(f"  what the engine says of each of them was there after {time.perf_counter() - begun:.1f} s")


def state(folder: Path) -> float:
    """Bytes of what a run saves, for each number that it learns."""
    config = train_config(None, data="shapes", image_size=32, patch_size=8, dim=192, depth=6, heads=3, mlp_dim=768)
    config = config.model_copy(update={"limit": 64, "batch_size": 64, "epochs": 1, "ema": 0.999, "device": "cpu"})
    (folder / "config.json").write_text(config.model_dump_json())
    run = folder / "run"
    command = [sys.executable, "-m", "vit", "train", "--config", str(folder / "config.json"), "--run-dir", str(run)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    model = torch.load(run / "checkpoints" / "state.pt", weights_only=True)
    best = (run / "checkpoints" / "best" / "model.safetensors").stat().st_size
    params = best / 4
    size = (run / "checkpoints" / "state.pt").stat().st_size
    print(f"State: {size / params:.1f} bytes for each of {params:,.0f} numbers ({', '.join(sorted(model))});")
    print("  a checkpoint 4, of which there are two")
    return size / params


def reading(count: int = 200) -> float:
    """Soft noise of 500 x 375 pixels, as large a file as ImageNet's mean."""
    torch.set_num_threads(1)
    coarse = torch.randint(0, 256, (47, 63, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    fine = torch.randint(-40, 40, (375, 500, 3), generator=torch.Generator().manual_seed(1))
    soft = torch.from_numpy(np.array(Image.fromarray(coarse.numpy()).resize((500, 375), Image.Resampling.BICUBIC)))
    picture, file = Image.fromarray((soft + fine).clamp(0, 255).to(torch.uint8).numpy()), io.BytesIO()
    for quality in range(95, 5, -5):
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=quality)
        if file.tell() <= 115_000:
            break
    preprocess, begun = Preprocess((224, 224)), time.perf_counter()
    for _ in range(count):
        preprocess.input_image(decode_image(file.getvalue()))
    each = (time.perf_counter() - begun) / count
    print(f"Reading: {1 / each:.0f} JPEGs of {file.tell() / 1e3:.0f} kB a second and processor, scaled to 224 pixels")
    return 1 / each


def plan(name: str, state_bytes: float, decoded: float) -> None:
    """What a run would ask of machines, network and storage, at the speed that its GPUs could have.

    Args:
        state_bytes: for each number that is learnt.
        decoded: pictures a second and processor.
    """
    params, products, machines, batch = PLANS[name]
    gpus, forward = 8 * machines, GPU / (2 * products)
    speed = forward / 3  # pictures/s of one GPU: a backward pass is two forward ones
    print(f"{name} on {machines} x 8 GPUs, {batch:,} pictures a step: {gpus * speed:,.0f} pictures/s, an epoch")
    print(f"  {TRAIN / gpus / speed:.1f} s, a step {batch / gpus / speed * 1e3:.0f} ms; a machine reads", end=" ")
    print(f"{8 * speed * JPEG / 1e9:.2f} GB/s and decodes with {8 * speed / decoded:.0f} processors;")
    for network, bandwidth in NETWORK.items():
        print(f"  gradients {2 * (machines - 1) / machines * 4 * params / bandwidth * 1e3:.1f} ms ({network});")
    saved = (state_bytes + 8) * params
    print(
        f"  a save {saved / 1e9:.1f} GB, {saved / STORAGE:.1f} s by one process; {20 * params / 1e9:.1f} GB of", end=" "
    )
    print("weights, gradients, moments and average on each GPU;")
    shared = -(-VALIDATION // TOGETHER // gpus) * TOGETHER
    print(
        f"  validation of two models {2 * VALIDATION / forward:.1f} s by one GPU, {2 * shared / forward:.2f} s by all"
    )


def main() -> None:
    """All five."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--runs", type=int, default=1000)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="vit-scale-"))
    try:
        for name in ("ranks", "watching", "state"):
            (folder / name).mkdir()
        ranks(options.ranks, folder / "ranks")
        watching(options.runs, folder / "watching")
        state_bytes, decoded = state(folder / "state"), reading()
        for name in PLANS:
            plan(name, state_bytes, decoded)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
