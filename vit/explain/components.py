"""Principal components of patch features as RGB colours, as in the figures of DINO and DINOv2.

All pictures share one basis, so that the same colour is the same direction in feature space. Outlier tokens, with norms
far above those of the other patches, carry no image content and would dominate a component, so they are excluded.

Sources: Caron et al. 2021, arXiv 2104.14294; Oquab et al. 2024, arXiv 2304.07193, section 7.6 (foreground by the first
component); outliers: Darcet et al. 2024, arXiv 2309.16588.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vit.explain.maps import otsu_threshold
from vit.explain.weight_views import outliers
from vit.model.cpu import onednn_for
from vit.model.transformer import Hook, VisionTransformer

COLOURS = 3  # components: red, green, blue
CUT = 0.01  # share of patches that is clipped at each end of the colour range
_MIN_PATCHES = 4  # minimum number of patches for a basis


class Components(NamedTuple):
    """Patch features of several pictures projected onto a common basis: (token - mean) @ directions.T.

    Attributes:
        values: float64 (rows, cols, 3) for each picture, projections onto the components.
        colours: float32 (rows, cols, 3) for each picture, RGB from 0 to 1; excluded patches are black.
        used: bool (rows, cols) for each picture, patches that the basis was fitted to.
        shares: (3,), explained variance ratio of each component, 0 to 1.
        mean: float64 (D,).
        directions: float64 (3, D), unit vectors.
        ends: float64 (2, 3), values of the darkest and the brightest colour.
    """

    values: list[Tensor]
    colours: list[Tensor]
    used: list[Tensor]
    shares: Tensor
    mean: Tensor
    directions: Tensor
    ends: Tensor

    def colours_of(self, features: Tensor) -> Tensor:
        """Colour another picture's patches (rows, cols, D) in this basis: float32 (rows, cols, 3)."""
        return _coloured((features.double() - self.mean) @ self.directions.T, ~_outliers(features), self.ends)


@torch.inference_mode()
def token_features(model: VisionTransformer, pixels: Tensor, block: int = -1, hook: Hook | None = None) -> Tensor:
    """Compute the tokens (N, D) after a block. The last block's output includes a final norm that precedes the pool.

    Args:
        pixels: (1, channels, height, width), the model's input.
        block: from 0; -1 is the last.
        hook: replaces head outputs, see `VisionTransformer.forward`.
    """
    last = block % len(model.blocks)
    with onednn_for(pixels):
        x, steps = model.walk(pixels, every=True, hook=hook)
        for step in steps[: last + 1]:
            x = step(x)
        if last == len(model.blocks) - 1 and model.config.norm == "before_pool":
            x = model.norm(x)
    return x[0]


def patch_features(model: VisionTransformer, pixels: Tensor, block: int = -1) -> Tensor:
    """Compute the patch tokens (rows, cols, D) after a block; see `token_features`."""
    patch = model.config.patch_size
    grid = pixels.shape[2] // patch, pixels.shape[3] // patch
    return token_features(model, pixels, block)[len(model.config.prefix) :].unflatten(0, grid)


def components(features: Sequence[Tensor], *, foreground: bool = False, with_outliers: bool = False) -> Components:
    """Compute the first three principal components of all patches. The order of the pictures does not matter.

    Signs are fixed. The first component is negative on average at the pictures' edges, which are mostly background. The
    other directions have a positive largest entry.

    Args:
        features: (rows, cols, D) for each picture, see `patch_features`.
        foreground: colour only the patches above Otsu's threshold of the first component, and fit a basis to them.
        with_outliers: include outlier tokens.
    """
    used = [torch.ones(f.shape[:2], dtype=torch.bool) if with_outliers else ~_outliers(f) for f in features]
    tokens = [f.double() for f in features]
    mean, directions, shares = _basis(tokens, used)
    values = [(t - mean) @ directions.T for t in tokens]
    if foreground:
        stronger = otsu_threshold(torch.cat([value[mask][:, 0] for value, mask in zip(values, used, strict=True)]))
        parts = stronger.split([int(mask.sum()) for mask in used])
        front = [mask.masked_scatter(mask, part) for mask, part in zip(used, parts, strict=True)]
        if sum(int(mask.sum()) for mask in front) >= _MIN_PATCHES:
            used = front
            mean, directions, shares = _basis(tokens, used)
            values = [(t - mean) @ directions.T for t in tokens]
    of_used = torch.cat([value[mask] for value, mask in zip(values, used, strict=True)])
    ends = of_used.quantile(of_used.new_tensor([CUT, 1 - CUT]), dim=0)
    colours = [_coloured(value, mask, ends) for value, mask in zip(values, used, strict=True)]
    return Components(values, colours, used, shares, mean, directions, ends)


def _coloured(values: Tensor, used: Tensor, ends: Tensor) -> Tensor:
    """Scale projections (rows, cols, 3) to colours; unused patches are black."""
    low, high = ends
    scale = (high - low).clamp_min(torch.finfo(torch.float64).tiny)
    return (((values - low) / scale).clamp(0, 1) * used[..., None]).float()


def _basis(tokens: Sequence[Tensor], used: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Fit the mean (D,), directions (3, D) and explained variance ratios (3,) to the used patches."""
    patches = torch.cat([t[mask] for t, mask in zip(tokens, used, strict=True)])
    mean = patches.mean(0)
    # Eigenvectors of the covariance: a sum over patches, whose order matters only to the last digits.
    powers, vectors = torch.linalg.eigh((patches - mean).T @ (patches - mean))
    directions = vectors.flip(1)[:, :COLOURS].T
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    edges = torch.cat([(t - mean)[_edge(t) & mask] for t, mask in zip(tokens, used, strict=True)])
    if len(edges) and float((edges @ directions[0]).mean()) > 0:
        directions[0] = -directions[0]
    powers = powers.flip(0).clamp_min(0)
    return mean, directions, powers[:COLOURS] / powers.sum().clamp_min(torch.finfo(torch.float64).tiny)


def _edge(features: Tensor) -> Tensor:
    edge = torch.ones(features.shape[:2], dtype=torch.bool, device=features.device)
    edge[1:-1, 1:-1] = False
    return edge


def _outliers(features: Tensor) -> Tensor:
    return outliers(features.flatten(0, 1).norm(dim=-1)[None])[0].view(features.shape[:2])
