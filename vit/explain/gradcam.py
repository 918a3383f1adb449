"""Grad-CAM on the input tokens of a block's attention, after the first LayerNorm.

Source: Selvaraju et al. 2017, arXiv 1610.02391, eq. 1 and 2; for these tokens as in jacobgil/pytorch-grad-cam.
"""

from torch import Tensor

from vit.explain.maps import checked_index, fuse
from vit.explain.settings import Fusion


def channel_map(tokens: Tensor, gradient: Tensor, prefix: int) -> Tensor:
    """Multiply each token by the logit's gradient, which is averaged over all patches first: Grad-CAM before its ReLU.

    Args:
        tokens: (N, D), input of a block's attention.
        gradient: (N, D), of the target's logit with respect to them.
        prefix: S, number of tokens before the patches.

    Returns:
        (N,), before the relu.
    """
    return tokens @ gradient[prefix:].mean(0)


def gradcam(channel_maps: Tensor, block: int | Fusion = -1) -> Tensor:
    """Return the positive part of one block's channel map, or of all blocks' maps fused.

    Args:
        channel_maps: (L, N).
        block: an index, negative from the end, or how to fuse all of them.

    Returns:
        (N,), at least 0.

    Raises:
        ValueError: no such block.
    """
    maps = channel_maps.clamp(min=0)
    return fuse(maps, block) if isinstance(block, str) else maps[checked_index("block", block, len(maps))]
