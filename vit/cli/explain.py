"""The commands classify and explain, which work on pictures."""

import argparse
import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit.checkpoints import abstention
from vit.checkpoints.checkpoint import Checkpoint
from vit.cli.classes import load_with_classes
from vit.cli.documents import facts_of
from vit.cli.parser import option_of, options_of, setting_options
from vit.cli.pictures import pictures_in, preprocess_of_size, read_picture, read_region
from vit.errors import InvalidCheckpoint, InvalidImage, UserError
from vit.explain.heatmap import find_token, run_model, with_difference
from vit.explain.maps import checked_index
from vit.explain.methods import METHODS, Method, weights
from vit.explain.names import format_position
from vit.explain.record import AttentionRecord
from vit.explain.recorded_ranking import recommended
from vit.explain.regions import RegionScore, region_score
from vit.explain.settings import Direction
from vit.exports import tables
from vit.exports.arrays import attention_npz
from vit.model.config import ViTConfig
from vit.progress import tqdm
from vit.view.map_view import method_facts
from vit.view.overlay import overlay
from vit.view.prediction import written


def run_classify(options: argparse.Namespace) -> None:
    """Classify pictures; unreadable ones are reported after the others."""
    checkpoint = load_with_classes(options)
    if not checkpoint.labels:
        raise InvalidCheckpoint(
            f"{checkpoint.name} computes features and has no classes. Name some with --text, or show them with "
            "--examples folder:PATH."
        )
    preprocess, results, problems = preprocess_of_size(options, checkpoint), [], []
    for path in options.images:
        try:
            pixels = preprocess(read_picture(path, options.stretch))
        except InvalidImage as error:
            problems.append(str(error))
            continue
        with torch.inference_mode():
            logits = checkpoint.model(pixels).logits[0]
        values = checkpoint.model.probabilities(logits)
        order = range(len(values)) if checkpoint.estimates else values.argsort(descending=True).tolist()
        ranked = [(checkpoint.labels[i], float(values[i])) for i in order[: max(options.top, 1)]]
        value = "value" if checkpoint.estimates else "probability"
        predictions = [{"label": label, value: number} for label, number in ranked]
        sure = abstention.is_sure(float(logits.max()), checkpoint.facts)
        results.append({"image": str(path), "predictions": predictions} | ({} if sure is None else {"sure": sure}))
        if not options.json:
            print(path)
            if sure is False:
                print(f"  {abstention.perhaps(ranked)}. This model knows {len(checkpoint.labels):,} things.")
            _print_predictions(ranked, checkpoint)
    if options.json:
        facts: dict[str, Any] = facts_of(checkpoint) | {"size": preprocess.size}
        if checkpoint.custom_classes:
            facts |= {"classes": checkpoint.custom_classes.source, **checkpoint.custom_classes.facts}
        print(json.dumps(facts | {"results": results} | ({"problems": problems} if problems else {})))
    if problems:
        raise InvalidImage("\n".join(problems))


def _print_predictions(ranked: Sequence[tuple[str, float]], checkpoint: Checkpoint) -> None:
    for label, value in ranked:
        bar = "" if checkpoint.estimates else "█" * round(value * 30)
        print(f"  {written(checkpoint, value, '.2%'):>7}  {label:<24} {bar}")


def run_explain(options: argparse.Namespace) -> None:
    """Draw or save a method's map of one or several pictures; unreadable ones are reported after the others."""
    out, into_folder = options.out, options.out.is_dir() or not options.out.suffix
    if not into_folder and out.suffix.lower() not in (".png", ".npz"):
        raise UserError(f"--out must be a folder or end in .png or .npz, not {out.name!r}.")
    pictures = pictures_in(options.images)
    if not into_folder and len(pictures) > 1:
        raise UserError(f"{len(pictures)} pictures do not fit into one file. Name a folder: --out FOLDER.")
    checkpoint = load_with_classes(options)
    if options.method is None:
        best = recommended(checkpoint.facts)
        options.method = best if checkpoint.labels and _method_options(options) <= {*options_of(best)} else "attention"
    _check_options(options)
    preprocess, method = preprocess_of_size(options, checkpoint), METHODS[options.method]
    names, problems, empty = set[str](), list[str](), False
    scores: dict[Path, RegionScore] = {}
    view: dict[str, Any] = {}
    if into_folder:
        with _user_write_errors(out):
            out.mkdir(parents=True, exist_ok=True)
    for path, name in tqdm(pictures.items(), desc="explain", unit="picture", disable=None if into_folder else True):
        try:
            picture = read_picture(path, options.stretch)
            region = read_region(options, path, picture, preprocess)
        except InvalidImage as error:
            problems.append(str(error))
            continue
        record, numbers, view = _token_weights(options, checkpoint, preprocess(picture))
        heatmap, geometry = record.heatmap(numbers), preprocess.geometry(picture)
        empty = not heatmap.any()
        if region is not None:
            scores[path] = region_score(heatmap, region)
            view |= {"region": scores[path]._asdict()}
        file = out / _unused_name(name, names) if into_folder else out
        names.add(file.name)
        with _user_write_errors(file):
            if file.suffix.lower() == ".png":
                overlay(picture, heatmap.numpy(), geometry.box, signed=method.signed).save(file)
            else:
                file.write_bytes(attention_npz(record, heatmap, checkpoint, preprocess, geometry, view, method.unit))
    if view:
        print(out)
        if empty and not into_folder:
            print("The map is zero everywhere, so the picture is unchanged. Try another method.")
        if counts := format_position(view):
            print(f"{counts[0].upper()}{counts[1:]}")
    if scores:
        if into_folder:
            rows = [{"picture": str(path), **score._asdict()} for path, score in scores.items()]
            with _user_write_errors(out / "region.csv"):
                (out / "region.csv").write_bytes(tables.encode(rows))
        _print_scores(list(scores.values()))
    if problems:
        raise InvalidImage("\n".join(problems))


