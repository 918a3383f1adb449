"""Background polling of clusters: pending questions are combined, and an error of one run affects no other."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from fake_cluster import Fake, set_up
from short_runs import until

from vit.training.engines import factory, watch
from vit.training.engines.clusters import Cluster
from vit.training.engines.contract import Handle, JobStatus, Unreachable, query_each
from vit.training.engines.slurm import Slurm

MANY = 1000


def handles(folder: Path, count: int) -> list[Handle]:
    return [Handle(folder / f"run-{number}", "lab", f"run-{number}.1", 0.0) for number in range(count)]


class AllAtOnce(Fake):
    """A cluster that answers once released, and records the number of runs per question."""

    gate = threading.Event()
    asked: list[int]

    def __init__(self, cluster: Cluster):
        super().__init__(cluster)
        self.asked = []

    def statuses(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, JobStatus | Exception]]:
        self.gate.wait()
        self.asked.append(len(handles))
        return query_each(lambda: self.status, handles)

    def status(self, handle: Handle) -> JobStatus:
        if handle.job == "run-1.1":
            raise Unreachable("Its storage does not answer.")
        if handle.job == "run-2.1":
            raise ValueError("an answer that nobody foresaw")
        return JobStatus("running", nodes=(handle.job,))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AllAtOnce:
    set_up(tmp_path, monkeypatch)
    monkeypatch.setitem(factory.KINDS, "fake", AllAtOnce)
    monkeypatch.setattr(watch, "_answers", {})
    engine = factory.cluster_engine("lab")
    assert isinstance(engine, AllAtOnce)
    engine.gate.clear()
    return engine


def test_thousand_runs_take_a_few_questions(lab: AllAtOnce, tmp_path: Path) -> None:
    runs = handles(tmp_path, MANY)
    assert [watch.status(run) for run in runs] == [watch.Answer()] * MANY  # the call does not block
    lab.gate.set()
    until(lambda: sum(lab.asked) >= MANY, "a question about each")
    assert len(lab.asked) <= 4  # the first perhaps alone, then 500 at most
    answers = [watch.status(run, patience=5) for run in runs]
    assert [status.nodes for status, _ in answers if status] == [(run.job,) for run in [runs[0], *runs[3:]]]
    assert answers[1] == (None, "Its storage does not answer.")
    assert answers[2][0] is None and "cannot be parsed" in answers[2][1]


def test_cluster_without_an_answer_reports_it_for_each_run(lab: AllAtOnce, tmp_path: Path) -> None:
    def unreachable() -> Callable[[Handle], JobStatus]:
        raise Unreachable("lab does not answer.")

    answers = dict(query_each(unreachable, handles(tmp_path, 3)))
    assert [str(error) for error in answers.values()] == ["lab does not answer."] * 3


SQUEUE = """#!/bin/bash
echo "$@" >> {asked}
cat <<'END'
run-0.1|7|RUNNING|None|2026-11-24T10:00:00|n[1-2]
run-1.1|8|PENDING|Priority|2026-11-24T12:00:00|
run-2.1|9|RUNNING|None|2026-11-24T10:00:00|n3,n5
run-3.1|10|NODE_FAIL|None|2026-11-24T10:00:00|
END
"""


def test_squeue_is_called_once_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "squeue").write_text(SQUEUE.format(asked=tmp_path / "asked"))
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    slurm = Slurm(Cluster(name="lab", kind="slurm", runs=tmp_path))
    statuses = [status for _, status in slurm.statuses(handles(tmp_path, 5))]
    assert [status.state for status in statuses if isinstance(status, JobStatus)] == [
        "running",
        "waiting",
        "running",
        "gone",
        "gone",
    ]
    running, waiting, apart, failed, _ = statuses
    assert isinstance(running, JobStatus) and running.nodes == ("n1", "n2")
    assert isinstance(waiting, JobStatus) and waiting.starts and waiting.reason == "Other jobs are before it."
    assert isinstance(apart, JobStatus) and apart.nodes == ("n3", "n5")
    assert isinstance(failed, JobStatus) and failed.reason == "A machine of it failed."
    (question,) = (tmp_path / "asked").read_text().splitlines()
    assert "--name=run-0.1,run-1.1,run-2.1,run-3.1,run-4.1" in question
