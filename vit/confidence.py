"""Accuracies for people: the pictures they stand on, their 95% interval, and no more digits than these allow."""

import re
from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from vit.untrusted import is_number

FEW = 200  # test pictures; below this number, pages and `vit train` say how little an accuracy will be known
CHOSE_EPOCH = "which also chose the epoch"  # said of validation pictures
_Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution
_EXPECTED = 0.8  # accuracy that `too_few` assumes


def wilson(right: float, count: int) -> tuple[float, float]:
    """Compute the 95% Wilson score interval of a proportion, given `right` successes in `count` trials.

    Source: Wilson 1927, JASA 22, 209.

    >>> [round(end, 3) for end in wilson(9, 10)]
    [0.596, 0.982]
    >>> wilson(0, 9)[0], wilson(9, 9)[1]  # exact, without rounding errors
    (0.0, 1.0)
    """
    share, weight = right / count, _Z**2 / count
    middle = share + weight / 2
    reach = _Z * sqrt(share * (1 - share) / count + weight / (4 * count))
    low = (middle - reach) / (1 + weight) if right else 0.0
    high = (middle + reach) / (1 + weight) if right < count else 1.0
    return low, high


def paired(both: int, first: int, second: int, neither: int) -> tuple[float, float, float]:
    """Compute the difference of two accuracies on the same pictures, first minus second, and its 95% interval.

    Args:
        both, first, second, neither: pictures that both models, only the first, only the second, and none have right.

    Source: method 10 of Newcombe 1998, Statistics in Medicine 17, 2635.

    >>> [round(value, 3) for value in paired(14, 5, 0, 22)]  # Altman et al. 2000, Statistics with Confidence, table 6.2
    [0.122, 0.011, 0.226]
    """
    count, right, wrong = both + first + second + neither, both + first, second + neither
    other, rest = both + second, first + neither
    (low, high), (other_low, other_high) = wilson(right, count), wilson(other, count)
    ends = right / count - low, high - right / count, other / count - other_low, other_high - other / count
    together: float = both * neither - first * second
    together = max(together - count / 2, 0) if together > 0 else together  # continuity correction
    correlation = together / sqrt(right * wrong * other * rest) if right * wrong * other * rest else 0.0

    def reach(one: float, another: float) -> float:
        return sqrt(max(one**2 - 2 * correlation * one * another + another**2, 0.0))

    difference = (first - second) / count
    return difference, difference - reach(ends[0], ends[3]), difference + reach(ends[1], ends[2])


def decimals(pictures: int | None) -> int:
    """Return the decimals of a percentage: one from 1,000 pictures on, of which one is a tenth of a point."""
    return int(not 0 < (pictures or 1000) < 1000)


def share(accuracy: float, pictures: int | None = None) -> str:
    """Format an accuracy, 0 to 1, where there is no room for more.

    Args:
        pictures: number of pictures; None if unknown.

    >>> share(25 / 33, 33), share(0.8424, 10_000), share(0.7576)
    ('76%', '84.2%', '75.8%')
    """
    return f"{accuracy:.{decimals(pictures)}%}"


def brief(accuracy: float, pictures: int | None) -> str:
    """Format an accuracy with the number of pictures, without its interval.

    >>> brief(25 / 33, 33), brief(0.7576, None)
    ('76% of 33', '75.8%')
    """
    return share(accuracy, pictures) + (f" of {pictures:,}" if pictures else "")


def interval(accuracy: float, pictures: int) -> str:
    """Format the 95% Wilson interval of an accuracy.

    >>> interval(25 / 33, 33)
    '59 to 87 %'
    """
    low, high = (f"{100 * end:.{decimals(pictures)}f}" for end in wilson(round(accuracy * pictures), pictures))
    return f"{low} to {high} %"


def figure(accuracy: float, pictures: int | None, what: str = "") -> str:
    """Format an accuracy with the number of pictures and its 95% Wilson interval, if the number is known.

    Args:
        what: the pictures, such as "test pictures".

    >>> figure(25 / 33, 33), figure(0.8424, 10_000, "test pictures")
    ('25 of 33 (59 to 87 %)', '84.2% of 10,000 test pictures (83.5 to 84.9 %)')
    >>> figure(0.7576, None), figure(0.7576, None, "test pictures")
    ('75.8%', '75.8% of test pictures')
    """
    what = what and f" {what}"
    if not pictures:
        return share(accuracy) + (what and f" of{what}")
    start = f"{round(accuracy * pictures)}" if pictures < 1000 else share(accuracy, pictures)
    return f"{start} of {pictures:,}{what} ({interval(accuracy, pictures)})"


def recorded(facts: Mapping[str, Any], key: str = "accuracy") -> tuple[float, int | None] | None:
    """Return an accuracy of a checkpoint's facts, and its number of pictures; None without one.

    The number begins the fact `key` + "_on", a sentence; facts may come from anywhere.

    >>> recorded({"accuracy": 0.84, "accuracy_on": "the 10,000 test pictures, of 10 classes"})
    (0.84, 10000)
    >>> recorded({"accuracy": 0.84, "accuracy_on": "3 runs"}), recorded({"accuracy": 84})
    ((0.84, None), None)
    """
    value, about = facts.get(key), str(facts.get(f"{key}_on", ""))
    if not is_number(value, 0, 1):
        return None
    count = re.match(r"(?:the )?([0-9][0-9,]{0,11}) (?:\w+ )?(?:pictures|photos|images)\b", about)
    return value, int(count[1].replace(",", "")) if count else None


def too_few(pictures: int) -> str:
    """Return a sentence about how well few test pictures will tell the accuracy; "" for enough, or none.

    >>> too_few(33)
    '33 test pictures: the accuracy will be known to within 14 points (half of its 95% interval, if 80% are right).'
    """
    if not 0 < pictures < FEW:
        return ""
    low, high = wilson(_EXPECTED * pictures, pictures)
    many = "1 test picture" if pictures == 1 else f"{pictures} test pictures"
    return (
        f"{many}: the accuracy will be known to within {ceil(50 * (high - low))} points (half of its 95% interval, if "
        f"{_EXPECTED:.0%} are right)."
    )
