"""The process that decodes a video for `vit.images.files.video`.

PyAV contains FFmpeg, which decodes the videos. It is large and written in C, so this process has bounded time and
memory, an allowlist of demuxers and decoders, and where the system supports it, no right to open files.

    python -m vit.images.files.video_decoder COUNT SECONDS BYTES < clip.mp4

writes JPEG pictures, each after a line of JSON.
"""

import contextlib
import io
import json
import math
import os
import re
import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from vit.errors import InvalidImage
from vit.images.encode import encode_image
from vit.images.mp4 import mp4

if TYPE_CHECKING:
    import av

MAX_PIXELS = 9_000_000  # per frame; 4K has 8.8 million
MAX_DECODED_PIXELS = 8_000_000_000  # two minutes of 1080p, which take about 15 s
MAX_PACKETS = 200_000  # per file; an hour at 50 frames per second has fewer
PATIENCE_SECONDS = 60  # [s] timeout for one file
FRAME_SIDE = 1280  # longer side of a stored frame [px]

# Bytes at the start of a file -> FFmpeg's demuxer. No other demuxers are used, so that playlists, or scripts that name
# other files, are never interpreted.
_READERS = (
    (rb".{4}ftyp(?!avif|avis|hei|hev|mif1|msf1|crx )|\0.{3}(moov|mdat|wide|free|skip)", "mov"),
    (rb"\x1aE\xdf\xa3", "matroska"),
)
_DECODERS = ("h264", "hevc", "vp8", "vp9", "libdav1d", "av1", "libvpx", "libvpx-vp9", "mpeg4", "mjpeg", "prores")
_JPEG_QUALITY = 95  # 0 to 100

# Signs of the display matrix (a, b, c, d) -> transform that makes the frame upright. Source: ISO 14496-12, 8.3.2: a
# pixel (x, y) is displayed at (a x + c y, b x + d y).
_UPRIGHT = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
}
DAMAGED = "This video is damaged, incomplete or of a rare kind; copy the file again, or save it as MP4 (H.264)."


def evenly(every: Iterable[int], count: int) -> list[int]:
    """Sample at most `count` numbers evenly, including the first and the last.

    >>> evenly(range(10), 4)
    [0, 3, 6, 9]
    """
    numbers = list(every)
    if len(numbers) <= count:
        return numbers
    return [numbers[round(i * (len(numbers) - 1) / (count - 1))] for i in range(count)]


def demuxer(data: bytes) -> str | None:
    """Return the name of FFmpeg's demuxer for a file."""
    return next((name for start, name in _READERS if re.match(start, data[:16], re.DOTALL)), None)


class _Packet(NamedTuple):
    """One coded frame, in the order of the file.

    Attributes:
        time: presentation time, in units of the stream's time base.
        key: whether it can be decoded independently.
        displayed: whether the file marks it for display.
    """

    time: int
    key: bool
    displayed: bool


def main(count: int, seconds: float, memory: int) -> int:
    """Entry point of the decoding process: reads a video from stdin and writes its frames to stdout."""
    data = sys.stdin.buffer.read()
    list(
        _decode_frames(mp4([Image.new("RGB", (16, 16))], [1]), 1)
    )  # Python loads much on first use, and then opens files
    _restrict(len(data), memory)
    out = sys.stdout.buffer

    def send(values: dict[str, Any], content: bytes = b"") -> None:
        out.write(json.dumps(values).encode() + b"\n" + content)
        out.flush()

    try:
        for values, content in _decode_frames(data, count, seconds):
            send(values, content)
    except InvalidImage as error:
        send({"problem": str(error)})
    except MemoryError:
        send({"problem": "There is not enough memory to decode this video; make it smaller."})
    except Exception:  # on hostile bytes libraries raise nearly every kind there is; a broken one failed above
        send({"problem": DAMAGED})
    return 0


