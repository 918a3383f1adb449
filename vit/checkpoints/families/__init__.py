"""Foreign checkpoints: each family's names are data in one file, and one reader serves them all.

To add a family, write `vit/checkpoints/families/<name>.py` with its `FAMILIES`; it is found there.
"""

import re
from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from vit.checkpoints.families import huggingface, timm
from vit.checkpoints.families.family import (
    Family,
    Tensors,
    build_config,
    default_heads,
    infer,
    needed,
    possible_heads,
    reshape,
    square_size,
)
from vit.checkpoints.families.heads import Selection, described, select
from vit.checkpoints.families.parts import Part, choose, distinct, find_parts, labels
from vit.errors import InvalidCheckpoint, UnknownHeads
from vit.model.config import ViTConfig
from vit.untrusted import brief

_MODULES = [import_module(f"{__name__}.{name}") for _, name, _ in iter_modules(__path__)]

FAMILIES: tuple[Family, ...] = tuple(family for module in _MODULES for family in getattr(module, "FAMILIES", ()))
# What transformers calls them in config.json.
_MODEL_TYPES = {kind for module in _MODULES for kind in getattr(module, "MODEL_TYPES", ())}

READS = (
    "torchvision's, timm's, and transformers' ViT, DeiT, MSN, MAE, I-JEPA, DINOv2, DINOv3, CLIP and SigLIP, "
    "the originals of Google, Meta and OpenAI, and tintn's tutorial's"
)

ONE_OUTPUT = "The model has one output, so its answer is a yes or no: its probability is the sigmoid of its logit."

_CONVOLUTIONS = "convolutional network"
# Names that give away what else a file may be; first match wins.
_OTHERS = (
    (r"(^|\.)layers\.\d+\.blocks\.|^features\.\d+\.\d+\.attn\.relative_position", "Swin"),
    (r"relative_position_bias|(^|\.)blocks\.\d+\.attn\.relative_position", "BEiT"),
    (r"patch_embed\.backbone\.|^conv_root/|^block\d+/unit\d+/", "hybrid of a ResNet and a ViT"),
    (r"(^|\.)layer1\.0\.(conv1|bn1)|^resnet\.", "ResNet"),
    (r"\.attention_biases$", "LeViT"),
    (r"(^|\.)stages\.0\.|dwconv|^features\.1\.0\.layer_scale", "ConvNeXt"),
    (r"mlp_tokens|^MixerBlock_\d+/", "MLP-Mixer"),
    (r"blocks_token_only|cls_attn|(^|\.)gamma3$", "CaiT or XCiT"),
    (r"(^|\.)blocks\.\d+\.(in_proj|attns\.\d+|attn_out_proj)\.", "ViT with parallel blocks"),
    (r"(^|\.)blocks\.\d+\.attn\.lambda_q1$", "ViT with differential attention"),
    (r"(^|\.)blocks\.\d+\.(attn\.(inner_attn_ln|norm)|mlp\.(ffn_ln|norm))\.|\.freqs_cis$", "EVA-02 or BEiT-3"),
    (r"to_patch_embedding\.", "ViT of the vit-pytorch library"),
    (r"attention\.self\.(query|key)|word_embeddings|embed_tokens|(^|\.)wte\.", "language model"),
    (r"\.running_mean$", _CONVOLUTIONS),
)


# Of PEFT: all that it saves, or by the kind of adapter.
_ADAPTER = re.compile(r"^base_model\.model\.|\.(lora|ia3|hada|lokr|oft|boft|vera|fourierft)_\w+(\.\w+)?$|^prompt_embed")
ADAPTER = (
    "This is an adapter of PEFT, which is no model without its base. Merge the two first: "
    'PeftModel.from_pretrained(base, "adapter").merge_and_unload().save_pretrained("merged").'
)


class Reading(NamedTuple):
    """A file understood.

    Attributes:
        family: whose names it uses.
        config: what the model computes.
        tensors: under the names of `VisionTransformer.state_dict()`.
        assumed: config field -> why it has its value, for all that no file states; and what was left out.
        head: the module that is the head under a name of its own, "" where the family's is.
        part: what stands before the model's names in the file.
    """

    family: Family
    config: ViTConfig
    tensors: Tensors
    assumed: dict[str, str]
    head: str = ""
    part: str = ""


