"""Compare the training throughput of this project's loop with a tutorial's loop, or with timm's.

    python benchmarks/train_speed.py            # CPU: two cores, the size of tintn's tutorial
    python benchmarks/train_speed.py --device cuda
    python benchmarks/train_speed.py --against timm --size Ti/8 --side 96 --batch 64 --set compile=false

The tutorial's side does what tintn's vision-transformer-from-scratch does: pictures are augmented one by one in a
DataLoader with two workers, each head has its own Linear layers, GELU is written as a formula, and the loss is read
back after every step. timm's side does what its train.py does, with timm's model; both sides crop and flip the same
pictures, smooth labels and use AdamW in the same precision. The sides alternate, so that other load on the machine
affects both.
"""

import argparse
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import Tensor, nn
from torch.utils import data
from torchvision import transforms

sys.path.insert(0, str(Path(__file__).parents[1]))

from vit.data.datasets import Dataset
from vit.data.pictures import InMemoryPictures
from vit.model.config import ViTConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.presets import train_config
from vit.training.loop.trainer import Trainer

PICTURES = 10_000
BATCH = 256


class Pictures(data.Dataset[tuple[Tensor, int]]):
    """A dataset whose pictures are augmented one at a time, on access."""

    def __init__(
        self, arrays: np.ndarray, labels: np.ndarray, transform: Callable[[Image.Image], Tensor] | None = None
    ):
        self.arrays, self.labels = arrays, labels
        size = arrays.shape[1:3]
        self.transform = transform or transforms.Compose(
            [
                transforms.ToTensor(),
                transforms.Resize(size),
                transforms.RandomHorizontalFlip(),
                transforms.RandomResizedCrop(size, scale=(0.8, 1.0), ratio=(3 / 4, 4 / 3)),
                transforms.Normalize((0.5,) * 3, (0.5,) * 3),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.arrays[index])), int(self.labels[index])


class TutorialHead(nn.Module):
    """One head with three projections of its own."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.width = width
        self.query, self.key, self.value = (nn.Linear(dim, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(self.width)
        return scores.softmax(-1) @ self.value(x)


class TutorialBlock(nn.Module):
    """A block with a Python loop over heads, and GELU as a formula."""

    def __init__(self, dim: int, heads: int, hidden: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.heads = nn.ModuleList(TutorialHead(dim, dim // heads) for _ in range(heads))
        self.output, self.wide, self.narrow = nn.Linear(dim, dim), nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        seen = self.norm1(x)
        x = x + self.output(torch.cat([head(seen) for head in self.heads], -1))
        hidden = self.wide(self.norm2(x))
        hidden = 0.5 * hidden * (1 + torch.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return x + self.narrow(hidden)


class Tutorial(nn.Module):
    """The tutorial's model in one of this project's sizes; the tutorial's own size is "tintn"."""

    def __init__(self, size: str, side: int) -> None:
        super().__init__()
        like = ViTConfig.preset(size, image_size=(side, side))
        dim, patches = like.dim, (side // like.patch_size) ** 2
        self.patches = nn.Conv2d(3, dim, like.patch_size, like.patch_size)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, dim))
        self.blocks = nn.ModuleList(TutorialBlock(dim, like.heads, like.mlp_dim) for _ in range(like.depth))
        self.head = nn.Linear(dim, 10)

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0])


def tutorial_steps(
    arrays: np.ndarray, labels: np.ndarray, device: torch.device, batch: int, size: str
) -> Iterator[None]:
    """Train like the tutorial, forever; yield after each step."""
    model = Tutorial(size, arrays.shape[1]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-2)
    criterion = nn.CrossEntropyLoss()
    loader = data.DataLoader(Pictures(arrays, labels), batch_size=batch, shuffle=True, num_workers=2, drop_last=True)
    total = 0.0
    while True:
        for images, expected in loader:
            images, expected = images.to(device), expected.to(device)
            optimizer.zero_grad()
            loss = criterion(model(images), expected)
            loss.backward()
            optimizer.step()
            total += loss.item()
            yield


def timm_model(size: str, side: int) -> nn.Module:
    """Return timm's Vision Transformer in one of this project's sizes."""
    config = ViTConfig.preset(size)
    return TimmViT(
        img_size=side, patch_size=config.patch_size, num_classes=10, embed_dim=config.dim, depth=config.depth,
        num_heads=config.heads, mlp_ratio=config.mlp_dim / config.dim,
    )  # fmt: skip


