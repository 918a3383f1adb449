"""Rotary positions, relative position biases, and interpolation of position embeddings to another grid.

Letters as in `vit.model`.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.model.config import BiasResize, PositionResize, ViTConfig


def apply_rotary(x: Tensor, cosine: Tensor, sine: Tensor, neighbours: bool = False) -> Tensor:
    """Rotate each pair of channels of queries or keys (B, H, N, K) by the angle of its token.

    Args:
        cosine, sine: of the angles, (N, K) or (H, N, K).
        neighbours: pairs are (2 i, 2 i + 1) instead of (i, i + K / 2).
    """
    if neighbours:
        first, second = x.unflatten(-1, (-1, 2)).unbind(-1)
        return x * cosine + torch.stack([-second, first], -1).flatten(-2) * sine
    first, second = x.chunk(2, -1)
    return x * cosine + torch.cat([-second, first], -1) * sine


def rotations(
    config: ViTConfig, grid: tuple[int, int], device: torch.device, speeds: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute cosine and sine of each token's rotation angles. Prefix tokens are not rotated.

    Args:
        speeds: (2, H, K / 2), a block's learnt frequencies for columns and rows, if `rope_places` is "mixed".

    Returns:
        (N, K), or (H, N, K) if `rope_places` is "mixed".

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
    """Compute angles from patch indices: (P, K / 2), or (H, P, K / 2) with learnt frequencies."""
    start = int(config.rope_places == "columns_from_one")
    rows, cols = (torch.arange(side, device=device).float() + start for side in grid)
    if config.rope_grid is not None:
        rows, cols = (axis / side * to for axis, side, to in zip((rows, cols), grid, config.rope_grid, strict=True))
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
    """Compute angles (P, K) from coordinates between -1 and 1."""
    width = config.dim // config.heads
    rows, cols = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in grid)
    places = torch.stack([rows[:, None].expand(grid), cols.expand(grid)], -1).reshape(-1, 2, 1)  # (P, 2, 1)
    assert config.rope is not None
    speeds = config.rope ** -torch.arange(0, 1, 4 / width, device=device)  # (K / 4,)
    return (2 * math.pi * places * speeds).flatten(1).tile(2)


def distances(config: ViTConfig) -> int:
    """Return the number of entries per head in the relative position bias table, see `relative_places`."""
    rows, cols = config.grid
    return (2 * rows - 1) * (2 * cols - 1) + 3  # 3 for pairs with prefix tokens


def relative_places(prefix: int, grid: tuple[int, int], device: torch.device) -> Tensor:
    """Compute the index (N, N) into the relative position bias table for each query (row) and key (column).

    The table has one entry for each difference of rows and columns, rows first. Three more follow: prefix query with
    patch key, patch query with prefix key, and prefix with prefix.

    Args:
        prefix: number of tokens before the patches.

    Source: Bao et al. 2021, arXiv 2106.08254, and its code.
    """
    height, width = grid
    rows = torch.arange(height, device=device).repeat_interleave(width)
    cols = torch.arange(width, device=device).repeat(height)
    down = rows[:, None] - rows + height - 1
    patches = down * (2 * width - 1) + cols[:, None] - cols + width - 1
    others = (2 * height - 1) * (2 * width - 1)
    places = F.pad(patches, (prefix, 0, prefix, 0), value=others)
    places[prefix:, :prefix] = others + 1
    places[:prefix, :prefix] = others + 2
    return places


def positions_at(tensors: Mapping[str, Tensor], config: ViTConfig, grid: tuple[int, int]) -> dict[str, Tensor]:
    """Return a state dict with all learnt positions interpolated to another (rows, cols) grid."""
    resized = {**tensors}
    resized["pos_embed"] = resize_positions(tensors["pos_embed"], config.grid, grid, config.position_resize)
    if config.position_bias is not None:
        for name in [name for name in tensors if name.endswith(".attn.position_bias")]:
            resized[name] = resize_biases(tensors[name], config.grid, grid, config.position_bias)
    return resized


def resize_biases(table: Tensor, grid: tuple[int, int], to: tuple[int, int], mode: BiasResize) -> Tensor:
    """Interpolate a bias table (distances, H) from one (rows, cols) grid to another; see `relative_places`."""
    if tuple(to) == tuple(grid):
        return table
    (height, width), (rows, cols) = ([2 * side - 1 for side in size] for size in (grid, to))
    maps = table[:-3].T.unflatten(1, (height, width)).float()  # (H, height, width)
    if mode == "bilinear":
        maps = F.interpolate(maps[None], size=(rows, cols), mode="bilinear")[0]
    else:
        maps = _by_progression(height, rows, table.device) @ maps @ _by_progression(width, cols, table.device).T
    return torch.cat([maps.flatten(1).T.to(table.dtype), table[-3:]])


def _by_progression(count: int, to: int, device: torch.device) -> Tensor:
    """Compute the weights (to, count) that interpolate a bias table from `count` distances to `to`.

    The learnt distances are placed in a geometric progression from the middle: the smallest stay in place and the
    largest reach the new ends. Between them, interpolation is linear.

    Source: timm 1.0.31, `layers/pos_embed_rel.py`, `resize_rel_pos_bias_table`, after BEiT's `run_class_finetuning.py`.
    """
    if count == 1:
        return torch.ones(to, 1, device=device)
    half = count // 2
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        ratio = (low + high) / 2
        low, high = (low, ratio) if (1 - ratio**half) / (1 - ratio) > to // 2 else (ratio, high)
    side = torch.tensor([sum(ratio**power for power in range(last + 1)) for last in range(half)])
    known = torch.cat([-side.flip(0), torch.zeros(1), side])
    wanted = (torch.arange(to) - to // 2).clamp(known[0], known[-1])
    right = torch.bucketize(wanted, known).clamp_min(1)
    share = (wanted - known[right - 1]) / (known[right] - known[right - 1])
    weights, row = torch.zeros(to, count), torch.arange(to)
    weights[row, right - 1], weights[row, right] = 1 - share, share
    return weights.to(device)


def resize_positions(
    positions: Tensor, grid: tuple[int, int], to: tuple[int, int] | torch.Size, mode: PositionResize
) -> Tensor:
    """Interpolate position embeddings (1, P, D) from one (rows, cols) grid to another."""
    if tuple(to) == tuple(grid):
        return positions
    maps = positions.unflatten(1, grid).permute(0, 3, 1, 2).float()  # (1, D, rows, cols)
    # Meta's DINOv2 passes a scale factor that is a tenth of a patch too large instead of a size, which shifts the
    # sampling points.
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
