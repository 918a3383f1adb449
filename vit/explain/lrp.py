"""AttnLRP: how much each token contributes to a class, with its sign, by layer-wise relevance propagation.

One forward and one backward pass. The forward pass is the model's own; the backward pass carries relevance in the form
"value times gradient", and its rules replace the gradients of four kinds of operations:

    normalisation   the deviation, or the length, is a constant
    activation      f(x) = x * r, and the ratio r = f(x) / x is a constant
    product of two  each factor gets half: queries and keys, attention and values, gate and value of an MLP
    all others      their gradient: linear layers, means, the residual stream, and the softmax of attention

Sources: Achtibat et al. 2024, arXiv 2402.05602, eq. 7 to 15; in the form of gradients as in Arras et al. 2025,
arXiv 2502.15886.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from vit.explain.maps import checked_index
from vit.explain.relevance import check_target, frozen
from vit.model.attention import Hook, fused_attention_with_gradient
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer


def attnlrp(
    model: VisionTransformer,
    pixels: Tensor,
    target: int | None = None,
    block: int = 0,
    hook: Hook | None = None,
) -> Tensor:
    """Compute the relevance of each token that enters a block to the logit of a class.

    The model is not modified, and computes in evaluation mode. Relevance that reaches biases, and relevance that the
    softmax of attention absorbs, belongs to no token, so the sum differs from the logit.

    Args:
        model: the model.
        pixels: (1, channels, height, width).
        target: class to explain; None for the predicted one.
        block: whose input tokens are explained, negative from the end; 0 for the patch embeddings with positions.
        hook: on the heads' inputs, see `VisionTransformer.forward`.

    Returns:
        (N,), in units of the logit; negative for tokens that speak against the class.

    Raises:
        UserError: the model has no classes, or no such class.
        ValueError: more than one picture, an unsupported shape, or no such block.
    """
    block = checked_index("block", block, model.config.depth)
    with torch.inference_mode(False), torch.enable_grad(), onednn():
        model = frozen(model, pixels)
        with torch.no_grad():
            every = hook is not None  # a hook applies to all tokens
            x, steps = model.walk(pixels.detach(), every=every, attend=fused_attention_with_gradient, hook=hook)
            for step in steps[:block]:
                x = step(x)
        tokens = x.detach().requires_grad_()
        x = tokens
        with _Rules():
            for step in steps[block:]:
                x = step(x)
            logits = model.classify(x if hook is None else x[:, model.read])
        target = model.default_target(logits[0]) if target is None else target
        check_target(model.config, target)
        (gradient,) = torch.autograd.grad(logits[0, target], tokens)
        return (tokens.detach() * gradient)[0].sum(-1)


class _Rules(TorchFunctionMode):
    """Applies the rules to all operations of torch inside, in this thread."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        return _RULES.get(func, func)(*args, **(kwargs or {}))


class _Carried(torch.autograd.Function):
    """Returns `output`; the gradient of `x` is `ratio` times that of `output`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, output: Tensor, ratio: Tensor | float) -> Tensor:
        ctx.ratio = ratio
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0] * ctx.ratio, None, None


def _carry(x: Tensor, output: Tensor, ratio: Tensor | float) -> Tensor:
    carried: Tensor = _Carried.apply(x, output.detach(), ratio)
    return carried


def _activation(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            output = function(x, *args, **kwargs)
            ratio = output / x.where(x != 0, 1)
        return _carry(x, output, ratio)

    return rule


def _product(function: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    def rule(one: Tensor, other: Any) -> Tensor:
        output = function(one, other)
        if one.requires_grad and isinstance(other, Tensor) and other.requires_grad:
            return _carry(output, output, 0.5)
        return output  # a constant factor, such as LayerScale, gets nothing

    return rule


def _layer_norm(
    x: Tensor, shape: Any, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.detach().square().mean(-1, keepdim=True) + eps).sqrt()
    output = centred / deviation if weight is None else centred / deviation * weight
    return output if bias is None else output + bias


def _normalize(x: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: None = None) -> Tensor:
    return x / x.detach().norm(p, dim, keepdim=True).clamp_min(eps)


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The rule of both products at once: the fused kernel does not expose the attention between them."""
    return F.scaled_dot_product_attention(_carry(q, q, 0.25), _carry(k, k, 0.25), _carry(v, v, 0.5))


# By the functions that torch dispatches; operators arrive as methods of `Tensor`. A sigmoid is the ratio of QuickGELU.
_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    F.layer_norm: _layer_norm,
    F.normalize: _normalize,
    F.gelu: _activation(F.gelu),
    F.silu: _activation(F.silu),
    Tensor.tanh: _activation(Tensor.tanh),
    torch.sigmoid: lambda x: torch.sigmoid(x).detach(),
    Tensor.mul: _product(Tensor.mul),
    Tensor.matmul: _product(Tensor.matmul),
    F.scaled_dot_product_attention: _attention,
}
