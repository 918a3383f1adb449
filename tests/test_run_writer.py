"""Run folders written from a foreign training loop: contents, status, and that the loop is not affected."""

import logging
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from tiny import difference
from torch import Tensor, nn

import vit
from vit.errors import InvalidConfig, InvalidRun
from vit.runs import control, registry
from vit.training import live_snapshots
from vit.training.metrics import MetricsReader, Record, best_epoch
from vit.training.run_folder import RECORD_STEPS
from vit.training.run_writer import RunWriter
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.payload import unpack

ROOT = Path(__file__).parents[1]
CLASSES = ("apple", "bus", "cat")
STEPS = 3  # of an epoch
INPUT = vit.Preprocess((32, 32), mean=(0.4, 0.5, 0.6), std=(0.2, 0.2, 0.2))


def pictures() -> list[Image.Image]:
    noise = np.random.default_rng(0).integers(0, 256, (9, 40, 48, 3), dtype=np.uint8)
    return [Image.fromarray(pixels) for pixels in noise]


def new_model() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", **sizes, num_classes=3, drop_rate=0.1, drop_path_rate=0.2)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def open_writer(folder: Path) -> Iterator[Callable[..., RunWriter]]:
    """Return `open_writer(...)`: a writer for three epochs of three steps, closed at the end."""
    writers = []

    def make(name: str = "theirs", **changes: Any) -> RunWriter:
        defaults = {"epochs": 3, "steps_per_epoch": STEPS, "pictures": pictures(), "labels": [0, 1, 2] * 3}
        defaults |= {"classes": CLASSES, "preprocess": INPUT}
        writers.append(RunWriter(folder / name, **defaults | changes))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def train(
    model: nn.Module, writer: RunWriter | None, epochs: int = 3, accuracy: tuple[float, ...] = (0.4, 0.8, 0.6)
) -> None:
    """Run a loop with dropout that evaluates after each epoch."""
    generator = torch.Generator().manual_seed(1)
    images, labels = torch.randn(12, 3, 32, 32, generator=generator), torch.arange(12) % 3
    optimizer, step = torch.optim.AdamW(model.parameters(), 1e-3), 0
    for epoch in range(1, epochs + 1):
        model.train()
        for place in range(STEPS):
            chosen = slice(4 * place, 4 * place + 4)
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if writer:
                writer.log_step(step, loss=loss, lr=1e-3)
        if writer:
            writer.log_epoch(epoch, model, val_loss=1 / epoch, val_accuracy=accuracy[epoch - 1])


def records_of(folder: Path) -> dict[str, list[Record]]:
    reader = MetricsReader(folder / "metrics.jsonl")
    reader.update()
    assert not reader.problem
    return reader.records


def notes(folder: Path) -> list[str]:
    return [record["text"] for record in records_of(folder).get("note", [])]


def run_of(writer: RunWriter) -> registry.Run:
    assert writer.folder
    return registry.find_run(writer.folder.name)


# --- The loop is not affected ---------------------------------------------------------------------------------------


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


def test_model_with_answers_unlike_its_copy_is_not_shown(open_writer: Callable[..., RunWriter]) -> None:
    class Inverted(type(new_model())):  # type: ignore[misc]
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(-images)

    model = new_model()
    model.__class__ = Inverted
    writer = open_writer()
    train(model, writer)
    writer.close()
    assert "answers otherwise" in " ".join(notes(writer.folder))
    assert not list_epochs(writer.folder / "probes") and run_of(writer).best is None


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


