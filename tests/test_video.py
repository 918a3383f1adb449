"""Uploaded videos are read safely and as players show them."""

import contextlib
import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from drawn import noise
from patience import PATIENCE
from PIL import Image

from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidImage
from vit.exports.code_snippet import snippet
from vit.images.encode import encode_image
from vit.images.files import video, video_decoder
from vit.images.files.decode import count_frames, decode_frames, decode_image
from vit.images.files.video import is_video, read_video
from vit.images.files.video_decoder import _Packet, _plan, evenly
from vit.images.mp4 import mp4
from vit.view.explanation import explain

pytestmark = pytest.mark.slow


@pytest.mark.exhaustive
def test_starting_the_app_does_not_import_pyav() -> None:
    modules = (
        "sys, vit, vit.view.explanation, vit.images.files.decode, vit.exports.animation, pages.looking.panels.downloads"
    )
    program = f"import {modules}; sys.exit('av' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --- Reading --------------------------------------------------------------------------------------------------

CODINGS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "mp4": ("mp4", "libx264", "yuv420p", {}),
    "open groups": ("mov", "libx264", "yuv420p", {"x264-params": "open-gop=1:keyint=6:min-keyint=6:bframes=3"}),
    "mov of a phone": ("mov", "libx265", "yuv420p10le", {"x265-params": "log-level=none"}),
    "webm, vp8": ("webm", "libvpx", "yuv420p", {"auto-alt-ref": "1", "lag-in-frames": "16"}),
    "webm, vp9": ("webm", "libvpx-vp9", "yuv420p", {}),
    "av1": ("mp4", "libsvtav1", "yuv420p", {}),
    "mkv": ("matroska", "libx264", "yuv420p", {}),
    "mpeg4": ("mp4", "mpeg4", "yuv420p", {"q": "2"}),
    "mjpeg": ("mov", "mjpeg", "yuvj420p", {}),
    "prores": ("mov", "prores_ks", "yuv422p10le", {}),
}
MP4 = CODINGS["mp4"]


def clip(
    count: int = 30,
    size: tuple[int, int] = (96, 64),
    coding: tuple[str, str, str, dict[str, str]] = MP4,
    prepare: Callable[[Any], None] = lambda stream: None,
) -> bytes:
    """Write frames of one grey each, 8 brighter than the one before, red in the upper left corner; 30 a second.

    This runs in a separate thread: as root, SVT-AV1 gives the calling thread a real-time priority, which every process
    started later would inherit.
    """
    with ThreadPoolExecutor(1) as alone:
        made = alone.submit(_clip, count, size, coding, prepare).result()
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    return made


def _clip(
    count: int,
    size: tuple[int, int],
    coding: tuple[str, str, str, dict[str, str]],
    prepare: Callable[[Any], None],
) -> bytes:
    kind, codec, pixels, options = coding
    out = io.BytesIO()
    with av.open(out, "w", format=kind) as container:
        stream = container.add_stream(codec, rate=30, options=options)
        assert isinstance(stream, av.VideoStream)
        (stream.width, stream.height), stream.pix_fmt = size, pixels
        prepare(stream)
        for number in range(count):
            picture = Image.new("RGB", size, (8 * number % 256,) * 3)
            picture.paste("red", (0, 0, size[0] // 3, size[1] // 3))
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))
    return out.getvalue()


def greys(data: bytes, count: int = 200) -> list[int]:
    """Return the grey level of each kept frame."""
    pictures = [decode_image(frame) for frame in read_video(data, count).frames]
    return [picture.getpixel((picture.width - 9, picture.height - 9))[1] for picture in pictures]  # type: ignore[index]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    video._cache.clear()


@pytest.mark.parametrize("coding", CODINGS)
def test_every_frame_is_read_in_order(coding: str) -> None:
    data = clip(coding=CODINGS[coding])
    assert is_video(data) and count_frames(data) == 30
    assert np.abs(np.array(greys(data)) - 8 * np.arange(30)).max() < 8
    assert sum(read_video(data, 200).durations) == pytest.approx(1000, abs=20)


