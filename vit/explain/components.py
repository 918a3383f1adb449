"""Principal components of patch features as colours, of several pictures in one basis: the figure of DINO and DINOv2.

One basis for all pictures is what makes colours comparable: the same colour is the same direction in the features of
each. Patches far longer than the others of their picture carry no content and would take a component for themselves,
so they are left out of it.

Sources: Caron et al. 2021, arXiv 2104.14294; Oquab et al. 2024, arXiv 2304.07193, section 7.6 (foreground by the first
component); outliers: Darcet et al. 2024, arXiv 2309.16588.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from vit.explain.maps import otsu_threshold
from vit.explain.weight_views import outliers
from vit.model.cpu import exact_on_cpu, onednn
from vit.model.transformer import Hook, VisionTransformer

COLOURS = 3  # components: red, green, blue
CUT = 0.01  # share of the patches at each end of a component that get its darkest or brightest colour
_LEAST_PATCHES = 4  # that a basis is made of


class Components(NamedTuple):
    """What several pictures' patches are in one basis: (token - mean) @ directions.T.

    Attributes:
        values: float64 (rows, cols, 3) for each picture, distances from the mean along the components.
        colours: float32 (rows, cols, 3) for each picture, red, green and blue from 0 to 1; black where a patch is left
            out.
        used: bool (rows, cols) for each picture, patches that the basis is made of.
        shares: (3,), of the variance along each component, 0 to 1.
        mean: float64 (D,).
        directions: float64 (3, D), of length 1.
        ends: float64 (2, 3), the values that the darkest and the brightest colour stand for.
    """

    values: list[Tensor]
    colours: list[Tensor]
    used: list[Tensor]
    shares: Tensor
    mean: Tensor
    directions: Tensor
    ends: Tensor

    def colours_of(self, features: Tensor) -> Tensor:
        """Another picture's patches (rows, cols, D) in this basis as colours: float32 (rows, cols, 3)."""
        return _coloured((features.double() - self.mean) @ self.directions.T, ~_outliers(features), self.ends)


@torch.inference_mode()
def token_features(model: VisionTransformer, pixels: Tensor, block: int = -1, hook: Hook | None = None) -> Tensor:
    """Tokens after a block: (N, D); after the last one with the model's last norm, where it has one before pooling.

    Args:
        pixels: (1, channels, height, width), the model's input.
        block: from 0; -1 is the last.
        hook: on what the heads compute with, see `VisionTransformer.forward`.
    """
    last = block % len(model.blocks)
    with onednn() if exact_on_cpu(pixels) else nullcontext():
        x, steps = model.walk(pixels, every=True, hook=hook)
        for step in steps[: last + 1]:
            x = step(x)
        if last == len(model.blocks) - 1 and model.config.norm == "before_pool":
            x = model.norm(x)
    return x[0]


def patch_features(model: VisionTransformer, pixels: Tensor, block: int = -1) -> Tensor:
    """The patches among them: (rows, cols, D), see `token_features`."""
    patch = model.config.patch_size
    grid = pixels.shape[2] // patch, pixels.shape[3] // patch
    return token_features(model, pixels, block)[len(model.config.prefix) :].unflatten(0, grid)


def components(features: Sequence[Tensor], *, foreground: bool = False, with_outliers: bool = False) -> Components:
    """The three principal components of all patches, whatever the order of the pictures.

    Signs: the first component is negative on average at the pictures' edges, where there is background more often than
    in the middle; of the others the largest number of the direction is positive.

    Args:
        features: (rows, cols, D) for each picture, see `patch_features`.
        foreground: only Otsu's stronger group along the first component gets a colour, in a basis of its own.
        with_outliers: also patches that are far longer than the others of their picture.
    """
    used = [torch.ones(one.shape[:2], dtype=torch.bool) if with_outliers else ~_outliers(one) for one in features]
    tokens = [one.double() for one in features]
    mean, directions, shares = _basis(tokens, used)
    values = [(one - mean) @ directions.T for one in tokens]
    if foreground:
        stronger = otsu_threshold(torch.cat([one[some][:, 0] for one, some in zip(values, used, strict=True)]))
        parts = stronger.split([int(some.sum()) for some in used])
        front = [some.masked_scatter(some, part) for some, part in zip(used, parts, strict=True)]
        if sum(int(some.sum()) for some in front) >= _LEAST_PATCHES:
            used = front
            mean, directions, shares = _basis(tokens, used)
            values = [(one - mean) @ directions.T for one in tokens]
    of_used = torch.cat([one[some] for one, some in zip(values, used, strict=True)])
    ends = of_used.quantile(torch.tensor([CUT, 1 - CUT], dtype=torch.float64), dim=0)
    colours = [_coloured(one, some, ends) for one, some in zip(values, used, strict=True)]
    return Components(values, colours, used, shares, mean, directions, ends)


def _coloured(values: Tensor, used: Tensor, ends: Tensor) -> Tensor:
    """Distances along the components (rows, cols, 3) as colours, black where a patch is not used."""
    low, high = ends
    scale = (high - low).clamp_min(torch.finfo(torch.float64).tiny)
    return (((values - low) / scale).clamp(0, 1) * used[..., None]).float()


def _basis(tokens: Sequence[Tensor], used: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean (D,), directions (3, D) and shares of the variance (3,) of the patches that are used."""
    every = torch.cat([one[some] for one, some in zip(tokens, used, strict=True)])
    mean = every.mean(0)
    # By the covariance, whose sum over patches does not depend on their order but for the last digits.
    powers, vectors = torch.linalg.eigh((every - mean).T @ (every - mean))
    directions = vectors.flip(1)[:, :COLOURS].T
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    edges = torch.cat([(one - mean)[_edge(one) & some] for one, some in zip(tokens, used, strict=True)])
    if len(edges) and float((edges @ directions[0]).mean()) > 0:
        directions[0] = -directions[0]
    powers = powers.flip(0).clamp_min(0)
    return mean, directions, powers[:COLOURS] / powers.sum().clamp_min(torch.finfo(torch.float64).tiny)


def _edge(features: Tensor) -> Tensor:
    edge = torch.ones(features.shape[:2], dtype=torch.bool)
    edge[1:-1, 1:-1] = False
    return edge


def _outliers(features: Tensor) -> Tensor:
    return outliers(features.flatten(0, 1).norm(dim=-1)[None])[0].view(features.shape[:2])
