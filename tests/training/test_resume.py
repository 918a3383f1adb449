"""Resumption of a run: a kill at any moment changes nothing, and a run without its state is not overwritten."""

import json
import os
import random
import shlex
import shutil
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import subprocesses
import torch
from noise_runs import describe, figures, weights
from patience import until

import vit
from vit.cli.main import main
from vit.data.layouts import class_names
from vit.errors import InvalidConfig, InvalidDataset, InvalidRun
from vit.files import replaced
from vit.training.loop import trainer
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.evaluation import Evaluation
from vit.training.loop.metrics import read_metrics
from vit.training.loop.run_folder import restart_hint
from vit.training.loop.train import train
from vit.training.loop.trainer import Trainer

pytestmark = pytest.mark.slow


def start(config: TrainConfig, run: Path) -> Any:
    """Run `train(config, run, resume=True)` in a process forked from one that has imported everything."""
    process = subprocesses.context().Process(target=train, args=(config, run), kwargs={"resume": True})
    process.start()
    return process


def test_run_killed_at_random_moments_ends_with_the_same_bits(whole: Path, folder: Path, tmp_path: Path) -> None:
    run, chance = tmp_path / "killed", random.Random()
    metrics = run / "metrics.jsonl"

    def wrote(process: Any, size: int) -> bool:
        return not process.is_alive() or (metrics.exists() and metrics.stat().st_size >= size)

    for records in (0, chance.randint(1, 3), chance.randint(1, 3)):  # an epoch writes two lines of about 150 bytes
        before = metrics.stat().st_size if metrics.exists() else 0
        process = start(describe(folder), run)
        until(partial(wrote, process, before + 400 + records * 150), "records", pause=0.001)
        time.sleep(chance.uniform(0, 0.15))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    (run / "checkpoints").mkdir(exist_ok=True)
    (run / "checkpoints" / "state.pt.partial").write_bytes(b"torn")

    train(describe(folder), run, resume=True)

    assert weights(run) == weights(whole)
    assert weights(run, "best") == weights(whole, "best")
    assert figures(run) == figures(whole)
    assert json.loads((run / "environment.json").read_text())["attempt"] in (2, 3)  # the first kill may come early


def test_kill_during_a_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"good")
    child = os.fork()
    if not child:
        with replaced(path) as file:
            file.write(b"bad")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert path.read_bytes() == b"good"


def test_checkpoints_and_metrics_newer_than_the_state_are_rewritten(whole: Path, folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "checkpoints" / "state.pt").unlink()  # as if killed before it was saved
    train(describe(folder), run, resume=True)
    assert weights(run) == weights(whole)
    assert figures(run) == figures(whole)


