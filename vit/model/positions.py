"""Where a token is: rotary positions, and position embeddings on another grid.

Letters as in `vit.model`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.model.config import PositionResize, ViTConfig


def apply_rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: (B, H, N, K) with each pair (i, i + K / 2) turned by its token's angle (N, K)."""
    one, other = x.chunk(2, -1)
    return x * cosine + torch.cat([-other, one], -1) * sine


def rotations(config: ViTConfig, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine (N, K) of the angles by which a token's queries and keys are turned; prefix tokens are not.

    Source: Su et al. 2021, arXiv 2104.09864; over rows and columns from -1 to 1 as in DINOv3, arXiv 2508.10104,
    section 3.2.
    """
    width = config.dim // config.heads
    rows, cols = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in grid)
    places = torch.stack([rows[:, None].expand(grid), cols.expand(grid)], -1).reshape(-1, 2, 1)  # (P, 2, 1)
    assert config.rope is not None
    speeds = config.rope ** -torch.arange(0, 1, 4 / width, device=device)  # (K / 4,)
    angles = (2 * math.pi * places * speeds).flatten(1).tile(2)  # (P, K)
    angles = torch.cat([angles.new_zeros(len(config.prefix), width), angles])
    return angles.cos(), angles.sin()


def resize_positions(
    positions: Tensor, grid: tuple[int, int], to: tuple[int, int] | torch.Size, mode: PositionResize
) -> Tensor:
    """Interpolate position embeddings (1, P, D) from one (rows, cols) grid to another."""
    if tuple(to) == tuple(grid):
        return positions
    maps = positions.unflatten(1, grid).permute(0, 3, 1, 2).float()  # (1, D, rows, cols)
    # Meta's DINOv2 asks for a scale, a tenth of a patch too large, and not for a size: the samples lie elsewhere.
    scale = [(new + 0.1) / old for new, old in zip(to, grid, strict=True)] if mode == "bicubic_offset" else None
    maps = F.interpolate(
        maps,
        size=None if scale else tuple(to),
        scale_factor=scale,
        mode="bilinear" if mode == "bilinear" else "bicubic",
        align_corners=mode == "bicubic_corners",
        antialias=mode == "bicubic_antialias",
    )
    return maps.flatten(2).transpose(1, 2).to(positions.dtype)
