"""Bytes to upright RGB pictures, or a refusal in one sentence."""

import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from drawn import difference, gradient, refusal
from PIL import Image, ImageCms
from subprocesses import output_of

from vit.images.encode import encode_image
from vit.images.files.decode import decode_image
from vit.images.files.file_checks import MAX_BYTES

pytestmark = pytest.mark.usefixtures("assert_silence")

ROOT = Path(__file__).parents[1]

# --- Fixtures and files -----------------------------------------------------------------------------------------


SPEAKING = """
import contextlib, sys
from io import BytesIO
from PIL import Image
from vit.errors import UserError
from vit.images.files.decode import decode_image
file = BytesIO()
Image.effect_noise((64, 64), 50).convert("RGB").save(file, "TIFF", compression="tiff_lzw")
with contextlib.suppress(UserError):
    decode_image(file.getvalue()[:8] + b"\\xff" * 6000 + file.getvalue()[6008:])
"""


@pytest.mark.parametrize(
    ("door", "speaks"),
    [
        ("", True),  # a library leaves logging to its user
        ("import app", False),
        ("from vit.cli.main import main; main(['classify', 'no.jpg'])", False),
    ],
)
def test_entry_points_silence_libraries_on_a_damaged_picture(door: str, speaks: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"{door}{SPEAKING}"], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    assert ("Using code not yet in table" in done.stderr) == speaks, done.stderr


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, pixels: bytes = b"") -> bytes:
    """Return an 8-bit grey PNG with any declared size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(pixels)), chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


# --- What opens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("JPEG", {"quality": 95}),
        ("JPEG", {"quality": 95, "progressive": True}),
        ("PNG", {}),
        ("WEBP", {"quality": 95}),
        ("WEBP", {"lossless": True}),
        ("GIF", {}),
        ("TIFF", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}),
        ("BMP", {}),
        ("AVIF", {"quality": 90}),
    ],
)
def test_every_usual_format_opens_as_rgb(format: str, options: dict[str, object]) -> None:
    image = decode_image(encode_image(gradient(), format, **options))
    assert image.mode == "RGB"
    assert difference(image, gradient()) < 6


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "I", "F"])
def test_every_usual_mode_opens_as_rgb(mode: str) -> None:
    format = "PNG" if mode in ("LA", "I;16", "RGBA", "P", "1") else "TIFF"
    image = gradient().convert("L").convert(mode) if mode in ("I;16", "I", "F") else gradient().convert(mode)
    assert decode_image(encode_image(image, format)).mode == "RGB"


def test_phones_mpo_opens_at_its_first_frame() -> None:
    data = encode_image(gradient(), "MPO", save_all=True, append_images=[Image.new("RGB", (48, 32), "red")])
    assert difference(decode_image(data), gradient()) < 6


@pytest.mark.parametrize("format", ["GIF", "TIFF", "WEBP", "PNG", "AVIF"])
def test_first_of_several_frames_is_used(format: str) -> None:
    frames = [Image.new("RGB", (40, 40), color) for color in ("red", "lime", "blue")]
    data = encode_image(frames[0], format, save_all=True, append_images=frames[1:])
    assert difference(decode_image(data), frames[0]) < 3


def test_metadata_is_dropped() -> None:
    exif = Image.Exif()
    exif[0x010F] = "a camera"
    image = decode_image(encode_image(gradient(), "JPEG", exif=exif, comment=b"secret"))
    assert type(image) is Image.Image and image.info == {} and dict(image.getexif()) == {}


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_exif_orientation_ends_upright(format: str, orientation: int) -> None:
    flip = Image.Transpose
    stored = {
        1: gradient(),
        2: gradient().transpose(flip.FLIP_LEFT_RIGHT),
        3: gradient().transpose(flip.ROTATE_180),
        4: gradient().transpose(flip.FLIP_TOP_BOTTOM),
        5: gradient().transpose(flip.TRANSPOSE),
        6: gradient().transpose(flip.ROTATE_90),
        7: gradient().transpose(flip.TRANSVERSE),
        8: gradient().transpose(flip.ROTATE_270),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = decode_image(encode_image(stored, format, exif=exif))
    assert image.size == (48, 32)
    assert difference(image, gradient()) < 6


def test_damaged_exif_does_not_spoil_the_picture() -> None:
    data = encode_image(gradient(), "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xffrubbish")
    assert difference(decode_image(data), gradient()) < 6


# --- Colours ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA"])
def test_transparency_is_composited_on_white(mode: str) -> None:
    clear = Image.new("RGBA", (8, 8), (0, 0, 0, 0)).convert(mode)
    assert decode_image(encode_image(clear, "TIFF" if mode == "PA" else "PNG")).getpixel((4, 4)) == (255, 255, 255)


def test_half_transparent_black_becomes_grey() -> None:
    half = Image.new("RGBA", (8, 8), (0, 0, 0, 128))
    assert decode_image(encode_image(half, "PNG")).getpixel((4, 4)) == (127, 127, 127)


@pytest.mark.parametrize("format", ["GIF", "PNG"])
def test_transparent_palette_colour_becomes_white(format: str) -> None:
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 200, 10, 10])
    image.paste(0, (0, 0, 4, 8))
    decoded = decode_image(encode_image(image, format, transparency=0))
    assert decoded.getpixel((1, 1)) == (255, 255, 255) and decoded.getpixel((6, 1)) == (200, 10, 10)


def test_transparent_colour_of_an_rgb_png_becomes_white() -> None:
    data = encode_image(Image.new("RGB", (8, 8), (9, 8, 7)), "PNG", transparency=(9, 8, 7))
    assert decode_image(data).getpixel((0, 0)) == (255, 255, 255)


def test_cmyk_jpeg_keeps_its_colours() -> None:
    red = decode_image(encode_image(Image.new("CMYK", (16, 16), (0, 255, 255, 0)), "JPEG")).getpixel((8, 8))
    assert red[0] > 240 and red[1] < 15 and red[2] < 15


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_sixteen_bits_are_scaled_not_clipped(format: str) -> None:
    values = np.array([[0, 257, 32896, 65535]], dtype=np.uint16)
    decoded = decode_image(encode_image(Image.fromarray(values), format))
    assert [decoded.getpixel((x, 0))[0] for x in range(4)] == [0, 1, 128, 255]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 128.0, 255.0], [0, 128, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([0.0, 5e5, 1e6], [0, 128, 255]),
        ([float("nan"), 0.5, 1.0], [0, 128, 255]),
        ([float("-inf"), 0.5, float("inf")], [0, 128, 255]),
        ([float("nan")] * 3, [0, 0, 0]),
        ([-7.0] * 3, [0, 0, 0]),
        ([-3e38, 0.0, 3e38], [0, 128, 255]),
    ],
)
def test_floats_are_scaled_to_the_range_in_use(values: list[float], expected: list[int]) -> None:
    decoded = decode_image(encode_image(Image.fromarray(np.array([values], dtype=np.float32)), "TIFF"))
    assert [decoded.getpixel((x, 0))[0] for x in range(3)] == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([0, 128, 255], [0, 128, 255]), ([0, 32896, 65535], [0, 128, 255]), ([-100, 0, 100], [0, 128, 255])],
)
def test_int32_is_scaled_to_the_range_in_use(values: list[int], expected: list[int]) -> None:
    decoded = decode_image(encode_image(Image.fromarray(np.array([values], dtype=np.int32)), "TIFF"))
    assert [decoded.getpixel((x, 0))[0] for x in range(3)] == expected


def srgb_profile(name: str = "sRGB", *changes: tuple[bytes, bytes]) -> bytes:
    """Return the profile of sRGB under another name of four letters, after replacements."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for old, new in (("sRGB".encode("utf-16-be"), name.encode("utf-16-be")), *changes):
        assert old in profile and len(old) == len(new)
        profile = profile.replace(old, new)
    return profile


