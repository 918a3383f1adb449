"""Classify the tensors of a file: model, head, and those to leave out.

People add heads of their own to a Vision Transformer, under any name. A single linear layer is taken as the head if its
name says that it classifies or estimates numbers. With any other head the model is opened without it, since attention
does not depend on what follows the last block.
"""

import math
import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from torch import Tensor

from vit.checkpoints.families.family import Family
from vit.checkpoints.families.parts import Part, aligned
from vit.errors import InvalidCheckpoint
from vit.untrusted import brief, brief_list

Purpose = Literal["classes", "numbers", "features"]
_HEADS = ("head", "head_dist", "classifier")  # ours, before `adjust`
# Modules that are never part of the path from the model to its head.
_APART = re.compile(
    r"mask|decoder|predictor|loss|criteri|cent(er|re)|queue|bank|prototype|memory|metric|momentum"
    r"|(^|[._])arc([._]|face|margin)|margin|cosine|cosface"
)
# Modules whose names suggest that they change the tokens inside the model.
_WITHIN = re.compile(r"lora_|adapter|prompt|stem|rope|rel_pos|pos_emb|token")
# Tensors stored with quantised weights by bitsandbytes, GPTQ, AWQ, compressed-tensors, torch.ao.
_QUANTISED = re.compile(
    r"\.(SCB|absmax|quant_map|quant_state\.\w+|qweight|qzeros|g_idx|zero_point|weight_scale(_inv)?|weight_packed)$"
)
# Parameters of ordinary layers, including recurrent ones, torch's attention, and parametrised weights.
_OF_LAYER = re.compile(
    r"\.(in_proj_)?(weight|bias)(_\w+)?$|\.(running_mean|running_var|num_batches_tracked)$|/(kernel|scale|bias)$"
    r"|\.parametrizations\.\w+\.original\d?$"
)
# Mean and deviation of a normalisation layer in front of the model.
_MEAN = re.compile(r"((?:.*\.)?(?:(?:pixel|image)_)?)(mean|mu)")
_STD_OF = {"mean": "std", "mu": "sigma"}
# What a linear layer is for, by words of its name; the first match wins. Numbers alone are a place in a `Sequential`.
_PURPOSES: tuple[tuple[Purpose, str], ...] = (
    ("numbers", r"regress\w*|reg|estimat\w+|age|count\w*|depth|quality|keypoints?|landmarks?|coord\w*|pose|angles?"
                r"|b?box|values?|rotation"),
    ("features", r"proj\w*|emb\w*|hash\w*|latents?|feat\w*|pool\w*|codes?|descriptors?|tokens?|neck|norm|contrast\w*"
                 r"|domain"),
    ("classes", r"head\w*|fc|cls|clf|class\w*|lin\w*|logits?|out\w*|pred\w*|labels?|dense|last|final|top|probe|softmax"
                r"|readout|decision|scores?|categor\w*|layer"),
)  # fmt: skip


class Selection(NamedTuple):
    """The tensors of a model.

    Attributes:
        names: the family's name -> name in the file.
        head: weight and, if present, bias of a linear head whose name the family does not know.
        head_name: its module.
        left_out: unused tensors, except those that the family always ignores.
        normalisation: names in the file of mean and deviation, one number per channel, by which the model normalises
            pictures; () without.
        no_head: a linear layer that is left out because its name is not that of a head; "" without.
    """

    names: dict[str, str]
    head: tuple[str, ...]
    head_name: str
    left_out: dict[str, str]
    normalisation: tuple[str, ...] = ()
    no_head: str = ""


