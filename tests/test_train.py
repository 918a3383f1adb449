"""Training: the model learns, the run folder is complete, and a kill at any moment changes nothing."""

import json
import math
import os
import random
import shlex
import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import subprocesses
import torch
from patience import until
from PIL import Image

import vit
from vit.checkpoints.load import load_checkpoint
from vit.cli.main import main
from vit.data import pictures
from vit.errors import InvalidConfig, InvalidDataset, InvalidRun
from vit.files import replaced
from vit.model.transformer import VisionTransformer
from vit.training import fine_tuning, trainer
from vit.training.config import TrainConfig
from vit.training.distributed import set_up_process
from vit.training.evaluation import evaluate_checkpoint
from vit.training.fine_tuning import resolve
from vit.training.metrics import bottleneck, read_metrics
from vit.training.presets import train_config
from vit.training.run_folder import restart_hint
from vit.training.step import OutOfMemory, TrainStep
from vit.training.train import Diverged, train
from vit.training.trainer import Trainer

pytestmark = pytest.mark.slow

# Everything that draws random numbers or has state, on a model that trains in a second.
EVERYTHING: dict[str, Any] = dict(
    image_size=16, dim=24, heads=2, depth=2, mlp_dim=48, registers=1, epochs=8, batch_size=8, device="cpu",
    optimizer="muon", start="mimetic", warmup_epochs=2, label_smoothing=0.1, ema=0.9, dropout=0.1, drop_path=0.2,
    crop_padding=2, flip=True, operations=2, erase=0.3, mixup=0.3, cutmix=1.0, seed=5,
)  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training, 4 validation and 4 test pictures of each of 2 classes: light or dark noise."""
    root = tmp_path_factory.mktemp("pictures")
    random_numbers = np.random.default_rng(0)
    for label, light in (("dark", 0), ("light", 60)):
        for split, count in (("train", 16), ("val", 4), ("test", 4)):
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                noise = random_numbers.integers(light, light + 196, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / split / label / f"{i}.png")
    return root


def describe(folder: Path, **settings: Any) -> TrainConfig:
    return train_config(**EVERYTHING | {"data": f"folder:{folder}"} | settings)


def weights(run: Path, name: str = "last") -> bytes:
    return (run / "checkpoints" / name / "model.safetensors").read_bytes()


def figures(run: Path) -> list[dict[str, Any]]:
    """Return the metrics without those that depend on time and machine."""
    aside = ("t", "seconds", "attempt", "pictures_per_second", "data_per_second", "model_per_second", "memory")
    return [
        {key: value for key, value in record.items() if key not in aside}
        for record in read_metrics(run / "metrics.jsonl")
        if record["kind"] in ("step", "validation", "test")
    ]


def last_step(run: Path) -> dict[str, Any]:
    return [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "step"][-1]


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(describe(folder), run)
    return run


# --- Files of a run ---------------------------------------------------------------------------------------------


def test_shapes_are_learnt_in_a_few_steps(tmp_path: Path) -> None:
    config = train_config("shapes", patch_size=8, limit=2000, epochs=3, device="cpu")
    result = train(config, tmp_path / "run")
    assert result.validation is not None and result.validation.accuracy > 0.5  # chance is 0.25
    assert result.test is not None and result.test.accuracy > 0.5


def test_best_and_last_open_as_checkpoints(whole: Path) -> None:
    for name in ("best", "last"):
        checkpoint = vit.load_checkpoint(whole / "checkpoints" / name)
        assert checkpoint.labels == ("dark", "light")
        assert checkpoint.config.prefix == ("cls", "reg1")
        assert checkpoint.facts["recipe"]["ema"] == 0.9


def test_card_states_the_accuracy_that_evaluation_prints(whole: Path, folder: Path) -> None:
    checkpoint = vit.load_checkpoint(whole / "checkpoints" / "best")
    assert evaluate_checkpoint(checkpoint, f"folder:{folder}").accuracy == checkpoint.facts["accuracy"]
    assert "8 test pictures, looked at once" in checkpoint.facts["accuracy_on"]
    assert f"Accuracy: {checkpoint.facts['accuracy']:.2%}" in checkpoint.card


def test_card_names_the_data_without_its_path(whole: Path, folder: Path) -> None:
    checkpoint = vit.load_checkpoint(whole / "checkpoints" / "best")
    assert checkpoint.facts["data"] == f"folder {folder.name}"
    assert str(folder.parent) not in checkpoint.card + (checkpoint.path / "config.json").read_text()


def test_best_epoch_has_the_highest_accuracy_then_the_lowest_loss(whole: Path) -> None:
    epochs = [record for record in figures(whole) if record["kind"] == "validation"]
    highest = [record for record in epochs if record["accuracy"] == max(r["accuracy"] for r in epochs)]
    best = min(highest, key=lambda record: record["loss"])
    facts = vit.load_checkpoint(whole / "checkpoints" / "best").facts
    assert (facts["epoch"], facts["validation_accuracy"]) == (best["epoch"], best["accuracy"])
    assert facts["weights"] == best["weights"]


def test_split_is_evaluated_once_by_the_checkpoint_chosen_on_validation(whole: Path) -> None:
    tests = [record for record in figures(whole) if record["kind"] == "test"]
    facts = vit.load_checkpoint(whole / "checkpoints" / "best").facts
    assert [(r["step"], r["epoch"], r["pictures"]) for r in tests] == [(32, facts["epoch"], 8)]
    assert tests[0]["accuracy"] == facts["accuracy"]
    assert "accuracy" not in vit.load_checkpoint(whole / "checkpoints" / "last").facts


def test_other_test_pictures_change_no_weight_and_no_choice(whole: Path, folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(folder, tmp_path / "other")
    for file in (other / "test").rglob("*.png"):
        Image.new("RGB", (16, 16)).save(file)  # all black: half of them right for any model
    result = train(describe(other), tmp_path / "run")
    assert weights(tmp_path / "run", "best") == weights(whole, "best")
    assert result.test is not None and result.test.accuracy == 0.5


def test_other_validation_pictures_choose_another_epoch(folder: Path, tmp_path: Path) -> None:
    """Validation pictures with exchanged labels prefer the worst epoch."""
    other = shutil.copytree(folder, tmp_path / "other")
    (other / "val" / "dark").rename(other / "val" / "x")
    (other / "val" / "light").rename(other / "val" / "dark")
    (other / "val" / "x").rename(other / "val" / "light")
    train(describe(other), tmp_path / "run")
    epochs = [record for record in figures(tmp_path / "run") if record["kind"] == "validation"]
    facts = vit.load_checkpoint(tmp_path / "run" / "checkpoints" / "best").facts
    assert facts["validation_accuracy"] == max(record["accuracy"] for record in epochs)
    assert facts["epoch"] < 8
    assert len([record for record in figures(tmp_path / "run") if record["kind"] == "test"]) == 1


def test_averaged_weights_leave_their_start_within_a_short_run(folder: Path, tmp_path: Path) -> None:
    """With a decay of 0.9998 from the first step, 32 steps would leave 99 % of the start in the average."""
    config = describe(folder, ema=0.9998)
    run = Trainer(config, tmp_path / "run", set_up_process(config))
    start = {name: value.clone() for name, value in run.update.models["averaged"].state_dict().items()}
    train(config, tmp_path / "run")
    state = torch.load(tmp_path / "run" / "checkpoints" / "state.pt")["models"]
    name = "blocks.0.attn.qkv.weight"
    moved = (state["averaged"][name] - start[name]).norm() / (state["raw"][name] - start[name]).norm()
    assert moved > 0.5
    assert not torch.equal(state["averaged"][name], state["raw"][name])


def test_better_of_raw_and_averaged_weights_is_kept_and_named(whole: Path) -> None:
    records = [record for record in figures(whole) if record["kind"] == "validation"]
    for record in records:
        both = {kind: record[f"{kind}_accuracy"] for kind in ("raw", "averaged")}
        assert record["accuracy"] == both[record["weights"]] == max(both.values())
    assert {"raw", "averaged"} >= {record["weights"] for record in records}
    state = torch.load(whole / "checkpoints" / "state.pt")
    kept = vit.load_checkpoint(whole / "checkpoints" / "last").model.state_dict()
    assert all(torch.equal(kept[name], value) for name, value in state["models"][records[-1]["weights"]].items())
    assert f"Weights: {records[-1]['weights']}" in vit.load_checkpoint(whole / "checkpoints" / "last").card


def test_folder_records_settings_and_environment(whole: Path, folder: Path) -> None:
    assert train_config(**json.loads((whole / "config.json").read_text())) == describe(folder)
    environment = json.loads((whole / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    assert environment["attempt"] == 0


def test_every_epoch_is_recorded_once(whole: Path) -> None:
    records = figures(whole)
    assert [r["epoch"] for r in records if r["kind"] == "validation"] == list(range(1, 9))
    assert [r["step"] for r in records if r["kind"] == "step"] == [4 * epoch for epoch in range(1, 9)]
    assert all(math.isfinite(r["loss"]) for r in records if r["kind"] == "step")


def test_tensorboard_reads_the_same_metrics(whole: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "events")).Reload()
    for tag, kind, key in (
        ("train/loss", "step", "loss"),
        ("validation/accuracy", "validation", "accuracy"),
        ("test/accuracy", "test", "accuracy"),
    ):
        expected = [(r["step"], r[key]) for r in figures(whole) if r["kind"] == kind]
        assert [(e.step, e.value) for e in events.Scalars(tag)] == [(s, pytest.approx(v)) for s, v in expected]


def test_no_partial_files_are_left(whole: Path) -> None:
    assert not list(whole.rglob("*.partial"))
    assert sorted(path.name for path in (whole / "checkpoints").iterdir()) == [
        "best", "last", "state.previous.pt", "state.pt",
    ]  # fmt: skip


def test_same_seed_gives_the_same_weights_and_another_one_others(folder: Path, tmp_path: Path) -> None:
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        train(describe(folder, epochs=1, seed=seed), tmp_path / name)
    assert weights(tmp_path / "one") == weights(tmp_path / "same")
    assert weights(tmp_path / "one") != weights(tmp_path / "other")


def test_streamed_pictures_train_the_same_weights(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(describe(folder, epochs=1), tmp_path / "resident")
    monkeypatch.setattr("vit.training.pictures.memory_budget", lambda device: 0)
    train(describe(folder, epochs=1, workers=0), tmp_path / "streamed")
    assert weights(tmp_path / "resident") == weights(tmp_path / "streamed")
    assert "data_per_second" in last_step(tmp_path / "streamed"), "it was not streamed"
    train(describe(folder, epochs=1, workers=0, limit=20), tmp_path / "few")
    assert read_metrics(tmp_path / "few" / "metrics.jsonl")[0]["train_pictures"] == 20


@pytest.mark.parametrize(("decoding", "learning", "slower"), [(0.02, 0.1, "Decoding is"), (0.01, 0.4, "The model is")])
def test_run_records_the_speed_of_decoding_and_of_learning(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decoding: float, learning: float, slower: str
) -> None:
    now, forward, decode = [0.0], TrainStep.gradients, pictures.as_tensor

    def learn(self: TrainStep, *batch: torch.Tensor) -> torch.Tensor:
        now[0] += learning
        return forward(self, *batch)

    def cut(*picture: Any) -> torch.Tensor:
        now[0] += decoding
        return decode(*picture)

    for place in ("vit.training.recorder.clock", "vit.data.pictures.clock"):
        monkeypatch.setattr(place, lambda: now[0])
    monkeypatch.setattr(TrainStep, "gradients", learn)
    monkeypatch.setattr(pictures, "as_tensor", cut)
    monkeypatch.setattr("vit.training.pictures.memory_budget", lambda device: 0)
    train(describe(folder, epochs=1, workers=0), tmp_path / "run")
    pace = last_step(tmp_path / "run")  # of batches of eight
    assert pace["data_per_second"] == pytest.approx(1 / decoding, abs=0.1)
    assert pace["model_per_second"] == pytest.approx(8 / learning, abs=0.1)
    assert pace["pictures_per_second"] == pytest.approx(8 / (8 * decoding + learning), abs=0.1)
    assert slower in bottleneck(pace)


def test_validation_may_skip_epochs_but_not_the_last(whole: Path, folder: Path, tmp_path: Path) -> None:
    every = describe(folder).epochs
    train(describe(folder, validate_every=2), tmp_path / "run")
    evaluated = [r["epoch"] for r in figures(tmp_path / "run") if r["kind"] == "validation"]
    assert evaluated == sorted({*range(2, every + 1, 2), every})
    assert weights(tmp_path / "run") == weights(whole)


# --- Kill and resume ---------------------------------------------------------------------------------------------


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
    assert "(best 100.00%)" in capsys.readouterr().out


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
    while not (tmp_path / "run" / "metrics.jsonl").exists():
        assert process.is_alive()
        time.sleep(0.01)
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


# --- Two processes ------------------------------------------------------------------------------------------------

TWO = """
import os, sys, torch
from pathlib import Path
from vit.training.config import TrainConfig
from vit.training.train import train
from vit.training.trainer import Trainer
rank, port, config, run = sys.argv[1:]
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
config, run = TrainConfig.model_validate_json(config), Path(run)
keep = Trainer.train
def train_and_keep(self, *arguments):
    result = keep(self, *arguments)
    torch.save(self.update.model.state_dict(), run.with_name(f"rank{self.process.rank}.pt"))
    return result
