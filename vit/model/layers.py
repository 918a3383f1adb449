"""Layers other than attention: linear layers in mixed precision, activations, the MLP, a block's branch.

Letters as in `vit.model`.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.config import Activation, ViTConfig


class Linear(nn.Linear):
    """A linear layer that computes in the dtype of its input and casts its weights as needed."""

    def forward(self, x: Tensor) -> Tensor:
        """Compute x W^T + b: (..., in) to (..., out)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x W^T + b, (..., in) to (..., out), in the dtype of x. Weights in half precision are cast on the fly."""
    if weight.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        if torch.is_grad_enabled() and x.requires_grad and not weight.requires_grad:
            return cast(Tensor, _LinearOfHalf.apply(x, weight, bias))
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    return F.linear(x, weight, bias)


class _LinearOfHalf(torch.autograd.Function):
    """Linear layer with frozen half-precision weights.

    The backward pass casts the weights again, so that the graph does not keep the casted copy in memory.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.saved_tensors[0].to(gradient.dtype), None, None


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x). Source: Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2; used by OpenAI CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        return x * torch.sigmoid(1.702 * x)


class TanhGELU(nn.Module):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2.

    Source: Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation elementwise."""
        if torch.compiler.is_compiling():  # (1 + tanh(y)) / 2 = sigmoid(2 y), which compiles to faster code
            return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))
        return F.gelu(x, approximate="tanh")


def _activation(name: Activation) -> nn.Module:
    return {"gelu": nn.GELU, "gelu_tanh": TanhGELU, "quick_gelu": QuickGELU, "silu": nn.SiLU}[name]()


class MLP(nn.Module):
    """Two linear layers, (B, N, D) to (B, N, M) to (B, N, D). If gated, `fc1` computes the gate, then the value.

    Source of the gated form: Shazeer 2020, arXiv 2002.05202, eq. 6.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.gated = config.gated_mlp
        self.fc1 = Linear(config.dim, config.mlp_dim * (2 if self.gated else 1))
        self.act = _activation(config.activation)
        self.norm = nn.LayerNorm(config.mlp_dim, config.eps) if config.mlp_norm else nn.Identity()
        self.fc2 = Linear(config.mlp_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, D) to the MLP's output (B, N, D)."""
        return self.fc2(self.dropout(self.activations(x)))

    def activations(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, D) to the hidden activations (B, N, M), the input of the second layer."""
        hidden = self.fc1(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, -1)
            return self.norm(self.act(gate) * hidden)
        return self.norm(self.act(hidden))


class Branch(nn.Module):
    """LayerScale, dropout and stochastic depth of a branch, applied before it is added to the residual stream.

    Source of stochastic depth: Huang et al. 2016, arXiv 1603.09382.
    """

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def forward(self, out: Tensor, scale: Tensor | None) -> Tensor:
        """Apply scale, dropout and stochastic depth: (B, N, D) to (B, N, D).

        Args:
            scale: (D,), or None for no LayerScale.
        """
        out = self.dropout(out if scale is None else out * scale)
        if self.training and self.drop_path:
            keep = torch.rand(out.shape[0], 1, 1, device=out.device) >= self.drop_path
            out = out * keep / (1 - self.drop_path)
        return out
