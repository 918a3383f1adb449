"""From untrusted bytes to an upright RGB picture, from there to a model's input, and from a patch back to pixels.

`decode_image` and `decode_frames` are where a file becomes a picture, of videos through `vit.video`; `Preprocess` turns
the picture into numbers; `Geometry` says which part of the picture those numbers cover.
"""

import contextlib
import ctypes
import logging
import math
import re
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from PIL import Image, ImageCms, UnidentifiedImageError, _imaging
from torch import Tensor

from vit.errors import InvalidCheckpoint, InvalidImage
from vit.geometry import Box, Geometry
from vit.video import is_video, read_video

# --- Decoding -------------------------------------------------------------------------------------------------

MAX_BYTES = 100_000_000
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000  # [px]
MAX_ASPECT = 100  # longer side / shorter side: by its shorter side a thin picture is resized to an enormous one
MAX_SCANS = 100  # passes over a JPEG; a camera writes 1 to 10, and a few bytes can ask for thousands
MAX_SEGMENTS = 400  # of a JPEG; Pillow's time grows with the square of their bytes
MAX_EXIF = 2**20  # [bytes] beyond that it is not read
MAX_PIECES = 100_000  # tiles, strips or chunks of one file; honest files have fewer, and each costs an object
MAX_FRAMES = 200  # of an animation, where later ones are not offered; of a video, where they are evenly chosen
MAX_FRAMES_PIXELS = 200_000_000  # of all frames up to the one asked for, as each is drawn on the one before it

# Naming the formats keeps Pillow from handing a renamed PostScript file to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF")
ANIMATED = ("PNG", "WEBP", "GIF", "AVIF")  # several pictures in a TIFF or MPO are pages or views

_CONVERT = "save or export it as JPEG or PNG and choose that file"
_FOREIGN = (
    (rb".{4}ftyp(hei|hev|mif1|msf1)", "a HEIC photo"),
    (rb".{4}ftyp|\x1aE\xdf\xa3", "a video"),
    (rb"RIFF.{4}AVI ", "an AVI video"),
    (rb"#EXTM3U|ffconcat ", "a playlist"),
    (rb"\0\0\0\x0cjP  |\xffO\xffQ", "a JPEG 2000 picture"),
    (rb"\0\0\0\x0cJXL |\xff\x0a", "a JPEG XL picture"),
    (rb"%!PS|\xc5\xd0\xd3\xc6", "a PostScript drawing"),
    (rb"%PDF", "a PDF document"),
    (rb"8BPS", "a Photoshop document"),
    (rb"PK\x03\x04", "a zip archive"),
    (rb".{,900}<svg", "an SVG drawing"),
    (rb".{,900}<html", "a web page"),
)
_OURS = rb"\xff\xd8\xff|\x89PNG|GIF8|BM|II[*+]\0|MM\0[*+]|RIFF.{4}WEBP|.{4}ftypavi"

# EXIF orientation -> what makes the picture upright. Source: EXIF 2.32, tag 0x0112.
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_ORIENTATION_TAG = 0x0112
_TIFF_OFFSETS = (273, 324)  # of strips and of tiles

# Inside a JPEG scan 0xff is followed by 0 or by a restart marker, d0 to d7; neither begins a segment.
_JPEG_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")

# What is wrong with a file is said by InvalidImage; Pillow's log and libtiff's own lines on stderr only repeat it.
logging.getLogger("PIL").setLevel(logging.CRITICAL)
with contextlib.suppress(AttributeError, OSError):  # a Pillow that was built without libtiff, or with it inside
    ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(ctypes.c_void_p())

# One picture at a time bounds the memory for all visitors together; `catch_warnings` needs it as well.
_ONE_AT_A_TIME = threading.Lock()


def decode_image(data: bytes, frame: int = 0) -> Image.Image:
    """Turn the bytes of a picture file into an upright RGB picture, without its metadata.

    Reads JPEG (and the MPO of phones), PNG, WebP, GIF, TIFF, BMP and AVIF. Keeps the original size. Transparency is
    laid on white, colours with a profile become sRGB, 16 bits are scaled to 8.

    Args:
        frame: of an animation, from 0 up to `count_frames`.

    Raises:
        InvalidImage: not such a file, damaged, beyond the limits of this module, or without this frame.
    """
    _check_size(data)
    with _reading():
        return _render(_turned(_open(data), frame, data))


