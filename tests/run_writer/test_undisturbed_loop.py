"""Writing a run does not affect the foreign training loop: same bits, and no errors."""

import logging
import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
from foreign_loop import STEPS, new_model, notes, records_of, run_of, train
from torch import Tensor, nn

import vit
from vit.training.other_loops import live_snapshots
from vit.training.other_loops.run_writer import RunWriter
from vit.view.attention_snapshots import list_epochs


def everything(model: nn.Module) -> list[Any]:
    """Return the bits that a training ends with: weights, gradients, modes, and the next random numbers."""
    tensors = [*model.state_dict().values(), *(parameter.grad for parameter in model.parameters())]
    bits = [tensor.numpy().tobytes() for tensor in tensors]
    modes = [part.training for part in model.modules()]
    return [*bits, modes, torch.rand(3).tolist(), random.random(), np.random.rand()]


def test_training_has_the_same_bits_with_and_without_the_writer(open_writer: Callable[..., RunWriter]) -> None:
    results = []
    for use in (False, True):
        random.seed(0)
        np.random.seed(0)
        model = new_model()
        train(model, open_writer() if use else None)
        results.append(everything(model))
    assert results[0] == results[1]


def test_process_settings_are_unchanged_while_the_thread_works(
    open_writer: Callable[..., RunWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()
    store = live_snapshots.SnapshotWriter.store

    def watched(self: Any, epoch: int, model: vit.VisionTransformer) -> None:
        def look(*_: Any) -> None:
            seen.add(torch.backends.mkldnn.matmul.fp32_precision)

        handles = [part.register_forward_hook(look) for part in model.modules()]
        store(self, epoch, model)
        for handle in handles:
            handle.remove()

    monkeypatch.setattr(live_snapshots.SnapshotWriter, "store", watched)
    train(new_model(), open_writer(), epochs=1)
    assert seen <= {torch.backends.mkldnn.matmul.fp32_precision}


@pytest.mark.parametrize("wrong", ["a model that is none", "a full disk", "a lost folder", "text for a number"])
def test_no_error_reaches_the_loop(
    wrong: str, open_writer: Callable[..., RunWriter], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    writer, model, loss = open_writer(), new_model(), 1.0
    if wrong == "a model that is none":
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 3))
    elif wrong == "a full disk":
        monkeypatch.setattr(os, "write", full)
        monkeypatch.setattr(live_snapshots, "save_checkpoint", full)
    elif wrong == "a lost folder":
        writer.folder.rename(writer.folder.with_name("moved"))
    else:
        loss = "much"  # type: ignore[assignment]
    with caplog.at_level(logging.WARNING):
        for epoch in (1, 2):
            writer.log_step(epoch * STEPS, loss=loss, lr=0.1)
            writer.log_epoch(epoch, model, val_accuracy=0.5)
        writer.close()
    said = [record.getMessage() for record in caplog.records]
    assert said and len(said) == len(set(said)), "each thing is said once"


def test_unconvertible_model_causes_one_warning(
    open_writer: Callable[..., RunWriter], caplog: pytest.LogCaptureFixture
) -> None:
    writer = open_writer()
    train(timm.create_model("resnet10t", num_classes=3), writer)
    writer.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert len(notes(writer.folder)) == 1 and "resnet" in notes(writer.folder)[0]
    assert len(records_of(writer.folder)["validation"]) == 3, "its curves are there all the same"


def test_model_with_classes_unlike_its_copy_is_not_shown(open_writer: Callable[..., RunWriter]) -> None:
    class Inverted(type(new_model())):  # type: ignore[misc]
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(-images)

    model = new_model()
    model.__class__ = Inverted
    writer = open_writer()
    train(model, writer)
    writer.close()
    assert "differ from the module's" in " ".join(notes(writer.folder))
    assert not list_epochs(writer.folder / "probes") and run_of(writer).best is None
