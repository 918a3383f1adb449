"""The steps of `gpu.py` that train: presets and the ladder."""

import json
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import torch
from gpu_job import Job, Result

from vit.checkpoints.load import load_checkpoint
from vit.training.loop.distributed import set_up_process
from vit.training.loop.ladder import RUNGS, rung_config
from vit.training.loop.metrics import read_metrics
from vit.training.loop.presets import train_config
from vit.training.loop.probe import without_training
from vit.training.loop.train import train
from vit.training.loop.trainer import Trainer


class Unfinished(Exception):
    """Raised by a step that continues in the next call; the message states its progress."""


def cifar(job: Job) -> Result:
    """Train preset `cifar`, over several calls if needed; the best checkpoint and its card are in `run-cifar`."""
    return trained(job, "cifar", job.data)


def photos(job: Job) -> Result:
    """Train preset `photos` on a folder of photos, like `cifar`; the best checkpoint is in `run-photos`."""
    if not (job.photos or job.dry):
        raise AssertionError("--photos names no folder of photos.")
    return trained(job, "photos", job.photos)


def trained(job: Job, preset: str, data: str) -> Result:
    """Train a preset, or resume the run of an earlier call."""
    run = job.out / f"run-{preset}"
    small: dict[str, Any] = dict(dim=32, depth=1, heads=2, mlp_dim=32)
    few = small | dict(data="shapes", epochs=2, limit=64, batch_size=32, compile=False)
    config = train_config(preset, **{"data": data, "device": job.device} | (few if job.dry else {}))
    # Leaves time for a step, a save and the card.
    alarm = threading.Timer(max(job.seconds - 60, 1), lambda: (run / "stop").touch())
    if not job.dry:
        alarm.daemon = True
        alarm.start()
    reached = train(config, run, resume=(run / "checkpoints" / "state.pt").exists())
    alarm.cancel()
    outcome = json.loads((run / "outcome.json").read_text())
    if outcome["outcome"] == "stopped":
        raise Unfinished(outcome["reason"])
    records = read_metrics(run / "metrics.jsonl")
    epochs = [record for record in records if record["kind"] == "validation"]
    card = (run / "checkpoints" / "best" / "README.md").read_text()
    return {
        "accuracy on test pictures": reached.test.accuracy if reached.test else None,
        "accuracy on validation pictures": reached.validation.accuracy if reached.validation else None,
        "epochs": len(epochs),
        "minutes of training": round(epochs[-1]["seconds"] / 60, 1),
        "card": card,
    }


def ladder(job: Job) -> Result:
    """Train every rung of the ladder; frozen weights must not change, and no rung may end below the probe."""
    start = "cifar10"
    config = train_config(
        "fine-tune", data="shapes", init_from=start, device=job.device, epochs=1 if job.dry else 10,
        limit=100 if job.dry else 2000,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        run = Trainer(config, Path(folder), set_up_process(config))
        begun = time.perf_counter()
        first = without_training(run.update.model, run.data, run.process.device)
        figures: dict[str, Any] = {name: {"validation": round(one.accuracy, 4)} for name, one in first.items()}
        figures["seconds without training"] = round(time.perf_counter() - begun, 2)
        before = load_checkpoint(start).model.state_dict()
        for name in ("lora", "last", "all"):
            begun = time.perf_counter()
            result = train(rung_config(config, name), Path(folder) / name)
            assert result.validation and result.test
            figures[name] = {
                "validation": round(result.validation.accuracy, 4),
                "test": round(result.test.accuracy, 4),
                "seconds": round(time.perf_counter() - begun, 1),
            }
            if result.validation.accuracy < first["probe"].accuracy - 1e-6:
                raise AssertionError(f"{RUNGS[name].title} ends below its probe: {figures}")
            after = load_checkpoint(Path(folder) / name / "checkpoints" / "last").model.state_dict()
            frozen = {"lora": ("blocks.0.mlp", "patch_embed", "pos_embed"), "last": ("blocks.0", "patch_embed")}
            for key, value in before.items():
                if key.startswith(frozen.get(name, ("-",))) and not torch.equal(value, after[key]):
                    raise AssertionError(f"{key} is frozen in {name}, and has changed.")
    return figures
