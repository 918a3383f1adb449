"""What decides a Vision Transformer's sizes and its arithmetic: no torch, so that to describe a model costs nothing.

Letters as in `vit.model`. Source: Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", arXiv 2010.11929.
"""

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self, get_args

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "silu"]
Pool = Literal["cls", "mean", "cls_mean", "cls_dist", "map"]
FinalNorm = Literal["before_pool", "after_pool", "none"]
PositionResize = Literal["bicubic", "bicubic_antialias", "bicubic_corners", "bicubic_offset", "bilinear"]

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
SMALL: dict[str, dict[str, Any]] = {
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


@dataclass(frozen=True, kw_only=True)
class ViTConfig:
    """Everything that decides what a Vision Transformer computes.

    Attributes:
        image_size: (height, width) of the training pictures [px]; one int means a square.
        patch_size: side of a patch [px].
        prefix: names of the tokens before the patches, in order: "cls", "dist", "reg1", ...
        activation: "gelu" is exact, "gelu_tanh" its tanh form, "quick_gelu" x * sigmoid(1.702 x).
        gated_mlp: the MLP has two first layers and multiplies one, activated, with the other (SwiGLU).
        eps: of every LayerNorm.
        patch_bias, qkv_bias: whether these layers have a bias.
        rope: base of the rotary positions that queries and keys are turned by; None for none.
        layer_scale: initial value of the per-channel scale of each branch; None for none.
        norm_pre: there is a LayerNorm before the first block (CLIP).
        norm: where the final LayerNorm sits; "none" for the few models without one.
        pool: what the head reads: the class token, the mean of the patches, both side by side, the class and the
            distillation token side by side, or what one learnt query gathers from all tokens ("map", SigLIP).
        pre_logits: width of a layer with tanh before the head; 0 for none.
        position_resize: how position embeddings are interpolated to another grid.
        dropout, drop_path: shares dropped in training: of activations, and of whole branches in the
            last block (rising linearly from 0 in the first). No effect in evaluation.

    Raises:
        ValueError: fields that do not fit each other; the message names them.
    """

    image_size: tuple[int, int] = (224, 224)
    patch_size: int = 16
    channels: int = 3
    num_classes: int = 1000
    dim: int = 768
    depth: int = 12
    heads: int = 12
    mlp_dim: int = 3072
    prefix: tuple[str, ...] = ("cls",)
    activation: Activation = "gelu"
    gated_mlp: bool = False
    eps: float = 1e-6
    patch_bias: bool = True
    qkv_bias: bool = True
    rope: float | None = None
    layer_scale: float | None = None
    norm_pre: bool = False
    norm: FinalNorm = "before_pool"
    pool: Pool = "cls"
    pre_logits: int = 0
    position_resize: PositionResize = "bicubic"
    dropout: float = 0.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        size = self.image_size
        object.__setattr__(self, "image_size", (size, size) if isinstance(size, int) else tuple(size))
        object.__setattr__(self, "prefix", tuple(self.prefix))
        whole = ("patch_size", "channels", "dim", "depth", "heads", "mlp_dim")
        for name, value in [("image_size", side) for side in self.image_size] + [(n, getattr(self, n)) for n in whole]:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}.")
        if len(self.image_size) != 2:
            raise ValueError(f"image_size is (height, width), not {self.image_size!r}.")
        for name, none in (("num_classes", "head"), ("pre_logits", "layer before the head")):
            value = getattr(self, name)
            if type(value) is not int or value < 0:
                raise ValueError(f"{name} must be a whole number, 0 for no {none}, not {value!r}.")
        if any(side % self.patch_size for side in self.image_size):
            raise ValueError(f"patch_size {self.patch_size} does not divide image_size {self.image_size}.")
        if self.dim % self.heads:
            raise ValueError(f"heads {self.heads} does not divide dim {self.dim}.")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in get_args(choices):
                raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, not {getattr(self, name)!r}.")
        for token in ("cls", "dist"):
            if token in self.pool.split("_") and token not in self.prefix:
                raise ValueError(f'pool "{self.pool}" needs a token named "{token}" in prefix.')
        if len(set(self.prefix)) != len(self.prefix):
            raise ValueError(f"prefix names must differ: {self.prefix}.")
        for name in ("dropout", "drop_path"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 0 and under 1, not {getattr(self, name)!r}.")
        if not 0 < self.eps < 1:
            raise ValueError(f"eps must lie between 0 and 1, not {self.eps!r}.")
        for name in ("gated_mlp", "patch_bias", "qkv_bias", "norm_pre"):
            if type(getattr(self, name)) is not bool:
                raise ValueError(f"{name} must be True or False, not {getattr(self, name)!r}.")
        if self.rope is not None and (not self.rope > 1 or self.dim // self.heads % 4):
            raise ValueError(f"rope {self.rope!r} must be above 1, and dim / heads a multiple of 4.")
        if self.layer_scale is not None and not math.isfinite(self.layer_scale):
            raise ValueError(f"layer_scale must be a number or None, not {self.layer_scale!r}.")

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, cols) of patches at the training size."""
        return self.image_size[0] // self.patch_size, self.image_size[1] // self.patch_size

    @property
    def tokens(self) -> int:
        """N at the training size."""
        return len(self.prefix) + math.prod(self.grid)

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """Build a named size: "Ti", "S", "B", "L" or "H" with "/32", "/16", "/14" or "/8", or one of `SMALL`.

        >>> ViTConfig.preset("B/16", image_size=384).tokens
        577
        """
        if name in SMALL:
            return cls(**SMALL[name] | changes)
        size, _, patch = name.partition("/")
        if size not in SIZES or patch not in map(str, PATCH_SIZES):
            raise ValueError(f"There is no size {name!r}. Choose from: {', '.join(preset_names())}.")
        dim, depth, heads, mlp_dim = SIZES[size]
        return cls(**dict(dim=dim, depth=depth, heads=heads, mlp_dim=mlp_dim, patch_size=int(patch)) | changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `to_dict`; raises ValueError on unknown names or wrong values."""
        unknown = set(values) - {f.name for f in fields(cls)}
        if unknown:
            raise ValueError(f"Unknown config fields: {', '.join(sorted(unknown))}.")
        try:
            return cls(**values)
        except TypeError as error:
            raise ValueError(f"A config field has the wrong type: {error}.") from error


_CHOICES = dict(activation=Activation, norm=FinalNorm, pool=Pool, position_resize=PositionResize)


def preset_names() -> list[str]:
    """Every name that `ViTConfig.preset` takes."""
    return [f"{size}/{patch}" for size in SIZES for patch in PATCH_SIZES] + list(SMALL)
