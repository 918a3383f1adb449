"""Fixtures for tests of pages: the app with one small checkpoint."""

import math
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from streamlit.testing.v1 import AppTest
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from written_runs import write_run

import vit
from pages.looking import checkpoint_list
from pages.looking.panels import faithfulness
from pages.training import run_records
from pages.training.train_form import cost_preview
from tests.pages.controls import new_page
from vit.images.preprocess import Preprocess
from vit.model.transformer import Block, VisionTransformer
from vit.training.runs import control as runs
from vit.training.runs import registry

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def small_checkpoint_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the app open `cifar10` first, which is small."""
    monkeypatch.setattr(checkpoint_list, "SHIPPED", "cifar10")


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with checkpoint `cifar10`, which is small; the app loads and measures it once for all tests."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(ROOT / "checkpoints" / "cifar10", folder / "cifar10")
    return folder


@pytest.fixture
def page(request: pytest.FixtureRequest, shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The app with one small checkpoint and a link to a sample, not yet run."""
    if "checkpoints" in request.fixturenames:
        request.getfixturevalue("checkpoints")  # the test changes the folder
    else:
        monkeypatch.setenv("VIT_CHECKPOINTS", str(shipped))
        monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    return new_page(sample="cat")


@pytest.fixture
def only_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No runs and no downloads: the app has the checkpoints of the repository only."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DOWNLOADS", str(tmp_path / "downloads"))


@pytest.fixture
def forwards() -> Iterator[list[str]]:
    """A list that grows by one with every pass through a block of any model."""
    passed: list[str] = []

    def note(module: nn.Module, *_: object) -> None:
        if isinstance(module, Block):
            passed.append(type(module).__name__)

    handle = register_module_forward_pre_hook(note)
    yield passed
    handle.remove()


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make panel *Faithfulness* measure every displayed map, however long that takes."""
    monkeypatch.setattr(faithfulness, "BUTTON_ABOVE_SECONDS", math.inf)


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with checkpoint `cifar10` that the test may change."""
    shutil.copytree(ROOT / "checkpoints" / "cifar10", tmp_path / "cifar10")
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    return tmp_path


@pytest.fixture
def headless(checkpoints: Path, build: Callable[..., VisionTransformer]) -> str:
    """A checkpoint whose number of heads neither a file nor a convention determines."""
    vit.save_checkpoint(checkpoints / "whole", build(dim=96, heads=4), list("abcde"), Preprocess((32, 32)))
    weights = load_file(checkpoints / "whole" / "model.safetensors")
    (checkpoints / "headless").mkdir()
    save_file(weights, checkpoints / "headless" / "w.safetensors")
    return "headless"


@pytest.fixture
def trained(checkpoints: Path, saved: Path) -> str:
    """A run with a best checkpoint; returns its name in links."""
    for run in ("20260101-120000-tiny-aaaa", "20260102-120000-tiny-bbbb"):
        folder = checkpoints / "runs" / run
        shutil.copytree(saved, folder / "checkpoints" / "best")
        (folder / "config.json").write_text("{}")
        (folder / "about.json").write_text('{"name": "Tiny <b>"}')
    shutil.rmtree(saved)  # it would be listed among the other checkpoints
    return f"run-{run}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of this test's runs."""
    (tmp_path / "runs").mkdir()
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    run_records.forget()
    return tmp_path / "runs"


@pytest.fixture
def write(folder: Path) -> Callable[..., str]:
    """Return `write(name, ...)`, which writes a run with `write_run` and returns its id."""
    return partial(write_run, folder)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate folder for runs and data; runs started there are killed at the end."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    # Fixed values, because concurrent tests take the memory that a recipe would need.
    monkeypatch.setattr(cost_preview, "memory_of_this_machine", lambda: (24 * 10**9, 20 * 10**9))
    (tmp_path / "data").mkdir()
    yield tmp_path
    for run in registry.list_runs():
        if run.alive:
            runs.kill(run.id)
