"""Token features after any block, which the viewer compares, and their principal components as colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pages.components import viewer
from pages.looking.controls.method_choice import Example, pass_of
from pages.server import pass_queue, uploaded_pictures
from pages.server.result_cache import BUTTON_ABOVE_SECONDS, cached
from vit.explain import components, head_census
from vit.images.files import decode
from vit.view import payload

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.components import Components
    from vit.view.selection import Selection


class OpenPicture(NamedTuple):
    """A picture that can share a basis of components with others.

    Attributes:
        key: identifies checkpoint, picture and size.
        weights: hash of the checkpoint; only features of the same checkpoint can be compared.
        patches: returns patch features after a block (rows, cols, D).
    """

    key: str
    weights: str
    patches: Callable[[int], Tensor]


def open_example(example: Example) -> OpenPicture:
    """Return the picture of a viewer."""
    record = example.explanation.record

    def patches(block: int) -> Tensor:
        return _features(example, block)[len(record.prefix) :].unflatten(0, record.grid)

    return OpenPicture(example.key, example.checkpoint.hash if readable(example) else "", patches)


def open_uploads(keys: Sequence[str], example: Example) -> list[OpenPicture]:
    """Return uploaded pictures at the input size of an example; none if computing their features would take long.

    Args:
        keys: see `pages.server.uploaded_pictures`.
    """
    checkpoint, preprocess = example.checkpoint, example.explanation.preprocess
    if head_census.seconds(checkpoint, preprocess, len(keys)) > BUTTON_ABOVE_SECONDS:
        return []

    def open_picture(key: str) -> OpenPicture:
        whole = f"{key} {checkpoint.body} {preprocess.size}"

        def read(block: int) -> Tensor:
            pixels = preprocess(decode.decode_image(uploaded_pictures.find(key) or b""))
            with pass_queue.reserved(checkpoint, preprocess.size):
                return components.patch_features(checkpoint.model, pixels, block)

        return OpenPicture(whole, checkpoint.hash, lambda block: cached(("patches", whole, block), lambda: read(block)))

    return [open_picture(key) for key in keys]


def feed(key: str, example: Example, selection: Selection, pictures: Sequence[OpenPicture] = ()) -> str | None:
    """Serve the features that a selection needs beyond the picture's payload, for `pages.components.viewer.show`.

    Args:
        key: of the feeder.
        pictures: pictures whose joint basis defines the colours, if they are of the same checkpoint; by default only
            the example.

    Returns:
        Payload id; "" if the selection needs no features, None if features are not available.
    """
    packed = pack(example, selection, pictures)
    return viewer.feed(key, packed) if packed else None if packed is None else ""


def pack(example: Example, selection: Selection, pictures: Sequence[OpenPicture] = ()) -> bytes | None:
    """Pack the features for `feed`, see `vit.view.payload.pack_features`."""
    if not readable(example):
        return None
    block = selection.after_block
    if not _beyond_payload(example, selection):
        return b""

    def work() -> bytes:
        features, grid = _features(example, block), example.explanation.record.grid
        if selection.view != "components":
            return payload.pack_features(features, grid, block)
        of, colours = basis(example, block, pictures)
        return payload.pack_features(features, grid, block, colours, of.shares.tolist(), len(of.values))

    names = [one.key for one in pictures] if selection.view == "components" else None
    packed: bytes = cached(("packed features", example.key, block, str(names)), work)
    return packed


def with_features(example: Example, selection: Selection) -> Example:
    """Return the example with the features of the selected block in its record, if the view needs them."""
    if not readable(example) or not _beyond_payload(example, selection):
        return example
    record = replace(example.explanation.record, features=_features(example, selection.after_block))
    return replace(example, explanation=replace(example.explanation, record=record))


def basis(example: Example, block: int, pictures: Sequence[OpenPicture] = ()) -> tuple[Components, Tensor]:
    """Return the joint components of pictures after a block, and an example's colours (rows, cols, 3) in this basis."""
    this = open_example(example)
    every = {one.key: one for one in pictures if one.weights == this.weights} or {this.key: this}

    def work() -> Components:
        return components.components([one.patches(block) for one in every.values()])

    of: Components = cached(("components", block, *every), work)
    return of, of.colours[list(every).index(this.key)] if this.key in every else of.colours_of(this.patches(block))


def readable(example: Example) -> bool:
    """Whether a model is available or being loaded; an epoch of a run has none."""
    return example.checkpoint is not None


def _beyond_payload(example: Example, selection: Selection) -> bool:
    if example.stored:  # PyTorch is not imported yet
        return False
    last = example.explanation.record.blocks - 1
    return selection.view == "components" or (selection.view == "similar" and selection.after_block != last)


def _features(example: Example, block: int) -> Tensor:
    """Compute token features after a block (N, D)."""

    def work() -> Tensor:
        with pass_of(example):
            return components.token_features(example.checkpoint.model, example.pixels, block, example.hook)

    features: Tensor = cached(("token features", example.key, block), work)
    return features
