"""Everything that needs a GPU, in steps: tests of the CUDA path, speed, and the training of presets.

    python benchmarks/gpu.py --out results                            # as many steps as nine minutes hold
    python benchmarks/gpu.py --out results --data folder:data/cifar10 --photos folder:data/imagenette   # what is left
    python benchmarks/gpu.py --out results --dry                      # here, on the CPU, tiny: a minute or two

A step is a process of its own. It leaves `results/<step>.json`: outcome, seconds, and figures or the traceback; the
next step runs whether or not it failed. A step that has its result is not repeated, except with `--again`. Training
goes on from its last state at each call until it has ended. `results/home` holds what to take along from a machine that
is given back: `summary.md`, the records, and the best weights of each run in float16, in parts of 15 MB:
`cat run-cifar.safetensors.* > model.safetensors` puts them together.

A bare machine needs torch 2.11, torchvision 0.26 and pydantic. timm is compared with where it is installed. Run one
training at a time: two that decode pictures at once starved each other of the processor on the one machine tried.
"""

import argparse
import importlib.metadata
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
from gpu_training import Unfinished, cifar, everyday, ladder, photos, streaming  # found by the line above

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before CUDA begins: products that repeat bit by bit

MINUTES = 9.0  # of one call
LEAST = 20.0  # [s] that have to be left for another step to begin
ALONE = 8  # [s] kept for the summary and what is taken home
PART_BYTES = 15_000_000


class Job(NamedTuple):
    """What a step is told.

    Attributes:
        device: "cuda:0", or "cpu" where it is tried.
        dry: tiny sizes, to see that it runs.
        out: the folder of results; a step may have a folder of its own there.
        data: of the training of `cifar`.
        photos: of the training of `photos`.
        everyday, backbone: data of the training of `everyday`, and the checkpoint that it starts from.
        seconds: that this process may take.
    """

    device: str
    dry: bool
    out: Path
    data: str
    seconds: float
    photos: str = ""
    everyday: str = ""
    backbone: str = ""


Result = dict[str, Any]


def tiny(**changes: Any) -> Any:
    """A model with every parameter random: zeros, as it starts with, would hide errors."""
    import torch

    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    sizes = dict(image_size=(32, 32), patch_size=8, num_classes=5, dim=64, depth=3, heads=2, mlp_dim=128)
    model = VisionTransformer(ViTConfig(**sizes | changes))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1.5 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(noise * scale + (parameter.ndim == 1))
    return model.eval()


def apart(one: Any, other: Any) -> float:
    """The largest difference between two tensors, relative to the largest number of the second."""
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-12))


def within(figures: dict[str, float], most: float) -> Result:
    """The figures, if none is above what is allowed."""
    worse = {name: value for name, value in figures.items() if not value <= most}
    if worse:
        raise AssertionError(f"More than {most:g} apart from the CPU: {worse}")
    return {"relative difference": figures, "allowed": most}


def wait_for(device: str) -> None:
    """Until the device has done what it was told."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def picture(side: int = 32, count: int = 1) -> Any:
    """Normalised noise (count, 3, side, side), the same each time."""
    import torch

    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))


# --- Tests of the CUDA path -----------------------------------------------------------------------------------------


def environment(job: Job) -> Result:
    """Versions, device, and which of our optional packages are missing."""
    import torch
    import torchvision

    facts: Result = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": torchvision.__version__,
        "cuda": torch.version.cuda,
        "cpu": f"{os.cpu_count()} x {platform.processor() or platform.machine()}",
        "Muon": hasattr(torch.optim, "Muon"),
        "torch.cpu.get_capabilities": hasattr(torch.cpu, "get_capabilities"),
    }
    packages = ("pydantic", "tqdm", "tensorboard", "safetensors", "matplotlib", "timm", "numpy", "pillow", "triton")
    for package in packages:
        try:
            facts[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            facts[package] = None
    if job.device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info()
        facts["gpu"] = torch.cuda.get_device_name()
        facts["memory"] = f"{free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        facts["bfloat16"] = torch.cuda.is_bf16_supported(including_emulation=False)
    return facts


def model(job: Job) -> Result:
    """Logits on the device are those of the CPU, for every pool, with maps and without."""
    import torch

    figures = {}
    for pool in ("cls", "mean", "map"):
        ours, pixels = tiny(pool=pool), picture(count=3)
        with torch.inference_mode():
            expected = ours(pixels, output_attentions=True)
            ours.to(job.device)
            plain = ours(pixels.to(job.device))
            maps = ours(pixels.to(job.device), output_attentions=True)
        figures[f"{pool}: logits"] = apart(plain.logits, expected.logits)
        figures[f"{pool}: logits with maps"] = apart(maps.logits, expected.logits)
        figures[f"{pool}: maps"] = max(map(apart, maps.attentions, expected.attentions))
    return within(figures, 1e-4)


def record(job: Job) -> Result:
    """A record's rows, rollout and logits on the device are those of the CPU; its rows sum to one."""
    import torch

    from vit.explain.record import record as recorded

    ours, pixels = tiny(), picture()
    with torch.inference_mode():
        expected = recorded(ours, pixels)
        result = recorded(ours.to(job.device), pixels.to(job.device))
        sums = result.full(1).sum(-1)
        figures = {
            "logits": apart(result.logits, expected.logits),
            "rows": max(apart(result.full(block), expected.full(block)) for block in range(result.blocks)),
            "rollout": apart(result.rollout(0), expected.rollout(0)),
            "sum of a row": apart(sums, torch.ones_like(sums)),
        }
    return within(figures, 1e-4)


