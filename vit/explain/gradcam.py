"""Grad-CAM on the input tokens of a block's attention, after the first LayerNorm.

Source: Selvaraju et al. 2017, arXiv 1610.02391, eq. 1 and 2; for these tokens as in jacobgil/pytorch-grad-cam.
"""

import torch
from torch import Tensor

from vit.explain.maps import checked_index, fuse
from vit.explain.relevance import check_target, frozen
from vit.explain.settings import Fusion
from vit.model.attention import HeadInputs, Hook, fused_attention_with_gradient
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer


def grad_cam(
    model: VisionTransformer,
    pixels: Tensor,
    target: int | None = None,
    block: int | Fusion = -1,
    hook: Hook | None = None,
) -> Tensor:
    """Multiply each token by the logit's gradient, which is averaged over all patches first, and keep what is positive.

    The backward pass ends at the first block that is explained.

    Args:
        model: the model.
        pixels: (1, channels, height, width).
        target: class to explain; None for the predicted one.
        block: an index, negative from the end, or how to fuse all of them.
        hook: on the heads' inputs, see `VisionTransformer.forward`.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        UserError: the model has no classes, or no such class.
        ValueError: more than one picture, an unsupported shape, or no such block.
    """
    first = 0 if isinstance(block, str) else checked_index("block", block, model.config.depth)
    tokens: list[Tensor] = []

    def capture(index: int, inputs: HeadInputs) -> Tensor:
        tokens.append(inputs.tokens)
        return inputs.output() if hook is None else hook(index, inputs)

    with torch.inference_mode(False), torch.enable_grad(), onednn():
        model = frozen(model, pixels)
        with torch.no_grad():
            every = hook is not None  # a hook applies to all tokens
            x, steps = model.walk(pixels.detach(), every=every, attend=fused_attention_with_gradient, hook=capture)
            for step in steps[:first]:
                x = step(x)
        x = x.detach().requires_grad_()
        for step in steps[first:]:
            x = step(x)
        logits = model.classify(x if hook is None else x[:, model.read])
        target = model.default_target(logits[0]) if target is None else target
        check_target(model.config, target)
        explained = tokens[first:] if isinstance(block, str) else [tokens[first]]
        gradients = torch.autograd.grad(logits[0, target], explained)
    prefix = len(model.config.prefix)
    pairs = zip(explained, gradients, strict=True)
    maps = torch.stack([one.detach()[0] @ gradient[0, prefix:].mean(0) for one, gradient in pairs]).clamp(min=0)
    return fuse(maps, block) if isinstance(block, str) else maps[0]
