"""Encode pictures as an MP4 video, by the FFmpeg that PyAV contains."""

import tempfile
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    import av

_X264_QUALITY = "18"  # constant rate factor of x264; visually lossless


def mp4(pictures: Sequence[Image.Image], durations: Sequence[int]) -> bytes:
    """Encode pictures as a video that every browser plays: H.264, yuv420p, with the index at the start.

    Args:
        pictures: RGB, of equal size; the last row or column of odd sides is repeated, as H.264 requires even sides.
        durations: of each picture [ms], at least 1.
    """
    import av  # noqa: PLC0415 # takes half a second, rarely needed

    time_base = Fraction(1, 1000)
    width, height = (side + side % 2 for side in pictures[0].size)
    # A file, not a buffer: to move the index to the start, FFmpeg opens its output a second time.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.mp4"
        with av.open(str(path), "w", format="mp4", options={"movflags": "+faststart"}) as container:
            stream = container.add_stream("libx264", rate=1000, options={"crf": _X264_QUALITY, "bf": "0"})
            stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
            context = stream.codec_context
            context.time_base = time_base
            # Players guess the colours of untagged videos: BT.709 with sRGB's transfer curve, limited range.
            context.colorspace, context.color_primaries, context.color_trc, context.color_range = 1, 1, 13, 1

            def coded() -> Iterator["av.Packet[Any]"]:
                now = 0
                for picture, duration in zip(pictures, durations, strict=True):
                    frame = av.VideoFrame.from_image(_even(picture, width, height)).reformat(
                        format="yuv420p", dst_colorspace="itu709", dst_color_range="MPEG"
                    )
                    frame.pts, frame.time_base = now, time_base
                    now += duration
                    yield from stream.encode(frame)
                yield from stream.encode(None)

            # Without B-frames there is one packet per picture, in order; the last duration is stored nowhere else.
            for packet, duration in zip(coded(), durations, strict=True):
                packet.duration = duration
                container.mux(packet)
        return path.read_bytes()


def _even(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Extend a picture to this size by repeating its last column and row."""
    if picture.size == (width, height):
        return picture
    sheet = Image.new("RGB", (width, height))
    for left, top in ((1, 1), (1, 0), (0, 1), (0, 0)):
        sheet.paste(picture, (left, top))
    return sheet
