"""Display names of blocks, heads and their statistics.

Pages count blocks and heads from 1; Python, the command line, links and files count from 0.
"""

from collections.abc import Mapping
from typing import Any

# Statistics of a head, see `vit.explain.head_statistics`.
STATISTICS = {
    "distance": "Mean attention distance [px]",
    "entropy": "Entropy (1 is uniform)",
    "self": "On the patch itself",
    "neighbours": "On the eight patches around it",
    "cls": "On the class token",
    "dist": "On the distillation token",
    "registers": "On registers",
    "object": "Agreement with the relevance (rank correlation)",
    "faithfulness": "Faithfulness (correlation)",
    "effect": "Drop of the output without the head [logits, or its unit]",
}
# Explanations for non-experts; the definitions are in `vit.explain.head_statistics`.
MEANINGS = {
    "distance": "distance between a patch and the patches it attends to, weighted by attention, mean over all patches.",
    "entropy": "how many tokens attention is spread over: 0 is a single one, 1 is all of them equally (uniform).",
    "self": "the share of its attention that a patch gives to itself.",
    "neighbours": "the share that goes to the adjacent patches, up to eight.",
    "cls": "the share that goes to the class token, from which most models read their prediction.",
    "dist": "the share that goes to the distillation token, which was trained on a teacher's predictions.",
    "registers": "the share that goes to registers: extra tokens without a position, used for global information.",
    "object": "1 if the head attends most to the patches that are most relevant, -1 if least.",
    "faithfulness": "1 if attention predicts how far the output drops under random masks, 0 if it does not.",
    "effect": "how far the explained output falls when the head's output is replaced by its mean over the samples.",
}
SIGNED = ("object", "faithfulness", "effect")  # statistics that can be negative


def format_statistic(statistic: str, value: float, deviation: float | None = None) -> str:
    """Format a statistic of a head with its unit.

    Args:
        statistic: in `STATISTICS`.
        deviation: standard deviation over pictures, if there are several.

    >>> format_statistic("distance", 12.34), format_statistic("self", 0.051, 0.0123), format_statistic("effect", 1.5)
    ('12.3 px', '5.1 ± 1.2%', '+1.50')
    """
    signed = "+.2f" if statistic in SIGNED else ""
    times, digits, unit = {"distance": (1, ".1f", " px"), "entropy": (1, ".2f", "")}.get(
        statistic, (1, signed, "") if signed else (100, ".1f", "%")
    )
    spread = "" if deviation is None else f" ± {deviation * times:{digits.lstrip('+')}}"
    return f"{value * times:{digits}}{spread}{unit}"


def display_name(kind: str, index: int) -> str:
    """Convert a zero-based index to its display name.

    >>> display_name("Block", 0)
    'Block 1'
    """
    return f"{kind} {index + 1}"


def page_names(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the display names of a map's block and head; fused ones are left out.

    >>> page_names({"method": "attention", "block": 6, "head": "mean"})
    {'block': 'Block 7'}
    """
    return {
        name: display_name(name.capitalize(), facts[name]) for name in ("block", "head") if type(facts.get(name)) is int
    }


def format_position(facts: Mapping[str, Any]) -> str:
    """Describe a map's block and head, zero-based and by display name; "" if both are fused.

    >>> format_position({"block": 6, "head": 0})
    'block 6, head 0 (on the page Block 7, Head 1)'
    """
    spoken = page_names(facts)
    return ", ".join(f"{name} {facts[name]}" for name in spoken) + (
        f" (on the page {', '.join(spoken.values())})" if spoken else ""
    )
