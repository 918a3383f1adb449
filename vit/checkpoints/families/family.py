"""The `Family` class: names and config of one library. `tensor_shapes` reshapes its renamed tensors.

Both use names and shapes only, so they also work on the meta device: a file is recognised, or refused, before any
weights are read.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from vit.checkpoints.families.tensor_shapes import MAX_PATCHES, Tensors
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig, check_field
from vit.untrusted import brief, spend

# A file of a megabyte can state more. DINOv2's giant with 4096 patches has 16 billion attention weights a picture.
_MAX_PIXELS, _MAX_WEIGHTS = 1 << 22, 2 * 10**10
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class InferredModel(NamedTuple):
    """Settings inferred from the tensors of a model that no file names.

    Attributes:
        fields: of the config.
        model: name for people; "" for a plain one.
    """

    fields: Mapping[str, Any] = MappingProxyType({})
    model: str = ""


@dataclass(frozen=True)
class Family:
    """How one library stores a plain ViT.

    Attributes:
        name: shown to people.
        signature: regular expression that matches one of its tensor names.
        without: regular expression that excludes other families which match `signature`, too.
        keys: (ours, theirs) for every module or parameter; `{i}` stands for the index of the block, `{h}` for that of
            the head, and ".weight" or ".bias" may follow. Ours are the names of `VisionTransformer`, before `reshape`.
        ignored: regular expression for names that classification does not use.
        square: whether all models were trained on square pictures.
        fixed: config fields that are equal in every model of the family and never in a file.
        assumed: config field -> (value, reason), used if neither shapes nor config determine it.
        config_names: config field -> its name in the family's config.json.
        read_config: reads the config fields from the family's config.json if more than their names differs; see
            `stated`.
        by_name: config fields inferred from the name of a published model, limited to those that tensors cannot
            contradict.
        by_tensors: (renamed tensors, their original names, name of file and folder) -> config fields that all published
            models with such tensors share, and the name of these models. Called if no config.json states the
            architecture; raises if the tensors are ambiguous.
        adjust: converts renamed tensors to what this project's blocks compute, if more than names differs; also returns
            the config fields inferred from them.
        stated_size: (height, width) [px] of the input in the family's config.json, used for the grid of the position
            embeddings if their number fits.
        preprocess: (config, name) -> default preprocessing if no file states it, and the reason.
        stated_preprocess, stated_labels: read these from the family's config.json, if present.
    """

    name: str
    signature: str
    keys: tuple[tuple[str, str], ...]
    preprocess: Callable[[ViTConfig, str], tuple[Preprocess, str]]
    without: str = r"(?!)"
    ignored: str = r"(?!)"
    square: bool = True
    fixed: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    config_names: Mapping[str, str] = field(default_factory=dict)
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    by_name: Callable[[str], dict[str, Any]] = lambda name: {}
    adjust: Callable[[Tensors], tuple[Tensors, dict[str, Any]]] = lambda tensors: (tensors, {})
    by_tensors: Callable[[Tensors, Collection[str], str], InferredModel] = lambda tensors, names, name: InferredModel()
    stated_size: Callable[[Mapping[str, Any]], tuple[int, int] | None] = lambda document: None
    stated_preprocess: Callable[[Mapping[str, Any]], Preprocess | None] = lambda document: None
    stated_labels: Callable[[Mapping[str, Any]], Any] = lambda document: document.get("id2label")

    def claims(self, names: list[str]) -> bool:
        """Whether a file with these tensor names belongs to this family."""
        return any(re.search(self.signature, name) for name in names) and not any(
            re.search(self.without, name) for name in names
        )

    def stated(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """Read the config fields that the family's config.json states.

        Raises:
            InvalidCheckpoint: a field has an invalid value.
        """
        if self.read_config is not None:
            return self.read_config(document)
        stated = {ours: document[theirs] for ours, theirs in self.config_names.items() if theirs in document}
        for ours, value in stated.items():
            check_stated(ours, value, self.config_names[ours])
        return stated

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        return [(_pattern(theirs), ours) for ours, theirs in self.keys]

    @cached_property
    def block(self) -> re.Pattern[str]:
        """Matches names of tensors in blocks; the group is a prefix that the family does not have, up to a dot."""
        ends = (_pattern(theirs).pattern for ours, theirs in self.keys if ours.startswith("blocks."))
        return re.compile(rf"((?s:.*?\.)?)(?:{'|'.join(re.sub('[?]P<[a-z]+>', '?:', end) for end in ends)})", re.ASCII)

    def find(self, name: str) -> str | None:
        """Translate one of the family's names to ours, before `reshape`; None for an unknown name."""
        spend()
        matches = ((ours, pattern.fullmatch(name)) for pattern, ours in self._patterns)
        return next((_fill(match, ours) for ours, match in matches if match), None)

    def rename(self, tensors: Tensors) -> Tensors:
        """Rename the family's tensors to those of `VisionTransformer`, before `reshape`.

        Raises:
            InvalidCheckpoint: unknown name, or two names for the same tensor.
        """
        renamed: Tensors = {}
        for name, tensor in tensors.items():
            if re.search(self.ignored, name):
                continue
            ours = self.find(name)
            if ours is None:
                raise InvalidCheckpoint(
                    f"The file has names of {self.name}, and a tensor that a plain Vision Transformer does not have "
                    f"(`{brief(name)}`), so it cannot be opened faithfully."
                )
            if ours in renamed:
                raise InvalidCheckpoint(f"The file holds `{brief(name)}` twice, under two spellings.")
            renamed[ours] = tensor
        return renamed

    def rename_back(self, tensors: Tensors) -> Tensors:
        """Rename our tensors to the family's names, in the first spelling in `keys`."""
        patterns = [(_pattern(ours), theirs) for ours, theirs in self.keys]
        return {
            next(_fill(match, theirs) for pattern, theirs in patterns if (match := pattern.fullmatch(name))): tensor
            for name, tensor in tensors.items()
        }