def relevance(job: Job) -> Result:
    """Every map of a class on the device is that of the CPU."""
    from vit.explain.relevance import legrad, relevance_record

    ours, pixels = tiny(), picture()
    expected, chosen = relevance_record(ours, pixels, 2), legrad(ours, pixels, 2)
    ours.to(job.device)
    result = relevance_record(ours, pixels.to(job.device), 2)
    figures = {
        "relevance": apart(result.relevance(), expected.relevance()),
        "gradient rollout": apart(result.gradient_rollout(), expected.gradient_rollout()),
        "attention x gradient": apart(result.attention_gradient(), expected.attention_gradient()),
        "Grad-CAM": apart(result.gradcam(), expected.gradcam()),
        "LeGrad": apart(legrad(ours, pixels.to(job.device), 2), chosen),
    }
    return within(figures, 1e-3)


def described(job: Job, **settings: Any) -> Any:
    """A small run on shapes, in float32 and exact."""
    from vit.training.presets import train_config

    few = dict(data="shapes", image_size=16, patch_size=4, dim=32, depth=2, heads=2, mlp_dim=64, limit=256)
    few |= dict(batch_size=64, epochs=4, device=job.device, precision="float32", optimizer="muon", dropout=0, ema=0.9)
    return train_config(**few | settings)


