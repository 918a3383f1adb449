"""What a checkpoint is: a model with all that belongs to it, and the names of its files.

A checkpoint that we save is a folder in the layout of transformers:

    config.json               what transformers opens; "vit": our config, "vit_probe": fingerprint, "training": facts
    model.safetensors         weights, and in its metadata all that a lone file needs to describe itself
    preprocessor_config.json  from picture to input, as transformers' AutoImageProcessor reads it
    README.md                 the card: data, recipe, cost, accuracy, limits
"""

import hashlib
import math
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vit.checkpoints.answers import Answers
from vit.checkpoints.families.family import MAX_PATCHES, Tensors
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

WEIGHTS = "model.safetensors"
PYTORCH_WEIGHTS = "pytorch_model.bin"
INDEXES = tuple(f"{weights}.index.json" for weights in (WEIGHTS, PYTORCH_WEIGHTS))  # of weights in several files
CONFIG = "config.json"
PREPROCESS = "preprocessor_config.json"
CARD = "README.md"
OPEN_CLIP = "open_clip_config.json"
VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json")  # a tokenizer needs one of them
TOKENIZER = (*VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")

MAX_WEIGHTS = 12 << 30  # [bytes]; DINOv2-g in float32 has 4.5 GB, CLIP-G with its text tower 10

NAME = re.compile(r"[a-z0-9_.-]{1,64}")
WEIGHT_NAMES = (WEIGHTS, INDEXES[0], PYTORCH_WEIGHTS, INDEXES[1])  # the first that is there


_OF_CLASSES = ("faithfulness", "limits", "data", "images")  # facts


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened.

    Attributes:
        name: of its folder or file.
        model: in evaluation mode, on the CPU; it computes in float32. The matrices of a large model stay in half
            precision if they come so.
        labels: one name per class.
        assumed: what no file states -> why it is taken to be so; for people to read.
        card: the text of its README.md, "" without one.
        facts: what is recorded of its training: accuracy, data, recipe, hardware, time, params, ...
        hash: first 16 hexadecimal digits of the SHA-256 of the weights file; of several files, of all in the order
            of their names, one after the other.
        answers: classes from outside, which took the place of its own; None of a checkpoint as its files have it.
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
    answers: Answers | None = None

    @cached_property
    def params(self) -> int:
        """Numbers that the model learnt."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def identity(self) -> str:
        """Tells all that results depend on, weights, config, preprocessing and classes, from every other checkpoint's.

        The weights alone do not: with another number of heads or another mean colour they answer differently.
        """
        parts: tuple[Any, ...] = self.hash, self.config, self.preprocess, self.labels
        if self.answers:
            parts += (self.answers.digest,)
        elif self.model.activation != "softmax":
            parts += (self.model.activation,)
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    @cached_property
    def body(self) -> str:
        """Tells all that a pass depends on before the head, the same with any answers."""
        parts = self.hash, replace(self.config, num_classes=0, multi_label=False), self.preprocess
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]

    def with_answers(self, answers: Answers) -> Self:
        """The same checkpoint, on the same weights, with classes from outside in place of its own.

        Everything that explains a class then explains one of these.

        Args:
            answers: made for this checkpoint, see `vit.answers_from_text` and `vit.answers_from_examples`.
        """
        model = self.model.with_head(answers.head, len(answers.names), answers.activation)
        # Measured with its own classes, or said of them.
        facts = {name: fact for name, fact in self.facts.items() if "accuracy" not in name and name not in _OF_CLASSES}
        return replace(
            self,
            model=model,
            config=model.config,
            labels=answers.names,
            assumed={name: why for name, why in self.assumed.items() if name != "labels"},
            facts=facts | {"classes": answers.source},
            answers=answers,
        )


@dataclass(frozen=True)
class CheckpointInfo:
    """What a list of checkpoints shows, read without loading weights.

    Attributes:
        params: numbers that the model learnt.
        size: of the weights, be they in one file or in several [bytes].
        labels: how many classes.
        problem: why it cannot be opened, "" if nothing is known against it.
        family: whose names its tensors have.
        choices: numbers of attention heads to choose from, if only that is missing.
        others: what further models in its file are called; each opens as "name#other".
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
    """What the system says against a file, or that no file can have such a name; for the end of a sentence."""
    return (error.strerror if isinstance(error, OSError) else None) or "the name cannot be"


def reads_text(document: Mapping[str, Any]) -> bool:
    """Whether a config.json is of a model with a text tower that we can ask, CLIP's or SigLIP's."""
    return document.get("model_type") in ("clip", "siglip") and "text_config" in document


OURS = "vit.config"  # the key of the weights' metadata that tells our files from those of others


def check_preprocess(preprocess: Preprocess, config: ViTConfig) -> None:
    """Refuse preprocessing whose pictures a model cannot read.

    Raises:
        InvalidCheckpoint: another number of channels, sides that are not whole patches, or too many patches.
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
    """Whether a tensor of any shape, perhaps empty, holds neither NaN nor infinity."""
    ends = tensor.aminmax() if tensor.numel() else ()  # a NaN is both; takes no memory, as isfinite() would
    return all(math.isfinite(end) for end in ends)


def hollow(config: ViTConfig) -> VisionTransformer:
    """A model without memory for its weights."""
    return deepcopy(_hollow(config))


@lru_cache(8)
def _hollow(config: ViTConfig) -> VisionTransformer:
    # Once for each config: the context is the whole process's for a moment, and a training compiled by torch notices.
    with torch.device("meta"):
        return VisionTransformer(config)


def with_weights(model: VisionTransformer, tensors: Tensors) -> VisionTransformer:
    """The same model, in evaluation mode, with these very tensors as its weights: nothing is copied.

    Args:
        model: may be on the meta device.
        tensors: by name, of the model's shapes.
    """
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    return model.eval()


def old_folder(path: Path) -> Path:
    """Where the checkpoint that is being replaced lies until the new one has its name; see `save_checkpoint`."""
    return path.parent / f".{path.name}.old"
