"""Fixtures and hooks for all tests: markers, a tiny model with random parameters, and no network."""

import atexit
import functools
import gc
import math
import os
import shutil
import sys
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"  # must be set before transformers is imported
os.environ["TRANSFORMERS_OFFLINE"] = "1"
if "PYTEST_XDIST_WORKER" in os.environ:  # must be set before torch is imported: xdist keeps every core busy
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
from patience import PATIENCE
from PIL import Image
from tiny import LABELS, TINY, fill
from xdist.scheduler import LoadFileScheduling

from tests.browser.serving import why_no_chromium
from vit.checkpoints import families, recognition
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.families.family import Family
from vit.cli.main import main
from vit.errors import UserError
from vit.images.files.decode import silence_libraries
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

collect_ignore = ["on_device"]  # a process of its own, which tests/test_on_device.py starts
collect_ignore_glob = ["*conftest.py"]  # several modules of one name cannot be searched for doctests

KINDS = {
    "browser": "browser",
    "firefox": "firefox",
    "pages": "page",
    "webkit": "webkit",
}  # marker of the tests in a folder; all others are unit tests


NO_CHROMIUM = "No Chromium starts here"

# Browser tests that use a server of their own; the others share one, which takes ten seconds of a core to start.
OWN_SERVER = ("checkpoints", "compare", "lesson", "notebook", "runs", "standalone", "train", "watchdog")