def trainer(config: Any, folder: Path, process: Any = None) -> Any:
    """The parts of a run, with a head that is not zero."""
    import torch

    from vit.training.distributed import set_up_process
    from vit.training.trainer import Trainer

    run = Trainer(config, folder, process or set_up_process(config))
    torch.set_float32_matmul_precision("highest")  # what is compared with the CPU is not rounded to TF32
    head = run.update.model.head.weight
    with torch.no_grad():  # drawn on the CPU: a GPU's generator gives other numbers
        head.copy_(0.1 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    run.update.model.train()
    return run


def some(run: Any, count: int) -> tuple[Any, Any]:
    """The first training pictures of a run and their labels."""
    import torch

    return next(iter(run.data.train.batches(torch.arange(count), count, run.process.device)))


def step(job: Job) -> Result:
    """Gradients and loss of a batch are those of the CPU; a step in the device's own precision lowers the loss."""
    import torch

    losses, gradients = [], []
    for device in ("cpu", job.device):
        run = trainer(described(job, device=device), job.out)
        images, labels = (part.to(run.process.device) for part in some_on_cpu(run))
        losses.append(run.update.gradients(run.data.normalise(images), labels))
        gradients.append(
            torch.cat([p.grad.flatten().cpu() for p in run.update.model.parameters() if p.grad is not None])
        )
    result = within({"loss": apart(losses[1], losses[0]), "gradients": apart(gradients[1], gradients[0])}, 1e-3)
    run = trainer(described(job, precision="auto", compile=not job.dry, epochs=50), job.out)
    images, labels = some(run, 64)
    trace = []
    for _ in range(5 if job.dry else 30):
        trace.append(run.update.train_step(run.progress.step, images, labels, print)[0].item())
        run.progress.step += 1
    if not trace[-1] < trace[0]:
        raise AssertionError(f"The loss did not fall: {trace}")
    return result | {"loss": [round(trace[0], 4), round(trace[-1], 4)], "bfloat16": run.process.autocast}


def some_on_cpu(run: Any) -> tuple[Any, Any]:
    """The same 64 pictures, whichever the device: noise, so that no order of a dataset matters."""
    import torch

    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (64, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return images, torch.arange(64) % len(run.data.classes)


def resume(job: Job) -> Result:
    """A run that is stopped in the middle and resumed on the same device ends with the weights of one that was not."""
    import torch

    from vit.checkpoints.load import load_checkpoint
    from vit.training.train import train

    torch.use_deterministic_algorithms(True, warn_only=True)
    config = described(job, epochs=2 if job.dry else 6, precision="auto")
    with tempfile.TemporaryDirectory() as folder:
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        train(config, whole)
        watch = threading.Thread(target=stop_after_an_epoch, args=(cut,), daemon=True)
        watch.start()
        train(config, cut)
        begun = sum('"start"' in line for line in (cut / "metrics.jsonl").read_text().splitlines())
        first = json.loads((cut / "outcome.json").read_text())["outcome"]
        if first == "stopped":
            train(config, cut, resume=True)
        ends = [load_checkpoint(run / "checkpoints" / "last").model.state_dict() for run in (whole, cut)]
    largest = max(float((ends[0][name] - ends[1][name]).abs().max()) for name in ends[0])
    if largest:
        raise AssertionError(f"The weights differ by up to {largest:g}.")
    return {"weights": "equal to the last bit", "first attempt": first, "attempts before": begun}


def stop_after_an_epoch(run: Path) -> None:
    """Ask a run to end once its first epoch is recorded."""
    while not (run / "checkpoints" / "state.pt").exists():
        time.sleep(0.005)
    (run / "stop").touch()


def memory(job: Job) -> Result:
    """A batch that does not fit is computed in parts, with the gradient of the whole."""
    import torch

    size = (
        dict(batch_size=256) if job.dry else dict(batch_size=1024, limit=1100, dim=256, depth=6, heads=4, mlp_dim=1024)
    )
    config = described(job, ema=0.0, **size)
    plenty, scarce = (trainer(config, job.out) for _ in range(2))
    images, labels = some(plenty, config.batch_size)
    inputs = plenty.data.normalise(images)
    plenty.update.gradients(inputs, labels)
    forward = scarce.update.logits
    if job.device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_reserved()
        scarce.update.gradients(inputs, labels)
        most = torch.cuda.max_memory_reserved() - before  # about 2 GB
        for parameter in scarce.update.model.parameters():
            parameter.grad = None
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(job.device).total_memory
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 0.7 * most) / total)
    else:  # a CPU's memory does not end in this way

        def limited(part: Any) -> Any:
            if len(part) > 100:
                raise torch.OutOfMemoryError("simulated")
            return forward(part)

        scarce.update.logits = limited
    notes: list[str] = []
    scarce.update.train_step(scarce.progress.step, images, labels, notes.append)
    if job.device.startswith("cuda"):
        torch.cuda.set_per_process_memory_fraction(1.0)
    plenty.update.train_step(plenty.progress.step, images, labels, notes.append)
    weights = zip(scarce.update.model.parameters(), plenty.update.model.parameters(), strict=True)
    if scarce.update.parts == 1:
        raise AssertionError("The batch fitted after all: nothing was tested.")
    figures = {"weights after a step": max(apart(one, other) for one, other in weights)}
    return within(figures, 1e-2) | {"parts": scarce.update.parts, "notes": notes, "simulated": job.device == "cpu"}


def processes(job: Job) -> Result:
    """Two processes on one device, over gloo, take the step that one takes."""
    import torch
    import torch.multiprocessing as several

    with tempfile.TemporaryDirectory() as folder:
        several.spawn(one_of_two, (job, folder), nprocs=2)
        shared = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    run = trainer(described(job, optimizer="adamw", ema=0.0), job.out)
    images, labels = (part.to(run.process.device) for part in some_on_cpu(run))
    run.update.gradients(run.data.normalise(images), labels)
    alone = {
        name: parameter.grad for name, parameter in run.update.model.named_parameters() if parameter.grad is not None
    }
    figures = {
        "the two processes": max(apart(shared[1][name], shared[0][name]) for name in alone),
        "against one": max(apart(shared[0][name], gradient) for name, gradient in alone.items()),
    }
    return within(figures, 1e-3)


