"""Start the process of a dry run (`vit.training.loop.dry_run_process`), read its responses, and kill it in time."""

import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Generator
from typing import IO, Any

from vit.devices import visibility
from vit.errors import InvalidConfig
from vit.out_of_memory import describe_exit, kills, prefer_for_oom_kill
from vit.paths import environment_with_package
from vit.training.loop.config import TrainConfig

_TICK_SECONDS = 0.2  # [s] between two yields

# Computing features takes minutes: trials do not wait for it, and a second computation waits for the first.
_trial, _features = threading.BoundedSemaphore(1), threading.BoundedSemaphore(1)


def run_process(
    what: str, config: TrainConfig, device: str, limit: float, request: dict[str, Any]
) -> Generator[dict[str, Any] | None, None, None]:
    """Run a dry run in a separate process; yield what it prints, and None in between.

    Args:
        limit: time after which the process is killed [s].
        request: sent to it in addition to the settings.

    Raises:
        InvalidConfig: the process rejects the settings or runs out of memory, or another dry run is in progress.
    """
    slot = _features if what == "features" else _trial
    while not slot.acquire(timeout=_TICK_SECONDS):
        if slot is _trial:
            raise InvalidConfig("Another trial is under way on this server. Try again in a few seconds.")
        yield None
    try:
        with tempfile.TemporaryFile("w+") as log:
            yield from _read_process(what, config, device, limit, request, log)
    finally:
        slot.release()


def _read_process(
    what: str, config: TrainConfig, device: str, limit: float, request: dict[str, Any], log: IO[str]
) -> Generator[dict[str, Any] | None, None, None]:
    environment = environment_with_package() | {"PYTHONUNBUFFERED": "1"} | visibility([device])
    config = config.model_copy(update={"device": device.partition(":")[0]})
    until, kills_before = time.monotonic() + limit, kills()
    process = subprocess.Popen(
        [sys.executable, "-m", "vit.training.loop.dry_run_process", what],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    prefer_for_oom_kill(process.pid)
    assert process.stdin and process.stdout
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_forward_lines, args=(process.stdout, lines), daemon=True)
    try:
        with process.stdin as stdin:
            json.dump(request | {"config": config.model_dump()}, stdin)
        reader.start()
        while time.monotonic() < until:
            try:
                line = lines.get(timeout=_TICK_SECONDS)
            except queue.Empty:
                yield None
                continue
            if not line:
                break
            values = json.loads(line)
            if "error" in values:
                raise InvalidConfig(values["error"])
            yield values
        else:
            return  # the results so far must suffice
        if process.wait() == 0:
            return
        if who := describe_exit(process.returncode, kills_before):
            raise InvalidConfig(f"{who}. Set a smaller image_size or batch_size, or close other programs.")
        log.seek(0)
        raise RuntimeError(f"The trial ended with status {process.returncode}:\n{log.read()[-4000:]}")
    finally:
        process.kill()
        process.wait()
        if reader.ident is not None:
            reader.join()
        process.stdout.close()


def _forward_lines(source: IO[str], lines: "queue.SimpleQueue[str]") -> None:
    """Put each line into a queue, and an empty one at the end."""
    for line in source:
        lines.put(line)
    lines.put("")
