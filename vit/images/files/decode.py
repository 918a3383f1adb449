"""Decode untrusted bytes to an upright RGB picture.

`decode_image` and `decode_frames` decode files; videos are handled by `vit.images.files.video`.
`vit.images.files.file_checks` refuses files beforehand, and explains why.
"""

import contextlib
import ctypes
import logging
import threading
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from io import BytesIO
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageChops, ImageCms, _imaging

from vit.errors import InvalidImage, UserError
from vit.images.files.file_checks import MAX_FRAMES, MAX_FRAMES_PIXELS, check_file, gif_frames, open_image
from vit.images.files.video import is_video, read_video

# --- Decoding -------------------------------------------------------------------------------------------------

MAX_EXIF = 2**20  # [bytes]; larger EXIF is ignored
ANIMATED = ("PNG", "WEBP", "GIF", "AVIF")  # several pictures in a TIFF or MPO are pages or views

# EXIF orientation -> transform that makes the picture upright. Source: EXIF 2.32, tag 0x0112.
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
_BITS_TAG, _PHOTOMETRIC_TAG, _SAMPLE_FORMAT_TAG = 258, 262, 339  # of a TIFF
_WHITE_IS_ZERO = 0
_COLOURS = np.mgrid[:256:17, :256:17, :256:17].reshape(3, 64, 64).transpose(1, 2, 0).astype(np.uint8)
_ROUNDING = 2  # grey levels by which profiles of sRGB change colours, through rounding
NARROW, DARK = 0.5, 0.25  # shares of the range of values: used range for little contrast, highest value for dark

# Decoding one picture at a time bounds the memory for all visitors together; `catch_warnings` is not thread-safe
# either.
_PILLOW_LOCK = threading.Lock()


def silence_libraries() -> None:
    """Silence messages of libraries that repeat what the app reports; for interactive processes.

    Pillow's log and libtiff's lines on stderr repeat what `InvalidImage` says. A character that matplotlib's fonts lack
    is a box in PNG and PDF, and intact in SVG.
    """
    warnings.filterwarnings("ignore", "Glyph .* missing from font")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    with contextlib.suppress(AttributeError, OSError):  # Pillow may be built without libtiff, or with a static one
        ctypes.CDLL(_imaging.__file__).TIFFSetErrorHandler(ctypes.c_void_p())


def decode_image(data: bytes, frame: int = 0, least: int = 0, stretch: bool = False) -> Image.Image:
    """Decode a picture file to an upright RGB picture without metadata.

    Reads JPEG (and MPO from phones), PNG, WebP, GIF, TIFF, BMP, AVIF and HEIC. Keeps the original size. Transparency is
    composited on white, colours with a profile are converted to sRGB, 16 bits are scaled to 8.

    Args:
        frame: of an animation, from 0 up to `count_frames`.
        least: shorter side that suffices [px]: a larger JPEG is decoded at 1/2, 1/4 or 1/8, which is faster; 0 for the
            full size.
        stretch: for more than 8 bits per channel, map the lowest value to black and the highest to white, see
            `used_range`.

    Raises:
        InvalidImage: unsupported, damaged, beyond the limits of `vit.images.files.file_checks`, or without this frame.
    """
    check_file(data)
    with _locked_pillow():
        image = open_image(data)
        if least:
            image.draft(None, (least, least))  # only for JPEG; never below this size
        return _render(_seek_frame(image, frame, data), stretch)


class UsedRange(NamedTuple):
    """Range of values in a picture.

    Attributes:
        low, high: the lowest and the highest value.
        black, white: values that are displayed as black and white.
    """

    low: float
    high: float
    black: float
    white: float

    @property
    def sentence(self) -> str:
        """End of a sentence that begins with the picture's name."""
        low, high, white = (f"{round(value, 4):,.10g}" for value in (self.low, self.high, self.white))
        dark = self.high - self.black <= DARK * (self.white - self.black)
        return f"uses {low} to {high} of {white}, so it {'is dark' if dark else 'shows little contrast'}."


def used_range(data: bytes) -> UsedRange | None:
    """Return the range of values of a picture if it is less than half of its file's range.

    Microscopes and X-ray machines store 12 bits in 16, which looks nearly black. `decode_image(data, stretch=True)`
    maps such a picture to the whole range. None for pictures with 8 bits per channel, which are displayed as intended.

    Raises:
        InvalidImage: as `decode_image`.
    """
    check_file(data)
    if is_video(data):
        return None
    with _locked_pillow():
        image = open_image(data)
        if not _is_deep(image):
            return None
        low, high = _ends(image)
        black, white = _value_range(image, low, high)
    narrow = low < high < low + NARROW * (white - black)
    return UsedRange(low, high, black, white) if narrow else None


