"""Seeded attention that resembles a trained model's: local and global heads, a subject, a class-token sink."""

import numpy as np
import torch
from PIL import Image

from vit.explain.faithfulness_correlation import random_masks
from vit.explain.record import AttentionRecord

ALIKE = (3, 2, (4, 6), ("cls", "reg1"), 16, 0, 50)  # arguments of `record` in case "alike" of viewer_page.py


def picture(width: int, height: int) -> Image.Image:
    """Return a smooth background with a bright disc right of the middle."""
    y, x = np.mgrid[0:height, 0:width]
    disc = ((x / width - 0.62) ** 2 * (width / height) ** 2 + (y / height - 0.45) ** 2) < 0.05
    base = np.stack([90 + 60 * x / width, 110 + 50 * y / height, 120 - 40 * y / height], -1)
    return Image.fromarray(np.where(disc[..., None], [226, 170, 74], base).astype(np.uint8))


def chain(record: AttentionRecord, seed: int = 3) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the matrices of a class's chain and its first row: mean attention with random weights."""
    generator = torch.Generator().manual_seed(seed)
    matrices = []
    for block in range(record.blocks):
        mean = record.full(block).mean(0)
        matrices.append(mean * torch.rand(mean.shape, generator=generator) * 10.0 ** (-2 * block))
    start = torch.zeros(record.tokens)
    start[: max(1, len(record.prefix))] = 1 / max(1, len(record.prefix))
    return matrices, start


def mask_drops(record: AttentionRecord, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return masks and drops of a class that sums the patches which the first head of the second block attends to."""
    masks = random_masks(record.grid[0] * record.grid[1], count)
    return masks, masks.double() @ record.weights(0, 1, 0)[len(record.prefix) :].double()


def traced(matrices: list[torch.Tensor], row: torch.Tensor, direction: str = "from") -> torch.Tensor:
    """Compute the chain by definition: the full product minus the initial row, as shares."""
    product = torch.eye(len(row), dtype=torch.float64)
    for matrix in matrices:
        product = product + matrix.double() @ product
    out = (row.double() @ product if direction == "from" else product @ row.double()) - row
    return out / out.sum()


def record(
    blocks: int,
    heads: int,
    grid: tuple[int, int],
    prefix: tuple[str, ...] = ("cls",),
    width: int = 64,
    seed: int = 0,
    dim: int = 0,
    pooled: bool = False,
) -> AttentionRecord:
    """Build a record whose early heads attend locally and late ones to the subject; prefix tokens get a growing share.

    If `dim` is not 0, features separate the subject from the background and near from far; the pooling query, if there
    is one, attends to the subject.
    """
    torch.manual_seed(seed)
    rows, cols = grid
    y, x = torch.meshgrid(torch.linspace(0, 1, rows), torch.linspace(0, 1, cols), indexing="ij")
    places = torch.stack([y, x], -1).reshape(-1, 2)
    waves = torch.randn(2, width // 4) * 4.5
    angles = places @ waves
    near = torch.cat([angles.cos(), angles.sin()], -1) * (width // 4) ** -0.5  # n_i . n_j falls with distance
    disc = ((places - torch.tensor([0.45, 0.62])) ** 2).sum(-1) < 0.05
    queries, keys = [], []
    for block in range(blocks):
        depth = block / max(1, blocks - 1)
        q = torch.randn(heads, len(prefix) + rows * cols, width) * 0.25
        k = torch.randn(heads, len(prefix) + rows * cols, width) * 0.9
        for head in range(heads):
            local = float((1 - 0.6 * depth) * torch.rand(()) * 9)
            local_only = near * (local * width**0.5) ** 0.5
            q[head, len(prefix) :, : near.shape[1]] += local_only
            k[head, len(prefix) :, : near.shape[1]] += local_only
            q[head, :, -1] = width**0.5
            k[head, len(prefix) :, -1] = disc * depth * float(torch.rand(()) * 3)
            k[head, : len(prefix), -1] = 1.5 + 3 * depth * float(torch.rand(()))
        queries.append(q)
        keys.append(k)
    features = pool = None
    if dim:
        turned = torch.cat([angles.cos(), angles.sin(), (disc[:, None].float() - 0.5) * 4], -1)
        features = torch.randn(len(prefix) + rows * cols, dim) * 0.6
        features[len(prefix) :] += turned @ torch.randn(turned.shape[1], dim) * turned.shape[1] ** -0.5
    if pooled:
        scores = torch.randn(heads, len(prefix) + rows * cols) * torch.linspace(0.3, 1.5, heads)[:, None]
        scores[:, len(prefix) :] += disc * torch.linspace(0, 4, heads)[:, None]
        pool = scores.softmax(-1)
    return AttentionRecord(torch.zeros(1, 10), tuple(queries), tuple(keys), prefix, grid, features, pool)
