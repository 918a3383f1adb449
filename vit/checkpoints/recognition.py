"""Recognise the family of a checkpoint's tensors, and convert them; one reader for all families."""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from vit.checkpoints.families import FAMILIES, MODEL_TYPES, READS, huggingface, timm_architectures
from vit.checkpoints.families.family import Family, InferredModel, build_config
from vit.checkpoints.families.heads import Selection, described, purpose, select
from vit.checkpoints.families.parts import Part, choose, distinct, find_parts, labels
from vit.checkpoints.families.tensor_shapes import (
    Tensors,
    biased_grid,
    check_dtypes,
    default_heads,
    infer,
    needed,
    possible_grids,
    possible_heads,
    reshape,
    square_size,
)
from vit.checkpoints.other_architectures import BESIDE, refuse_others
from vit.errors import InvalidCheckpoint, UnknownHeads
from vit.model.config import ViTConfig
from vit.untrusted import brief, brief_list

_EMBEDDING = "patch_embed.weight"
ONE_OUTPUT = "The model has one output, a binary classification: the probability is the sigmoid of the logit."

# Names of PEFT adapters: its general prefix, or a suffix for the kind of adapter.
_ADAPTER = re.compile(r"^base_model\.model\.|\.(lora|ia3|hada|lokr|oft|boft|vera|fourierft)_\w+(\.\w+)?$|^prompt_embed")
_FLAT = re.compile(r"(^|[./])_?flat_param(_\d+)?$")
ADAPTER = (
    "This is a PEFT adapter without its base model. Merge them first: "
    'PeftModel.from_pretrained(base, "adapter").merge_and_unload().save_pretrained("merged").'
)


class ParsedCheckpoint(NamedTuple):
    """A checkpoint's tensors, converted, with its config.

    Attributes:
        family: that the tensor names belong to.
        config: what the model computes.
        tensors: under the names of `VisionTransformer.state_dict()`.
        assumed: config field -> why it has its value, for settings that no file states; also what was left out.
        head: name of the head's module if it is not the family's, else "".
        part: prefix of the model's names in the file.
        normalisation: mean and deviation by which the model normalises pictures, by their names in the file; empty
            without.
    """

    family: Family
    config: ViTConfig
    tensors: Tensors
    assumed: dict[str, str]
    head: str = ""
    part: str = ""
    normalisation: Mapping[str, Tensor] = MappingProxyType({})


