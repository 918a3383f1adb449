"""Training: the model learns, the run folder is complete, and mistakes are refused."""

import json
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from noise_runs import describe, figures, last_step, weights
from PIL import Image

import vit
from vit.checkpoints import abstention
from vit.data import pictures
from vit.errors import InvalidConfig, InvalidDataset
from vit.training.loop.calibration import calibrated
from vit.training.loop.distributed import set_up_process
from vit.training.loop.evaluation import evaluate_checkpoint
from vit.training.loop.metrics import bottleneck, read_metrics
from vit.training.loop.presets import train_config
from vit.training.loop.step import TrainStep
from vit.training.loop.train import Diverged, train
from vit.training.loop.trainer import Trainer

pytestmark = pytest.mark.slow


# --- Files of a run ---------------------------------------------------------------------------------------------


def test_shapes_are_learnt_in_a_few_steps(tmp_path: Path) -> None:
    config = train_config("shapes", patch_size=8, limit=2000, epochs=3, device="cpu")
    result = train(config, tmp_path / "run")
    assert result.validation is not None and result.validation.accuracy > 0.5  # chance is 0.25
    assert result.test is not None and result.test.accuracy > 0.5


def test_best_checkpoint_gets_a_temperature_and_a_threshold(tmp_path: Path) -> None:
    config = train_config("shapes", patch_size=8, limit=400, epochs=1, device="cpu")
    train(config, tmp_path / "run")
    best, last = (vit.load_checkpoint(tmp_path / "run" / "checkpoints" / name) for name in ("best", "last"))
    temperature = best.facts["temperature"]
    assert temperature != 1 and "temperature" not in last.facts
    torch.testing.assert_close(temperature * best.model.head.weight, last.model.head.weight, rtol=1e-4, atol=0)
    torch.testing.assert_close(temperature * best.model.head.bias, last.model.head.bias, rtol=1e-4, atol=0)
    assert abstention.threshold_of(best.facts) is not None and "validation pictures" in best.facts["sure_on"]
    assert "- Sure from: " in best.card
    # An interrupted test is repeated; then the temperature of the stored head is 1.
    run = Trainer(config, tmp_path / "run", set_up_process(config))
    calibrated(best, run.data.validation, run.data.normalise, run.process.device)
    again = vit.load_checkpoint(tmp_path / "run" / "checkpoints" / "best")
    torch.testing.assert_close(again.model.head.weight, best.model.head.weight, rtol=1e-3, atol=0)
    assert again.facts["temperature"] == pytest.approx(temperature, rel=1e-3)


def test_best_and_last_open_as_checkpoints(whole: Path) -> None:
    for name in ("best", "last"):
        checkpoint = vit.load_checkpoint(whole / "checkpoints" / name)
        assert checkpoint.labels == ("dark", "light")
        assert checkpoint.config.prefix == ("cls", "reg1")
        assert checkpoint.facts["recipe"]["ema"] == 0.9


def test_card_states_the_accuracy_that_evaluation_prints(whole: Path, folder: Path) -> None:
    checkpoint = vit.load_checkpoint(whole / "checkpoints" / "best")
    assert evaluate_checkpoint(checkpoint, f"folder:{folder}").accuracy == checkpoint.facts["accuracy"]
    assert "8 test pictures, evaluated once" in checkpoint.facts["accuracy_on"]
    right = round(8 * checkpoint.facts["accuracy"])
    assert re.search(rf"\n- Accuracy: {right} of 8 \(\d+ to \d+ %\)\n", checkpoint.card)
    assert re.search(r"\n- Validation accuracy: \d of 8 \(\d+ to \d+ %\)\n", checkpoint.card)
    assert "Validation accuracy on: 8 validation pictures, which also chose the epoch\n" in checkpoint.card


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
    assert int(tests[0]["right"], 16).bit_count() == 8 * facts["accuracy"] and len(tests[0]["split"]) == 16
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
    """With a decay of 0.9998 from the first step, 32 steps would leave 99% of the start in the average."""
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
    weights = vit.load_checkpoint(whole / "checkpoints" / "last").model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in state["models"][records[-1]["weights"]].items())
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
    monkeypatch.setattr("vit.training.loop.pictures.memory_budget", lambda device: 0)
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

    for place in ("vit.training.loop.recorder.clock", "vit.data.pictures.clock"):
        monkeypatch.setattr(place, lambda: now[0])
    monkeypatch.setattr(TrainStep, "gradients", learn)
    monkeypatch.setattr(pictures, "as_tensor", cut)
    monkeypatch.setattr("vit.training.loop.pictures.memory_budget", lambda device: 0)
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


def test_batch_size_above_the_number_of_pictures_is_one_step(folder: Path, tmp_path: Path) -> None:
    train(describe(folder, epochs=1, batch_size=1000), tmp_path)
    assert [r["step"] for r in figures(tmp_path)] == [1, 1, 1]
