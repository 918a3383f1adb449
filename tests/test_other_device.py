"""What would fail on a GPU, found on every machine: on a device that refuses mixed devices and counts waits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from other_device.checks import CHECKS

from vit.training.presets import PRESETS

Outcomes = dict[str, dict[str, Any]]

pytestmark = pytest.mark.slow  # experimental parts of torch 2.15: not tested with the lowest version

TRAINED = ("adapted_run_with_balanced_loss", "streamed_pictures", *(f"preset {name}" for name in PRESETS))
COMPARED = tuple(name for name in CHECKS if name not in TRAINED)
# These find tokens, fit a basis, or hand their results to the CPU.
WAITING = ("relevance_and_legrad", "score_drops_under_masks", "faithfulness_of_a_map", "components_of_features")
WAITING += ("registers", "predictions_after_every_block")


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """Outcomes by check, computed in a process of its own: torch has another accelerator there."""
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-m", "tests.other_device.checks"], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
    return {outcome.pop("check"): outcome for outcome in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", COMPARED)
def test_result_equals_that_of_the_cpu(name: str, outcomes: Outcomes) -> None:
    assert "error" not in outcomes[name], outcomes[name]["error"]
    assert outcomes[name]["difference"] < 1e-5, outcomes[name]


@pytest.mark.parametrize("name", [name for name in COMPARED if name not in (*WAITING, "mistakes_are_noticed")])
def test_host_does_not_wait_for_the_device(name: str, outcomes: Outcomes) -> None:
    assert outcomes[name]["waits"] == 0, outcomes[name]


@pytest.mark.parametrize("name", TRAINED)
def test_run_trains_and_no_step_waits_for_the_device(name: str, outcomes: Outcomes) -> None:
    assert "error" not in outcomes[name], outcomes[name]["error"]
    outcome = outcomes[name]
    assert outcome["finished"] and outcome["steps"] >= 6 and outcome["notes"] == []
    assert outcome["waits"] == 0, outcome