class Frame(NamedTuple):
    """One picture of an animation or video, and how long it is shown [ms]; 0 where the file does not say."""

    picture: Image.Image
    duration: int


def decode_frames(data: bytes, frames: Sequence[int]) -> Iterator[Frame]:
    """Decode some frames of an animation or a video, one after the other, each as `decode_image` does.

    Args:
        data: the bytes of a file that `decode_image` reads, or of a video, see `read_video`.
        frames: in ascending order, from 0 up to `count_frames`; of a long video they count those that were chosen.

    Raises:
        InvalidImage: as `decode_image` and `read_video`.
    """
    _check_size(data)
    if is_video(data):
        clip = read_video(data, MAX_FRAMES)
        for number in frames:
            if not 0 <= number < len(clip.frames):
                raise InvalidImage(_absent(number, len(clip.frames) - 1))
            yield Frame(decode_image(clip.frames[number]), clip.durations[number])
        return
    with _reading():
        image = _open(data)
    for number in frames:
        with _reading():
            frame = Frame(_render(_turned(image, number, data)), _duration(image))
        yield frame


def count_frames(data: bytes) -> int:
    """How many frames may be asked for: 1 of a still picture, else as many as the limits of this module.

    A damaged animation may have fewer than it says. A video is decoded for this, once.

    Raises:
        InvalidImage: as `decode_image`, as far as the header tells, and as `read_video`.
    """
    _check_size(data)
    if is_video(data):
        return len(read_video(data, MAX_FRAMES).frames)
    with _reading():
        return _frames(_open(data), data)


def _check_size(data: bytes) -> None:
    """Refuse files that are empty, too large, or cost too much for their size."""
    if not data:
        raise InvalidImage("The file is empty; choose another one.")
    if len(data) > MAX_BYTES:
        raise InvalidImage(
            f"The file has {len(data) / 1e6:,.1f} MB and the limit is {MAX_BYTES / 1e6:.0f} MB; "
            + ("make the video shorter." if is_video(data) else "save it as JPEG or make the picture smaller.")
        )
    _check_pieces(data)


@contextlib.contextmanager
def _reading() -> Iterator[None]:
    """Let one picture at a time meet Pillow, and turn whatever it raises into a sentence."""
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow tells of odd metadata on the console
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield
        except InvalidImage:
            raise
        except MemoryError as error:
            raise InvalidImage("There is not enough free memory for this picture; make it smaller.") from error
        except Exception as error:  # on hostile bytes Pillow raises nearly every kind there is
            raise InvalidImage(
                "This picture is damaged, incomplete or of a rare kind; copy the file again, or save it as JPEG or PNG."
            ) from error


