"""The Vision Transformer: one forward pass, torch only.

Letters used everywhere in this project:

    B  images in the batch        H  attention heads
    L  blocks                     K  width of one head, D / H
    N  tokens, S + P              M  width of the MLP
    S  prefix tokens (class, registers)
    P  patches, rows x cols       C  classes
    D  width of a token

Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv 2010.11929.
"""

import math
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Lock
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.config import Activation, PositionResize, ViTConfig

Keep = Literal["nothing", "attention", "queries_keys", "gradients"]


class ViTOutput(NamedTuple):
    """What one forward pass gives.

    Attributes:
        logits: (B, C); the pooled features (B, D) of a model without a head.
        attentions: one (B, H, N, N) per block: rows query, columns key, rows sum to 1. None unless asked for.
        queries, keys: one (B, H, N, K) per block. None unless asked for.
        pool_attention: (B, H, N), where the learnt query of a "map" pool looks; with either of the above.
        tokens: (B, N, D) after the last block, through the final LayerNorm if it comes before the pool; with
            queries and keys.
    """

    logits: Tensor
    attentions: tuple[Tensor, ...] | None = None
    queries: tuple[Tensor, ...] | None = None
    keys: tuple[Tensor, ...] | None = None
    pool_attention: Tensor | None = None
    tokens: Tensor | None = None


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
Change = Callable[[int, Tensor], Tensor]  # of what a block's heads give: its number and (B, H, N, K) to (B, H, N, K)
_SMALL = 640  # tokens


class Linear(nn.Linear):
    """A linear layer that computes in the precision of its input, whatever its weights are kept in."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b: (..., in) to (..., out), in the precision of x; weights kept in half are cast one layer at a time."""
    if weight.dtype != x.dtype and not torch.is_autocast_enabled(x.device.type):
        if torch.is_grad_enabled() and x.requires_grad and not weight.requires_grad:
            return cast(Tensor, _LinearOfHalf.apply(x, weight, bias))
        weight, bias = weight.to(x.dtype), None if bias is None else bias.to(x.dtype)
    return F.linear(x, weight, bias)


class _LinearOfHalf(torch.autograd.Function):
    """The same by weights that do not learn, cast once more on the way back and not held until then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = gradients
        return gradient @ ctx.saved_tensors[0].to(gradient.dtype), None, None


def _exact_on_cpu(x: Tensor) -> bool:
    """A float32 tensor on the CPU, of a pass that nothing learns from and nobody traces."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and x.dtype is torch.float32
        and x.is_cpu
        and not torch.is_autocast_enabled("cpu")
    )


@contextmanager
def onednn() -> Iterator[None]:
    """Let oneDNN compute float32 products on the CPU where it is exact: on AMD's processors it takes half MKL's time.

    torch turns to oneDNN for float32 only once rounding to bfloat16 is allowed. oneDNN makes use of that on chips with
    units for it and computes in float32 on all others, so this has no effect but on those.
    """
    global _inside, _before
    matmul = cast(Any, torch.backends.mkldnn).matmul
    with _lock:  # the setting is the whole process's: the first one in sets it, the last one out puts it back
        exact = _onednn_is_exact()
        if exact and not _inside:
            _before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        _inside += exact
    try:
        yield
    finally:
        with _lock:
            _inside -= exact
            if exact and not _inside:
                matmul.fp32_precision = _before


_lock = Lock()
_inside, _before = 0, "none"


def processor() -> dict[str, Any]:
    """What units the CPU has, like "avx512_bf16": True; empty where torch cannot say."""
    return getattr(torch.cpu, "get_capabilities", dict)()


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN, allowed to round, does not."""
    chip = processor()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not x86 or not torch.backends.mkldnn.is_available() or any(chip[unit] for unit in chip if "amx" in unit):
        return False
    matmul = cast(Any, torch.backends.mkldnn).matmul
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((2, 197, 384), (384, 384)))
    heads = x.unflatten(-1, (6, 64)).transpose(1, 2)
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        product, mixed = F.linear(x, weight), F.scaled_dot_product_attention(heads, heads, heads)
    finally:
        matmul.fp32_precision = before
    wide = heads.double()
    return all(
        bool((found - right).abs().max() < 1e-5 * right.abs().max())  # rounding moves it by 2e-3
        for found, right in (
            (product, F.linear(x.double(), weight.double())),
            (mixed, F.scaled_dot_product_attention(wide, wide, wide)),
        )
    )


def rounded(model: "VisionTransformer") -> "VisionTransformer":
    """A copy whose large matrices are bfloat16: half the memory, and a pass in bfloat16 need not round them again."""
    with torch.device("meta"):
        copy = VisionTransformer(model.config)
    large = {f"{name}.weight" for name, module in model.blocks.named_modules(prefix="blocks") if type(module) is Linear}
    state = {
        name: tensor.to(torch.bfloat16) if name in large else tensor.clone()
        for name, tensor in model.state_dict().items()
    }
    copy.load_state_dict(state, assign=True)
    return copy.train(model.training)


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


def turn(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions: (B, H, N, K) with each pair (i, i + K / 2) turned by its token's angle (N, K)."""
    one, other = x.chunk(2, -1)
    return x * cosine + torch.cat([-other, one], -1) * sine