def one_of_two(rank: int, job: Job, folder: str) -> None:
    """Half of a batch in a process of its own; leaves the gradient that both agreed on."""
    import torch
    import torch.distributed as dist

    from vit.training.distributed import Process

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    if job.device.startswith("cuda"):
        torch.cuda.set_device(job.device)
    process = Process(torch.device(job.device), False, rank, 2)
    run = trainer(described(job, optimizer="adamw", ema=0.0), Path(folder), process)
    images, labels = (part[rank::2].to(job.device) for part in some_on_cpu(run))
    run.update.gradients(run.data.normalise(images), labels)
    gradients = {name: p.grad.cpu() for name, p in run.update.model.named_parameters() if p.grad is not None}
    torch.save(gradients, Path(folder) / f"{rank}.pt")
    process.any(False)  # both are done
    del run  # the group ends with the last that refers to it, and its threads with it: they may abort what ends before
    dist.destroy_process_group()


# --- Speed ----------------------------------------------------------------------------------------------------------


def speed(job: Job) -> Result:
    """Pictures per second of three of our training loops, against the tutorial's and one like timm's train.py."""
    import numpy as np
    import torch
    import train_speed

    device, result = torch.device(job.device), {}
    sizes = {
        "tintn": (32, 256, 10_000, "tintn"),
        "cifar": (32, 512, 10_000, "cifar"),
    }
    if job.dry:
        sizes = {"tintn": (32, 32, 64, "tintn")}
    for name, (side, batch, count, preset) in sizes.items():
        dice = np.random.default_rng(0)
        arrays = dice.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
        labels = dice.integers(0, 10, count)
        settings: dict[str, Any] = {"batch_size": batch, "image_size": side}
        if job.dry:
            settings["compile"] = False
        loops: dict[str, Callable[[], Iterator[None]]] = {
            "ours": partial(train_speed.our_steps, arrays, labels, job.device, settings, preset),
            "tutorial": partial(train_speed.tutorial_steps, arrays, labels, device, batch, name),
            "timm-like": partial(train_speed.timm_steps, arrays, labels, device, batch, name),
        }
        figures: dict[str, float] = {}
        for loop, begin in loops.items():  # each by itself, or its workers would prepare batches while another is timed
            steps = begin()
            discarded, seconds = (1, 0.0) if job.dry else (24, 4.0)  # what was prepared while the model was compiled
            train_speed.timed(steps, discarded, device, batch)
            count, begun = 0, time.perf_counter()
            while not count or time.perf_counter() - begun < seconds:
                next(steps)
                count += 1
            wait_for(job.device)
            figures[loop] = count * batch / (time.perf_counter() - begun)
            steps.close()
        result[name] = {f"{loop} [pictures/s]": round(value, 1) for loop, value in figures.items()}
        result[name] |= {
            f"ours / {loop}": round(figures["ours"] / figures[loop], 2) for loop in ("tutorial", "timm-like")
        }
    return result | {
        "model of timm's loop": "timm" if train_speed.timm_model("tintn", 32) is not None else "ours: timm is missing"
    }


def masks(job: Job) -> Result:
    """Drops behind masks and the map fitted to them are those of the CPU; how long 256 masks of ViT-B/16 take."""
    import torch

    from vit.explain.sensitivity import random_masks, removal_map, score_drops
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    ours, pixels = tiny(), picture()
    some = random_masks(16, 64)
    expected = score_drops(ours, pixels, 2, some), removal_map(ours, pixels, 2)
    ours.to(job.device)
    result = score_drops(ours, pixels.to(job.device), 2, some), removal_map(ours, pixels.to(job.device), 2)
    figures = {"drops": apart(result[0], expected[0]), "removal map": apart(result[1], expected[1])}
    side = 32 if job.dry else 224
    config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
    network, pixels = VisionTransformer(config).to(job.device).eval(), picture(side).to(job.device)
    several, seconds = random_masks(math.prod(config.grid), 256), []
    for _ in range(3):
        begun = time.perf_counter()
        score_drops(network, pixels, 3, several)
        wait_for(job.device)
        seconds.append(time.perf_counter() - begun)
    return within(figures, 1e-3) | {"256 masks [s]": round(min(seconds), 4), "torch": torch.__version__}