class Frame(NamedTuple):
    """One picture of an animation or video, and its duration [ms]; 0 if the file does not state it."""

    picture: Image.Image
    duration: int


def decode_frames(data: bytes, frames: Sequence[int], stretch: bool = False) -> Iterator[Frame]:
    """Decode some frames of an animation or a video in turn, like `decode_image`.

    Args:
        data: bytes of a file that `decode_image` reads, or of a video, see `read_video`.
        frames: ascending, from 0 up to `count_frames`; for a long video, indices among the sampled frames.
        stretch: see `decode_image`.

    Raises:
        InvalidImage: as `decode_image` and `read_video`.
    """
    check_file(data)
    if is_video(data):
        clip = read_video(data, MAX_FRAMES)
        for number in frames:
            if not 0 <= number < len(clip.frames):
                raise InvalidImage(_no_such_frame(number, len(clip.frames) - 1))
            yield Frame(decode_image(clip.frames[number]), clip.durations[number])
        return
    with _locked_pillow():
        image = open_image(data)
    for number in frames:
        with _locked_pillow():
            frame = Frame(_render(_seek_frame(image, number, data), stretch), _duration(image))
        yield frame


def count_frames(data: bytes) -> int:
    """Return the number of available frames: 1 for a still picture, else bounded by the limits of `file_checks`.

    A damaged animation may have fewer frames than its header states. A video is decoded for this, once.

    Raises:
        InvalidImage: as `decode_image`, as far as the header shows, and as `read_video`.
    """
    check_file(data)
    if is_video(data):
        return len(read_video(data, MAX_FRAMES).frames)
    with _locked_pillow():
        return _count_askable(open_image(data), data)


@contextlib.contextmanager
def _locked_pillow() -> Iterator[None]:
    """Serialise access to Pillow, and convert its exceptions to one sentence."""
    with _PILLOW_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow warns about odd metadata on the console
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            yield
        except UserError:
            raise
        except MemoryError as error:
            raise InvalidImage("There is not enough free memory for this picture; make it smaller.") from error
        except Exception as error:  # on hostile bytes Pillow raises almost any exception
            raise InvalidImage(
                "This picture is damaged, incomplete or of a rare kind; copy the file again, or save it as JPEG or PNG."
            ) from error


