"""A module in memory, in the middle of somebody's training, as one of our models; nothing of it is changed.

Its tensors are read as those of a file, by the same families. What a file leaves open, the number of heads above all,
a module says itself.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vit.checkpoints import families
from vit.checkpoints.checkpoint import hollow, with_weights
from vit.checkpoints.families import Reading
from vit.checkpoints.families.family import Tensors
from vit.checkpoints.load import empty_model
from vit.checkpoints.module_facts import ModuleFacts, facts_of, facts_within, part_at
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

TOLERANCE = 0.02  # of the largest logit; half precision moves it by 0.01, a wrong number of heads by 0.3


class LiveModule(NamedTuple):
    """The Vision Transformer in a module, and what is known of it besides its weights.

    Attributes:
        module: itself, without what training wraps around it.
        facts: what it says of itself.
        reading: what it is, with tensors that have no values.
    """

    module: nn.Module
    facts: ModuleFacts
    reading: Reading

    @property
    def config(self) -> ViTConfig:
        """What it computes."""
        return self.reading.config

    @property
    def assumed(self) -> Mapping[str, str]:
        """Config field -> why it has its value, for what neither tensors nor module say."""
        return self.reading.assumed

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per class, numbers where the module names none."""
        names = self.reading.family.stated_labels(self.facts.document or {})
        names = names if isinstance(names, Mapping) else {}
        return tuple(str(names.get(str(i), f"class {i}")) for i in range(self.config.num_classes))

    def preprocess(self) -> tuple[Preprocess, str]:
        """How pictures become its input, and where that comes from if the module does not state it."""
        if isinstance(self.module, VisionTransformer):
            half = (0.5,) * self.config.channels
            why = "The preprocessing is not stated; mean and deviation 0.5 are used."
            return Preprocess(self.config.image_size, mean=half, std=half), why
        stated = self.reading.family.stated_preprocess(self.facts.document or {})
        if stated and stated.channels == self.config.channels:
            return replace(stated, size=self.config.image_size, resize_to=None), ""
        return self.reading.family.preprocess(self.config, "")


# --- Finding --------------------------------------------------------------------------------------------------------


def find_vit(module: nn.Module) -> LiveModule:
    """The Vision Transformer in a module: itself, or what DDP, torch.compile, an average or a LightningModule holds.

    Raises:
        InvalidCheckpoint: there is none that is read, or several.
    """
    if any(_is_sharded(parameter) for parameter in module.parameters()):
        raise InvalidCheckpoint("The weights are spread over several processes (FSDP, DeepSpeed): none has them all.")
    problems: list[InvalidCheckpoint] = []
    found = list(_walk(_bare(module), "", problems))
    if len(found) > 1:
        names = ", ".join(f"`{brief(name)}`" for name, _ in found)
        raise InvalidCheckpoint(f"The module holds several Vision Transformers: {names}. Hand over one of them.")
    if not found:
        raise problems[0] if problems else InvalidCheckpoint("The module has no parameters.")
    hollow(found[0][1].config)  # so that `convert` need not make it, in a thread perhaps
    return found[0][1]


def _is_sharded(parameter: nn.Parameter) -> bool:
    return type(parameter).__name__ in ("DTensor", "FlatParameter") or hasattr(parameter, "ds_id")


def _bare(module: nn.Module) -> nn.Module:
    """What is left where one part holds every parameter, again and again."""
    while True:
        own = sum(1 for _ in module.parameters())
        inner = next((part for part in module.children() if own and sum(1 for _ in part.parameters()) == own), None)
        if inner is None or isinstance(module, VisionTransformer):
            return module
        module = inner


def _walk(module: nn.Module, name: str, problems: list[InvalidCheckpoint]) -> Iterator[tuple[str, LiveModule]]:
    """Every outermost part that is read, by name; the first problem is that of the whole."""
    if not any(True for _ in module.parameters()):
        return
    try:
        yield name, _describe(module)
    except InvalidCheckpoint as error:
        problems.append(error)
        for part, inner in module.named_children():
            yield from _walk(inner, f"{name}.{part}".lstrip("."), problems)


