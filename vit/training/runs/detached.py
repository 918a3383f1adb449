"""Start processes that outlive their parent and hold a lock on their folder."""

import os
import subprocess
import sys
from pathlib import Path

from vit.errors import InvalidRun
from vit.files import acquire_lock, wait_for_lock
from vit.paths import environment_with_package
from vit.training.loop.run_folder import forget_attempt


def start_detached(module: str, folder: Path, alive: str) -> None:
    """Start `python -m MODULE FOLDER LOCK` in a new session; its output goes to the folder's log.txt.

    The folder's lock is acquired before the process starts and inherited by it, so the folder is never unlocked in
    between. The module forks immediately and continues in the child, so it is reparented away from this process.

    Args:
        alive: error message if the folder is locked already.

    Raises:
        InvalidRun: the folder is locked: a process works on it.
    """
    lock = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not acquire_lock(lock):
            raise InvalidRun(alive)
        forget_attempt(folder)
        wait_for_lock(lock, shared=True)
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, str(folder), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_with_package(),
                pass_fds=[lock],
                start_new_session=True,  # Ctrl-C in the server's terminal must not reach it
            )
        process.wait()  # returns immediately: the module forks and its parent exits
    finally:
        os.close(lock)
