"""Installation with pip: the whole package, a command without Streamlit, and ranges that contain the pins."""

import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from vit.images.samples import SAMPLES

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = SETTINGS["project"]

# The command as pip's script runs it, with only the libraries of the bare installation importable.
COMMAND = """
import importlib.metadata, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
[script] = importlib.metadata.distribution("vit-attention-explorer").entry_points.select(group="console_scripts")
sys.argv = ["/usr/local/bin/" + script.name, *sys.argv[2:]]
sys.exit(script.load()())
"""
OF_EXTRAS = (
    "streamlit,pandas,plotly,matplotlib,av,authlib,tensorboard,pynvml,onnx,onnxscript,safetensors,timm,transformers"
)

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of the project's wheel."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for folder in ("vit", "pages"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=300)
    with ZipFile(next(source.glob("dist/*.whl"))) as wheel:
        wheel.extractall(site)
    return site


@pytest.fixture
def command(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Return `command("classify", ...)`, which runs the installed command in an empty folder."""
    for name in ("VIT_CHECKPOINTS", "VIT_DOWNLOADS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, OF_EXTRAS, *map(str, arguments)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_wheel_holds_exactly_the_files_of_the_package(installed: Path) -> None:
    ours = {path.relative_to(ROOT) for path in (ROOT / "vit").rglob("*") if path.is_file()}
    ours = {path for path in ours if "__pycache__" not in path.parts}
    result = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    assert {path for path in result if not path.parts[0].endswith(".dist-info")} == ours


@pytest.mark.slow
def test_command_classifies_without_the_libraries_of_the_app(command: Command) -> None:
    done = command("classify", SAMPLES["cat"].path, "--top", 1, "--checkpoint", ROOT / "checkpoints" / "cifar10")
    assert done.returncode == 0, done.stderr
    assert "%  cat " in done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_command_looks_for_checkpoints_in_the_current_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    done = command("classify", SAMPLES["cat"].path, "--top", 1)
    assert done.returncode == 0, done.stderr


@pytest.mark.exhaustive
@pytest.mark.slow
def test_command_without_any_checkpoint_says_in_one_sentence_what_to_do(command: Command) -> None:
    done = command("classify", SAMPLES["cat"].path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "There is no checkpoint 'everyday', and none in the folder checkpoints: name a file or folder of "
        "weights, or a model to download such as google/vit-base-patch16-224, or set VIT_CHECKPOINTS to their folder.\n"
    )


@pytest.mark.slow
def test_usage_shows_the_commands_name(command: Command) -> None:
    assert command("--help").stdout.startswith("usage: vit ")


def requirements() -> dict[str, Requirement]:
    """Return the requirements of the package and all extras, by name."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    result = [Requirement(text) for texts in lists for text in texts]
    return {canonicalize_name(one.name): one for one in result if one.name != PROJECT["name"]}


def pins() -> dict[str, str]:
    """Return the pinned version of each library."""
    lines = [
        line
        for name in ("", "-dev", "-cluster", "-mlflow", "-firefox")
        for line in (ROOT / f"requirements{name}.txt").read_text().splitlines()
    ]
    result = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?==([\w.]+)", line) for line in lines]
    return {canonicalize_name(one[1]): one[2] for one in result if one}


def test_every_range_contains_the_pinned_version() -> None:
    ranges = requirements()
    assert ranges.keys() == pins().keys()
    assert not {name: pin for name, pin in pins().items() if pin not in ranges[name].specifier}


def test_mypys_result_does_not_depend_on_whether_ray_is_installed() -> None:
    """Only the cluster tests install Ray; `make check` runs with and without it."""
    pinned = re.findall(r"^(\w[\w-]*)", (ROOT / "requirements-cluster.txt").read_text(), re.MULTILINE)
    skipped = [one for one in SETTINGS["tool"]["mypy"]["overrides"] if one["follow_imports"] == "skip"]
    assert {f"{name}.*" for name in pinned} == {module for one in skipped for module in one["module"]}


def imported(*places: str) -> dict[str, set[str]]:
    """Return the top-level names of third-party modules that the project imports, with the importing files."""
    found: dict[str, set[str]] = {}
    for path in (path for place in places for path in sorted(ROOT.glob(place))):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    ours = {"", "vit", "pages", *sys.stdlib_module_names}
    return {name: files for name, files in found.items() if name not in ours}


def test_every_imported_library_is_declared() -> None:
    """A transitive dependency may disappear; Streamlit's and Jupyter's are part of their interface."""
    brought = {"pandas", "starlette", "tornado", "IPython", "traitlets", "uvicorn"}
    owners = importlib.metadata.packages_distributions()
    declared = {*requirements(), "pyarrow", "mlflow"}  # dependencies of Ray and Streamlit, and of mlflow-skinny
    missing = {
        name: files
        for name, files in imported("vit/**/*.py", "pages/**/*.py", "app.py").items()
        if name not in brought and not {canonicalize_name(owner) for owner in owners.get(name, [name])} & declared
    }
    assert not missing