def rotations(config: ViTConfig, grid: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Cosine and sine (N, K) of the angles by which a token's queries and keys are turned; prefix tokens are not.

    Source: Su et al. 2021, arXiv 2104.09864; over rows and columns from -1 to 1 as in DINOv3, arXiv 2508.10104,
    section 3.2.
    """
    width = config.dim // config.heads
    rows, cols = (2 * (torch.arange(side, device=device) + 0.5) / side - 1 for side in grid)
    places = torch.stack([rows[:, None].expand(grid), cols.expand(grid)], -1).reshape(-1, 2, 1)  # (P, 2, 1)
    assert config.rope is not None
    speeds = config.rope ** -torch.arange(0, 1, 4 / width, device=device)  # (K / 4,)
    angles = (2 * math.pi * places * speeds).flatten(1).tile(2)  # (P, K)
    angles = torch.cat([angles.new_zeros(len(config.prefix), width), angles])
    return angles.cos(), angles.sin()


def attention_weights(q: Tensor, k: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)): (..., Q, K) and (..., N, K) to (..., Q, N), rows summing to 1."""
    return (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)


class QuickGELU(nn.Module):
    """x * sigmoid(1.702 x). Source: Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2; used by OpenAI CLIP."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        return x * torch.sigmoid(1.702 * x)


class TanhGELU(nn.Module):
    """x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2. Source: the same, section 2."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        if torch.compiler.is_compiling():  # (1 + tanh(y)) / 2 = sigmoid(2 y), which compiles to faster code
            return x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x * x * x))
        return F.gelu(x, approximate="tanh")


def _activation(name: Activation) -> nn.Module:
    return {"gelu": nn.GELU, "gelu_tanh": TanhGELU, "quick_gelu": QuickGELU, "silu": nn.SiLU}[name]()


