"""What can be set about methods that trace attention through all blocks. Without torch, so that pages start at once."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

Direction = Literal["from", "to"]
Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings that a person can move; each method knows some of them.

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

    def settings(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Settings by name: every one, or those that are among some names.

        >>> Settings(discard=0.9).settings(("discard", "block"))
        {'discard': 0.9}
        """
        own = [field.name for field in fields(Settings)]
        return {name: getattr(self, name) for name in (own if names is None else names) if name in own}

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Those of some settings, by name, that are not at their default.

        >>> Settings(discard=0.9).changed(("residual", "discard"))
        {'discard': 0.9}
        """
        return {name: value for name, value in self.settings(names).items() if value != getattr(DEFAULTS, name)}


DEFAULTS = Settings()
ROLLOUT = ("residual", "fusion", "discard")  # what rollout knows
