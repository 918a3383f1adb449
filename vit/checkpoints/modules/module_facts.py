"""Settings that a module of another library states and its tensors do not: config, heads, activation."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import nn

from vit.checkpoints import families, recognition
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.errors import InvalidCheckpoint
from vit.model.transformer import VisionTransformer


class ModuleFacts(NamedTuple):
    """Settings that a module states beside the names and shapes of its tensors.

    Attributes:
        name: for people.
        document: what its library's config.json would contain.
        known: config fields that no config.json states.
    """

    name: str
    document: dict[str, Any] | None
    known: dict[str, Any]


def facts_of(module: nn.Module) -> ModuleFacts:
    """Read the settings of a module of timm, transformers or torchvision; of other modules only the class name.

    Raises:
        InvalidCheckpoint: it computes something that is not supported.
    """
    if isinstance(module, VisionTransformer):
        return ModuleFacts("VisionTransformer", None, {})
    for base in type(module).__mro__:  # the class may be derived from a library's
        if of_library := _BY_LIBRARY.get(base.__module__.partition(".")[0]):
            return of_library(module)
    return ModuleFacts(type(module).__name__, None, {})


def facts_within(module: nn.Module, prefix: str) -> ModuleFacts:
    """Read the settings of a module, or of the model inside it if the outer class is unknown.

    Args:
        prefix: of the model's names in `state_dict()`, from `vit.checkpoints.families`.

    Raises:
        InvalidCheckpoint: it computes something that is not supported.
    """
    facts = facts_of(module)
    if not prefix or facts.document or facts.known:
        return facts
    facts = facts_of(part_at(module, prefix))
    named = ("id2label", "label2id", "num_labels", "label_names")  # these describe its original head
    document = {field: value for field, value in (facts.document or {}).items() if field not in named}
    return facts._replace(document=document if facts.document is not None else None)


def read_module(
    module: nn.Module, facts: ModuleFacts, tensors: Tensors, heads: int | None = None
) -> recognition.ParsedCheckpoint:
    """Convert the tensors of a module's `state_dict()` by its own settings, see `recognition.read`; consumes them."""
    if isinstance(module, VisionTransformer):
        return recognition.ParsedCheckpoint(families.huggingface.NATIVE, module.config, tensors, {})
    return recognition.read(tensors, facts.document, heads=heads, name=facts.name, known=facts.known, consume=True)


def part_at(module: Any, prefix: str) -> nn.Module:
    """Return the submodule with this name prefix, within all wrappers."""
    wrappers = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    for level in ["", *prefix.split(".")[:-1]]:
        module = getattr(module, level) if level and level not in wrappers else module
        for wrapping in wrappers:
            module = getattr(module, wrapping, module)
    return module


def _of_transformers(module: Any) -> ModuleFacts:
    document = json.loads(module.config.to_json_string(use_diff=False))
    return ModuleFacts(str(document.get("_name_or_path") or "") or type(module).__name__, document, {})


def _of_torchvision(module: Any) -> ModuleFacts:
    kind = type(module).__name__
    if kind != "VisionTransformer":
        return ModuleFacts(kind, None, {})
    layer, side = next(iter(module.encoder.layers)), module.image_size
    known = {"heads": layer.num_heads, "eps": module.encoder.ln.eps, "image_size": side}
    return ModuleFacts(kind, None, known | {"activation": _activation(layer.mlp[1])})


_PLAIN_BLOCKS = ("Block", "EvaBlock")
_POST_NORM_BLOCKS = ("ResPostBlock", "EvaBlockPostNorm")


def _of_timm(module: Any) -> ModuleFacts:
    stated = dict(getattr(module, "pretrained_cfg", None) or {})
    architecture = stated.get("architecture") or ""
    name, blocks = architecture or type(module).__name__, getattr(module, "blocks", None)
    recognition.check_config({"architecture": architecture} if architecture else {})  # raises if not a plain ViT
    if not blocks or not hasattr(blocks[0], "attn") or not hasattr(blocks[0], "mlp"):
        return ModuleFacts(name, None, {})  # the tensor names decide
    for block in map(_uncompiled, blocks):
        if type(block).__name__ not in _PLAIN_BLOCKS + _POST_NORM_BLOCKS:
            raise InvalidCheckpoint(f"This {name} has blocks of timm's class {type(block).__name__}, not plain ones.")
    pool, block = getattr(module, "global_pool", ""), _uncompiled(blocks[0])
    known = {"heads": block.attn.num_heads, "eps": block.norm1.eps} | _rotary(getattr(module, "rope", None), name)
    known["post_norm"] = type(block).__name__ in _POST_NORM_BLOCKS
    if (learnt := getattr(module, "attn_pool", None)) is not None and learnt.num_heads != known["heads"]:
        known["pool_heads"] = learnt.num_heads
    if isinstance(activation := getattr(block.mlp, "act", None), nn.Module):
        known["activation"] = _activation(activation)
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is not None:
        height, width = size
        known["image_size"] = height if height == width else (height, width)
        if stated and tuple(stated.get("input_size", ()))[1:] != (height, width):  # created with another `img_size`
            stated["input_size"] = (module.patch_embed.proj.in_channels, height, width)
    document = {
        "architecture": architecture or name,
        "global_pool": pool,
        "model_args": {"pool_include_prefix": getattr(module, "pool_include_prefix", pool == "map")},  # Eva lacks it
        "pretrained_cfg": stated,
    }
    return ModuleFacts(name, document, known)


def _rotary(rope: Any, name: str) -> dict[str, Any]:
    """Read config fields from timm's module for rotary positions."""
    if rope is None:
        return {"rope": None}
    kind, order, start = type(rope).__name__, rope.grid_indexing, getattr(rope, "grid_offset", 0)
    fields: dict[str, Any] = {"rope": float(rope.temperature)}
    if kind == "RotaryEmbeddingMixed" and order == "xy":
        return fields | {"rope_places": "mixed"}
    if kind == "RotaryEmbeddingDinoV3" and rope.rotate_half and (order, start) == ("ij", 0):
        return fields
    places = {("ij", 0): "rows", ("xy", 0): "columns", ("xy", 1): "columns_from_one"}.get((order, start))
    if kind != "RotaryEmbeddingCat" or places is None or rope.in_pixels or rope.rotate_half:
        raise InvalidCheckpoint(f"This {name} has rotary positions of a kind that is not computed here ({kind}).")
    return fields | {"rope_places": places, "rope_grid": rope.ref_feat_shape and tuple(rope.ref_feat_shape)}


_BY_LIBRARY: dict[str, Callable[[Any], ModuleFacts]] = {
    "timm": _of_timm,
    "transformers": _of_transformers,
    "torchvision": _of_torchvision,
}

_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}


def _activation(layer: nn.Module) -> str:
    """Return the config's name for an activation layer.

    >>> _activation(nn.GELU()), _activation(nn.GELU("tanh"))
    ('gelu', 'gelu_tanh')
    """
    kind = type(layer).__name__
    if kind not in _ACTIVATIONS:
        raise InvalidCheckpoint(f"The activation of this model is {kind}; computed here: {', '.join(_ACTIVATIONS)}.")
    return "gelu_tanh" if getattr(layer, "approximate", "none") == "tanh" else _ACTIVATIONS[kind]


def _uncompiled(part: Any) -> Any:
    return getattr(part, "_orig_mod", part)
