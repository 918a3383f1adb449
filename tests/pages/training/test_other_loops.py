"""Foreign training loops from the docs: the run is on page Runs, and its model opens in Explore."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import streamlit as st
import torch
import transformers
from PIL import Image
from torch import Tensor, nn

import vit
from pages.training import run_records
from tests.pages.controls import app_page, texts
from tests.pages.runs_page import option, show
from vit.training.loop.metrics import read_metrics
from vit.training.runs import registry
from vit.view.attention_snapshots import list_epochs, read_payload
from vit.view.payload import unpack

ROOT = Path(__file__).parents[3]
LOOPS = {"Plain PyTorch": "PyTorch", "Lightning": "Lightning", "Trainer": "transformers"}
PICTURES, BATCH, EPOCHS = 8, 4, 2
HALF = (0.5, 0.5, 0.5)


class Module(lightning.LightningModule):
    """As in common tutorials."""

    def __init__(self) -> None:
        super().__init__()
        self.network = _timm_vit()

    def training_step(self, batch: tuple[Tensor, Tensor], _: int) -> Tensor:
        return nn.functional.cross_entropy(self.network(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], _: int) -> None:
        logits = self.network(batch[0])
        self.log("val_loss", nn.functional.cross_entropy(logits, batch[1]))
        self.log("val_accuracy", (logits.argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def _timm_vit() -> nn.Module:
    import timm

    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4}
    return timm.create_model("vit_tiny_patch16_224", num_classes=2, **sizes)


def _pictures(side: int) -> tuple[list[Image.Image], list[int], Tensor]:
    """Return PIL pictures, their labels, and a loader's tensors."""
    noise = np.random.default_rng(0).integers(0, 256, (PICTURES, side, side, 3), dtype=np.uint8)
    images = (torch.from_numpy(noise).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    return [Image.fromarray(pixels) for pixels in noise], [i % 2 for i in range(PICTURES)], images


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of the runs that the document's code blocks write, each as it ends."""
    work = tmp_path_factory.mktemp("loops")
    st.get_option("server.address")  # Streamlit reads its settings once, from the current folder
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "other-loops.md").read_text(), re.M | re.S)
    assert len(blocks) == len(LOOPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(work)
        patch.setenv("VIT_RUNS", str(work / "runs"))
        for block, side in zip(blocks, (96, 32, 32), strict=True):
            torch.manual_seed(0)
            pictures, labels, images = _pictures(side)
            data = torch.utils.data.TensorDataset(images, torch.tensor(labels))
            config = transformers.ViTConfig(
                image_size=32, patch_size=8, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=96, num_labels=2,
            )  # fmt: skip
            names: dict[str, Any] = {
                "pictures": pictures,
                "labels": labels,
                "loader": torch.utils.data.DataLoader(data, batch_size=BATCH),
                "module": Module(),
                "classifier": transformers.ViTForImageClassification(config),
                "dataset": [{"pixel_values": x, "labels": y} for x, y in zip(images, labels, strict=True)],
            }
            exec(compile(block, "other-loops.md", "exec"), names)
        yield work / "runs"


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Run:
    monkeypatch.setenv("VIT_RUNS", str(runs))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    run_records.forget()
    return next(run for run in registry.list_runs() if run.name == request.param)


def test_folder_has_the_loops_metrics(run: registry.Run) -> None:
    records = read_metrics(run.folder / "metrics.jsonl")
    epochs = [(one["step"], one["epoch"]) for one in records if one["kind"] == "validation"]
    steps = PICTURES // BATCH
    assert epochs == [(steps * epoch, epoch) for epoch in range(1, EPOCHS + 1)]
    assert all(0 <= one["accuracy"] <= 1 for one in records if one["kind"] == "validation")
    losses = [one for one in records if one["kind"] == "step"]
    assert losses[-1]["step"] == steps * EPOCHS and all(one["lr"] > 0 for one in losses)
    assert (run.status, run.loop) == ("finished", LOOPS[run.name])


def test_attention_over_epochs_equals_that_of_the_saved_checkpoint(run: registry.Run) -> None:
    assert list_epochs(run.folder / "probes") == [1, 2]
    checkpoint = vit.load_checkpoint(run.best)
    assert checkpoint.labels == ("cat", "dog") and checkpoint.preprocess.mean == HALF
    picture = _pictures(checkpoint.config.image_size[0])[0][0]
    with torch.inference_mode():
        output = checkpoint.model(checkpoint.preprocess(picture), output_attentions=True)
    maps = unpack(read_payload(run.folder / "probes", checkpoint.facts["epochs"], 0))[1]
    stored = maps["maps"] / 255 * maps["scales"][..., None]
    assert np.abs(stored - torch.stack([a[0] for a in output.attentions])[..., 1:].numpy()).max() < 2 / 510


def test_page_runs_shows_the_run(run: registry.Run) -> None:
    page = show(run.id)
    assert not page.error
    assert set(page.dataframe[0].value["Run"]) == set(LOOPS)
    keys = {button.key for button in page.button}
    assert "delete" in keys and not keys & {"stop", "kill", "resume"}
    assert f"Trained by another program ({LOOPS[run.name]})" in texts(page)
    records = read_metrics(run.folder / "metrics.jsonl")
    measured = [[one["epoch"], 100 * one["accuracy"]] for one in records if one["kind"] == "validation"]
    [accuracy] = option(page, "accuracy")["series"]
    assert accuracy["data"] == measured
    losses = [one["loss"] for one in records if one["kind"] == "step"]
    raw = option(page, "loss")["series"][0]["data"]
    assert [y for _, y in raw] == pytest.approx(losses, rel=1e-4)
    assert page.segmented_control(key="view").options == ["Curves", "Attention", "Results", "Settings"]


def test_active_foreign_run_has_no_stop_buttons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path))
    with vit.RunWriter(epochs=2, steps_per_epoch=2, loop="JAX") as writer:
        page = show(writer.folder.name)
        assert page.dataframe[0].value["Status"].tolist() == ["Running"]
        assert not {"stop", "kill", "delete"} & {button.key for button in page.button}
        assert "Trained by another program (JAX)" in texts(page)


def test_page_runs_shows_its_attention_and_results(run: registry.Run) -> None:
    page = show(run.id, view="attention")
    assert not page.error
    assert page.select_slider(key="epoch").options == ["1", "2"]
    page = show(run.id, view="results")
    assert "not evaluated here" in texts(page)


def test_page_explore_opens_its_model(run: registry.Run) -> None:
    page = app_page(checkpoint=f"run-{run.id}", sample="cat")
    assert not page.error
    assert {"cat", "dog"} <= set(re.findall(r"\b(?:cat|dog)\b", texts(page)))
