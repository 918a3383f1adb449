"""Animations as input: which frames are offered, what each shows, and limits on their cost."""

from typing import Any

import numpy as np
import pytest
from patience import calls_in
from PIL import Image

from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidImage
from vit.images.encode import encode_image
from vit.images.files import decode
from vit.images.files.decode import count_frames, decode_frames, decode_image
from vit.view.explanation import explain

DURATIONS = [100, 200, 300, 100]  # [ms]


def animation(kind: str, count: int = 4, size: tuple[int, int] = (60, 40), **options: Any) -> bytes:
    """Encode frames of one grey each, 40 brighter than the one before, with a red corner."""
    frames = [Image.new("RGB", size, (40 * i,) * 3) for i in range(count)]
    for frame in frames:
        frame.paste("red", (0, 0, 8, 8))
    lossless = {"lossless": True} if kind == "WEBP" else {}
    several = {"save_all": True, "append_images": frames[1:]} if count > 1 else {}
    return encode_image(frames[0], kind, **several, **lossless, **options)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_every_frame_has_its_picture_and_duration(kind: str) -> None:
    data = animation(kind, duration=DURATIONS)
    assert count_frames(data) == 4
    result = list(decode_frames(data, range(4)))
    assert [frame.picture.getpixel((30, 30)) for frame in result] == [(40 * i,) * 3 for i in range(4)]
    assert [frame.duration for frame in result] == DURATIONS
    assert all(frame.picture.size == (60, 40) and frame.picture.mode == "RGB" for frame in result)


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "AVIF"])
def test_single_frame_equals_that_in_sequence(kind: str) -> None:
    data = animation(kind)
    assert decode_image(data).tobytes() == decode_image(data, 0).tobytes()
    third = next(decode_frames(data, [2])).picture
    assert decode_image(data, 2).tobytes() == third.tobytes() != decode_image(data).tobytes()


@pytest.mark.parametrize("kind", ["JPEG", "TIFF", "BMP"])
def test_still_picture_or_pages_are_one_frame(kind: str) -> None:
    data = animation(kind, count=4 if kind == "TIFF" else 1)
    assert count_frames(data) == 1
    with pytest.raises(InvalidImage, match="no frame 1"):
        decode_image(data, 1)


@pytest.mark.parametrize("frame", [-1, 4])
def test_frame_out_of_range_is_refused(frame: int) -> None:
    with pytest.raises(InvalidImage, match="from 0 to 3"):
        decode_image(animation("GIF"), frame)


def test_frames_are_limited_in_number_and_pixels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_FRAMES", 3)
    assert [count_frames(animation(kind)) for kind in ("GIF", "PNG", "WEBP")] == [3, 3, 3]
    monkeypatch.setattr(decode, "MAX_FRAMES_PIXELS", 2 * 60 * 40)
    data = animation("GIF")
    assert count_frames(data) == 2
    with pytest.raises(InvalidImage, match="from 0 to 1"):
        decode_image(data, 2)


def test_frames_of_a_long_gif_are_counted_only_up_to_the_limit() -> None:
    head = animation("GIF", count=2, size=(8, 8))[:-1]
    picture = b"\x2c" + bytes(4) + b"\x01\0\x01\0\0" + b"\x02\x02\x44\x01\0"
    enough, very_many = (head + picture * count + b";" for count in (2 * decode.MAX_FRAMES, 200 * decode.MAX_FRAMES))
    assert count_frames(very_many) == decode.MAX_FRAMES
    assert calls_in(lambda: count_frames(very_many)) < 1.2 * calls_in(lambda: count_frames(enough))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_truncated_animation_is_refused_in_one_sentence(kind: str) -> None:
    generator = np.random.default_rng(0)
    whole = animation(kind)
    for _ in range(200):
        data = bytearray(whole[: generator.integers(20, len(whole))])
        for place in generator.integers(0, len(data), 3):
            data[place] = generator.integers(256)
        try:
            frames = count_frames(bytes(data))
            list(decode_frames(bytes(data), range(frames)))
        except InvalidImage as error:
            assert "\n" not in str(error)


def test_growing_frames_of_a_gif_are_refused() -> None:
    data = animation("GIF", size=(20, 20))
    second = data.index(b"\x2c", data.index(b"\x2c") + 10)
    while data[second + 1 : second + 5] != bytes(4):
        second = data.index(b"\x2c", second + 1)
    grown = bytearray(data)
    grown[second + 5 : second + 9] = (3000).to_bytes(2, "little") * 2
    with pytest.raises(InvalidImage):
        list(decode_frames(bytes(grown), range(4)))


def test_requested_frame_is_explained(saved: Any) -> None:
    checkpoint, data = load_checkpoint(saved), animation("PNG")
    result = explain(checkpoint, data, frame=2)
    alone = explain(checkpoint, encode_image(decode_image(data, 2)))
    assert result.picture.getpixel((30, 30)) == (80, 80, 80)
    assert result.record.logits.tolist() == alone.record.logits.tolist()
    assert result.record.logits.tolist() != explain(checkpoint, data).record.logits.tolist()