class MLP(nn.Module):
    """Two linear layers, (.., D) to (.., M) to (.., D); the first one twice if gated, gate before value.

    Source of the gated form: Shazeer 2020, arXiv 2002.05202, eq. 6.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.gated = config.gated_mlp
        self.fc1 = Linear(config.dim, config.mlp_dim * (2 if self.gated else 1))
        self.act = _activation(config.activation)
        self.fc2 = Linear(config.mlp_dim, config.dim)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        hidden = self.fc1(x)
        if self.gated:
            gate, hidden = hidden.chunk(2, -1)
            hidden = self.act(gate) * hidden
        else:
            hidden = self.act(hidden)
        return self.fc2(self.dropout(hidden))


class Branch(nn.Module):
    """What becomes of a block's output before it joins the residual stream: scale, dropout, stochastic depth.

    Source of stochastic depth: Huang et al. 2016, arXiv 1603.09382.
    """

    def __init__(self, config: ViTConfig, drop_path: float):
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.drop_path = drop_path

    def forward(self, out: Tensor, scale: Tensor | None) -> Tensor:
        """(B, N, D) to (B, N, D)."""
        out = self.dropout(out if scale is None else out * scale)
        if self.training and self.drop_path:
            kept = torch.rand(out.shape[0], 1, 1, device=out.device) >= self.drop_path
            out = out * kept / (1 - self.drop_path)
        return out


class Block(nn.Module):
    """Pre-norm transformer block."""

    def __init__(self, config: ViTConfig, drop_path: float = 0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, config.eps)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, config.eps)
        self.mlp = MLP(config)
        self.branch = Branch(config, drop_path)
        for name in ("scale1", "scale2"):
            scale = None if config.layer_scale is None else nn.Parameter(torch.full((config.dim,), config.layer_scale))
            self.register_parameter(name, scale)

    def forward(
        self,
        x: Tensor,
        keep: Keep = "nothing",
        rows: slice = EVERY,
        turns: tuple[Tensor, Tensor] | None = None,
        change: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Kept]:
        """As `Attention.forward`, with both branches and their norms."""
        out, kept = self.attn(self.norm1(x), keep, rows, turns, change)
        x = x[:, rows] + self.branch(out, self.scale1)
        x = x + self.branch(self.mlp(self.norm2(x)), self.scale2)
        return x, kept


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


class VisionTransformer(nn.Module):
    """A plain Vision Transformer.

    The position row of a prefix token is part of the token itself (the sum of two constants), so `pos_embed`
    holds patches only and any prefix fits. It is zero in a model whose positions are rotary.
    """

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        dim, rows, cols = config.dim, *config.grid
        self.patch_embed = nn.Conv2d(config.channels, dim, config.patch_size, config.patch_size, bias=config.patch_bias)
        self.prefix_tokens = nn.Parameter(torch.zeros(1, len(config.prefix), dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, rows * cols, dim))
        self.read = _read(config)
        self.dropout = nn.Dropout(config.dropout)
        rates = [config.drop_path * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm_pre = nn.LayerNorm(dim, config.eps) if config.norm_pre else nn.Identity()
        features = dim * (2 if config.pool in ("cls_mean", "cls_dist") else 1)
        self.norm = nn.Identity() if config.norm == "none" else nn.LayerNorm(dim, config.eps)
        self.pool = AttentionPool(config) if config.pool == "map" else None
        self.pre_logits = Linear(features, config.pre_logits) if config.pre_logits else None
        features = config.pre_logits or features
        self.head = Linear(features, config.num_classes) if config.num_classes else nn.Identity()
        if not self.pos_embed.is_meta:  # there is nothing to fill, and torch would import its compiler for it
            self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """The paper's start. Source: google-research/vision_transformer, `models_vit.py` and flax's defaults.

        Xavier-uniform matrices (queries, keys and values each on their own), LeCun-normal patch embedding,
        normal(0.02) positions, zero class token and zero head.
        """
        nn.init.trunc_normal_(self.patch_embed.weight, std=self.patch_embed.weight[0].numel() ** -0.5)
        if self.patch_embed.bias is not None:
            nn.init.zeros_(self.patch_embed.bias)
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.prefix_tokens)
        if len(self.config.prefix) > 1:  # equal registers would stay equal for ever
            nn.init.normal_(self.prefix_tokens, std=0.02)
        if self.pool is not None:
            nn.init.normal_(self.pool.probe, std=0.02)
        for module in self.modules():
            if isinstance(module, Attention):
                for matrix in (*module.qkv.weight.chunk(3), module.proj.weight):
                    nn.init.xavier_uniform_(matrix)
                for linear in (module.qkv, module.proj):
                    if linear.bias is not None:
                        nn.init.zeros_(linear.bias)
            elif isinstance(module, MLP):
                for linear in (module.fc1, module.fc2):
                    nn.init.xavier_uniform_(linear.weight)
                    if linear.bias is not None:
                        nn.init.normal_(linear.bias, std=1e-6)
        if isinstance(self.head, nn.Linear):
            nn.init.zeros_(self.head.weight)
            if self.head.bias is not None:
                nn.init.zeros_(self.head.bias)

    def forward(
        self,
        images: Tensor,
        output_attentions: bool = False,
        output_queries_keys: bool = False,
        change: Change | None = None,
    ) -> ViTOutput:
        """Classify a batch of normalised pictures.

        Args:
            images: (B, channels, height, width); sides divisible by the patch size, any number of patches.
            output_attentions: also return every attention matrix, the ones this very pass used.
            output_queries_keys: also return queries and keys, from which `vit.attention` computes any part of
                any matrix on demand: L*N*D numbers instead of L*H*N*N.
            change: of what a block's heads give, for this pass alone; see `vit.intervene`.

        Raises:
            ValueError: the shape of `images` does not suit the model, or both outputs are asked for.
        """
        if output_attentions and output_queries_keys:
            raise ValueError("Ask for attentions or for queries and keys, not for both.")
        keep: Keep = "attention" if output_attentions else "queries_keys" if output_queries_keys else "nothing"
        if _exact_on_cpu(images):
            with onednn():
                return self._through(images, keep, change)
        return self._through(images, keep, change)

    def _through(self, images: Tensor, keep: Keep, change: Change | None) -> ViTOutput:
        x, turns = self.enter(images)
        kept: list[Any] = []
        last, short = len(self.blocks) - 1, keep == "nothing" and change is None
        for index, block in enumerate(self.blocks):
            # What nobody reads after the last block is not computed there.
            rows = self.read if index == last and short else EVERY
            x, seen = block(x, keep, rows, turns, None if change is None else partial(change, index))
            kept.append(seen)
        features, pool_attention = self.gather(x if short else x[:, self.read])
        logits = self.head(features)
        if keep == "attention":
            return ViTOutput(logits, attentions=tuple(kept), pool_attention=pool_attention)
        if keep == "queries_keys":
            queries, keys = zip(*kept, strict=True)
            tokens = self.norm(x) if self.config.norm == "before_pool" else x
            return ViTOutput(logits, queries=queries, keys=keys, pool_attention=pool_attention, tokens=tokens)
        return ViTOutput(logits)

    def enter(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """What the first block reads (B, N, D), and cosine and sine (N, K) of rotary positions, if there are any."""
        x = self.norm_pre(self.embed(images))
        patch = self.config.patch_size
        grid = images.shape[2] // patch, images.shape[3] // patch
        return x, None if self.config.rope is None else rotations(self.config, grid, x.device)

    def embed(self, images: Tensor) -> Tensor:
        """Pictures (B, channels, height, width) to tokens with their positions (B, N, D)."""
        config = self.config
        if images.ndim != 4 or images.shape[1] != config.channels:
            raise ValueError(f"Pictures must be (B, {config.channels}, height, width), not {tuple(images.shape)}.")
        if any(side < config.patch_size or side % config.patch_size for side in images.shape[2:]):
            raise ValueError(
                f"Picture sides must be multiples of {config.patch_size} px, not {tuple(images.shape[2:])}."
            )
        side = config.patch_size
        grid = images.shape[2] // side, images.shape[3] // side
        positions = resize_positions(self.pos_embed, config.grid, grid, config.position_resize)
        if _exact_on_cpu(images):  # on a CPU one product is faster than a convolution
            pixels = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, channels, rows, side, cols, side)
            pixels = pixels.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, P, channels * side * side)
            x = linear(pixels, self.patch_embed.weight.flatten(1), self.patch_embed.bias) + positions
        else:
            x = self.patch_embed(images).flatten(2).transpose(1, 2) + positions  # (B, P, D)
        prefix = self.prefix_tokens.expand(x.shape[0], -1, -1)
        return self.dropout(torch.cat([prefix.to(x.dtype), x], dim=1))

    def gather(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The tokens `read` after the last block (B, Q, D) to the features that the head reads (B, D or 2 D).

        The second result is where the learnt query of a "map" pool looked (B, H, Q); else None.
        """
        config, attention = self.config, None
        x = self.norm(x) if config.norm == "before_pool" else x
        if self.pool is not None:
            x, attention = self.pool(x)
        elif config.pool == "cls_dist":
            x = torch.cat([x[:, config.prefix.index(token)] for token in ("cls", "dist")], -1)
        elif config.pool == "cls_mean":
            x = torch.cat([x[:, config.prefix.index("cls")], x[:, len(config.prefix) :].mean(1)], -1)
        else:
            x = x.mean(1)  # of one token it is that token
        x = self.norm(x) if config.norm == "after_pool" else x
        return x if self.pre_logits is None else self.pre_logits(x).tanh(), attention


