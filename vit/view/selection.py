"""What the viewer shows: parsed from links and browsers, neither of which is trusted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, cast, get_args

from vit.explain.settings import Direction, Fusion, Settings

View = Literal["attention", "rollout", "relevance", "similar", "components", "pool"]
Scale = Literal["shared", "own"]
Contour = Literal["none", "mass", "otsu"]
Cover = Literal["weight", "film"]

SMOOTH_FROM = 400  # tokens: 20 x 20 patches, each about 27 px wide on the screen; squares of less look like noise


@dataclass(frozen=True, kw_only=True)
class Selection(Settings):
    """One state of the viewer; blocks, heads and tokens count from zero.

    Attributes:
        block, head: an index, or how to fuse all of them; block -1 is the last one.
        token: the token asked about; 0 is the class token of models that have one.
        pinned: it stays while the pointer moves.
        view: one attention map; rollout through all blocks; what speaks for a class, by a method that the page
            chooses; which patches are like the token; the patches' principal components as colours; where the query of
            a model that pools by attention looks. The viewer and the exports show attention where the model has no such
            thing.
        direction: "from" is where the token looks, "to" is who looks at it.
        colormap: its name in the payload; "" is the first one there.
        opacity: of the map over the picture, 0 to 1.
        cover: "weight" leaves the picture clear where patches have less than their mean; "film" covers all of it.
        smooth: interpolate between patches. Links that do not say it mean it from `SMOOTH_FROM` tokens on.
        scale: one colour scale for every map, or each map its own.
        contour: a line around the fewest patches that hold a share of the weight, or around Otsu's stronger group.
        mass: that share, above 0 and at most 1.
        hidden: patches that are hidden from the model, from 0 in the order of rows.
        after_block: by whose output patches are compared and coloured; -1 is the last one.
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
        """Every field as a string, for a link.

        >>> Selection(block=4, head="max").to_query()["head"]
        'max'
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["hidden"] = ranges(self.hidden)
        return {k: str(int(v)) if isinstance(v, bool) else str(v) for k, v in values.items()}

    @classmethod
    def from_query(cls, query: Mapping[str, Any], blocks: int, heads: int, tokens: int) -> Self:
        """Read a link or what a browser sent; whatever makes no sense becomes its default.

        A block or head beyond the model becomes the nearest one there is; a token beyond it means another picture
        or model, so the default token is shown, not pinned.

        >>> Selection.from_query({"block": "999", "head": "2", "token": "<b>"}, 12, 3, 197)
        Selection(residual=0.5, fusion='mean', discard=0.0, start_block=0, block=11, head=2, token=0, pinned=False, \
view='attention', direction='from', colormap='', opacity=0.6, cover='weight', smooth=False, scale='shared', \
contour='none', mass=0.6, hidden=(), after_block=11)
        """
        default = cls()
        token, after_block = (_parse_whole(query.get(name)) for name in ("token", "after_block"))
        if token is not None and not 0 <= token < tokens:
            token = None
        colormap = query.get("colormap")
        return cls(
            block=_parse_index(query.get("block"), blocks, default.block),
            head=_parse_index(query.get("head"), heads, default.head),
            token=default.token if token is None else token,
            pinned=token is not None and _parse_flag(query.get("pinned")),
            view=_parse_choice(query.get("view"), View, default.view),
            direction=_parse_choice(query.get("direction"), Direction, default.direction),
            colormap=colormap if isinstance(colormap, str) and len(colormap) <= 32 else default.colormap,
            opacity=_clamp(query.get("opacity"), default.opacity),
            cover=_parse_choice(query.get("cover"), Cover, default.cover),
            smooth=tokens >= SMOOTH_FROM if query.get("smooth") is None else _parse_flag(query["smooth"]),
            scale=_parse_choice(query.get("scale"), Scale, default.scale),
            contour=_parse_choice(query.get("contour"), Contour, default.contour),
            mass=_clamp(query.get("mass"), default.mass, 0.01),
            residual=_clamp(query.get("residual"), default.residual),
            fusion=_parse_choice(query.get("fusion"), Fusion, default.fusion),
            discard=_clamp(query.get("discard"), default.discard, 0.0, 0.99),
            start_block=min(max(_parse_whole(query.get("start_block")) or 0, 0), blocks - 1),
            hidden=_parse_patches(query.get("hidden"), tokens),
            after_block=after_block if after_block is not None and 0 <= after_block < blocks else blocks - 1,
        )


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as short text for a link.

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
    """What `ranges` wrote, or a list from the browser; numbers that cannot be are left out."""
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
    """A number brought between two."""
    number = _parse_real(value)
    return default if number is None else min(max(number, least), most)


def _parse_flag(value: Any) -> bool:
    return value is True or (isinstance(value, str) and value.lower() in ("1", "true", "yes"))


def _parse_choice(value: Any, choices: Any, default: Any) -> Any:
    return value if isinstance(value, str) and value in get_args(choices) else default
