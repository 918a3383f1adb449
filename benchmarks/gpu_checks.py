"""The steps of `gpu.py` that test the CUDA path: against the CPU, across a resume, out of memory, in two processes."""

import importlib.metadata
import json
import os
import platform
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from gpu_job import Job, Result, picture, relative_difference, tiny, within


def environment(job: Job) -> Result:
    """Versions, device, and which optional packages are missing."""
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
    """Logits on the device equal those of the CPU, for every pooling type, with and without attention maps."""
    import torch

    figures = {}
    for pool in ("cls", "mean", "map"):
        ours, pixels = tiny(pool=pool), picture(count=3)
        with torch.inference_mode():
            expected = ours(pixels, output_attentions=True)
            ours.to(job.device)
            plain = ours(pixels.to(job.device))
            maps = ours(pixels.to(job.device), output_attentions=True)
        figures[f"{pool}: logits"] = relative_difference(plain.logits, expected.logits)
        figures[f"{pool}: logits with maps"] = relative_difference(maps.logits, expected.logits)
        figures[f"{pool}: maps"] = max(map(relative_difference, maps.attentions, expected.attentions))
    return within(figures, 1e-4)


def record(job: Job) -> Result:
    """A record's rows, rollout and logits on the device equal those of the CPU; its rows sum to one."""
    import torch

    from vit.explain.record import record as recorded

    ours, pixels = tiny(), picture()
    with torch.inference_mode():
        expected = recorded(ours, pixels)
        result = recorded(ours.to(job.device), pixels.to(job.device))
        sums = result.full(1).sum(-1)
        figures = {
            "logits": relative_difference(result.logits, expected.logits),
            "rows": max(
                relative_difference(result.full(block), expected.full(block)) for block in range(result.blocks)
            ),
            "rollout": relative_difference(result.rollout(0), expected.rollout(0)),
            "sum of a row": relative_difference(sums, torch.ones_like(sums)),
        }
    return within(figures, 1e-4)


def relevance(job: Job) -> Result:
    """Every class map on the device equals that of the CPU."""
    from vit.explain.relevance import legrad, relevance_record

    ours, pixels = tiny(), picture()
    expected, chosen = relevance_record(ours, pixels, 2), legrad(ours, pixels, 2)
    ours.to(job.device)
    result = relevance_record(ours, pixels.to(job.device), 2)
    figures = {
        "relevance": relative_difference(result.relevance(), expected.relevance()),
        "gradient rollout": relative_difference(result.gradient_rollout(), expected.gradient_rollout()),
        "attention x gradient": relative_difference(result.attention_gradient(), expected.attention_gradient()),
        "Grad-CAM": relative_difference(result.gradcam(), expected.gradcam()),
        "LeGrad": relative_difference(legrad(ours, pixels.to(job.device), 2), chosen),
    }
    return within(figures, 1e-3)


def small_config(job: Job, **settings: Any) -> Any:
    """Return the config of a small run on shapes, in exact float32."""
    from vit.training.presets import train_config

    few = dict(data="shapes", image_size=16, patch_size=4, dim=32, depth=2, heads=2, mlp_dim=64, limit=256)
    few |= dict(batch_size=64, epochs=4, device=job.device, precision="float32", optimizer="muon", dropout=0, ema=0.9)
    return train_config(**few | settings)


