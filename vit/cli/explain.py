"""Commands about one picture: classify, explain."""

import argparse
import json
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from vit.checkpoints.load import load_checkpoint
from vit.cli.parser import METHOD_OPTIONS
from vit.errors import InvalidCheckpoint, InvalidImage, UserError
from vit.explain import methods
from vit.explain.input_sizes import resized, size_near
from vit.explain.maps import checked_index
from vit.explain.settings import Direction, Tuning
from vit.images.decode import decode_image
from vit.view.export import attention_npz
from vit.view.overlay import overlay


def _picture(path: Path) -> Any:
    try:
        return decode_image(path.read_bytes())
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}.") from error
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def run_classify(options: argparse.Namespace) -> None:
    """Say what is on pictures."""
    checkpoint = load_checkpoint(options.checkpoint)
    if not checkpoint.labels:
        raise InvalidCheckpoint(f"{checkpoint.name} computes features and has no classes. Choose another checkpoint.")
    results: list[dict[str, Any]] = []
    for path in options.images:
        with torch.inference_mode():
            logits = checkpoint.model(checkpoint.preprocess(_picture(path))).logits[0]
        top = logits.softmax(0).topk(min(max(options.top, 1), len(logits)))
        predictions = [
            {"label": checkpoint.labels[i], "probability": p}
            for p, i in zip(top.values.tolist(), top.indices.tolist(), strict=True)
        ]
        results.append({"image": str(path), "predictions": predictions})
    if options.json:
        print(json.dumps({"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "results": results}))
        return
    for result in results:
        print(result["image"])
        for prediction in result["predictions"]:
            bar = "█" * round(prediction["probability"] * 30)
            print(f"  {prediction['probability']:7.2%}  {prediction['label']:<24} {bar}")


def run_explain(options: argparse.Namespace) -> None:
    """Draw or save the map of a method."""
    if options.out.suffix.lower() not in (".png", ".npz"):
        raise UserError(f"--out must end in .png or .npz, not {options.out.name!r}.")
    _check_options(options)
    checkpoint = load_checkpoint(options.checkpoint)
    picture = _picture(options.image)
    preprocess = checkpoint.preprocess
    if options.size is not None:
        if not 1 <= options.size <= 4096:
            raise UserError(f"--size must be 1 to 4096 px, not {options.size}.")
        preprocess = resized(preprocess, size_near(checkpoint, options.size))
    kept, weights, view = _weights(options, checkpoint, preprocess(picture))
    heatmap = kept.heatmap(weights)
    geometry = preprocess.geometry(picture)
    try:
        if options.out.suffix.lower() == ".png":
            overlay(picture, heatmap.numpy(), geometry.box).save(options.out)
        else:
            options.out.write_bytes(attention_npz(kept, heatmap, checkpoint, preprocess, geometry, view))
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}.") from error
    print(options.out)


def _check_options(options: argparse.Namespace) -> None:
    """Refuse what a method would ignore, and shares that cannot be."""
    for name in ("target", "block", "head", "start_block", "residual", "discard", "query", "direction", "precision"):
        if getattr(options, name) is not None and name not in METHOD_OPTIONS[options.method]:
            suited = ", ".join(method for method, names in METHOD_OPTIONS.items() if name in names)
            raise UserError(f"--{name.replace('_', '-')} means nothing to {options.method}; it is for {suited}.")
    if options.direction == "to" and options.query is None:
        raise UserError("--direction to says who looks at a token. Name it with --query.")
    if options.residual is not None and not 0 <= options.residual <= 1:
        raise UserError(f"--residual must be 0 to 1, not {options.residual:g}.")
    if options.discard is not None and not 0 <= options.discard < 1:
        raise UserError(f"--discard must be at least 0 and under 1, not {options.discard:g}.")


def _check_numbers(options: argparse.Namespace, config: Any) -> None:
    """Refuse blocks and heads that the model does not have."""
    for name, count in (("block", config.depth), ("start_block", config.depth), ("head", config.heads)):
        if isinstance(number := getattr(options, name), int):
            try:
                checked_index(name.removeprefix("start_"), number, count)
            except ValueError as error:
                raise UserError(str(error)) from None


def _weights(options: argparse.Namespace, checkpoint: Any, pixels: Any) -> tuple[Any, Any, dict[str, Any]]:
    """What a method says: a record, one number per token (N,), and what names them."""
    method = methods.METHODS[options.method]
    direction: Direction = options.direction or "from"
    if method.of_class and not checkpoint.labels:
        raise InvalidCheckpoint(
            f"{checkpoint.name} computes features and has no classes, so {options.method} has nothing to explain. "
            "Choose another checkpoint, or --method attention or rollout."
        )
    _check_numbers(options, checkpoint.config)
    if method.of_class:
        target = None if options.target is None else _class(options.target, checkpoint.labels)
        subject = methods.Subject.of(checkpoint.model, pixels, target)
    else:
        subject = methods.Subject.without_class(checkpoint.model, pixels, options.precision or "float32")
    query = None if options.query is None else _token(options.query, subject.kept)

    tuning = Tuning(**{name: value for name in method.settings if (value := _setting(options, name)) is not None})
    layers = {name: value for name in method.layers if (value := getattr(options, name)) is not None}
    if layers:
        weights = methods.of_layers(subject, options.method, query, direction, layers)
    else:
        weights = methods.weights(subject, options.method, query, direction, tuning)

    view = {"method": options.method} | dict(method.layers) | layers
    view |= {_OPTIONS.get(name, name): getattr(tuning, name) for name in method.settings}
    if method.of_tokens:
        view |= {"query": options.query, "direction": direction}
    if method.of_class:
        target = subject.kept.target
        view["target"] = {"index": target, "label": checkpoint.labels[target]}
    return subject.kept, weights, view


_OPTIONS = {"fusion": "head"}  # settings whose option has another name


def _setting(options: argparse.Namespace, name: str) -> Any:
    value = getattr(options, _OPTIONS.get(name, name))
    if name == "fusion" and isinstance(value, int):
        raise UserError(f"{options.method} takes all heads: --head must be mean, max or min, not {value}.")
    return value


def _class(name: str, labels: Sequence[str]) -> int:
    """The number of a class by its label, or by that number itself."""
    alike = [i for i, label in enumerate(labels) if label.casefold() == name.casefold()]
    exact = [i for i in alike if labels[i] == name] or alike
    if len(exact) > 1:
        raise UserError(f"{len(exact)} classes are called {name!r}: {', '.join(map(str, exact))}. Name one by number.")
    if exact:
        return exact[0]
    if name.isdecimal():
        return int(name)
    near = get_close_matches(name, labels, 3, 0.5)
    raise UserError(
        f"There is no class {name!r}. " + (f"Did you mean {' or '.join(near)}?" if near else "Name another.")
    )


def _token(query: str, kept: Any) -> int:
    if query in kept.prefix:
        return kept.prefix.index(query)
    try:
        row, col = map(int, query.split(","))
    except ValueError:
        names = ", ".join(kept.prefix) or "none here"
        raise UserError(f"--query must be a prefix token ({names}) or ROW,COL, not {query!r}.") from None
    try:
        return kept.patch(row, col)
    except ValueError as error:
        raise UserError(str(error)) from None
