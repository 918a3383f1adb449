"""Results of a ranking of methods, as recorded in a model card, and the method that they recommend. Without torch."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from vit.explain.methods import METHODS

RANDOM, BLOB = "random", "blob in the middle"  # baselines
_UNRANKED = "attnlrp"  # recommended where it was not measured: it measured best with both shipped checkpoints
_NUMBER = r"(-?\d\.\d{3})"
_SHARE = r"(\d{1,3}\.\d)%"
_LINE = re.compile(
    rf"\| (?P<title>[^|]+) \| {_NUMBER} \({_NUMBER} to {_NUMBER}\) \|"
    rf" {_NUMBER} \({_NUMBER} to {_NUMBER}\) \| {_SHARE} \|"
)
_PICTURES = re.compile(r"Test pictures of .+: (\d{1,9}), by `python -m vit faithfulness`")


class Interval(NamedTuple):
    """A mean over pictures with its 95% bootstrap confidence interval.

    Source: Efron 1979, the percentile bootstrap.
    """

    mean: float
    low: float
    high: float


class RecordedResult(NamedTuple):
    """Results of a method as recorded in a model card.

    Attributes:
        saco, correlation: see `MethodResult`.
        better: see `MethodResult`, the mean only.
    """

    saco: Interval
    correlation: Interval
    better: float


def read_table(lines: Iterable[str]) -> dict[str, RecordedResult]:
    """Parse lines of `table` into results by method name; other lines are skipped."""
    names = {method.title: name for name, method in METHODS.items()}
    names |= {baseline.capitalize(): baseline for baseline in (RANDOM, BLOB)}
    matches = [match for match in map(_LINE.match, lines) if match and match["title"] in names]
    return {names[match["title"]]: _read_line(*match.groups()[1:]) for match in matches}


def _read_line(*numbers: str) -> RecordedResult:
    values = [float(number) for number in numbers]
    return RecordedResult(Interval(*values[:3]), Interval(*values[3:6]), values[6] / 100)


def recorded_results(facts: Mapping[str, Any]) -> tuple[int, dict[str, RecordedResult]]:
    """Parse what `record_in_card` wrote into a checkpoint's facts. The facts are untrusted input.

    Returns:
        number of pictures, 0 if nothing was measured; and results by method name.
    """
    lines = facts.get("faithfulness")
    if not isinstance(lines, list) or not lines or not all(isinstance(line, str) for line in lines):
        return 0, {}
    pictures = _PICTURES.match(lines[0])
    return (int(pictures[1]), read_table(lines)) if pictures else (0, {})


def recommended(facts: Mapping[str, Any]) -> str:
    """Return the class-specific method whose maps measured best with a checkpoint, of those that need no masks."""
    _, every = recorded_results(facts)
    quick = {name: every[name].correlation.mean for name in every.keys() & METHODS.keys()}
    quick = {name: mean for name, mean in quick.items() if METHODS[name].of_class and not METHODS[name].passes}
    return max(quick, key=quick.__getitem__) if _UNRANKED in quick else _UNRANKED
