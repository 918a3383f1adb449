"""Find the Vision Transformers in a file: the prefix of their names, and which of several models to use.

Module names are arbitrary, so the patch embedding locates the model: the prefix of its name is removed from all names.
A slash in a name separates the keys of nested dicts.
"""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from vit.checkpoints.families.family import Family
from vit.errors import InvalidCheckpoint
from vit.untrusted import brief, brief_list, spend

# Wrappers that torch adds around modules, also inside a model.
_WRAPPED = re.compile(r"(?<![^./])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
_CHUNKS = re.compile(r"^blocks\.\d+\.(\d+)\.")  # Meta trains large models with blocks in groups
# Names of the text tower in a model with two towers, and of what joins them.
_TEXT = re.compile(
    r"(text|txt)([._/]|$)|(multimodal_model|transformer\.resblocks|token_embedding|positional_embedding|ln_final|logit_scale|logit_bias"
    r"|attn_mask|input_resolution|context_length|vocab_size)\b"
)
# Names of the default model among several, most preferred first.
_TEACHER = "teacher"
_MAX_PARTS, _MAX_NAMES = 50, 200_000  # models in a file, and the names in all of them together
_USUAL = (r"(^|[^a-z])(ema|swa)|(ema|swa)([^a-z]|$)|averag|shadow", _TEACHER, r"target", r"^(?!.*(student|online))")


class Part(NamedTuple):
    """One Vision Transformer in a file.

    Attributes:
        prefix: of its names.
        own: name after the prefix -> name in the file.
        beside: tensors of the surrounding modules, by name after the shared part of the prefix -> name in the file.
    """

    prefix: str
    own: dict[str, str]
    beside: dict[str, str]


def find_parts(tensors: Mapping[str, Tensor], families: Sequence[Family]) -> list[Part]:
    """Find every Vision Transformer in a file, the default one first; empty if there is no patch embedding.

    Args:
        tensors: by their names in the file; only names and shapes are used.
    """
    # Each patch embedding marks a model; what stands before its name is the prefix of the model's names.
    # A name belongs to every model whose prefix it starts with: those of "ema." also to a model "" around it, which
    # knows them as "ema.blocks..." and so on.
    # A model is kept if a family claims its names. If there is none, prefixes that only the blocks have are removed
    # first.
    bare = {_WRAPPED.sub("", name): name for name in tensors}
    embeddings = "|".join(_embedding(theirs) for family in families for ours, theirs in family.keys if ours in _OURS)
    matches = map(re.compile(rf"((?:.*[./])?)(?:{embeddings})").fullmatch, bare)
    places = {match[1]: Part(match[1], {}, {}) for match in matches if match}
    left = _MAX_NAMES
    for name in bare:
        spend()
        for end in (0, *(dot.end() for dot in re.finditer(r"[./]", name))):
            if name[:end] in places:
                places[name[:end]].own[_CHUNKS.sub(r"blocks.\1.", name[end:])] = bare[name]
                left -= 1
        if left < 0:
            raise InvalidCheckpoint("The file holds models in models, more than are read. Save one of them.")
    parts = [part for part in places.values() if any(family.claims(list(part.own)) for family in families)]
    for part in [] if parts or len(places) > _MAX_PARTS else places.values():  # the blocks may be in a separate module
        tried = ((family, aligned(part.own, family)) for family in families)
        parts += [part._replace(own=own) for family, own in tried if family.claims(list(own))][:1]
    if len(parts) > _MAX_PARTS:
        raise InvalidCheckpoint(f"The file holds {len(parts):,} models, more than {_MAX_PARTS}. Save one of them.")
    # The other names, such as those of a separate head, go to the model with which they share the longest prefix; if
    # several models share it, to all of them.
    ancestors = {part.prefix: _ancestors(part.prefix) for part in parts}
    for name in bare:
        if any(name.startswith(prefix) for prefix in ancestors):
            continue
        shared = {
            prefix: next((one for one in ancestors[prefix] if name.startswith(one)), None) for prefix in ancestors
        }
        closest = max((len(ancestor) for ancestor in shared.values() if ancestor is not None), default=-1)
        for part in parts:
            ancestor = shared[part.prefix]
            if ancestor is not None and len(ancestor) == closest and not _TEXT.match(name[closest:]):
                part.beside[name[closest:]] = bare[name]
    shapes = {part.prefix: _block_shapes(part, families, tensors) for part in parts}
    return sorted(parts, key=lambda part: _rank(part.prefix, [*shapes.values()].count(shapes[part.prefix]) > 1))


def aligned(names: Mapping[str, str], family: Family) -> dict[str, str]:
    """Remove a prefix that only the blocks have, if their names are not recognised otherwise."""
    before = [match[1] for name in names if (match := family.block.fullmatch(name))]
    prefix = "" if "" in before else next(iter(before), "")
    return {name.removeprefix(prefix): file_name for name, file_name in names.items()}


_OURS = ("patch_embed", "patch_embed.weight")


def _embedding(theirs: str) -> str:
    return re.escape(theirs if theirs.endswith("/kernel") else f"{theirs}.weight")


def _ancestors(prefix: str) -> list[str]:
    """List what names beside a model may share with the model's prefix, longest first; at least the enclosing dict."""
    container = prefix[: prefix.rfind("/") + 1]
    levels = prefix[len(container) :].split(".")[:-1]
    return [container + "".join(f"{level}." for level in levels[:i]) for i in range(len(levels), -1, -1)]


def _block_shapes(part: Part, families: Sequence[Family], tensors: Mapping[str, Tensor]) -> dict[str, object]:
    """Map each parameter of a model's blocks, under our names, to its shape."""
    family = next(family for family in families if family.claims(list(part.own)))
    ours = ((family.find(name) or "", file_name) for name, file_name in part.own.items())
    return {name: tensors[file_name].shape for name, file_name in ours if name.startswith("blocks.")}


def _rank(prefix: str, averaged: bool) -> int:
    """Return a part's place in order of preference.

    Args:
        averaged: another part has the same size, so a teacher is its average; else it is the frozen model of a
            distillation.
    """
    if _TEACHER in prefix.lower() and not averaged:
        return len(_USUAL) + 1
    return next((i for i, pattern in enumerate(_USUAL) if re.search(pattern, prefix.lower())), len(_USUAL))


def distinct(parts: Sequence[Part], tensors: Mapping[str, Tensor]) -> list[Part]:
    """Remove duplicates among a file's models: a module that was registered twice is one model.

    Args:
        tensors: by their names in the file.
    """
    different: dict[object, Part] = {}
    for part in parts:
        places = [(t.untyped_storage()._cdata, t.storage_offset()) for t in map(tensors.__getitem__, part.own.values())]
        different.setdefault(frozenset(places), part)
    return list(different.values())


def choose(parts: Sequence[Part], wanted: str) -> Part:
    """Return the model with this name; the first one for "".

    Args:
        wanted: one of `labels`, or a prefix.

    Raises:
        InvalidCheckpoint: no such model.
    """
    if not wanted:
        return parts[0]
    called = labels([part.prefix for part in parts])
    matching = [part for part in parts if wanted in (part.prefix, called[part.prefix])]
    matching += [part for part in parts if part.prefix.startswith((f"{wanted}.", f"{wanted}/"))]
    if not matching:
        raise InvalidCheckpoint(
            f"The file holds no model that is called {brief(wanted)!r}, but: {brief_list(map(brief, called.values()))}."
        )
    return matching[0]


def labels(prefixes: Sequence[str]) -> dict[str, str]:
    """Return the shortest names that distinguish several models, by prefix.

    >>> labels(["state/student.backbone.", "state/teacher.backbone."])
    {'state/student.backbone.': 'student', 'state/teacher.backbone.': 'teacher'}
    >>> labels(["student/module.", "teacher/"])
    {'student/module.': 'student', 'teacher/': 'teacher'}
    >>> labels(["", "ema.module."])
    {'': 'model', 'ema.module.': 'ema.module'}
    """
    dicts = {prefix: prefix[: prefix.rfind("/") + 1] for prefix in prefixes}
    named = dicts if len({*dicts.values()}) == len(prefixes) else {prefix: prefix for prefix in prefixes}
    levels = {prefix: re.split(r"[./]", name)[:-1] for prefix, name in named.items()}
    for end in (0, -1):
        while len(levels) > 1 and all(levels.values()) and len({parts[end] for parts in levels.values()}) == 1:
            levels = {prefix: parts[1:] if end == 0 else parts[:-1] for prefix, parts in levels.items()}
    return {prefix: ".".join(parts) or "model" for prefix, parts in levels.items()}
