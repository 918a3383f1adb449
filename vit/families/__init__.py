"""Foreign checkpoints: each family's names are data in one file, and one reader serves them all.

To add a family, write `vit/families/<name>.py` with a `FAMILY` and name it in `FAMILIES`.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit.errors import InvalidCheckpoint
from vit.families import huggingface, torchvision
from vit.families.family import (
    Family,
    Tensors,
    build_config,
    infer,
    needed,
    reshape,
    shown,
    square_size,
    usual_heads,
)
from vit.model import ViTConfig

FAMILIES = (huggingface.FAMILY, torchvision.FAMILY)

# Names that give away what else a file may be; first match wins.
_OTHERS = (
    (r"(^|\.)layers\.\d+\.blocks\.|^features\.\d+\.\d+\.attn\.relative_position", "Swin"),
    (r"relative_position_bias", "BEiT"),
    (r"(^|\.)layer1\.0\.(conv1|bn1)|^resnet\.", "ResNet"),
    (r"(^|\.)stages\.0\.|dwconv|^features\.1\.0\.layer_scale", "ConvNeXt"),
    (r"mlp_tokens", "MLP-Mixer"),
    (r"rope_embed|storage_tokens|(^|\.)layer\.0\.attention\.q_proj", "DINOv3"),
    (r"blocks_token_only|cls_attn|(^|\.)gamma3$", "CaiT or XCiT"),
    (r"(^|\.)transformer\.resblocks\.|visual\.proj$", "OpenAI CLIP"),
    (r"(vision|text)_model\.|pre_layrnorm|logit_scale", "CLIP or SigLIP"),
    (r"embeddings\.distillation_token|(^|\.)dist_token$|^deit\.", "DeiT"),
    (r"layer_scale1\.lambda1|embeddings\.register_tokens", "DINOv2 (transformers)"),
    (r"(^|\.)decoder\.decoder_layers|^decoder_blocks\.", "masked autoencoder"),
    (r"(^|\.)blocks\.0\.(0\.)?(attn\.qkv|norm1)\.", "timm ViT, DeiT, DINO or DINOv2"),
    (r"(^|\.)embedding\.patch_embeddings\.", "tintn"),
    (r"attention\.self\.(query|key)|word_embeddings|embed_tokens|(^|\.)wte\.", "language model"),
    (r"\.running_mean$", "convolutional network"),
)
_WRAPPERS = re.compile(r"^(module\.|_orig_mod\.|model\.|backbone\.)+")


class Reading(NamedTuple):
    """A file understood.

    Attributes:
        family: whose names it uses.
        config: what the model computes.
        tensors: under the names of `VisionTransformer.state_dict()`.
        assumed: config field -> why it has its value, for all that no file states.
    """

    family: Family
    config: ViTConfig
    tensors: Tensors
    assumed: dict[str, str]


def read(
    tensors: Tensors, document: Mapping[str, Any] | None = None, ours: bool = False, heads: int | None = None
) -> Reading:
    """Understand the tensors of a checkpoint of any known family; works on the meta device.

    Args:
        document: the content of the config.json beside it, if there is one.
        ours: the file is one that this app saved: `document["vit"]` holds the whole config.
        heads: the user's answer where neither file nor custom tells the number of attention heads.

    Raises:
        InvalidCheckpoint: not a family that is read, or a file at odds with itself or with its config.
    """
    tensors = _unwrap(tensors)
    family = huggingface.NATIVE if ours else _recognise(list(tensors))
    renamed = family.rename(tensors)
    if ours:
        vit = (document or {}).get("vit")
        if not isinstance(vit, Mapping):
            raise InvalidCheckpoint('config.json lacks the field "vit" that says what this model computes.')
        config = build_config(vit)
        reshaped = reshape(renamed, config.grid)
        reshaped.setdefault("prefix_tokens", reshaped["pos_embed"][:, :0])
        return Reading(family, config, reshaped, {})

    stated = family.read_config(document) if document is not None else {}
    grid = None
    if "image_size" in stated:
        size, side = stated["image_size"], needed(renamed, "patch_embed.weight", 4).shape[2]
        height, width = (size, size) if isinstance(size, int) else size
        grid = height // side, width // side
    reshaped = reshape(renamed, grid)
    told = infer(reshaped)
    for name in stated.keys() & told.keys():
        if stated[name] != told[name]:
            called = huggingface.CALLED.get(name, name)
            raise InvalidCheckpoint(f"config.json says {called} = {shown(stated[name])}, the weights say {told[name]}.")
    if reshaped["prefix_tokens"].shape[1] != 1:
        raise InvalidCheckpoint("The weights are incomplete: the class token is missing.")
    told["image_size"] = stated.get("image_size") or square_size(reshaped, told["patch_size"])

    values = {**family.fixed, **stated, **told}
    assumed = {name: why for name, (_, why) in family.assumed.items() if name not in values}
    values |= {name: family.assumed[name][0] for name in assumed}
    if heads is not None and heads != stated.get("heads", heads):
        raise InvalidCheckpoint(
            f"config.json says {stated['heads']} attention heads, you said {heads}. Leave it to the file."
        )
    if heads is not None and "heads" not in stated:
        values["heads"] = heads
        assumed["heads"] = f"You chose {heads} attention heads."
    elif "heads" not in values:
        values["heads"] = usual_heads(told["dim"])
        assumed["heads"] = (
            f"The file does not say how many attention heads it has; models of width {told['dim']} usually have "
            f"{values['heads']}. A wrong number loads without error and makes every map wrong."
        )
        if values["heads"] is None:
            raise InvalidCheckpoint(
                f"The file does not say how many attention heads it has, and for a width of {told['dim']} there is no "
                "usual number. State the number of heads, or put the model's config.json beside the weights."
            )
    return Reading(family, build_config(values), reshaped, assumed)


def _unwrap(tensors: Tensors) -> Tensors:
    """Take off what training wrappers put before names."""
    unwrapped: Tensors = {}
    for name, tensor in tensors.items():
        bare = _WRAPPERS.sub("", name)
        if bare in unwrapped:
            raise InvalidCheckpoint(f"The file holds `{shown(bare)}` twice, with and without a prefix.")
        unwrapped[bare] = tensor
    return unwrapped


def _recognise(names: list[str]) -> Family:
    other = next(((what, name) for pattern, what in _OTHERS for name in names if re.search(pattern, name)), None)
    family = next((family for family in FAMILIES if family.claims(names)), None)
    if family and not other:
        return family
    reads = " and ".join(f.name for f in FAMILIES)
    if other:
        what, name = other
        raise InvalidCheckpoint(
            f"This is a {what} checkpoint (`{shown(name)}`). This app reads plain Vision Transformers: {reads}."
        )
    example = f" (it holds `{shown(names[0])}`)" if names else ""
    raise InvalidCheckpoint(f"This is not a Vision Transformer that this app knows{example}. It reads: {reads}.")
