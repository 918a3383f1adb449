"""The door of this box: a picture, a method by name, a class and a token as people name them, and the map."""

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import InvalidCheckpoint, UserError
from vit.explain.input_sizes import resized, size_near
from vit.explain.methods import METHODS, Subject, heatmap_of
from vit.explain.record import AttentionRecord, Precision
from vit.explain.settings import Direction


def heatmap(
    checkpoint: Checkpoint,
    image: Image.Image | Sequence[Image.Image],
    method: str = "relevance",
    target: str | int | None = None,
    query: str | int | tuple[int, int] | None = None,
    direction: Direction = "from",
    size: int | None = None,
    **settings: Any,
) -> Tensor:
    """What the app and the command line show for a method.

    Args:
        image: RGB, as `vit.decode_image` gives it; or several.
        method: a name in `METHODS`.
        target: the class asked about, by its label or its number from 0; None for the predicted one. Methods that are
            not of a class ignore it.
        query: the token asked about: "cls" or another prefix token, "ROW,COL" or (row, col) of a patch, or its number,
            all from 0; None for what the model's head reads.
        direction: of a token: "from" is where it looks, "to" who looks at it.
        size: shorter side of the model's input [px], to whole patches; None for the checkpoint's own.
        settings: of the method, see `METHODS[method].settings`; blocks and heads count from 0.

    Returns:
        (rows, cols), before any scaling for display; of several pictures (B, rows, cols), each as by itself. Of a
        class, shares of the whole map, which with those of prefix tokens sum to 1. Otherwise weights of attention.

    Raises:
        UserError: there is no such method, class or token; the model has no classes, and the method explains one; there
            is no picture.
        ValueError: there is no such block or head, or the method has no such setting.
    """
    if not isinstance(image, Image.Image):
        if not image:
            raise UserError("There is no picture to explain: the list is empty.")
        maps = [heatmap(checkpoint, one, method, target, query, direction, size, **settings) for one in image]
        return torch.stack(maps)
    if method not in METHODS:
        raise UserError(f"There is no method {method!r}. Choose from {', '.join(METHODS)}.")
    preprocess = checkpoint.preprocess
    if size is not None:
        preprocess = resized(preprocess, size_near(checkpoint, size))
    subject = ask(checkpoint, preprocess(image), method, target)
    token = None if query is None else find_token(query, subject.record)
    return heatmap_of(subject, method, token, direction, **settings)


def ask(
    checkpoint: Checkpoint,
    pixels: Tensor,
    method: str,
    target: str | int | None = None,
    precision: Precision = "float32",
) -> Subject:
    """Run a picture through the model as far as a method needs it.

    Args:
        pixels: (1, channels, height, width).
        target: as for `heatmap`.
        precision: of methods that are not of a class, see `record`.

    Raises:
        UserError: there is no such class; the model has none, and the method explains one.
    """
    if not METHODS[method].of_class:
        return Subject.without_class(checkpoint.model, pixels, precision)
    if not checkpoint.labels:
        others = " or ".join(name for name, one in METHODS.items() if not one.of_class)
        raise InvalidCheckpoint(
            f"{checkpoint.name} computes features and has no classes, so {method} has nothing to explain. "
            f"Choose another checkpoint, or a method that needs no class: {others}."
        )
    index = find_class(target, checkpoint.labels) if isinstance(target, str) else target
    return Subject.of(checkpoint.model, pixels, index)


LISTED_CLASSES = 20  # that a sentence lists, at most


def find_class(name: str, labels: Sequence[str]) -> int:
    """The number of a class by its label, or by that number itself.

    Raises:
        UserError: there is none, or there are several.

    >>> find_class("Dog", ["cat", "dog"]), find_class("0", ["cat", "dog"])
    (1, 0)
    """
    alike = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    exact = [i for i in alike if labels[i] == name] or alike
    if len(exact) > 1:
        raise UserError(f"{len(exact)} classes are called {name!r}: {', '.join(map(str, exact))}. Name one by number.")
    if exact:
        return exact[0]
    if name.isdecimal():
        return int(name)
    if near := get_close_matches(name, labels, 3, 0.5):
        way = f"Did you mean {' or '.join(near)}?"
    elif len(labels) <= LISTED_CLASSES:
        way = f"The model knows {', '.join(labels)}."
    else:
        way = f"Name another of the {len(labels):,}, or its number from 0 to {len(labels) - 1}."
    raise UserError(f"There is no class {name!r}. {way}")


def find_token(query: str | int | tuple[int, int], record: AttentionRecord) -> int:
    """The number of a token by the name of a prefix token, by the place of a patch, or by that number itself.

    Raises:
        UserError: there is none.
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