def _pattern(template: str) -> re.Pattern[str]:
    numbers = re.escape(template)
    for letter in "ih":
        numbers = numbers.replace(re.escape(f"{{{letter}}}"), rf"(?P<{letter}>0|[1-9][0-9]{{0,3}})")
    return re.compile(numbers + r"(?P<end>\.weight|\.bias)?", re.ASCII)


def _fill(match: re.Match[str], template: str) -> str:
    for letter in "ih":
        template = template.replace(f"{{{letter}}}", match.groupdict().get(letter) or "")
    return template + (match["end"] or "")


def build_config(values: Mapping[str, Any]) -> ViTConfig:
    """Build a config from untrusted values.

    Raises:
        InvalidCheckpoint: unknown field, wrong type, out of range, or inconsistent fields.
    """
    with _refusing():
        config = ViTConfig.from_dict(dict(values))
    if math.prod(config.grid) > MAX_PATCHES:
        raise InvalidCheckpoint(f"The config implies {math.prod(config.grid)} patches; the limit is {MAX_PATCHES}.")
    if math.prod(config.image_size) > _MAX_PIXELS or config.tokens**2 * config.heads * config.depth > _MAX_WEIGHTS:
        raise InvalidCheckpoint("The config implies larger pictures or more attention weights than are computed here.")
    return config


def check_stated(name: str, value: object, shown_name: str) -> None:
    """Check the type and range of a config value, naming the field as its file does.

    Args:
        name: of the config field.
        shown_name: name of the field in the file.

    Raises:
        InvalidCheckpoint: invalid value.
    """
    with _refusing():
        check_field(name, value, shown_name)


@contextmanager
def _refusing() -> Iterator[None]:
    """Convert a ValueError about a config to InvalidCheckpoint."""
    try:
        yield
    except ValueError as error:
        raise InvalidCheckpoint(f"The checkpoint's config cannot be: {error}") from error
