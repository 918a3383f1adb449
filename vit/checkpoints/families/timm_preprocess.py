"""The preprocessing of timm's models: stated by config.json or by the arguments of a training, usual, and written."""

import math
import re
from collections.abc import Mapping
from typing import Any

from vit.checkpoints.families.clip import MEAN as CLIP_MEAN
from vit.checkpoints.families.clip import STD as CLIP_STD
from vit.checkpoints.families.family import IMAGENET_MEAN, IMAGENET_STD
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Interpolation, Preprocess, Resize
from vit.model.config import ViTConfig
from vit.untrusted import brief

ARGUMENTS = "timm_arguments"  # key of the arguments of a training in our document, which no config.json has


def usual_preprocess(config: ViTConfig, name: str) -> tuple[Preprocess, str]:
    """Return the preprocessing that most of timm's models with such a name have, and that it is not stated."""
    clip = "clip" in name.lower() and config.channels == 3
    imagenet = re.search(r"deit|dino|mae|eva|tipsv2|beitv2", name.lower()) and config.channels == 3
    half = (0.5,) * config.channels
    mean, std = (CLIP_MEAN, CLIP_STD) if clip else (IMAGENET_MEAN, IMAGENET_STD) if imagenet else (half, half)
    crop = _default_crop(name.lower(), min(config.image_size))
    usual = _parsed(config.image_size, crop, "center", "bicubic", mean, std)
    why = (
        "The file does not state its preprocessing; timm's usual one is used: shorter side to "
        f"{usual.resize_to} px, the centre, bicubic, mean and deviation of "
        f"{'CLIP' if clip else 'ImageNet' if imagenet else '0.5'}."
    )
    return usual, why


def _default_crop(name: str, side: int) -> float:
    """Return the crop ratio that most of timm's models with such a name and size use."""
    if "siglip" in name:
        return 0.9
    if side >= 300 or re.search(r"dinov[23]|_clip_", name):
        return 1.0
    return 0.95 if side in (240, 256) else 0.9


def stated_size(document: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the (height, width) [px] of the input, as `pretrained_cfg` or the arguments of a training state it."""
    stated = stated_preprocess(document) or stated_preprocess({"pretrained_cfg": document.get(ARGUMENTS)})
    return None if stated is None else (stated.size[0], stated.size[1])


def stated_preprocess(document: Mapping[str, Any]) -> Preprocess | None:
    """Read timm's `pretrained_cfg`.

    Source: timm 1.0.31, `timm/data/transforms_factory.py`, `transforms_imagenet_eval`.
    """
    stated = document.get("pretrained_cfg")
    if not isinstance(stated, Mapping) or (sides := stated.get("input_size")) is None:
        return None
    size = tuple(sides)[1:] if isinstance(sides, list | tuple) else ()
    crop, mode = stated.get("crop_pct") or 0.875, stated.get("crop_mode") or "center"
    if type(crop) not in (int, float) or not 0.1 <= crop <= 1 or mode not in ("center", "squash", "border"):
        raise InvalidCheckpoint(f"Config field crop_pct is {brief(crop)} and crop_mode {brief(mode)}; neither is read.")
    if mode == "border" and crop < 1:
        raise InvalidCheckpoint("Config field crop_mode is border, which pads pictures; this app does not do that.")
    if len(size) != 2 or not all(type(side) is int and 0 < side <= 4096 for side in size):
        raise InvalidCheckpoint(f"Config field input_size must be channels, height and width, not {brief(sides)}.")
    how: Any = stated.get("interpolation") or "bicubic"
    mean, std = _per_channel(stated.get("mean"), IMAGENET_MEAN), _per_channel(stated.get("std"), IMAGENET_STD)
    return _parsed((size[0], size[1]), crop, mode, "bicubic" if how == "random" else how, mean, std)


def _parsed(
    size: tuple[int, int],
    crop: float,
    mode: str,
    interpolation: Interpolation,
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> Preprocess:
    """Return the preprocessing for timm's crop_pct and crop_mode."""
    resize: Resize = "squash" if mode == "squash" else "cover" if size[0] != size[1] else "shortest"
    rectangle = math.floor(size[0] / crop), math.floor(size[1] / crop)
    exact = None if resize == "shortest" else rectangle
    return Preprocess(size, resize, min(rectangle), interpolation, mean, std, exact, "even")


def with_arguments(preprocess: Preprocess, why: str, document: Mapping[str, Any]) -> tuple[Preprocess, str]:
    """Override a preprocessing by the arguments of timm's training script.

    Args:
        why: reason for the preprocessing, which is not stated.
        document: see `vit.checkpoints.formats.pickles`.

    Returns:
        The preprocessing, and the reason for what the arguments do not state; "" if they state everything.

    Source: timm 1.0.31, `timm/data/config.py`, `resolve_data_config`.
    """
    arguments = document.get(ARGUMENTS)
    if not isinstance(arguments, Mapping) or not any(arguments.values()):
        return preprocess, why
    changes = {name: value for name, value in arguments.items() if value}
    for name in ("mean", "std"):
        if isinstance(changes.get(name), list) and len(changes[name]) == 1:
            changes[name] *= preprocess.channels
    changed = stated_preprocess({"pretrained_cfg": written(preprocess) | changes})
    assert changed is not None  # `written` states the size
    missing = [name for name in ("mean", "std", "interpolation", "crop_pct") if name not in changes]
    why = f"The arguments of the training do not state {', '.join(missing)}, so timm's usual values are used."
    return changed, why if missing else ""


def _per_channel(value: object, default: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list | tuple) else default


def written(preprocess: Preprocess) -> dict[str, Any]:
    """Return the fields of `pretrained_cfg` that `stated_preprocess` reads."""
    return {
        "input_size": [preprocess.channels, *preprocess.size],
        "interpolation": preprocess.interpolation,
        "crop_pct": crop_pct(preprocess),
        "crop_mode": "squash" if preprocess.resize == "squash" else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
    }


def crop_pct(preprocess: Preprocess) -> float | None:
    """Return timm's `crop_pct`, such that `floor(side / crop_pct)` is the resized side; None if no value fits."""
    height, width = preprocess.size
    shorter = preprocess.resize_to
    assert shorter is not None  # set by `Preprocess`
    if preprocess.resize == "shortest" and height != width:  # timm covers both sides, we resize the shorter one
        return None
    resized = list(preprocess.rectangle or (shorter * side // min(height, width) for side in (height, width)))
    about = min(height, width) / shorter
    for crop in (about, math.nextafter(about, 0.0), min(height, width) / (shorter + 0.5)):
        if [math.floor(side / crop) for side in (height, width)] == resized and crop >= 0.1:
            return crop
    return None