def read(
    tensors: Tensors,
    document: Mapping[str, Any] | None = None,
    ours: bool = False,
    heads: int | None = None,
    name: str = "",
    consume: bool = False,
    known: Mapping[str, Any] | None = None,
    part: str = "",
) -> ParsedCheckpoint:
    """Recognise the family of a checkpoint's tensors and convert them; works on the meta device.

    Settings come from config.json first, then from names and shapes of the tensors, then from the name of a published
    model; the rest is assumed, and recorded in `ParsedCheckpoint.assumed`.

    Args:
        document: content of the config.json beside the weights, if there is one.
        ours: this app saved the file, and `document["vit"]` is the complete config.
        heads: number of attention heads from the user, if neither file nor convention determines it.
        name: of the file and its folder.
        consume: empty `tensors` along the way, to avoid holding the weights twice.
        known: config fields read from a model in memory; treated as stated.
        part: name of one of several models in the file; "" for the default.

    Raises:
        InvalidCheckpoint: unsupported family, or a file that contradicts itself or its config.
    """
    try:
        model = _select(tensors, ours, part, document or {})
        family = model.family
        renamed = family.rename({name: tensors[file_name] for name, file_name in model.selection.names.items()})
    except InvalidCheckpoint:
        if not known:  # config.json knows better than the names of tensors which model this is
            check_config(document or {})
        raise
    if family.config_names is huggingface.CONFIG_NAMES:
        check_config(document or {})
    own_head, bare = [tensors[file_name] for file_name in model.selection.head], list(model.part.own)
    normalisation = {file_name: tensors[file_name] for file_name in model.selection.normalisation}
    if consume:
        tensors.clear()
    check_dtypes(renamed)
    if ours:
        vit = (document or {}).get("vit")
        if not isinstance(vit, Mapping):
            raise InvalidCheckpoint('config.json lacks the field "vit" that says what this model computes.')
        config = build_config(vit)
        return ParsedCheckpoint(family, config, reshape(renamed, config.grid, _placed(vit))[0], {})

    stated = (family.stated(document) if document is not None else {}) | dict(known or {})
    named = family.by_name(name)
    width = needed(renamed, "patch_embed.weight", 4).shape[0]
    recognised = InferredModel() if "rope" in stated else family.by_tensors(renamed, bare, name)
    likely = dict(recognised.fields)
    usual = likely.get("heads", default_heads(width))
    if "heads" in named and named["heads"] != (usual or named["heads"]):
        named = {field: value for field, value in named.items() if field != "heads"}  # file names are unreliable
    elif "heads" in named:
        likely.pop("heads", None)
    renamed, adjusted = family.adjust(renamed)
    if own_head:
        renamed |= zip(("head.weight", "head.bias"), own_head, strict=False)
        own_head.clear()
    if "head.weight" in renamed and "head_dist.weight" not in renamed and "head.bias" not in renamed:
        renamed["head.bias"] = renamed["head.weight"].new_zeros(renamed["head.weight"].shape[:1])
        model.remarks.setdefault("head", "The file holds no bias of the head, so it has none.")
    grid = _stated_grid(family, renamed, likely | stated, document or {})
    reshaped, prefix = reshape(renamed, grid, _placed({**family.fixed, **likely, **stated, **adjusted}))
    pool = adjusted.pop("pool", None)
    measured = infer(reshaped, prefix, stated.get("pool", pool)) | adjusted
    for field in stated.keys() & measured.keys() - {"pool", "activation", "rope"}:
        if stated[field] != measured[field]:
            called = family.config_names.get(field, field)
            raise InvalidCheckpoint(
                f"config.json says {called} = {brief(stated[field])}, the weights say {brief(measured[field])}."
            )
    side = measured["patch_size"]
    measured["image_size"] = (grid[0] * side, grid[1] * side) if grid else square_size(reshaped, side)
    if measured["num_classes"] and (document or {}).get("problem_type") == "multi_label_classification":
        measured["multi_label"] = True
    if "blocks.0.scale1" in reshaped:
        measured["layer_scale"] = 1.0  # any value: it only initialises untrained scales

    # Later entries take precedence. Except for three fields, `stated` and `measured` were compared above.
    values = {**family.fixed, **named, **likely, **stated, **measured}
    assumed = {field: why for field, (_, why) in family.assumed.items() if field not in values}
    values |= {field: family.assumed[field][0] for field in assumed}
    assumed |= {
        field: f"From the name {brief(name)}."
        for field in named
        if field not in {**family.fixed, **likely, **stated, **measured}
    }
    gated_by_timm = adjusted.get("activation") == "silu" and "blocks.0.mlp.fc1.weight" in bare  # Meta's names differ
    if gated_by_timm and "activation" not in {**stated, **named} and not recognised.fields:
        assumed["activation"] = "The activation of the gated MLPs is not in the file; SiLU is usual."
    estimates = bool(model.selection.head_name) and purpose(model.selection.head_name) == "numbers"
    if measured["num_classes"] == 1 and "multi_label" not in measured and not estimates:
        assumed["outputs"] = ONE_OUTPUT
    if inferred := [field for field in likely if field not in {**stated, **measured}]:
        assumed[inferred[0]] = f"No file says which model this is; its tensors are those of {recognised.model}."
    if grid is None and not family.square and "rope" not in stated:
        patches = math.prod(size // side for size in measured["image_size"])
        if "or" in (grids := possible_grids(patches)):
            assumed["image_size"] = (
                f"The file does not state the size of its pictures: {patches} patches may be {grids}; the first is "
                "taken."
            )
    _set_heads(values, assumed, heads, stated, measured)
    return ParsedCheckpoint(
        family,
        build_config(values),
        reshaped,
        assumed | model.remarks,
        model.selection.head_name,
        model.part.prefix,
        normalisation,
    )


def _set_heads(
    values: dict[str, Any],
    assumed: dict[str, str],
    heads: int | None,
    stated: Mapping[str, Any],
    measured: Mapping[str, Any],
) -> None:
    """Set the number of attention heads in `values`, and the reason in `assumed` unless the file determines it.

    Args:
        heads: from the user; None if the user gave none.
        stated: config fields that config.json states.
        measured: config fields that the tensors determine.

    Raises:
        InvalidCheckpoint: the user's number contradicts the file.
        UnknownHeads: nothing determines the number.
    """
    file_heads = stated.get("heads", measured.get("heads"))
    if heads is not None and heads != (file_heads or heads):
        where = "config.json says" if "heads" in stated else "The weights have"
        raise InvalidCheckpoint(f"{where} {file_heads} attention heads, not {heads}. Omit the number.")
    if heads is not None and file_heads is None:
        values["heads"] = heads
        assumed["heads"] = f"You chose {heads} attention heads."
    elif values.get("heads") is None:
        values["heads"] = None if "heads" in values else default_heads(measured["dim"])
        assumed["heads"] = (
            f"The file does not say how many attention heads it has; models of width {measured['dim']} usually have "
            f"{values['heads']}. A wrong number loads without error and makes every map wrong."
        )
        if values["heads"] is None:
            raise UnknownHeads(
                f"The file does not say how many attention heads it has, and for a width of {measured['dim']} there is "
                "no usual number. State the number of heads, or put the model's config.json beside the weights.",
                possible_heads(measured["dim"]),
            )


def used(tensors: Tensors, ours: bool = False, part: str = "", document: Mapping[str, Any] | None = None) -> set[str]:
    """Return the names, as in the file, of the tensors that `read` uses."""
    selection = _select(tensors, ours, part, document or {}).selection
    return {*selection.names.values(), *selection.head, *selection.normalisation}


def places_of(tensors: Tensors, document: Mapping[str, Any] | None) -> tuple[str, dict[str, str]]:
    """Return the prefix of the names of the model that `read` takes, and our names of its tensors -> those of the file.

    Of tensors that `read` converts by more than a name, it is the name before.
    """
    model = _select(tensors, ours=False, wanted="", document=document or {})
    names = {str(model.family.find(name)): file_name for name, file_name in model.selection.names.items()}
    return model.part.prefix, names


def parts_of(tensors: Tensors) -> list[str]:
    """Name the models in a file, the default one first."""
    return list(labels([part.prefix for part in distinct(find_parts(tensors, FAMILIES), tensors)]).values())


def check_config(document: Mapping[str, Any]) -> None:
    """Raise an error if config.json alone shows that a model is not supported, before its weights are downloaded.

    `read` may still refuse the model once it sees the weights.

    Raises:
        InvalidCheckpoint: an unsupported model of transformers or timm.
    """
    architecture, kind = document.get("architecture"), document.get("model_type")
    if isinstance(architecture, str):
        if not timm_architectures.by_architecture(architecture):  # raises if not a plain ViT
            raise InvalidCheckpoint(
                f"This is timm's {brief(architecture)}. This app reads plain Vision Transformers: {READS}."
            )
    elif isinstance(kind, str) and "vit" not in document:  # with "vit" this app saved it
        seen = huggingface.tower(document)["model_type"]
        if seen not in tuple(MODEL_TYPES):
            part = "" if seen in (kind, f"{kind}_vision_model") else f' with a "{brief(seen)}"'
            raise InvalidCheckpoint(
                f'This is a "{brief(kind)}" model of transformers{part}. This app reads plain Vision Transformers: '
                f"{READS}."
            )


def _placed(fields: Mapping[str, Any]) -> bool:
    """Whether patches have rotary or relative positions, and so need no position embeddings."""
    return fields.get("rope") is not None or fields.get("position_bias") is not None


def _stated_grid(
    family: Family, renamed: Tensors, stated: Mapping[str, Any], document: Mapping[str, Any]
) -> tuple[int, int] | None:
    """Return (rows, cols) of patches if a config states them, or if there are no position embeddings; else None."""
    side = needed(renamed, "patch_embed.weight", 4).shape[2]
    size, hint = stated.get("image_size"), family.stated_size(document)
    if size is None and (biased := biased_grid(renamed, hint and (hint[0] // side, hint[1] // side))) is not None:
        return biased
    if size is None and "pos_embed" not in renamed:
        size = hint or family.fixed.get("image_size")
    elif size is None and hint is not None:  # the preprocessing's size may differ from the model's
        rows = needed(renamed, "pos_embed", 3).shape[1]
        prefix = sum(tensor.numel() for name, tensor in renamed.items() if name.startswith("prefix"))
        own = rows - (hint[0] // side) * (hint[1] // side)
        size = hint if 0 <= own * renamed["pos_embed"].shape[2] <= prefix else None
    if size is None:
        return None
    height, width = (size, size) if isinstance(size, int) else size
    return height // side, width // side


def only_part(tensors: Tensors) -> str:
    """Return the prefix of the names of the only model in a module.

    Raises:
        InvalidCheckpoint: there are several.
    """
    parts = distinct(find_parts(tensors, FAMILIES), tensors)
    if len(parts) > 1:
        names = brief_list(f"`{brief(part.prefix.rstrip('.'))}`" for part in parts)
        raise InvalidCheckpoint(f"The module holds several Vision Transformers: {names}. Hand over one of them.")
    return parts[0].prefix if parts else ""


class _Model(NamedTuple):
    """One model of a file, and remarks on its selection for people."""

    family: Family
    part: Part
    selection: Selection
    remarks: dict[str, str]


def _select(tensors: Tensors, ours: bool, wanted: str, document: Mapping[str, Any]) -> _Model:
    """Select one model of a file, its family and its tensors; `document` is the content of config.json."""
    parts = distinct(find_parts(tensors, FAMILIES), tensors)
    part = choose(parts, wanted) if parts else _bare(tensors)
    if ours:
        known = {name: file_name for name, file_name in (part.own | part.beside).items()}
        return _Model(huggingface.NATIVE, part, Selection(known, (), "", {}), {})
    if flat := next(filter(_FLAT.search, tensors), None):
        raise InvalidCheckpoint(
            f"FSDP has flattened the weights (`{brief(flat)}`). Save them whole where they were trained: with "
            "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT), and torch.save of model.state_dict()."
        )
    if not parts and any(_ADAPTER.search(name) for name in tensors):
        raise InvalidCheckpoint(ADAPTER)
    family = _recognise(list(part.own))
    refuse_others(list(part.beside), True, BESIDE)
    _check_embedding(part, family, tensors)
    later: dict[str, str] = {}
    if huggingface.tower(document) is not document:  # what is beside the part that sees pictures reads its output
        heads = [name for name in part.beside if (family.find(name) or "").startswith(("head", "classifier"))]
        later = {name: file_name for name, file_name in part.beside.items() if name not in heads}
        part = part._replace(beside={name: part.beside[name] for name in heads})
    selection = select(part, family, tensors)
    remarks = {}
    if others := [name for prefix, name in labels([one.prefix for one in parts]).items() if prefix != part.prefix]:
        own = labels([one.prefix for one in parts]).get(part.prefix, "")
        remarks["model"] = (
            f"The file holds {len(parts)} models; this is `{brief(own)}`. For another, choose it in the list "
            f"of checkpoints, or add its name to the file's: {brief_list(f'#{brief(name)}' for name in others)}."
        )
    if selection.head_name and not selection.head_name.startswith(("head", "classifier")):
        remarks["head"] = (
            f"`{brief(selection.head_name)}` is taken for the head: it is the only linear layer after the model."
        )
    outside = bool(selection.head) or not part.own.keys() >= selection.names.keys()
    if outside and any(name.startswith("pooler.") for name in part.own):
        remarks["pooler"] = (
            "Whether the head reads the pooler is not in the file. It is taken to read the class token itself, as most "
            "do; if it reads the pooler, the answers are wrong. Attention is the same."
        )
    if left_out := selection.left_out | later:
        remarks["left_out"] = f"The file holds more than the model, which is left out: {described(left_out)}."
    if selection.no_head:
        remarks["left_out"] += f" By its name `{brief(selection.no_head)}` is no classifier, so there are no classes."
    return _Model(family, part, selection, remarks)


def _check_embedding(part: Part, family: Family, tensors: Mapping[str, Tensor]) -> None:
    """Raise an error if the model has another kind of patch embedding than its family."""
    embedding = next((tensors[file] for name, file in part.own.items() if family.find(name) == _EMBEDDING), None)
    if embedding is None:
        raise InvalidCheckpoint(
            f"The weights are incomplete: `{_EMBEDDING}` is missing. Or they are those of another model, as only a "
            f"part of their names is that of {family.name}."
        )
    shape = embedding.shape
    flat = "It is a linear layer, as in SigLIP 2 of NaFlex kind" if len(shape) == 2 else ""
    last = len(shape) == 4 and shape[1] == shape[2] > 3 >= shape[3]
    if what := "Its channels are last, as MLX stores them" if last else flat:
        raise InvalidCheckpoint(
            f"The patch embedding has the wrong shape: {brief([*shape])}. {what}; only PyTorch's convolutions are read."
        )


def _bare(tensors: Mapping[str, object]) -> Part:
    """Return all tensors as one part, without their common prefix; for files without a known model."""
    first, last = min(tensors, default=""), max(tensors, default="")
    shared = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    container = first[: first.rfind("/", 0, shared) + 1] if "." in first else ""  # names of JAX contain slashes only
    prefix = first[: max(len(container), first.rfind(".", 0, shared) + 1)] if len(tensors) > 1 else container
    return Part(prefix, {name.removeprefix(prefix): name for name in tensors}, {})


def _recognise(names: list[str]) -> Family:
    family = next((family for family in FAMILIES if family.claims(names)), None)
    refuse_others(names, claimed=family is not None)
    if family:
        return family
    example = f" (it holds `{brief(names[0])}`)" if names else ""
    raise InvalidCheckpoint(f"This is not a Vision Transformer that this app supports{example}. It reads: {READS}.")