def select(part: Part, family: Family, tensors: Mapping[str, Tensor]) -> Selection:
    """Select a model's tensors and its head.

    Args:
        tensors: by their names in the file; only shapes are used.

    Raises:
        InvalidCheckpoint: a tensor that the family does not know may affect the attention.
    """
    own = aligned(part.own, family)
    whole = any((family.find(name) or "").startswith("blocks.") for name in own)
    beside = part.beside if whole else aligned(part.beside, family)  # a decoder has blocks, too
    if quantised := next(filter(_QUANTISED.search, own), None):
        raise InvalidCheckpoint(
            f"The weights are quantised (`{brief(quantised)}`). Open those of the model before it was quantised."
        )
    names, extra, taken = dict[str, str](), dict[str, str](), set[str]()
    for name, file_name in [*own.items(), *beside.items()]:
        if re.search(family.ignored, name):
            continue
        ours = family.find(name)
        inside = name in own and own[name] == file_name
        if ours and ours not in taken and (inside or not whole or ours.rpartition(".")[0] in _HEADS):
            names[name] = file_name
            taken.add(ours)
        else:
            extra[name if name not in extra else file_name] = file_name
    shapes = {name: tuple(tensors[file_name].shape) for name, file_name in (names | extra).items()}
    embedding = next((shapes[name] for name in names if family.find(name) == "patch_embed.weight"), None)
    if embedding is None:
        raise InvalidCheckpoint(
            "The weights are incomplete: `patch_embed.weight` is missing. Or they are those of another model, as only "
            f"a part of their names is that of {family.name}."
        )
    last = len(embedding) == 4 and embedding[1] == embedding[2] > 3 >= embedding[3]
    if len(embedding) != 4 or 0 in embedding or last:
        kinds = {
            2: " It is a linear layer, as in SigLIP 2 of NaFlex kind; only PyTorch's convolutions are read.",
            4: " Its channels are last, as MLX stores them; only PyTorch's convolutions are read." if last else "",
            5: " It reads videos or volumes, and only pictures are read here.",
        }
        raise InvalidCheckpoint(
            f"The patch embedding has the wrong shape: {brief([*embedding])}.{kinds.get(len(embedding), '')}"
        )
    dim = embedding[0]
    _accept_sequences(family, names, extra, shapes, dim)
    _drop_parts_of_larger_heads(family, names, extra, shapes, dim, own)
    only = () if _heads(family, names) else _only_linear(extra, shapes, dim)
    only_name = only[0].rpartition(".")[0] if only else ""
    head = () if only and purpose(only_name) == "features" else only
    normalisation = _normalisation(extra, shapes, embedding[1])
    left_out = {name: file_name for name, file_name in extra.items() if name not in (*head, *normalisation)}
    beside_alone = {name: shapes[name] for name in left_out if name not in own and not _APART.search(name)}
    if before := _changes_pictures(beside_alone, dim, embedding[1]):
        raise InvalidCheckpoint(
            f"The file holds a layer that changes pictures before the model sees them (`{brief(before)}`), so it "
            "cannot be opened faithfully. Save only the Vision Transformer, and change the pictures beforehand."
        )
    for name in left_out:
        if not _is_harmless(name, shapes[name], dim, family if name in own else None):
            raise InvalidCheckpoint(_refusal(family, name))
    return Selection(
        names,
        tuple(extra[name] for name in head),
        only_name if head else "",
        left_out,
        tuple(extra[name] for name in normalisation),
        "" if head else only_name,
    )


def _normalisation(extra: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], channels: int) -> tuple[str, ...]:
    """Return the only pair of mean and deviation with one number per channel; () if there is none or more than one."""
    fitting = {name: None for name in extra if math.prod(shapes[name]) == channels and not _APART.search(name)}
    means = [match for name in fitting if (match := _MEAN.fullmatch(name))]
    pairs = [(match[0], std) for match in means if (std := match[1] + _STD_OF[match[2]]) in fitting]
    return pairs[0] if len(pairs) == 1 else ()


def _changes_pictures(shapes: Mapping[str, tuple[int, ...]], dim: int, channels: int) -> str:
    """Return a convolution that produces pictures from something other than the model's output; "" if there is none."""
    weights = {name: shape for name, shape in shapes.items() if len(shape) >= 2}
    beside: dict[int, set[int]] = {}
    for one, other, *_ in weights.values():  # transposed convolutions have their input channels first
        beside.setdefault(one, set()).add(other)
        beside.setdefault(other, set()).add(one)
    after, todo = set[int](), {dim}
    while todo:
        after.add(side := todo.pop())
        todo |= beside.get(side, set()) - after
    pictures = (name for name, shape in weights.items() if len(shape) == 4 and shape[0] == channels)
    return next((name for name in pictures if weights[name][1] not in after), "")


def _heads(family: Family, names: Mapping[str, str]) -> list[str]:
    """Return the names that are weights of a head, including CLIP's projection."""
    return [name for name in names if family.find(name) in ("proj", *(f"{head}.weight" for head in _HEADS))]


def _accept_sequences(
    family: Family, names: dict[str, str], extra: dict[str, str], shapes: dict[str, tuple[int, ...]], dim: int
) -> None:
    """Move a linear layer in a `Sequential` in the head's place to the head, if it is the only layer with tensors."""
    taken = {family.find(name) for name in names}
    for ours, theirs in family.keys:
        if ours not in _HEADS or f"{ours}.weight" in taken:
            continue
        inside = {name: file_name for name, file_name in extra.items() if name.startswith(f"{theirs}.")}
        for name in _only_linear(inside, shapes, dim):
            known = f"{theirs}.{name.rpartition('.')[2]}"
            names[known], shapes[known] = extra.pop(name), shapes[name]
            taken.add(f"{ours}.weight")


