"""Confidence interval of a proportion."""

from math import sqrt

_Z = 1.959963984540054  # 97.5% quantile of the standard normal distribution


def wilson(right: int, count: int) -> tuple[float, float]:
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
