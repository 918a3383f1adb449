"""What can be set about methods that trace attention through all blocks. Without torch, so that pages start at once."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

Direction = Literal["from", "to"]
Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """The settings; each method knows some of them.

    Attributes:
        residual: share of every token that stays what it is in each block, 0 to 1.
        fusion: how a block's heads become one.
        discard: share of each row's patches, the weakest, that is left out; at least 0 and under 1.
        start_block: blocks before this one are left out.
    """

    residual: float = 0.5
    fusion: Fusion = "mean"
    discard: float = 0.0
    start_block: int = 0

    def settings(self) -> dict[str, Any]:
        """Every setting by its name."""
        return {field.name: getattr(self, field.name) for field in fields(Tuning)}

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Of these settings the ones that are not as usual.

        >>> Tuning(discard=0.9).changed(("residual", "discard"))
        {'discard': 0.9}
        """
        usual = Tuning()
        return {name: getattr(self, name) for name in names if getattr(self, name) != getattr(usual, name)}


ROLLOUT = ("residual", "fusion", "discard")  # what rollout knows
