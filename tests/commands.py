"""Run the command line in the test's process."""

from collections.abc import Callable
from typing import NamedTuple


class Result(NamedTuple):
    status: int
    out: str
    err: str


Command = Callable[..., Result]


def check_mistake(result: Result, message: str) -> None:
    assert result.status == 2
    assert message in result.err
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
