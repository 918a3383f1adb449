"""Training when the memory runs out: batches are split, with the gradient of the whole."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from noise_runs import describe, figures

from vit.model.transformer import VisionTransformer
from vit.training.loop.distributed import set_up_process
from vit.training.loop.metrics import read_metrics
from vit.training.loop.step import OutOfMemory
from vit.training.loop.train import train
from vit.training.loop.trainer import Trainer

pytestmark = pytest.mark.slow


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