def _print_scores(scores: Sequence[RegionScore]) -> None:
    energy, hits, area = torch.tensor(scores).mean(0).tolist()
    print(f"In the region: {energy:.1%} of the map, {area:.1%} by chance; the maximum on {hits:.0%} of the pictures.")


def _unused_name(stem: str, taken: Collection[str]) -> str:
    """Return a name for a PNG file that is not in `taken`.

    >>> _unused_name("cat", {"cat.png", "cat-2.png"})
    'cat-3.png'
    """
    name, number = f"{stem}.png", 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}.png"
    return name


@contextmanager
def _user_write_errors(path: Path) -> Iterator[None]:
    """Convert an OSError to a UserError that names the file."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}.") from error


def _check_options(options: argparse.Namespace) -> None:
    """Reject options that the method would ignore, and shares out of range."""
    for name in sorted(_method_options(options) - {*options_of(options.method)}):
        suited = ", ".join(method for method in METHODS if name in options_of(method))
        raise UserError(f"--{name.replace('_', '-')} has no effect on {options.method}; it applies to {suited}.")
    if options.direction == "to" and options.query is None:
        raise UserError("--direction to needs --query, the token that receives the attention.")
    if options.residual is not None and not 0 <= options.residual <= 1:
        raise UserError(f"--residual must be 0 to 1, not {options.residual:g}.")
    if options.discard is not None and not 0 <= options.discard < 1:
        raise UserError(f"--discard must be at least 0 and under 1, not {options.discard:g}.")


def _method_options(options: argparse.Namespace) -> set[str]:
    """Return the given options that apply to some methods only."""
    names = "target", "against", *setting_options(), "query", "direction", "precision"
    return {name for name in names if getattr(options, name) is not None}


def _check_numbers(options: argparse.Namespace, config: ViTConfig) -> None:
    """Reject blocks and heads that the model does not have."""
    for name, count in (("block", config.depth), ("start_block", config.depth), ("head", config.heads)):
        if isinstance(number := getattr(options, name), int):
            try:
                checked_index(name.removeprefix("start_"), number, count)
            except ValueError as error:
                raise UserError(str(error)) from None


def _token_weights(
    options: argparse.Namespace, checkpoint: Checkpoint, pixels: Tensor
) -> tuple[AttentionRecord, Tensor, dict[str, Any]]:
    """Apply a method; returns the record, one weight per token (N,), and the facts that identify the map."""
    method: Method = METHODS[options.method]
    direction: Direction = options.direction or "from"
    _check_numbers(options, checkpoint.config)
    target = options.target
    if options.against is not None:
        checkpoint, target = with_difference(checkpoint, pixels, target, options.against), 0
    subject = run_model(checkpoint, pixels, options.method, target, options.precision or "float32")
    query = None if options.query is None else find_token(options.query, subject.record)
    settings = {name: value for name in method.settings if (value := _setting(options, name)) is not None}
    numbers = weights(subject, options.method, query, direction, **settings)

    label = checkpoint.labels[subject.explained] if method.of_class else ""
    return subject.record, numbers, method_facts(subject, options.method, label, query, direction, settings)


def _setting(options: argparse.Namespace, name: str) -> Any:
    value = getattr(options, option_of(name))
    if name == "fusion" and isinstance(value, int):
        raise UserError(f"{options.method} takes all heads: --head must be mean, max or min, not {value}.")
    return value
