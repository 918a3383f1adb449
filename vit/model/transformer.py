"""The Vision Transformer: one forward pass, torch only.

Letters as in `vit.model`. Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv 2010.11929.
"""

import copy
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.attention import (
    DIRECT,
    EVERY,
    Attention,
    AttentionFunction,
    AttentionPool,
    HeadInputs,
    Hook,
    Route,
    attention_weights,
)
from vit.model.classification_heads import Activation
from vit.model.config import ViTConfig
from vit.model.cpu import exact_on_cpu, onednn
from vit.model.layers import MLP, Branch, Linear, linear
from vit.model.positions import relative_places, resize_biases, resize_positions, rotations


class ViTOutput(NamedTuple):
    """Output of one forward pass.

    Attributes:
        logits: (B, C); the pooled features (B, D) of a model without a head.
        attentions: one (B, H, N, N) per block: rows query, columns key, rows sum to 1. None unless requested.
        queries, keys: one (B, H, N, K) per block, see `HeadInputs`. None unless requested.
        pool_attention: (B, H, N), attention of the learnt query of a "map" or "map_patches" pool, 0 for tokens that it
            does not read; set with either of the above.
        tokens: (B, N, D) after the last block, and after the final LayerNorm if it precedes the pool; set with
            queries and keys.
        pooled: (B, D or 2 D), input of the head; set with queries and keys.
        norms: (B, N), norms of the tokens after the last block, before any LayerNorm; set with queries and keys.
    """

    logits: Tensor
    attentions: tuple[Tensor, ...] | None = None
    queries: tuple[Tensor, ...] | None = None
    keys: tuple[Tensor, ...] | None = None
    pool_attention: Tensor | None = None
    tokens: Tensor | None = None
    pooled: Tensor | None = None
    norms: Tensor | None = None


class Block(nn.Module):
    """Transformer block with LayerNorms before the attention and the MLP, or after them (`post_norm`)."""

    def __init__(self, config: ViTConfig, drop_path: float = 0.0):
        super().__init__()
        self.norm1 = nn.LayerNorm(config.dim, config.eps)
        self.attn = Attention(config)
        self.norm2 = nn.LayerNorm(config.dim, config.eps)
        self.mlp = MLP(config)
        self.branch = Branch(config, drop_path)
        self.post_norm = config.post_norm
        for name in ("scale1", "scale2"):
            scale = None if config.layer_scale is None else nn.Parameter(torch.full((config.dim,), config.layer_scale))
            self.register_parameter(name, scale)

    def forward(self, x: Tensor, route: Route = DIRECT) -> Tensor:
        """Map tokens (B, N, D) to output tokens (B, Q, D), the Q tokens of the route's `rows`."""
        if self.post_norm:
            # A view gives the attention's input a gradient of its own; that of `x` includes the skip connection.
            x = x[:, route.rows] + self.branch(self.norm1(self.attn(x.view_as(x), route)), self.scale1)
            return x + self.branch(self.norm2(self.mlp(x)), self.scale2)
        out = self.attn(self.norm1(x), route)
        x = x[:, route.rows] + self.branch(out, self.scale1)
        return x + self.branch(self.mlp(self.norm2(x)), self.scale2)


@dataclass(frozen=True, eq=False)
class Step:
    """One block of a forward pass.

    Attributes:
        block: the module.
        route: options of this pass for the block.
    """

    block: Block
    route: Route

    def __call__(self, x: Tensor, hook: Hook | None = None) -> Tensor:
        """Map input tokens (B, N, D) to output tokens (B, Q, D).

        Args:
            hook: replaces the hook of the route.
        """
        return self.block(x, self.route if hook is None else self.route._replace(hook=hook))


class BlockwiseForward(NamedTuple):
    """A forward pass that the caller runs block by block.

        x, steps = model.walk(images)
        for step in steps:
            x = step(x)
        logits = model.classify(x)

    Attributes:
        x: (B, N, D), input of the first block.
        steps: one per block.
    """

    x: Tensor
    steps: list[Step]


