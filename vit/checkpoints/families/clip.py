"""The image towers of CLIP, from transformers and OpenAI.

A LayerNorm precedes the first block, and the patch embedding has no bias. The head is the projection to the embedding
space shared with texts; its outputs are not classes. An exception is transformers' `CLIPForImageClassification`, whose
head reads the mean of the patches, without the final LayerNorm.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from vit.checkpoints.families.family import Family, InferredModel, check_stated
from vit.checkpoints.families.huggingface import CONFIG_NAMES, ModelDefaults, assumed, document, read_config
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors, needed
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.untrusted import brief

KINDS = dict.fromkeys(
    tuple(f"{name}_vision_model" for name in ("clip", "chinese_clip", "altclip", "clipseg", "metaclip_2")),
    ModelDefaults(1e-5, "quick_gelu", patch_size=32, patch_bias=False),
)
KINDS["git_vision_model"] = KINDS["clip_vision_model"]._replace(patch_size=16)
# Source: OpenAI's CLIP, clip/clip.py.
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# ours, theirs after "vision_model."
KEYS = (
    ("patch_embed", "embeddings.patch_embedding"),
    ("prefix.cls", "embeddings.class_embedding"),
    ("pos_embed", "embeddings.position_embedding.weight"),
    ("norm_pre", "pre_layrnorm"),
    ("blocks.{i}.norm1", "encoder.layers.{i}.layer_norm1"),
    ("blocks.{i}.attn.q", "encoder.layers.{i}.self_attn.q_proj"),
    ("blocks.{i}.attn.k", "encoder.layers.{i}.self_attn.k_proj"),
    ("blocks.{i}.attn.v", "encoder.layers.{i}.self_attn.v_proj"),
    ("blocks.{i}.attn.proj", "encoder.layers.{i}.self_attn.out_proj"),
    ("blocks.{i}.norm2", "encoder.layers.{i}.layer_norm2"),
    ("blocks.{i}.mlp.fc1", "encoder.layers.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "encoder.layers.{i}.mlp.fc2"),
    ("norm", "post_layernorm"),
    ("head", "visual_projection"),
    ("classifier", "classifier"),
)
# transformers 5 saves AltCLIP with another name for the blocks.
_SAVED_KEYS = tuple((ours, theirs.replace("layers", "layer")) for ours, theirs in KEYS if ours.startswith("blocks."))
OPENAI_KEYS = (
    ("patch_embed", "conv1"),
    ("prefix.cls", "class_embedding"),
    ("pos_embed", "positional_embedding"),
    ("norm_pre", "ln_pre"),
    ("blocks.{i}.norm1", "transformer.resblocks.{i}.ln_1"),
    ("blocks.{i}.attn.qkv.weight", "transformer.resblocks.{i}.attn.in_proj_weight"),
    ("blocks.{i}.attn.qkv.bias", "transformer.resblocks.{i}.attn.in_proj_bias"),
    ("blocks.{i}.attn.proj", "transformer.resblocks.{i}.attn.out_proj"),
    ("blocks.{i}.norm2", "transformer.resblocks.{i}.ln_2"),
    ("blocks.{i}.mlp.fc1", "transformer.resblocks.{i}.mlp.c_fc"),
    ("blocks.{i}.mlp.fc2", "transformer.resblocks.{i}.mlp.c_proj"),
    ("norm", "ln_post"),
    ("proj", "proj"),
)


def table(tensors: Tensors) -> Tensors:
    """Reshape position embeddings from a table (N, D) to (1, N, D)."""
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 2:
        return tensors | {"pos_embed": tensors["pos_embed"][None]}
    return dict(tensors)


def classified(tensors: Tensors, *unused: str) -> tuple[Tensors, dict[str, Any]]:
    """Rename a classifier on the mean of the patches to our head, and drop tensors that it does not use."""
    tensors = {
        name.replace("classifier.", "head."): tensor
        for name, tensor in tensors.items()
        if not name.startswith(("head.", *unused))
    }
    return tensors, {"pool": "mean"}


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors = table(tensors)
    if "classifier.weight" in tensors:
        return classified(tensors, "norm.")
    return _without_bias(tensors), {"pool": "cls"}


def _adjust_openai(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors = table(tensors)
    if "proj" in tensors:
        tensors["head.weight"] = needed(tensors, "proj", 2).t()  # (C, D)
        del tensors["proj"]
    return _without_bias(tensors), {}


# Output dimensions of the projections in timm's CLIP models. Source: timm 1.0.31, `num_classes` of all of them.
_SPACES = (512, 640, 768, 1024, 1280)


def is_projection(family: Family, config: ViTConfig, head: str, part: str) -> bool:
    """Whether a head's outputs are an embedding shared with texts instead of classes.

    Args:
        head: name of the head's module if the family does not know it, which is then a classifier.
        part: prefix of the model's names in the file; "trunk." is open_clip's for a model of timm.
    """
    if not config.num_classes or head:
        return False
    if family is OPENAI or part.endswith("trunk."):
        return True
    if family is FAMILY:
        return config.pool == "cls"
    return config.norm_pre and config.pool == "cls" and config.num_classes in _SPACES


# --- open_clip_config.json ------------------------------------------------------------------------------------

_POOLS = {"tok": "cls", "avg": "mean"}


def from_open_clip(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Convert open_clip_config.json to the settings of the image tower; for timm's models, to timm's config.json."""
    model = _stated(stated, "model_cfg")
    vision, picture = _stated(model, "vision_cfg"), _stated(stated, "preprocess_cfg")
    if not isinstance(name := vision.get("timm_model_name"), str):
        return {"open_clip": {"quick_gelu": model.get("quick_gelu", False), "vision": vision, "picture": picture}}
    side = vision.get("image_size", 224)
    return {
        "architecture": name,
        "global_pool": vision.get("timm_pool", ""),
        "pretrained_cfg": {
            "input_size": [3, *(side if isinstance(side, list) else [side, side])],
            "crop_pct": 1.0,
            "crop_mode": "squash" if picture.get("resize_mode") == "squash" else "center",
            "interpolation": picture.get("interpolation", "bicubic"),
            "mean": picture.get("mean", MEAN),
            "std": picture.get("std", STD),
        },
    }


