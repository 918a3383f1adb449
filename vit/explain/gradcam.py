"""Grad-CAM of the tokens that a block's attention reads, which are those after its first LayerNorm.

Source: Selvaraju et al. 2017, arXiv 1610.02391, eq. 1 and 2; of these tokens as in jacobgil/pytorch-grad-cam.
"""

from torch import Tensor

from vit.explain.maps import checked_index, fuse
from vit.explain.settings import Fusion


def channel_map(tokens: Tensor, gradient: Tensor, prefix: int) -> Tensor:
    """Weigh each token's channels by the logit's gradient, averaged over the patches.

    Args:
        tokens: (N, D), what a block's attention reads.
        gradient: (N, D), of the target's logit by them.
        prefix: S, tokens before the patches.

    Returns:
        (N,), before the relu.
    """
    return tokens @ gradient[prefix:].mean(0)


def gradcam(channel_maps: Tensor, block: int | Fusion = -1) -> Tensor:
    """Positive part of one block's channel map, or of all blocks' fused.

    Args:
        channel_maps: (L, N).
        block: an index, negative from the end, or how to fuse all of them.

    Returns:
        (N,), at least 0.

    Raises:
        ValueError: there is no such block.
    """
    maps = channel_maps.clamp(min=0)
    return fuse(maps, block) if isinstance(block, str) else maps[checked_index("block", block, len(maps))]