def read(
    tensors: Tensors,
    document: Mapping[str, Any] | None = None,
    ours: bool = False,
    heads: int | None = None,
    name: str = "",
    consume: bool = False,
    known: Mapping[str, Any] | None = None,
    part: str = "",
) -> Reading:
    """Understand the tensors of a checkpoint of any known family; works on the meta device.

    What the config.json states counts first, then what names and shapes of the tensors tell, then what the name of
    a published model tells; the rest is assumed, and said to be.

    Args:
        document: the content of the config.json beside it, if there is one.
        ours: the file is one that this app saved: `document["vit"]` holds the whole config.
        heads: the user's answer where neither file nor custom tells the number of attention heads.
        name: of the file and its folder.
        consume: empty `tensors` on the way, so that no weights are held twice.
        known: config fields that a model in memory tells, which count as stated.
        part: of a file that holds several models, the one that is called so; "" for the one that people use.

    Raises:
        InvalidCheckpoint: not a family that is read, or a file at odds with itself or with its config.
    """
    model = _select(tensors, ours, part)
    family = model.family
    named_by_family = {name: tensors[file_name] for name, file_name in model.selection.names.items()}
    own_head = [tensors[file_name] for file_name in model.selection.head]
    if consume:
        tensors.clear()
    renamed = family.rename(named_by_family)
    named_by_family.clear()
    if ours:
        vit = (document or {}).get("vit")
        if not isinstance(vit, Mapping):
            raise InvalidCheckpoint('config.json lacks the field "vit" that says what this model computes.')
        config = build_config(vit)
        return Reading(family, config, reshape(renamed, config.grid, config.rope is not None)[0], {})

    stated = (family.stated(document) if document is not None else {}) | dict(known or {})
    named = family.by_name(name)
    doubts = {} if "heads" in stated or "heads" in named else family.doubts(renamed)
    renamed, adjusted = family.adjust(renamed)
    if own_head:
        renamed |= zip(("head.weight", "head.bias"), own_head, strict=False)
        own_head.clear()
    if "head.weight" in renamed and "head_dist.weight" not in renamed and "head.bias" not in renamed:
        renamed["head.bias"] = renamed["head.weight"].new_zeros(renamed["head.weight"].shape[:1])
        model.said.setdefault("head", "The file holds no bias of the head, so it has none.")
    rotary = "rope" in {**family.fixed, **named, **stated, **doubts}
    learnt_positions = "pos_embed" in renamed
    reshaped, prefix = reshape(renamed, _stated_grid(family, renamed, stated), rotary)
    measured = infer(reshaped, prefix) | adjusted
    for field in stated.keys() & measured.keys() - {"pool", "activation"}:
        if stated[field] != measured[field]:
            called = family.called.get(field, field)
            raise InvalidCheckpoint(
                f"config.json says {called} = {brief(stated[field])}, the weights say {brief(measured[field])}."
            )
    measured["image_size"] = stated.get("image_size") or square_size(reshaped, measured["patch_size"])
    if measured["num_classes"] and (document or {}).get("problem_type") == "multi_label_classification":
        measured["multi_label"] = True
    if "blocks.0.scale1" in reshaped:
        measured["layer_scale"] = 1.0  # what it was at the start of the training plays no part

    values = {**family.fixed, **named, **stated, **measured}
    if "rope" in doubts and "rope" not in values and not learnt_positions:
        values["rope"] = 100.0
    assumed = {field: why for field, (_, why) in family.assumed.items() if field not in values} | doubts
    values |= {field: family.assumed[field][0] for field in assumed if field in family.assumed}
    assumed |= {
        field: f"From the name {brief(name)}." for field in named if field not in {**family.fixed, **stated, **measured}
    }
    if measured["num_classes"] == 1 and "multi_label" not in measured:
        assumed["outputs"] = ONE_OUTPUT
    file_heads = stated.get("heads", measured.get("heads"))
    if heads is not None and heads != (file_heads or heads):
        where = "config.json says" if "heads" in stated else "The weights have"
        raise InvalidCheckpoint(f"{where} {file_heads} attention heads, you said {heads}. Leave it to the file.")
    if heads is not None and file_heads is None:
        values["heads"] = heads
        assumed["heads"] = f"You chose {heads} attention heads."
    elif "heads" not in values:
        values["heads"] = default_heads(measured["dim"])
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
    return Reading(
        family, build_config(values), reshaped, assumed | model.said, model.selection.head_name, model.part.prefix
    )


def used(tensors: Tensors, ours: bool = False, part: str = "") -> set[str]:
    """Those of a file's tensors that `read` makes use of, by the names that the file gives them."""
    selection = _select(tensors, ours, part).selection
    return {*selection.names.values(), *selection.head}


def parts_of(tensors: Tensors) -> list[str]:
    """What the models of a file are called, the one that people use first."""
    return list(labels([part.prefix for part in distinct(find_parts(tensors, FAMILIES), tensors)]).values())


