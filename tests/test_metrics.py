"""A run's figures survive whatever happens to the process that writes them."""

from pathlib import Path

import pytest

from vit.metrics import MetricsWriter, read_metrics


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *records: dict[str, object]) -> None:
    writer = MetricsWriter(path)
    for record in records:
        writer.write(**record)
    writer.close()


def test_what_is_written_is_read_back(path: Path) -> None:
    records = [{"kind": "step", "step": 1, "loss": 2.5}, {"kind": "step", "step": 2, "loss": 1.5}]
    write(path, *records)
    assert read_metrics(path) == records


def test_a_file_that_is_not_there_yet_has_no_records(path: Path) -> None:
    assert read_metrics(path) == []


def test_torn_and_foreign_lines_are_left_out(path: Path) -> None:
    write(path, {"kind": "step", "step": 1})
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "st\n12\n[]\n\xff\xfe\n{"kind": [], "step": 1}\n{"step": 3}\n')
    write(path, {"kind": "step", "step": 2})
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_a_writer_starts_a_line_of_its_own_after_a_torn_one(path: Path) -> None:
    path.write_bytes(b'{"kind": "step", "step": 1}\n{"kind": "st')
    write(path, {"kind": "step", "step": 2})
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_a_writer_adds_no_empty_line_to_a_whole_file(path: Path) -> None:
    write(path, {"kind": "step", "step": 1})
    write(path, {"kind": "step", "step": 2})
    assert path.read_bytes().count(b"\n") == 2


def test_the_latest_attempt_at_a_step_counts(path: Path) -> None:
    write(path, {"kind": "step", "step": 1, "attempt": 0}, {"kind": "step", "step": 2, "attempt": 0})
    write(path, {"kind": "step", "step": 2, "attempt": 1})
    assert [(record["step"], record["attempt"]) for record in read_metrics(path)] == [(1, 0), (2, 1)]


def test_a_step_and_an_epoch_at_the_same_step_are_both_kept(path: Path) -> None:
    write(path, {"kind": "step", "step": 4}, {"kind": "epoch", "step": 4})
    assert [record["kind"] for record in read_metrics(path)] == ["step", "epoch"]
