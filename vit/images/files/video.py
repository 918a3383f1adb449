"""Decode short videos in a separate process, `vit.images.files.video_decoder`, and cache their frames.

`vit.images.mp4` writes videos.
"""

import contextlib
import hashlib
import json
import math
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from vit.errors import InvalidImage
from vit.images.files.video_decoder import DAMAGED, PATIENCE_SECONDS, demuxer
from vit.paths import environment_with_package

CONCURRENT_FILES = 2  # files decoded at once for all visitors together; also bounds the memory
POLL_SECONDS = 0.5  # [s] between calls of `waiting`
MEMORY_BYTES = 2_000_000_000  # [bytes] for the decoding process, in addition to the file
REMEMBERED_BYTES = 200_000_000  # [bytes] of cached frames for all files together


class _Bounds(NamedTuple):
    """Limits for this process; see `restrict`."""

    seconds: float = math.inf
    memory: int = MEMORY_BYTES
    files: int = CONCURRENT_FILES


_bounds = _Bounds()


def restrict(seconds: float, memory: int, files: int) -> None:
    """Set limits below the defaults for this process.

    Args:
        seconds: maximum duration of a video [s].
        memory: for the decoding process, in addition to the file [bytes].
        files: number of files decoded at once.
    """
    global _bounds
    _bounds = _Bounds(seconds, memory, files)


class Clip(NamedTuple):
    """Sampled frames of a video.

    Attributes:
        frames: JPEG files, upright, sampled evenly; the longer side is at most
            `vit.images.files.video_decoder.FRAME_SIDE`.
        durations: time until the next sampled frame [ms]; 0 if the file does not state it.
        total: number of frames in the file.
    """

    frames: tuple[bytes, ...]
    durations: tuple[int, ...]
    total: int


def is_video(data: bytes) -> bool:
    """Whether a file begins like a supported video: MP4, MOV, WebM or Matroska.

    >>> is_video(bytes(4) + b"ftypisom"), is_video(b"#EXTM3U")
    (True, False)
    """
    return demuxer(data) is not None


def read_video(
    data: bytes,
    count: int,
    progress: Callable[[float], object] = lambda share: None,
    waiting: Callable[[], object] = lambda: None,
) -> Clip:
    """Decode evenly sampled frames of a video, including the first and the last; the result is cached.

    Rotation and pixel aspect ratio of the file are applied. HDR colours are left as stored.

    Args:
        data: bytes of a file for which `is_video` is true.
        count: maximum number of frames.
        progress: called with the share done, 0 to 1; any exception aborts decoding.
        waiting: called regularly while other videos, or this one for another caller, are decoded first; any exception
            aborts the call.

    Raises:
        InvalidImage: the file contains no video, is damaged, or exceeds the decoder's limits.
    """
    key = hashlib.sha256(data).digest(), count
    if (outcome := _cached_or_claim(key, waiting)) is None:
        try:
            try:
                outcome = _read_frames(data, count, progress)
            except InvalidImage as error:
                outcome = str(error)  # cached, too, as a page calls this several times
            with _changed:
                _cache[key] = outcome
                while len(_cache) > 1 and sum(map(_cached_bytes, _cache.values())) > REMEMBERED_BYTES:
                    _cache.popitem(last=False)
        finally:
            with _changed:
                _in_progress.discard(key)
                _changed.notify_all()
    if isinstance(outcome, str):
        raise InvalidImage(outcome)
    return outcome


_Key = tuple[bytes, int]
_changed = threading.Condition()
_cache: OrderedDict[_Key, Clip | str] = OrderedDict()
_in_progress: set[_Key] = set()


def _cached_or_claim(key: _Key, waiting: Callable[[], object]) -> Clip | str | None:
    """Return the cached result; None if the caller must decode the video, for which it is then registered."""
    while True:
        with _changed:
            if key in _cache:
                _cache.move_to_end(key)
                return _cache[key]
            if key not in _in_progress and len(_in_progress) < _bounds.files:
                _in_progress.add(key)
                return None
            if _changed.wait(POLL_SECONDS):
                continue
        waiting()


def _cached_bytes(outcome: Clip | str) -> int:
    """Approximate memory of a cached result [bytes]; errors count, too, to bound their number."""
    return 10_000 if isinstance(outcome, str) else sum(map(len, outcome.frames))


def forget(data: bytes) -> None:
    """Remove a video from the cache."""
    digest = hashlib.sha256(data).digest()
    with _changed:
        for key in [one for one in _cache if one[0] == digest]:
            del _cache[key]


def _read_frames(data: bytes, count: int, progress: Callable[[float], object]) -> Clip:
    """Decode the frames in another process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vit.images.files.video_decoder", str(count), str(_bounds.seconds), str(_bounds.memory)],
        env=environment_with_package(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin and process.stdout
    late = threading.Timer(PATIENCE_SECONDS, process.kill)
    late.start()
    frames, durations, total = [], [], 0
    try:
        with contextlib.suppress(OSError), process.stdin as stdin:  # if it dies, its status below tells why
            stdin.write(data)
        for line in process.stdout:
            if not line.endswith(b"\n"):  # the process was killed while writing it
                break
            message = json.loads(line)
            if "problem" in message:
                raise InvalidImage(message["problem"])
            frames.append(process.stdout.read(message["bytes"]))
            durations.append(message["duration"])
            total = message["total"]
            progress(min(len(frames) / min(count, total), 1.0))
        status = process.wait()
        if frames and not status:
            return Clip(tuple(frames), tuple(durations), total)
        if not late.is_alive():
            raise InvalidImage(
                f"Reading this video takes more than {PATIENCE_SECONDS} s here; cut out a part of it, "
                "or make it smaller."
            )
        if status == 1:
            raise RuntimeError("The process that reads videos failed; the log says why.")
        raise InvalidImage(DAMAGED)
    finally:
        late.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