def _count_askable(image: Image.Image, data: bytes) -> int:
    """Count the available frames; for a GIF without Pillow, which would decode them."""
    if image.format not in ANIMATED:
        return 1
    count = gif_frames(data) if image.format == "GIF" else int(getattr(image, "n_frames", 1))
    return max(1, min(count, MAX_FRAMES, MAX_FRAMES_PIXELS // (image.width * image.height)))


def _seek_frame(image: Image.Image, frame: int, data: bytes) -> Image.Image:
    """Seek to a frame and return the same object; checks the size of each frame on the way, which is decoded anyway."""
    size, last = image.size, _count_askable(image, data) - 1 if frame else 0
    if not 0 <= frame <= last:
        raise InvalidImage(_no_such_frame(frame, last))
    for number in range(image.tell() + 1, frame + 1):
        image.seek(number)
        if image.size != size:
            raise InvalidImage("The frames of this animation differ in size; save it anew or choose another one.")
    return image


def _no_such_frame(frame: int, last: int) -> str:
    return f"There is no frame {frame}; those that can be shown run from 0 to {last}."


def _duration(image: Image.Image) -> int:
    """Return the duration of the current frame [ms]."""
    duration = image.info.get("duration", 0)
    return round(duration) if isinstance(duration, int | float) and 0 < duration < 1e6 else 0


def _render(image: Image.Image, stretch: bool = False) -> Image.Image:
    """Decode the pixels and convert them to upright sRGB; needs memory for at most two copies of the picture."""
    deep = stretch and _is_deep(image)
    image.load()
    turn, tags = _orientation(image), getattr(image, "tag_v2", {})
    profile = image.info.get("icc_profile")
    ends = _ends(image) if deep else None
    if grey := _is_grey(image):
        image = _grey(image, ends)
        if tags.get(_PHOTOMETRIC_TAG) == _WHITE_IS_ZERO:  # Pillow inverts only 8 bits
            image = ImageChops.invert(image)
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        paper = Image.new("RGB", image.size, "white")
        paper.paste(image, mask=image)
        image = paper
    elif image.mode not in ("L", "RGB", "CMYK"):
        image = image.convert("RGB")
    image = _srgb(image, profile) if profile else image.convert("RGB")
    if ends and not grey:
        image = _spread(image, *ends)
    if turn is not None:
        image = image.transpose(turn)
    image.info = {}
    return image


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Read from the EXIF how to make the picture upright; damaged or huge EXIF is ignored."""
    if len(image.info.get("exif") or b"") > MAX_EXIF:
        return None
    try:
        return _UPRIGHT.get(image.getexif().get(_ORIENTATION_TAG, 1))
    except Exception:
        return None


def _srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """Convert from an ICC profile to sRGB; an invalid profile is ignored."""
    try:
        if transform := _to_srgb(profile, image.mode):
            return ImageCms.applyTransform(image, transform) or image.convert("RGB")
    except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
        pass
    return image.convert("RGB")


@lru_cache(maxsize=8)  # building a transform takes 20 ms, and most pictures of a dataset have the same few profiles
def _to_srgb(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from an ICC profile to sRGB; None if it is sRGB itself, whatever its name says."""
    source, target = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
    transform = ImageCms.buildTransform(source, target, mode, "RGB")
    colours = Image.fromarray(_COLOURS).convert(mode)
    converted = ImageCms.applyTransform(colours, transform) or colours
    changes = _extrema(ImageChops.difference(converted, colours.convert("RGB")))
    return transform if max(most for _, most in changes) > _ROUNDING else None


def _is_grey(image: Image.Image) -> bool:
    return image.mode in ("I", "F") or image.mode.startswith("I;16")


def _is_deep(image: Image.Image) -> bool:
    """Whether the file has more than 8 bits per channel, before decoding: for colours, Pillow keeps only 8."""
    return _is_grey(image) or any(";16" in str(tile.args) for tile in getattr(image, "tile", ()))


def _ends(image: Image.Image) -> tuple[float, float]:
    """Return the lowest and highest finite value; for 16-bit colours bounds, as Pillow keeps their upper 8 bits."""
    if not _is_grey(image):
        image.load()
        bands = [ends for name, ends in zip(image.getbands(), _extrema(image), strict=True) if name != "A"]
        return 256.0 * min(low for low, _ in bands), 256.0 * max(high for _, high in bands) + 255
    ends = [
        (finite.min(), finite.max()) for _, values in _strips(image) if (finite := values[np.isfinite(values)]).size
    ]
    return float(min((end[0] for end in ends), default=0)), float(max((end[1] for end in ends), default=0))


def _extrema(image: Image.Image) -> list[tuple[int, int]]:
    extrema = image.getextrema()
    return [extrema] if len(image.getbands()) == 1 else list(extrema)  # type: ignore[list-item,arg-type]


def _spread(image: Image.Image, low: float, high: float) -> Image.Image:
    """Stretch colours, of which the upper 8 bits are known, from a range of 16-bit values to the whole range."""
    first, last = low / 256, max((high - 255) / 256, low / 256 + 1)
    levels = [round(min(max((value - first) / (last - first), 0), 1) * 255) for value in range(256)]
    return image.point(levels * 3)


def _grey(image: Image.Image, ends: tuple[float, float] | None = None) -> Image.Image:
    """Render 16-bit, 32-bit and float values as 8-bit grey.

    White is the smallest of 1 (floats only), 255 and 65,535 that no value exceeds, and always 65,535 for 16 bits; with
    values below 0 or above all of these, black is the lowest and white the highest. NaN is black.

    Args:
        ends: values to map to black and white instead.
    """
    if ends:
        low, high = ends[0], max(ends[1], ends[0] + 1e-9)
    else:
        low, high = (0.0, 65535.0) if image.mode.startswith("I;16") else _value_range(image, *_ends(image))
    grey = Image.new("L", image.size)
    for top, values in _strips(image):
        values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
        levels = (values - low) * 255 / (high - low)
        grey.paste(Image.fromarray(np.clip(levels + 0.5, 0, 255).astype(np.uint8)), (0, top))
    return grey


def _value_range(image: Image.Image, low: float, high: float) -> tuple[float, float]:
    """Choose the values for black and white, given the lowest and highest value."""
    if low < 0 or high > 65535:
        return low, max(high, low + 1e-9)
    whites = {"F": (1.0, 255.0, 65535.0), "I": (255.0, 65535.0)}.get(image.mode, (65535.0,))
    return 0.0, next(white for white in whites if high <= white)


def _strips(image: Image.Image, rows: int = 256) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the top row and the values (rows, width) of horizontal strips, to limit the memory for floats."""
    tags = getattr(image, "tag_v2", {})  # Pillow reads 32-bit integers of a TIFF as signed
    unsigned = image.mode == "I" and tags.get(_BITS_TAG) == (32,) and tags.get(_SAMPLE_FORMAT_TAG, (1,)) == (1,)
    for top in range(0, image.height, rows):
        box = (0, top, image.width, min(top + rows, image.height))
        values = np.asarray(image.crop(box))
        yield top, (values.view(np.uint32) if unsigned else values).astype(np.float64)
