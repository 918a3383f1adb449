"""Preprocess pictures for a model as the checkpoint's original processor does."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.images.geometry import Box, Geometry

# --- From a picture to a model's input and back ---------------------------------------------------------------


Resize = Literal["squash", "shortest", "cover"]
Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic"]
Rounding = Literal["down", "even"]
_INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)  # in the order of Pillow's numbers, 0 to 3

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_OPENAI = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}

# Defaults for missing keys. Source: class attributes of transformers 5 image processors.
_ANY = {
    "do_resize": True,
    "do_center_crop": False,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "size": 224,
    "crop_size": 224,
    "resample": 2,
    "image_mean": _HALF,
    "image_std": _HALF,
}
_PROCESSORS: dict[str, dict[str, Any]] = {
    "ViT": _ANY,
    "DeiT": _ANY | {"resample": 3, "size": 256, "do_center_crop": True},
    "CLIP": _ANY | _OPENAI | {"resample": 3, "do_center_crop": True},
    "Bit": _ANY | _OPENAI | {"resample": 3, "do_center_crop": True},
    "Siglip": _ANY | {"resample": 3, "size": {"height": 224, "width": 224}},
    "DINOv3ViT": _ANY | _IMAGENET,
    "Beit": _ANY | {"resample": 3},
}
_PROCESSORS |= {"ChineseCLIP": _PROCESSORS["CLIP"], "DPT": _PROCESSORS["Beit"] | {"size": 384}}
_PROCESSORS["Flava"] = _PROCESSORS["CLIP"] | {"size": {"height": 224, "width": 224}}
_NUMBER_IS_SHORTEST_EDGE = ("CLIP", "ChineseCLIP", "Bit", "Siglip")

# Our extensions of preprocessor_config.json; transformers has no such resize mode, and rounds down.
_COVER, _ROUNDING = "vit_cover", "vit_rounding"


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of pictures for a model: resize, crop the centre, normalise.

    The defaults are those of our own checkpoints: resize the shorter side to the input's size, then crop the centre.

    Attributes:
        size: (height, width) of the input [px].
        resize: "squash" changes the aspect ratio to that of the input, "shortest" and "cover" keep it.
        resize_to: shorter side after resizing [px]; with "cover" that of the rectangle to cover, which has the input's
            aspect ratio. What exceeds `size` is cropped equally on both sides. None for the smallest value that covers
            `size`.
        interpolation: Pillow's filter, antialiased when shrinking.
        mean, std: per channel, for pixels from 0 to 1; one number each for a grey input.
        rectangle: (height, width) after resizing with "squash", and to cover with "cover" [px], where rounding gives it
            another aspect ratio than the input's; its shorter side is `resize_to`. None otherwise.
        rounding: of the crop's offset if the margins together are an odd number of pixels: "down" as in transformers,
            "even" (half to even) as in torchvision and timm.

    Raises:
        InvalidCheckpoint: an invalid value, as values usually come from a checkpoint's files.

    >>> Preprocess((32, 32)).geometry(Image.new("RGB", (400, 200))).box
    Box(left=100.0, top=0.0, right=300.0, bottom=200.0)
    """

    size: tuple[int, int]
    resize: Resize = "shortest"
    resize_to: int | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF
    rectangle: tuple[int, int] | None = None
    rounding: Rounding = "down"

    def __post_init__(self) -> None:
        pair = self.size if isinstance(self.size, tuple | list) else (self.size,)
        object.__setattr__(self, "size", tuple(_require_whole("size", side) for side in pair))
        _require(len(pair) == 2, "size", self.size, "a height and a width")
        _require(self.resize in get_args(Resize), "resize", self.resize, "squash, shortest or cover")
        smallest = max(self.size) if self.resize == "shortest" else min(self.size)
        resize_to = smallest if self.resize_to is None else _require_whole("resize_to", self.resize_to)
        _require(resize_to >= smallest, "resize_to", resize_to, f"at least {smallest}, to cover the model's input")
        object.__setattr__(self, "resize_to", resize_to)
        if self.rectangle is not None:
            sides = tuple(_require_whole("rectangle", side) for side in self.rectangle)
            _require(self.resize != "shortest", "rectangle", sides, "absent if the shortest side is resized")
            _require(min(sides) == resize_to, "rectangle", sides, f"of a shorter side of {resize_to}")
            covers = sides[0] >= self.size[0] and sides[1] >= self.size[1]
            _require(covers, "rectangle", sides, f"at least {self.size}, to cover the model's input")
            exact = sides[0] * self.size[1] == sides[1] * self.size[0]
            object.__setattr__(self, "rectangle", None if exact else sides)
        _require(self.interpolation in _INTERPOLATIONS, "interpolation", self.interpolation, "a filter of Pillow")
        _require(self.rounding in get_args(Rounding), _ROUNDING, self.rounding, "down or even")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _require_numbers(name, getattr(self, name)))
        _require(
            len(self.mean) == len(self.std) and len(self.mean) in (1, 3),
            "mean",
            self.mean,
            "1 or 3 numbers, as std",
        )
        _require(min(self.std) > 0, "std", self.std, "above 0")

    @property
    def channels(self) -> int:
        """Number of input channels: 1 (grey) or 3 (RGB)."""
        return len(self.mean)

    def __call__(self, image: Image.Image) -> Tensor:
        """Convert a picture to the model's input, (1, channels, height, width)."""
        return self.normalised(self.input_image(image))

    def normalised(self, input_image: Image.Image) -> Tensor:
        """Convert the result of `input_image` to the model's input, (1, channels, height, width)."""
        pixels = torch.from_numpy(np.array(input_image, dtype=np.float32) / 255)
        pixels = pixels.reshape(*self.size, self.channels)
        pixels = (pixels - torch.tensor(self.mean)) / torch.tensor(self.std)
        return pixels.permute(2, 0, 1).unsqueeze(0).contiguous()  # (1, C, height, width)

    def input_image(self, image: Image.Image) -> Image.Image:
        """Return the picture resized and cropped to `size`, RGB, or grey for one channel."""
        image = image.convert("RGB" if self.channels == 3 else "L")
        width, height = self._resized(image)
        left, top = self._corner(width, height)
        resized = image.resize((width, height), Image.Resampling(_INTERPOLATIONS.index(self.interpolation)))
        return resized.crop((left, top, left + self.size[1], top + self.size[0]))

    def geometry(self, image: Image.Image) -> Geometry:
        """Return the part of a picture that the model sees."""
        width, height = self._resized(image)
        left, top = self._corner(width, height)
        x, y = image.width / width, image.height / height  # original pixels per resized pixel
        box = Box(left * x, top * y, (left + self.size[1]) * x, (top + self.size[0]) * y)
        return Geometry(image.width, image.height, box)

    def _resized(self, image: Image.Image) -> tuple[int, int]:
        """Return (width, height) after resizing [px]; the longer side is rounded down, as in torchvision."""
        assert self.resize_to is not None  # set by `__post_init__`
        if self.resize == "cover" and self.rectangle:
            ratio = min(image.height / self.rectangle[0], image.width / self.rectangle[1])
            return round(image.width / ratio), round(image.height / ratio)
        if self.resize == "cover":  # rounded as in timm's `ResizeKeepRatio`
            scale = min(self.size) / self.resize_to
            ratio = min(image.height / self.size[0], image.width / self.size[1]) * scale
            return round(image.width / ratio), round(image.height / ratio)
        if self.rectangle:
            return self.rectangle[1], self.rectangle[0]
        height, width = self.size if self.resize == "squash" else (image.height, image.width)
        shorter = min(height, width)
        return self.resize_to * width // shorter, self.resize_to * height // shorter

    def _corner(self, width: int, height: int) -> tuple[int, int]:
        """Return (left, top) of the centre crop [px]."""
        rounded = math.floor if self.rounding == "down" else round
        return rounded((width - self.size[1]) / 2), rounded((height - self.size[0]) / 2)

    def to_config(self) -> dict[str, Any]:
        """Return the content of transformers' `preprocessor_config.json`."""
        height, width = self.size
        extensions: dict[str, Any] = {} if self.rounding == "down" else {_ROUNDING: self.rounding}
        if self.resize == "cover":
            extensions[_COVER] = list(self.rectangle) if self.rectangle else True
        if self.resize != "squash":
            size = {"shortest_edge": self.resize_to}
        else:
            resized_width, resized_height = self._resized(Image.new("L", (1, 1)))
            size = {"height": resized_height, "width": resized_width}
        return {
            "image_processor_type": "ViTImageProcessor",
            "do_convert_rgb": self.channels == 3,
            "do_resize": True,
            "size": size,
            "resample": _INTERPOLATIONS.index(self.interpolation),
            "do_center_crop": size != {"height": height, "width": width},
            "crop_size": {"height": height, "width": width},
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        } | extensions

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Preprocess":
        """Parse the content of transformers' `preprocessor_config.json`; missing keys have transformers' defaults.

        A `size` of one number is a square, but the shortest edge for CLIP, Chinese CLIP, Bit and SigLIP.

        Raises:
            InvalidCheckpoint: unknown type, an invalid value, or an input whose size depends on the picture.
        """
        _require(isinstance(config, Mapping), "content", config, "an object with keys")
        kind = config.get("image_processor_type") or config.get("feature_extractor_type") or "ViT"
        family = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(kind))
        how = f"of {', '.join(_PROCESSORS)}, or the file be left out, for the standard of the model's kind"
        _require(family in _PROCESSORS, "image_processor_type", kind, how)
        values = _PROCESSORS[family] | {key: value for key, value in config.items() if value is not None}
        for key in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
            _require(isinstance(values[key], bool), key, values[key], "true or false")
        for key in ("do_flip_channel_order", "rescale_offset", "keep_aspect_ratio", "do_pad"):
            _require(not values.get(key), key, values.get(key), "off, as this app does not do it")

        size, crop = values["size"], values["do_center_crop"]
        if isinstance(size, int) and family in _NUMBER_IS_SHORTEST_EDGE:
            size = {"shortest_edge": size}
        shortest = isinstance(size, Mapping) and "shortest_edge" in size
        _require(crop or not shortest, "do_center_crop", crop, "true, or each picture has another size")
        _require(values["do_resize"] or not crop, "do_resize", False, "true with do_center_crop")
        _require(not shortest or set(size) == {"shortest_edge"}, "size", size, "a shortest edge alone")
        resized = _height_width("size", size)
        multiple = values.get("ensure_multiple_of", 1)
        fits = type(multiple) is int and multiple > 0 and not any(side % multiple for side in resized)
        _require(fits, "ensure_multiple_of", multiple, "a divisor of the size")
        final = _height_width("crop_size", values["crop_size"]) if crop else resized
        resample = values["resample"]
        _require(type(resample) is int and resample in range(4), "resample", resample, "0, 1, 2 or 3")

        # The file's pixels are 0 to 255 times the factor; ours are 0 to 1, so the rest is moved into mean and std.
        scale = _require_numbers("rescale_factor", values["rescale_factor"])[0] * 255 if values["do_rescale"] else 255.0
        _require(scale > 0, "rescale_factor", values["rescale_factor"], "above 0")
        scale = 1.0 if math.isclose(scale, 1, rel_tol=1e-6) else scale
        mean = _require_numbers("image_mean", values["image_mean"] if values["do_normalize"] else (0.0, 0.0, 0.0))
        std = _require_numbers("image_std", values["image_std"] if values["do_normalize"] else (1.0, 1.0, 1.0))
        return cls(
            size=final,
            resize="cover" if shortest and config.get(_COVER) else "shortest" if shortest else "squash",
            resize_to=min(resized),
            rectangle=resized if not shortest else _stated_rectangle(config.get(_COVER)),
            interpolation=get_args(Interpolation)[resample],
            mean=tuple(value / scale for value in mean),
            std=tuple(value / scale for value in std),
            rounding=values.get(_ROUNDING, "down"),
        )