Trainer.train = train_and_keep
train(config, run)
names = [(thread / "comm").read_text() for thread in Path("/proc/self/task").glob("*")]
assert not [name for name in names if "gloo" in name], names  # one that outlives the group may abort the process
"""


def test_two_processes_agree_with_each_other_and_with_one(folder: Path, tmp_path: Path) -> None:
    plain = dict(dropout=0, drop_path=0, operations=0, erase=0, mixup=0, cutmix=0, crop_padding=0, flip=False)
    config = describe(folder, **plain, epochs=3, patience=2, precision="float32")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run = tmp_path / "two"
    ranks = [
        subprocesses.begin(TWO, rank, port, config.model_dump_json(), run, out=tmp_path / f"{rank}.txt")
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.join(subprocesses.PATIENCE)
    assert [rank.exitcode for rank in ranks] == [0, 0]

    first, second = (torch.load(tmp_path / f"rank{rank}.pt") for rank in (0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    train(config, tmp_path / "one")
    losses = [[r["loss"] for r in figures(tmp_path / run) if r["kind"] == "step"] for run in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)


# --- Mistakes -----------------------------------------------------------------------------------------------------


def test_non_finite_loss_stops_the_run_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    wild = dict(lr=10, weight_decay=10, optimizer="adamw", warmup_epochs=0, ema=0, schedule="constant")
    with pytest.raises(Diverged, match=r"The loss became .* Lower the learning rate"):
        train(describe(folder, **wild, epochs=30), tmp_path / "run")
    vit.load_checkpoint(tmp_path / "run" / "checkpoints" / "last")  # of the last epoch with finite numbers


def test_folder_in_use_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InvalidConfig, match="not empty"):
        train(describe(folder), tmp_path)


def test_run_that_could_not_start_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset):
        train(describe(tmp_path / "nowhere"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_folder_that_cannot_be_created_is_reported_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidConfig, match="cannot be written"):
        train(describe(folder), tmp_path / "file" / "run")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_missing_device_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="no CUDA GPU"):
        set_up_process(train_config(device="cuda"))


@pytest.mark.parametrize("name", ["auto", "cuda", "cuda:0"])
def test_gpu_is_selected_by_its_number(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """`torch.cuda.set_device` refuses a device without a number."""
    chosen: list[torch.device] = []
    for function, answer in {"is_available": True, "device_count": 1}.items():
        monkeypatch.setattr(torch.cuda, function, lambda answer=answer: answer)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    try:
        assert set_up_process(train_config(device=name)).device == torch.device("cuda:0")
    finally:
        torch.set_float32_matmul_precision("highest")
    assert [device.index for device in chosen] == [0]


def test_batch_size_above_the_number_of_pictures_is_one_step(folder: Path, tmp_path: Path) -> None:
    train(describe(folder, epochs=1, batch_size=1000), tmp_path)
    assert [r["step"] for r in figures(tmp_path)] == [1, 1, 1]


# --- Memory -------------------------------------------------------------------------------------------------------


def small_memory(
    monkeypatch: pytest.MonkeyPatch, most: int, error: type[RuntimeError] = torch.OutOfMemoryError, words: str = ""
) -> None:
    """Simulate a device that runs out of memory when trained on more than `most` pictures at once."""
    forward = VisionTransformer.forward

    def limited(self: VisionTransformer, images: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if self.training and len(images) > most:
            raise error(words)
        return forward(self, images, *args, **kwargs)

    monkeypatch.setattr(VisionTransformer, "forward", limited)


def test_too_little_memory_splits_batches_and_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact = dict(dropout=0, drop_path=0, precision="float32", epochs=2)
    train(describe(folder, **exact), tmp_path / "plenty")
    small_memory(monkeypatch, most=3)
    train(describe(folder, **exact), tmp_path / "scarce")
    notes = [r["text"] for r in read_metrics(tmp_path / "scarce" / "metrics.jsonl") if r["kind"] == "note"]
    said = "Memory ran out at step 0: each batch is computed in {} parts from here on."
    assert notes == [said.format(2), said.format(4)]
    plenty, scarce = ([r["loss"] for r in figures(tmp_path / n) if r["kind"] == "step"] for n in ("plenty", "scarce"))
    assert plenty == pytest.approx(scarce, abs=1e-3)


@pytest.mark.parametrize("words", ["CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", ""])
def test_library_running_out_of_memory_splits_batches_and_other_errors_do_not(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    small_memory(monkeypatch, most=3, error=RuntimeError, words=words or "CUDA error: device-side assert triggered")
    config = describe(folder, epochs=1)
    if not words:
        with pytest.raises(RuntimeError, match="assert"):
            train(config, tmp_path / "run")
        return
    train(config, tmp_path / "run")
    notes = [r["text"] for r in read_metrics(tmp_path / "run" / "metrics.jsonl") if r["kind"] == "note"]
    assert len(notes) == 2 and "4 parts" in notes[1]


@pytest.mark.parametrize("parts", [2, 3, 8])
def test_batch_in_parts_has_the_gradient_of_the_whole(folder: Path, tmp_path: Path, parts: int) -> None:
    config = describe(folder, dropout=0, drop_path=0, precision="float32")
    run = Trainer(config, tmp_path, set_up_process(config))
    model = run.update.model
    torch.nn.init.normal_(model.head.weight)  # a zero head passes no gradient on
    inputs, labels = torch.randn(8, 3, 16, 16), torch.arange(8) % 2
    result = []
    for run.update.parts in (1, parts):
        model.zero_grad()
        loss = run.update.gradients(inputs, labels)
        result.append([loss, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    assert len(result[0]) > 20
    assert all(torch.allclose(whole, split, atol=1e-6) for whole, split in zip(*result, strict=True))


def test_memory_too_small_for_one_picture_is_reported_in_one_sentence(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_memory(monkeypatch, most=0)
    with pytest.raises(OutOfMemory, match="Training ran out of GPU memory"):
        train(describe(folder), tmp_path / "run")
    outcome = json.loads((tmp_path / "run" / "outcome.json").read_text())
    assert outcome["outcome"] == "failed" and "ran out of GPU memory" in outcome["reason"]


# --- From a checkpoint --------------------------------------------------------------------------------------------


def test_fine_tuning_starts_from_the_named_checkpoint(whole: Path, folder: Path, tmp_path: Path) -> None:
    best = whole / "checkpoints" / "best"
    before = vit.load_checkpoint(best)
    same = train_config(data=f"folder:{folder}", init_from=str(best), epochs=1, lr=1e-12, batch_size=8, device="cpu")
    result = train(same, tmp_path / "same")
    assert result.validation is not None and result.test is not None
    assert result.validation.accuracy == before.facts["validation_accuracy"]  # nothing was learnt or lost
    assert result.test.accuracy == before.facts["accuracy"]
    after = vit.load_checkpoint(tmp_path / "same" / "checkpoints" / "last")
    assert after.preprocess == before.preprocess
    assert after.facts["started_from"] == "whole"  # the run; its checkpoint is always "best"


def test_fine_tuning_on_other_classes_and_a_larger_input_keeps_the_blocks(whole: Path, tmp_path: Path) -> None:
    best = whole / "checkpoints" / "best"
    config = train_config(
        data="shapes", init_from=str(best), image_size=32, epochs=1, lr=1e-12, limit=50, batch_size=50, device="cpu"
    )
    train(config, tmp_path / "shapes")
    before, after = vit.load_checkpoint(best), vit.load_checkpoint(tmp_path / "shapes" / "checkpoints" / "last")
    assert after.labels == ("circle", "square", "triangle", "cross")
    assert after.config.grid == (8, 8) and before.config.grid == (4, 4)
    name = "blocks.1.mlp.fc1.weight"
    assert torch.allclose(before.model.state_dict()[name], after.model.state_dict()[name], atol=1e-6)
    assert after.model.state_dict()["head.weight"].abs().max() < 1e-6


@pytest.mark.parametrize("setting", [{"dim": 99}, {"registers": 3}, {"depth": 1}])
def test_fine_tuning_refuses_another_model_size(whole: Path, tmp_path: Path, setting: dict[str, int]) -> None:
    config = train_config(init_from=str(whole / "checkpoints" / "best"), **setting)
    with pytest.raises(InvalidConfig, match="which this run starts from"):
        resolve(config)
    with pytest.raises(InvalidConfig, match="which this run starts from"):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_padding_is_validated_against_the_input_of_the_checkpoint(whole: Path) -> None:
    best = str(whole / "checkpoints" / "best")
    with pytest.raises(InvalidConfig, match="more than half of the input of 16 px"):
        resolve(train_config(init_from=best, crop_padding=9))
    with pytest.raises(InvalidConfig, match="more than half of the input of 32 px"):
        train_config(init_from=best, image_size=32, crop_padding=17)  # known without the checkpoint
    assert resolve(train_config(init_from=best, image_size=32, crop_padding=9)).base


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record which base checkpoints are loaded, starting with an empty cache."""
    opened: list[str] = []

    def counted(name: str) -> Any:
        opened.append(Path(name).name)
        return load_checkpoint(name)

    fine_tuning._open_base.cache_clear()
    for module in (fine_tuning, trainer):
        monkeypatch.setattr(module, "load_checkpoint", counted)
    return opened