def curve(*numbers: float) -> bytes:
    """Return g, a, b, c, d of a tone curve: (a x + b)^g from d on, c x below. Source: ICC.1:2010, table 65."""
    return struct.pack(">5i", *(round(number * 65536) for number in numbers))


SRGB_CURVE = curve(2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)  # source: IEC 61966-2-1
LINEAR, GAMMA = (SRGB_CURVE, curve(1, 1, 0, 1, 0)), (SRGB_CURVE, curve(1.8, 1, 0, 0, 0))
SWAPPED = ((b"rXYZ", b"tmp_"), (b"gXYZ", b"rXYZ"), (b"tmp_", b"gXYZ"))  # sRGB's primaries in another order


@pytest.mark.parametrize("name", ["sRGB", "othr"])
@pytest.mark.parametrize(
    ("changes", "colour", "expected"),
    [
        ((LINEAR,), (55, 55, 55), (128, 128, 128)),  # (1.055 (55 / 255)^(1 / 2.4) - 0.055) 255 = 127.9
        ((GAMMA,), (128, 64, 0), (146, 81, 0)),  # 255 (1.055 (128 / 255)^(1.8 / 2.4) - 0.055) = 146.4
        (SWAPPED, (255, 0, 0), (0, 255, 0)),
    ],
    ids=["linear", "gamma", "primaries"],
)
def test_colours_with_another_profile_become_srgb(
    name: str, changes: Sequence[tuple[bytes, bytes]], colour: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    data = encode_image(Image.new("RGB", (8, 8), colour), "PNG", icc_profile=srgb_profile(name, *changes))
    assert decode_image(data).getpixel((4, 4)) == pytest.approx(expected, abs=1)


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("name", ["sRGB", "othr"])
def test_srgb_profile_changes_nothing(name: str, mode: str) -> None:
    picture = gradient().convert(mode)
    decoded = decode_image(encode_image(picture, "PNG", icc_profile=srgb_profile(name)))
    assert difference(decoded, picture.convert("RGB")) == 0


@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_broken_profile_is_ignored(mode: str) -> None:
    data = encode_image(gradient().convert(mode), "TIFF", icc_profile=b"rubbish" * 30)
    assert difference(decode_image(data), gradient().convert(mode).convert("RGB")) == 0


# --- What is refused --------------------------------------------------------------------------------------------


def jpeg_with_scans(scans: int) -> bytes:
    """Return a progressive JPEG whose last scan is repeated many times."""
    data = encode_image(gradient(), "JPEG", progressive=True)
    last = data[data.rindex(b"\xff\xda") : -2]
    return data[:-2] + last * scans + b"\xff\xd9"


def tiff_of_strips(strips: int) -> bytes:
    """Return a grey TIFF, 20 pixels wide, of one-row strips that all share their bytes."""
    tags = [
        (256, 20),
        (257, strips),
        (258, 8),
        (259, 1),
        (262, 1),
        (273, None),
        (277, 1),
        (278, 1),
        (279, None),
    ]
    arrays = 8 + 2 + 12 * len(tags) + 4
    directory = struct.pack("<H", len(tags))
    for tag, value in tags:
        count = 1 if value is not None else strips
        directory += struct.pack("<HHII", tag, 4, count, arrays + 4 * strips * (tag == 279) if value is None else value)
    offsets, lengths = np.full(strips, 8, "<u4").tobytes(), np.full(strips, 20, "<u4").tobytes()
    return b"II*\0" + struct.pack("<I", 8) + directory + b"\0" * 4 + offsets + lengths


def gif_with_frame(width: int, height: int) -> bytes:
    """Return a GIF of 10 x 10 pixels whose only frame declares another size."""
    data = bytearray(encode_image(Image.new("P", (10, 10)), "GIF"))
    frame = data.index(b"\x2c\0\0\0\0")
    data[frame + 5 : frame + 9] = struct.pack("<HH", width, height)
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "empty"),
        (b"hello, I am a picture", "not a picture"),
        (random.Random(0).randbytes(5000), "not a picture"),
        (b"\0" * 4096, "not a picture"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "PostScript"),
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 99, "HEIC"),
        (b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + b"\0" * 99, "video"),
        (b"%PDF-1.7\n", "PDF"),
        (b"8BPS\0\1" + b"\0" * 20, "Photoshop"),
        (b"PK\x03\x04" + b"\0" * 40, "zip"),
        (b"<!doctype html><html><body>404</body></html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git lfs pull"),
        (png(60_000, 60_000), "3,600 megapixels"),
        (png(12_000, 12_000), "144 megapixels"),
        (png(10_000, 5_001), "10,000 x 5,001"),
        (png(20_001, 300), "20,001 x 300"),
        (png(1, 65_535), "1 x 65,535"),
        (png(10, 1_001), "thinner than 100 to 1"),
        (gif_with_frame(60_000, 60_000), "3,600 megapixels"),
        (gif_with_frame(9_000, 9_000), "9,000 x 9,000"),
        (jpeg_with_scans(101), "scans"),
        (
            encode_image(gradient(), "JPEG")[:2] + b"\xff\xec\0\2" * 401 + encode_image(gradient(), "JPEG")[2:],
            "segments",
        ),
        (png(8, 8)[:33] + chunk(b"tEXt", b"a\0b") * 100_001 + png(8, 8)[33:], "chunks"),
        (tiff_of_strips(100_001), "strips"),
        (png(8, 8, b"\0" * 20), "damaged"),
        (encode_image(gradient(), "PNG")[:30], "damaged"),
        (encode_image(gradient(), "ICO"), "This is an icon"),
    ],
)
def test_unusable_file_is_refused_in_one_sentence(data: bytes, said: str) -> None:
    message = refusal(data)
    assert said in message
    assert message.endswith(".") and "\n" not in message and "Error" not in message


