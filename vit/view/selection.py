"""State of the viewer, parsed from links and browser messages, which are untrusted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, cast, get_args, get_origin

from vit.explain.settings import Direction, Fusion, Settings

View = Literal["attention", "rollout", "relevance", "similar", "components", "pool"]
Scale = Literal["shared", "own"]
Contour = Literal["none", "mass", "otsu"]
Cover = Literal["weight", "film"]

SMOOTH_FROM = 400  # tokens: 20 x 20 patches, each about 27 px on the screen; smaller squares would look like noise


@dataclass(frozen=True, kw_only=True)
class Selection(Settings):
    """State of the viewer. Blocks, heads and tokens count from zero.

    Attributes:
        block, head: an index, or how to fuse all of them; block -1 is the last one.
        token: the query token; 0 is the class token of models that have one.
        pinned: whether the query token stays the same while the pointer moves.
        view: "attention" is a single map; "rollout" runs through all blocks; "relevance" is a class-specific method
            that the page chooses; "similar" compares patches with the token; "components" colours patches by principal
            components; "pool" is the attention of the pooling query. The viewer and the exports show attention if the
            model does not support the view.
        direction: "from" for attention from the token to others, "to" for attention from others to it.
        colormap: name in the payload; "" for the first one.
        opacity: of the map over the picture, 0 to 1.
        cover: "weight" leaves patches below the mean uncovered; "film" covers the whole picture.
        smooth: interpolate between patches. Links without this field smooth from `SMOOTH_FROM` tokens on.
        scale: one colour scale for all maps, or one per map.
        contour: outline of the fewest patches that contain the share `mass` of the weight, or of those above Otsu's
            threshold.
        mass: share of the weight for the outline, above 0 and at most 1.
        hidden: patches that are hidden from the model, row-major from 0.
        after_block: block whose output is used to compare and colour patches; -1 is the last one.
    """

    block: int | Fusion = -1
    head: int | Fusion = "mean"
    token: int = 0
    pinned: bool = False
    view: View = "attention"
    direction: Direction = "from"
    colormap: str = ""
    opacity: float = 0.6
    cover: Cover = "weight"
    smooth: bool = False
    scale: Scale = "shared"
    contour: Contour = "none"
    mass: float = 0.6
    hidden: tuple[int, ...] = ()
    after_block: int = -1

    def to_query(self) -> dict[str, str]:
        """Convert all fields to strings, for a link.

        >>> Selection(block=4, head="max").to_query()["head"]
        'max'
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["hidden"] = ranges(self.hidden)
        return {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in values.items()}

    @classmethod
    def from_query(cls, query: Mapping[str, Any], blocks: int, heads: int, tokens: int) -> Self:
        """Parse a link or a browser message. Invalid values become defaults.

        A block or head out of range is clamped. A token out of range belongs to another picture or model, so the
        default token is selected and not pinned.

        >>> Selection.from_query({"block": "999", "head": "2", "token": "<b>"}, 12, 3, 197)
        Selection(residual=0.5, fusion='mean', discard=0.0, start_block=0, block=11, head=2, token=0, pinned=False, \
view='attention', direction='from', colormap='', opacity=0.6, cover='weight', smooth=False, scale='shared', \
contour='none', mass=0.6, hidden=(), after_block=11)
        """
        default = cls()
        values = {
            field.name: _parse_plain(query.get(field.name), field.type, getattr(default, field.name))
            for field in fields(cls)
        }
        token, after_block = (_parse_whole(query.get(name)) for name in ("token", "after_block"))
        if token is not None and not 0 <= token < tokens:
            token = None
        colormap = query.get("colormap")
        values |= {
            "block": _parse_index(query.get("block"), blocks, default.block),
            "head": _parse_index(query.get("head"), heads, default.head),
            "token": default.token if token is None else token,
            "pinned": token is not None and values["pinned"],
            "colormap": colormap if isinstance(colormap, str) and len(colormap) <= 32 else default.colormap,
            "smooth": tokens >= SMOOTH_FROM if query.get("smooth") is None else values["smooth"],
            "mass": _clamp(query.get("mass"), default.mass, 0.01),
            "discard": _clamp(query.get("discard"), default.discard, 0.0, 0.99),
            "start_block": min(max(_parse_whole(query.get("start_block")) or 0, 0), blocks - 1),
            "hidden": _parse_patches(query.get("hidden"), tokens),
            "after_block": after_block if after_block is not None and 0 <= after_block < blocks else blocks - 1,
        }
        return cls(**values)


def ranges(numbers: Iterable[int]) -> str:
    """Format integers compactly, for a link.

    >>> ranges([3, 4, 5, 9])
    '3-5.9'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ".".join(str(first) if first == last else f"{first}-{last}" for first, last in parts)


def _parse_patches(value: Any, tokens: int) -> tuple[int, ...]:
    """Parse the output of `ranges`, or a list from the browser; invalid numbers are skipped."""
    numbers: set[int] = set()
    for part in value.split(".") if isinstance(value, str) else value if isinstance(value, list | tuple) else ():
        first, _, last = str(part).partition("-")
        if first.isascii() and first.isdecimal() and (not last or (last.isascii() and last.isdecimal())):
            numbers.update(range(int(first[:6]), min(int((last or first)[:6]), tokens - 1) + 1))
    return tuple(sorted(numbers))


def _parse_index(value: Any, count: int, default: int | Fusion) -> int | Fusion:
    if value in ("mean", "max", "min"):
        return cast(Fusion, value)
    whole = _parse_whole(value)
    if whole is None:
        if isinstance(default, str):
            return default
        whole = default
    return min(max(whole + count if whole < 0 else whole, 0), count - 1)


def _parse_whole(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        return int(value) if value == int(value) or isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


def _parse_real(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _clamp(value: Any, default: float, least: float = 0.0, most: float = 1.0) -> float:
    """Parse a number and clamp it; the default if it is invalid."""
    number = _parse_real(value)
    return default if number is None else min(max(number, least), most)


def _parse_plain(value: Any, kind: Any, default: Any) -> Any:
    """Parse a share, a flag or one of several choices, by the type of its field; other types become the default."""
    if kind is float:
        return _clamp(value, default)
    if kind is bool:
        return default if value is None else value is True or str(value).lower() in ("1", "true", "yes")
    return value if get_origin(kind) is Literal and isinstance(value, str) and value in get_args(kind) else default
