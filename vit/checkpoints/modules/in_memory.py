"""Convert a module of another library, in memory, into a checkpoint, without files and without changing the module.

`vit.checkpoints.recognition` reads the weights as it reads those of a file. Settings that a file may lack, such as the
number of heads, come from the module. The checkpoint has a copy of the weights on the CPU, which further training does
not change.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vit.checkpoints import recognition
from vit.checkpoints.checkpoint import Checkpoint, check_preprocess, is_finite, with_weights
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.load import empty_model, read_labels, read_preprocess, with_own_normalisation
from vit.checkpoints.modules import own_pass
from vit.checkpoints.modules.live_module import copied, unwrapped
from vit.checkpoints.modules.module_facts import facts_within, read_module
from vit.errors import InvalidCheckpoint, UnknownHeads, UserError
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

_POOLER = ("pooler.dense.weight", "pooler.dense.bias")  # of transformers


def checkpoint_from_module(
    module: nn.Module,
    *,
    labels: Sequence[str] | None = None,
    preprocess: Preprocess | Mapping[str, Any] | None = None,
    name: str = "",
) -> Checkpoint:
    """Convert a Vision Transformer of timm, transformers, torchvision or this package in its current state.

    Args:
        module: may be on any device, compiled, or wrapped for distributed training.
        labels: one name per class; None for the names that the module states.
        preprocess: a `Preprocess`, a processor of transformers, or the content of its preprocessor_config.json; None
            for what the module states, or else the library's default, which is then recorded in `assumed`.
        name: of the checkpoint; "" for the library's name of the model.

    Raises:
        InvalidCheckpoint: not a plain Vision Transformer, or it computes something that is not supported.
        UserError: `module` is not a module, or the number of labels differs from that of the classes.
    """
    if not isinstance(module, nn.Module):
        raise UserError(f"A {type(module).__name__} is no model: give a torch.nn.Module.")
    module = unwrapped(module)
    tensors = copied(module)
    digest, places, unknown = _hash(tensors), None, None
    ours = isinstance(module, VisionTransformer)
    facts = facts_within(module, "" if ours else recognition.only_part(tensors))
    try:
        read_module(module, facts, {name: tensor.to("meta") for name, tensor in tensors.items()})
    except UnknownHeads as error:
        unknown = error
    if not ours:
        pooler = tuple(tensor for name, tensor in tensors.items() if name.endswith(_POOLER))
        places = own_pass.Places(*recognition.places_of(tensors, facts.document), pooler)
    reading = read_module(module, facts, tensors, heads=unknown.choices[0] if unknown else None)
    for key, tensor in reading.tensors.items():
        if not is_finite(tensor):
            raise InvalidCheckpoint(f"The weights hold NaN or infinite numbers (`{brief(key)}`).")
    agreed = own_pass.Agreed(with_weights(empty_model(reading), reading.tensors), reading.assumed)
    if places is not None and not (facts.document or {}).get("mask_ratio"):  # MAE's own pass hides random patches
        agreed = own_pass.agree(module, agreed.model, agreed.assumed, places)
    if unknown is not None and "heads" in agreed.assumed:  # the module's own pass did not tell
        raise unknown
    own_labels, why_labels = read_labels(facts.document, reading)
    if labels is not None:
        own_labels, why_labels = _checked_labels(labels, reading.config.num_classes), ""
    chosen, why_preprocess, why_normalisation = _chosen_preprocess(preprocess), "", ""
    if chosen is None:
        chosen, why_preprocess = read_preprocess(None, facts.document, reading, facts.name)
        chosen, why_normalisation = with_own_normalisation(chosen, reading)
    if agreed.scale is not None:
        chosen, why = own_pass.with_scale(chosen, agreed.scale, known=preprocess is not None)
        why_normalisation = why_normalisation or why
    check_preprocess(chosen, reading.config)
    reasons = {"labels": why_labels, "preprocess": why_preprocess, "normalisation": why_normalisation}
    return Checkpoint(
        name=name or facts.name,
        path=Path(),
        model=agreed.model,
        config=agreed.model.config,
        labels=own_labels,
        preprocess=chosen,
        assumed=agreed.assumed | {field: reason for field, reason in reasons.items() if reason},
        card="",
        facts={},
        hash=digest,
    )


def _hash(tensors: Tensors) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of all names and values."""
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
    """Convert the `preprocess` argument in any of its forms."""
    if preprocess is None or isinstance(preprocess, Preprocess):
        return preprocess
    if isinstance(preprocess, Mapping):
        return Preprocess.from_config(json.loads(json.dumps(preprocess)))  # tuples become lists, as in a file
    if callable(to_json := getattr(preprocess, "to_json_string", None)):
        return Preprocess.from_config(json.loads(to_json()))
    raise UserError(
        f"preprocess must be a vit.Preprocess or a processor of transformers, not a {type(preprocess).__name__}."
    )