def _restrict(size: int, memory: int) -> None:
    """Drop rights and resources that decoding does not need.

    On systems without these limits, those of `vit.images.files.video` remain.
    """
    try:
        import resource  # noqa: PLC0415 # not on Windows
    except ImportError:  # Windows
        return
    seconds = PATIENCE_SECONDS * (os.cpu_count() or 1)  # in case the parent process cannot kill it
    for limit, value in (
        (resource.RLIMIT_AS, memory + 2 * size),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_NOFILE, 3),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(limit, (value, value))


def _decode_frames(data: bytes, count: int, seconds: float = math.inf) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield facts about each sampled frame, and its JPEG file."""
    with _open_container(data) as container:
        stream = _stream(container)
        packets = list(_packets(container, stream))
    times, runs, total = _plan(packets, count)
    size = stream.codec_context.width, stream.codec_context.height
    work = sum(stop - start for start, stop in runs) * size[0] * size[1]
    if work > MAX_DECODED_PIXELS:
        part = "a half" if work < 2 * MAX_DECODED_PIXELS else f"a part of {MAX_DECODED_PIXELS / work:.1%}"
        raise InvalidImage(
            f"The video has {total:,} frames of {size[0]:,} x {size[1]:,} pixels, and reading them would take too "
            f"long; cut out {part} of it, or make it smaller."
        )
    length = float((times[-1] - times[0]) * (stream.time_base or 0)) if times else 0.0
    if length > seconds:
        raise InvalidImage(
            f"The video plays for {length:.0f} s and the limit here is {seconds:.0f} s; cut out a part of it."
        )
    following = dict(zip(times, [*times[1:], None], strict=True))
    with _open_container(data) as container:
        stream = _stream(container)
        time_base = float(stream.time_base or 0)
        turn, turn_known = None, False
        for frame in _decode_packets(container, stream, runs):
            if frame.pts not in following:
                continue
            if frame.is_corrupt:
                raise InvalidImage(DAMAGED)
            if (frame.width, frame.height) != size:
                raise InvalidImage("The frames of this video differ in size; save it anew or choose another one.")
            after = following.pop(frame.pts)
            lasts = after - frame.pts if after is not None else frame.duration or 0
            if not turn_known:
                turn, turn_known = _turn(frame), True
            picture = _frame_picture(frame, stream.sample_aspect_ratio)
            content = encode_image(picture if turn is None else picture.transpose(turn), "JPEG", quality=_JPEG_QUALITY)
            message = {"bytes": len(content), "duration": round(lasts * time_base * 1000), "total": total}
            yield message, content


def _open_container(data: bytes) -> "av.container.InputContainer":
    """Open a file in memory with its own demuxer, which may not open any other file."""
    import av  # noqa: PLC0415 # takes half a second, and only the decoding process needs it

    rights = {"protocol_whitelist": "none", "codec_whitelist": ",".join(_DECODERS), "enable_drefs": "0"}
    return av.open(
        io.BytesIO(data),
        "r",
        format=demuxer(data),
        options={"max_pixels": str(MAX_PIXELS), "threads": "1"},
        container_options=rights,
    )


def _stream(container: "av.container.InputContainer") -> "av.VideoStream":
    """Return the video stream, ready for decoding; no pixels are decoded yet."""
    from av.stream import Disposition  # noqa: PLC0415 # as above

    streams = [one for one in container.streams.video if not one.disposition & Disposition.attached_pic]
    if not streams:
        raise InvalidImage("There is no video in this file; choose another one.")
    stream = streams[0]
    context = stream.codec_context
    if context is None:  # FFmpeg has no decoder for it, contrary to the type hints
        raise InvalidImage(DAMAGED)
    width, height = context.width, context.height
    if width * height > MAX_PIXELS:
        raise InvalidImage(
            f"The video is {width:,} x {height:,} pixels and the limit is {MAX_PIXELS / 1e6:.0f} megapixels; "
            "make it smaller."
        )
    if context.name not in _DECODERS:
        raise InvalidImage(f"The video is coded as {context.name}, which is not read here; save it as MP4 (H.264).")
    if not width or not height:
        raise InvalidImage(DAMAGED)
    context.options = {"max_pixels": str(MAX_PIXELS)}  # the coded size may differ from that in the container
    context.thread_type = "AUTO"
    context.thread_count = min(os.cpu_count() or 1, 4)
    return stream


def _packets(container: "av.container.InputContainer", stream: "av.VideoStream") -> Iterator[_Packet]:
    """Yield the coded frames without decoding."""
    for number, packet in enumerate(container.demux(stream)):
        if number > MAX_PACKETS:
            raise InvalidImage(f"The video has more than {MAX_PACKETS:,} frames; cut out a part of it.")
        if packet.is_corrupt:
            raise InvalidImage(DAMAGED)
        if packet.size:
            visible = packet.pts is not None and not packet.is_discard
            yield _Packet(packet.pts or 0, packet.is_keyframe, visible)


def _plan(packets: Sequence[_Packet], count: int) -> tuple[list[int], list[tuple[int, int]], int]:
    """Sample frames, and find the packets that are needed to decode them.

    Returns:
        Times of the frames, ascending; ranges (start, stop) of packets to decode; total number of frames.

    >>> every = [_Packet(time, time % 4 == 0, True) for time in range(12)]
    >>> _plan(every, 3)
    ([0, 6, 11], [(0, 1), (4, 7), (8, 12)], 12)
    """
    keys = [i for i, packet in enumerate(packets) if packet.key] or [0]
    # Frames before the first key frame, in the file or in presentation order, cannot be decoded.
    places = {
        p.time: i for i, p in enumerate(packets) if p.displayed and i >= keys[0] and p.time >= packets[keys[0]].time
    }
    times = evenly(sorted(places), count)
    runs: list[tuple[int, int]] = []
    for time in times:
        last = places[time]
        key = bisect_right(keys, last) - 1
        if key and time < packets[keys[key]].time:  # a leading frame also depends on the previous group
            key -= 1
        if runs and keys[key] <= runs[-1][1]:
            runs[-1] = runs[-1][0], max(runs[-1][1], last + 1)
        else:
            runs.append((keys[key], last + 1))
    return times, runs, len(places)


def _decode_packets(
    container: "av.container.InputContainer", stream: "av.VideoStream", runs: Sequence[tuple[int, int]]
) -> Iterator["av.VideoFrame"]:
    """Decode some ranges of packets."""
    context, coming = stream.codec_context, iter(runs)
    start, stop = next(coming, (0, 0))
    number = 0
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if start <= number < stop:
            yield from context.decode(packet)
        number += 1
        if number == stop:
            yield from context.decode(None)
            context.flush_buffers()
            start, stop = next(coming, (number, number))


def _turn(frame: "av.VideoFrame") -> Image.Transpose | None:
    """Return the transform for an upright frame.

    Reading side data delays freeing the frame, so call this once per video.
    """
    matrix: Any = frame.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return None
    numbers = memoryview(bytes(matrix)).cast("i")
    a, b, c, d = ((numbers[i] > 0) - (numbers[i] < 0) for i in (0, 1, 3, 4))
    return _UPRIGHT.get((a, b, c, d))


def _frame_picture(frame: "av.VideoFrame", aspect: Fraction | None) -> Image.Image:
    """Return the frame as stored, resized to at most `FRAME_SIDE` and square pixels.

    Args:
        aspect: width of a pixel / its height.
    """
    width, height = float(frame.width), float(frame.height)
    if aspect and Fraction(1, 4) <= aspect <= 4:
        width *= float(aspect)
    scale = min(1.0, FRAME_SIDE / max(width, height))
    return frame.to_image(
        width=max(1, round(width * scale)),
        height=max(1, round(height * scale)),
        interpolation="AREA" if scale < 1 else "BICUBIC",
        # Default colour space if the file states none: BT.601, and BT.709 above standard definition.
        src_colorspace="itu709" if frame.colorspace == 2 and frame.height > 576 else None,
    )


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
