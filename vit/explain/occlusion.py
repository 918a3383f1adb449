"""Occlusion: predictions with some patches covered.

Models are not modified, so that several threads can share one.
"""

from collections.abc import Collection
from typing import Literal

import torch
from torch import Tensor

from vit.model.attention import Hook
from vit.model.cost import Progress, images_per_batch, pass_seconds, size_of
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer

Baseline = Literal["mean", "blur", "noise"]
_BLUR_SIDES = 0.1  # standard deviation of the blur, relative to the longer side of the picture


def hide_patches(pixels: Tensor, patches: Collection[int], patch_size: int, baseline: Baseline = "mean") -> Tensor:
    """Cover patches of a picture.

    Args:
        pixels: (1, channels, height, width), normalised.
        patches: row-major indices from 0.
        baseline: replacement: the picture's mean colour, the blurred picture, or the same noise each time, with the
            picture's mean and standard deviation.

    Raises:
        ValueError: a patch does not exist.
    """
    rows, cols = pixels.shape[2] // patch_size, pixels.shape[3] // patch_size
    if any(not 0 <= patch < rows * cols for patch in patches):
        raise ValueError(f"Patches run from 0 to {rows * cols - 1}.")
    mask = torch.zeros(rows * cols, dtype=torch.bool, device=pixels.device)
    mask[list(patches)] = True
    mask = mask.view(rows, cols).repeat_interleave(patch_size, 0).repeat_interleave(patch_size, 1)
    mean = pixels.mean((2, 3), keepdim=True)
    if baseline == "mean":
        replacement = mean
    elif baseline == "blur":
        from torchvision.transforms.v2.functional import gaussian_blur  # noqa: PLC0415 # imports torch's compiler: 2 s

        sigma = max(pixels.shape[2:]) * _BLUR_SIDES
        # Reflection padding must be smaller than the picture.
        kernel = min(2 * round(2 * sigma) + 1, 2 * min(pixels.shape[2:]) - 1)
        replacement = gaussian_blur(pixels, [kernel, kernel], [sigma, sigma])
    else:
        noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(0)).to(pixels)
        replacement = mean + noise * pixels.std((2, 3), keepdim=True)
    return torch.where(mask, replacement, pixels)


@torch.inference_mode()
def occlusion(
    model: VisionTransformer,
    pixels: Tensor,
    baseline: Baseline = "mean",
    hook: Hook | None = None,
    hide: Collection[int] = (),
    progress: Progress = lambda share: None,
) -> Tensor:
    """Compute the model's predictions with each single patch covered.

    Args:
        pixels: (1, channels, height, width), normalised.
        baseline: see `hidden`.
        hook: replaces head outputs, see `VisionTransformer.forward`.
        hide: patches that are covered in addition.
        progress: called with the fraction that is done.

    Returns:
        (P, C) probabilities.

    Source: Zeiler and Fergus 2014, arXiv 1311.2901, section 4.2; with the model's own patches.
    """
    side = model.config.patch_size
    rows, cols = pixels.shape[2] // side, pixels.shape[3] // side
    covered = hide_patches(pixels, range(rows * cols), side, baseline)
    pixels = hide_patches(pixels, hide, side, baseline)
    per_batch, answers = images_per_batch(model.config, size_of(pixels)), []
    with onednn():
        for patches in torch.arange(rows * cols).split(per_batch):
            pictures = pixels.repeat(len(patches), 1, 1, 1)
            for picture, patch in zip(pictures, patches.tolist(), strict=True):
                down, right = (slice(at * side, (at + 1) * side) for at in divmod(patch, cols))
                picture[:, down, right] = covered[0, :, down, right]
            answers.append(model.probabilities(model(pictures, hook=hook).logits))
            progress((int(patches[-1]) + 1) / (rows * cols))
    return torch.cat(answers)


def occlusion_seconds(model: VisionTransformer, size: tuple[int, int]) -> float:
    """Estimate the duration of `occlusion` for an input (height, width) [px] in seconds."""
    patches = (size[0] // model.config.patch_size) * (size[1] // model.config.patch_size)
    return pass_seconds(model, size, patches)
