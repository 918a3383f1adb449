"""The process of a search: it outlives its server, is killed, resumes without repeating a trial, stops gracefully."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Command
from short_runs import TRAINS, temporary_runs_folder, tiny, until

from vit.training.engines import local
from vit.training.runs import registry
from vit.training.search import control
from vit.training.search.control import Search

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with temporary_runs_folder(tmp_path_factory.mktemp("searches") / "runs") as root:
        yield root
        for search in control.list_searches():
            for driver in local.lock_holders(search.folder):
                os.kill(driver, signal.SIGKILL)


def now(search: Search) -> Search:
    return control.find_search(search.id)


@pytest.mark.exhaustive
def test_search_stops_gracefully_is_killed_and_resumes_without_repeating_a_trial(command: Command) -> None:
    search = control.start(
        config=tiny(epochs=3, limit=160), space={"lr": "1e-4:1e-2:log"}, trials=3, at_once=2, min_epochs=2
    )
    until(lambda: any(run.status in TRAINS for run in now(search).trials().values()), "a trial")
    (driver,) = local.lock_holders(search.folder)
    os.kill(driver, signal.SIGKILL)
    assert until(lambda: not now(search).alive, "its end") and now(search).status == "interrupted"
    control.resume(search.id)
    assert command("search", "--stop", search.id).status == 0
    until(lambda: not now(search).alive, "its end")
    assert now(search).status == "stopped"
    assert not any(run.alive for run in registry.list_runs())
    result = command("search", "--resume", search.id)
    assert result.status == 0, result.err
    assert now(search).status == "finished"
    trials = now(search).trials()
    assert list(trials) == [0, 1, 2]
    assert len(registry.list_runs()) == 3
    assert {run.status for run in trials.values()} <= {"finished", "pruned"}
    assert [run.config["lr"] for run in trials.values()] == [drawn["lr"] for drawn in search.plan.draw()]
    assert all(f"{number}/3 " in result.out for number in (1, 2, 3)) and "Best: trial" in result.out