class Hybrid(nn.Module):
    """Attention over the pixels of a convolution: no supported family."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 24, 3, stride=4, padding=1), nn.ReLU(), nn.Conv2d(24, 48, 2, stride=2))
        self.mix = nn.MultiheadAttention(48, 3, batch_first=True, dropout=0.2)
        self.head = nn.Linear(48, 3)

    def forward(self, images: Tensor, attention: bool = False) -> Any:
        tokens = self.stem(images).flatten(2).transpose(1, 2)
        mixed, weights = self.mix(tokens, tokens, tokens, need_weights=attention, average_attn_weights=False)
        logits = self.head((tokens + mixed).mean(1))
        return SimpleNamespace(logits=logits, attentions=[weights]) if attention else logits


def attention_of(model: nn.Module, pixels: Tensor) -> Any:
    return model(pixels, attention=True)


def test_attention_of_an_unconvertible_model_is_its_own(open_writer: Callable[..., RunWriter]) -> None:
    writer, model = open_writer(attention=attention_of), Hybrid()
    train(model, writer)
    followed = writer._snapshots._writer
    pixels = ((followed.images / 255) - torch.tensor(INPUT.mean)[:, None, None]) / 0.2
    writer.close()
    with torch.no_grad():
        output = model.eval()(pixels, attention=True)
    assert list_epochs(writer.folder / "probes") == [1, 2, 3]
    for i, snapshot in enumerate(read_snapshots(writer.folder / "probes", 3)):
        header, _ = unpack(read_payload(writer.folder / "probes", 3, i))
        assert (header["blocks"], header["heads"], header["grid"], header["prefix"]) == (1, 3, [4, 4], [])
        label, probability = snapshot.predictions[0]
        expected = output.logits[i].softmax(0)
        assert label == CLASSES[int(expected.argmax())] and abs(probability - float(expected.max())) < 2e-5
        weights = output.attentions[0][i]
        spread = -(weights * weights.log()).sum(-1).mean(-1) / np.log(16)
        assert np.allclose(snapshot.entropy[0], spread, atol=1e-4)
    assert not run_of(writer).best and "Checkpoints are left out" in " ".join(notes(writer.folder))


def test_loop_whose_attention_is_read_computes_the_same_bits(open_writer: Callable[..., RunWriter]) -> None:
    watched, alone = Hybrid(), Hybrid()
    torch.manual_seed(1)
    train(watched, open_writer(attention=attention_of))
    torch.manual_seed(1)
    train(alone, None)
    assert all(torch.equal(one, other) for one, other in zip(watched.parameters(), alone.parameters(), strict=True))


@pytest.mark.parametrize(
    ("attention", "sentence"),
    [
        (lambda model, pixels: model(pixels), "one tensor (pictures, heads, tokens, tokens) per block"),
        (lambda model, pixels: [torch.rand(len(pixels), 3, 16, 16)], "must sum to 1"),
        (lambda model, pixels: [torch.rand(3, 16, 16)], "must be (6, heads, tokens, tokens), not (3, 16, 16)"),
        (lambda model, pixels: 1 / 0, "division by zero"),
    ],
)
def test_invalid_attention_causes_one_note(
    open_writer: Callable[..., RunWriter], attention: Any, sentence: str
) -> None:
    writer = open_writer(attention=attention)
    train(Hybrid(), writer)
    writer.close()
    assert sum(sentence in note for note in notes(writer.folder)) == 1
    assert len(records_of(writer.folder)["validation"]) == 3 and not list_epochs(writer.folder / "probes")


def test_attention_function_is_not_called_for_a_convertible_model(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer(attention=lambda model, pixels: pytest.fail("called"))
    train(new_model(), writer)
    writer.close()
    assert list_epochs(writer.folder / "probes") == [1, 2, 3] and not notes(writer.folder)


def test_attention_needs_the_preprocessing(open_writer: Callable[..., RunWriter]) -> None:
    with pytest.raises(InvalidConfig, match="give preprocess as well"):
        open_writer(attention=attention_of, preprocess=None)


# --- Status ---------------------------------------------------------------------------------------------------------


def test_run_is_alive_until_it_is_closed(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer(settings={"lr": 0.1}, name="theirs")
    run = run_of(writer)
    assert (run.status, run.loop, run.name, run.config) == ("running", "PyTorch", "theirs", {"lr": 0.1, "epochs": 3})
    for refused in (control.stop, control.kill, control.resume):
        with pytest.raises(InvalidRun, match="another program"):
            refused(run.id)
    train(new_model(), writer, epochs=2)
    writer.close()
    assert (run_of(writer).status, run_of(writer).reason) == ("finished", "Ended after 2 of 3 epochs.")
    assert run_of(writer).devices == ("cpu",)
    control.delete(run.id)


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("shapes"), "failed"), (KeyboardInterrupt(), "stopped")], ids=repr
)
def test_error_of_the_loop_is_reported(
    error: BaseException, status: str, open_writer: Callable[..., RunWriter]
) -> None:
    with pytest.raises(type(error)), open_writer() as writer:
        raise error
    assert run_of(writer).status == status
    assert status != "failed" or run_of(writer).reason == "ValueError: shapes"


KILLED = """
import os, signal, sys
import vit
writer = vit.RunWriter(sys.argv[1], epochs=2, steps_per_epoch=2)
writer.log_step(1, loss=1.0)
os.kill(os.getpid(), int(sys.argv[2])) if sys.argv[2] != "0" else None
"""


@pytest.mark.parametrize("end", [int(signal.SIGKILL), 0], ids=["killed", "without close"])
def test_vanished_process_reads_as_interrupted(end: int, folder: Path) -> None:
    path = folder / "dead"
    subprocess.run([sys.executable, "-c", KILLED, str(path), str(end)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    run = registry.find_run("dead")
    assert run.status == "interrupted" and "Resume it" not in run.reason


def test_run_is_continued_by_its_own_program(open_writer: Callable[..., RunWriter]) -> None:
    model = new_model()
    writer = open_writer()
    train(model, writer, epochs=2, accuracy=(0.4, 0.9))
    writer.close()
    again = open_writer(resume=True)
    again.log_step(4, loss=5.0)  # from a checkpoint after epoch 1
    again.log_epoch(2, model, val_accuracy=0.5)
    again.close()
    records = records_of(again.folder)
    assert [(one["step"], one["attempt"]) for one in records["step"]] == [(3, 0), (4, 1)]
    assert [(one["epoch"], one["accuracy"]) for one in records["validation"]] == [(1, 0.4), (2, 0.5)]


def test_only_the_leading_process_writes(
    open_writer: Callable[..., RunWriter], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("RANK", "1")
    writer = open_writer()
    train(new_model(), writer)
    writer.close()
    assert writer.folder is None and not folder.exists()


def test_forked_process_writes_nothing(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer()
    before = (writer.folder / "metrics.jsonl").read_bytes()
    child = os.fork()
    if not child:
        writer.log_step(1, loss=1.0)
        writer.close("failed")
        os._exit(0)
    os.waitpid(child, 0)
    assert (writer.folder / "metrics.jsonl").read_bytes() == before
    assert run_of(writer).status == "running"


FORKED = """
import os, sys
import vit
from vit.training.run_folder import is_alive
writer = vit.RunWriter(sys.argv[1], epochs=2, steps_per_epoch=2)
if not (child := os.fork()):
    sys.exit()  # through all that an interpreter does at its end
os.waitpid(child, 0)
assert is_alive(writer.folder)
"""


@pytest.mark.exhaustive
def test_end_of_a_forked_process_is_not_that_of_the_run(folder: Path) -> None:
    program = [sys.executable, "-c", FORKED, str(folder / "forked")]
    assert subprocess.run(program, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0


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
