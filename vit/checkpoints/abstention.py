"""Whether a model's answer is sure: its probability against a threshold that was measured on pictures. No torch.

The threshold is a fact of a checkpoint, see `vit.training.calibration`. Checkpoints of others have none and claim none.
"""

from collections.abc import Mapping, Sequence
from typing import Any

NAMED = 3  # classes named in an answer that is not sure


def threshold_of(facts: Mapping[str, Any]) -> float | None:
    """Return the probability from which an answer is sure; None if none was measured.

    Args:
        facts: of a checkpoint, untrusted.
    """
    threshold = facts.get("threshold")
    return threshold if isinstance(threshold, float) and 0 < threshold <= 1 else None


def is_sure(ranked: Sequence[tuple[str, float]], facts: Mapping[str, Any]) -> bool | None:
    """Whether the first of some (label, probability) pairs is a sure answer; None without a threshold or classes."""
    threshold = threshold_of(facts)
    return ranked[0][1] >= threshold if ranked and threshold is not None else None


def qualified(label: str, sure: bool | None) -> str:
    """Return the class of an answer in a short line: "perhaps tent" if it is not sure."""
    return f"perhaps {label}" if sure is False else label


def answer(ranked: Sequence[tuple[str, float]], facts: Mapping[str, Any]) -> str:
    """State the answer of some (label, probability) pairs in one sentence; "" without classes.

    >>> answer([("tent", 0.87), ("sail", 0.09)], {"threshold": 0.6})
    'It says tent (87%)'
    """
    if is_sure(ranked, facts) is False:
        return perhaps(ranked)
    return f"It says {ranked[0][0]} ({ranked[0][1]:.0%})" if ranked else ""


def perhaps(ranked: Sequence[tuple[str, float]], shares: bool = True) -> str:
    """Name the most probable classes of an answer that is not sure.

    Args:
        shares: also state their probabilities.

    >>> perhaps([("umbrella", 0.21), ("tent", 0.17), ("sail", 0.09)])
    'Not sure: perhaps umbrella (21%), tent (17%) or sail (9%)'
    """
    named = [f"{label} ({probability:.0%})" if shares else label for label, probability in ranked[:NAMED]]
    return "Not sure: perhaps " + " or ".join(filter(None, (", ".join(named[:-1]), named[-1])))