@pytest.mark.parametrize("coding", ["mp4", "open groups", "webm, vp9"])
def test_frames_of_a_long_video_are_sampled_evenly(coding: str) -> None:
    data = clip(coding=CODINGS[coding])
    every = greys(data)
    for count in (2, 3, 7, 29):
        kept = read_video(data, count)
        assert kept.total == 30 and len(kept.frames) == count
        assert greys(data, count) == [every[place] for place in evenly(range(30), count)]
        assert sum(kept.durations) == pytest.approx(1000, abs=20)


def test_only_required_packets_are_decoded() -> None:
    packets = [_Packet(time, time % 10 == 0, True) for time in range(1000)]
    expected, runs, total = _plan(packets, 5)
    assert total == 1000 and expected[0] == 0 and expected[-1] == 999
    assert sum(stop - start for start, stop in runs) <= 5 * 10


def test_frames_that_depend_on_missing_ones_are_not_offered() -> None:
    packets = [_Packet(3, False, True), _Packet(4, True, True), _Packet(2, False, True), _Packet(5, False, True)]
    assert _plan(packets, 9) == ([4, 5], [(1, 4)], 2)


# Position of the red corner after players have rotated the frame; angles are counterclockwise.
TURNS: dict[str, tuple[Callable[[Any], None], tuple[int, int]]] = {
    "as it is": (lambda stream: None, (0, 0)),
    "90": (lambda stream: stream.set_display_rotation(90), (0, -1)),
    "180": (lambda stream: stream.set_display_rotation(180), (-1, -1)),
    "270": (lambda stream: stream.set_display_rotation(270), (-1, 0)),
}


@pytest.mark.parametrize("turn", TURNS)
def test_video_from_a_phone_is_upright(turn: str) -> None:
    prepare, (x, y) = TURNS[turn]
    picture = next(decode_frames(clip(3, prepare=prepare), [2])).picture
    assert picture.size == ((64, 96) if turn in ("90", "270") else (96, 64))
    red, green, _ = picture.getpixel((x * 9 % picture.width or 9, y * 9 % picture.height or 9))  # type: ignore[misc]
    assert red > 200 and green < 60


@pytest.mark.parametrize(
    "matrix", [(1, 0, 0, 1), *video_decoder._UPRIGHT], ids=lambda matrix: ",".join(map(str, matrix))
)
def test_every_display_matrix_moves_pixels_as_specified(matrix: tuple[int, int, int, int]) -> None:
    # A pixel (x, y) is shown at (a x + c y, b x + d y), shifted to start at 0.
    a, b, c, d = matrix
    stored = np.arange(6).reshape(2, 3)
    x, y = np.meshgrid(range(3), range(2))
    col, row = a * x + c * y, b * x + d * y
    shown = np.zeros((3, 2) if a == 0 else (2, 3), int)
    shown[row - row.min(), col - col.min()] = stored
    picture, turn = Image.fromarray(stored.astype(np.uint8)), video_decoder._UPRIGHT.get(matrix)
    assert np.array_equal(np.asarray(picture if turn is None else picture.transpose(turn)), shown)


def test_non_square_pixels_become_square() -> None:
    def prepare(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(3, 2)

    assert next(decode_frames(clip(2, prepare=prepare), [0])).picture.size == (144, 64)


@pytest.mark.parametrize("height", [480, 720])
def test_unspecified_colours_are_those_of_the_frame_size(height: int) -> None:
    out, space = io.BytesIO(), "itu709" if height > 576 else "itu601"
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 640, height, "yuv420p"
        frame = av.VideoFrame.from_image(Image.new("RGB", (640, height), (200, 30, 60)))
        frame = frame.reformat(format="yuv420p", dst_colorspace=space, dst_color_range="MPEG")
        frame.colorspace = 2  # unspecified
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    pixel = next(decode_frames(out.getvalue(), [0])).picture.getpixel((9, 9))
    assert np.abs(np.subtract(pixel, (200, 30, 60))).max() <= 5


def test_large_frames_are_stored_smaller() -> None:
    assert next(decode_frames(clip(2, (1920, 1080)), [0])).picture.size == (1280, 720)


def test_video_is_recognised_by_its_content() -> None:
    gif, avif = (encode_image(Image.new("RGB", (9, 9)), kind) for kind in ("GIF", "AVIF"))
    assert not is_video(gif) and not is_video(avif) and not is_video(b"")
    with pytest.raises(InvalidImage, match="This is a video"):
        decode_image(clip(1))  # datasets accept only pictures


def test_requested_frame_is_explained(saved: Path, tmp_path: Path) -> None:
    checkpoint, data = load_checkpoint(saved), clip(5)
    result = explain(checkpoint, data, frame=3)
    assert result.picture.getpixel((80, 50))[1] == pytest.approx(24, abs=3)
    (tmp_path / "clip.mp4").write_bytes(data)
    facts = {"method": "attention", "block": 0, "head": 0, "query": 0}
    program = snippet(result, checkpoint, facts, str(tmp_path / "clip.mp4"), frame=3, video=True)
    left: dict[str, Any] = {}
    exec(program.replace(f'"{checkpoint.name}"', f"{str(saved)!r}"), left)
    assert torch.equal(left["heatmap"], result.record.heatmap(result.record.weights(0, 0, 0)))


# --- Refusals -------------------------------------------------------------------------------------------------


def sound() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=8000)
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))  # type: ignore[attr-defined]
        container.mux(stream.encode(None))  # type: ignore[attr-defined]
    return out.getvalue()


