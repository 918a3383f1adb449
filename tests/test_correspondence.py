"""Correspondence by the features of the shipped checkpoint: a planted, moved object is found again."""

from itertools import permutations
from pathlib import Path

import pytest
import torch
from torch import Tensor

import vit
from vit.checkpoints.input_sizes import resized
from vit.explain.components import patch_features
from vit.explain.correspondence import matches
from vit.images import samples

SHIPPED = Path(__file__).parents[1] / "checkpoints" / "cifar10"
PHOTOS = ("cat", "raccoon", "astronaut", "coffee")
SIDE = 6  # of the object [patches]
HERE, THERE = (4, 4), (8, 7)  # its upper left corner (row, column), before and after


def planted(pixels: Tensor, thing: Tensor, place: tuple[int, int], patch: int) -> Tensor:
    row, col = (at * patch for at in place)
    result = pixels.clone()
    result[:, :, row : row + thing.shape[2], col : col + thing.shape[3]] = thing
    return result


@pytest.mark.parametrize("block", range(6))
def test_moved_object_is_found_first_on_another_photo(block: int) -> None:
    checkpoint = vit.load_checkpoint(SHIPPED)
    patch, preprocess = checkpoint.config.patch_size, resized(checkpoint.preprocess, (64, 64))
    pixels = {name: preprocess(vit.decode_image(samples.read(name))) for name in PHOTOS}
    random = torch.Generator().manual_seed(0)
    inner = [(row, col) for row in range(1, SIDE - 1) for col in range(1, SIDE - 1)]
    found = mutual = count = 0
    for one, other in permutations(PHOTOS, 2):
        squares = 2 * torch.randn(1, 3, 2 * SIDE, 2 * SIDE, generator=random)  # four in each patch, all different
        thing = squares.repeat_interleave(patch // 2, 2).repeat_interleave(patch // 2, 3)
        source = patch_features(checkpoint.model, planted(pixels[one], thing, HERE, patch), block)
        target = patch_features(checkpoint.model, planted(pixels[other], thing, THERE, patch), block)
        result = matches(source, target, 1)
        cols = source.shape[1]
        for row, col in inner:
            token = (HERE[0] + row) * cols + HERE[1] + col
            right = int(result.patches[token, 0]) == (THERE[0] + row) * cols + THERE[1] + col
            found, mutual, count = found + right, mutual + bool(right and result.mutual[token, 0]), count + 1
    assert count == 192 and found >= 0.95 * count and mutual >= 0.9 * count
