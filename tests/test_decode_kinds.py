"""Picture files of cameras, phones and microscopes: decoded correctly, or identified in the refusal."""

import io
import struct
import zlib
from collections.abc import Sequence

import numpy as np
import pillow_heif
import pytest
import torch
from drawn import difference, gradient, refusal
from PIL import Image

from vit.images.encode import encode_image
from vit.images.files.decode import decode_image, used_range
from vit.images.files.tiff import read_tags
from vit.images.files.video import is_video

pytestmark = pytest.mark.usefixtures("assert_silence", "short_refusals")

Entry = tuple[int, int, int | bytes]  # tag, type, value
TWELVE_BITS = np.linspace(0, 4095, 90).astype(np.uint16)[None].repeat(60, 0)


def tiff(values: np.ndarray, kind: int = 1, more: Sequence[Entry] = (), below: Sequence[Entry] = ()) -> bytes:
    """Write a TIFF of any numbers, sample format and directory entries, optionally with a subdirectory."""
    height, width = values.shape[:2]
    channels, pixels = values.shape[2] if values.ndim == 3 else 1, values.tobytes()
    entries: dict[int, Entry] = {tag: (tag, 4, value) for tag, value in ((256, width), (257, height), (273, 8))}
    entries |= {tag: (tag, 3, value) for tag, value in ((258, 8 * values.itemsize), (259, 1), (277, channels))}
    entries |= {262: (262, 3, 1 if channels == 1 else 2), 278: (278, 4, height), 279: (279, 4, len(pixels))}
    entries |= {339: (339, 3, kind)} | {entry[0]: entry for entry in more}
    start = 8 + len(pixels)
    if below:
        entries[330] = 330, 4, start + 6 + 12 * (len(entries) + 1)

    def directory(entries: Sequence[Entry]) -> bytes:
        parts = [struct.pack("<H", len(entries))]
        for tag, type_, value in sorted(entries):
            count, field = (1, struct.pack("<I", value)) if isinstance(value, int) else (len(value), value.ljust(4))
            parts.append(struct.pack("<HHI", tag, type_, count) + field)
        return b"".join(parts) + bytes(4)

    tail = directory(list(below)) if below else b""
    return b"II*\0" + struct.pack("<I", start) + pixels + directory(list(entries.values())) + tail


def png_of_16_bits(values: np.ndarray) -> bytes:
    """Return a PNG of 16-bit colours, which Pillow cannot write."""
    height, width, channels = values.shape

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 16, {2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        chunk(kind, content) for kind, content in ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    )


# --- Raw photos ---------------------------------------------------------------------------------------------------

THUMBNAIL = np.zeros((8, 12, 3), np.uint8)
DNG = (50706, 1, b"\1\4\0\0")


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (tiff(THUMBNAIL, more=[(254, 4, 1), DNG]), "DNG"),
        (tiff(THUMBNAIL, more=[(271, 2, b"NIK\0")], below=[(262, 3, 32803), (271, 2, b"NIK\0")]), "RAW"),
        (tiff(THUMBNAIL, below=[(259, 3, 34713)]), "RAW"),
        (tiff(THUMBNAIL, below=[(50706, 1, b"\1\4\0\0")]), "DNG"),
        (b"II*\0\x10\0\0\0CR\2\0" + bytes(99), "CR2"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1" + bytes(99), "CR3"),
        (b"IIRO\x08\0\0\0" + bytes(99), "ORF"),
        (b"IIU\0\x18\0\0\0" + bytes(99), "RW2"),
        (b"FUJIFILMCCD-RAW 0201" + bytes(99), "RAF"),
    ],
)
def test_raw_photos_preview_is_not_taken_for_the_photo(data: bytes, kind: str) -> None:
    message = refusal(data)
    assert f"raw photo of a camera ({kind})" in message and "JPEG or PNG" in message
    assert not is_video(data)


def test_preview_of_another_picture_in_a_tiff_is_refused() -> None:
    assert "preview of another" in refusal(tiff(THUMBNAIL, more=[(254, 4, 1)]))
    assert decode_image(tiff(THUMBNAIL)).size == (12, 8)