def _stated(document: Mapping[str, Any], field: str, kind: Any = Mapping) -> Any:
    value = document.get(field, {})
    if not isinstance(value, kind):
        raise InvalidCheckpoint(f"{field} of open_clip_config.json has the invalid value {brief(value)}.")
    return value


def _read_open_clip(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read the config fields; absent ones have the defaults of open_clip's `CLIPVisionCfg`."""
    if "open_clip" not in document:
        return {}
    stated = _stated(document, "open_clip")  # config.json may hold this key, too
    vision = _stated(stated, "vision")
    pool = vision.get("pool_type", "tok")
    if pool not in tuple(_POOLS) or vision.get("attentional_pool") or vision.get("final_ln_after_pool"):
        raise InvalidCheckpoint(
            f"By open_clip_config.json the model pools by {brief(pool)} in a way not computed here."
        )
    fields = {"dim": "width", "depth": "layers", "patch_size": "patch_size", "image_size": "image_size"}
    defaults = {"width": 768, "layers": 12, "patch_size": 16, "image_size": 224, "head_width": 64}
    values = {ours: vision.get(theirs, defaults[theirs]) for ours, theirs in fields.items()}
    for ours, value in values.items():
        check_stated(ours, value, fields[ours])
    width = vision.get("head_width", 64)
    if type(width) is not int or not 0 < width <= values["dim"]:
        raise InvalidCheckpoint(f"head_width of open_clip_config.json is {brief(width)}.")
    eps = _stated(vision, "norm_kwargs").get("eps", 1e-5)
    check_stated("eps", eps, "eps")
    activation = "quick_gelu" if stated.get("quick_gelu") is True else "gelu"
    return values | {"heads": values["dim"] // width, "eps": eps, "activation": activation, "pool": _POOLS[pool]}


def _open_clip_preprocess(document: Mapping[str, Any]) -> Preprocess | None:
    if "open_clip" not in document:
        return None
    stated = _stated(document, "open_clip")
    side, picture = _stated(stated, "vision").get("image_size", 224), _stated(stated, "picture")
    size = (side, side) if isinstance(side, int) else tuple(side)
    colours = {"mean": MEAN, "std": STD} | dict(picture)
    mean, std = (_stated(colours, field, list | tuple) for field in ("mean", "std"))
    resize: Any = "squash" if picture.get("resize_mode") == "squash" else "shortest"
    how = picture.get("interpolation", "bicubic")
    return Preprocess(size, resize, None, how, tuple(mean), tuple(std), rounding="even")


def _without_bias(tensors: Tensors) -> Tensors:
    """Add a zero bias to the projection, which has none."""
    if "head.weight" in tensors:
        tensors["head.bias"] = tensors["head.weight"].new_zeros(tensors["head.weight"].shape[:1])
    return tensors


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    why = (
        "The file does not state its preprocessing; CLIP's is used: shorter side to the input's size, the centre, "
        "bicubic, CLIP's mean and deviation."
    )
    return Preprocess(config.image_size, "shortest", None, "bicubic", MEAN, STD), why


def _openai_preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    preprocess, why = _preprocess(config, file)
    return replace(preprocess, rounding="even"), why


FAMILY = Family(
    name="CLIP",
    signature=r"^pre_layrnorm\.",
    keys=KEYS + _SAVED_KEYS,
    ignored=r"^text_model\.|^text_projection\.|^logit_scale$|position_ids$",
    fixed={"position_resize": "bicubic"},
    assumed=assumed(KINDS["clip_vision_model"], "CLIP"),
    config_names=CONFIG_NAMES,
    read_config=lambda document: {k: v for k, v in read_config(document, KINDS).items() if k != "qkv_bias"},
    adjust=_adjust,
    preprocess=_preprocess,
)


def _by_tensors(tensors: Tensors, names: Collection[str], name: str) -> InferredModel:
    if "norm.weight" not in tensors:
        raise InvalidCheckpoint(
            "This is a Perception Encoder under Meta's names: its rotary positions are read from timm's files of it, "
            "such as timm/vit_pe_spatial_base_patch16_512.fb."
        )
    return InferredModel()


OPENAI = Family(
    name="OpenAI CLIP",
    signature=r"^transformer\.resblocks\.\d+\.ln_1\.",
    keys=OPENAI_KEYS,
    ignored=r"^(token_embedding|ln_final|text_projection|logit_scale)|^(input_resolution|context_length|vocab_size)$",
    fixed={"position_resize": "bicubic", "eps": 1e-5, "pool": "cls"},
    assumed={
        "activation": ("quick_gelu", "The activation is not in the file; QuickGELU is OpenAI's. Of models that were "
                       "trained with OpenCLIP, many have exact GELU."),
    },
    read_config=_read_open_clip,
    by_tensors=_by_tensors,
    adjust=_adjust_openai,
    preprocess=_openai_preprocess,
    stated_preprocess=_open_clip_preprocess,
)  # fmt: skip
FAMILIES, MODEL_TYPES = (OPENAI, FAMILY), tuple(KINDS)


# --- Writing --------------------------------------------------------------------------------------------------


def _write_tensors(
    architecture: str, config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    tensors = flat(split_prefix(config, split_qkv(config, tensors)))
    head = {}
    if architecture == CLASSIFIER:
        head = {name.replace("head", "classifier"): tensors.pop(name) for name in ("head.weight", "head.bias")}
        tensors |= {"norm.weight": torch.ones(config.dim), "norm.bias": torch.zeros(config.dim)}  # unused by this class
    elif config.num_classes:
        head = {"visual_projection.weight": tensors.pop("head.weight")}
        del tensors["head.bias"]  # zero, see `_without_bias`
    base = "vision_model." if config.num_classes else ""
    renamed = {f"{base}{name}": tensor for name, tensor in FAMILY.rename_back(tensors).items()} | head
    stated = document(config, labels, "clip_vision_model", architecture)
    if architecture != CLASSIFIER:
        return ConvertedModel(stated | ({"projection_dim": config.num_classes} if config.num_classes else {}), renamed)
    outer = ("architectures", "id2label", "label2id", "dtype")
    tower = {key: value for key, value in stated.items() if key not in outer}
    towers = {key: stated[key] for key in outer if key in stated}
    return ConvertedModel(towers | {"model_type": "clip", "vision_config": tower}, renamed)


def flat(tensors: Tensors) -> Tensors:
    """Reshape positions to a table (N, D), and the class token to (D,)."""
    tensors = tensors | {"pos_embed": tensors["pos_embed"][0]}
    return tensors | ({"prefix.cls": tensors["prefix.cls"][0, 0]} if "prefix.cls" in tensors else {})


CLASSIFIER = "CLIPForImageClassification"
_CAN = {"norm_pre": (True,), "patch_bias": (False,), "qkv_bias": (True,), "square": (True,)}
TARGETS = (
    Target(
        "CLIPVisionModelWithProjection", partial(_write_tensors, "CLIPVisionModelWithProjection"),
        {**_CAN, "head_bias": (False,)},
    ),
    Target("CLIPVisionModel", partial(_write_tensors, "CLIPVisionModel"), {**_CAN, "head": (False,)}),
    Target(CLASSIFIER, partial(_write_tensors, CLASSIFIER), {**_CAN, "pool": ("mean",), "norm": ("none",)}),
)  # fmt: skip
