"""Pictures explained after every epoch: contents, size, and that training is not affected."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vit.errors import InvalidRun
from vit.explain.maps import entropy
from vit.images.preprocess import Normalise, Preprocess
from vit.model.transformer import VisionTransformer
from vit.training.loop import snapshot_writer
from vit.training.loop.snapshot_writer import SnapshotWriter, choose
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.payload import unpack

Build = Callable[..., VisionTransformer]
INPUT = Preprocess((32, 32), mean=(0.2, 0.4, 0.6), std=(0.1, 0.2, 0.3))


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def writer(tmp_path: Path, images: Tensor, labels: tuple[str, ...]) -> SnapshotWriter:
    return SnapshotWriter(tmp_path / "probes", images, [4, 0, 2], labels, INPUT)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_stored_attention_equals_the_models(writer: SnapshotWriter, build: Build, images: Tensor) -> None:
    model = build()
    writer.store(1, model)
    with torch.inference_mode():
        output = model(Normalise(INPUT, torch.device("cpu"))(images[2:]), output_attentions=True)
    probabilities = output.logits[0].softmax(0)
    spread = torch.stack([entropy(a[0]).mean(-1) for a in output.attentions])
    snapshot = read_snapshots(writer.folder, 1)[2]
    assert snapshot.label == "cat"
    assert snapshot.probability == pytest.approx(probabilities[2].item(), abs=1e-5)
    assert snapshot.predictions[0][1] == pytest.approx(probabilities.max().item(), abs=1e-5)
    assert len(snapshot.predictions) == 5
    np.testing.assert_allclose(snapshot.entropy, spread, atol=1e-4)

    header, sections = unpack(read_payload(writer.folder, 1, 2))
    assert header["box"] == [0, 0, 32, 32]
    maps = sections["maps"] / 255 * sections["scales"][..., None]
    attention = torch.stack([a[0] for a in output.attentions])[..., 1:].numpy()
    assert np.abs(maps - attention).max() < 2 / 510


def test_attention_of_a_pooling_query_is_stored(writer: SnapshotWriter, build: Build, images: Tensor) -> None:
    model = build(pool="map", prefix=())
    writer.store(1, model)
    with torch.inference_mode():
        output = model(Normalise(INPUT, torch.device("cpu"))(images[2:]), output_attentions=True)
    np.testing.assert_allclose(
        unpack(read_payload(writer.folder, 1, 2))[1]["pool"], output.pool_attention[0], atol=1e-5
    )


@pytest.mark.parametrize("training", [True, False])
def test_model_is_unchanged(writer: SnapshotWriter, build: Build, training: bool) -> None:
    model = build(dropout=0.5).train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    torch.manual_seed(3)
    state = torch.get_rng_state()
    writer.store(1, model)
    assert model.training is training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_grey_pictures_are_explained(tmp_path: Path, build: Build) -> None:
    grey = Preprocess((32, 32), mean=(0.5,), std=(0.5,))
    writer = SnapshotWriter(tmp_path / "p", torch.zeros(1, 1, 32, 32, dtype=torch.uint8), [0], "ab", grey)
    writer.store(1, build(channels=1, num_classes=2))
    assert unpack(read_payload(writer.folder, 1, 0))[0]["grid"] == [4, 4]


def test_large_model_stores_fewer_pictures(
    writer: SnapshotWriter, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.store(1, build())
    monkeypatch.setattr(snapshot_writer, "EPOCH_BYTES", 2 * snapshot_writer._payload_bytes(build().config))
    writer.store(2, build())
    monkeypatch.setattr(snapshot_writer, "EPOCH_BYTES", 10)
    writer.store(3, build())
    assert [len(read_snapshots(writer.folder, epoch)) for epoch in (1, 2, 3)] == [3, 2, 1]


def test_size_of_a_payload_is_predicted(build: Build, writer: SnapshotWriter) -> None:
    for changes in ({}, {"image_size": (256, 256)}):
        model = build(**changes)
        height, width = model.config.image_size
        image = torch.zeros(1, 3, height, width, dtype=torch.uint8)
        writer = SnapshotWriter(writer.folder, image, [0], "abcde", Preprocess((height, width)))
        writer.store(1, model)
        result = len(read_payload(writer.folder, 1, 0))
        assert snapshot_writer._payload_bytes(model.config) == pytest.approx(result, rel=0.5)


def test_folder_stays_small(writer: SnapshotWriter, build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    writer.store(1, model)
    size = (writer.folder / "epoch-00001.zip").stat().st_size
    monkeypatch.setattr(snapshot_writer, "FOLDER_BYTES", size * 6)
    for epoch in range(2, 40):
        writer.store(epoch, model)
        epochs = list_epochs(writer.folder)
        assert epochs[0] == 1 and epochs[-1] == epoch
        assert sum(len(file) for file in content(writer.folder).values()) <= size * 6
    assert len(epochs) >= 4
    assert len(set(np.diff(epochs[:-1]))) == 1, "the epochs between are spread evenly"


def test_resumed_run_leaves_the_same_files(
    writer: SnapshotWriter, build: Build, images: Tensor, tmp_path: Path, labels: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(snapshot_writer, "FOLDER_BYTES", 5 * 20_000)
    again = SnapshotWriter(tmp_path / "again", images, [4, 0, 2], labels, INPUT)
    for epoch in range(1, 20):
        writer.store(epoch, build(epoch))
        again.store(epoch, build(epoch))
        if epoch % 4 == 0:  # killed after an epoch was explained and before the state was saved
            again.store(epoch, build(epoch))
        assert content(writer.folder) == content(again.folder)


def test_epochs_that_a_resumed_run_repeats_are_deleted(writer: SnapshotWriter, build: Build) -> None:
    for epoch in (1, 2, 3, 4, 2):
        writer.store(epoch, build())
    assert list_epochs(writer.folder) == [1, 2]


def test_error_in_the_model_does_not_end_a_run(
    writer: SnapshotWriter, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    model = build(image_size=(16, 16)).train()
    model.forward = lambda *_, **__: (_ for _ in ()).throw(torch.OutOfMemoryError("out of memory"))  # type: ignore
    writer.store(1, model)
    assert "epoch 1 were not explained" in caplog.text
    assert model.training and list_epochs(writer.folder) == []


def test_non_finite_numbers_do_not_end_a_run(writer: SnapshotWriter, build: Build) -> None:
    model = build()
    with torch.no_grad():
        model.head.weight.fill_(torch.nan)
    writer.store(1, model)


def test_full_disk_is_reported_and_leaves_no_partial_file(
    writer: SnapshotWriter, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.store(1, build())

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(snapshot_writer, "_add_member", full)
    with pytest.raises(OSError, match="No space"):
        writer.store(2, build())
    assert list(content(writer.folder)) == ["epoch-00001.zip"]


def test_reader_names_what_is_missing(writer: SnapshotWriter, build: Build) -> None:
    assert list_epochs(writer.folder) == []
    writer.store(7, build())
    with pytest.raises(InvalidRun, match="epoch 3 are not kept"):
        read_snapshots(writer.folder, 3)
    with pytest.raises(InvalidRun, match="damaged"):
        read_payload(writer.folder, 7, 99)
    path = writer.folder / "epoch-00007.zip"
    path.write_bytes(path.read_bytes()[:200])
    for _ in range(2):
        for read in (lambda: read_snapshots(writer.folder, 7), lambda: read_payload(writer.folder, 7, 0)):
            with pytest.raises(InvalidRun, match="damaged"):
                read()
        path.unlink()
        os.mkfifo(path)  # a pipe without a writer


def test_pictures_are_spread_over_the_classes() -> None:
    labels = torch.arange(100) // 10
    assert len({int(labels[i]) for i in choose(labels)}) == 6
    assert sorted(choose(torch.tensor([1, 0, 0, 1, 0]))) == [0, 1, 2, 3, 4]
    assert choose(torch.tensor([1, 0, 0]), 2) == [1, 0]


def test_reading_needs_no_torch() -> None:
    import subprocess
    import sys

    modules = "sys, vit.view.attention_snapshots, vit.view.payload, vit.view.selection"
    code = f"import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