def forward(job: Job) -> Result:
    """Time and memory of one picture through ViT-B/16, plain and with a record of every row of attention."""
    import torch

    from vit.explain.record import record as recorded
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    result: Result = {}
    for side in (32, 64) if job.dry else (224, 512, 1024):
        config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
        network, pixels = VisionTransformer(config).to(job.device).eval(), picture(side).to(job.device)
        ways: dict[str, Callable[[], Any]] = {
            "plain": lambda network=network, pixels=pixels: network(pixels),
            "record": lambda network=network, pixels=pixels: recorded(network, pixels),
        }
        result[f"{side} px"] = figures = {}
        with torch.inference_mode():
            for way, run in ways.items():
                for _ in range(3):
                    run()
                wait_for(job.device)
                times = []
                if job.device.startswith("cuda"):
                    torch.cuda.reset_peak_memory_stats()
                    before = torch.cuda.memory_allocated()
                for _ in range(3 if job.dry else 20):
                    begun = time.perf_counter()
                    run()
                    wait_for(job.device)
                    times.append(time.perf_counter() - begun)
                figures[f"{way} [ms]"] = round(1e3 * statistics.median(times), 2)
                if job.device.startswith("cuda"):
                    figures[f"{way} [MB]"] = round((torch.cuda.max_memory_allocated() - before) / 1e6, 1)
            figures["record / plain"] = round(figures["record [ms]"] / figures["plain [ms]"], 2)
    return result


def ablation(job: Job) -> Result:
    """Every head of ViT-B/16 knocked out by itself, in batches, against one pass for each head."""
    import torch

    from vit.explain.head_ablation import importance, without
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    side = 32 if job.dry else 224
    config = ViTConfig.preset("tintn" if job.dry else "B/16", image_size=(side, side), num_classes=10)
    network, pixels = VisionTransformer(config).eval(), picture(side).to(job.device)
    with torch.no_grad():
        torch.nn.init.normal_(network.head.weight, std=0.1)
    network.to(job.device)
    heads = [(block, head) for block in range(config.depth) for head in range(config.heads)]

    def one_by_one() -> Any:
        whole = network(pixels).logits[0, 3]
        return torch.stack([whole - network(pixels, hook=without([head])).logits[0, 3] for head in heads])

    figures, answers = {}, {}
    with torch.inference_mode():
        for way, run in {"in batches": lambda: importance(network, pixels, 3), "one by one": one_by_one}.items():
            run()
            wait_for(job.device)
            begun = time.perf_counter()
            answers[way] = run().flatten()
            wait_for(job.device)
            figures[f"{way} [s]"] = round(time.perf_counter() - begun, 4)
    difference = apart(answers["in batches"], answers["one by one"])
    if not difference < 1e-2:
        raise AssertionError(f"Both ways differ by {difference:g}.")
    ratio = figures["one by one [s]"] / figures["in batches [s]"]
    return figures | {"heads": len(heads), "times as fast": round(ratio, 1), "relative difference": difference}


STEPS: dict[str, Callable[[Job], Result]] = {
    found.__name__: found
    for found in (
        environment, model, record, relevance, step, resume, memory, processes, masks, forward, ablation, ladder,
        streaming, speed, cifar, everyday, photos,
    )
}  # fmt: skip


# --- One after the other --------------------------------------------------------------------------------------------


