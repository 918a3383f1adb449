"""Run folders written from a foreign training loop: their contents, and wrong arguments."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from foreign_loop import CLASSES, INPUT, new_model, notes, pictures, records_of, run_of, train
from tiny import difference

import vit
from vit.errors import InvalidConfig, InvalidRun
from vit.training.loop.metrics import best_epoch
from vit.training.loop.run_folder import RECORD_STEPS
from vit.training.other_loops.run_writer import RunWriter
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.payload import unpack

# --- Files ----------------------------------------------------------------------------------------------------------


def test_attention_of_an_epoch_equals_that_of_its_checkpoint(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(), new_model()
    train(model, writer, accuracy=(0.4, 0.6, 0.8))
    writer.close()
    assert list_epochs(writer.folder / "probes") == [1, 2, 3]
    checkpoint = vit.load_checkpoint(run_of(writer).best)
    assert checkpoint.labels == CLASSES and checkpoint.preprocess == INPUT
    for place, snapshot in enumerate(read_snapshots(writer.folder / "probes", 3)):
        pixels = INPUT(pictures()[place])
        output = checkpoint.model(pixels, output_attentions=True)
        maps = unpack(read_payload(writer.folder / "probes", 3, place))[1]
        stored = maps["maps"] / 255 * maps["scales"][..., None]
        attention = torch.stack([a[0] for a in output.attentions])[..., 1:].detach().numpy()
        assert np.abs(stored - attention).max() < 2 / 510
        shares = output.logits.softmax(1)[0]
        assert snapshot.label == CLASSES[place % 3]
        assert snapshot.probability == pytest.approx(shares[place % 3].item(), abs=1e-4)
        assert difference(model.eval()(pixels).detach(), output.logits.detach()) < 1e-5


def test_best_epoch_is_kept(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer()
    train(new_model(), writer, accuracy=(0.4, 0.8, 0.6))
    writer.close()
    assert vit.load_checkpoint(run_of(writer).best).facts["epochs"] == 2
    assert best_epoch(records_of(writer.folder))["epoch"] == 2


def test_lowest_loss_is_best_without_an_accuracy(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(), new_model()
    for epoch, loss in enumerate((2.0, 1.0, 3.0), 1):
        writer.log_epoch(epoch, model, val_loss=loss)
    writer.close()
    assert vit.load_checkpoint(run_of(writer).best).facts["epochs"] == 2
    assert best_epoch(records_of(writer.folder))["epoch"] == 2


def test_last_epoch_is_kept_without_validation(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(), new_model()
    for epoch in (1, 2):
        writer.log_epoch(epoch, model, train_loss=1 / epoch, lr=0.1)
    writer.close()
    assert vit.load_checkpoint(run_of(writer).best).facts["epochs"] == 2
    assert [(one["step"], one["loss"], one["lr"]) for one in records_of(writer.folder)["step"]] == [
        (3, 1.0, 0.1),
        (6, 0.5, 0.1),
    ]


def test_losses_are_recorded_as_means(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer(steps_per_epoch=50, batch_size=4)
    for step in range(1, 51):
        writer.log_step(step, loss=torch.tensor(float(step)), lr=step / 100)
    writer.log_epoch(1)
    writer.close()
    steps = records_of(writer.folder)["step"]
    assert [one["step"] for one in steps] == [RECORD_STEPS, 2 * RECORD_STEPS, 50]
    assert [one["loss"] for one in steps] == [10.5, 30.5, 45.5]
    assert steps[0]["lr"] == 0.2 and steps[0]["pictures_per_second"] > 0


def test_non_finite_numbers_are_reported_and_left_out(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer()
    writer.log_step(1, loss=float("nan"))
    writer.log_epoch(1, val_loss=float("inf"), val_accuracy=71.2)
    writer.close()
    assert set(records_of(writer.folder)) == {"start", "note"}
    assert "nan by step 1" in notes(writer.folder)[0] and "71.2" in notes(writer.folder)[1]


def test_model_without_classes_is_supported(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(labels=None, classes=None), new_model()
    model.reset_classifier(0)
    writer.log_epoch(1, model)
    writer.close()
    assert {(one.label, one.probability, one.predictions) for one in read_snapshots(writer.folder / "probes", 1)} == {
        ("", None, ())
    }
    assert vit.load_checkpoint(run_of(writer).best).labels == ()


def test_assumptions_are_reported(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(preprocess=None, classes=("one", "two"), labels=None), new_model()
    model.pretrained_cfg = {}
    writer.log_epoch(1, model)
    writer.close()
    assert any("preprocessing" in note for note in notes(writer.folder))
    assert any("2 are named and the model has 3" in note for note in notes(writer.folder))


# --- Arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": 0}, "epochs must be a whole number from 1"),
        ({"steps_per_epoch": 2.5}, "steps_per_epoch must be"),
        ({"labels": [0, 1]}, "there are 2 for 9 pictures"),
        ({"labels": [5] * 9}, "5 is no class; 3 are named"),
        ({"pictures": torch.zeros(9, 3, 32, 32)}, "uint8"),
        ({"settings": {"sizes": [1, 2]}}, "sizes must be text"),
        ({"name": "Übung 1"}, "small letters, digits and dashes"),
        ({"resume": True}, "no run in"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_argument_is_refused_at_once(
    wrong: dict[str, Any], words: str, open_writer: Callable[..., RunWriter]
) -> None:
    with pytest.raises((InvalidConfig, InvalidRun), match=words):
        open_writer(**wrong)


def test_nonempty_folder_is_refused(open_writer: Callable[..., RunWriter], folder: Path) -> None:
    open_writer().close()
    with pytest.raises(InvalidConfig, match="not empty"):
        open_writer()
    (folder / "notes").mkdir()
    (folder / "notes" / "environment.json").write_text("{}")
    with pytest.raises(InvalidRun, match="not one that a RunWriter wrote"):
        open_writer("notes", resume=True)


def test_two_writers_do_not_share_a_run(open_writer: Callable[..., RunWriter]) -> None:
    open_writer()
    with pytest.raises(InvalidRun, match="Another process"):
        open_writer(resume=True)