def check_config(document: Mapping[str, Any]) -> None:
    """Refuse what by its config.json is no plain Vision Transformer, to spare the download of its weights.

    What it does not refuse may still be refused by `read`, which sees the weights.

    Raises:
        InvalidCheckpoint: a model of transformers or timm that is not read.
    """
    architecture, kind = document.get("architecture"), document.get("model_type")
    if isinstance(architecture, str):
        if not timm.by_name(architecture):  # raises for a Vision Transformer that is not plain, with the reason
            raise InvalidCheckpoint(
                f"This is timm's {brief(architecture)}. This app reads plain Vision Transformers: {READS}."
            )
    elif isinstance(kind, str) and "vit" not in document:  # with "vit" it is ours
        towers = isinstance(document.get("vision_config"), Mapping)
        if (f"{kind}_vision_model" if towers else kind) not in _MODEL_TYPES:
            raise InvalidCheckpoint(
                f'This is a "{brief(kind)}" model of transformers. This app reads plain Vision Transformers: {READS}.'
            )


def _stated_grid(family: Family, renamed: Tensors, stated: Mapping[str, Any]) -> tuple[int, int] | None:
    """(rows, cols) of patches as far as a config says so, or as a model without position embeddings needs it."""
    size = stated.get("image_size") or (None if "pos_embed" in renamed else family.fixed.get("image_size"))
    if size is None:
        return None
    side = needed(renamed, "patch_embed.weight", 4).shape[2]
    height, width = (size, size) if isinstance(size, int) else size
    return height // side, width // side


def only_part(tensors: Tensors) -> str:
    """What stands before the names of the one model that there is.

    Raises:
        InvalidCheckpoint: there are several.
    """
    parts = distinct(find_parts(tensors, FAMILIES), tensors)
    if len(parts) > 1:
        names = ", ".join(f"`{brief(part.prefix.rstrip('.'))}`" for part in parts)
        raise InvalidCheckpoint(f"The module holds several Vision Transformers: {names}. Hand over one of them.")
    return parts[0].prefix if parts else ""


class _Model(NamedTuple):
    """One model of a file, and what people should know of how it was found."""

    family: Family
    part: Part
    selection: Selection
    said: dict[str, str]


def _select(tensors: Tensors, ours: bool, wanted: str) -> _Model:
    """Find the model that is meant, its family and its tensors."""
    parts = distinct(find_parts(tensors, FAMILIES), tensors)
    if ours:
        part = parts[0] if parts else _bare(tensors)
        known = {name: file_name for name, file_name in (part.own | part.beside).items()}
        return _Model(huggingface.NATIVE, part, Selection(known, (), "", {}), {})
    part = choose(parts, wanted) if parts else _bare(tensors)
    if not parts and any(_ADAPTER.search(name) for name in tensors):
        raise InvalidCheckpoint(ADAPTER)
    family = _recognise(list(part.own))
    selection = select(part, family, tensors)
    said = {}
    if others := [name for prefix, name in labels([one.prefix for one in parts]).items() if prefix != part.prefix]:
        own = labels([one.prefix for one in parts]).get(part.prefix, "")
        said["model"] = (
            f"The file holds {len(parts)} models; this is `{brief(own)}`. Another opens with its name behind that of "
            f"the file: {', '.join(f'#{brief(name)}' for name in others[:6])}."
        )
    if selection.head_name and not selection.head_name.startswith(("head", "classifier")):
        said["head"] = (
            f"`{brief(selection.head_name)}` is taken for the head: it is the only linear layer after the model."
        )
    elif any(name.startswith("pooler.") for name in part.own) and not part.own.keys() >= selection.names.keys():
        said["head"] = "The model has a pooler, which the head may read; it is taken to read the class token itself."
    if selection.left_out:
        said["left_out"] = f"The file holds more than the model, which is left out: {described(selection.left_out)}."
    return _Model(family, part, selection, said)


def _bare(tensors: Mapping[str, object]) -> Part:
    """All tensors, without what stands before every name: of no model that is known."""
    first, last = min(tensors, default=""), max(tensors, default="")
    shared = next((i for i, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    container = first[: first.rfind("/", 0, shared) + 1] if "." in first else ""  # names of JAX have slashes alone
    prefix = first[: max(len(container), first.rfind(".", 0, shared) + 1)] if len(tensors) > 1 else container
    return Part(prefix, {name.removeprefix(prefix): name for name in tensors}, {})


def _recognise(names: list[str]) -> Family:
    other = next(((what, name) for pattern, what in _OTHERS for name in names if re.search(pattern, name)), None)
    family = next((family for family in FAMILIES if family.claims(names)), None)
    if family and (not other or other[0] == _CONVOLUTIONS):  # a head may have a batch norm
        return family
    if other:
        what, name = other
        raise InvalidCheckpoint(
            f"This is a {what} checkpoint (`{brief(name)}`). This app reads plain Vision Transformers: {READS}."
        )
    example = f" (it holds `{brief(names[0])}`)" if names else ""
    raise InvalidCheckpoint(f"This is not a Vision Transformer that this app knows{example}. It reads: {READS}.")