def test_files_above_the_size_limit_are_refused() -> None:
    assert "100 MB" in refusal(bytes(MAX_BYTES + 1))


@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_a_file_cut_in_half_is_refused(format: str) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 90, 3), dtype=np.uint8))
    data = encode_image(noise, format)
    assert "damaged" in refusal(data[: len(data) // 2])


def test_postscript_file_is_refused_with_any_header() -> None:
    refusal(b"\xff\xd8\xff%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage")


def test_video_after_a_motion_photo_is_ignored() -> None:
    video = b"\xff\xda\0\2" * 500
    assert difference(decode_image(encode_image(gradient(), "JPEG", quality=95) + video), gradient()) < 6


def test_refused_file_leaves_pillows_settings_unchanged() -> None:
    before = Image.MAX_IMAGE_PIXELS
    refusal(png(60_000, 60_000))
    assert before == Image.MAX_IMAGE_PIXELS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "format"), [("RGB", "PNG"), ("RGBA", "PNG"), ("I;16", "PNG"), ("F", "TIFF"), ("RGB", "WEBP")]
)
def test_fifty_megapixels_take_less_than_a_gigabyte(mode: str, format: str, tmp_path: Path) -> None:
    """Tested with a quarter of the pixels and of the memory, which are proportional."""
    path = tmp_path / "large"
    fast = {"PNG": {"compress_level": 1}, "TIFF": {"compression": "tiff_lzw"}, "WEBP": {"method": 0}}
    Image.new(mode, (4_080, 3_060)).save(path, format, **fast[format])
    code = (
        "import resource, sys; from pathlib import Path; from vit.images.files.decode import decode_image\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "start = peak(); image = decode_image(Path(sys.argv[1]).read_bytes())\n"
        "print(*image.size, (peak() - start) / 1024)"
    )
    width, height, megabytes = output_of(code, path).split()
    assert (int(width), int(height)) == (4_080, 3_060)
    assert float(megabytes) < 250


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_large_jpeg_is_decoded_smaller_and_shrinks_to_the_same_picture(mode: str) -> None:
    whole = gradient(1024, 768).convert(mode)
    data = encode_image(whole, "JPEG", quality=95)
    full, small = decode_image(data), decode_image(data, least=200)
    assert full.size == (1024, 768) and small.size == (512, 384)
    one, other = (picture.resize((96, 72), Image.Resampling.BILINEAR) for picture in (full, small))
    assert difference(one, other) < 2.5


def test_picture_is_never_decoded_smaller_than_needed() -> None:
    data = encode_image(gradient(500, 400), "JPEG")
    for least in (1, 49, 50, 51, 100, 101, 399, 400, 401, 5000):
        decoded = decode_image(data, least=least)
        assert min(decoded.size) >= min(least, 400), least
    assert decode_image(encode_image(gradient(500, 400), "PNG"), least=10).size == (500, 400)


def test_picture_decoded_smaller_is_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode_image(gradient(800, 400), "JPEG", exif=exif)
    assert decode_image(data, least=100).size == (100, 200)
