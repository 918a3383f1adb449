"""The `Checkpoint` class, and the names of a checkpoint's files.

A checkpoint that we save is a folder in the layout of transformers:

    config.json               read by transformers; "vit": our config, "vit_probe": fingerprint, "training": facts
    model.safetensors         weights; the metadata is enough to open the file without its folder
    preprocessor_config.json  preprocessing, as transformers' AutoImageProcessor reads it
    README.md                 the card: data, recipe, cost, accuracy, limits
"""

import hashlib
import math
import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vit.checkpoints.custom_classes import CustomClasses
from vit.checkpoints.families.tensor_shapes import MAX_PATCHES, Tensors
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

WEIGHTS = "model.safetensors"
PYTORCH_WEIGHTS = "pytorch_model.bin"
INDEXES = tuple(f"{weights}.index.json" for weights in (WEIGHTS, PYTORCH_WEIGHTS))  # of weights in several files
CONFIG = "config.json"
PREPROCESS = "preprocessor_config.json"
PROCESSOR = "processor_config.json"  # transformers 5 states the preprocessing of models with texts here
CARD = "README.md"
OPEN_CLIP = "open_clip_config.json"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")  # a tokenizer needs one of them
TOKENIZER = (*VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

MAX_WEIGHTS = 12 << 30  # [bytes]; DINOv2-g in float32 has 4.5 GB, CLIP-G with its text tower 10 GB

NAME = re.compile(r"[a-z0-9_.-]{1,64}")
WEIGHT_NAMES = (WEIGHTS, INDEXES[0], PYTORCH_WEIGHTS, INDEXES[1])  # in order of preference


# Facts that are void once the classes are replaced.
_OF_CLASSES = ("faithfulness", "limits", "data", "images", "temperature", "sure_from", "sure_on")


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint.

    Attributes:
        name: of its folder or file.
        model: in evaluation mode, on the CPU, computing in float32. Matrices of large models stay in half precision if
            the file stores them so.
        labels: one name per class, or per number that the model estimates.
        assumed: each setting that no file states -> why it has its value; shown to people.
        card: text of README.md, "" without one.
        facts: recorded facts about the training: accuracy, data, recipe, hardware, time, params, ...
        hash: first 16 hexadecimal digits of the SHA-256 of the weights file; several files are concatenated in the
            order of their names.
        custom_classes: classes from outside that replace the checkpoint's own; None if they were not replaced.
    """

    name: str
    path: Path
    model: VisionTransformer
    config: ViTConfig
    labels: tuple[str, ...]
    preprocess: Preprocess
    assumed: Mapping[str, str]
    card: str
    facts: Mapping[str, Any]
    hash: str
    custom_classes: CustomClasses | None = None

    @cached_property
    def params(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def estimates(self) -> bool:
        """Whether the outputs, which `labels` names, are numbers without probabilities instead of classes."""
        return self.model.activation == "none"

    @cached_property
    def identity(self) -> str:
        """Return a hash of everything that results depend on: weights, config, preprocessing and classes.

        The hash of the weights is not enough: another number of heads or another mean colour changes the results.
        """
        parts: tuple[Any, ...] = self.hash, self.config, self.preprocess, self.labels
        if self.custom_classes:
            parts += (self.custom_classes.digest,)
        elif self.model.activation != "softmax":
            parts += (self.model.activation,)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @cached_property
    def body(self) -> str:
        """Return a hash of all that the features before the head depend on; independent of the classes."""
        parts = self.hash, replace(self.config, num_classes=0, multi_label=False, regression=False), self.preprocess
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def with_classes(self, custom: CustomClasses) -> Self:
        """Return a copy that shares the weights and has other classes.

        All methods that explain a class then explain the new classes.

        Args:
            custom: made for this checkpoint, see `vit.classes_from_text` and `vit.classes_from_examples`.
        """
        model = self.model.with_head(custom.head, len(custom.names), custom.activation)
        # These facts were measured with, or describe, the checkpoint's own classes.
        facts = {name: fact for name, fact in self.facts.items() if "accuracy" not in name and name not in _OF_CLASSES}
        return replace(
            self,
            model=model,
            config=model.config,
            labels=custom.names,
            assumed={name: why for name, why in self.assumed.items() if name != "labels"},
            facts=facts | {"classes": custom.source},
            custom_classes=custom,
        )


@dataclass(frozen=True)
class CheckpointInfo:
    """Summary of a checkpoint for lists, read without loading weights.

    Attributes:
        params: number of parameters.
        size: of all weights files together [bytes].
        labels: number of classes; 0 if the outputs are no classes.
        problem: why it cannot be opened, "" if no problem is known.
        family: name of the family that its tensor names match.
        choices: possible numbers of attention heads, if nothing else is missing.
        others: names of further models in its file; each opens as "name#other".
    """

    name: str
    folder: Path
    params: int
    size: int
    labels: int
    facts: Mapping[str, Any]
    problem: str = ""
    family: str = ""
    choices: tuple[int, ...] = ()
    others: tuple[str, ...] = ()


def reason_of(error: Exception) -> str:
    """Return why a file cannot be opened or copied, as the end of a sentence.

    >>> import shutil
    >>> reason_of(shutil.Error([("a", "b", "[Errno 2] No such file or directory: 'a'")]))
    'No such file or directory'
    """
    if not isinstance(error, OSError):
        return "the name cannot be"
    code = re.search(r"\[Errno (\d+)\]", str(error))  # of `shutil.copytree`, which joins the errors as text
    return error.strerror or (os.strerror(int(code[1])) if code else "a file cannot be read or written")


def reads_text(document: Mapping[str, Any]) -> bool:
    """Whether config.json describes a model with a text tower that we support, CLIP's or SigLIP's."""
    return document.get("model_type") in ("clip", "siglip") and "text_config" in document


OURS = "vit.config"  # metadata key in the weights that marks files which this package saved


def check_preprocess(preprocess: Preprocess, config: ViTConfig) -> None:
    """Check that a model accepts the output of this preprocessing.

    Raises:
        InvalidCheckpoint: wrong number of channels, sides that do not fit the patch size, or too many patches.
    """
    if preprocess.channels != config.channels:
        raise InvalidCheckpoint(
            f"The preprocessing gives {preprocess.channels} channels and the model takes {config.channels}."
        )
    if any(side % config.patch_size for side in preprocess.size):
        height, width = preprocess.size
        raise InvalidCheckpoint(
            f"The preprocessing gives {height} x {width} px, which patches of {config.patch_size} px do not fill."
        )
    if math.prod(preprocess.size) > MAX_PATCHES * config.patch_size**2:
        raise InvalidCheckpoint(f"The preprocessing gives more than {MAX_PATCHES} patches.")


def is_finite(tensor: Tensor) -> bool:
    """Whether a tensor of any shape, perhaps empty, has neither NaN nor infinity."""
    ends = tensor.aminmax() if tensor.numel() else ()  # NaN propagates to both; isfinite() would allocate a mask
    return all(math.isfinite(end) for end in ends)


def hollow(config: ViTConfig) -> VisionTransformer:
    """Return a model on the meta device, which allocates no memory for weights."""
    return deepcopy(_hollow(config))


@lru_cache(8)
def _hollow(config: ViTConfig) -> VisionTransformer:
    # Cached per config: `torch.device` is set for the whole process meanwhile, which a training under torch.compile
    # notices.
    with torch.device("meta"):
        return VisionTransformer(config)


def with_weights(model: VisionTransformer, tensors: Tensors) -> VisionTransformer:
    """Assign tensors to a model without copying them, and set evaluation mode.

    Args:
        model: may be on the meta device.
        tensors: by name, of the model's shapes.
    """
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    return model.eval()


def old_folder(path: Path) -> Path:
    """Path of the previous checkpoint while `save_checkpoint` replaces it."""
    return path.parent / f".{path.name}.old"
