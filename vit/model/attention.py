"""Multi-head self-attention, and the learnt query that gathers from all tokens.

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

EVERY = slice(None)  # tokens
EXPLICIT_TOKENS = 640  # up to so many the matrix of attention is small

Mix = Callable[[Tensor, Tensor, Tensor], Tensor]  # q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K)


class HeadInputs(NamedTuple):
    """What the heads of a block compute with, still part of autograd's graph.

    Attributes:
        tokens: (B, N, D) that the block's attention reads, after the LayerNorm.
        q: (B, H, Q, K); K is larger than that of the values where scores have biases, see `with_biases`.
        k, v: (B, H, N, K).
        mixed: gives the heads' outputs, each its mix of the values: (B, H, Q, K) for the tokens of the pass's `rows`.
    """

    tokens: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    mixed: Callable[[], Tensor]


Hook = Callable[[int, HeadInputs], Tensor]  # of a block, by its number: gives the heads' outputs that it goes on with


class Route(NamedTuple):
    """How a pass goes through a block; the same for all of them but for what is read after the last one.

    Attributes:
        block: its number, from 0.
        rows: the tokens that leave it.
        queries: the tokens whose queries are computed, where they are not the same.
        rope: cosine and sine (N, K) or (H, N, K) of rotary positions.
        biases: numbers (distances, H) that are added to the scores, and which one (N, N) a query has for a key.
        mix: how values are mixed; None for the fastest way there is.
        hook: sees what the heads compute with, and gives their outputs; None to take them as they are.
    """

    block: int = 0
    rows: slice = EVERY
    queries: slice | None = None
    rope: tuple[Tensor, Tensor] | None = None
    biases: tuple[Tensor, Tensor] | None = None
    mix: Mix | None = None
    hook: Hook | None = None


DIRECT = Route()


class Attention(nn.Module):
    """Multi-head self-attention with a fused projection to queries, keys and values."""

    speeds: nn.Parameter | None  # (2, H, K / 2), of "mixed" rotary positions
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
        self.explicit = False  # matrices may be held in passes that go back, see `mixed_both_ways`

    def forward(self, x: Tensor, route: Route = DIRECT) -> Tensor:
        """Tokens (B, N, D) to what attention adds to them (B, Q, D), for the Q tokens of the route's `rows`."""
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
        mix = route.mix or (mixed_both_ways if goes_back else mixed)

        def heads() -> Tensor:
            return mix(q if route.queries is None else q[:, :, route.rows], k, v)

        out = heads() if route.hook is None else route.hook(route.block, HeadInputs(x, q, k, v, heads))
        return self.proj(self.norm(out.transpose(1, 2).flatten(2)))

    def project(self, x: Tensor, rows: slice) -> tuple[Tensor, ...]:
        """Queries (B, Q, D) of the tokens in `rows`; keys and values (B, N, D) of all."""
        if rows == EVERY:
            return self.qkv(x).chunk(3, -1)
        dim, weight, bias = x.shape[-1], self.qkv.weight, self.qkv.bias
        q = linear(x[:, rows], weight[:dim], None if bias is None else bias[:dim])
        return q, *linear(x, weight[dim:], None if bias is None else bias[dim:]).chunk(2, -1)


def with_biases(q: Tensor, k: Tensor, biases: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys whose scores q k^T / sqrt(K) hold biases, for all who compute attention from the two.

    Each key gets a channel of its own, in which a query has its bias for that key.

    Args:
        q: (B, H, Q, K).
        k: (B, H, N, K).
        biases: (H, Q, N).

    Returns:
        (B, H, Q, K + N) and (B, H, N, K + N).
    """
    width, tokens = k.shape[-1], k.shape[-2]
    wider = width + tokens
    own = (biases * wider**0.5).to(q.dtype).expand(len(q), -1, -1, -1)
    places = torch.eye(tokens, dtype=k.dtype, device=k.device).expand(*k.shape[:2], -1, -1)
    return torch.cat([q * (wider / width) ** 0.5, own], -1), torch.cat([k, places], -1)


def mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values mixed by attention, by torch's fused kernel: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K).

    On a CPU that kernel takes longer in bfloat16 than in float32: 19 against 12 ms at 1,025 tokens.
    """
    rounded_on_cpu = q.is_cpu and q.dtype is torch.bfloat16
    if rounded_on_cpu and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        with torch.autocast("cpu", enabled=False), onednn():
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float()).to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v)


def explicitly_mixed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values mixed by attention, by two products and softmax: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K)."""
    return attention_weights(q, k) @ v


def mixed_both_ways(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Values mixed by attention in a pass that goes back: q (B, H, Q, K), k and v (B, H, N, K) to (B, H, Q, K).

    On a CPU the fused kernel is slower there than to hold small matrices.
    """
    small = q.is_cpu and k.shape[-2] <= EXPLICIT_TOKENS
    return explicitly_mixed(q, k, v) if small else F.scaled_dot_product_attention(q, k, v)


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)): (..., Q, K) and (..., N, K) to (..., Q, N), rows summing to 1."""
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)


class AttentionPool(nn.Module):
    """One learnt query gathers from all tokens: multi-head attention pooling.

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
        """Tokens (B, N, D) to the gathered features (B, D), and to where the query looked (B, H, N)."""
        probe = self.probe.expand(x.shape[0], -1, -1)
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.q(probe), *self.kv(x).chunk(2, -1))
        )
        attention = attention_weights(q, k)  # (B, H, 1, N)
        x = self.proj((attention @ v).transpose(1, 2).flatten(2))
        x = x + self.mlp(self.norm(x))
        return x[:, 0], attention[:, :, 0]
