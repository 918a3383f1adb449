"""Shared by all tests: what kind each is, a tiny model with every parameter random, and no network."""

import atexit
import functools
import gc
import math
import os
import shutil
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # before anything imports transformers
os.environ["TRANSFORMERS_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # before anything imports torch: as many processes as cores are at work
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command, Result
from empty_pictures import Write
from packed import Sandbox
from PIL import Image
from tiny import LABELS, TINY, fill

from tests.browser.serving import why_no_chromium
from vit.checkpoints import families
from vit.checkpoints.checkpoint import Checkpoint
from vit.cli.main import main
from vit.images.decode import silence_libraries
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

KINDS = {
    "browser": "browser",
    "firefox": "firefox",
    "pages": "page",
}  # of the tests in a folder; all others are unit tests


NO_CHROMIUM = "No Chromium starts here"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark every test by its kind; leave the browser tests out where there is no browser, but never in CI."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for item in items:
        item.add_marker(KINDS.get(item.path.parent.name, "unit"))
        if item.get_closest_marker("matrix") and (case := getattr(item, "callspec", None)):
            values = {(name, repr(value)) for name, value in case.params.items()}
            known = seen.setdefault(item.nodeid.partition("[")[0], set())
            if values <= known:  # nothing but another combination
                item.add_marker("exhaustive")
            known |= values
    browser = [item for item in items if item.get_closest_marker("browser")]
    if browser and not config.option.collectonly and os.environ.get("CI") != "true" and (why := why_no_chromium()):
        for item in browser:
            item.add_marker(pytest.mark.skip(f"{NO_CHROMIUM}: {why}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say in one line how many browser tests were left out, and why."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_CHROMIUM in str(report.longrepr)]
    if skipped:
        reason = str(skipped[0].longrepr[2]).removeprefix("Skipped: ")
        terminalreporter.write_line(
            f"{len(skipped)} browser tests were left out. {reason}. `make browser` installs one."
        )


@atexit.register  # the first to register is the last to run: what others print at exit is still seen
def silence_leaks() -> None:
    """Hide what onnx and triton print after the last exit function: 200 lines on objects that they have not freed."""
    if {"onnx", "triton"} & sys.modules.keys():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.fixture(scope="session")
def served() -> Iterator[None]:
    """What a server does once: AppTest compiles a page, and scans all that is installed for components, each time."""
    from streamlit.components.v2 import manifest_scanner
    from streamlit.testing.v1 import app_test, local_script_runner

    cache, scan = local_script_runner.ScriptCache(), functools.cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        for where in (app_test, local_script_runner):
            patch.setattr(where, "ScriptCache", lambda: cache)
        yield


@pytest.fixture(autouse=True, scope="module")
def prepared(request: pytest.FixtureRequest) -> None:
    """Tests of pages run them as a server does, and walk no garbage of other tests' libraries."""
    if request.path.parent.name == "pages":
        request.getfixturevalue("served")
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a page does by itself depends on no machine's speed; tests of the buttons set limits of their own."""
    if request.path.parent.name == "pages":
        from pages.comparison import contact_sheet
        from pages.panels import faithfulness, heads_over_pictures

        for where in (heads_over_pictures, contact_sheet):
            monkeypatch.setattr(where, "ASK_ABOVE", math.inf)
        monkeypatch.setattr(faithfulness, "ASK_ABOVE", 0.0)  # no verdict of hundreds of passes; see `verdicts`


@pytest.fixture(autouse=True)
def main_module() -> Iterator[None]:
    """AppTest leaves a page behind as `__main__`, which every process that another test starts would run first."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session", autouse=True)
def files_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test leaves uploaded pictures, runs or features beside the package."""
    os.environ.setdefault("VIT_RUNS", str(tmp_path_factory.mktemp("runs")))
    os.environ["VIT_PICTURES"] = str(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def randomise() -> Callable[..., Any]:
    """`randomise(model, seed)` fills every parameter and returns the model in evaluation mode."""
    return fill


@pytest.fixture(scope="session")
def tiny() -> ViTConfig:
    """32 px, patches of 8, D 64, L 2, H 2, 5 classes."""
    return ViTConfig(**TINY)


@pytest.fixture(scope="session")
def build() -> Callable[..., VisionTransformer]:
    """`build(seed=0, **changes)`: a tiny model with these config fields, randomised."""
    return lambda seed=0, **changes: fill(VisionTransformer(ViTConfig(**TINY | changes)), seed)


@pytest.fixture(scope="session")
def pictures() -> Callable[..., torch.Tensor]:
    """`pictures(height, width, count=2, channels=3)`: normalised noise."""

    def make(height: int = 32, width: int = 32, count: int = 2, channels: int = 3) -> torch.Tensor:
        return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(7))

    return make


@pytest.fixture(scope="session")
def preprocess() -> Preprocess:
    """For the tiny model."""
    return Preprocess((32, 32))


@pytest.fixture(scope="session")
def labels() -> tuple[str, ...]:
    """For the tiny model."""
    return LABELS


@pytest.fixture
def saved(tmp_path: Path, build: Callable[..., VisionTransformer], preprocess: Preprocess) -> Path:
    """The folder of a saved tiny checkpoint."""
    from vit.checkpoints.save import save_checkpoint

    return save_checkpoint(tmp_path / "tiny", build(), LABELS, preprocess, facts={"accuracy": 0.9, "data": "noise"})


@pytest.fixture
def checkpoint(saved: Path) -> Checkpoint:
    """The saved tiny checkpoint, opened."""
    from vit.checkpoints.load import load_checkpoint

    return load_checkpoint(saved)


@pytest.fixture
def saved_shapes(tmp_path: Path, build: Callable[..., VisionTransformer]) -> Path:
    """The folder of a saved tiny checkpoint that knows the generated shapes, by name only."""
    from vit.checkpoints.save import save_checkpoint
    from vit.data.shapes import SHAPES

    return save_checkpoint(tmp_path / "shapes", build(num_classes=4), SHAPES, Preprocess((32, 32)), {"accuracy": 0.25})


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """Whatever a test does: files appear in `into` only, and there only if the import succeeded."""
    one = Sandbox(tmp_path)
    beside = set(os.listdir(tmp_path.parent))
    yield one
    assert set(os.listdir(tmp_path.parent)) == beside
    assert set(os.listdir(tmp_path)) <= {"upload", "data"}
    if (tmp_path / "data").exists():
        assert set(os.listdir(tmp_path / "data")) <= {"pets"}
    assert all(name.startswith("data/pets/") for name in one.written())


@pytest.fixture
def silence(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No picture, good or bad, may print, log or warn, once a door has asked for it."""
    silence_libraries()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # of whatever other tests left for collection
        yield
    assert tuple(capfd.readouterr()) == ("", "") and not caplog.records


@pytest.fixture
def claimed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every file that is opened, at most one family says that it is its own: their order means nothing."""
    recognise = families._recognise

    def once(names: list[str]) -> families.Family:
        claims = [family.name for family in families.FAMILIES if family.claims(names)]
        assert len(claims) <= 1, claims
        return recognise(names)

    monkeypatch.setattr(families, "_recognise", once)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """`command("classify", ...)`: run it in this process."""

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse
            status = int(end.code or 0)
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], AbstractContextManager[Path]]]:
    """`with read_only(folder) as closed` has a copy of a folder that this process may read and not change."""
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to all but one user
        Path(place).chmod(0o755)
        monkeypatch.setenv("HOME", place)  # where libraries look for settings

        @contextmanager
        def close(folder: Path) -> Iterator[Path]:
            closed = Path(place) / folder.name
            shutil.copytree(folder, closed)
            closed.chmod(0o555)
            user = os.geteuid()
            if user == 0:  # who may change everything
                os.seteuid(65534)
            try:
                yield closed
            finally:
                os.seteuid(user)
                closed.chmod(0o755)

        yield close


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A file of noise."""
    path = tmp_path / "picture.png"
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """`write({"labels.csv": "...", "0.jpg": ""})`: files of a new folder; pictures may be empty."""

    def make(files: dict[str, str]) -> Path:
        folder = tmp_path_factory.mktemp("pets")
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return folder

    return make
