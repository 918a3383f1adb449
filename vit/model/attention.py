"""Multi-head self-attention and attention pooling.

Letters as in `vit.model`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.layers import MLP, Linear, linear
from vit.model.positions import apply_rotary, distances

EVERY = slice(None)  # all tokens
EXPLICIT_TOKENS = (
    640  # up to this many tokens `fused_attention_with_gradient` materialises the attention matrix on a CPU
)

AttentionFunction = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K)


class HeadInputs(NamedTuple):
    """Inputs of a block's attention heads, attached to the autograd graph.

    Attributes:
        tokens: (B, N, D), input of the attention layer, after the LayerNorm.
        q: (B, H, Q, K); with position biases K is larger than that of the values, see `with_biases`.
        k, v: (B, H, N, K).
        output: computes the heads' outputs (B, H, Q, K), for the tokens in the route's `rows`.
    """

    tokens: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    output: Callable[[], Tensor]


Hook = Callable[[int, HeadInputs], Tensor]  # block index and its head inputs to the head outputs that the block uses


class Route(NamedTuple):
    """Options of a forward pass for one block.

    Attributes:
        block: index, from 0.
        rows: output tokens; the last block computes only those that are read after it.
        queries: tokens whose queries are computed; None for `rows`.
        rope: cosine and sine (N, K) or (H, N, K) of rotary positions.
        biases: table (distances, H) of score biases, and the table index (N, N) of each query-key pair.
        attend: attention function; None for the fastest one.
        hook: computes the head outputs from the head inputs; None for the standard outputs.
    """

    block: int = 0
    rows: slice = EVERY
    queries: slice | None = None
    rope: tuple[Tensor, Tensor] | None = None
    biases: tuple[Tensor, Tensor] | None = None
    attend: AttentionFunction | None = None
    hook: Hook | None = None


DIRECT = Route()


class Attention(nn.Module):
    """Multi-head self-attention with a fused projection to queries, keys and values."""

    speeds: nn.Parameter | None  # (2, H, K / 2), learnt frequencies of "mixed" rotary positions
    position_bias: nn.Parameter | None  # (distances, H), see `relative_places`

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.heads
        self.qkv = Linear(config.dim, 3 * config.dim, bias=config.qkv_bias)
        self.norm = nn.LayerNorm(config.dim, config.eps) if config.attn_norm else nn.Identity()
        self.proj = Linear(config.dim, config.dim)
        self.neighbours = config.rope_places != "centred"
        mixed = config.rope is not None and config.rope_places == "mixed"
        speeds = nn.Parameter(torch.zeros(2, config.heads, config.dim // config.heads // 2)) if mixed else None
        self.register_parameter("speeds", speeds)
        table = None if config.position_bias is None else nn.Parameter(torch.zeros(distances(config), config.heads))
        self.register_parameter("position_bias", table)
        self.explicit = False  # allows `fused_attention_with_gradient` in passes with gradients

    def forward(self, x: Tensor, route: Route = DIRECT) -> Tensor:
        """Map tokens (B, N, D) to the attention output (B, Q, D) of the Q tokens in the route's `rows`."""
        queries = route.rows if route.queries is None else route.queries
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.project(x, queries))
        if route.rope is not None:  # q (B, H, Q, K); k, v (B, H, N, K)
            cosine, sine = route.rope
            q = apply_rotary(q, cosine[..., queries, :], sine[..., queries, :], self.neighbours)
            k = apply_rotary(k, cosine, sine, self.neighbours)
        if route.biases is not None:
            table, places = route.biases
            q, k = with_biases(q, k, table.T[:, places[queries]])
        goes_back = self.explicit and torch.is_grad_enabled()
        attend = route.attend or (fused_attention_with_gradient if goes_back else fused_attention)

        def heads() -> Tensor:
            return attend(q if route.queries is None else q[:, :, route.rows], k, v)

        out = heads() if route.hook is None else route.hook(route.block, HeadInputs(x, q, k, v, heads))
        return self.proj(self.norm(out.transpose(1, 2).flatten(2)))

    def project(self, x: Tensor, rows: slice) -> tuple[Tensor, ...]:
        """Compute queries (B, Q, D) of the tokens in `rows`, and keys and values (B, N, D) of all tokens."""
        if rows == EVERY:
            return self.qkv(x).chunk(3, -1)
        dim, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
        q = linear(x[:, rows], weight[:dim], None if bias is None else bias[:dim])
        return q, *linear(x, weight[dim:], None if bias is None else bias[dim:]).chunk(2, -1)


def with_biases(q: Tensor, k: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """Append channels to queries and keys so that the scores q k^T / sqrt(K) include biases.

    Any function that computes attention from q and k alone then works unchanged. Each key gets one extra channel, set
    to 1; each query holds its bias for that key in it.

    Args:
        q: (B, H, Q, K).
        k: (B, H, N, K).
        biases: (H, Q, N).

    Returns:
        (B, H, Q, K + N) and (B, H, N, K + N).
    """
    width, tokens = k.shape[-1], k.shape[-2]
    wider = width + tokens
    # Attention divides scores by sqrt(wider), not sqrt(width): scale the queries and the biases to compensate.
    bias_channels = (biases * wider**0.5).to(q.dtype).expand(len(q), -1, -1, -1)
    one_hot = torch.eye(tokens, dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
    return torch.cat([q * (wider / width) ** 0.5, bias_channels], -1), torch.cat([k, one_hot], -1)


def fused_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with torch's fused kernel: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K)."""
    # On a CPU the fused kernel is slower in bfloat16 than in float32: 19 ms against 12 ms for 1,025 tokens.
    rounded_on_cpu = q.is_cpu and q.dtype is torch.bfloat16
    if rounded_on_cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        with torch.autocast("cpu", enabled=False), onednn():
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v)


def explicit_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention with an explicit matrix: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K)."""
    return attention_weights(q, k) @ v


def fused_attention_with_gradient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention for a forward and backward pass: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K).

    On a CPU the fused kernel's backward pass is slower than an explicit matrix for few tokens.
    """
    small = q.is_cpu and k.shape[-2] <= EXPLICIT_TOKENS
    return explicit_attention(q, k, v) if small else F.scaled_dot_product_attention(q, k, v)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """Compute softmax(q k^T / sqrt(K)): (..., Q, K) and (..., N, K) to (..., Q, N); rows sum to 1."""
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)


class AttentionPool(nn.Module):
    """Multi-head attention pooling: one learnt query attends to tokens.

    Source: Zhai et al. 2022, arXiv 2106.04560, section 3.2; used by SigLIP, arXiv 2303.15343.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.heads = config.pool_heads or config.heads
        self.probe = nn.Parameter(torch.zeros(1, 1, config.dim))
        self.q = Linear(config.dim, config.dim)
        self.kv = Linear(config.dim, 2 * config.dim)
        self.proj = Linear(config.dim, config.dim)
        self.norm = nn.LayerNorm(config.dim, config.eps)
        self.mlp = MLP(replace(config, mlp_dim=config.pool_mlp_dim or config.mlp_dim, mlp_norm=False))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map tokens (B, N, D) to pooled features (B, D) and the query's attention (B, H, N)."""
        probe = self.probe.expand(x.shape[0], -1, -1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(probe), *self.kv(x).chunk(2, -1))
        )
        attention = attention_weights(q, k)  # (B, H, 1, N)
        x = self.proj((attention @ v).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm(x))
        return x[:, 0], attention[:, :, 0]
