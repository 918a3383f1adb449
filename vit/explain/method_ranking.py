"""Rank explanation methods by their faithfulness on a dataset, with confidence intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import record_facts
from vit.data.datasets import load_dataset
from vit.data.layouts.labels import match_classes
from vit.data.pictures import first_batches
from vit.explain.faithfulness import RANDOM_MAPS, centre, faithfulness, noise, overlap, points_at
from vit.explain.faithfulness_correlation import HELD_OUT, faithfulness_verdict, random_masks, score_drops
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.explain.recorded_ranking import BLOB, RANDOM, Interval
from vit.images.preprocess import Normalise
from vit.progress import pictures_bar

Scores = tuple[float, float, float, float, float]  # SaCo, correlation, better than chance, pointing game, overlap

MASKS = 128  # per picture
RESAMPLES = 2000  # bootstrap samples


class MethodResult(NamedTuple):
    """Results of one method.

    Attributes:
        name: in `METHODS`, or the name of a baseline.
        saco: see `vit.explain.faithfulness.saco`.
        correlation: see `vit.explain.faithfulness_correlation.correlations`.
        better: share of pictures on which the map is better than chance, see
            `vit.explain.faithfulness_correlation.faithfulness_verdict`.
        points: share of pictures whose strongest pixel is on the object; None without object masks.
        overlap: IoU with the object; None without object masks.
        pictures: number of pictures.
    """

    name: str
    saco: Interval
    correlation: Interval
    better: Interval
    points: Interval | None
    overlap: Interval | None
    pictures: int

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON: the name, and each interval as mean, low and high; None without object masks."""
        intervals = {name: getattr(self, name) for name in ("saco", "correlation", "better", "points", "overlap")}
        return {"name": self.name} | {name: value and value._asdict() for name, value in intervals.items()}


def rank(
    checkpoint: Checkpoint,
    data: str,
    limit: int = 500,
    *,
    root: Path = Path("data"),
    names: Sequence[str] = tuple(METHODS),
    bar: bool = False,
) -> list[MethodResult]:
    """Explain the predicted class of test pictures with every method, and rank methods by SaCo, best first.

    Args:
        limit: number of pictures, taken evenly from the classes.
        names: methods to rank; the baselines are always included.

    Raises:
        InvalidDataset: the dataset cannot be read, or its classes do not match, see `match_classes`.
    """
    dataset = load_dataset(data, checkpoint.preprocess, root=root, only="test", at_most=limit)
    if not checkpoint.estimates:  # else the first output is explained, whatever the pictures show
        match_classes(dataset.classes, checkpoint.labels, checkpoint.name, dataset.folders)  # raises if they differ
    device = torch.device("cpu")
    count, normalise = min(limit, len(dataset.test.labels)), Normalise(checkpoint.preprocess, device)
    scores = []
    for index, (image, _) in enumerate(first_batches(dataset.test, count, 1, device, pictures_bar(bar))):
        recorded = RecordedPass.of_class(checkpoint.model, normalise(image))
        mask = None if dataset.masks is None else dataset.masks[index]
        scores.append(_scores(recorded, names, mask, index))
    return summarise(scores, dataset.masks is not None)


def _scores(recorded: RecordedPass, names: Sequence[str], mask: Tensor | None, index: int) -> dict[str, Scores]:
    """Score the maps of every method, and of the baselines, on one picture.

    Args:
        mask: the object, bool (height, width); None if it is not known.
        index: of the picture, which seeds the random maps and masks.
    """
    maps = {name: heatmap_of(recorded, name) for name in names}
    grid = recorded.record.grid
    maps |= {f"{RANDOM} {seed}": noise(grid, index * RANDOM_MAPS + seed) for seed in range(RANDOM_MAPS)}
    maps[BLOB] = centre(grid)
    inputs = recorded.model, recorded.pixels, recorded.record.target
    masks = random_masks(grid[0] * grid[1], MASKS, HELD_OUT + index)
    drops = score_drops(*inputs, masks)
    results = {}
    for (name, heatmap), saco in zip(maps.items(), faithfulness(*inputs, list(maps.values())), strict=True):
        verdict = faithfulness_verdict(heatmap, masks, drops)
        better = float(verdict.label == "better than chance")
        results[name] = saco, verdict.correlation, better, *_hit_and_overlap(heatmap, mask)
    chance = torch.tensor([results.pop(f"{RANDOM} {seed}") for seed in range(RANDOM_MAPS)]).mean(0)
    return results | {RANDOM: tuple(chance.tolist())}


