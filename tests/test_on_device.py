"""The suite of tests/on_device on the pretended device."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # experimental parts of torch 2.15: not tested with the lowest version


def test_explanations_and_training_work_on_a_device_that_refuses_mixed_tensors() -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--confcutdir", "tests/on_device"]
    root = Path(__file__).parents[1]
    done = subprocess.run([*command, "tests/on_device"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
