"""Recognise the family of a checkpoint's tensors, and convert them; one reader for all families."""

import re
from collections.abc import Mapping
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from torch import Tensor

from vit.checkpoints.families import FAMILIES, MODEL_TYPES, READS, huggingface, timm_architectures
from vit.checkpoints.families.classification_heads import Selection, described, purpose, select
from vit.checkpoints.families.family import Family, InferredModel, build_config
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
)
from vit.checkpoints.other_architectures import BESIDE, refuse_others
from vit.errors import InvalidCheckpoint, UnknownHeads
from vit.model.config import ViTConfig
from vit.untrusted import brief, brief_list

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


class _Model(NamedTuple):
    """One model of a file, and remarks on its selection for people."""

    family: Family
    part: Part
    selection: Selection
    remarks: dict[str, str]


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

    `_merge` lists the sources of settings in their order; `ParsedCheckpoint.assumed` has what no file states.

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
    document = document or {}
    try:
        model = _select(tensors, ours, part, document)
        family = model.family
        renamed = family.rename({name: tensors[file_name] for name, file_name in model.selection.names.items()})
    except InvalidCheckpoint:
        if not known:  # config.json knows better than the names of tensors which model this is
            check_config(document)
        raise
    if family.config_names is huggingface.CONFIG_NAMES:
        check_config(document)
    own_head = dict(zip(("head.weight", "head.bias"), map(tensors.__getitem__, model.selection.head), strict=False))
    normalisation = {file_name: tensors[file_name] for file_name in model.selection.normalisation}
    if consume:
        tensors.clear()
    check_dtypes(renamed | own_head)
    if ours:
        vit = document.get("vit")
        if not isinstance(vit, Mapping):
            raise InvalidCheckpoint('config.json lacks the field "vit" that says what this model computes.')
        config = build_config(vit)
        return ParsedCheckpoint(family, config, reshape(renamed, config.grid, _placed(vit))[0], {})

    from_config = family.stated(document) | dict(known or {})
    known_model = InferredModel() if "rope" in from_config else family.by_tensors(renamed, list(model.part.own), name)
    renamed, adjusted = family.adjust(renamed)
    renamed |= own_head
    own_head.clear()
    if "head.weight" in renamed and "head_dist.weight" not in renamed and "head.bias" not in renamed:
        renamed["head.bias"] = renamed["head.weight"].new_zeros(renamed["head.weight"].shape[:1])
        model.remarks.setdefault("head", "The file holds no bias of the head, so it has none.")
    grid = _stated_grid(family, renamed, {**known_model.fields, **from_config}, document)
    placed = _placed({**family.fixed, **known_model.fields, **from_config, **adjusted})
    reshaped, prefix = reshape(renamed, grid, placed)
    pool = adjusted.pop("pool", None)
    from_shapes = infer(reshaped, prefix, grid, from_config.get("pool", pool)) | adjusted
    _check_agreement(family, from_config, from_shapes, heads)
    kind, estimates = document.get("problem_type"), purpose(model.selection.head_name) == "numbers"
    if from_shapes["num_classes"]:
        from_shapes["multi_label"] = kind == "multi_label_classification"
        from_shapes["regression"] = kind == "regression" or estimates
    values, assumed = _merge(model, from_shapes, from_config, heads, known_model, name)
    if grid is None and not family.square and "rope" not in from_config:
        patches = reshaped["pos_embed"].shape[1]
        if "or" in (grids := possible_grids(patches)):
            model.remarks["image_size"] = (
                f"The file does not state the size of its pictures: {patches} patches may be {grids}; the first is "
                "taken."
            )
    if from_shapes["num_classes"] == 1 and not (from_shapes["multi_label"] or from_shapes["regression"]):
        model.remarks["outputs"] = ONE_OUTPUT
    return ParsedCheckpoint(
        family,
        build_config(values),
        reshaped,
        assumed | model.remarks,
        model.selection.head_name,
        model.part.prefix,
        normalisation,
    )


def _merge(
    model: _Model,
    from_shapes: Mapping[str, Any],
    from_config: Mapping[str, Any],
    heads: int | None,
    known_model: InferredModel,
    name: str,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Merge the sources of config fields, the first one that has a field wins; return values and assumptions.

    Args:
        heads: from the user.
        known_model: what all published models with such tensors have in common.
        name: of the file and its folder.

    Raises:
        UnknownHeads: no source has the number of attention heads.
    """
    family, width, certain = model.family, from_shapes["dim"], {**from_shapes, **from_config}
    from_known_model = {field: value for field, value in known_model.fields.items() if field not in certain}
    from_file_name = family.by_name(name)
    usual = known_model.fields.get("heads", default_heads(width))
    if usual is not None and from_file_name.get("heads", usual) != usual:
        del from_file_name["heads"]  # file names are unreliable
    elif "heads" in from_file_name or usual is None:
        from_known_model.pop("heads", None)
    gated_by_timm = from_shapes.get("activation") == "silu" and "blocks.0.mlp.fc1.weight" in model.part.own
    if gated_by_timm and not {"activation"} & (from_config.keys() | from_file_name) and not known_model.fields:
        model.remarks["activation"] = "The activation of the gated MLPs is not in the file; SiLU is usual."
    tensors_of = f"No file says which model this is; its tensors are those of {known_model.model}."
    unknown_heads = "The file does not say how many attention heads it has"
    default = (
        f"{unknown_heads}; models of width {width} usually have {usual}. A wrong number loads without error and makes "
        "every map wrong."
    )
    sources = (  # fields, and why they are assumed
        (from_shapes, ""),
        (from_config, ""),
        ({} if heads is None else {"heads": heads}, f"You chose {heads} attention heads."),
        (dict(islice(from_known_model.items(), 1)), tensors_of),
        (from_known_model, ""),
        (
            {field: from_file_name[field] for field in from_file_name.keys() - family.fixed},
            f"From the name {brief(name)}.",
        ),
        (from_file_name, ""),
        (family.fixed, ""),
        *(({field: value}, why) for field, (value, why) in family.assumed.items()),
        ({"heads": usual}, default),
    )
    values, assumed = dict[str, Any](), dict[str, str]()
    for fields, why in sources:
        new = {field: value for field, value in fields.items() if field not in values}
        values |= new
        assumed |= dict.fromkeys(new, why) if why else {}
    if values["heads"] is None:
        raise UnknownHeads(
            f"{unknown_heads}, and for a width of {width} there is no usual number. State the number of heads, or put "
            "the model's config.json beside the weights.",
            possible_heads(width),
        )
    return values, assumed


def _check_agreement(
    family: Family, from_config: Mapping[str, Any], from_shapes: Mapping[str, Any], heads: int | None
) -> None:
    """Raise InvalidCheckpoint if the weights contradict config.json, or the file the user's number of heads."""
    for field in from_config.keys() & from_shapes.keys() - {"pool", "activation", "rope", "image_size", "layer_scale"}:
        if from_config[field] != from_shapes[field]:
            called = family.config_names.get(field, field)
            raise InvalidCheckpoint(
                f"config.json says {called} = {brief(from_config[field])}, the weights say {brief(from_shapes[field])}."
            )
    file_heads = from_config.get("heads", from_shapes.get("heads", heads))
    if heads is not None and heads != file_heads:
        where = "config.json says" if "heads" in from_config else "The weights have"
        raise InvalidCheckpoint(f"{where} {file_heads} attention heads, not {heads}. Omit the number.")


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
