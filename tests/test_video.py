"""Videos: those we write play where people need them."""

import io
import subprocess
import sys

import av
import numpy as np
import pytest
from PIL import Image

from vit.video import mp4


def noise(count: int, width: int, height: int) -> list[Image.Image]:
    """Pictures of coarse colours, as maps are."""
    colours = np.random.default_rng(0).integers(0, 256, (count, 3, 4, 3), dtype=np.uint8)
    return [Image.fromarray(few).resize((width, height), Image.Resampling.NEAREST) for few in colours]


def test_an_mp4_is_what_every_browser_plays() -> None:
    data = mp4(noise(3, 96, 64), [100, 100, 100])
    assert data.index(b"moov") < data.index(b"mdat")  # it starts before all of it has arrived
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")


def test_an_mp4_shows_each_picture_in_its_colours_for_as_long_as_asked() -> None:
    pictures, durations = noise(4, 96, 64), [700, 40, 33, 1500]
    data = mp4(pictures, durations)
    with av.open(io.BytesIO(data)) as container:
        lengths = [p.duration * p.time_base * 1000 for p in container.demux(video=0) if p.size]
    with av.open(io.BytesIO(data)) as container:
        shown = [np.asarray(frame.to_image()).astype(int) for frame in container.decode(video=0)]
    assert lengths == durations
    for picture, found in zip(pictures, shown, strict=True):
        # Colours are kept for every second pixel only, so edges between them blur; most of a patch does not.
        assert np.median(np.abs(found - np.asarray(picture))) <= 3 and np.abs(found - np.asarray(picture)).mean() < 6


@pytest.mark.parametrize("size", [(95, 64), (96, 63), (95, 63)])
def test_odd_sides_repeat_their_last_pixels(size: tuple[int, int]) -> None:
    with av.open(io.BytesIO(mp4(noise(2, *size), [100, 100]))) as container:
        frame = next(container.decode(video=0)).to_image()
    assert frame.size == (96, 64)
    assert np.abs(np.asarray(frame).astype(int)[-1, -1] - np.asarray(noise(1, *size)[0])[-1, -1]).max() < 16


def test_nothing_that_starts_with_the_app_imports_pyav() -> None:
    program = "import sys, vit, vit.explain, vit.images, vit.animation, pages.parts.take; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