def lying(width: int, height: int) -> bytes:
    """Write a video whose container states another size than the codec."""
    data = bytearray(clip(2))
    entry = data.index(b"avc1", data.index(b"stsd"))
    data[entry + 28 : entry + 32] = width.to_bytes(2, "big") + height.to_bytes(2, "big")
    return bytes(data)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "too large": (lambda: clip(1, (4096, 2304)), "4,096 x 2,304 pixels and the limit is 9 megapixels"),
    "sound alone": (sound, "no video"),
    "cut off": (lambda: mp4(noise(20, 320, 240), [50] * 20)[:-3000], "damaged"),
    "no index": (lambda: clip()[: clip().index(b"moov")], "damaged"),
    "a rare coding": (lambda: clip(2, coding=("mov", "qtrle", "rgb24", {})), "qtrle, which is not read here"),
    "an MP4 in name": (lambda: b"\0\0\0\x18ftypmp42" + bytes(5000), "damaged"),
    "a WebM in name": (lambda: b"\x1aE\xdf\xa3" + bytes(5000), "damaged"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unreadable_video_is_refused_in_one_sentence(kind: str) -> None:
    make, sentence = REFUSED[kind]
    with pytest.raises(InvalidImage, match=sentence) as told:
        count_frames(make())
    assert "\n" not in str(told.value)


def test_coded_size_counts_and_not_that_of_the_container(monkeypatch: pytest.MonkeyPatch) -> None:
    assert next(decode_frames(lying(4000, 4000), [0])).picture.height == 64
    monkeypatch.setattr(video_decoder, "MAX_PIXELS", 95 * 64)
    with pytest.raises((InvalidImage, av.FFmpegError)):
        list(video_decoder._decode_frames(lying(8, 8), 9))


def test_too_slow_a_video_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video_decoder, "MAX_DECODED_PIXELS", 10 * 96 * 64)
    monkeypatch.setattr(video_decoder, "_decode_packets", None)
    with pytest.raises(InvalidImage, match=r"30 frames of 96 x 64 pixels.*cut out a part of 33\.3%"):
        list(video_decoder._decode_frames(clip(), 30))
    monkeypatch.setattr(video_decoder, "MAX_PACKETS", 20)
    with pytest.raises(InvalidImage, match="more than 20 frames"):
        list(video_decoder._decode_frames(clip(), 30))


def test_video_that_exceeds_its_estimate_is_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "PATIENCE_SECONDS", 0.01)
    with pytest.raises(InvalidImage, match="takes more than"):
        read_video(clip(), 30)


@pytest.mark.exhaustive
def test_truncated_videos_are_one_sentence_or_frames() -> None:
    generator = np.random.default_rng(0)
    for whole in (clip(8), clip(8, coding=CODINGS["webm, vp8"])):
        for _ in range(15):
            data = bytearray(whole)
            for place in generator.integers(12, len(data), 4):
                data[place] = generator.integers(256)
            try:
                assert read_video(bytes(data), 9).frames
            except InvalidImage as error:
                assert "\n" not in str(error)