class ServerSharing(LoadFileScheduling):  # type: ignore[misc]
    """Run each file in one worker, and all browser tests that share a server in the same one."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.split("::", 1)[0]
        folder, _, name = file.rpartition("/test_")
        if folder != "tests/browser" or name.removesuffix(".py") in OWN_SERVER:
            return file
        return "viewer page" if name.startswith("viewer") else "app"


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ServerSharing:
    """Distribute tests to workers."""
    return ServerSharing(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test by its kind. Skip browser tests if no browser starts, but never in CI."""
    seen: dict[str, set[tuple[str, str]]] = {}
    for item in items:
        item.add_marker(KINDS.get(item.path.parent.name, "unit"))
        if item.get_closest_marker("matrix") and (case := getattr(item, "callspec", None)):
            values = {(name, repr(value)) for name, value in case.params.items()}
            known = seen.setdefault(item.nodeid.partition("[")[0], set())
            if values <= known:  # no new value, only a new combination
                item.add_marker("exhaustive")
            known |= values
    browser = [item for item in items if item.get_closest_marker("browser")]
    if browser and not config.option.collectonly and os.environ.get("CI") != "true" and (why := why_no_chromium()):
        for item in browser:
            item.add_marker(pytest.mark.skip(f"{NO_CHROMIUM}: {why}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line with the number of skipped browser tests and the reason."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if NO_CHROMIUM in str(report.longrepr)]
    if skipped:
        reason = str(skipped[0].longrepr[2]).removeprefix("Skipped: ")
        terminalreporter.write_line(
            f"{len(skipped)} browser tests were left out. {reason}. `make browser` installs one."
        )


@pytest.fixture
def short_refusals(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that every refusal is at most 250 characters on one line."""

    def checked(error: UserError, *arguments: Any) -> None:
        words = str(arguments[0]).replace(str(tmp_path), "")
        assert 0 < len(words) <= 250 and "\n" not in words, f"{len(words)} characters: {words}"
        Exception.__init__(error, *arguments)

    monkeypatch.setattr(UserError, "__init__", checked)


@atexit.register  # atexit runs functions in reverse order: registered first, this runs last and hides no other output
def silence_leaks() -> None:
    """Discard the output of onnx and triton after the last exit function: 200 lines on leaked objects."""
    if {"onnx", "triton"} & sys.modules.keys():
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


@pytest.fixture(scope="session")
def server_caches() -> Iterator[None]:
    """Cache across tests what a server does once: AppTest compiles the page and scans for components on each run."""
    from streamlit.components.v2 import manifest_scanner
    from streamlit.testing.v1 import app_test, local_script_runner

    cache, scan = local_script_runner.ScriptCache(), functools.cache(manifest_scanner.scan_component_manifests)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", scan)
        for where in (app_test, local_script_runner):
            patch.setattr(where, "ScriptCache", lambda: cache)
        yield


@pytest.fixture(autouse=True, scope="module")
def prepare_page_tests(request: pytest.FixtureRequest) -> None:
    """Use the server's caches in tests of pages, and keep the garbage collector from walking other tests' objects."""
    if request.path.parent.name == "pages":
        request.getfixturevalue("server_caches")
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def without_cost_limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make pages compute regardless of the machine's speed; tests of the buttons set limits of their own."""
    if request.path.parent.name == "pages":
        from pages.looking import checkpoint_list
        from pages.looking.panels import faithfulness
        from pages.shared import job_progress, long_passes

        monkeypatch.setattr(long_passes, "BUTTON_ABOVE_SECONDS", math.inf)
        monkeypatch.setattr(faithfulness, "BUTTON_ABOVE_SECONDS", 0.0)  # no verdict: hundreds of passes; see `verdicts`
        monkeypatch.setattr(job_progress, "WAIT", None)  # archives are unpacked in one run of the page
        monkeypatch.setattr(checkpoint_list, "WAIT", PATIENCE)


@pytest.fixture(autouse=True)
def restore_main_module() -> Iterator[None]:
    """Restore `__main__`: AppTest leaves the page there, and every process that another test starts would run it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session", autouse=True)
def temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep uploaded pictures, runs and features out of the repository."""
    os.environ.setdefault("VIT_RUNS", str(tmp_path_factory.mktemp("runs")))
    os.environ["HF_HUB_CACHE"] = str(tmp_path_factory.mktemp("hub"))
    os.environ["VIT_PICTURES"] = str(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def randomise() -> Callable[..., Any]:
    """Return `randomise(model, seed)`, which fills every parameter and returns the model in evaluation mode."""
    return fill


@pytest.fixture(scope="session")
def tiny() -> ViTConfig:
    """Config of the tiny model: 32 px, patches of 8, D 64, L 2, H 2, 5 classes."""
    return ViTConfig(**TINY)


@pytest.fixture(scope="session")
def build() -> Callable[..., VisionTransformer]:
    """Return `build(seed=0, **changes)`: a tiny, randomised model with these config fields."""
    return lambda seed=0, **changes: fill(VisionTransformer(ViTConfig(**TINY | changes)), seed)


@pytest.fixture(scope="session")
def pictures() -> Callable[..., torch.Tensor]:
    """Return `pictures(height, width, count=2, channels=3)`: normalised noise."""

    def make(height: int = 32, width: int = 32, count: int = 2, channels: int = 3) -> torch.Tensor:
        return torch.randn(count, channels, height, width, generator=torch.Generator().manual_seed(7))

    return make


@pytest.fixture(scope="session")
def preprocess() -> Preprocess:
    """Preprocessing of the tiny model."""
    return Preprocess((32, 32))


@pytest.fixture(scope="session")
def labels() -> tuple[str, ...]:
    """Labels of the tiny model."""
    return LABELS


@pytest.fixture
def saved(tmp_path: Path, build: Callable[..., VisionTransformer], preprocess: Preprocess) -> Path:
    """Folder of a saved tiny checkpoint."""
    from vit.checkpoints.save import save_checkpoint

    return save_checkpoint(tmp_path / "tiny", build(), LABELS, preprocess, facts={"accuracy": 0.9, "data": "noise"})


@pytest.fixture
def checkpoint(saved: Path) -> Checkpoint:
    """The saved tiny checkpoint, loaded."""
    from vit.checkpoints.load import load_checkpoint

    return load_checkpoint(saved)


@pytest.fixture
def saved_shapes(tmp_path: Path, build: Callable[..., VisionTransformer]) -> Path:
    """Folder of a saved, untrained tiny checkpoint with the labels of the generated shapes."""
    from vit.checkpoints.save import save_checkpoint
    from vit.data.shapes import SHAPES

    return save_checkpoint(tmp_path / "shapes", build(num_classes=4), SHAPES, Preprocess((32, 32)), {"accuracy": 0.25})


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """Check after each test that files appear only in `into`, and only if the import succeeded."""
    one = Sandbox(tmp_path)
    beside = set(os.listdir(tmp_path.parent))
    yield one
    assert set(os.listdir(tmp_path.parent)) == beside
    assert set(os.listdir(tmp_path)) <= {"upload", "data"}
    if (tmp_path / "data").exists():
        assert set(os.listdir(tmp_path / "data")) <= {"pets"}
    assert all(name.startswith("data/pets/") for name in one.written())


@pytest.fixture
def assert_silence(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that decoding prints, logs and warns nothing once `silence_libraries` has been called."""
    silence_libraries()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # from garbage of other tests
        yield
    assert tuple(capfd.readouterr()) == ("", "") and not caplog.records


@pytest.fixture
def claimed_by_one_family(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that at most one family claims each file that is loaded, so that the order of families is irrelevant."""
    recognise = recognition._recognise

    def recognise_and_check(names: list[str]) -> Family:
        claims = [family.name for family in families.FAMILIES if family.claims(names)]
        assert len(claims) <= 1, claims
        return recognise(names)

    monkeypatch.setattr(recognition, "_recognise", recognise_and_check)


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Return `command("classify", ...)`, which runs the command line in this process."""

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
    """Return `read_only(folder)`, a context manager with a copy of a folder that this process cannot write."""
    with tempfile.TemporaryDirectory() as place:  # only their owner can read pytest's own folders
        Path(place).chmod(0o755)
        monkeypatch.setenv("HOME", place)  # libraries look for settings there

        @contextmanager
        def close(folder: Path) -> Iterator[Path]:
            closed = Path(place) / folder.name
            shutil.copytree(folder, closed)
            closed.chmod(0o555)
            user = os.geteuid()
            if user == 0:  # root can write everywhere
                os.seteuid(65534)
            try:
                yield closed
            finally:
                os.seteuid(user)
                closed.chmod(0o755)

        yield close


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    """A PNG file of noise."""
    path = tmp_path / "picture.png"
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    """Return `write({"labels.csv": "...", "0.jpg": ""})`, which writes a new folder; pictures may be empty."""

    def make(files: dict[str, str]) -> Path:
        folder = tmp_path_factory.mktemp("pets")
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        return folder

    return make
