"""What `pip install` brings: the package whole, a command that needs no Streamlit, ranges that hold the pins."""

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

# The command as pip's script runs it, where only the libraries of the bare installation can be imported.
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
    """A folder with what the project's wheel holds."""
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
    """`command("classify", ...)`: run what is installed, in an empty folder."""
    for name in ("VIT_CHECKPOINTS", "VIT_DOWNLOADS"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", COMMAND, OF_EXTRAS, *map(str, arguments)],
            cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(installed)}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


@pytest.mark.slow
def test_all_files_of_the_package_are_installed_and_nothing_else(installed: Path) -> None:
    ours = {path.relative_to(ROOT) for path in (ROOT / "vit").rglob("*") if path.is_file()}
    ours = {path for path in ours if "__pycache__" not in path.parts}
    result = {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()}
    assert {path for path in result if not path.parts[0].endswith(".dist-info")} == ours


@pytest.mark.slow
def test_the_command_says_what_is_on_a_picture_without_the_libraries_of_the_app(command: Command) -> None:
    done = command("classify", SAMPLES["cat"].path, "--top", 1, "--checkpoint", ROOT / "checkpoints" / "cifar10")
    assert done.returncode == 0, done.stderr
    assert "%  cat " in done.stdout


@pytest.mark.slow
def test_the_command_looks_for_checkpoints_in_the_current_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").symlink_to(ROOT / "checkpoints")
    done = command("classify", SAMPLES["cat"].path, "--top", 1)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_without_any_checkpoint_the_command_says_in_one_sentence_what_to_do(command: Command) -> None:
    done = command("classify", SAMPLES["cat"].path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "There is no checkpoint 'cifar10', and none at all in the folder checkpoints: name a folder or file of "
        "weights, or one to download such as google/vit-base-patch16-224, or let the environment variable "
        "VIT_CHECKPOINTS say where checkpoints lie.\n"
    )


@pytest.mark.slow
def test_the_command_calls_itself_by_its_name(command: Command) -> None:
    assert command("--help").stdout.startswith("usage: vit ")


def requirements() -> dict[str, Requirement]:
    """Of the package and all of its extras, by name."""
    lists = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    result = [Requirement(text) for texts in lists for text in texts]
    return {canonicalize_name(one.name): one for one in result if one.name != PROJECT["name"]}


def pins() -> dict[str, str]:
    """The version of each library that the tests run with."""
    lines = [
        line
        for name in ("", "-dev", "-cluster", "-mlflow", "-firefox")
        for line in (ROOT / f"requirements{name}.txt").read_text().splitlines()
    ]
    result = [re.fullmatch(r"([\w-]+)(?:\[[\w,]+\])?==([\w.]+)", line) for line in lines]
    return {canonicalize_name(one[1]): one[2] for one in result if one}


def test_every_range_holds_the_version_that_is_pinned() -> None:
    ranges = requirements()
    assert ranges.keys() == pins().keys()
    assert not {name: pin for name, pin in pins().items() if pin not in ranges[name].specifier}


def test_what_mypy_says_does_not_depend_on_whether_ray_is_installed() -> None:
    """Only the cluster tests bring Ray; `make check` runs with and without it."""
    pinned = re.findall(r"^(\w[\w-]*)", (ROOT / "requirements-cluster.txt").read_text(), re.MULTILINE)
    skipped = [one for one in SETTINGS["tool"]["mypy"]["overrides"] if one["follow_imports"] == "skip"]
    assert {f"{name}.*" for name in pinned} == {module for one in skipped for module in one["module"]}


def imported(*places: str) -> dict[str, set[str]]:
    """Modules of other projects that files import, by the top name, with the files."""
    found: dict[str, set[str]] = {}
    for path in (path for place in places for path in sorted(ROOT.glob(place))):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            for name in names:
                found.setdefault(name.partition(".")[0], set()).add(str(path.relative_to(ROOT)))
    ours = {"", "vit", "pages", *sys.stdlib_module_names}
    return {name: files for name, files in found.items() if name not in ours}


def test_every_library_that_is_imported_is_declared() -> None:
    """Not only brought along by another one, which may stop to do so; Streamlit and Jupyter promise theirs."""
    brought = {"pandas", "starlette", "tornado", "IPython", "traitlets", "uvicorn"}
    owners = importlib.metadata.packages_distributions()
    declared = {*requirements(), "pyarrow", "mlflow"}  # Ray and Streamlit bring the one, mlflow-skinny the other
    missing = {
        name: files
        for name, files in imported("vit/**/*.py", "pages/**/*.py", "app.py").items()
        if name not in brought and not {canonicalize_name(owner) for owner in owners.get(name, [name])} & declared
    }
    assert not missing
