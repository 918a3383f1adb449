"""Cache the latest response of every cluster, refreshed by background threads, so that pages never wait for one."""

import logging
import threading
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from vit.errors import UserError
from vit.training.engines.contract import Capacity, Engine, Handle, JobStatus, is_new, mark_ended
from vit.training.engines.factory import cluster_engine

FRESH_SECONDS = 2.0  # [s] for which a response is served from the cache without a new request
STALE_SECONDS = 20.0  # [s] after which a cached response is discarded
_HANDLES_PER_REQUEST = 500  # handles per request

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """A cluster's response.

    Attributes:
        value: None before the first response, or if the cluster does not respond.
        problem: why it does not respond, for the user.
    """

    value: Any = None
    problem: str = ""


_Key = tuple[str, str]  # name of an engine, and id of a job or "capacity"
_lock = threading.Condition()
_answers: dict[_Key, tuple[Answer, float]] = {}  # each with its `time.monotonic()`
_pending: set[_Key] = set()
_requests: dict[str, SimpleQueue[Handle | None]] = {}  # request queue of each engine; None requests its capacity


def status(handle: Handle, patience: float = 0.0) -> tuple[JobStatus | None, str]:
    """Return the latest status of a cluster's run, or why there is none.

    Args:
        patience: how long to wait for a fresh response [s].
    """
    return _latest_answer((handle.engine_name, handle.job), handle, patience)


def capacity(engine_name: str, patience: float = 0.0) -> tuple[Capacity | None, str]:
    """Return the latest capacity of a cluster, or why there is none.

    Args:
        patience: how long to wait for a fresh response [s].
    """
    return _latest_answer((engine_name, "capacity"), None, patience)


def forget() -> None:
    """Mark all responses as outdated, after a run was changed; they are served until new ones arrive."""
    with _lock:
        for key, (answer, at) in list(_answers.items()):
            _answers[key] = (answer, min(at, time.monotonic() - FRESH_SECONDS))


def _latest_answer(key: _Key, request: Handle | None, patience: float) -> Answer:
    """Return the cached response unless it is stale, and queue a request if it is not fresh."""
    deadline = time.monotonic() + patience
    with _lock:
        answer, at = _answers.get(key, (Answer(), -STALE_SECONDS))
        age = time.monotonic() - at
        if age < FRESH_SECONDS:
            return answer
        if age > STALE_SECONDS:
            answer = Answer()
        if key not in _pending:
            _pending.add(key)
            _request_queue(key[0]).put(request)
        while patience and key in _pending and time.monotonic() < deadline:
            _lock.wait(deadline - time.monotonic())
        newer, at = _answers.get(key, (answer, -STALE_SECONDS))
        return newer if time.monotonic() - at < STALE_SECONDS else answer


def _request_queue(engine_name: str) -> "SimpleQueue[Handle | None]":
    """Return the request queue of an engine; a thread per engine handles all queued requests together."""
    if engine_name not in _requests:
        _requests[engine_name] = SimpleQueue()
        threading.Thread(
            target=_serve_requests,
            args=(engine_name, _requests[engine_name]),
            daemon=True,
            name=f"watch {engine_name}",
        ).start()
    return _requests[engine_name]


def _serve_requests(engine_name: str, requests: "SimpleQueue[Handle | None]") -> None:
    while True:
        waiting = [requests.get()]
        with suppress(Empty):
            while len(waiting) < _HANDLES_PER_REQUEST:
                waiting.append(requests.get_nowait())
        with _lock:
            for old in [key for key, (_, at) in _answers.items() if time.monotonic() - at > STALE_SECONDS]:
                del _answers[old]
        try:
            engine = cluster_engine(engine_name)
        except UserError as error:
            for request in waiting:
                _store_answer((engine_name, request.job if request else "capacity"), error)
            continue
        if None in waiting:
            _store_answer((engine_name, "capacity"), _capacity_or_error(engine))
        for handle, answer in engine.statuses([request for request in waiting if request]):
            if isinstance(answer, JobStatus) and answer.state == "gone" and not is_new(handle):
                with suppress(OSError):  # the folder belongs to another user, or was deleted
                    mark_ended(handle)
            _store_answer((engine_name, handle.job), answer)


def _capacity_or_error(engine: Engine) -> Capacity | Exception:
    try:
        return engine.capacity()
    except Exception as error:
        return error


def _store_answer(key: _Key, result: JobStatus | Capacity | Exception) -> None:
    """Cache a response and wake the callers that wait for it."""
    if isinstance(result, UserError):
        answer = Answer(None, str(result))
    elif isinstance(result, Exception):
        _log.error("%s was asked about %s", *key, exc_info=result)
        answer = Answer(None, f"The response of {key[0]} cannot be parsed. See the log for the traceback.")
    else:
        answer = Answer(result)
    with _lock:
        _answers[key] = (answer, time.monotonic())
        _pending.discard(key)
        _lock.notify_all()