def _frames(image: Image.Image, data: bytes) -> int:
    """Count the frames that may be asked for; of a GIF without Pillow, which decodes them for that."""
    if image.format not in ANIMATED:
        return 1
    found = _gif_frames(data) if image.format == "GIF" else int(getattr(image, "n_frames", 1))
    return max(1, min(found, MAX_FRAMES, MAX_FRAMES_PIXELS // (image.width * image.height)))


def _turned(image: Image.Image, frame: int, data: bytes) -> Image.Image:
    """Go to a frame and return the same object; those in between are drawn on the way, so each size is looked at."""
    size, last = image.size, _frames(image, data) - 1 if frame else 0
    if not 0 <= frame <= last:
        raise InvalidImage(_absent(frame, last))
    for number in range(image.tell() + 1, frame + 1):
        image.seek(number)
        if image.size != size:
            raise InvalidImage("The frames of this animation differ in size; save it anew or choose another one.")
    return image


def _absent(frame: int, last: int) -> str:
    return f"There is no frame {frame}; those that can be shown run from 0 to {last}."


def _duration(image: Image.Image) -> int:
    """How long the frame is shown [ms]."""
    duration = image.info.get("duration", 0)
    return round(duration) if isinstance(duration, int | float) and 0 < duration < 1e6 else 0


def _open(data: bytes) -> Image.Image:
    """Read the header and refuse absurd sizes; pixels are not decoded yet."""
    try:
        image = Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\d+", str(error))
        size = f"has {int(pixels[0]) / 1e6:,.0f} megapixels" if pixels else "is too large"
        raise InvalidImage(f"The picture {size} and the limit is {MAX_PIXELS / 1e6:.0f}; make it smaller.") from error
    except UnidentifiedImageError as error:
        raise InvalidImage(_unreadable(data[:1000])) from error
    width, height = image.size
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise InvalidImage(
            f"The picture is {width:,} x {height:,} pixels and the limit is {MAX_PIXELS / 1e6:.0f} megapixels "
            f"and {MAX_SIDE:,} pixels a side; make it smaller."
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise InvalidImage(
            f"The picture is {width:,} x {height:,} pixels, thinner than {MAX_ASPECT} to 1. Cut out a part of it."
        )
    return image


def _unreadable(start: bytes) -> str:
    """Say what a file that no reader recognises is, judging by its first bytes."""
    if re.match(_OURS, start, re.DOTALL):
        return "This picture is damaged or incomplete; copy the file again or choose another one."
    for pattern, name in _FOREIGN:
        if re.match(pattern, start, re.DOTALL | re.IGNORECASE):
            return f"This is {name}, which cannot be read here; {_CONVERT}."
    return "This file is not a picture; choose a JPEG, PNG, WebP, GIF, TIFF, BMP or AVIF file."


def _render(image: Image.Image) -> Image.Image:
    """Decode the pixels and make them upright sRGB; holds two copies of the picture at most."""
    image.load()
    turn = _orientation(image)
    profile = image.info.get("icc_profile")
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        image = _grey(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image)
        image = paper
    elif image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    image = _srgb(image, profile) if profile else image.convert("RGB")
    if turn is not None:
        image = image.transpose(turn)
    image.info = {}
    return image


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Read from the EXIF what makes the picture upright; damaged or enormous EXIF counts as none."""
    if len(image.info.get("exif", b"")) > MAX_EXIF:
        return None
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return None


def _srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert from the colours of an ICC profile to sRGB RGB; a useless profile is passed over."""
    try:
        source = ImageCms.ImageCmsProfile(BytesIO(profile))
        if "sRGB" not in ImageCms.getProfileDescription(source):
            target = ImageCms.createProfile("sRGB")
            return ImageCms.profileToProfile(image, source, target, outputMode="RGB") or image.convert("RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        pass
    return image.convert("RGB")


def _grey(image: Image.Image) -> Image.Image:
    """Render 16-bit, 32-bit and float values as 8-bit grey.

    White is the smallest of 1 (floats only), 255 and 65,535 that no value exceeds, and always 65,535 for 16 bits;
    with values below 0 or above all of these, black is the lowest and white the highest. NaN is black.
    """
    low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else _span(image)
    grey = Image.new("L", image.size)
    for top, values in _strips(image):
        values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
        levels = (values - low) * 255 / (high - low)
        grey.paste(Image.fromarray(np.clip(levels + 0.5, 0, 255).astype(np.uint8)), (0, top))
    return grey


def _span(image: Image.Image) -> tuple[float, float]:
    """Choose the values that become black and white."""
    low, high = 0.0, 0.0
    ends = [(kept.min(), kept.max()) for _, values in _strips(image) if (kept := values[np.isfinite(values)]).size]
    if ends:
        low, high = float(min(end[0] for end in ends)), float(max(end[1] for end in ends))
    if low < 0 or high > 65535:
        return low, max(high, low + 1e-9)
    whites = (1.0, 255.0, 65535.0) if image.mode == "F" else (255.0, 65535.0)
    return 0.0, next(white for white in whites if high <= white)


def _strips(image: Image.Image, rows: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the top row and the values (rows, width) of horizontal strips, so that floats never fill the memory."""
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        yield top, np.asarray(image.crop(box)).astype(np.float64)


def _check_pieces(data: bytes) -> None:
    """Refuse files of few bytes that cost much time or memory before or while their pixels are decoded."""
    if data.startswith(b"\xff\xd8"):
        segments = _jpeg_segments(data)
        _limit(segments.count(0xDA), MAX_SCANS, "scans")
        _limit(len(segments), MAX_SEGMENTS, "segments")
    elif data.startswith(b"\x89PNG"):
        _limit(_png_chunks(data), MAX_PIECES, "chunks")
    elif data.startswith((b"II", b"MM")):
        _limit(_tiff_values(data), MAX_PIECES, "tiles or strips")


def _limit(pieces: int, limit: int, name: str) -> None:
    """Refuse a picture of too many pieces."""
    if pieces > limit:
        raise InvalidImage(f"The picture is made of more than {limit:,} {name}, as no camera does; {_CONVERT}.")


def _jpeg_segments(data: bytes) -> bytearray:
    """Return the kinds of a JPEG's segments, up to its end marker (a video may follow that) or the limit."""
    kinds, position = bytearray(), 2
    while len(kinds) <= MAX_SEGMENTS and (marker := _JPEG_MARKER.search(data, position)):
        position = marker.end()
        kind = data[position - 1]
        if kind == 0xD9:
            break
        kinds.append(kind)
        position += int.from_bytes(data[position : position + 2], "big")
    return kinds


def _png_chunks(data: bytes) -> int:
    """Count the chunks of a PNG."""
    chunks, position = 0, 8
    while position < len(data) and chunks <= MAX_PIECES:
        position += 12 + int.from_bytes(data[position : position + 4], "big")
        chunks += 1
    return chunks


def _gif_frames(data: bytes) -> int:
    """Count the pictures of a GIF, no more than may be asked for. Source: GIF89a, sections 18 to 26."""

    def table(flags: int) -> int:
        """Bytes of a colour table."""
        return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0

    frames, position = 0, 13 + table(data[10]) if len(data) > 10 else len(data)
    while position < len(data) and frames < MAX_FRAMES:
        kind = data[position]
        if kind == 0x2C:  # a picture: 9 bytes on it, its colours, and the size of its codes
            frames += 1
            position += 11 + table(data[position + 9] if position + 9 < len(data) else 0)
        elif kind == 0x21:  # an extension and its label
            position += 2
        else:
            break
        while position < len(data) and data[position]:  # blocks, each after its length
            position += 1 + data[position]
        position += 1
    return frames


def _tiff_values(data: bytes) -> int:
    """Find the most values that a tag of the first TIFF directory holds, as each value becomes an object."""
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"
    big = data[2:4] in (b"\x2b\0", b"\0\x2b")

    def number(position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], order)

    directory = number(8, 8) if big else number(4, 4)
    entry, word, head = (20, 8, 8) if big else (12, 4, 2)
    counts = [0]
    for position in range(directory + head, directory + head + entry * min(number(directory, head), 4096), entry):
        is_text = number(position + 2, 2) in (1, 2, 6, 7)  # bytes too; they stay one object
        if not is_text or number(position, 2) in _TIFF_OFFSETS:
            counts.append(number(position + 4, word))
    return max(count for count in counts if count <= len(data))  # more cannot be there: Pillow calls it damaged


# --- From a picture to a model's input and back ---------------------------------------------------------------


Resize = Literal["squash", "shortest"]
Interpolation = Literal["nearest", "lanczos", "bilinear", "bicubic"]
_INTERPOLATIONS: tuple[str, ...] = get_args(Interpolation)  # in the order of Pillow's numbers, 0 to 3

_HALF = (0.5, 0.5, 0.5)
_IMAGENET = {"image_mean": (0.485, 0.456, 0.406), "image_std": (0.229, 0.224, 0.225)}
_OPENAI = {
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}

# What a file means by leaving a key out. Source: class attributes of transformers 5 image processors.
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
}
_NUMBER_IS_SHORTEST_EDGE = ("CLIP", "Bit", "Siglip")


@dataclass(frozen=True)
class Preprocess:
    """From a picture to a model's input: resize, cut out the centre, normalise.

    The defaults are those of our own checkpoints: shorter side to the input's size, then the centre.

    Attributes:
        size: (height, width) of the input [px].
        resize: "squash" gives up the picture's aspect for the input's, "shortest" keeps it.
        resize_to: shorter side after resizing [px]; what exceeds `size` is cut off equally on both sides.
            Left out, it is the smallest that covers `size`.
        interpolation: Pillow's filter, antialiased when shrinking.
        mean, std: of each channel, for pixels from 0 to 1; one number each for a grey input.

    Raises:
        InvalidCheckpoint: a value that cannot be, as these mostly come from a checkpoint's files.

    >>> Preprocess((32, 32)).geometry(Image.new("RGB", (400, 200))).box
    Box(left=100.0, top=0.0, right=300.0, bottom=200.0)
    """

    size: tuple[int, int]
    resize: Resize = "shortest"
    resize_to: int | None = None
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] = _HALF
    std: tuple[float, ...] = _HALF

    def __post_init__(self) -> None:
        pair = self.size if isinstance(self.size, tuple | list) else (self.size,)
        object.__setattr__(self, "size", tuple(_whole("size", side) for side in pair))
        _require(len(pair) == 2, "size", self.size, "a height and a width")
        _require(self.resize in get_args(Resize), "resize", self.resize, "squash or shortest")
        smallest = min(self.size) if self.resize == "squash" else max(self.size)
        resize_to = smallest if self.resize_to is None else _whole("resize_to", self.resize_to)
        _require(resize_to >= smallest, "resize_to", resize_to, f"at least {smallest}, to cover the model's input")
        object.__setattr__(self, "resize_to", resize_to)
        _require(self.interpolation in _INTERPOLATIONS, "interpolation", self.interpolation, "a filter of Pillow")
        for name in ("mean", "std"):
            object.__setattr__(self, name, _numbers(name, getattr(self, name)))
        _require(
            len(self.mean) == len(self.std) and len(self.mean) in (1, 3),
            "mean",
            self.mean,
            "1 or 3 numbers, as std",
        )
        _require(min(self.std) > 0, "std", self.std, "above 0")

    @property
    def channels(self) -> int:
        """Channels of the input: 1 (grey) or 3 (RGB)."""
        return len(self.mean)

    def __call__(self, image: Image.Image) -> Tensor:
        """Turn a picture into the model's input, (1, channels, height, width)."""
        pixels = torch.from_numpy(np.array(self.seen(image), dtype=np.float32) / 255)
        pixels = pixels.reshape(*self.size, self.channels)
        pixels = (pixels - torch.tensor(self.mean)) / torch.tensor(self.std)
        return pixels.permute(2, 0, 1).unsqueeze(0).contiguous()  # (1, C, height, width)

    def seen(self, image: Image.Image) -> Image.Image:
        """Return what the model sees: the picture resized and cut to `size`, RGB, or grey for one channel."""
        image = image.convert("RGB" if self.channels == 3 else "L")
        width, height = self._resized(image)
        left, top = self._corner(width, height)
        resized = image.resize((width, height), Image.Resampling(_INTERPOLATIONS.index(self.interpolation)))
        return resized.crop((left, top, left + self.size[1], top + self.size[0]))

    def geometry(self, image: Image.Image) -> Geometry:
        """Say which part of a picture the model sees."""
        width, height = self._resized(image)
        left, top = self._corner(width, height)
        x, y = image.width / width, image.height / height  # original pixels per resized pixel
        box = Box(left * x, top * y, (left + self.size[1]) * x, (top + self.size[0]) * y)
        return Geometry(image.width, image.height, box)

    def _resized(self, image: Image.Image) -> tuple[int, int]:
        """Return (width, height) after resizing [px]; the longer side is cut to whole pixels, as torchvision does."""
        assert self.resize_to is not None  # set when the object was made
        height, width = self.size if self.resize == "squash" else (image.height, image.width)
        shorter = min(height, width)
        return self.resize_to * width // shorter, self.resize_to * height // shorter

    def _corner(self, width: int, height: int) -> tuple[int, int]:
        """Return (left, top) of the central cut [px]; halves go to the even side, as torchvision does."""
        return round((width - self.size[1]) / 2), round((height - self.size[0]) / 2)

    def to_config(self) -> dict[str, Any]:
        """Return the content of transformers' `preprocessor_config.json`."""
        height, width = self.size
        if self.resize == "shortest":
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
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "Preprocess":
        """Read the content of transformers' `preprocessor_config.json`; missing keys mean what they mean there.

        A `size` of one number is a square, but the shortest edge for CLIP, Bit and SigLIP.

        Raises:
            InvalidCheckpoint: an unknown kind, a value that cannot be, or an input whose size differs by picture.
        """
        _require(isinstance(config, Mapping), "content", config, "an object with keys")
        kind = config.get("image_processor_type") or config.get("feature_extractor_type") or "ViT"
        family = re.sub(r"(ImageProcessor(Fast|Pil)?|FeatureExtractor)$", "", str(kind))
        _require(family in _PROCESSORS, "image_processor_type", kind, "of " + ", ".join(_PROCESSORS))
        values = _PROCESSORS[family] | {key: value for key, value in config.items() if value is not None}
        for key in ("do_resize", "do_center_crop", "do_rescale", "do_normalize"):
            _require(isinstance(values[key], bool), key, values[key], "true or false")
        for key in ("do_flip_channel_order", "rescale_offset"):
            _require(not values.get(key), key, values.get(key), "off, as this app does not do it")

        size, crop = values["size"], values["do_center_crop"]
        if isinstance(size, int) and family in _NUMBER_IS_SHORTEST_EDGE:
            size = {"shortest_edge": size}
        shortest = isinstance(size, Mapping) and "shortest_edge" in size
        _require(crop or not shortest, "do_center_crop", crop, "true, or each picture has another size")
        _require(values["do_resize"] or not crop, "do_resize", False, "true with do_center_crop")
        _require(not shortest or set(size) == {"shortest_edge"}, "size", size, "a shortest edge alone")
        resized = _height_width("size", size)
        final = _height_width("crop_size", values["crop_size"]) if crop else resized
        same_aspect = resized[0] * final[1] == resized[1] * final[0]
        _require(shortest or same_aspect, "size", size, f"of the aspect of crop_size, {final}")
        resample = values["resample"]
        _require(type(resample) is int and resample in range(4), "resample", resample, "0, 1, 2 or 3")

        # Pixels from 0 to 255 times the factor; ours go from 0 to 1, so its excess moves into mean and std.
        scale = _numbers("rescale_factor", values["rescale_factor"])[0] * 255 if values["do_rescale"] else 255.0
        _require(scale > 0, "rescale_factor", values["rescale_factor"], "above 0")
        scale = 1.0 if math.isclose(scale, 1, rel_tol=1e-6) else scale
        mean = _numbers("image_mean", values["image_mean"] if values["do_normalize"] else (0.0, 0.0, 0.0))
        std = _numbers("image_std", values["image_std"] if values["do_normalize"] else (1.0, 1.0, 1.0))
        return cls(
            size=final,
            resize="shortest" if shortest else "squash",
            resize_to=min(resized),
            interpolation=get_args(Interpolation)[resample],
            mean=tuple(value / scale for value in mean),
            std=tuple(value / scale for value in std),
        )


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    """Refuse a preprocessing value with a sentence that names it."""
    if not holds:
        raise InvalidCheckpoint(
            f"The checkpoint's preprocessing has {name} = {str(value)[:60]!r}; it must be {wanted}."
        )


def _whole(name: str, value: object) -> int:
    """Return a whole number of pixels from 1 to 4,096."""
    whole = value if type(value) is int else 0  # True is an int too
    _require(1 <= whole <= 4096, name, value, "a whole number from 1 to 4096")
    return whole


def _numbers(name: str, value: object) -> tuple[float, ...]:
    """Return numbers, neither NaN nor enormous; a single one counts for all three channels."""
    values = value if isinstance(value, list | tuple) else (value,) * 3
    plain = all(type(number) in (int, float) and abs(number) < 1e9 for number in values)
    _require(plain and len(values) > 0, name, value, "numbers of usual size")
    return tuple(float(number) for number in values)


def _height_width(name: str, value: object) -> tuple[int, int]:
    """Read a size in any of its spellings: 224, [224, 224], {"height": 224, "width": 224}."""
    if isinstance(value, Mapping):
        value = (value.get("height"), value.get("width")) if "height" in value else value.get("shortest_edge")
    pair = value if isinstance(value, list | tuple) else (value, value)
    _require(len(pair) == 2, name, value, "a height and a width")
    return _whole(name, pair[0]), _whole(name, pair[1])