def summarise(scores: Sequence[Mapping[str, Scores]], has_objects: bool) -> list[MethodResult]:
    """Average the scores of all pictures, and sort methods by SaCo, best first.

    Args:
        scores: of each picture, by method or baseline.
        has_objects: whether the pointing game and the overlap were computed.
    """
    ranked = []
    for name in (*(name for name in scores[0] if name not in (RANDOM, BLOB)), RANDOM, BLOB):
        rows = torch.tensor([one[name] for one in scores], dtype=torch.float64)
        saco, correlation, better, points, overlaps = (interval(column) for column in rows.T)
        result = MethodResult(name, saco, correlation, better, points, overlaps, len(rows))
        ranked.append(result if has_objects else result._replace(points=None, overlap=None))
    return sorted(ranked, key=lambda result: -result.saco.mean)


def _hit_and_overlap(heatmap: Tensor, mask: Tensor | None) -> tuple[float, float]:
    return (0.0, 0.0) if mask is None else (float(points_at(heatmap, mask)), overlap(heatmap, mask))


def interval(values: Tensor) -> Interval:
    """Compute the mean of values (n,) and its 95% bootstrap confidence interval. Deterministic."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    low, high = values[draws].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return Interval(float(values.mean()), low, high)


def table(ranked: Sequence[MethodResult]) -> list[str]:
    """Format the ranking as lines of a Markdown table."""
    has_objects = ranked[0].points is not None
    lines = ["| Method | SaCo (95%) | Faithfulness correlation (95%) | Better than chance |"]
    lines[0] += " Points at the object | Overlap with it |" if has_objects else ""
    lines.append("|---|---|---|---|" + ("---|---|" if has_objects else ""))
    for one in ranked:
        title = METHODS[one.name].title if one.name in METHODS else one.name.capitalize()
        line = f"| {title} | {_interval_text(one.saco)} | {_interval_text(one.correlation)} | {one.better.mean:.1%} |"
        if one.points and one.overlap:
            line += f" {one.points.mean:.1%} | {_interval_text(one.overlap)} |"
        lines.append(line)
    return lines


def _interval_text(one: Interval) -> str:
    return f"{one.mean:.3f} ({one.low:.3f} to {one.high:.3f})"


def verdict(ranked: Sequence[MethodResult]) -> str:
    """Describe whether the ranking is as published: random near 0, rollout above it, the best gradient method first."""
    saco = {one.name: one.saco.mean for one in ranked}
    with_gradient = [name for name in saco if name in METHODS and METHODS[name].of_class and not METHODS[name].passes]
    gradient = max(with_gradient, key=saco.__getitem__)
    best, rollout, random = saco[gradient], saco["rollout"], saco[RANDOM]
    near = "within 0.1 of zero" if abs(random) <= 0.1 else "not within 0.1 of zero"
    order = "above" if best > rollout else "not above"
    other = "above" if rollout > random else "not above"
    return (
        f"Random maps reach {random:.3f}, {near}. The best method with a gradient, {METHODS[gradient].title} at "
        f"{best:.3f}, is {order} rollout at {rollout:.3f}, and rollout is {other} random maps."
    )


def record_in_card(checkpoint: Checkpoint, data: str, ranked: Sequence[MethodResult]) -> None:
    """Write the ranking into the model card of a checkpoint that this app saved.

    Raises:
        UserError: the checkpoint comes from another library; its card is not modified.
    """
    intro = f"Test pictures of {data}: {ranked[0].pictures}, by `python -m vit faithfulness`. {verdict(ranked)}"
    record_facts(checkpoint, {"faithfulness": [intro, "", *table(ranked)]})
