"""Configuration of a Vision Transformer. Does not import torch, so that describing a model is cheap.

Letters as in `vit.model`. Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv 2010.11929.
"""

import math
from dataclasses import asdict
from functools import cache
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from vit.validation import one_sentence_errors

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Pool = Literal["cls", "mean", "all", "cls_mean", "cls_dist", "map", "map_patches"]
FinalNorm = Literal["before_pool", "after_pool", "none"]
RopePlaces = Literal["centred", "rows", "columns", "columns_from_one", "mixed"]
PositionResize = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bicubic_offset", "bilinear"]
BiasResize = Literal["bilinear", "progression"]

MAX_DEPTH = 100
_Side = Annotated[int, Field(ge=1, le=4096)]
_Token = Annotated[str, Field(pattern="^[a-z0-9_]{1,32}$")]
# Configs come from untrusted files: no type coercion, except from JSON lists to tuples.
_RULES = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

# name: (dim, depth, heads, mlp_dim). Ti and S: DeiT, arXiv 2012.12877, table 1; B, L, H: the ViT paper, table 1.
SIZES = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}
PATCH_SIZES = (32, 16, 14, 8)

# Whole models for small pictures. `tintn` and `notebook` are the sizes of two well-known tutorials.
SMALL_MODELS: dict[str, dict[str, Any]] = {
    "tintn": dict(
        image_size=(32, 32), patch_size=4, num_classes=10, dim=48, depth=4, heads=4, mlp_dim=192,
        activation="gelu_tanh", eps=1e-5, norm="none",
    ),
    "notebook": dict(
        image_size=(32, 32), patch_size=8, num_classes=10, dim=64, depth=4, heads=4, mlp_dim=128
    ),
    "mnist": dict(
        image_size=(28, 28), patch_size=7, channels=1, num_classes=10, dim=64, depth=3, heads=8, mlp_dim=2048
    ),
    "cifar": dict(
        image_size=(32, 32), patch_size=4, num_classes=10, dim=256, depth=9, heads=8, mlp_dim=768
    ),
    "cifar-small": dict(
        image_size=(32, 32), patch_size=4, num_classes=10, dim=128, depth=6, heads=4, mlp_dim=256
    ),
    "shapes": dict(
        image_size=(32, 32), patch_size=4, num_classes=4, dim=48, depth=3, heads=3, mlp_dim=96
    ),
}  # fmt: skip


def _square(size: Any) -> Any:
    return (size, size) if isinstance(size, int) else size


