"""Processes that outlive whoever starts them, and count to a folder by its lock."""

import os
import subprocess
import sys
from pathlib import Path

from vit.errors import InvalidRun
from vit.files import acquire_lock, wait_for_lock
from vit.paths import environment_with_package
from vit.training.run_folder import forget_attempt


def start_detached(module: str, folder: Path, alive: str) -> None:
    """Start `python -m MODULE FOLDER LOCK`, in a session of its own; what it prints goes to the folder's log.txt.

    The folder's lock is held from before the process exists, so there is no moment of doubt. The module forks at once
    and goes on in its child, so that the process is nobody's child.

    Args:
        alive: what to say where a process counts to the folder already.

    Raises:
        InvalidRun: one does.
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
                start_new_session=True,  # the server's Ctrl-C is not the process's
            )
        process.wait()  # it forks and ends at once
    finally:
        os.close(lock)
