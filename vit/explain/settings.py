"""Settings of methods that trace attention through all blocks. Does not import torch, so that pages load quickly."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Literal

Direction = Literal["from", "to"]
Fusion = Literal["mean", "max", "min"]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that users can change. Each method supports some of them.

    Attributes:
        residual: share that every token keeps of itself in each block, 0 to 1.
        fusion: how a block's heads are fused.
        discard: share of each row's weakest patches that is discarded, in [0, 1).
        start_block: first block that is included.
    """

    residual: float = 0.5
    fusion: Fusion = "mean"
    discard: float = 0.0
    start_block: int = 0

    def settings(self, names: Iterable[str] | None = None) -> dict[str, Any]:
        """Return settings by name: all, or those in `names`. Unknown names are ignored.

        >>> Settings(discard=0.9).settings(("discard", "block"))
        {'discard': 0.9}
        """
        own = [field.name for field in fields(Settings)]
        return {name: getattr(self, name) for name in (own if names is None else names) if name in own}

    def changed(self, names: Iterable[str]) -> dict[str, Any]:
        """Return the settings in `names` that differ from their defaults.

        >>> Settings(discard=0.9).changed(("residual", "discard"))
        {'discard': 0.9}
        """
        return {name: value for name, value in self.settings(names).items() if value != getattr(DEFAULTS, name)}


DEFAULTS = Settings()
BEST_MAP_MASKS = 128  # masks of the best map, see `vit.explain.kriging`
ROLLOUT = ("residual", "fusion", "discard")  # settings of rollout