# Fields added after checkpoints had been saved. They are not serialised at their defaults, so that files and identities
# of older checkpoints stay the same.
_OMITTED_AT_DEFAULT = dict(
    rope_places="centred", rope_grid=None, post_norm=False, attn_norm=False, mlp_norm=False, pool_heads=0,
    pool_mlp_dim=0, multi_label=False, regression=False, position_bias=None,
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, repr=False, config=_RULES)
class ViTConfig:
    """Configuration of a Vision Transformer.

    Attributes:
        image_size: (height, width) of the training pictures [px]; one int means a square.
        patch_size: side of a patch [px].
        channels: 1 (grey) or 3 (colour).
        num_classes: 0 for no head.
        multi_label: several classes may apply at once: each probability is the sigmoid of its own logit.
        regression: the outputs are numbers without probabilities, in a unit that is not known.
        prefix: names of the tokens before the patches, in order: "cls", "dist", "reg1", ...
        activation: "gelu" is exact, "gelu_tanh" its tanh approximation, "quick_gelu" x * sigmoid(1.702 x).
        gated_mlp: the MLP's first layer has an activated gate that multiplies its output (SwiGLU).
        eps: epsilon of every LayerNorm.
        patch_bias, qkv_bias: whether these layers have a bias.
        rope: base frequency of rotary positions; None for no rotary positions.
        rope_places: coordinates of a patch in rotary positions, and how channels are paired. "centred": rows and
            columns from -1 to 1, channels half a head apart are a pair (DINOv3). All others use patch indices and pair
            adjacent channels: "rows" has rows first (EVA-02), "columns" has columns first, "columns_from_one" counts
            from 1 (Perception Encoder), "mixed" learns a mixture of column and row per head.
        rope_grid: (rows, cols) to which patch indices are rescaled on any grid; None to use them unchanged.
        position_bias: each head adds a learnt bias for the distance of query and key to its scores (BEiT). The value
            says how the bias table is interpolated to another grid: "bilinear" as in transformers, "progression" as in
            timm and BEiT's own code; None for no bias table.
        post_norm: a block's two LayerNorms follow the attention and the MLP instead of preceding them.
        attn_norm, mlp_norm: there is a LayerNorm before the last layer of the attention, of the MLP.
        layer_scale: initial value of the per-channel scale of each branch; None for no LayerScale.
        norm_pre: there is a LayerNorm before the first block (CLIP).
        norm: position of the final LayerNorm; "none" for the few models without one.
        pool: input of the head: the class token, the mean of the patches or of all tokens, class token and mean of the
            patches concatenated, the class and the distillation token concatenated, or attention pooling over all
            tokens ("map", SigLIP) or over the patches ("map_patches").
        pool_heads, pool_mlp_dim: heads and MLP width of attention pooling; 0 for those of the blocks.
        pre_logits: width of a tanh layer before the head; 0 for none.
        position_resize: how position embeddings are interpolated to another grid.
        dropout: probability of dropping an activation in training.
        drop_path: probability of dropping a branch of the last block in training; it rises linearly from 0 in the
            first block.

    Raises:
        pydantic.ValidationError: a field is out of range, or fields do not fit together. `from_dict` raises a
            ValueError with a readable message instead.
    """

    image_size: Annotated[tuple[_Side, _Side], BeforeValidator(_square)] = Field((224, 224), strict=False)
    patch_size: int = Field(16, ge=1, le=512)
    channels: Literal[1, 3] = 3
    num_classes: int = Field(1000, ge=0, le=100_000)
    multi_label: bool = False
    regression: bool = False
    dim: int = Field(768, ge=1, le=8192)
    depth: int = Field(12, ge=1, le=MAX_DEPTH)
    heads: int = Field(12, ge=1, le=256)
    mlp_dim: int = Field(3072, ge=1, le=65_536)
    prefix: tuple[_Token, ...] = Field(("cls",), max_length=64, strict=False)
    activation: Activation = "gelu"
    gated_mlp: bool = False
    eps: float = Field(1e-6, gt=0, lt=1)
    patch_bias: bool = True
    qkv_bias: bool = True
    rope: float | None = Field(None, gt=1, le=1e5)
    rope_places: RopePlaces = "centred"
    rope_grid: tuple[_Side, _Side] | None = Field(None, strict=False)
    position_bias: BiasResize | None = None
    post_norm: bool = False
    attn_norm: bool = False
    mlp_norm: bool = False
    layer_scale: float | None = Field(None, ge=-1e5, le=1e5)
    norm_pre: bool = False
    norm: FinalNorm = "before_pool"
    pool: Pool = "cls"
    pool_heads: int = Field(0, ge=0, le=256)
    pool_mlp_dim: int = Field(0, ge=0, le=65_536)
    pre_logits: int = Field(0, ge=0, le=65_536)
    position_resize: PositionResize = "bicubic"
    dropout: float = Field(0.0, ge=0, lt=1)
    drop_path: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        if any(side % self.patch_size for side in self.image_size):
            raise ValueError(
                f"patch_size {self.patch_size} does not divide image_size {self.image_size[0]} x {self.image_size[1]}."
            )
        if self.dim % self.heads:
            raise ValueError(f"heads {self.heads} does not divide dim {self.dim}.")
        if self.pool_heads and self.dim % self.pool_heads:
            raise ValueError(f"pool_heads {self.pool_heads} does not divide dim {self.dim}.")
        for token in ("cls", "dist"):
            if token in self.pool.split("_") and token not in self.prefix:
                raise ValueError(f'pool "{self.pool}" needs a token named "{token}" in prefix.')
        if len(set(self.prefix)) != len(self.prefix):
            raise ValueError(f"prefix names must differ: {self.prefix}.")
        if self.rope is not None and self.dim // self.heads % 4:
            raise ValueError(f"rope needs dim / heads, here {self.dim // self.heads}, to be a multiple of 4.")
        if self.rope is None and (self.rope_places != "centred" or self.rope_grid is not None):
            raise ValueError("rope_places and rope_grid say how positions are turned, so rope must be stated too.")
        return self

    @property
    def grid(self) -> tuple[int, int]:
        """Number of patches at the training size, (rows, cols)."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def tokens(self) -> int:
        """Number of tokens N at the training size."""
        return len(self.prefix) + math.prod(self.grid)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Build a preset: "Ti", "S", "B", "L" or "H" with "/32", "/16", "/14" or "/8", or one of `SMALL_MODELS`.

        Args:
            changes: config fields to override.

        Raises:
            ValueError: the preset does not exist, or a change has an unknown name or an invalid value.

        >>> ViTConfig.preset("B/16", image_size=384).tokens
        577
        """
        if name in SMALL_MODELS:
            return cls.from_dict(SMALL_MODELS[name] | changes)
        size, _, patch = name.partition("/")
        if size not in SIZES or patch not in map(str, PATCH_SIZES):
            raise ValueError(f"There is no size {name!r}. Choose from: {', '.join(preset_names())}.")
        dim, depth, heads, mlp_dim = SIZES[size]
        sizes = dict(dim=dim, depth=depth, heads=heads, mlp_dim=mlp_dim, patch_size=int(patch))
        return cls.from_dict(sizes | changes)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-serialisable fields."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in self._serialised_fields().items()}

    def __repr__(self) -> str:
        return f"ViTConfig({', '.join(f'{name}={value!r}' for name, value in self._serialised_fields().items())})"

    def _serialised_fields(self) -> dict[str, Any]:
        omitted = _OMITTED_AT_DEFAULT
        return {name: value for name, value in asdict(self).items() if name not in omitted or value != omitted[name]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Build a config from the result of `to_dict`.

        Raises:
            ValueError: an unknown name or an invalid value.
        """
        with one_sentence_errors():
            return cls(**values)


def check_field(name: str, value: object, shown_name: str) -> None:
    """Validate a single field of a `ViTConfig`.

    Args:
        name: of the field.
        shown_name: name of the field in the checkpoint's own config, used in the error message.

    Raises:
        ValueError: wrong type or out of range.
    """
    with one_sentence_errors(shown_name):
        _field_validator(name).validate_python(value)


@cache
def _field_validator(name: str) -> TypeAdapter[Any]:
    field = cast(Any, ViTConfig).__pydantic_fields__[name]
    return TypeAdapter(field.rebuild_annotation(), config=_RULES)


def preset_names() -> list[str]:
    """Return every name that `ViTConfig.preset` accepts."""
    return [f"{size}/{patch}" for size in SIZES for patch in PATCH_SIZES] + list(SMALL_MODELS)
