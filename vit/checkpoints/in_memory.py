"""A model of another library, in memory, as a checkpoint: no file is written, and nothing of the model is changed.

Weights go the way of files, through `vit.checkpoints.families`; what files leave open, such as the number of heads, the
model itself tells. The checkpoint holds a copy of the weights on the CPU: training the model on does not change it.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from vit.checkpoints import families
from vit.checkpoints.checkpoint import Checkpoint, check_preprocess, is_finite, with_weights
from vit.checkpoints.families.family import Tensors
from vit.checkpoints.load import empty_model, read_labels, read_preprocess
from vit.errors import InvalidCheckpoint, UserError
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief


class _Told(NamedTuple):
    """What a model in memory says of itself.

    Attributes:
        name: for people.
        document: what its library's config.json would hold.
        known: config fields that the model tells and no config.json.
    """

    name: str
    document: dict[str, Any] | None
    known: dict[str, Any]


def checkpoint_from_module(
    module: nn.Module,
    *,
    labels: Sequence[str] | None = None,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    name: str = "",
) -> Checkpoint:
    """Convert a Vision Transformer of timm, transformers or torchvision, or one of this package, as it is now.

    Args:
        module: may lie on any device, be compiled, or be wrapped for training on several devices.
        labels: one name per class; None for those that the model names, as of a file.
        preprocess: a `Preprocess`, a processor of transformers, or the content of its preprocessor_config.json; None
            for what the model states, or else its library's usual one, which then stands in `assumed`.
        name: of the checkpoint; "" for what the library calls the model.

    Raises:
        InvalidCheckpoint: it is no plain Vision Transformer, or computes something that this package does not.
        UserError: `module` is no module, or the labels are not as many as the classes.
    """
    module = _unwrapped(module)
    told = _told(module)
    tensors = {key: tensor.detach().to("cpu", copy=True) for key, tensor in module.state_dict().items()}
    digest = _hash(tensors)
    if isinstance(module, VisionTransformer):
        reading = families.Reading(families.huggingface.NATIVE, module.config, tensors, {})
    else:
        reading = families.read(tensors, told.document, name=told.name, consume=True, known=told.known)
    for key, tensor in reading.tensors.items():
        if not is_finite(tensor):
            raise InvalidCheckpoint(f"The weights hold NaN or infinite numbers (`{brief(key)}`).")
    model = with_weights(empty_model(reading), reading.tensors)
    own_labels, why_labels = read_labels(told.document, reading)
    if labels is not None:
        own_labels, why_labels = _checked_labels(labels, reading.config.num_classes), ""
    chosen, why_preprocess = _chosen_preprocess(preprocess), ""
    if chosen is None:
        chosen, why_preprocess = read_preprocess(None, told.document, reading, told.name)
    check_preprocess(chosen, reading.config)
    why = {"labels": why_labels, "preprocess": why_preprocess}
    return Checkpoint(
        name=name or told.name,
        path=Path(),
        model=model,
        config=reading.config,
        labels=own_labels,
        preprocess=chosen,
        assumed=reading.assumed | {field: reason for field, reason in why.items() if reason},
        card="",
        facts={},
        hash=digest,
    )


def _unwrapped(module: nn.Module) -> nn.Module:
    """The model itself, without what compiles it, spreads it over devices or gives it transformers' interface."""
    if not isinstance(module, nn.Module):
        raise UserError(f"A {type(module).__name__} is no model: give a torch.nn.Module.")
    while True:
        if isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        elif isinstance(module, nn.DataParallel | DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "timm_model", None), nn.Module):
            module = inner
        else:
            return module


def _told(module: nn.Module) -> _Told:
    if isinstance(module, VisionTransformer):
        return _Told("VisionTransformer", None, {})
    for base in type(module).__mro__:  # a class of one's own may stand on one of a library
        if tell := _TELLERS.get(base.__module__.partition(".")[0]):
            return tell(module)
    return _Told(type(module).__name__, None, {})


def _tell_transformers(module: Any) -> _Told:
    document = json.loads(module.config.to_json_string(use_diff=False))
    return _Told(str(document.get("_name_or_path") or "") or type(module).__name__, document, {})


