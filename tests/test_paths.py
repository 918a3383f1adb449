"""Folders default to the project's own, the environment can override them, and the current directory is irrelevant."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vit import paths

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("folder", "variable", "name"),
    [
        (paths.checkpoints_folder, "VIT_CHECKPOINTS", "checkpoints"),
        (paths.downloads_folder, "VIT_DOWNLOADS", "downloads"),
        (paths.pictures_folder, "VIT_PICTURES", "pictures"),
        (paths.runs_folder, "VIT_RUNS", "runs"),
        (lambda: paths.data_roots()[0], "VIT_DATA_ROOTS", "data"),
    ],
)
def test_folder_is_the_projects_or_the_environments(
    folder: Callable[[], Path], variable: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert folder() == ROOT / name
    monkeypatch.setenv(variable, "")
    assert folder() == ROOT / name
    monkeypatch.setenv(variable, str(tmp_path))
    assert folder() == tmp_path


def test_another_python_finds_this_package_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (tmp_path / "beside.py").write_text("")
    program = "import beside, vit; print(vit.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path, env=paths.environment_with_package(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert Path(done.stdout.strip()) == ROOT / "vit" / "__init__.py"
    assert os.environ["PYTHONPATH"] == str(tmp_path)