@pytest.mark.parametrize("damage", ["deleted", "truncated", "empty", "something else"])
def test_damaged_state_falls_back_to_the_previous_one_and_says_so(
    whole: Path, folder: Path, tmp_path: Path, damage: str
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    state = run / "checkpoints" / "state.pt"
    content = {"truncated": state.read_bytes()[:-1000], "empty": b"", "something else": b"no archive"}.get(damage)
    state.unlink()
    if content is not None:
        state.write_bytes(content)
    train(describe(folder), run, resume=True)
    assert weights(run) == weights(whole) and weights(run, "best") == weights(whole, "best")
    assert figures(run) == figures(whole)
    notes = [record["text"] for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "note"]
    assert len(notes) == 1 and "went on from the one before it, of epoch 8" in notes[0]
    for name in ("state.pt", "state.previous.pt"):
        assert torch.load(run / "checkpoints" / name)["step"] == 32


def test_state_before_the_last_epoch_is_kept(folder: Path, tmp_path: Path) -> None:
    config = describe(folder, epochs=3)
    run = Trainer(config, tmp_path, set_up_process(config))
    steps = []
    for run.progress.step in (4, 8, 12):
        run._save_state()
        steps.append([torch.load(path)["step"] for path in (run.state.path, run.state.previous) if path.exists()])
    assert steps == [[4], [8, 4], [12, 8]]


def test_damaged_state_never_replaces_the_sound_one(whole: Path, folder: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    (run / "checkpoints" / "state.pt").write_bytes(b"torn")
    config = describe(folder)
    job = Trainer(config, run, set_up_process(config), resumed=True)
    job.load()
    job._save_state()
    assert {torch.load(path)["step"] for path in (job.state.path, job.state.previous)} == {32}


@pytest.mark.parametrize("left", [["best", "last"], ["last"], ["best"]])
def test_run_without_its_state_is_not_restarted_over_its_results(
    whole: Path, folder: Path, tmp_path: Path, left: list[str]
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    for name in {"best", "last", "state.pt", "state.previous.pt"} - set(left):
        path = run / "checkpoints" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    start = run / "checkpoints" / ("last" if "last" in left else "best")
    with pytest.raises(InvalidRun, match=rf"cannot be continued.*--set init_from={start}"):
        train(describe(folder), run, resume=True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_suggested_command_restarts_a_lost_run(
    whole: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(whole, tmp_path / "run")
    for name in ("state.pt", "state.previous.pt"):
        (run / "checkpoints" / name).unlink()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    sentence = restart_hint(run)
    arguments = shlex.split(sentence[sentence.index("`python") :].strip("`"))
    assert main([*arguments[3:], "--set", "epochs=1", "--set", "lr=1e-12", "--set", "muon_lr=1e-12"]) == 0
    (again,) = (tmp_path / "runs").iterdir()
    first, second = (vit.load_checkpoint(path / "checkpoints" / "last") for path in (run, again))
    name = "blocks.0.attn.qkv.weight"
    assert torch.allclose(first.model.state_dict()[name], second.model.state_dict()[name], atol=1e-5)


def test_resuming_a_finished_run_changes_nothing(folder: Path, tmp_path: Path) -> None:
    config = describe(folder, epochs=1)
    result = train(config, tmp_path)
    before = weights(tmp_path)
    assert train(config, tmp_path, resume=True) == result
    assert weights(tmp_path) == before


def test_run_with_other_settings_or_pictures_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    train(describe(folder, epochs=1), tmp_path)
    with pytest.raises(InvalidConfig, match=r"batch_size was 8 in this run, not 16"):
        train(describe(folder, epochs=1, batch_size=16), tmp_path, resume=True)
    state = torch.load(tmp_path / "checkpoints" / "state.pt")
    torch.save(state | {"data": ["cat", "dog"]}, tmp_path / "checkpoints" / "state.pt")
    with pytest.raises(InvalidDataset, match="has changed since this run began"):
        train(describe(folder, epochs=1), tmp_path, resume=True)
    assert (tmp_path / "config.json").exists()


def test_more_epochs_can_be_requested_on_resumption(folder: Path, tmp_path: Path) -> None:
    train(describe(folder, epochs=1), tmp_path)
    train(describe(folder, epochs=2), tmp_path, resume=True)
    assert [r["epoch"] for r in figures(tmp_path) if r["kind"] == "validation"] == [1, 2]


def test_log_of_a_resumed_run_includes_the_earlier_best_epoch(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(describe(folder, epochs=1), tmp_path)
    state = tmp_path / "checkpoints" / "state.pt"
    saved = torch.load(state)
    saved["best"] = (1.0, *saved["best"][1:])
    torch.save(saved, state)
    capsys.readouterr()
    train(describe(folder, epochs=2), tmp_path, resume=True)
    assert "best 100%" in capsys.readouterr().out


def test_run_of_a_version_without_validation_is_not_resumed(folder: Path, tmp_path: Path) -> None:
    train(describe(folder, epochs=1), tmp_path)
    for name in ("state.pt", "state.previous.pt"):
        state = torch.load(tmp_path / "checkpoints" / name)
        torch.save({"model": state["models"]["raw"]} | {k: v for k, v in state.items() if k != "models"},
                   tmp_path / "checkpoints" / name)  # fmt: skip
    with pytest.raises(InvalidRun, match=r"test pictures chose.*A new run can start from its last weights"):
        train(describe(folder, epochs=1), tmp_path, resume=True)


def test_evaluation_on_the_test_split_waits_until_a_stopped_run_has_finished(folder: Path, tmp_path: Path) -> None:
    config = describe(folder, epochs=2)
    process = start(config, tmp_path / "run")
    until(lambda: (tmp_path / "run" / "metrics.jsonl").exists() or not process.is_alive(), "the first record")
    (tmp_path / "run" / "stop").touch()
    process.join()
    kinds = {record["kind"] for record in figures(tmp_path / "run")}
    assert "test" not in kinds
    result = train(config, tmp_path / "run", resume=True)
    assert result.test is not None
    assert [r["kind"] for r in figures(tmp_path / "run")].count("test") == 1


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04torn", b"no archive at all"])
def test_damaged_state_is_reported_in_one_sentence(folder: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "state.pt").write_bytes(content)
    with pytest.raises(InvalidRun, match="damaged"):
        train(describe(folder), tmp_path, resume=True)


def test_longer_run_gets_its_patience_anew(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "evaluate", lambda *_, **__: Evaluation(0.5, 1.0, 8))
    monkeypatch.setattr(Trainer, "_run_test", lambda self, recorder: None)

    def epochs_validated(epochs: int, resume: bool) -> list[int]:
        train(describe(folder, epochs=epochs, patience=2), tmp_path / "run", resume=resume)
        return [record["epoch"] for record in figures(tmp_path / "run") if record["kind"] == "validation"]

    assert epochs_validated(5, resume=False) == [1, 2, 3]
    assert epochs_validated(9, resume=True) == [1, 2, 3, 4, 5]


def test_run_continues_on_a_moved_folder_with_renamed_classes(folder: Path, tmp_path: Path) -> None:
    pictures = shutil.copytree(folder, tmp_path / "before")
    run = tmp_path / "run"
    train(describe(pictures, epochs=1), run)
    pictures.rename(tmp_path / "after")
    class_names.rename(tmp_path / "after", ("dark", "light"), ["night", "day"])
    train(describe(tmp_path / "after", epochs=2), run, resume=True)
    assert vit.load_checkpoint(run / "checkpoints" / "last").labels == ("night", "day")
    assert json.loads((run / "config.json").read_text())["data"] == f"folder:{tmp_path / 'after'}"
