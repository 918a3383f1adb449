"""Faithfulness metrics: SaCo, deletion and insertion curves, pointing game and overlap with known objects.

Every metric is of one picture and one class. SaCo of a random map varies widely between pictures, so it is averaged
over datasets and compared with two baselines: random maps, and a centred Gaussian, since objects tend to be centred.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.model.config import ViTConfig
from vit.model.cost import count_tokens, pass_memory
from vit.model.transformer import VisionTransformer

SACO_GROUPS = 10  # groups of pixels in SaCo
CURVE_STEPS = 20  # steps of deletion and insertion
RANDOM_MAPS = 5  # random maps per picture
MIN_CURVE_GAP = 0.2  # minimum relative difference between the ends of a curve
_BATCH_NUMBERS = 1 << 23  # input elements per batch; 32 MB
_BLUR_SIDES = 0.05  # standard deviation of the blur, relative to the longer side of the picture


class Curve(NamedTuple):
    """Probability of a class while pixels are removed or added, the most important ones first.

    Attributes:
        shares: fractions of pixels removed or added, 0 to 1.
        probabilities: one per fraction.
        numbers: they are an output without probabilities, in any unit.
    """

    shares: tuple[float, ...]
    probabilities: tuple[float, ...]
    numbers: bool = False

    @property
    def area(self) -> float:
        """Area under the curve, 0 to 1 for probabilities."""
        return float(torch.trapezoid(torch.tensor(self.probabilities), torch.tensor(self.shares)))

    @property
    def is_informative(self) -> bool:
        """Whether the ends of the curve differ by more than a fifth. If not, the area says little about the map."""
        ends, values = sorted((self.probabilities[0], self.probabilities[-1])), self.probabilities
        largest = max(values) - min(values) if self.numbers else ends[1]  # the zero of a number has no meaning
        return ends[1] - ends[0] > MIN_CURVE_GAP * largest


# --- SaCo -----------------------------------------------------------------------------------------------------


def saco(salience: Tensor, drops: Tensor) -> float:
    """Compute the salience-guided faithfulness coefficient: do more salient groups of pixels matter more?

    Args:
        salience: (G,), sum of the map over each of G groups of pixels.
        drops: (G,), drop of the probability without each group.

    Returns:
        sum of w over all pairs of groups, divided by the sum of |w|. w is the difference in salience, negative if the
        drops have the opposite order. From -1 to 1; 0 for a constant map.

    Source: Wu et al. CVPR 2024, "On the Faithfulness of Vision Transformer Explanations", algorithm 1.

    >>> saco(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0.5, 0.1, 0.2]))
    0.5
    """
    # Each pair of groups casts a vote: the map claims that removing group i costs at least as much as removing group j,
    # since its salience is larger. The vote counts by how much larger, for the map if the drops agree, else against it.
    order = salience.argsort(descending=True, stable=True)
    salience, drops = salience[order].double(), drops[order]
    i, j = torch.triu_indices(len(order), len(order), 1)
    weights = salience[i] - salience[j]
    signed = torch.where(drops[i] >= drops[j], weights, -weights)
    total = float(weights.abs().sum())
    return float(signed.sum()) / total if total > 0 else 0.0


def groups(heatmap: Tensor, size: tuple[int, int], count: int = SACO_GROUPS) -> tuple[Tensor, Tensor]:
    """Split pixels into groups of equal size, the most salient first.

    Args:
        heatmap: (rows, cols).
        size: (height, width) of the model's input [px]; the heatmap is interpolated to it.
        count: number of groups.

    Returns:
        group of each pixel, int64 (height, width), 0 for the most salient; and the salience of each group, (count,);
        both on the CPU.
    """
    pixels = enlarged(heatmap.cpu(), size).flatten()
    order = pixels.argsort(descending=True, stable=True)
    group = torch.empty_like(order)
    group[order] = torch.arange(len(order)) * count // len(order)
    salience = torch.zeros(count, dtype=torch.float64).index_add_(0, group, pixels.double())
    return group.view(size), salience


def enlarged(heatmap: Tensor, size: tuple[int, int]) -> Tensor:
    """Interpolate a heatmap (rows, cols) to (height, width), bilinearly between the patches' centres.

    Args:
        size: (height, width) [px].
    """
    return F.interpolate(heatmap.float()[None, None], size, mode="bilinear", align_corners=False)[0, 0]


def faithfulness(
    model: VisionTransformer, pixels: Tensor, target: int, heatmaps: Sequence[Tensor], count: int = SACO_GROUPS
) -> list[float]:
    """Compute SaCo of each map of one picture, -1 to 1. Takes `count` batched forward passes per map.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.
        heatmaps: each (rows, cols), in any unit.
        count: groups of pixels per map.
    """
    size = pixels.shape[2], pixels.shape[3]
    mean = pixels.mean((2, 3), keepdim=True)
    saliences = []

    def pictures() -> Iterator[Tensor]:
        for heatmap in heatmaps:
            group, salience = groups(heatmap, size, count)
            saliences.append(salience)
            group = group.to(pixels.device)
            for index in range(count):
                yield torch.where(group == index, mean, pixels)

    left = probabilities(model, pictures(), target).view(len(heatmaps), count)
    return [saco(salience, -row) for salience, row in zip(saliences, left, strict=True)]


def noise(grid: tuple[int, int], seed: int) -> Tensor:
    """Return a map (rows, cols) of uniform random numbers from 0 to 1, reproducible by its seed.

    Args:
        grid: (rows, cols) of patches.
    """
    return torch.rand(grid, generator=torch.Generator().manual_seed(seed))


def centre(grid: tuple[int, int]) -> Tensor:
    """Return a centred Gaussian (rows, cols) with a maximum of 1 and a standard deviation of a quarter of each side.

    Args:
        grid: (rows, cols) of patches.
    """
    rows, cols = ((torch.arange(n) + 0.5) / n - 0.5 for n in grid)
    return torch.exp(-8 * (rows[:, None] ** 2 + cols**2))


# --- Deletion and insertion -----------------------------------------------------------------------------------


def deletion(model: VisionTransformer, pixels: Tensor, target: int, heatmap: Tensor, steps: int = CURVE_STEPS) -> Curve:
    """Compute the deletion curve: pixels are replaced by the picture's mean colour. Lower areas are more faithful.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.
        heatmap: (rows, cols).
        steps: number of equal groups of pixels to delete; the curve has `steps + 1` points.

    Source: Petsiuk et al. 2018, RISE, arXiv 1806.07421.
    """
    return _curve(model, pixels, pixels.mean((2, 3), keepdim=True).expand_as(pixels), target, heatmap, steps)


def insertion(
    model: VisionTransformer, pixels: Tensor, target: int, heatmap: Tensor, steps: int = CURVE_STEPS
) -> Curve:
    """Compute the insertion curve: pixels of a blurred picture become sharp. Higher areas are more faithful.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.
        heatmap: (rows, cols).
        steps: number of equal groups of pixels to insert; the curve has `steps + 1` points.

    Source: Petsiuk et al. 2018, RISE, arXiv 1806.07421.
    """
    from torchvision.transforms.v2.functional import gaussian_blur  # noqa: PLC0415 # imports torch's compiler: 2 s

    sigma = max(pixels.shape[2:]) * _BLUR_SIDES
    kernel = 2 * math.ceil(2 * sigma) + 1
    largest = 2 * (min(pixels.shape[2:]) - 1) + 1  # reflection padding must be smaller than the picture
    blurred = gaussian_blur(pixels, [min(kernel, largest)] * 2, [sigma] * 2)
    return _curve(model, blurred, pixels, target, heatmap, steps)


def _curve(model: VisionTransformer, before: Tensor, after: Tensor, target: int, heatmap: Tensor, steps: int) -> Curve:
    group = groups(heatmap, (before.shape[2], before.shape[3]), steps)[0].to(before.device)
    pictures = (torch.where(group < step, after, before) for step in range(steps + 1))
    values = probabilities(model, pictures, target)
    return Curve(tuple(step / steps for step in range(steps + 1)), tuple(values.tolist()), model.activation == "none")


@torch.inference_mode()
def probabilities(model: VisionTransformer, pictures: Iterable[Tensor], target: int) -> Tensor:
    """Compute the probability of one class in each of n pictures, in batches. Pictures are created lazily.

    Args:
        pictures: at least one, each (1, channels, height, width).
        target: index of the class.

    Returns:
        (n,), 0 to 1, or numbers if the model has no probabilities; on the CPU.
    """
    remaining = iter(pictures)
    first = next(remaining)
    remaining, per_batch = chain([first], remaining), batch_size(first.numel())
    parts = []
    while batch := list(islice(remaining, per_batch)):
        parts.append(model.probabilities(model(torch.cat(batch)).logits)[:, target])
    return torch.cat(parts).cpu()


def batch_size(numbers: int) -> int:
    """Return the batch size for pictures with this number of elements, at least 1."""
    return max(1, _BATCH_NUMBERS // numbers)


def memory(config: ViTConfig, size: tuple[int, int]) -> int:
    """Return the peak memory of SaCo, deletion and insertion for any number of maps, without the weights [bytes].

    Args:
        size: (height, width) of the input [px].
    """
    numbers = config.channels * size[0] * size[1]
    per_batch = batch_size(numbers)
    return 2 * 4 * per_batch * numbers + per_batch * pass_memory(config, count_tokens(config, size)) + 50_000_000


# --- Against known objects ------------------------------------------------------------------------------------


def points_at(heatmap: Tensor, mask: Tensor) -> bool:
    """Pointing game: whether the map's maximum is on the object.

    Args:
        heatmap: (rows, cols).
        mask: bool (height, width), True on the object.

    Source: Zhang et al. 2016, arXiv 1608.00507, without the tolerance of 15 px.
    """
    size = mask.shape[0], mask.shape[1]
    return bool(mask.flatten()[enlarged(heatmap, size).argmax()])


def overlap(heatmap: Tensor, mask: Tensor) -> float:
    """Compute the IoU of an object of n pixels with the n strongest pixels of the map, 0 to 1.

    Args:
        heatmap: (rows, cols).
        mask: bool (height, width), True on the object; at least one pixel.
    """
    size = mask.shape[0], mask.shape[1]
    strongest = torch.zeros(mask.numel(), dtype=torch.bool)
    strongest[enlarged(heatmap, size).flatten().topk(int(mask.sum())).indices] = True
    both = strongest & mask.flatten()
    return float(both.sum() / (strongest | mask.flatten()).sum())