def timm_steps(arrays: np.ndarray, labels: np.ndarray, device: torch.device, batch: int, size: str) -> Iterator[None]:
    """Train like timm's train.py, forever, with pictures augmented one by one in workers; yield after each step."""
    side = arrays.shape[1]
    augmented = transforms.Compose(
        [
            transforms.RandomResizedCrop(side, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    network = timm_model(size, side).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-4, weight_decay=0.05, fused=device.type == "cuda")
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    mean = torch.tensor([0.485, 0.456, 0.406], device=device).view(1, 3, 1, 1) * 255
    std = torch.tensor([0.229, 0.224, 0.225], device=device).view(1, 3, 1, 1) * 255
    loader = data.DataLoader(
        Pictures(arrays, labels, augmented), batch_size=batch, shuffle=True, drop_last=True,
        num_workers=min(8, os.cpu_count() or 1), pin_memory=device.type == "cuda", persistent_workers=True,
    )  # fmt: skip
    while True:
        for images, expected in loader:
            inputs = (images.to(device, non_blocking=True).float() - mean) / std
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = criterion(network(inputs), expected.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            yield


def our_steps(arrays: np.ndarray, labels: np.ndarray, device: str, settings: dict[str, object]) -> Iterator[None]:
    """Train like `python -m vit train --preset tintn`, forever; yield after each step."""
    config = train_config("tintn", **{"data": "shapes", "device": device, "batch_size": BATCH, **settings})
    pictures = InMemoryPictures(torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels))
    dataset = Dataset("noise", tuple("abcdefghij"), pictures, pictures, pictures)
    run = Trainer(config, Path(), set_up_process(config), dataset)
    run.update.model.train()
    while True:
        order = torch.randperm(len(labels))[: run.data.steps_per_epoch * run.data.batch_size]
        for images, expected in run.data.train.batches(order, run.data.batch_size, run.process.device):
            run.update.train_step(run.progress.step, images, expected, print)
            run.progress.step += 1
            yield


def timed(steps: Iterator[None], count: int, device: torch.device, batch: int = BATCH) -> float:
    """Return the pictures per second over `count` steps."""
    begun = time.perf_counter()
    for _ in range(count):
        next(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count * batch / (time.perf_counter() - begun)


def main() -> None:
    """Run both sides alternately and print the ratio."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--against", choices=("tutorial", "timm"), default="tutorial")
    options.add_argument("--size", default="tintn", help="size of the model, the name of a preset")
    options.add_argument("--side", type=int, default=32, help="side of a picture [px]")
    options.add_argument("--batch", type=int, default=BATCH)
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--steps", type=int, default=20, help="steps of each side in a round")
    options.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of this project's loop"
    )
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    random = np.random.default_rng(0)
    batch, side = chosen.batch, chosen.side
    count = max(2 * batch, PICTURES * 32 * 32 // side**2)
    arrays = random.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    labels = random.integers(0, 10, count)
    settings: dict[str, object] = {"batch_size": batch, "image_size": side, "size": chosen.size}
    if chosen.against == "timm":
        settings |= {"crop_scale": 0.08, "crop_padding": 0, "flip": True, "label_smoothing": 0.1, "optimizer": "adamw"}
    for pair in chosen.set:
        key, _, value = pair.partition("=")
        settings[key] = {"true": True, "false": False}.get(value, value)
    theirs = (
        timm_steps(arrays, labels, device, batch, chosen.size)
        if chosen.against == "timm"
        else tutorial_steps(arrays, labels, device, batch, chosen.size)
    )
    ours = our_steps(arrays, labels, chosen.device, settings)
    timed(theirs, 5, device), timed(ours, 5, device)  # warm-up, compilation
    pairs = []
    for number in range(chosen.rounds):
        timed(theirs, 6, device)  # consume batches that its workers prepared during the pause
        other = timed(theirs, chosen.steps, device, batch)
        time.sleep(2)  # its workers prepare their next batches and become idle
        pairs.append((other, timed(ours, chosen.steps, device, batch)))
        print(
            f"round {number + 1}: {chosen.against} {pairs[-1][0]:,.0f}, ours {pairs[-1][1]:,.0f} pictures/s", flush=True
        )
    ratios = sorted(mine / other for other, mine in pairs)
    print(
        f"{chosen.against} {statistics.median(p[0] for p in pairs):,.0f}, "
        f"ours {statistics.median(p[1] for p in pairs):,.0f} pictures/s: "
        f"{statistics.median(ratios):.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}), "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
