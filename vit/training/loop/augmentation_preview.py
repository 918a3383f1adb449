"""Preview of augmented training pictures, as a contact sheet."""

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from vit.data.augment import RandomGenerators
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import model_config

_VERSIONS = 3  # augmented versions of each picture
_CELL_PIXELS = 72  # minimum side of a picture [px]


def preview(config: TrainConfig, images: Tensor) -> Image.Image:
    """Draw the original pictures in the first row, and augmented versions in the rows below.

    Args:
        config: whose augmentation is shown.
        images: uint8 (n, channels, height, width), from `sample`.
    """
    size = model_config(config, num_classes=1).image_size
    augment, generators = config.augmentation(size), RandomGenerators(torch.device("cpu"))
    rows = [images]
    if images.shape[2:] != size:
        rows = [F.interpolate(images.float(), size, mode="bilinear", antialias=True).round().to(torch.uint8)]
    for version in range(_VERSIONS):
        generators.seed(config.seed, version)
        augmented = augment(images, generators).float()  # (n, channels, height, width), 0 to 255
        augmented, _ = augment.mix(augmented, torch.zeros(len(images), 1), generators)
        rows.append(augmented.round().clamp(0, 255).to(torch.uint8))
    factor = max(1, -(-_CELL_PIXELS // size[1]))
    gap = max(4, size[1] * factor // 16)
    cells = torch.stack(rows).repeat_interleave(factor, 3).repeat_interleave(factor, 4)  # (rows, n, channels, h, w)
    down, across, channels, height, width = cells.shape
    sheet = np.zeros((down * (height + gap) + gap, across * (width + gap) - gap, 4), np.uint8)  # transparent
    for row in range(down):
        for col in range(across):
            pixels = cells[row, col].permute(1, 2, 0).numpy()
            y = row * (height + gap) + (gap if row else 0)  # a wider gap below the originals
            x = col * (width + gap)
            sheet[y : y + height, x : x + width, :3] = pixels if channels == 3 else pixels[..., :1]
            sheet[y : y + height, x : x + width, 3] = 255
    return Image.fromarray(sheet)