def _stated_rectangle(cover: object) -> tuple[int, int] | None:
    """Parse the value of `_COVER`: true, or the rectangle to cover."""
    return _height_width(_COVER, cover) if isinstance(cover, list | tuple) else None


class Normalise:
    """The normalisation of `Preprocess` for whole batches of uint8 pictures on any device."""

    def __init__(self, preprocess: Preprocess, device: torch.device):
        self.mean = torch.tensor(preprocess.mean, device=device).view(1, -1, 1, 1) * 255
        self.std = torch.tensor(preprocess.std, device=device).view(1, -1, 1, 1) * 255

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """Normalise pictures (B, channels, height, width) from 0 to 255; the shape is kept."""
        return (images - self.mean) / self.std


def _require(holds: bool, name: str, value: object, requirement: str) -> None:
    """Raise an error that names an invalid preprocessing value."""
    if not holds:
        raise InvalidCheckpoint(
            f"The checkpoint's preprocessing has {name} = {str(value)[:60]!r}; it must be {requirement}."
        )


def _require_whole(name: str, value: object) -> int:
    """Return a whole number of pixels from 1 to 4,096."""
    whole = value if type(value) is int else 0  # excludes bool, a subclass of int
    _require(1 <= whole <= 4096, name, value, "a whole number from 1 to 4096")
    return whole


def _require_numbers(name: str, value: object) -> tuple[float, ...]:
    """Return numbers that are neither NaN nor huge; a single one is repeated for three channels."""
    values = value if isinstance(value, list | tuple) else (value,) * 3
    plain = all(type(number) in (int, float) and abs(number) < 1e9 for number in values)
    _require(plain and len(values) > 0, name, value, "numbers of usual size")
    return tuple(float(number) for number in values)


def _height_width(name: str, value: object) -> tuple[int, int]:
    """Parse a size in any of its spellings: 224, [224, 224], {"height": 224, "width": 224}."""
    if isinstance(value, Mapping):
        known = next((keys for keys in (("height", "width"), ("shortest_edge",) * 2) if {*keys} <= value.keys()), ())
        _require(len(known) == 2, name, dict(value), "a height and a width; else each picture has a size of its own")
        value = [value[key] for key in known]
    pair = value if isinstance(value, list | tuple) else (value, value)
    _require(len(pair) == 2, name, value, "a height and a width")
    return _require_whole(name, pair[0]), _require_whole(name, pair[1])
