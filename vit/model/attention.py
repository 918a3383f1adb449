"""Multi-head self-attention, and the learnt query that gathers from all tokens.

Letters as in `vit.model`.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.layers import MLP, Linear, linear
from vit.model.positions import turn

Keep = Literal["nothing", "attention", "queries_keys", "gradients"]


class HeadOutputs(NamedTuple):
    """What a block's attention computed, still part of autograd's graph.

    Attributes:
        tokens: (B, N, D) that it read, after the LayerNorm.
        q, k, v: (B, H, N, K).
        heads: (B, H, Q, K), each head's mix of the values before the projection, for the Q tokens that were asked for.
    """

    tokens: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    heads: Tensor


EVERY = slice(None)  # tokens
_SMALL = 640  # tokens


Kept = Tensor | tuple[Tensor, Tensor] | HeadOutputs | None


class Attention(nn.Module):
    """Multi-head self-attention with a fused projection to queries, keys and values."""

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.proj = Linear(config.dim, config.dim)
        self.explicit = False  # by two products and a softmax, where torch's fused attention is slower

    def forward(
        self,
        x: Tensor,
        keep: Keep = "nothing",
        rows: slice = EVERY,
        turns: tuple[Tensor, Tensor] | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Kept]:
        """(B, N, D) to (B, Q, D) for the Q tokens in `rows`, and what `keep` asks for.

        Args:
            turns: cosine and sine (N, K) of the rotary positions.
            change: what becomes of the heads' outputs (B, H, Q, K) before they are joined.
        """
        asked = EVERY if keep == "gradients" else rows
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x, asked))
        attention = None  # q (B, H, Q, K); k, v (B, H, N, K)
        if turns is not None:
            q, k = turn(q, *(part[asked] for part in turns)), turn(k, *turns)
        if keep == "gradients":
            kept = HeadOutputs(x, q, k, v, mixed_both_ways(q[:, :, rows], k, v))
            out = kept.heads if change is None else change(kept.heads)
            return self.proj(out.transpose(1, 2).flatten(2)), kept
        if keep == "attention" or self.explicit:
            attention = attention_weights(q, k)
            out = attention @ v
        else:
            out = mixed(q, k, v)
        if change is not None:
            out = change(out)
        out = self.proj(out.transpose(1, 2).flatten(2))
        if keep == "queries_keys":
            return out, (q.contiguous(), k.contiguous())  # views would hold on to the values too
        return out, attention if keep == "attention" else None

    def project(self, x: Tensor, rows: slice) -> tuple[Tensor, ...]:
        """Queries (B, Q, D) of the tokens in `rows`; keys and values (B, N, D) of all."""
        if rows == EVERY:
            return self.qkv(x).chunk(3, -1)
        dim, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
        q = linear(x[:, rows], weight[:dim], None if bias is None else bias[:dim])
        return q, *linear(x, weight[dim:], None if bias is None else bias[dim:]).chunk(2, -1)


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values mixed by attention, by torch's fused kernel: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K).

    On a CPU that kernel takes longer in bfloat16 than in float32: 19 against 12 ms at 1,025 tokens.
    """
    rounded_on_cpu = q.is_cpu and q.dtype is torch.bfloat16
    if rounded_on_cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        with torch.autocast("cpu", enabled=False), onednn():
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v)


def mixed_both_ways(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same for a pass that goes back: on a CPU the fused kernel is slower there than to hold small matrices."""
    small = q.is_cpu and k.shape[-2] <= _SMALL
    return attention_weights(q, k) @ v if small else F.scaled_dot_product_attention(q, k, v)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)): (..., Q, K) and (..., N, K) to (..., Q, N), rows summing to 1."""
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)


class AttentionPool(nn.Module):
    """One learnt query gathers from all tokens: multi-head attention pooling.

    Source: Zhai et al. 2022, arXiv 2106.04560, section 3.2; used by SigLIP, arXiv 2303.15343.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.probe = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.q = Linear(config.dim, config.dim)
        self.kv = Linear(config.dim, 2 * config.dim)
        self.proj = Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, N, D) to the gathered features (B, D) and to where the query looked (B, H, N)."""
        probe = self.probe.expand(x.shape[0], -1, -1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(probe), *self.kv(x).chunk(2, -1))
        )
        attention = attention_weights(q, k)  # (B, H, 1, N)
        x = self.proj((attention @ v).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm(x))
        return x[:, 0], attention[:, :, 0]
