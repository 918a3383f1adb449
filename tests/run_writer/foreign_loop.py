"""A foreign training loop on a tiny model of timm, and the records of its run."""

from pathlib import Path

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn

import vit
from vit.training.loop.metrics import MetricsReader, Record
from vit.training.other_loops.run_writer import RunWriter
from vit.training.runs import registry

CLASSES = ("apple", "bus", "cat")
STEPS = 3  # of an epoch
INPUT = vit.Preprocess((32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2))


def pictures() -> list[Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (9, 40, 48, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def new_model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", **sizes, num_classes=3, drop_rate=0.1, drop_path_rate=0.2)


def train(
    model: nn.Module, writer: RunWriter | None, epochs: int = 3, accuracy: tuple[float, ...] = (0.4, 0.8, 0.6)
) -> None:
    """Run a loop with dropout that evaluates after each epoch."""
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(12, 3, 32, 32, generator=generator), torch.arange(12) % 3
    optimizer, step = torch.optim.AdamW(model.parameters(), 1e-3), 0
    for epoch in range(1, epochs + 1):
        model.train()
        for place in range(STEPS):
            chosen = slice(4 * place, 4 * place + 4)
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if writer:
                writer.log_step(step, loss=loss, lr=1e-3)
        if writer:
            writer.log_epoch(epoch, model, val_loss=1 / epoch, val_accuracy=accuracy[epoch - 1])


def records_of(folder: Path) -> dict[str, list[Record]]:
    reader = MetricsReader(folder / "metrics.jsonl")
    reader.update()
    assert not reader.problem
    return reader.records


def notes(folder: Path) -> list[str]:
    return [record["text"] for record in records_of(folder).get("note", [])]


def run_of(writer: RunWriter) -> registry.Run:
    assert writer.folder
    return registry.find_run(writer.folder.name)