class VisionTransformer(nn.Module):
    """A plain Vision Transformer.

    Position embeddings of prefix tokens are folded into the tokens themselves, so `pos_embed` contains patches only
    and works with any prefix. It is zero in models with rotary or relative positions.
    """

    activation: Activation  # from logits to probabilities

    def __init__(self, config: ViTConfig):
        super().__init__()
        self.config = config
        # The softmax of a single logit is always 1, so one output means a binary question. transformers' pipeline does
        # the same.
        independent = config.multi_label or config.num_classes == 1
        self.activation = "none" if config.regression else "sigmoid" if independent else "softmax"
        dim, rows, cols = config.dim, *config.grid
        self.patch_embed = nn.Conv2d(config.channels, dim, config.patch_size, config.patch_size, bias=config.patch_bias)
        self.prefix_tokens = nn.Parameter(torch.zeros(1, len(config.prefix), dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, rows * cols, dim))
        self.read = tokens_read(config)
        self.dropout = nn.Dropout(config.dropout)
        rates = [config.drop_path * i / max(1, config.depth - 1) for i in range(config.depth)]
        self.blocks = nn.ModuleList(Block(config, rate) for rate in rates)
        self.norm_pre = nn.LayerNorm(dim, config.eps) if config.norm_pre else nn.Identity()
        features = dim * (2 if config.pool in ("cls_mean", "cls_dist") else 1)
        self.norm = nn.Identity() if config.norm == "none" else nn.LayerNorm(dim, config.eps)
        self.pool = AttentionPool(config) if config.pool.startswith("map") else None
        self.pre_logits = Linear(features, config.pre_logits) if config.pre_logits else None
        features = config.pre_logits or features
        self.head = Linear(features, config.num_classes) if config.num_classes else nn.Identity()
        if not self.pos_embed.is_meta:  # initialising meta tensors does nothing, but makes torch import its compiler
            self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Initialise weights as in the paper.

        Xavier-uniform matrices (queries, keys and values separately), LeCun-normal patch embedding,
        normal(0.02) positions, zero class token and zero head.

        Source: google-research/vision_transformer, `models_vit.py` and flax's defaults.
        """
        nn.init.trunc_normal_(self.patch_embed.weight, std=self.patch_embed.weight[0].numel() ** -0.5)
        if self.patch_embed.bias is not None:
            nn.init.zeros_(self.patch_embed.bias)
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.zeros_(self.prefix_tokens)
        if len(self.config.prefix) > 1:  # registers with equal weights would get equal gradients and stay equal
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
        hook: Hook | None = None,
    ) -> ViTOutput:
        """Classify a batch of normalised pictures.

        Args:
            images: (B, channels, height, width); sides divisible by the patch size, any number of patches.
            output_attentions: also return all attention matrices of this pass.
            output_queries_keys: also return queries and keys, from which `vit.explain.record` computes any part of
                any matrix on demand: L*N*D numbers instead of L*H*N*N.
            hook: computes the head outputs of each block from the head inputs, for this pass only; see
                `vit.explain.head_ablation`.

        Raises:
            ValueError: the shape of `images` does not fit the model, or both outputs are requested.
        """
        if output_attentions and output_queries_keys:
            raise ValueError("Ask for attentions or for queries and keys, not for both.")
        through = self._with_attentions if output_attentions else self._with_queries_keys
        if not (output_attentions or output_queries_keys):
            through = self._to_logits
        if exact_on_cpu(images):
            with onednn():
                return through(images, hook)
        return through(images, hook)

    def _to_logits(self, images: Tensor, hook: Hook | None) -> ViTOutput:
        x, steps = self.walk(images, hook=hook, every=hook is not None)
        for step in steps:
            x = step(x)
        return ViTOutput(self.classify(x if hook is None else x[:, self.read]))

    def _with_attentions(self, images: Tensor, hook: Hook | None) -> ViTOutput:
        attentions: list[Tensor] = []

        def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            attentions.append(attention_weights(q, k))
            return attentions[-1] @ v

        x, steps = self.walk(images, attend=attend, hook=hook, every=True)
        for step in steps:
            x = step(x)
        features, pool_attention = self.pool_features(x[:, self.read])
        return ViTOutput(self.head(features), attentions=tuple(attentions), pool_attention=pool_attention)

    def _with_queries_keys(self, images: Tensor, hook: Hook | None) -> ViTOutput:
        queries: list[Tensor] = []
        keys: list[Tensor] = []

        def keep(index: int, inputs: HeadInputs) -> Tensor:
            heads = inputs.output() if hook is None else hook(index, inputs)
            queries.append(inputs.q.contiguous())  # a view would keep the fused tensor alive, values included
            keys.append(inputs.k.contiguous())
            return heads

        x, steps = self.walk(images, hook=keep, every=True)
        for step in steps:
            x = step(x)
        features, pool_attention = self.pool_features(x[:, self.read])
        tokens = self.norm(x) if self.config.norm == "before_pool" else x
        return ViTOutput(
            self.head(features),
            queries=tuple(queries),
            keys=tuple(keys),
            pool_attention=pool_attention,
            tokens=tokens,
            pooled=features,
            norms=x.norm(dim=-1),
        )

    def walk(
        self,
        images: Tensor,
        *,
        every: bool = False,
        queries: slice | None = None,
        attend: AttentionFunction | None = None,
        hook: Hook | None = None,
    ) -> BlockwiseForward:
        """Start a forward pass through the blocks. All passes of this project go through here.

        Args:
            images: (B, channels, height, width).
            every: compute all tokens in the last block, not only those that are `read` after it.
            queries: tokens whose queries are computed in every block, if `hook` needs more than the output tokens.
            attend, hook: see `Route`.

        Raises:
            ValueError: the shape of `images` does not fit the model.
        """
        x = self.norm_pre(self.embed(images))
        patch = self.config.patch_size
        grid = images.shape[2] // patch, images.shape[3] // patch
        blocks = [cast("Block", block) for block in self.blocks]
        rope = None if self.config.rope is None else rotations(self.config, grid, x.device)
        ropes = [rope] * len(blocks)
        if self.config.rope_places == "mixed":
            ropes = [rotations(self.config, grid, x.device, block.attn.speeds) for block in blocks]
        biases: list[tuple[Tensor, Tensor] | None] = [None] * len(blocks)
        if (resize := self.config.position_bias) is not None:
            places = relative_places(len(self.config.prefix), grid, x.device)
            tables = [cast("Tensor", block.attn.position_bias) for block in blocks]
            biases = [(resize_biases(table, self.config.grid, grid, resize), places) for table in tables]
        rows = [EVERY] * len(self.blocks)
        if not every:  # the last block computes only the tokens that the head reads
            rows[-1] = self.read
        routes = [
            Route(index, rows[index], queries, ropes[index], biases[index], attend, hook)
            for index in range(len(blocks))
        ]
        return BlockwiseForward(x, [Step(block, route) for block, route in zip(blocks, routes, strict=True)])

    def classify(self, x: Tensor) -> Tensor:
        """Map the tokens `read` after the last block (B, Q, D) to logits (B, C)."""
        return self.head(self.pool_features(x)[0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Map logits (..., C) to probabilities (..., C), 0 to 1.

        They sum to 1 (softmax) or are independent (sigmoid). Similarities are clamped, numbers unchanged.
        """
        if self.activation in ("none", "cosine"):
            return logits.clamp(0, 1) if self.activation == "cosine" else logits
        return logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(-1)

    def log_scores(self, logits: Tensor) -> Tensor:
        """Map logits (..., C) to log-probabilities (..., C). Similarities and other numbers are returned unchanged."""
        if self.activation in ("none", "cosine"):
            return logits
        return F.logsigmoid(logits) if self.activation == "sigmoid" else F.log_softmax(logits, dim=-1)

    def default_target(self, logits: Tensor) -> int:
        """Return the index of the most probable class of one picture (C,); 0 if the outputs are no probabilities."""
        return 0 if self.activation == "none" else int(logits.argmax())

    def single_token_inputs(self, tokens: Tensor) -> Tensor:
        """Build inputs for `classify` and `pool_features` from single tokens.

        Args:
            tokens: (n, D), after a block.

        Returns:
            (n, Q, D): each token, repeated for heads that read several tokens.
        """
        return tokens[:, None].expand(-1, len(self.config.prefix) + 1, -1)[:, self.read]

    def with_head(self, head: nn.Module, classes: int, activation: Activation = "softmax") -> Self:
        """Return a copy of the model with another head. The copy shares all other weights.

        Args:
            head: maps pooled features (B, D) to logits (B, classes).
            activation: maps its logits to probabilities.
        """
        model = copy.copy(self)
        model._modules = {**self._modules, "head": head.eval()}
        model.config = replace(self.config, num_classes=classes, multi_label=False, regression=False)
        model.activation = activation
        return model

    def embed(self, images: Tensor) -> Tensor:
        """Map pictures (B, channels, height, width) to tokens with positions (B, N, D).

        Raises:
            ValueError: wrong number of channels, or a side is not a multiple of the patch size.
        """
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
        # A matrix product is faster than a convolution on a CPU. On a GPU it is exact, while cuDNN would round float32
        # to TF32.
        if exact_on_cpu(images) or images.is_cuda:
            pixels = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))  # (B, channels, rows, side, cols, side)
            pixels = pixels.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (B, P, channels * side * side)
            x = linear(pixels, self.patch_embed.weight.flatten(1), self.patch_embed.bias) + positions
        else:
            x = self.patch_embed(images).flatten(2).transpose(1, 2) + positions  # (B, P, D)
        prefix = self.prefix_tokens.expand(x.shape[0], -1, -1)
        return self.dropout(torch.cat([prefix.to(x.dtype), x], dim=1))

    def pool_features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """Map the tokens `read` after the last block (B, Q, D) to the head's input features (B, D or 2 D).

        The second result is the attention (B, H, N) of the learnt query of attention pooling, 0 for tokens that it does
        not read; None for other pools.
        """
        config, attention = self.config, None
        x = self.norm(x) if config.norm == "before_pool" else x
        if self.pool is not None:
            x, attention = self.pool(x)
            attention = F.pad(attention, (self.read.start or 0, 0))
        elif config.pool == "cls_dist":
            x = torch.cat([x[:, config.prefix.index(token)] for token in ("cls", "dist")], -1)
        elif config.pool == "cls_mean":
            x = torch.cat([x[:, config.prefix.index("cls")], x[:, len(config.prefix) :].mean(1)], -1)
        else:
            x = x.mean(1)  # for the "cls" pool, x is that one token
        x = self.norm(x) if config.norm == "after_pool" else x
        return x if self.pre_logits is None else self.pre_logits(x).tanh(), attention


_Part = TypeVar("_Part", Block, VisionTransformer)


def rounded(module: _Part) -> _Part:
    """Return a copy with linear weights in bfloat16: half the memory, and no rounding during a pass in bfloat16."""
    blocks = module.blocks if isinstance(module, VisionTransformer) else module
    large = {id(layer.weight) for layer in blocks.modules() if type(layer) is Linear}
    same = {
        id(p): nn.Parameter(p.detach().to(torch.bfloat16) if id(p) in large else p.detach().clone())
        for p in module.parameters()
    }
    return copy.deepcopy(module, same)


def tokens_read(config: ViTConfig) -> slice:
    """Return which tokens the pool reads after the last block."""
    if config.pool == "cls":
        first = config.prefix.index("cls")
        return slice(first, first + 1)
    return slice(len(config.prefix), None) if config.pool in ("mean", "map_patches") else EVERY
