"""A run's metrics survive whatever happens to the writing process."""

import os
from pathlib import Path
from typing import Any

import pytest

from vit.training.loop.metrics import (
    MetricsReader,
    MetricsWriter,
    best_epoch,
    evaluations,
    final_test,
    paired_difference,
    progress,
    read_metrics,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def write(path: Path, *records: dict[str, object]) -> None:
    writer = MetricsWriter(path)
    for record in records:
        writer.write(**record)
    writer.close()


def step(number: int, **values: object) -> dict[str, object]:
    return {"kind": "step", "step": number, "loss": 1.0} | values


def epoch(step: int, **values: object) -> dict[str, object]:
    return {"kind": "validation", "step": step, "epoch": 1, "accuracy": 0.5, "loss": 1.0} | values


def start(step: int, **values: object) -> dict[str, object]:
    facts = {"t": 100.0, "attempt": 0, "total_steps": 100, "steps_per_epoch": 10, "epochs": 10}
    return {"kind": "start", "step": step} | facts | values


def test_written_records_are_read_back(path: Path) -> None:
    records = [{"kind": "step", "step": 1, "loss": 2.5}, {"kind": "step", "step": 2, "loss": 1.5}]
    write(path, *records)
    assert read_metrics(path) == records


def test_missing_file_has_no_records(path: Path) -> None:
    assert read_metrics(path) == []


def test_torn_and_foreign_lines_are_left_out(path: Path) -> None:
    write(path, step(1))
    with path.open("ab") as file:
        file.write(b'{"kind": "step", "st\n12\n[]\n\xff\xfe\n{"kind": [], "step": 1}\n{"step": 3}\n')
        file.write(b'{"kind": "step", "step": 5}\n{"kind": "step", "step": 6, "loss": "x"}\n')
        file.write(b'{"kind": "step", "step": 7, "loss": NaN}\n{"kind": "step", "step": true, "loss": 1}\n')
    write(path, step(2))
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


DAMAGES = {
    "a step's time as text": {"t": "noon"},
    "an attempt as a list": {"attempt": [1]},
    "a step of 400 digits": {"step": 10**400},
    "a step below 0": {"step": -1},
    "a speed as text": {"pictures_per_second": "fast"},
    "a bottleneck as text": {"data_per_second": "fast"},
    "no number": {"loss": float("nan")},
    "infinity": {"lr": float("inf")},
    "a memory below 0": {"memory": -5},
    "a time that no calendar has": {"t": 1e30},
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_line_with_an_impossible_value_is_left_out_and_reported(path: Path, damage: dict[str, object]) -> None:
    reader = followed(path, start(0), step(1), step(2, **damage), step(3))
    assert [record["step"] for record in reader.records["step"]] == [1, 3]
    assert reader.problem == "A line of metrics.jsonl cannot be read, and left out."
    assert progress(reader.records) is not None


@pytest.mark.parametrize("damage", [{"steps_per_epoch": 0}, {"epochs": 0}, {"total_steps": -1}, {"attempt": []}])
def test_impossible_start_is_ignored(path: Path, damage: dict[str, object]) -> None:
    reader = followed(path, start(0, **damage), step(1))
    assert "start" not in reader.records and reader.problem


@pytest.mark.parametrize("damage", [{"epoch": -1}, {"epoch": 1.5}, {"accuracy": 7}, {"loss": "low"}])
def test_impossible_epoch_is_ignored(path: Path, damage: dict[str, object]) -> None:
    assert "validation" not in followed(path, epoch(10, **damage)).records


def test_endless_nesting_is_left_out(path: Path) -> None:
    path.write_text("[" * 100_000 + "]" * 100_000 + '\n{"a":' * 1000 + "1" + "}" * 1000 + "\n")
    write(path, step(1))
    reader = followed(path)
    assert [record["step"] for record in reader.records["step"]] == [1] and reader.problem


def test_incomplete_character_is_replaced(path: Path) -> None:
    path.write_text('{"kind": "note", "step": 1, "text": "a \\ud800 b"}\n')
    assert read_metrics(path)[0]["text"] == "a \ufffd b"


def test_line_torn_by_a_kill_is_no_problem(path: Path) -> None:
    path.write_text('{"kind": "step", "st\n')
    assert followed(path, step(1)).problem == ""


def test_folder_in_place_of_the_file_is_reported(path: Path) -> None:
    path.mkdir()
    reader = MetricsReader(path)
    assert not reader.update() and not reader.records
    assert reader.problem == "metrics.jsonl cannot be read: it is a folder."


def test_pipe_in_place_of_the_file_does_not_block(path: Path) -> None:
    os.mkfifo(path)
    reader = MetricsReader(path)
    assert not reader.update() and "not a regular file" in reader.problem


def test_huge_file_is_not_read_into_memory(path: Path) -> None:
    write(path, step(1))
    os.truncate(path, 1 << 40)
    reader = MetricsReader(path)
    assert not reader.update() and "MB exceed the limit of" in reader.problem


def test_out_of_order_line_is_sorted(path: Path) -> None:
    write(path, step(1), step(3), step(2))
    assert [record["step"] for record in read_metrics(path)] == [1, 2, 3]


def test_writer_starts_a_new_line_after_a_torn_one(path: Path) -> None:
    path.write_bytes(b'{"kind": "step", "step": 1, "loss": 1}\n{"kind": "st')
    write(path, step(2))
    assert [record["step"] for record in read_metrics(path)] == [1, 2]


def test_writer_adds_no_empty_line_to_a_complete_file(path: Path) -> None:
    write(path, step(1))
    write(path, step(2))
    assert path.read_bytes().count(b"\n") == 2


def test_latest_attempt_at_a_step_counts(path: Path) -> None:
    write(path, step(1, attempt=0), step(2, attempt=0))
    write(path, step(2, attempt=1))
    assert [(record["step"], record["attempt"]) for record in read_metrics(path)] == [(1, 0), (2, 1)]


def test_step_and_epoch_at_the_same_step_are_both_kept(path: Path) -> None:
    write(path, step(4), epoch(4))
    assert [record["kind"] for record in read_metrics(path)] == ["step", "validation"]


# --- Following a run ----------------------------------------------------------------------------------------------


def test_reader_parses_only_new_lines(path: Path) -> None:
    reader = MetricsReader(path)
    assert not reader.update()
    write(path, step(1))
    assert reader.update() and not reader.update()
    write(path, step(2))
    assert reader.update()
    assert [record["step"] for record in reader.records["step"]] == [1, 2]


def test_reader_waits_for_the_rest_of_a_line(path: Path) -> None:
    reader = MetricsReader(path)
    with path.open("ab", buffering=0) as file:
        for byte in b'{"kind": "step", "step": 1, "loss": 2}':
            file.write(bytes([byte]))
            assert not reader.update()
        file.write(b"\n")
    assert reader.update()
    assert reader.records == {"step": [{"kind": "step", "step": 1, "loss": 2}]}


@pytest.mark.parametrize("replaced", [True, False])
def test_reader_starts_over_if_the_file_is_replaced(path: Path, replaced: bool) -> None:
    reader = MetricsReader(path)
    write(path, step(1), step(2), step(3))
    reader.update()
    other = path.with_name("other")
    write(other, step(7))
    if replaced:
        other.replace(path)
    else:
        path.write_bytes(other.read_bytes())
    assert reader.update()
    assert [record["step"] for record in reader.records["step"]] == [7]


def test_resumed_run_drops_the_records_that_it_will_repeat(path: Path) -> None:
    write(path, start(0), step(10), epoch(10), step(20), start(10, attempt=1), step(15))
    assert [(r["kind"], r["step"]) for r in read_metrics(path)] == [
        ("start", 0), ("start", 10), ("step", 10), ("validation", 10), ("step", 15),
    ]  # fmt: skip


def followed(path: Path, *records: dict[str, object]) -> MetricsReader:
    write(path, *records)
    reader = MetricsReader(path)
    reader.update()
    return reader


def test_no_progress_before_a_start(path: Path) -> None:
    assert progress(followed(path, step(1)).records) is None


def test_remaining_time_follows_the_pace_of_this_attempt_alone(path: Path) -> None:
    slow = [start(0, t=0.0), step(10, t=1000.0)]
    quick = [start(10, t=5000.0, attempt=1), step(30, t=5010.0, pictures_per_second=40.0, memory=5)]
    now = progress(followed(path, *slow, *quick).records)
    assert now is not None
    assert now.seconds_left == pytest.approx(70 * 10 / 20)  # 70 steps, half a second each
    assert (now.step, now.total_steps, now.epoch, now.share) == (30, 100, 3.0, 0.3)
    assert (now.pictures_per_second, now.memory, now.accuracy) == (40.0, 5, None)


def test_slower_of_decoding_and_model_is_the_bottleneck(path: Path) -> None:
    for data, model, slower in ((9.0, 8.0, "The model"), (8.0, 9.0, "Decoding")):
        now = progress(followed(path, start(0), step(10, data_per_second=data, model_per_second=model)).records)
        assert now is not None and now.bottleneck.startswith(f"{slower} is the bottleneck: ")
        path.unlink()


def test_progress_includes_the_best_accuracy(path: Path) -> None:
    now = progress(followed(path, start(0), epoch(10, accuracy=0.4), epoch(20, accuracy=0.3)).records)
    assert now is not None and now.accuracy == 0.4


# --- Validation and test -------------------------------------------------------------------------------------------


def test_best_epoch_has_the_highest_accuracy_then_the_lowest_loss(path: Path) -> None:
    rows = [(10, 0.5, 1.0), (20, 0.7, 0.9), (30, 0.7, 0.8), (40, 0.6, 0.1)]
    epochs = [epoch(step, epoch=step // 10, accuracy=accuracy, loss=loss) for step, accuracy, loss in rows]
    records = followed(path, start(0), *epochs).records
    best = best_epoch(records)
    assert best is not None and best["epoch"] == 3
    assert final_test(records) is None


@pytest.mark.parametrize(
    "other",
    [
        {},  # an earlier version, or another program
        {"right": "ff0f", "split": "x", "pictures": 16},
        {"right": "0f", "split": "y", "pictures": 8},  # other pictures
        {"right": "fff", "split": "x", "pictures": 8},  # damaged
    ],
)
def test_only_tests_on_the_same_pictures_are_compared(other: dict[str, Any]) -> None:
    first = {"right": "ff", "split": "x", "pictures": 8}
    assert paired_difference(first, other) is None and paired_difference(other, first) is None
    found = paired_difference(first, first | {"right": "0f"})
    assert found is not None and found[0] == 0.5 and found[1] < found[0] < found[2]
    wrong = first | {"right": "00"}  # a model may have every picture wrong
    found = paired_difference(wrong, wrong)
    assert found is not None and found[0] == 0 and found[1] < 0 < found[2]


@pytest.mark.parametrize("right", ["xyz", "", "-1", "0x1", 3])
def test_line_with_other_than_bits_is_rejected(path: Path, right: object) -> None:
    test = {"kind": "test", "step": 20, "epoch": 1, "accuracy": 0.45, "loss": 1.1, "right": right}
    assert final_test(followed(path, start(0), epoch(10), test).records) is None


def test_result_belongs_to_the_epoch_chosen_by_validation(path: Path) -> None:
    test = {"kind": "test", "step": 20, "epoch": 1, "accuracy": 0.45, "loss": 1.1, "pictures": 8}
    records = followed(path, start(0), epoch(10), epoch(20, epoch=2, accuracy=0.4), test).records
    assert final_test(records) == test
    assert [record["epoch"] for record in evaluations(records)] == [1, 2]
    now = progress(records)
    assert now is not None and now.accuracy == 0.5
