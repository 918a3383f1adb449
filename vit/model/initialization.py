"""Mimetic initialization: initial weights that attend like those of a trained model."""

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.model.transformer import Block, VisionTransformer


@torch.no_grad()
def mimetic_(model: VisionTransformer) -> None:
    """Initialise positions with sines and cosines, and attention near the identity, in place.

    In trained transformers W_q W_k^T is close to a positive multiple of the identity plus noise, and W_v W_proj to a
    negative one. Training on small datasets is much faster from there.

    Source: Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers", arXiv 2305.09828, section 4.
    """
    config = model.config
    dim, width = config.dim, config.dim // config.heads
    model.pos_embed.copy_(sine_cosine(dim, *config.grid))
    for block in model.blocks:  # 0.7 and 0.4 are the paper's factors of the identity and of the noise
        attention = cast(Block, block).attn
        q, k, v = attention.qkv.weight.chunk(3)  # (D, D) each, output first
        for head in range(config.heads):
            part = slice(head * width, (head + 1) * width)
            left, right = _factors(0.7 * torch.randn(dim, dim) / dim**0.5 + 0.7 * torch.eye(dim), width)
            q[part], k[part] = left.T, right
        left, right = _factors(0.4 * torch.randn(dim, dim) / dim**0.5 - 0.4 * torch.eye(dim), dim)
        v.copy_(right)
        attention.proj.weight.copy_(left)


def _factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factor `matrix` (D, D) into (D, rank) and (rank, D), the best approximation of that rank."""
    u, s, vh = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def sine_cosine(dim: int, rows: int, cols: int) -> Tensor:
    """Compute fixed 2-D position embeddings (1, rows * cols, dim): sines and cosines of x, then of y.

    Source: MAE, arXiv 2111.06377, `util/pos_embed.py`.
    """
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    quarter = dim // 4
    frequency = 10000 ** (-torch.arange(quarter) / max(quarter, 1))
    waves = [f(p.flatten()[:, None] * frequency) for p in (x, y) for f in (torch.sin, torch.cos)]
    positions = torch.cat(waves, 1)  # (P, 4 * quarter)
    return F.pad(positions, (0, dim - positions.shape[1]))[None]
