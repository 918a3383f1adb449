"""Whether a model's answer is sure: its largest logit against a threshold that was measured on pictures. No torch.

The threshold is a fact of a checkpoint, see `vit.training.loop.calibration`. Checkpoints of others have none and claim
none. The largest logit tells things that a model knows from others better than the largest probability does: Hendrycks
et al. 2022, arXiv 1911.11132; docs/measuring.md compares six scores.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

NAMED = 3  # classes named in an answer that is not sure
NEVER = 1e9  # threshold of a model that is never sure
_NEAR = 0.1  # share of the first probability from which a class is named beside it


def threshold_of(facts: Mapping[str, Any]) -> float | None:
    """Return the largest logit from which an answer is sure; None if none was measured.

    Args:
        facts: of a checkpoint, untrusted.
    """
    threshold = facts.get("sure_from")
    return threshold if isinstance(threshold, float) and math.isfinite(threshold) else None


def is_sure(logit: float, facts: Mapping[str, Any]) -> bool | None:
    """Whether an answer with this logit is sure; None without a threshold."""
    threshold = threshold_of(facts)
    return None if threshold is None else logit >= threshold


def qualified(label: str, sure: bool | None) -> str:
    """Return the class of an answer in a short line: "perhaps tent" if it is not sure."""
    return f"perhaps {label}" if sure is False else label


def perhaps(ranked: Sequence[tuple[str, float]], shares: bool = True) -> str:
    """Name the most probable classes of an answer that is not sure, without those far below the first.

    Args:
        shares: also state their probabilities.

    >>> perhaps([("umbrella", 0.21), ("tent", 0.17), ("sail", 0.09)])
    'Not sure: perhaps umbrella (21%), tent (17%) or sail (9%)'
    >>> perhaps([("car", 0.85), ("bus", 0.06), ("truck", 0.01)])
    'Not sure: perhaps car (85%)'
    """
    near = [(label, share) for label, share in ranked[:NAMED] if share >= _NEAR * ranked[0][1]]
    named = [f"{label} ({percent(share)})" if shares else label for label, share in near]
    return "Not sure: perhaps " + " or ".join(filter(None, (", ".join(named[:-1]), named[-1])))


def percent(probability: float) -> str:
    """Format a probability, but not as 100% unless it is.

    >>> percent(0.87), percent(0.999)
    ('87%', '>99%')
    """
    return ">99%" if 0.995 <= probability < 1 else f"{probability:.0%}"
