"""One suite for every device: `pretend`, which shows on every machine what would fail on a GPU, or a real one.

    python -m pytest --confcutdir tests/on_device tests/on_device                    # pretended
    python -m pytest --confcutdir tests/on_device tests/on_device --on cuda:0

It needs pytest and what `vit` needs, not the fixtures of the other tests. `pretend` needs a process of its own, because
torch has another accelerator there. The summary lists the largest difference of each test from the CPU's result.
"""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pretended
import pytest
import torch

# Files for some devices only. Real devices run what needs compilation and processes, GPUs what exhausts their memory.
KINDS = {"test_pretended.py": ("pretend",), "test_runs.py": ("cpu", "cuda"), "test_memory.py": ("cuda",)}
# The pretended device computes on the CPU; the products of a GPU add up in another order.
TOLERANCE = {"pretend": 1e-5, "cpu": 1e-5, "cuda": 1e-3}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the name of the device."""
    parser.addoption("--on", default="pretend", help="pretend, cpu or cuda:0")


def pytest_configure(config: pytest.Config) -> None:
    """Set up the pretended device before a test imports `vit`, since it replaces functions of torch."""
    if config.option.on == "pretend":
        torch.set_num_threads(1)
        stack = ExitStack()
        stack.enter_context(pretended.set_up())
        config.add_cleanup(stack.close)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files that are for other devices."""
    kinds = KINDS.get(collection_path.name)
    return True if kinds and config.option.on.partition(":")[0] not in kinds else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the recorded differences."""
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{value:.0e}  {name}  {report.nodeid.partition('::')[2]}")


@pytest.fixture(scope="session")
def device(pytestconfig: pytest.Config) -> str:
    """The device to test, as torch names it."""
    name: str = pytestconfig.option.on
    return "pretend:0" if name == "pretend" else name


@pytest.fixture
def assert_close(device: str, record_property: Callable[..., None]) -> Callable[..., None]:
    """Return `assert_close(result, expected)`, which compares tensors with those of the CPU."""

    def check(result: Any, expected: Any, most: float = TOLERANCE[device.partition(":")[0]]) -> None:
        gap = largest_difference(result, expected)
        record_property("difference", gap)
        assert gap <= most

    return check


def largest_difference(result: Any, expected: Any) -> float:
    """Return the largest difference of two tensors or of their sequences, relative to the largest value."""
    from tests.tiny import difference

    if isinstance(expected, torch.Tensor):
        return difference(result.detach().cpu().float(), expected.detach().cpu().float())
    return max(largest_difference(one, other) for one, other in zip(result, expected, strict=True))
