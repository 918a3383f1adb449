"""Work in threads of the server. It continues when a visitor clicks elsewhere, reloads the page or closes the tab."""

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any

from pages.server import public

KEPT = 1000  # finished jobs whose outcome is remembered
UNWATCHED_SECONDS = 30.0  # time after which a public server stops work that no page waits for [s]


class Job:
    """Work that several sessions may wait for.

    Attributes:
        share: progress, 0 to 1.
        note: why it does not progress, "" if it does.
    """

    def __init__(self, work: Callable[[Callable[[float], None]], Any]):
        self.share, self.note = 0.0, ""
        self._done, self._stopped, self._watched = threading.Event(), False, time.monotonic()
        self._result: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    @property
    def done(self) -> bool:
        """Whether the work has ended."""
        return self._done.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the work; return whether it has ended.

        Args:
            seconds: longest time to wait; None for no limit.
        """
        self._watched = time.monotonic()
        return self._done.wait(seconds)

    def result(self) -> Any:
        """Wait for the work and return its result, or raise its exception; `Stopped` after `stop`."""
        self.wait()
        if self._error:
            raise self._error
        return self._result

    def stop(self) -> None:
        """Stop the work when it next reports its progress."""
        self._stopped = True

    def _run(self, work: Callable[[Callable[[float], None]], Any]) -> None:
        _here.job = self
        try:
            self._result = work(self._tick)
        except BaseException as error:  # `result` raises it in the thread that waits
            self._error = error
        finally:
            self._done.set()

    def _tick(self, share: float) -> None:
        self.share = min(share, 1.0)
        self.end_if_stopped()

    def end_if_stopped(self) -> None:
        """Raise `Stopped` in the job's thread after `stop`, and on a public server when no page waits for it."""
        unwatched = public.is_public() and time.monotonic() > self._watched + UNWATCHED_SECONDS
        if self._stopped or unwatched:
            raise Stopped


class Stopped(Exception):
    """The job was stopped."""


class Refused(Exception):
    """A job cannot be done, with a sentence for the page that waits for it."""


_here = threading.local()
_jobs: dict[Hashable, Job] = {}
_lock = threading.Lock()


def start(key: Hashable, work: Callable[[Callable[[float], None]], Any]) -> Job:
    """Return the job of a key; the first call starts it.

    Args:
        work: called with a callback that takes the progress, 0 to 1.
    """
    with _lock:
        if key not in _jobs:
            for finished in [key for key, job in _jobs.items() if job.done][:-KEPT]:
                del _jobs[finished]
            _jobs[key] = Job(work)
        return _jobs[key]


def current() -> Job | None:
    """Return the job that this thread computes; None in a thread of a page."""
    return getattr(_here, "job", None)


def find(key: Hashable) -> Job | None:
    """Return the job of a key; None before `start`."""
    return _jobs.get(key)


def forget(key: Hashable) -> None:
    """Stop the job of a key, so that the next `start` begins again."""
    with _lock:
        job = _jobs.pop(key, None)
    if job:
        job.stop()