# --- More than 8 bits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        encode_image(Image.fromarray(TWELVE_BITS), "PNG"),
        encode_image(Image.fromarray(TWELVE_BITS), "TIFF", compression="tiff_lzw"),
        png_of_16_bits(np.stack([TWELVE_BITS] * 3, -1)),
        png_of_16_bits(np.stack([TWELVE_BITS, TWELVE_BITS, TWELVE_BITS, TWELVE_BITS * 0 + 65535], -1)),
        tiff(np.stack([TWELVE_BITS] * 3, -1)),
        tiff(TWELVE_BITS.astype(np.uint32)),
    ],
    ids=["PNG", "TIFF", "RGB PNG", "RGBA PNG", "RGB TIFF", "32 bits"],
)
def test_twelve_bits_in_sixteen_are_reported_and_stretched(data: bytes) -> None:
    used = used_range(data)
    assert used and used.sentence == "uses 0 to 4,095 of 65,535, so it is dark."
    assert max(high for _, high in decode_image(data).getextrema()) <= 16
    stretched = np.asarray(decode_image(data, stretch=True)).astype(int)
    assert (stretched.min(), stretched.max()) == (0, 255)
    assert np.abs(stretched[0, :, 0] - np.linspace(0, 255, 90)).max() < 17


def test_picture_that_uses_its_range_is_unchanged() -> None:
    for image in (TWELVE_BITS * 16, (TWELVE_BITS // 64).astype(np.uint8)):
        data = encode_image(Image.fromarray(image), "PNG")
        assert used_range(data) is None
    assert decode_image(data, stretch=True).getextrema() == ((0, 63),) * 3  # 8-bit values are shown as they are
    pale = used_range(encode_image(Image.fromarray(TWELVE_BITS // 8 + 30000), "PNG"))
    assert pale and pale.sentence == "uses 30,000 to 30,511 of 65,535, so it shows little contrast."


def test_large_unsigned_numbers_keep_their_order() -> None:
    values = (np.arange(16, dtype=np.uint32) * (2**28))[None]
    assert list(np.asarray(decode_image(tiff(values)))[0, :, 0]) == sorted(round(i * 255 / 15) for i in range(16))


@pytest.mark.parametrize(
    ("values", "what"),
    [
        (np.zeros((4, 4), np.float64), "64-bit floating-point numbers"),
        (np.zeros((4, 4), np.float16), "16-bit floating-point numbers"),
        (np.zeros((4, 4, 3), np.float32), "32-bit floating-point numbers in 3 channels"),
        (np.zeros((4, 4, 3), np.uint32), "32-bit whole numbers in 3 channels"),
    ],
)
def test_tiff_of_other_numbers_is_identified(values: np.ndarray, what: str) -> None:
    assert f"a TIFF of {what}," in refusal(tiff(values, 3 if values.dtype.kind == "f" else 1))


@pytest.mark.parametrize("kind", [np.uint16, np.float32])
def test_tiff_whose_white_is_zero_is_inverted_with_any_number_of_bits(kind: type) -> None:
    scan = np.asarray(gradient(), np.uint8)[..., 0]
    values = scan.astype(kind) * (257 if kind is np.uint16 else 1 / 255)
    form = 3 if kind is np.float32 else 1
    inverted, plain = (np.asarray(decode_image(tiff(values.astype(kind), form, [(262, 3, zero)]))) for zero in (0, 1))
    assert abs(inverted.astype(int) + plain - 255).max() <= 1 and plain.std() > 10


@pytest.mark.parametrize(
    ("channels", "more", "said"),
    [
        (4, [(262, 3, 1)], "8-bit whole numbers in 4 channels, and a picture has at most 3. Keep 3 channels"),
        (13, [(262, 3, 1)], "in 13 channels, and a picture has at most 3. Keep 3 channels"),
        (3, [(284, 3, 2), (258, 3, 16)], "16-bit whole numbers in 3 channels, each in a plane of its own; save"),
    ],
)
def test_tiff_of_other_channels_says_how_to_make_a_picture_of_it(channels: int, more: list[Entry], said: str) -> None:
    assert said in refusal(tiff(np.zeros((20, 30, channels), np.uint8), more=more))


@pytest.mark.parametrize("text", [b"ImageJ=1.53t\nimages=12\nslices=12\n", b'{"shape": [12, 6, 9], "truncated": true}'])
def test_pages_of_a_stack_under_one_directory_are_counted(text: bytes) -> None:
    assert read_tags(tiff(TWELVE_BITS) + text).pages == 12
    assert read_tags(tiff(TWELVE_BITS, more=[(32997, 4, 12)])).pages == 12


def test_pages_of_a_tiff_are_counted_without_reduced_copies() -> None:
    scan = gradient(60, 40)
    assert read_tags(encode_image(scan, "TIFF")).pages == read_tags(encode_image(scan, "PNG")).pages == 1
    assert read_tags(encode_image(scan, "TIFF", save_all=True, append_images=[scan.resize((30, 90)), scan])).pages == 3
    reduced = scan.resize((30, 20))
    reduced.encoderinfo = {"tiffinfo": {254: 1}}
    assert read_tags(encode_image(scan, "TIFF", save_all=True, append_images=[reduced])).pages == 1


def test_pages_of_a_circular_or_endless_chain_end() -> None:
    entry = struct.pack("<HHHII", 1, 256, 3, 1, 8)
    circle = b"II*\0" + struct.pack("<I", 8) + entry + struct.pack("<I", 8)
    assert read_tags(circle).pages == 1
    chain = b"".join(entry + struct.pack("<I", 8 + 18 * (n + 1)) for n in range(2000))
    assert read_tags(b"II*\0" + struct.pack("<I", 8) + chain).pages == 1000


# --- JPEG without its end -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_without_its_end_marker_opens_whole(progressive: bool) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), dtype=np.uint8))
    for image in (gradient(), noise):
        data = encode_image(image, "JPEG", progressive=progressive)
        for cut in (data[:-2], data[:-1], data[:-2] + bytes(40)):
            assert difference(decode_image(cut), decode_image(data)) == 0
            assert decode_image(cut, least=8).mode == "RGB"
        for cut in (data[:-50], data[: -(len(data) // 9)]):
            assert "ends before its picture does" in refusal(cut)


@pytest.mark.parametrize("progressive", [False, True])
def test_jpeg_without_its_last_blocks_opens_as_in_browsers(progressive: bool) -> None:
    data = encode_image(gradient(400, 300), "JPEG", progressive=progressive, quality=90)
    for lost in (3, 10, 20):
        unlike = np.asarray(decode_image(data[:-lost])) != np.asarray(decode_image(data))
        assert unlike.any(axis=2).mean() < 0.01
    assert "ends before its picture does" in refusal(data[:-500])


def test_progressive_jpeg_without_its_last_scan_is_refused() -> None:
    data = encode_image(gradient(), "JPEG", progressive=True)
    assert "ends before" in refusal(data[: data.rindex(b"\xff\xc4")])


# --- Phones, and other files --------------------------------------------------------------------------------------


def test_heic_opens_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    out = io.BytesIO()
    pillow_heif.from_pillow(gradient()).save(out, quality=95, exif=exif.tobytes())
    upright = gradient().transpose(Image.Transpose.ROTATE_270)
    assert difference(decode_image(out.getvalue()), upright) < 6
    assert "HEIC photo is damaged" in refusal(out.getvalue()[:300])


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (b"7z\xbc\xaf\x27\x1c", "This is a 7z archive, which is not read as a picture"),
        (b"Rar!\x1a\x07\1\0", "This is a RAR archive, which is not read as a picture"),
        (b"\xff\x0a", "This is a JPEG XL picture, which cannot be read here"),
        (b"P5\n8 8\n255\n", "This is a PNM picture, which cannot be read here"),
        (bytes(128) + b"DICM", "This is a DICOM picture, which cannot be read here"),
        (b'\x08\1\0\0\0\0\0\0{"head.weight":', "Page Checkpoints opens checkpoints"),
    ],
)
def test_non_pictures_are_identified(start: bytes, what: str) -> None:
    assert what in refusal(start + bytes(200))


def test_weights_are_not_taken_for_an_archive_of_pictures() -> None:
    out = io.BytesIO()
    torch.save({"head.weight": torch.zeros(2)}, out)
    assert "Page Checkpoints opens checkpoints" in refusal(out.getvalue())