def _drop_parts_of_larger_heads(
    family: Family,
    names: dict[str, str],
    extra: dict[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    dim: int,
    own: Mapping[str, str],
) -> None:
    """Move tensors from `names` to `extra` if they have a head's name but are one layer of a larger head."""
    found = {family.find(name): name for name in names}
    for head in _HEADS:
        bias = found.get(f"{head}.bias")
        if bias and f"{head}.weight" not in found and any(name.startswith(bias.removesuffix("bias")) for name in extra):
            extra[bias] = names.pop(bias)  # the weights are computed, for example by weight norm
    before = [side for name in names if family.find(name) == "pre_logits.weight" for side in shapes[name][:1]]
    for weight in _heads(family, names):
        shape = shapes[weight]
        if family.find(weight) == "proj":
            continue
        # A layer is part of a larger head if it does not read the model's features, if another layer reads its output,
        # if other layers outside the model read the features, or if its module has further tensors.
        reads = len(shape) == 2 and shape[1] in (dim, 2 * dim, *before)
        near = [name for name in extra if not _APART.search(name)]
        follows = any(shapes[name][1:] == shape[:1] != (dim,) and name.endswith(".weight") for name in near)
        between = weight not in own and any(dim in shapes[name] for name in near)
        stem = weight.rpartition(".")[0]
        more = bool(stem) and any(name.startswith(f"{stem}.") for name in extra)
        if (near and (not reads or follows or between)) or more or (not reads and shape[1:] and shape[1] % dim == 0):
            for name in (f"{stem}.weight", f"{stem}.bias"):
                if name in names:
                    extra[name] = names.pop(name)


def _only_linear(extra: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]], dim: int) -> tuple[str, ...]:
    """Return weight and bias, if any, of the only layer that reads the model's width if it is linear, else ()."""
    reading = [name for name in extra if dim in shapes[name] and not _APART.search(name)]
    weights = [name for name in reading if name.endswith(".weight") and shapes[name][1:] == (dim,)]
    if len(weights) != 1:
        return ()
    (weight,) = weights
    bias = f"{weight.rpartition('.')[0]}.bias"
    biased = bias in extra and shapes[bias] == shapes[weight][:1]
    others = {name: None for name in extra if name not in (weight, bias)}
    follows = any(shapes[name][1:] == shapes[weight][:1] and name.endswith(".weight") for name in others)
    normed = any(
        shapes[name] == shapes[weight][:1] and f"{name.removesuffix('.weight')}.bias" in others
        for name in others
        if name.endswith(".weight")
    )
    more = any(name.startswith(f"{weight.rpartition('.')[0]}.") for name in others)  # such as the scale of a cosine
    if (
        follows
        or normed
        or more
        or set(reading) - {weight, bias}
        or (not biased and re.search(r"embed|token|pos", weight))
    ):
        return ()
    return (weight, bias) if biased else (weight,)


def purpose(layer: str) -> Purpose:
    """Return what a linear layer after the model is for, by its name.

    >>> purpose("net.cls_layer"), purpose("1"), purpose("age_regressor"), purpose("visual_projection"), purpose("to_x")
    ('classes', 'classes', 'numbers', 'features', 'features')
    """
    words = [word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", layer)]
    fitting = (what for what, pattern in _PURPOSES if any(re.fullmatch(pattern, word) for word in words))
    return next(fitting, "features") if words else "classes"


def _is_harmless(name: str, shape: tuple[int, ...], dim: int, family: Family | None) -> bool:
    """Whether leaving out a tensor cannot change the attention.

    Args:
        family: of the model that contains the tensor; None for a tensor outside the model.
    """
    if _APART.search(name):
        return True
    if not _OF_LAYER.search(name):  # a free parameter, such as prompts and extra tokens
        return not shape or shape[-1] != dim
    if family is None:
        return True
    modules = {
        theirs.partition(".")[0]
        for ours, theirs in family.keys
        if ours.partition(".")[0] not in (*_HEADS, "pre_logits")
    }
    return name.partition(".")[0] not in modules and not _WITHIN.search(name)


def _refusal(family: Family, name: str) -> str:
    if re.search(r"lora_|\.base_layer\.", name):
        return (
            f"The model has adapters that are not merged with its weights (`{brief(name)}`). Merge them first: "
            'model.merge_and_unload().save_pretrained("merged").'
        )
    if family.find(name):
        return (
            f"The file holds `{brief(name)}` twice, under two spellings. Save the state_dict() of one model: "
            'torch.save(model.state_dict(), "weights.pth").'
        )
    return (
        f"The file has names of {family.name}, and a tensor that a plain Vision Transformer does not have "
        f"(`{brief(name)}`), so it cannot be opened faithfully."
    )


def described(left_out: Mapping[str, str]) -> str:
    """Summarise tensors by module.

    >>> described({"fc.0.weight": "", "fc.0.bias": "", "n_averaged": ""})
    '`fc` (2 tensors), `n_averaged`'
    """
    counts: dict[str, int] = {}
    for name in left_out:
        root = name.partition(".")[0] if "." in name else name
        counts[root] = counts.get(root, 0) + 1
    parts = [f"`{brief(root)}`" + (f" ({count} tensors)" if count > 1 else "") for root, count in counts.items()]
    return brief_list(parts)
