"""The test suite itself: browser tests without a browser, and combinations that only `make test-all` runs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_methods import KINDS

from vit.explain.methods import METHODS

ROOT = Path(__file__).parents[1]


def suite(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a part of the suite in a separate process."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")} | environment
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True, check=False)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("ci", ["", pytest.param("true", marks=pytest.mark.exhaustive)])
def test_browser_tests_without_chromium_are_skipped_in_one_line_but_not_in_ci(tmp_path: Path, ci: str) -> None:
    nowhere = str(tmp_path)
    done = suite("tests/browser/test_appearance.py", PATH=nowhere, PLAYWRIGHT_BROWSERS_PATH=nowhere, CI=ci)
    said = [line for line in done.stdout.splitlines() if "browser tests were left out. No Chromium starts here" in line]
    assert (done.returncode == 0, len(said)) == ((False, 0) if ci else (True, 1)), done.stdout


@pytest.mark.exhaustive
@pytest.mark.slow
def test_matrix_keeps_every_value_and_marks_most_combinations_exhaustive() -> None:
    """Methods times kinds of models; their names have no brackets."""
    test = "tests/test_methods.py::test_every_method_gives_a_number_for_every_patch"
    found = []
    for mark in ("unit", "unit and not exhaustive"):
        done = suite("--collect-only", "-q", "-o", "addopts=", "-m", mark, test)
        found.append({line.partition("[")[2].rstrip("]") for line in done.stdout.splitlines() if "[" in line})
    everything, chosen = found
    assert len(everything) == len(METHODS) * len(KINDS) > 3 * len(chosen)
    for value in (*METHODS, *KINDS):
        assert any(case.startswith(f"{value}-") or case.endswith(f"-{value}") for case in chosen), value
