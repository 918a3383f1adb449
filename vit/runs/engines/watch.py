"""What every cluster said last, asked for in the background: a page never waits for a cluster."""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from vit.errors import UserError
from vit.runs.engines.contract import Capacity, Handle, Look, is_new, mark_over
from vit.runs.engines.places import cluster_engine

FRESH = 2.0  # [s] for which an answer is not asked for again
STALE = 20.0  # [s] after which an answer says nothing any more

_log = logging.getLogger(__name__)


class Answer(NamedTuple):
    """What a cluster said.

    Attributes:
        value: None while nobody has answered, or where nobody answers.
        problem: why nobody answers, in words.
    """

    value: Any = None
    problem: str = ""


_Key = tuple[str, str]  # a place, and a job's name there or what is asked of all of it
_Question = Callable[[], object]
_lock = threading.Condition()
_answers: dict[_Key, tuple[Answer, float]] = {}  # with the moment of each
_asked: set[_Key] = set()
_questions: dict[str, SimpleQueue[tuple[_Key, _Question]]] = {}


def look(handle: Handle, patience: float = 0.0) -> tuple[Look | None, str]:
    """What the engine of a cluster said last of a run, or why it says nothing.

    Args:
        patience: how long to wait for a first answer, or a newer one [s].
    """

    def ask() -> Look:
        said = cluster_engine(handle.place).look(handle)
        if said.word == "gone" and not is_new(handle):
            with suppress(OSError):  # another user's folder, or one that was deleted
                mark_over(handle)
        return said

    return _latest((handle.place, handle.job), ask, patience)


def capacity(place: str, patience: float = 0.0) -> tuple[Capacity | None, str]:
    """What a cluster said last of its machines, or why it says nothing.

    Args:
        patience: how long to wait for a first answer, or a newer one [s].
    """
    return _latest((place, "capacity"), lambda: cluster_engine(place).capacity(), patience)


def forget() -> None:
    """Ask anew, as something was done; what is known stays until there is an answer."""
    with _lock:
        for key, (answer, at) in list(_answers.items()):
            _answers[key] = (answer, min(at, time.monotonic() - FRESH))


def _latest(key: _Key, question: _Question, patience: float) -> Answer:
    """The last answer that still says something; asks again where it is some seconds old."""
    deadline = time.monotonic() + patience
    with _lock:
        answer, at = _answers.get(key, (Answer(), -STALE))
        age = time.monotonic() - at
        if age < FRESH:
            return answer
        if age > STALE:
            answer = Answer()
        if key not in _asked:
            _asked.add(key)
            _queue(key[0]).put((key, question))
        while patience and key in _asked and time.monotonic() < deadline:
            _lock.wait(deadline - time.monotonic())
        newer, at = _answers.get(key, (answer, -STALE))
        return newer if time.monotonic() - at < STALE else answer


def _queue(place: str) -> "SimpleQueue[tuple[_Key, _Question]]":
    """Questions to one place, answered one after the other by a thread of its own."""
    if place not in _questions:
        _questions[place] = SimpleQueue()
        threading.Thread(target=_ask, args=(_questions[place],), daemon=True, name=f"asks {place}").start()
    return _questions[place]


def _ask(questions: "SimpleQueue[tuple[_Key, _Question]]") -> None:
    while True:
        key, question = questions.get()
        try:
            answer = Answer(question())
        except UserError as error:
            answer = Answer(None, str(error))
        except Exception:
            _log.exception("%s was asked about %s", *key)
            answer = Answer(None, f"What {key[0]} answers cannot be understood. The log holds the traceback.")
        with _lock:
            now = time.monotonic()
            for old in [other for other, (_, at) in _answers.items() if now - at > STALE]:
                del _answers[old]
            _answers[key] = (answer, now)
            _asked.discard(key)
            _lock.notify_all()