@contextmanager
def listening() -> Iterator[tuple[str, list[str]]]:
    """Run a web server; yield its requests."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            self.send_error(404)

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()


PLAYLISTS = {
    "hls": "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{place}/a.ts\n#EXT-X-ENDLIST\n",
    "concat": "ffconcat version 1.0\nfile '{place}/a.mp4'\n",
    "dash": '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
    'mediaPresentationDuration="PT9S"><Period><AdaptationSet mimeType="video/mp4"><Representation id="1" '
    'bandwidth="9"><BaseURL>{place}/</BaseURL><SegmentList duration="9"><SegmentURL media="a.mp4"/></SegmentList>'
    "</Representation></AdaptationSet></Period></MPD>",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
@pytest.mark.parametrize("disguise", [b"", b"\0\0\0\x18ftypmp42", b"\x1aE\xdf\xa3"])
def test_no_playlist_is_followed(kind: str, disguise: bytes) -> None:
    with listening() as (place, asked):
        with pytest.raises(InvalidImage):
            count_frames(disguise + PLAYLISTS[kind].format(place=place).encode())
        assert not asked


def test_ffmpeg_would_follow_a_playlist() -> None:
    with listening() as (place, asked):
        with contextlib.suppress(av.FFmpegError):
            av.open(io.BytesIO(PLAYLISTS["hls"].format(place=place).encode()), format="hls")
        assert asked


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
@pytest.mark.parametrize("act", ["open('/etc/hosts')", "socket.socket()", "bytes(5 * 10**9)"])
def test_decoding_process_has_dropped_its_privileges(act: str) -> None:
    program = (
        f"import socket; from vit.images.files import video_decoder; video_decoder._restrict(0, 2_000_000_000); {act}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "Too many open files" in ended.stderr or "MemoryError" in ended.stderr


# --- Cache ----------------------------------------------------------------------------------------------------


def test_video_is_decoded_once_with_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    data, reports = clip(10), []
    first = read_video(data, 5, reports.append)
    assert reports == [0.2, 0.4, 0.6, 0.8, 1.0]
    with pytest.raises(InvalidImage):
        read_video(data[:500], 5)
    monkeypatch.setattr(subprocess, "Popen", None)
    assert read_video(data, 5) is first
    with pytest.raises(InvalidImage):
        read_video(data[:500], 5)


def test_long_film_of_black_4k_frames_is_refused_at_once() -> None:
    """A film of 97 kB once blocked the only decoder for 35 s: the limit is on decoded pixels, not on the file size."""
    frames, size = 2400, (3840, 2160)
    assert frames * size[0] * size[1] > video_decoder.MAX_DECODED_PIXELS > 100 * 30 * 1920 * 1080


def test_number_of_concurrently_read_videos_is_limited_and_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "POLL_SECONDS", 0.01)
    films = [clip(count) for count in (5, 6, 7)]
    begun, go, waiting = threading.Semaphore(0), threading.Event(), threading.Event()

    def hold(share: float) -> None:
        begun.release()
        assert go.wait(PATIENCE)

    threads = [threading.Thread(target=read_video, args=(film, 4, hold)) for film in films[: video.CONCURRENT_FILES]]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert begun.acquire(timeout=PATIENCE)
    third = threading.Thread(target=read_video, args=(films[2], 4, lambda share: None, waiting.set))
    third.start()
    assert waiting.wait(PATIENCE)
    go.set()
    for thread in (*threads, third):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not video._in_progress


def test_concurrent_requests_read_a_video_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(video, "POLL_SECONDS", 0.01)
    film, result = clip(8), []
    begun, waiting = threading.Event(), threading.Event()

    def hold(share: float) -> None:
        begun.set()
        assert waiting.wait(PATIENCE)

    one = threading.Thread(target=lambda: result.append(read_video(film, 4, hold)))
    one.start()
    assert begun.wait(PATIENCE)
    other = threading.Thread(target=lambda: result.append(read_video(film, 4, hold, waiting.set)))
    other.start()
    for thread in (one, other):
        thread.join(PATIENCE)
    assert result[0] is result[1]


def test_cache_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = clip(3), clip(4)
    monkeypatch.setattr(video, "REMEMBERED_BYTES", 100)
    for data in (one, other):
        read_video(data, 9)
    assert len(video._cache) == 1


def test_leaving_visitor_cancels_the_decoding() -> None:
    class Gone(Exception):
        pass

    def leave(share: float) -> None:
        raise Gone

    data = clip(10)
    with pytest.raises(Gone):
        read_video(data, 9, leave)
    assert len(read_video(data, 9).frames) == 9