def test_no_checkpoint_is_loaded_to_describe_a_run(loads: list[str], whole: Path) -> None:
    best = str(whole / "checkpoints" / "best")
    for lr in (1e-4, 1e-3):
        config = train_config("fine-tune", init_from=best, lr=lr)
        TrainConfig.model_validate_json(config.model_dump_json())
    train_config(init_from="nobody/has-this-model")
    assert loads == []
    for lr in (1e-4, 1e-3):
        resolve(train_config("fine-tune", init_from=best, lr=lr))
    assert loads == ["best"]


def test_another_checkpoint_of_the_same_name_is_loaded_again(loads: list[str], whole: Path, tmp_path: Path) -> None:
    base = shutil.copytree(whole / "checkpoints" / "best", tmp_path / "base")
    config = train_config(init_from=str(base))
    first = resolve(config).base
    shutil.rmtree(base)
    shutil.copytree(Path(vit.__file__).parents[1] / "checkpoints" / "cifar10", base)
    second = resolve(config).base
    assert first is not None and second is not None
    assert (first.model.dim, second.model.dim) == (24, 128)


def test_fine_tuned_run_resumes_after_its_base_was_deleted(
    loads: list[str], whole: Path, folder: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(whole / "checkpoints" / "best", tmp_path / "base")
    config = train_config(data=f"folder:{folder}", init_from=str(base), epochs=1, batch_size=8, device="cpu")
    train(config, tmp_path / "run")
    longer = config.model_copy(update={"epochs": 2})
    train(longer, tmp_path / "whole")
    assert loads == ["base", "base", "best", "base", "best"]  # sizes once; the rest per run
    shutil.rmtree(base)
    fine_tuning._open_base.cache_clear()
    result = train(longer, tmp_path / "run", resume=True)
    assert result.test is not None
    assert [r["epoch"] for r in figures(tmp_path / "run") if r["kind"] == "validation"] == [1, 2]
