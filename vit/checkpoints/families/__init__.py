"""Foreign checkpoints: each family's names are data in one file, and one reader serves them all.

To add a family, write `vit/checkpoints/families/<name>.py` with its `FAMILIES`; it is found there.
"""

import math
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, NamedTuple

from vit.checkpoints.families import huggingface, timm
from vit.checkpoints.families.family import (
    Family,
    Recognised,
    Tensors,
    biased_grid,
    build_config,
    default_heads,
    infer,
    needed,
    possible_grids,
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
    "torchvision's, timm's (BEiT, EVA-02 and Perception Encoder, too), and transformers' ViT, DeiT, MSN, MAE, I-JEPA, "
    "BEiT, DINOv2, DINOv3, CLIP and SigLIP, the originals of Google, Meta and OpenAI, and tintn's tutorial's"
)

ONE_OUTPUT = "The model has one output, so its answer is a yes or no: its probability is the sigmoid of its logit."

_CONVOLUTIONS = "convolutional network"
# Names that give away what else a file may be; first match wins.
_OTHERS = (
    (r"(^|\.)layers\.\d+\.blocks\.|^features\.\d+\.\d+\.attn\.relative_position", "Swin"),
    (r"\.attn_(block|grid)\.|^stages\.\d+\.blocks\.\d+\.attn\.rel_pos\.", "MaxViT or CoAtNet"),
    (r"(^|\.)(pos_block\.\d|blocks\.\d+\.\d+\.attn\.(kv|sr|q)\.)", "Twins"),
    (r"(^|\.)block[1-4]\.\d+\.attn\.|(^|\.)encoder\.block\.\d+\.\d+\.attention\.self\.", "PVT or SegFormer"),
    (r"^stages\.\d+\.blocks\.\d+\.attn\.(kv|sr)\.", "PVT"),
    (r"(^|\.)patch_embedding\.(patch|position)_embeddings", "MONAI ViT"),
    (r"(^|\.)rel_pos(\.|_[hw]$)", "ViT with relative positions"),
    (r"(^|\.)embeds\.(proj|pos_embed|cls_token)", "NaFlexViT"),
    (r"\.gating_param$", "ConViT"),
    (r"^pos_embed_win$", "Hiera"),
    (r"^pos_embed_\d|(^|\.)cls_token[1-4]$", "CrossViT or CoaT"),
    (r"\.attn\.q_norm\.|\.attn\.k_norm\.", "ViT that normalises queries and keys"),
    (r"patch_embed\.backbone\.|^conv_root/|^block\d+/unit\d+/", "hybrid of a ResNet and a ViT"),
    (r"(^|\.)layer1\.0\.(conv1|bn1)|^resnet\.", "ResNet"),
    (r"\.attention_biases$", "LeViT"),
    (r"(^|\.)stages\.\d+\.((blocks|layers)\.)?\d+\.(conv_dw|dwconv)|^features\.1\.0\.layer_scale", "ConvNeXt"),
    (r"(^|\.)stages\.\d+\.", "network in stages"),
    (r"mlp_tokens|^MixerBlock_\d+/", "MLP-Mixer"),
    (r"blocks_token_only|cls_attn|(^|\.)gamma3$", "CaiT or XCiT"),
    (r"(^|\.)blocks\.\d+\.(in_proj|attns\.\d+|attn_out_proj)\.", "ViT with parallel blocks"),
    (r"(^|\.)blocks\.\d+\.attn\.lambda_q1$", "ViT with differential attention"),
    (r"to_patch_embedding\.", "ViT of the vit-pytorch library"),
    (r"(^|\.)layers\.\d+\.ffn\.layers\.0\.0\.", "ViT of MMPretrain"),
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

    config.json takes precedence, then the names and shapes of the tensors, then the name of a published model; the
    rest is assumed, and `Reading.assumed` says so.

    Args:
        document: the content of the config.json beside it, if there is one.
        ours: the file is one that this app saved: `document["vit"]` holds the whole config.
        heads: the user's answer where neither file nor custom tells the number of attention heads.
        name: of the file and its folder.
        consume: empty `tensors` on the way, so that no weights are held twice.
        known: config fields read from a model in memory, which count as stated.
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
    renamed, bare = family.rename(named_by_family), list(model.part.own)
    named_by_family.clear()
    if ours:
        vit = (document or {}).get("vit")
        if not isinstance(vit, Mapping):
            raise InvalidCheckpoint('config.json lacks the field "vit" that says what this model computes.')
        config = build_config(vit)
        return Reading(family, config, reshape(renamed, config.grid, _placed(vit))[0], {})

    stated = (family.stated(document) if document is not None else {}) | dict(known or {})
    named = family.by_name(name)
    width = needed(renamed, "patch_embed.weight", 4).shape[0]
    recognised = Recognised() if "rope" in stated else family.by_tensors(renamed, bare, name)
    likely = dict(recognised.fields)
    usual = likely.get("heads", default_heads(width))
    if "heads" in named and named["heads"] != (usual or named["heads"]):
        named = {field: value for field, value in named.items() if field != "heads"}  # a name may say anything
    elif "heads" in named:
        likely.pop("heads", None)
    renamed, adjusted = family.adjust(renamed)
    if own_head:
        renamed |= zip(("head.weight", "head.bias"), own_head, strict=False)
        own_head.clear()
    if "head.weight" in renamed and "head_dist.weight" not in renamed and "head.bias" not in renamed:
        renamed["head.bias"] = renamed["head.weight"].new_zeros(renamed["head.weight"].shape[:1])
        model.said.setdefault("head", "The file holds no bias of the head, so it has none.")
    grid = _stated_grid(family, renamed, likely | stated, document or {})
    reshaped, prefix = reshape(renamed, grid, _placed({**family.fixed, **likely, **stated, **adjusted}))
    measured = infer(reshaped, prefix) | adjusted
    for field in stated.keys() & measured.keys() - {"pool", "activation", "rope"}:
        if stated[field] != measured[field]:
            called = family.called.get(field, field)
            raise InvalidCheckpoint(
                f"config.json says {called} = {brief(stated[field])}, the weights say {brief(measured[field])}."
            )
    side = measured["patch_size"]
    measured["image_size"] = (grid[0] * side, grid[1] * side) if grid else square_size(reshaped, side)
    if measured["num_classes"] and (document or {}).get("problem_type") == "multi_label_classification":
        measured["multi_label"] = True
    if "blocks.0.scale1" in reshaped:
        measured["layer_scale"] = 1.0  # what it was at the start of the training plays no part

    values = {**family.fixed, **named, **likely, **stated, **measured}
    assumed = {field: why for field, (_, why) in family.assumed.items() if field not in values}
    values |= {field: family.assumed[field][0] for field in assumed}
    assumed |= {
        field: f"From the name {brief(name)}."
        for field in named
        if field not in {**family.fixed, **likely, **stated, **measured}
    }
    if measured["num_classes"] == 1 and "multi_label" not in measured:
        assumed["outputs"] = ONE_OUTPUT
    if inferred := [field for field in likely if field not in {**stated, **measured}]:
        assumed[inferred[0]] = f"No file says which model this is; its tensors are those of {recognised.model}."
    if grid is None and not family.square and "rope" not in stated:
        patches = math.prod(size // side for size in measured["image_size"])
        assumed["image_size"] = (
            f"The file does not state the size of its pictures: {patches} patches may be {possible_grids(patches)}; "
            "the first is taken."
        )
    file_heads = stated.get("heads", measured.get("heads"))
    if heads is not None and heads != (file_heads or heads):
        where = "config.json says" if "heads" in stated else "The weights have"
        raise InvalidCheckpoint(f"{where} {file_heads} attention heads, you said {heads}. Leave it to the file.")
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
        if not timm.by_architecture(architecture):  # raises for a Vision Transformer that is not plain, with the reason
            raise InvalidCheckpoint(
                f"This is timm's {brief(architecture)}. This app reads plain Vision Transformers: {READS}."
            )
    elif isinstance(kind, str) and "vit" not in document:  # with "vit" it is ours
        towers = isinstance(document.get("vision_config"), Mapping)
        if (f"{kind}_vision_model" if towers else kind) not in _MODEL_TYPES:
            raise InvalidCheckpoint(
                f'This is a "{brief(kind)}" model of transformers. This app reads plain Vision Transformers: {READS}.'
            )


def _placed(fields: Mapping[str, Any]) -> bool:
    """Whether patches have places without position embeddings."""
    return fields.get("rope") is not None or fields.get("position_bias") is not None


def _stated_grid(
    family: Family, renamed: Tensors, stated: Mapping[str, Any], document: Mapping[str, Any]
) -> tuple[int, int] | None:
    """(rows, cols) of patches as far as a config says so, or as a model without position embeddings needs it."""
    side = needed(renamed, "patch_embed.weight", 4).shape[2]
    size, hint = stated.get("image_size"), family.stated_size(document)
    if size is None and (biased := biased_grid(renamed, hint and (hint[0] // side, hint[1] // side))) is not None:
        return biased
    if size is None and "pos_embed" not in renamed:
        size = hint or family.fixed.get("image_size")
    elif size is None and hint is not None:  # what pictures are made to fit need not be what the model was made for
        rows = needed(renamed, "pos_embed", 3).shape[1]
        prefix = sum(tensor.numel() for name, tensor in renamed.items() if name.startswith("prefix"))
        own = rows - (hint[0] // side) * (hint[1] // side)
        size = hint if 0 <= own * renamed["pos_embed"].shape[2] <= prefix else None
    if size is None:
        return None
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
    outside = bool(selection.head) or not part.own.keys() >= selection.names.keys()
    if outside and any(name.startswith("pooler.") for name in part.own):
        said["pooler"] = (
            "Whether the head reads the pooler is not in the file. It is taken to read the class token itself, as most "
            "do; if it reads the pooler, the answers are wrong. Attention is the same."
        )
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


def _refuse_others(names: Sequence[str], claimed: bool) -> None:
    """Refuse what the names of some tensors give away as no Vision Transformer, or as none that is plain.

    Args:
        claimed: a family reads these names. Then a batch norm belongs to the head, and says nothing of the model.
    """
    for pattern, what in _OTHERS:
        if claimed and what is _CONVOLUTIONS:
            continue
        if name := next((name for name in names if re.search(pattern, name)), None):
            raise InvalidCheckpoint(
                f"This is a {what} checkpoint (`{brief(name)}`). This app reads plain Vision Transformers: {READS}."
            )


def _recognise(names: list[str]) -> Family:
    family = next((family for family in FAMILIES if family.claims(names)), None)
    _refuse_others(names, claimed=family is not None)
    if family:
        return family
    example = f" (it holds `{brief(names[0])}`)" if names else ""
    raise InvalidCheckpoint(f"This is not a Vision Transformer that this app knows{example}. It reads: {READS}.")