def do(name: str, job: Job) -> None:
    """Do one step in this process and leave its result."""
    begun = time.perf_counter()
    told: Result = {"step": name, "device": job.device, "dry": job.dry}
    try:
        told |= {"outcome": "passed", "result": STEPS[name](job)}
    except Unfinished as more:
        told |= {"outcome": "unfinished", "result": str(more)}
    except BaseException as error:
        told |= {"outcome": "failed", "result": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    told["seconds"] = round(time.perf_counter() - begun, 1)
    leave(job.out / f"{name}.json", told)


def leave(path: Path, told: Result) -> None:
    """Write a result whole."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(told, indent=2, default=str) + "\n")
    partial.replace(path)


def earlier_result(out: Path, name: str) -> Result:
    """What a step left; an empty result if it has not been done."""
    try:
        return dict(json.loads((out / f"{name}.json").read_text()))
    except (OSError, ValueError):
        return {}


def summary(out: Path) -> str:
    """All results for people."""
    lines = ["# What the GPU said", "", "| Step | Outcome | Seconds |", "| --- | --- | --- |"]
    results = [earlier_result(out, name) | {"step": name} for name in STEPS]
    lines += [f"| {r['step']} | {r.get('outcome', 'not done')} | {r.get('seconds', '')} |" for r in results]
    for result in results:
        if "result" in result:
            text = result.get("traceback") or json.dumps(result["result"], indent=2)
            lines += ["", f"## {result['step']}", "", STEPS[result["step"]].__doc__ or "", "", "```", text, "```"]
    return "\n".join(lines) + "\n"


@contextmanager
def limited(name: str, seconds: float, options: argparse.Namespace) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does one step, ended with all of its own when its time is up."""
    command = [sys.executable, __file__, "--only", name, "--out", str(options.out), "--data", options.data]
    command += ["--photos", options.photos, "--everyday", options.everyday, "--backbone", options.backbone]
    command += ["--seconds", str(seconds), "--device", options.device] + ["--dry"] * options.dry
    with (options.out / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()


def run_all(options: argparse.Namespace) -> None:
    """Do the steps that are left, while there is time, and tell."""
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes - ALONE
    for name in options.step or STEPS:
        before = earlier_result(options.out, name)
        if before.get("outcome") in ("passed", "failed") and not options.again:
            continue
        seconds = until - time.monotonic()
        if seconds < LEAST:
            print(f"{name}: left for the next call", flush=True)
            continue
        (options.out / f"{name}.json").unlink(missing_ok=True)
        with limited(name, seconds, options) as process:
            try:
                process.wait(seconds)
                words = f"It ended with status {process.returncode}. {name}.log holds what it said."
                told: Result = {"outcome": "failed", "result": words, "seconds": None}
            except subprocess.TimeoutExpired:  # with the whole of a call to itself, it would not end either
                whole = seconds > 60 * options.minutes * 0.9
                words = f"It was cut off after {seconds:.0f} s."
                told = {"outcome": "failed" if whole else "unfinished", "result": words, "seconds": round(seconds)}
        result = earlier_result(options.out, name)
        if not result:
            leave(options.out / f"{name}.json", told | {"step": name})
        result = result or told
        sentence = str(result["result"])[:200].replace("\n", " ") if result["outcome"] != "passed" else ""
        print(f"{name}: {result['outcome']}, {result['seconds']} s  {sentence}".rstrip(), flush=True)
    (options.out / "summary.md").write_text(summary(options.out))
    collect(options.out)
    print(options.out / "summary.md")


def collect(out: Path) -> None:
    """Put what is to be taken home into a few files of at most 15 MB: see the top of this file."""
    home = out / "home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    shutil.copy(out / "summary.md", home)
    with tarfile.open(home / "records.tar.gz", "w:gz") as archive:
        for path in sorted(out.rglob("*")):
            if path.suffix in (".json", ".jsonl", ".log", ".md") and home not in path.parents:
                archive.add(path, path.relative_to(out))
    for run in sorted(out.glob("run-*")):
        weights = run / "checkpoints" / "best" / "model.safetensors"
        if weights.exists():
            content = in_half(weights)
            for number, start in enumerate(range(0, len(content), PART_BYTES)):
                (home / f"{run.name}.safetensors.{number}").write_bytes(content[start : start + PART_BYTES])


def in_half(weights: Path) -> bytes:
    """A file of weights in float16."""
    from safetensors.torch import load_file, save

    return bytes(save({name: tensor.half() for name, tensor in load_file(weights).items()}))


def main() -> None:
    """Do all steps, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of results")
    parser.add_argument("--data", default="cifar10", help="of the training: cifar10, or folder:PATH")
    parser.add_argument("--photos", default="", help="of the training on photos: folder:PATH")
    parser.add_argument("--everyday", default="", help="of the training on everyday things: folder:PATH")
    parser.add_argument("--backbone", default="", help="checkpoint that this training starts from")
    parser.add_argument("--dry", action="store_true", help="tiny, on the CPU")
    parser.add_argument("--step", action="append", choices=STEPS, help="this one only; may be given several times")
    parser.add_argument("--again", action="store_true", help="also what has been done")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of this call")
    parser.add_argument("--device", default="", help="cuda:0, or cpu with --dry")
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=math.inf, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.device = options.device or ("cpu" if options.dry else "cuda:0")
    if options.device.startswith("cuda"):
        import torch

        if not torch.cuda.is_available():
            parser.error("torch sees no GPU here. Try the steps with --dry.")
    if options.only:
        names = ("device", "dry", "out", "data", "seconds", "photos", "everyday", "backbone")
        do(options.only, Job(**{name: getattr(options, name) for name in names}))
    else:
        run_all(options)


if __name__ == "__main__":
    main()
