"""High-level API for explanation maps: a picture, a method name, a class and a query token in; a heatmap out."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized, size_near
from vit.errors import InvalidCheckpoint, UserError
from vit.explain.classes.difference import class_from_difference
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.record import AttentionRecord, Precision
from vit.explain.recorded_pass import RecordedPass
from vit.explain.recorded_ranking import recommended
from vit.explain.relevance import check_target
from vit.explain.settings import Direction
from vit.model.cost import Size


def heatmap(
    checkpoint: Checkpoint,
    image: Image.Image | Sequence[Image.Image],
    method: str | None = None,
    target: str | int | None = None,
    query: str | int | tuple[int, int] | None = None,
    direction: Direction = "from",
    size: int | Size | None = None,
    precision: Precision = "float32",
    against: str | int | None = None,
    **settings: Any,
) -> Tensor:
    """Compute the map of an explanation method, as the app and the command line show it.

    Args:
        image: RGB, from `vit.decode_image`; or a sequence of images.
        method: a name in `METHODS`; None for the one that measured best with this checkpoint, see
            `vit.explain.recorded_ranking.recommended`, or for raw attention without classes.
        target: class to explain, by label or index; None for the predicted class. Class-independent methods ignore it.
        query: token to explain: the name of a prefix token such as "cls", "ROW,COL" or (row, col) of a patch, or a
            token index, all from 0; None for the model's output.
        direction: "from" for attention from the token to others, "to" for attention from others to the token.
        size: shorter side of the model's input [px], rounded to whole patches; or (height, width) in whole patches;
            None for the checkpoint's own.
        precision: of class-independent methods, see `vit.record`.
        against: a second class: explain why the model says `target` rather than this one.
        settings: of the method, see `METHODS[method].settings`; blocks and heads count from 0.

    Returns:
        (rows, cols), not scaled for display; (B, rows, cols) for a sequence, computed one by one. Class-specific maps
        are shares that sum to 1 together with those of prefix tokens. Other maps are attention weights.

    Raises:
        UserError: unknown method, class or token; a class-specific method for a model without classes; or an empty
            sequence.
        ValueError: unknown block, head or setting; or a height or width that is not a multiple of the patch size.
    """
    if not isinstance(image, Image.Image):
        if not image:
            raise UserError("There is no picture to explain: the list is empty.")
        same = method, target, query, direction, size, precision, against
        return torch.stack([heatmap(checkpoint, one, *same, **settings) for one in image])
    method = method or (recommended(checkpoint.facts) if checkpoint.labels else "attention")
    if method not in METHODS:
        raise UserError(f"There is no method {method!r}. Choose from {', '.join(METHODS)}.")
    preprocess = checkpoint.preprocess
    if size is not None:
        preprocess = resized(preprocess, size if isinstance(size, tuple) else size_near(checkpoint, size))
    pixels = preprocess(image)
    if against is not None:
        checkpoint, target = with_difference(checkpoint, pixels, target, against), 0
    recorded = run_model(checkpoint, pixels, method, target, precision)
    token = None if query is None else find_token(query, recorded.record)
    return heatmap_of(recorded, method, token, direction, **settings)


def run_model(
    checkpoint: Checkpoint,
    pixels: Tensor,
    method: str,
    target: str | int | None = None,
    precision: Precision = "float32",
) -> RecordedPass:
    """Run a picture through the model, with a backward pass if the method needs one.

    Args:
        pixels: (1, channels, height, width).
        target: see `heatmap`.
        precision: for class-independent methods, see `record`.

    Raises:
        UserError: unknown class, or a class-specific method for a model without classes.
    """
    if not METHODS[method].of_class:
        return RecordedPass.without_class(checkpoint.model, pixels, precision)
    if not checkpoint.labels:
        others = " or ".join(name for name, one in METHODS.items() if not one.of_class)
        raise InvalidCheckpoint(
            f"{checkpoint.name} computes features and has no classes, so {method} has nothing to explain. "
            f"Choose another checkpoint, or a method that needs no class: {others}."
        )
    index = find_class(target, checkpoint.labels) if isinstance(target, str) else target
    if not METHODS[method].own_passes:
        return RecordedPass.of_class(checkpoint.model, pixels, index)
    if index is not None:
        check_target(checkpoint.config, index)
    return RecordedPass.forward_only(checkpoint.model, pixels, index)


def with_difference(checkpoint: Checkpoint, pixels: Tensor, target: str | int | None, against: str | int) -> Checkpoint:
    """Return the checkpoint with one class: why it says `target`, or what it predicts, rather than `against`.

    Args:
        pixels: (1, channels, height, width).

    Raises:
        UserError: unknown class, or both are the same.
    """
    if not checkpoint.labels:
        return checkpoint  # which `run_model` refuses
    if target is None:
        with torch.inference_mode():
            target = checkpoint.model.default_target(checkpoint.model(pixels).logits[0])
    pair = [find_class(one, checkpoint.labels) if isinstance(one, str) else one for one in (target, against)]
    return checkpoint.with_classes(class_from_difference(checkpoint, *pair))


LISTED_CLASSES = 20  # maximum number of classes in an error message


def find_class(name: str, labels: Sequence[str]) -> int:
    """Return the index of a class, given its label or its index as text.

    Raises:
        UserError: no class matches, or several do.

    >>> find_class("Dog", ["cat", "dog"]), find_class("0", ["cat", "dog"])
    (1, 0)
    """
    alike = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    exact = [i for i in alike if labels[i] == name] or alike
    if len(exact) > 1:
        raise UserError(
            f"{len(exact)} classes are called {name!r}: {', '.join(map(str, exact))}. Give the index of one."
        )
    if exact:
        return exact[0]
    if name.isdecimal():
        return int(name)
    if near := get_close_matches(name, labels, 3, 0.5):
        way = f"Did you mean {' or '.join(near)}?"
    elif len(labels) <= LISTED_CLASSES:
        way = f"Its classes are {', '.join(labels)}."
    else:
        way = f"Name another of the {len(labels):,}, or its number from 0 to {len(labels) - 1}."
    raise UserError(f"There is no class {name!r}. {way}")


def find_token(query: str | int | tuple[int, int], record: AttentionRecord) -> int:
    """Return the index of a token, given the name of a prefix token, the position of a patch, or the index itself.

    Raises:
        UserError: the token does not exist.
    """
    if isinstance(query, int):
        if not 0 <= query < record.tokens:
            raise UserError(f"There is no token {query}: they run from 0 to {record.tokens - 1}.")
        return query
    if isinstance(query, str) and query in record.prefix:
        return record.prefix.index(query)
    try:
        row, col = map(int, query.split(",") if isinstance(query, str) else query)
    except ValueError:
        names = ", ".join(record.prefix) or "none here"
        raise UserError(f"A query must be a prefix token ({names}) or ROW,COL, not {query!r}.") from None
    try:
        return record.patch(row, col)
    except ValueError as error:
        raise UserError(str(error)) from None
