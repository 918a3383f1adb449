"""Where a token is: rotary positions, and position embeddings on another grid.

Letters as in `vit.model`.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.model.config import PositionResize, ViTConfig


def apply_rotary(x: Tensor, cosine: Tensor, sine: Tensor, neighbours: bool = False) -> Tensor:
    """Rotary positions: (B, H, N, K) with each pair of channels turned by its token's angle (N, K) or (H, N, K).

    Args:
        neighbours: pairs are (2 i, 2 i + 1), and not (i, i + K / 2).
    """
    if neighbours:
        one, other = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * cosine + torch.stack([-other, one], -1).flatten(-2) * sine
    one, other = x.chunk(2, -1)
    return x * cosine + torch.cat([-other, one], -1) * sine


def rotations(
    config: ViTConfig, grid: tuple[int, int], device: torch.device, speeds: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angles by which a token's queries and keys are turned; prefix tokens are not.

    Args:
        speeds: (2, H, K / 2), what a block learnt for columns and rows, where places are "mixed".

    Returns:
        (N, K), or (H, N, K) where places are "mixed".

    Source: Su et al. 2021, arXiv 2104.09864; over rows and columns from -1 to 1 as in DINOv3, arXiv 2508.10104,
    section 3.2; counted as in EVA-02, arXiv 2303.11331; mixed: Heo et al. 2024, arXiv 2403.13298, eq. 10.
    """
    width = config.dim // config.heads
    if config.rope_places == "centred":
        angles = _centred_angles(config, grid, device)
    else:
        angles = _counted_angles(config, grid, device, speeds).repeat_interleave(2, -1)
    angles = torch.cat([angles.new_zeros(*angles.shape[:-2], len(config.prefix), width), angles], -2)
    return angles.cos(), angles.sin()


def _counted_angles(config: ViTConfig, grid: tuple[int, int], device: torch.device, learnt: Tensor | None) -> Tensor:
    """(P, K / 2), or (H, P, K / 2) by learnt speeds."""
    start = int(config.rope_places == "columns_from_one")
    rows, cols = (torch.arange(side, device=device).float() + start for side in grid)
    if config.rope_grid is not None:
        rows, cols = (one / side * to for one, side, to in zip((rows, cols), grid, config.rope_grid, strict=True))
    places = torch.stack([rows[:, None].expand(grid), cols.expand(grid)], -1).reshape(-1, 2)  # (P, 2)
    if config.rope_places != "rows":
        places = places.flip(-1)
    if learnt is not None:
        return torch.einsum("pa,ahk->hpk", places, learnt.float())
    assert config.rope is not None
    quarter = config.dim // config.heads // 4
    speeds = config.rope ** -(torch.arange(quarter, device=device) / quarter)
    return (places[..., None] * speeds).flatten(1)


def _centred_angles(config: ViTConfig, grid: tuple[int, int], device: torch.device) -> Tensor:
    """(P, K)."""
    width = config.dim // config.heads
    rows, cols = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in grid)
    places = torch.stack([rows[:, None].expand(grid), cols.expand(grid)], -1).reshape(-1, 2, 1)  # (P, 2, 1)
    assert config.rope is not None
    speeds = config.rope ** -torch.arange(0, 1, 4 / width, device=device)  # (K / 4,)
    return (2 * math.pi * places * speeds).flatten(1).tile(2)


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
