"""Jobs of the server: one per key, with progress, errors and a stop."""

import threading
from collections.abc import Callable

import pytest

from pages.server import background


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without jobs."""
    monkeypatch.setattr(background, "_jobs", {})


def until_stopped(tick: Callable[[float], None]) -> None:
    while True:
        tick(0.25)


def test_one_job_per_key_is_started_and_its_result_is_kept() -> None:
    calls: list[int] = []
    jobs = [background.start("key", lambda tick: calls.append(1) or len(calls)) for _ in range(3)]
    assert [job.result() for job in jobs] == [1, 1, 1] and calls == [1]
    found = background.find("key")
    assert found is jobs[0] and found.done and background.find("other") is None


def test_progress_is_visible_and_waiting_is_limited() -> None:
    reached, proceed = threading.Event(), threading.Event()

    def work(tick: Callable[[float], None]) -> str:
        tick(0.5)
        reached.set()
        proceed.wait()
        tick(7.0)
        return "result"

    job = background.start("key", work)
    reached.wait()
    assert not job.wait(0.01)
    assert job.share == 0.5 and not job.done
    proceed.set()
    assert job.result() == "result" and job.share == 1.0


def test_error_reaches_everybody_who_waits() -> None:
    def work(tick: Callable[[float], None]) -> None:
        raise KeyError("reason")

    for _ in range(2):
        with pytest.raises(KeyError, match="reason"):
            background.start("key", work).result()


def test_forgotten_job_is_stopped_and_started_again() -> None:
    job = background.start("key", until_stopped)
    background.forget("key")
    with pytest.raises(background.Stopped):
        job.result()
    assert background.start("key", lambda tick: "again").result() == "again"


def test_old_results_are_dropped_but_no_unfinished_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "KEPT", 2)
    running = background.start("running", until_stopped)
    for number in range(5):
        background.start(number, lambda tick: None).result()
    assert background.find("running") is running
    assert [background.find(number) is not None for number in range(5)] == [False, False, True, True, True]
    background.forget("running")
