"""Work in threads of the server. It continues when a visitor clicks elsewhere, reloads the page or closes the tab."""

import threading
from collections.abc import Callable, Hashable
from typing import Any

KEPT = 1000  # finished jobs whose outcome is remembered


class Job:
    """Work that several sessions may wait for.

    Attributes:
        share: progress, 0 to 1.
    """

    def __init__(self, work: Callable[[Callable[[float], None]], Any]):
        self.share = 0.0
        self._done, self._stopped = threading.Event(), False
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
        try:
            self._result = work(self._tick)
        except BaseException as error:  # `result` raises it in the thread that waits
            self._error = error
        finally:
            self._done.set()

    def _tick(self, share: float) -> None:
        self.share = min(share, 1.0)
        if self._stopped:
            raise Stopped


class Stopped(Exception):
    """The job was stopped."""


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


def find(key: Hashable) -> Job | None:
    """Return the job of a key; None before `start`."""
    return _jobs.get(key)


def forget(key: Hashable) -> None:
    """Stop the job of a key, so that the next `start` begins again."""
    with _lock:
        job = _jobs.pop(key, None)
    if job:
        job.stop()
