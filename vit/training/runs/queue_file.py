"""The device queue: waiting runs and held devices, in one file that changes under a lock."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

from vit.files import wait_for_lock
from vit.training.loop.run_folder import RUN_ID, read_json, write_errors, write_json


class Queue(TypedDict):
    """Waiting runs, in order, and the run that holds each device."""

    waiting: list[str]
    held: dict[str, str]


@contextmanager
def launch_lock(root: Path) -> Iterator[None]:
    """Serialise launches and resumes, so that a form sent twice starts one run."""
    lock = _open_lock(root, "launch")
    try:
        wait_for_lock(lock)
        yield
    finally:
        os.close(lock)


@contextmanager
def open_queue(root: Path) -> Iterator[Queue]:
    """Lock the queue and yield it; changes are written back."""
    lock = _open_lock(root, "lock")
    try:
        wait_for_lock(lock)
        line = read_queue(root)
        before = json.dumps(line)
        yield line
        if json.dumps(line) != before:
            with write_errors(root):
                write_json(root / ".queue" / "queue.json", dict(line))
    finally:
        os.close(lock)


def _open_lock(root: Path, name: str) -> int:
    with write_errors(root):
        (root / ".queue").mkdir(parents=True, exist_ok=True)
        return os.open(root / ".queue" / name, os.O_RDWR | os.O_CREAT, 0o644)


def read_queue(root: Path) -> Queue:
    """Return the queue, without entries that no run can have written."""
    line = read_json(root / ".queue" / "queue.json")
    waiting, held = line.get("waiting"), line.get("held")
    return {
        "waiting": [name for name in waiting if _is_id(name)] if isinstance(waiting, list) else [],
        "held": {name: run for name, run in held.items() if _is_id(run)} if isinstance(held, dict) else {},
    }


def _is_id(value: object) -> bool:
    return isinstance(value, str) and RUN_ID.fullmatch(value) is not None