def _describe(module: nn.Module) -> LiveModule:
    """What a module computes, from the names and shapes of its tensors and from what it says of itself.

    Raises:
        InvalidCheckpoint: not a family that is read.
    """
    if isinstance(module, VisionTransformer):
        return LiveModule(module, facts_of(module), Reading(families.huggingface.NATIVE, module.config, {}, {}))
    metas: dict[object, Tensor] = {}
    tensors = {}
    for name, tensor in _state(module):  # one that is registered twice stays one
        place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape
        tensors[name] = metas.setdefault(place, tensor.to("meta"))
    prefix = families.only_part(tensors)
    if prefix and all(name.startswith(prefix) for name in families.used(tensors)):
        return _describe(part_at(module, prefix))  # what lies beside it is no head of it
    facts = facts_within(module, prefix)
    return LiveModule(module, facts, families.read(tensors, facts.document, name=facts.name, known=facts.known))


# --- Copying --------------------------------------------------------------------------------------------------------


def _state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Its tensors by name, compiled parts under the names that they have without."""
    for name, tensor in module.state_dict().items():
        if isinstance(tensor, Tensor):
            yield name.replace("_orig_mod.", ""), tensor.detach()


def copy_tensors(live: LiveModule) -> Tensors:
    """Its tensors as they are at this moment, in the CPU's memory; the numbers in float32."""
    return {
        name: tensor.to("cpu", torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        for name, tensor in _state(live.module)
    }


def convert(live: LiveModule, tensors: Tensors) -> VisionTransformer:
    """The same model, ours, in evaluation mode, on these tensors.

    Args:
        tensors: of `copy_tensors`; used up.

    Raises:
        InvalidCheckpoint: they do not fit what the module was when it was found.
    """
    if isinstance(live.module, VisionTransformer):
        return with_weights(hollow(live.config), tensors)
    facts = live.facts
    reading = families.read(tensors, facts.document, name=facts.name, known=facts.known, consume=True)
    return with_weights(empty_model(reading), reading.tensors)


# --- Comparing ------------------------------------------------------------------------------------------------------


def own_logits(live: LiveModule, pixels: Tensor) -> Tensor | None:
    """What the module itself answers, on the CPU; None where it gives nothing that can be compared.

    Modes, gradients and random numbers stay as they are.

    Args:
        pixels: (B, channels, height, width)

    Raises:
        Exception: whatever a pass of the module raises.
    """
    if live.reading.assumed.get("left_out") and not live.config.num_classes:
        return None  # its head is no part of the converted model
    parameter = next(live.module.parameters())
    with evaluating(live.module), torch.no_grad():  # what a module caches in inference mode, it could not learn with
        output = live.module(pixels.to(parameter.device, parameter.dtype))
    answer = getattr(output, "logits", output)
    if not isinstance(answer, Tensor):
        answer = next((part for part in _values(output) if isinstance(part, Tensor)), None)
    if answer is not None and answer.ndim == 3 and live.config.pool == "cls":
        answer = answer[:, 0]
    return answer.detach().float().cpu() if answer is not None and answer.ndim == 2 else None


def _values(output: object) -> tuple[object, ...]:
    return tuple(output.values()) if isinstance(output, Mapping) else tuple(output) if isinstance(output, tuple) else ()


def agrees(model: VisionTransformer, pixels: Tensor, answer: Tensor) -> bool:
    """Whether the converted model answers as the module did.

    Args:
        answer: of `own_logits`.
    """
    with torch.inference_mode():
        logits = model(pixels).logits
    same = logits.shape == answer.shape
    return same and bool((logits - answer).abs().max() <= TOLERANCE * answer.abs().max() + 1e-6)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while, by each part's own flag: `train()` may be overridden, frozen parts evaluate already.

    Random numbers go on afterwards as if nothing had been.
    """
    modes = [(part, part.training) for part in module.modules()]
    devices = {parameter.device for parameter in module.parameters() if parameter.is_cuda}
    python, numpy = random.getstate(), np.random.get_state()
    try:
        for part, _ in modes:
            part.training = False
        with torch.random.fork_rng([device.index for device in devices]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for part, training in modes:
            part.training = training