def _tell_torchvision(module: Any) -> _Told:
    kind = type(module).__name__
    if kind != "VisionTransformer":
        return _Told(kind, None, {})
    layer, side = next(iter(module.encoder.layers)), module.image_size
    known = {"heads": layer.num_heads, "eps": module.encoder.ln.eps, "image_size": side}
    return _Told(kind, None, known | {"activation": _activation(layer.mlp[1])})


_PLAIN_BLOCKS = ("Block", "EvaBlock")
_POOLS = ("token", "avg", "map", "")  # "": none, where there are no classes


def _tell_timm(module: Any) -> _Told:
    stated = dict(getattr(module, "pretrained_cfg", None) or {})
    architecture = stated.get("architecture") or ""
    name, blocks = architecture or type(module).__name__, getattr(module, "blocks", None)
    families.check_config({"architecture": architecture} if architecture else {})  # refuses what is not plain
    if not blocks or not hasattr(blocks[0], "attn") or not hasattr(blocks[0], "mlp"):
        return _Told(name, None, {})  # the names of its tensors say what it is
    for block in blocks:
        if type(block).__name__ not in _PLAIN_BLOCKS:
            raise InvalidCheckpoint(f"This {name} has blocks of timm's class {type(block).__name__}, not plain ones.")
    if getattr(module, "rope", None) is not None and "dinov3" not in architecture:
        raise InvalidCheckpoint(f"This {name} has rotary positions, which are computed here for DINOv3 alone.")
    if (pool := getattr(module, "global_pool", "")) not in _POOLS:
        raise InvalidCheckpoint(f"This {name} pools by {brief(pool)}, which is not computed here.")
    attention = blocks[0].attn
    known = {"heads": attention.num_heads, "eps": blocks[0].norm1.eps}
    if isinstance(activation := getattr(blocks[0].mlp, "act", None), nn.Module):
        known["activation"] = _activation(activation)
    size = getattr(getattr(module, "patch_embed", None), "img_size", None)
    if size is not None:
        height, width = size
        known["image_size"] = height if height == width else (height, width)
        if tuple(stated.get("input_size", ()))[1:] != (height, width):  # made with an `img_size` of its own
            stated["input_size"] = (module.patch_embed.proj.in_channels, height, width)
    document = {"architecture": architecture or name, "global_pool": pool, "pretrained_cfg": stated}
    return _Told(name, document, known)


_TELLERS: dict[str, Callable[[Any], _Told]] = {
    "timm": _tell_timm,
    "transformers": _tell_transformers,
    "torchvision": _tell_torchvision,
}

_ACTIVATIONS = {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}


def _activation(layer: nn.Module) -> str:
    """What the config calls a layer's function.

    >>> _activation(nn.GELU()), _activation(nn.GELU("tanh"))
    ('gelu', 'gelu_tanh')
    """
    kind = type(layer).__name__
    if kind not in _ACTIVATIONS:
        raise InvalidCheckpoint(f"The activation of this model is {kind}; computed here: {', '.join(_ACTIVATIONS)}.")
    return "gelu_tanh" if getattr(layer, "approximate", "none") == "tanh" else _ACTIVATIONS[kind]


def _hash(tensors: Tensors) -> str:
    """First 16 hexadecimal digits of the SHA-256 of all names and numbers."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _checked_labels(labels: Sequence[str], classes: int) -> tuple[str, ...]:
    if len(labels) != classes:
        raise UserError(f"There are {len(labels)} labels and the model's head has {classes} classes.")
    return tuple(map(str, labels))


def _chosen_preprocess(preprocess: Any) -> Preprocess | None:
    """What the caller names, in one of its forms."""
    if preprocess is None or isinstance(preprocess, Preprocess):
        return preprocess
    if isinstance(preprocess, Mapping):
        return Preprocess.from_config(json.loads(json.dumps(preprocess)))  # filters by their numbers, as in a file
    if callable(to_json := getattr(preprocess, "to_json_string", None)):
        return Preprocess.from_config(json.loads(to_json()))
    raise UserError(
        f"preprocess must be a vit.Preprocess or a processor of transformers, not a {type(preprocess).__name__}."
    )
