"""A public place, where many strangers look: they change nothing, what they bring stays with their visit, and what all
of them together may take is bounded.

The environment variable VIT_PUBLIC, set to 1, makes a server one; see docs/host.md. Nobody may train there then,
whatever login is set up (`pages/server/access.py`), and nothing that visitors bring is written to the disk.
"""

import os

from vit.images import video

MB = 1 << 20
FILE = 10  # [MB] of a picture or a video
SESSION = 30  # [MB] of what one visitor has uploaded
UPLOADS = 300  # [MB] of all visitors together; as much again stays with their visits
RESULTS = 300_000_000  # [bytes] that are remembered
PASSES = 1_000_000_000  # [bytes] for all passes that compute at a time; a larger one goes alone
AT_A_TIME = 2  # passes; each uses all processors
TOKENS = 1_025  # of an input; a larger one takes a processor for long
CHECKPOINT = 150  # [MB] of one of the shelf that is offered
FILM = 30  # [s] that a video may play
FILM_MEMORY = 800_000_000  # [bytes] for the process that decodes it, one at a time
VISITORS = 100  # open pages


def is_public() -> bool:
    """Whether this server is one."""
    return os.environ.get("VIT_PUBLIC", "") not in ("", "0")


def restrict() -> None:
    """Bound what reading videos takes, for the whole process; called where the server starts."""
    if is_public():
        video.restrict(seconds=FILM, memory=FILM_MEMORY, files=1)
