"""How much of a map is inside a region, such as the mask of an object."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vit.errors import InvalidImage
from vit.explain.faithfulness import points_at
from vit.images.preprocess import Preprocess


class RegionScore(NamedTuple):
    """Part of a map inside a region.

    Attributes:
        energy: share of the map's positive values, 0 to 1; 0 if there are none.
        pointing: whether the maximum is inside, see `vit.explain.faithfulness.points_at`.
        area: share of the picture, 0 to 1, which is the energy of a uniform map.
    """

    energy: float
    pointing: bool
    area: float


def region_score(heatmap: Tensor, region: Tensor) -> RegionScore:
    """Measure the part of a map inside a region.

    Args:
        heatmap: (rows, cols); negative values count as 0.
        region: bool (height, width), True inside, of the part of the picture that the model sees.

    Source: Wang et al. 2020, Score-CAM, arXiv 1910.01279, the energy-based pointing game.
    """
    positive = heatmap.double().clamp(min=0)
    inside = F.adaptive_avg_pool2d(region.double()[None], (heatmap.shape[0], heatmap.shape[1]))[0]
    energy = float((positive * inside).sum() / positive.sum().clamp_min(1e-30))
    return RegionScore(energy, points_at(heatmap, region), float(inside.mean()))


def region_of(mask: Image.Image, picture: Image.Image, preprocess: Preprocess) -> Tensor:
    """Resize and crop a picture's mask as the picture, without interpolation: bool (height, width).

    Args:
        mask: 0 outside the region.

    Raises:
        InvalidImage: the mask has another shape than the picture, or is empty where the model looks.
    """
    (width, height), (across, down) = mask.size, picture.size
    if abs(width * down - height * across) > max(width + height, across + down) / 2:  # sides rounded to pixels
        raise InvalidImage(f"A mask of {width} x {height} px has another shape than its picture, {across} x {down} px.")
    binary = Image.fromarray(np.array(mask.convert("RGB")).any(-1)).convert("RGB").resize(picture.size, 0)
    region = replace(preprocess, interpolation="nearest").input_image(binary)
    inside = torch.from_numpy(np.array(region.convert("L")) > 0)
    if not inside.any():
        raise InvalidImage("This mask is 0 wherever the model looks: paint the region in another colour than black.")
    return inside
