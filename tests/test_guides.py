"""The guides for extensions work when followed literally: each builds an example, whose own test passes."""

import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vit.explain import methods
from vit.explain.recorded_pass import RecordedPass

ROOT = Path(__file__).parents[1]
GUIDES = ("adding-a-panel.md", "adding-a-dataset-format.md", "adding-an-engine.md")
BLOCK = re.compile(r"^```(python|diff)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def follow(guide: str, folder: Path) -> str:
    """Write and change the files of a guide in a copy of the project, and return the path of its test."""
    test = ""
    for language, block in BLOCK.findall((ROOT / "docs" / guide).read_text()):
        header, _, body = block.partition("\n")
        if language == "python":
            path = header.removeprefix("# ")
            assert not (folder / path).exists()
            (folder / path).write_text(body)
            test = path if path.startswith("tests/") else test
        else:
            path = header.removeprefix("--- ")
            (folder / path).write_text(patched((folder / path).read_text(), body))
    return test


def patched(text: str, diff: str) -> str:
    """Apply the hunks of a diff without line numbers, each of which matches exactly one place."""
    for hunk in diff.split("@@\n")[1:]:
        lines = hunk.splitlines(keepends=True)
        before = "".join(line[1:] for line in lines if line[0] != "+")
        assert text.count(before) == 1, before
        text = text.replace(before, "".join(line[1:] for line in lines if line[0] != "-"))
    return text


@pytest.mark.exhaustive
@pytest.mark.slow
def test_examples_of_the_guides_pass_their_own_tests(tmp_path: Path) -> None:
    for name in ("vit", "pages", "tests", "checkpoints/cifar10", ".streamlit"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("app.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    tests = [follow(guide, tmp_path) for guide in GUIDES]
    contract = ["tests/training/engines/test_contract.py", "-k", "spool", "-m", "not exhaustive"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    for arguments in (tests, contract):
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_hunk_that_matches_nowhere_or_twice_is_refused() -> None:
    assert patched("a\nb\n", "+++ x\n@@\n a\n-b\n+c\n") == "a\nc\n"
    for text in ("a\n", "a\nb\na\nb\n"):
        with pytest.raises(AssertionError):
            patched(text, "+++ x\n@@\n a\n-b\n")


def test_example_method_is_in_the_table(monkeypatch: pytest.MonkeyPatch, build: object, pictures: object) -> None:
    monkeypatch.setattr(methods, "METHODS", dict(methods.METHODS))
    [(_, block)] = BLOCK.findall((ROOT / "docs" / "adding-a-method.md").read_text())
    assert inspect.isfunction(build) and inspect.isfunction(pictures)
    exec(block, vars(methods) | {"Tensor": torch.Tensor, "RecordedPass": RecordedPass})
    recorded = RecordedPass.of_class(build(), pictures(32, 48, count=1), 3)
    heatmap = methods.heatmap_of(recorded, "attention-relevance")
    assert heatmap.shape == (4, 6) and bool((heatmap >= 0).all()) and heatmap.max() > 0