def trainer(config: Any, folder: Path, process: Any = None) -> Any:
    """Return a trainer whose head is not zero."""
    import torch

    from vit.training.distributed import set_up_process
    from vit.training.trainer import Trainer

    run = Trainer(config, folder, process or set_up_process(config))
    torch.set_float32_matmul_precision("highest")  # no TF32: the results are compared with the CPU
    head = run.update.model.head.weight
    with torch.no_grad():  # drawn on the CPU, because a GPU's generator returns other numbers
        head.copy_(0.1 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    run.update.model.train()
    return run


def first_batch(run: Any, count: int) -> tuple[Any, Any]:
    """Return the first training pictures of a run and their labels."""
    import torch

    return next(iter(run.data.train.batches(torch.arange(count), count, run.process.device)))


def step(job: Job) -> Result:
    """Gradients and loss of a batch equal those of the CPU; compiled steps lower the loss, with and without a graph."""
    import torch

    losses, gradients = [], []
    for device in ("cpu", job.device):
        run = trainer(small_config(job, device=device), job.out)
        images, labels = (part.to(run.process.device) for part in noise_batch(run))
        losses.append(run.update.gradients(run.data.normalise(images), labels))
        gradients.append(
            torch.cat([p.grad.flatten().cpu() for p in run.update.model.parameters() if p.grad is not None])
        )
    result = within(
        {
            "loss": relative_difference(losses[1], losses[0]),
            "gradients": relative_difference(gradients[1], gradients[0]),
        },
        1e-3,
    )
    traces = []
    for with_graph in (False, True):
        run = trainer(small_config(job, precision="auto", compile=not job.dry, epochs=50), job.out)
        if not with_graph:
            run.update.graphed = None
        images, labels = first_batch(run, 64)
        trace = []
        for _ in range(5 if job.dry else 30):
            trace.append(run.update.train_step(run.progress.step, images, labels, print)[0].item())
            run.progress.step += 1
        if not trace[-1] < trace[0]:
            raise AssertionError(f"The loss did not fall: {trace}")
        traces.append(trace)
    if relative_difference(torch.tensor(traces[1]), torch.tensor(traces[0])) > 1e-2:
        raise AssertionError(f"A CUDA graph changes the losses: {traces}")
    return result | {"loss": [round(trace[0], 4), round(trace[-1], 4)], "bfloat16": run.process.autocast}


def noise_batch(run: Any) -> tuple[Any, Any]:
    """Return the same 64 noise pictures for every device, independent of the order of a dataset."""
    import torch

    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (64, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return images, torch.arange(64) % len(run.data.classes)


def resume(job: Job) -> Result:
    """A run that is stopped and resumed on the same device ends with the weights of an uninterrupted one."""
    import torch

    from vit.checkpoints.load import load_checkpoint
    from vit.training.train import train

    torch.use_deterministic_algorithms(True, warn_only=True)
    config = small_config(job, epochs=2 if job.dry else 6, precision="auto")
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
    """Ask a run to stop after its first epoch."""
    while not (run / "checkpoints" / "state.pt").exists():
        time.sleep(0.005)
    (run / "stop").touch()


def memory(job: Job) -> Result:
    """A batch that does not fit into memory is computed in parts, with the gradient of the whole batch."""
    import torch

    size = (
        dict(batch_size=256) if job.dry else dict(batch_size=1024, limit=1100, dim=256, depth=6, heads=4, mlp_dim=1024)
    )
    config = small_config(job, ema=0.0, **size)
    plenty, scarce = (trainer(config, job.out) for _ in range(2))
    images, labels = first_batch(plenty, config.batch_size)
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
    else:  # a CPU does not raise OutOfMemoryError

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
    figures = {"weights after a step": max(relative_difference(one, other) for one, other in weights)}
    return within(figures, 1e-2) | {"parts": scarce.update.parts, "notes": notes, "simulated": job.device == "cpu"}


def processes(job: Job) -> Result:
    """Two processes on one device, with gloo, compute the same gradients as one process."""
    import torch
    import torch.multiprocessing as several

    with tempfile.TemporaryDirectory() as folder:
        several.spawn(half_batch, (job, folder), nprocs=2)
        shared = [torch.load(Path(folder) / f"{rank}.pt", weights_only=True) for rank in range(2)]
    run = trainer(small_config(job, optimizer="adamw", ema=0.0), job.out)
    images, labels = (part.to(run.process.device) for part in noise_batch(run))
    run.update.gradients(run.data.normalise(images), labels)
    alone = {
        name: parameter.grad for name, parameter in run.update.model.named_parameters() if parameter.grad is not None
    }
    figures = {
        "the two processes": max(relative_difference(shared[1][name], shared[0][name]) for name in alone),
        "against one": max(relative_difference(shared[0][name], gradient) for name, gradient in alone.items()),
    }
    return within(figures, 1e-3)


def half_batch(rank: int, job: Job, folder: str) -> None:
    """Compute half of a batch in its own process, and save the averaged gradient."""
    import torch
    import torch.distributed as dist

    from vit.training.distributed import Process

    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    if job.device.startswith("cuda"):
        torch.cuda.set_device(job.device)
    process = Process(torch.device(job.device), False, rank, 2)
    run = trainer(small_config(job, optimizer="adamw", ema=0.0), Path(folder), process)
    images, labels = (part[rank::2].to(job.device) for part in noise_batch(run))
    run.update.gradients(run.data.normalise(images), labels)
    gradients = {name: p.grad.cpu() for name, p in run.update.model.named_parameters() if p.grad is not None}
    torch.save(gradients, Path(folder) / f"{rank}.pt")
    process.any(False)  # wait until both are done
    # Drop the last reference to the process group first: its threads may abort the process otherwise.
    del run
    dist.destroy_process_group()
