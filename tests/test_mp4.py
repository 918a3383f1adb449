"""Videos that we write: they play everywhere and show each picture in its colours."""

import io

import av
import numpy as np
import pytest
from drawn import noise

from vit.images.mp4 import mp4

pytestmark = pytest.mark.slow


def test_mp4_plays_in_every_browser() -> None:
    data = mp4(noise(3, 96, 64), [100, 100, 100])
    assert data.index(b"moov") < data.index(b"mdat")  # playback can start before the download has finished
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")


def test_mp4_shows_each_picture_in_its_colours_for_the_requested_time() -> None:
    pictures, durations = noise(4, 96, 64), [700, 40, 33, 1500]
    data = mp4(pictures, durations)
    with av.open(io.BytesIO(data)) as container:
        lengths = [p.duration * p.time_base * 1000 for p in container.demux(video=0) if p.size]
    with av.open(io.BytesIO(data)) as container:
        pixels = [np.asarray(frame.to_image()).astype(int) for frame in container.decode(video=0)]
    assert lengths == durations
    for picture, result in zip(pictures, pixels, strict=True):
        # Chroma has half the resolution, so edges between colours blur; most of a patch does not.
        assert np.median(np.abs(result - np.asarray(picture))) <= 3 and np.abs(result - np.asarray(picture)).mean() < 6


@pytest.mark.parametrize("size", [(95, 64), (96, 63), (95, 63)])
def test_odd_sides_repeat_their_last_pixels(size: tuple[int, int]) -> None:
    with av.open(io.BytesIO(mp4(noise(2, *size), [100, 100]))) as container:
        frame = next(container.decode(video=0)).to_image()
    assert frame.size == (96, 64)
    assert np.abs(np.asarray(frame).astype(int)[-1, -1] - np.asarray(noise(1, *size)[0])[-1, -1]).max() < 16
