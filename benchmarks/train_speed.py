"""How many pictures per second our training loop does against one written as a tutorial has it.

    python benchmarks/train_speed.py            # CPU: two cores, the size of tintn's tutorial
    python benchmarks/train_speed.py --device cuda

The other side follows tintn's vision-transformer-from-scratch in what it does, step by step: pictures are augmented
one by one in a DataLoader with two workers, each head has Linear layers of its own, GELU is spelled out, and the loss
is read back after every step. Both sides train the same model size on the same pictures; they take turns, so that
whatever else the machine does meets both.
"""

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils import data
from torchvision import transforms

sys.path.insert(0, str(Path(__file__).parents[1]))

from vit.data.datasets import Dataset
from vit.data.pictures import Resident
from vit.model.config import ViTConfig
from vit.training.distributed import set_up_process
from vit.training.presets import train_config
from vit.training.trainer import Trainer

PICTURES = 10_000
BATCH = 256


class Pictures(data.Dataset[tuple[Tensor, int]]):
    """Pictures that are augmented one at a time, as they are asked for."""

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
    """One head with its own three projections."""

    def __init__(self, dim: int, width: int):
        super().__init__()
        self.width = width
        self.query, self.key, self.value = (nn.Linear(dim, width) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2) / math.sqrt(self.width)
        return scores.softmax(-1) @ self.value(x)


class TutorialBlock(nn.Module):
    """Heads in a Python loop, GELU as a formula."""

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
    """The whole model, of one of our sizes; the tutorial's own is "tintn"."""

    def __init__(self, size: str = "tintn", side: int = 32) -> None:
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
    arrays: np.ndarray, labels: np.ndarray, device: torch.device, batch: int = BATCH, size: str = "tintn"
) -> Iterator[None]:
    """Train as the tutorial does, for ever; gives way after each step."""
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


def our_steps(
    arrays: np.ndarray, labels: np.ndarray, device: str, settings: dict[str, object], preset: str = "tintn"
) -> Iterator[None]:
    """Train as `python -m vit train --preset tintn` does, for ever; gives way after each step."""
    config = train_config(preset, **{"data": "shapes", "device": device, "batch_size": BATCH, **settings})
    pictures = Resident(torch.from_numpy(arrays).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels))
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
    """Pictures per second over `count` steps."""
    begun = time.perf_counter()
    for _ in range(count):
        next(steps)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count * batch / (time.perf_counter() - begun)


def main() -> None:
    """Let both sides take turns and print the ratio."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--device", default="cpu")
    options.add_argument("--rounds", type=int, default=8)
    options.add_argument("--steps", type=int, default=20, help="of each side in a round")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of ours")
    chosen = options.parse_args()
    device = torch.device(chosen.device)
    random = np.random.default_rng(0)
    arrays = random.integers(0, 256, (PICTURES, 32, 32, 3), dtype=np.uint8)
    labels = random.integers(0, 10, PICTURES)
    settings = {}
    for pair in chosen.set:
        key, _, value = pair.partition("=")
        settings[key] = {"true": True, "false": False}.get(value, value)
    theirs, ours = tutorial_steps(arrays, labels, device), our_steps(arrays, labels, chosen.device, settings)
    timed(theirs, 5, device), timed(ours, 5, device)  # warm-up, compilation
    pairs = []
    for number in range(chosen.rounds):
        timed(theirs, 6, device)  # batches that its workers prepared while it paused
        other = timed(theirs, chosen.steps, device)
        time.sleep(2)  # its workers prepare their next batches and rest
        pairs.append((other, timed(ours, chosen.steps, device)))
        print(f"round {number + 1}: tutorial {pairs[-1][0]:,.0f}, ours {pairs[-1][1]:,.0f} pictures/s", flush=True)
    ratios = sorted(mine / other for other, mine in pairs)
    print(
        f"Tutorial {statistics.median(p[0] for p in pairs):,.0f}, ours {statistics.median(p[1] for p in pairs):,.0f} "
        f"pictures/s: {statistics.median(ratios):.1f} times ({ratios[0]:.1f} to {ratios[-1]:.1f}), "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads"
    )


if __name__ == "__main__":
    main()