def _read(config: ViTConfig) -> slice:
    """The tokens that are read after the last block."""
    if config.pool == "cls":
        first = config.prefix.index("cls")
        return slice(first, first + 1)
    return slice(len(config.prefix), None) if config.pool == "mean" else EVERY


def resize_positions(
    positions: Tensor, grid: tuple[int, int], to: tuple[int, int] | torch.Size, mode: PositionResize
) -> Tensor:
    """Interpolate position embeddings (1, P, D) from one (rows, cols) grid to another."""
    if tuple(to) == tuple(grid):
        return positions
    maps = positions.unflatten(1, grid).permute(0, 3, 1, 2).float()  # (1, D, rows, cols)
    # Meta's DINOv2 asks for a scale, a tenth of a patch too large, and not for a size: the samples lie elsewhere.
    scale = [(wanted + 0.1) / have for wanted, have in zip(to, grid, strict=True)] if mode == "bicubic_offset" else None
    maps = F.interpolate(
        maps,
        size=None if scale else tuple(to),
        scale_factor=scale,
        mode="bilinear" if mode == "bilinear" else "bicubic",
        align_corners=mode == "bicubic_corners",
        antialias=mode == "bicubic_antialias",
    )
    return maps.flatten(2).transpose(1, 2).to(positions.dtype)
