"""Convert a module into one of our models in the middle of training, without changing it.

Its tensors are read by the same families as those of a file. Settings that a file may lack, above all the number of
heads, come from the module.
"""

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from vit.checkpoints import recognition
from vit.checkpoints.checkpoint import hollow, with_weights
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.load import empty_model, numbered
from vit.checkpoints.modules.module_facts import ModuleFacts, facts_within, part_at, read_module
from vit.checkpoints.recognition import ParsedCheckpoint
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

TOLERANCE = 0.02  # relative to the largest logit; half precision changes it by 0.01, a wrong number of heads by 0.3


class LiveModule(NamedTuple):
    """A Vision Transformer found in a module, with what is known beside its weights.

    Attributes:
        module: without wrappers for training.
        facts: settings that the module states.
        reading: family and config; its tensors have no values.
    """

    module: nn.Module
    facts: ModuleFacts
    reading: ParsedCheckpoint

    @property
    def config(self) -> ViTConfig:
        """The model's config."""
        return self.reading.config

    @property
    def assumed(self) -> Mapping[str, str]:
        """Config field -> why it has its value, for settings that neither tensors nor module state."""
        return self.reading.assumed

    @property
    def labels(self) -> tuple[str, ...]:
        """One name per class; "class 0" or "output 0", ... if the module has no names."""
        names = self.reading.family.stated_labels(self.facts.document or {})
        names = names if isinstance(names, Mapping) else {}
        return tuple(str(names.get(str(i), name)) for i, name in enumerate(numbered(self.config)))

    def preprocess(self) -> tuple[Preprocess, str]:
        """Return the preprocessing, and the reason for it if the module does not state it."""
        if isinstance(self.module, VisionTransformer):
            half = (0.5,) * self.config.channels
            why = "The preprocessing is not stated; mean and deviation 0.5 are used."
            return Preprocess(self.config.image_size, mean=half, std=half), why
        stated = self.reading.family.stated_preprocess(self.facts.document or {})
        if stated and stated.channels == self.config.channels:
            return replace(stated, size=self.config.image_size, resize_to=None, rectangle=None), ""
        return self.reading.family.preprocess(self.config, "")


# --- Finding --------------------------------------------------------------------------------------------------------


def find_vit(module: nn.Module) -> LiveModule:
    """Find the Vision Transformer in a module.

    DDP, torch.compile, weight averaging or a LightningModule may wrap it.

    Raises:
        InvalidCheckpoint: no supported model, or several.
    """
    live = _describe(unwrapped(module))
    hollow(live.config)  # fills the cache here, because `convert` may run in a thread
    return live


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module itself, without wrappers of torch.compile, data parallelism or libraries; or our own model."""
    ours = [part for part in module.modules() if isinstance(part, VisionTransformer)]
    if len(ours) == 1:
        return ours[0]
    while True:
        if isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):
            module = inner
        elif isinstance(module, nn.DataParallel | DistributedDataParallel):
            module = module.module
        elif isinstance(inner := getattr(module, "timm_model", None), nn.Module):
            module = inner
        else:
            return module


def _describe(module: nn.Module) -> LiveModule:
    """Determine a module's config from its tensors' names and shapes and from its own settings.

    Raises:
        InvalidCheckpoint: unsupported family.
    """
    tensors = copied(module, "meta")
    prefix = "" if isinstance(module, VisionTransformer) else recognition.only_part(tensors)
    if prefix and all(name.startswith(prefix) for name in recognition.used(tensors)):
        return _describe(part_at(module, prefix))  # the module's other parts are not its head
    facts = facts_within(module, prefix)
    return LiveModule(module, facts, read_module(module, facts, tensors))


# --- Copying --------------------------------------------------------------------------------------------------------


def copied(module: nn.Module, device: str = "cpu") -> Tensors:
    """Copy a module's tensors; tied tensors share one copy.

    Raises:
        InvalidCheckpoint: quantised, spread over several processes, or without values.
    """
    copies: dict[object, Tensor] = {}
    tensors = {}
    for name, tensor in module.state_dict().items():
        if not isinstance(tensor, Tensor) and "_packed_params" not in name:  # what a module stores beside its tensors
            continue
        plain = type(tensor) in (Tensor, nn.Parameter) and not (tensor.is_quantized or hasattr(tensor, "ds_id"))
        if not plain or tensor.layout is not torch.strided:
            raise InvalidCheckpoint(
                f"The weights are quantised or sharded: `{brief(name)}` is no plain tensor. Hand over the model before "
                "that, or gather its weights."
            )
        if tensor.is_meta:
            raise InvalidCheckpoint(f"`{brief(name)}` is on the meta device, without values. Load the weights first.")
        place = tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.shape, tensor.stride()
        if place not in copies:
            copies[place] = tensor.detach().to(device, copy=True)
        tensors[name] = copies[place]
    return tensors


def convert(live: LiveModule, tensors: Tensors) -> VisionTransformer:
    """Build our model from copied tensors, in evaluation mode.

    Args:
        tensors: from `copied`; consumed.

    Raises:
        InvalidCheckpoint: the module's structure has changed since `find_vit`.
    """
    reading = read_module(live.module, live.facts, tensors)
    return with_weights(empty_model(reading), reading.tensors)


# --- Comparing ------------------------------------------------------------------------------------------------------


def own_logits(live: LiveModule, pixels: Tensor) -> Tensor | None:
    """Run the module's own forward pass and return its logits on the CPU; None if its output cannot be compared.

    Modes, gradients and random states are left unchanged.

    Args:
        pixels: (B, channels, height, width)

    Raises:
        Exception: any error of the module's forward pass.
    """
    if live.reading.assumed.get("left_out") and not live.config.num_classes:
        return None  # the converted model has no head
    parameter = next(live.module.parameters())
    # No inference mode: the module may cache tensors, which training could not use then.
    with evaluating(live.module), torch.no_grad():
        output = live.module(pixels.to(parameter.device, parameter.dtype))
    answer = next(iter(tensors_of(output)), None)
    if answer is not None and answer.ndim == 3 and live.config.pool == "cls":
        answer = answer[:, 0]
    return answer.detach().float().cpu() if answer is not None and answer.ndim == 2 else None


def tensors_of(output: object) -> list[Tensor]:
    """Return the tensors of a module's output, however nested, logits first."""
    if isinstance(output, Tensor):
        return [output]
    named = output if isinstance(output, Mapping) else vars(output) if is_dataclass(output) else {}
    several = [named.get("logits"), *named.values()] if named else output if isinstance(output, list | tuple) else []
    return [tensor for one in several for tensor in tensors_of(one)]


def matches_module(model: VisionTransformer, pixels: Tensor, answer: Tensor) -> bool:
    """Whether the converted model's logits match the module's.

    Args:
        answer: from `own_logits`.
    """
    with torch.inference_mode():
        logits = model(pixels).logits
    same = logits.shape == answer.shape
    return same and bool((logits - answer).abs().max() <= TOLERANCE * answer.abs().max() + 1e-6)


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode temporarily, and restore random states afterwards.

    The flags are set directly, because `train()` may be overridden and frozen parts may already be in evaluation mode.
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
