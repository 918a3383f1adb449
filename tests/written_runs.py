"""Write run folders as training leaves them, without training."""

import json
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from tiny import LABELS, TINY, fill

from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import model_config
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.training.runs import control

EPOCHS, STEPS = 4, 50


def write_run(
    folder: Path,
    name: str,
    outcome: str = "finished",
    reason: str = "",
    done: int = EPOCHS,
    probes: bool = False,
    search: str = "",
    test: Mapping[str, Any] = MappingProxyType({}),
    **config: Any,
) -> str:
    """Write a run of four epochs of 50 steps, of a tiny model with five classes.

    Args:
        folder: folder of runs.
        outcome: "" for a run in progress.
        done: number of finished epochs.
        probes: whether the attention of each epoch is stored.
        test: further fields of the test record.
        config: settings.

    Returns:
        The run's id.
    """
    run = folder / control.new_id(name)
    run.mkdir()
    start = time.time() - 100
    settings = TrainConfig(epochs=EPOCHS, **config)
    (run / "config.json").write_text(settings.model_dump_json())
    about = {"name": name, "notes": "", "owner": "", "search": search, "created": start, "devices": ["cpu"]}
    (run / "about.json").write_text(json.dumps(about))
    records: list[dict[str, Any]] = [
        {"kind": "start", "step": 0, "total_steps": EPOCHS * STEPS, "steps_per_epoch": STEPS, "epochs": EPOCHS}
        | {"validation_pictures": 10, "test_pictures": 8}
    ]
    for step in range(10, done * STEPS + 1, 10):
        records.append({"kind": "step", "step": step, "loss": 2 / step, "lr": 1e-3, "pictures_per_second": 500.0})
        if step % STEPS == 0:
            epoch = step // STEPS
            result = {"step": step, "epoch": epoch, "accuracy": 0.5 + epoch / 10}
            records.append({"kind": "validation", "loss": 1.0} | result)
            if epoch == EPOCHS:
                records.append({"kind": "test", "loss": 1.0} | result | {"accuracy": 0.875, "pictures": 8} | test)
    lines = [json.dumps(record | {"t": start + record["step"] / 10, "attempt": 0}) for record in records]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "log.txt").write_text("Epoch 1 of 4: <b>fine</b>\n")
    (run / "alive.lock").touch()
    if outcome:
        (run / "outcome.json").write_text(json.dumps({"outcome": outcome, "reason": reason}))
    model = fill(VisionTransformer(model_config(settings, len(LABELS))))
    save_checkpoint(run / "checkpoints" / "best", model, LABELS, Preprocess((32, 32)), facts={"accuracy": 0.9})
    (run / "checkpoints" / "state.pt").touch()
    if probes:
        images = torch.zeros(3, 3, 32, 32, dtype=torch.uint8)
        writer = SnapshotWriter(run / "probes", images, [0, 1, 2], LABELS, Preprocess((32, 32)))
        for epoch in range(1, done + 1):
            writer.store(epoch, fill(VisionTransformer(ViTConfig(**TINY)), epoch))
    return run.name
