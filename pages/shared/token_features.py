"""Features of tokens after any block, which the viewer compares, and their components as colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pages.components import viewer
from pages.shared.class_question import Example, pass_of
from pages.shared.result_cache import cached
from vit.explain import components
from vit.view import export, payload

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.components import Components
    from vit.view.selection import Selection


def feed(key: str, example: Example, selection: Selection, pictures: Sequence[Example] = ()) -> str | None:
    """Bring the browser what a selection needs beyond the picture's own payload; for `pages.components.viewer.show`.

    Args:
        key: of the feeder.
        pictures: whose basis the colours have, as far as they are of the same checkpoint; without any, its own.

    Returns:
        "" where it needs nothing, None where features cannot be had.
    """
    packed = pack(example, selection, pictures)
    return viewer.feed(key, packed) if packed else None if packed is None else ""


def pack(example: Example, selection: Selection, pictures: Sequence[Example] = ()) -> bytes | None:
    """The bytes of that, see `vit.view.payload.pack_features`."""
    if not _readable(example):
        return None
    block = selection.after_block
    if not _beyond_payload(example, selection):
        return b""

    def work() -> bytes:
        colours, shares = None, ()
        if selection.view == "components":
            of, colours = basis(example, block, pictures)
            shares = tuple(of.shares.tolist())
        return payload.pack_features(_features(example, block), example.explanation.record.grid, block, colours, shares)

    names = [one.key for one in pictures] if selection.view == "components" else None
    packed: bytes = cached(("packed features", example.key, block, str(names)), work)
    return packed


def with_features(example: Example, selection: Selection) -> Example:
    """The same with the features of the selected block in its record, where the view is of those."""
    if not _readable(example) or not _beyond_payload(example, selection):
        return example
    record = replace(example.explanation.record, features=_features(example, selection.after_block))
    return replace(example, explanation=replace(example.explanation, record=record))


def map_view(example: Example, selection: Selection, pictures: Sequence[Example] = ()) -> export.MapView:
    """The components as files have them; arguments as of `feed`."""
    record = with_features(example, selection).explanation.record
    return export.MapView.of_components(record, selection.after_block, *basis(example, selection.after_block, pictures))


def basis(example: Example, block: int, pictures: Sequence[Example] = ()) -> tuple[Components, Tensor]:
    """Components after a block of the pictures, and an example's colours (rows, cols, 3) in that basis."""
    every = [one for one in pictures if _readable(one) and one.checkpoint.hash == example.checkpoint.hash] or [example]

    def patches(one: Example) -> Tensor:
        record = one.explanation.record
        return _features(one, block)[len(record.prefix) :].unflatten(0, record.grid)

    keys = [one.key for one in every]
    of: Components = cached(
        ("components", block, *keys), lambda: components.components([patches(one) for one in every])
    )
    return of, of.colours[keys.index(example.key)] if example.key in keys else of.colours_of(patches(example))


def _readable(example: Example) -> bool:
    """Whether there is a model to read features from: a run's epoch has none, nor has the first view."""
    return example.checkpoint is not None and example.stored is None


def _beyond_payload(example: Example, selection: Selection) -> bool:
    last = example.explanation.record.blocks - 1
    return selection.view == "components" or (selection.view == "similar" and selection.after_block != last)


def _features(example: Example, block: int) -> Tensor:
    """Tokens after a block (N, D)."""

    def work() -> Tensor:
        with pass_of(example):
            return components.token_features(example.checkpoint.model, example.pixels, block, example.hook)

    features: Tensor = cached(("token features", example.key, block), work)
    return features
