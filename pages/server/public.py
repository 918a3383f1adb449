"""Limits of a public server, where strangers can look but change nothing, and uploads are private to a visit.

The environment variable VIT_PUBLIC=1 makes a server public; see docs/host.md. Nobody may train on it, whatever login is
set up (`pages/server/access.py`), and uploads are never written to disk.
"""

import os

from vit.images.files import video

MB = 1 << 20
MAX_FILE_MB = 10  # size of a picture or a video [MB]
MAX_SESSION_MB = 30  # uploads of one visitor [MB]
UPLOADS = 300  # uploads of all visitors [MB]; visits store as much again
RESULTS = 300_000_000  # cached results [bytes]
MAX_PASS_BYTES = 1_000_000_000  # memory of all simultaneous passes [bytes]; a larger pass runs alone
AT_A_TIME = 2  # simultaneous passes; each uses all processors
TOKENS = 1_025  # tokens of an input; larger ones keep a processor busy for long
CHECKPOINT = 150  # size of offered pretrained checkpoints [MB]
MASK_SECONDS = 60  # expected duration of the masks of a picture and class [s]
MAX_VIDEO_SECONDS = 30  # duration of a video [s]
FILM_MEMORY = 800_000_000  # memory of the process that decodes videos, one at a time [bytes]
MAX_OPEN_PAGES = 100  # open pages


def is_public() -> bool:
    """Whether this server is public."""
    return os.environ.get("VIT_PUBLIC", "") not in ("", "0")


def restrict() -> None:
    """Limit duration and memory of video decoding in this process. Called at server start."""
    if is_public():
        video.restrict(seconds=MAX_VIDEO_SECONDS, memory=FILM_MEMORY, files=1)
