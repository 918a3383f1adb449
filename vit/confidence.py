"""Accuracies for people: the pictures they stand on, their 95% interval, and no more digits than these allow."""

import re
from collections.abc import Mapping
from math import ceil, sqrt
from typing import Any

from vit.untrusted import counted, is_number

CHOSE_EPOCH = "which also chose the epoch"  # of validation pictures
_Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution


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


def paired(first: int, second: int, count: int) -> tuple[float, float, float]:
    """Compute the difference of two accuracies on the same pictures, first minus second, and its 95% interval.

    Args:
        first, second: the bits of the pictures that each model has right, 0 to 2**count - 1.

    Source: method 10 of Newcombe 1998, Statistics in Medicine 17, 2635.
    """
    right, other, both = first.bit_count(), second.bit_count(), (first & second).bit_count()
    (low, high), (other_low, other_high) = wilson(right, count), wilson(other, count)
    together: float = both * (count - right - other + both) - (right - both) * (other - both)
    together = max(together - count / 2, 0) if together > 0 else together  # continuity correction
    variance = right * (count - right) * other * (count - other)
    correlation = together / sqrt(variance) if variance else 0.0

    def reach(end: float, other_end: float) -> float:
        return sqrt(end**2 - 2 * correlation * end * other_end + other_end**2)

    one, another = right / count, other / count
    lowest, highest = reach(one - low, other_high - another), reach(high - one, another - other_low)
    return one - another, one - another - lowest, one - another + highest


def decimals(*pictures: int | None) -> int:
    """Return the decimals of percentages on so many pictures each; one if a picture is a tenth of a point, or less."""
    return min((int(not count or count >= 1000) for count in pictures), default=1)


def share(accuracy: float, pictures: int | None = None) -> str:
    """Format an accuracy, 0 to 1, where there is no room for the number of pictures; None if that is unknown.

    >>> share(25 / 33, 33), share(0.8424, 10_000), share(0.7576)
    ('76%', '84.2%', '75.8%')
    """
    return f"{accuracy:.{decimals(pictures)}%}"


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
    right, digits = round(accuracy * pictures), decimals(pictures)
    low, high = (f"{100 * end:.{digits}f}" for end in wilson(right, pictures))
    return f"{share(accuracy, pictures) if digits else right} of {pictures:,}{what} ({low} to {high} %)"


def recorded(facts: Mapping[str, Any], key: str = "accuracy") -> tuple[float, int | None] | None:
    """Return an accuracy of a checkpoint's facts, and its number of pictures; None without one.

    The number begins the fact `key` + "_on", a sentence; facts may come from anywhere.

    >>> recorded({"accuracy": 0.84, "accuracy_on": "the 10,000 test pictures"}), recorded({"accuracy": 84})
    ((0.84, 10000), None)
    """
    value, about = facts.get(key), str(facts.get(f"{key}_on", ""))
    if not is_number(value, 0, 1):
        return None
    count = re.match(r"(?:the )?([0-9][0-9,]{0,11}) (?:\w+ )?(?:pictures|photos|images)\b", about)
    return value, int(count[1].replace(",", "")) if count else None


def too_few(pictures: int) -> str:
    """Return a sentence about how well fewer than 200 test pictures will tell an accuracy of 80%; "" for more, or none.

    >>> too_few(33)
    '33 test pictures: the accuracy will be known to within 14 points (half of its 95% interval, if 80% are right).'
    """
    if not 0 < pictures < 200:
        return ""
    low, high = wilson(0.8 * pictures, pictures)
    known = f"the accuracy will be known to within {ceil(50 * (high - low))} points"
    return f"{counted(pictures, 'test picture')}: {known} (half of its 95% interval, if 80% are right)."
