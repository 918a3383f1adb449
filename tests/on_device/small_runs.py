"""Small runs on noise, in exact float32, that compare training on a real device with the CPU."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import Process, set_up_process
from vit.training.loop.presets import train_config
from vit.training.loop.trainer import Trainer

FEW: dict[str, Any] = dict(
    data="shapes", image_size=16, patch_size=4, dim=32, depth=2, heads=2, mlp_dim=64, limit=256, batch_size=64,
    epochs=4, precision="float32", optimizer="muon", dropout=0, ema=0.9,
)  # fmt: skip


def small_config(**settings: Any) -> TrainConfig:
    return train_config(**FEW | settings)


def trainer_of(config: TrainConfig, folder: Path, process: Process | None = None) -> Trainer:
    """Return a trainer whose head is not zero."""
    run = Trainer(config, folder, process or set_up_process(config))
    torch.set_float32_matmul_precision("highest")  # no TF32: the results are compared with the CPU
    head = run.update.model.head.weight
    with torch.no_grad():  # drawn on the CPU, because a GPU's generator returns other numbers
        head.copy_(0.1 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0)))
    run.update.model.train()
    return run


def noise_batch(run: Trainer) -> tuple[Tensor, Tensor]:
    """Return the same 64 noise pictures for every device, independent of the order of a dataset."""
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (64, 3, 16, 16), generator=generator, dtype=torch.uint8)
    return images, torch.arange(64) % len(run.data.classes)


def first_batch(run: Trainer, count: int) -> tuple[Tensor, Tensor]:
    """Return the first training pictures of a run and their labels, on its device."""
    return next(iter(run.data.train.batches(torch.arange(count), count, run.process.device)))


def gradients(run: Trainer, images: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient of a batch of pictures, flattened, on the CPU."""
    device = run.process.device
    run.update.gradients(run.data.normalise(images.to(device)), labels.to(device))
    return torch.cat([p.grad.flatten().cpu() for p in run.update.model.parameters() if p.grad is not None])
