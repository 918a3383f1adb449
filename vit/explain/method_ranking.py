"""Which method's maps are true on a whole dataset: every method on every picture, with confidence intervals."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import record_facts
from vit.data.datasets import load_dataset
from vit.data.in_parts import InParts, Part, pictures_bar
from vit.data.labels import match_classes
from vit.explain.faithfulness import RANDOM_MAPS, centre, faithfulness, noise, overlap, points_at
from vit.explain.methods import METHODS, Subject, heatmap_of
from vit.explain.sensitivity import HELD_OUT, judge, random_masks, score_drops
from vit.images.preprocess import Normalise

RANDOM, BLOB = "random", "blob in the middle"
_HAS_OBJECTS = "objects are known"
MASKS = 128  # of each picture
RESAMPLES = 2000
_NUMBER = r"(-?\d\.\d{3})"
_SHARE = r"(\d{1,3}\.\d)%"
_LINE = re.compile(
    rf"\| (?P<title>[^|]+) \| {_NUMBER} \({_NUMBER} to {_NUMBER}\) \|"
    rf"(?: {_NUMBER} \({_NUMBER} to {_NUMBER}\) \| {_SHARE} \|)?"
)
_PICTURES = re.compile(r"Test pictures of .+: (\d{1,9}), by `python -m vit faithfulness`")


class Interval(NamedTuple):
    """A mean over pictures, and where 95 % of the means of resampled pictures lie.

    Source: Efron 1979, the percentile bootstrap.
    """

    mean: float
    low: float
    high: float


class Ranked(NamedTuple):
    """What a method reached.

    Attributes:
        name: in `METHODS`, or of a control.
        saco: see `vit.explain.faithfulness.saco`.
        correlation: see `vit.explain.sensitivity.correlations`.
        better: share of the pictures on which the map is better than chance, see `vit.explain.sensitivity.judge`.
        points: share of the pictures whose strongest pixel is on the object; None where objects are not known.
        overlap: intersection over union with the object; None likewise.
        pictures: how many.
    """

    name: str
    saco: Interval
    correlation: Interval
    better: Interval
    points: Interval | None
    overlap: Interval | None
    pictures: int

    def to_dict(self) -> dict[str, Any]:
        """The name, and each interval as its mean, low and high, ready for JSON; None where objects are not known."""
        intervals = {name: getattr(self, name) for name in ("saco", "correlation", "better", "points", "overlap")}
        return {"name": self.name} | {name: one and one._asdict() for name, one in intervals.items()}


def rank(
    checkpoint: Checkpoint,
    data: str,
    limit: int = 500,
    *,
    root: Path = Path("data"),
    names: Sequence[str] = tuple(METHODS),
    bar: bool = False,
) -> list[Ranked]:
    """Explain the predicted class of test pictures by every method, and see which maps are true; best first.

    Args:
        limit: pictures, taken evenly from the classes.
        names: of methods; the controls are always there.

    Raises:
        InvalidDataset: the dataset cannot be read, or has a class that the checkpoint does not know.
    """
    return combined(in_parts(checkpoint, data, limit, root=root, names=names).all(pictures_bar(bar)))


def in_parts(
    checkpoint: Checkpoint,
    data: str,
    limit: int = 500,
    *,
    root: Path = Path("data"),
    names: Sequence[str] = tuple(METHODS),
    **reading: int,
) -> InParts:
    """Faithfulness of every method on a dataset, to be done in parts.

    A part gives (1, 5) for each method: SaCo, correlation, whether that is better than chance, pointing game, overlap.

    Args:
        reading: see `load_dataset`.
    """
    dataset = load_dataset(data, checkpoint.preprocess, root=root, only="test", at_most=limit, **reading)
    match_classes(dataset.classes, checkpoint.labels, checkpoint.name)  # raises if these are other classes
    normalise = Normalise(checkpoint.preprocess, torch.device("cpu"))

    def compute(image: Tensor, _: Tensor, index: int) -> Part:
        subject = Subject.of(checkpoint.model, normalise(image))
        maps = {name: heatmap_of(subject, name) for name in names}
        grid = subject.record.grid
        maps |= {f"{RANDOM} {seed}": noise(grid, index * RANDOM_MAPS + seed) for seed in range(RANDOM_MAPS)} | {
            BLOB: centre(grid)
        }
        mask = None if dataset.masks is None else dataset.masks[index]
        inputs = checkpoint.model, subject.pixels, subject.record.target
        masks = random_masks(grid[0] * grid[1], MASKS, HELD_OUT + index)
        drops = score_drops(*inputs, masks)
        every = {}
        for (name, heatmap), saco in zip(maps.items(), faithfulness(*inputs, list(maps.values())), strict=True):
            verdict = judge(heatmap, masks, drops)
            better = float(verdict.word == "better than chance")
            every[name] = saco, verdict.correlation, better, *_hit_and_overlap(heatmap, mask)
        chance = torch.tensor([every.pop(f"{RANDOM} {seed}") for seed in range(RANDOM_MAPS)]).mean(0)
        rows = {name: np.array([every[name]]) for name in (*names, BLOB)} | {RANDOM: chance[None].numpy()}
        return rows | {_HAS_OBJECTS: np.array(mask is not None)}

    return InParts(dataset.test, min(limit, len(dataset.test.labels)), 1, compute)


def combined(parts: Iterable[Part]) -> list[Ranked]:
    """What all parts say together, in their order; best first."""
    every = list(parts)
    has_objects = bool(every[0][_HAS_OBJECTS])
    ranked = []
    for name in (*(name for name in every[0] if name not in (RANDOM, BLOB, _HAS_OBJECTS)), RANDOM, BLOB):
        rows = torch.from_numpy(np.concatenate([part[name] for part in every])).double()
        saco, correlation, better, points, overlaps = (interval(column) for column in rows.T)
        one = Ranked(name, saco, correlation, better, points, overlaps, len(rows))
        ranked.append(one if has_objects else one._replace(points=None, overlap=None))
    return sorted(ranked, key=lambda one: -one.saco.mean)


def _hit_and_overlap(heatmap: Tensor, mask: Tensor | None) -> tuple[float, float]:
    return (0.0, 0.0) if mask is None else (float(points_at(heatmap, mask)), overlap(heatmap, mask))


def interval(values: Tensor) -> Interval:
    """The mean of values (n,), and where 95 % of the means of resampled ones lie; the same for the same values."""
    generator = torch.Generator().manual_seed(0)
    draws = torch.randint(len(values), (RESAMPLES, len(values)), generator=generator)
    low, high = values[draws].mean(1).quantile(torch.tensor([0.025, 0.975], dtype=values.dtype)).tolist()
    return Interval(float(values.mean()), low, high)


def table(ranked: Sequence[Ranked]) -> list[str]:
    """The ranking as the lines of a Markdown table."""
    has_objects = ranked[0].points is not None
    lines = ["| Method | SaCo (95 %) | Faithfulness correlation (95 %) | Better than chance |"]
    lines[0] += " Points at the object | Overlap with it |" if has_objects else ""
    lines.append("|---|---|---|---|" + ("---|---|" if has_objects else ""))
    for one in ranked:
        title = METHODS[one.name].title if one.name in METHODS else one.name.capitalize()
        line = f"| {title} | {_interval_text(one.saco)} | {_interval_text(one.correlation)} | {one.better.mean:.1%} |"
        if one.points and one.overlap:
            line += f" {one.points.mean:.1%} | {_interval_text(one.overlap)} |"
        lines.append(line)
    return lines


class Recorded(NamedTuple):
    """What a card says of a method.

    Attributes:
        saco: see `Ranked`.
        correlation: see `Ranked`; None in cards from before it was measured.
        better: see `Ranked`, the mean alone; None likewise.
    """

    saco: Interval
    correlation: Interval | None = None
    better: float | None = None


def read_table(lines: Iterable[str]) -> dict[str, Recorded]:
    """What the lines of `table` say, by the name of the method; lines that are none of those are left out."""
    names = {method.title: name for name, method in METHODS.items()} | {one.capitalize(): one for one in (RANDOM, BLOB)}
    matches = [one for one in map(_LINE.match, lines) if one and one["title"] in names]
    return {names[one["title"]]: _read_line(*one.groups()[1:]) for one in matches}


def _read_line(*numbers: str | None) -> Recorded:
    values = [float(one) for one in numbers if one is not None]
    more = (Interval(*values[3:6]), values[6] / 100) if len(values) > 3 else ()
    return Recorded(Interval(*values[:3]), *more)


def recorded(facts: Mapping[str, Any]) -> tuple[int, dict[str, Recorded]]:
    """What `record_in_card` left in a checkpoint's facts, which anybody may have written.

    Returns:
        how many pictures, 0 if nothing was measured; and what was reached, by the name of the method.
    """
    lines = facts.get("faithfulness")
    if not isinstance(lines, list) or not lines or not all(isinstance(line, str) for line in lines):
        return 0, {}
    pictures = _PICTURES.match(lines[0])
    return (int(pictures[1]), read_table(lines)) if pictures else (0, {})


def _interval_text(one: Interval) -> str:
    return f"{one.mean:.3f} ({one.low:.3f} to {one.high:.3f})"


def verdict(ranked: Sequence[Ranked]) -> str:
    """Whether it is as published: random near zero, rollout above it, the best method with a gradient above both."""
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


def record_in_card(checkpoint: Checkpoint, data: str, ranked: Sequence[Ranked]) -> None:
    """Put the ranking into the card of a checkpoint that this app saved.

    Raises:
        UserError: it is another library's, whose card is not ours to write.
    """
    intro = f"Test pictures of {data}: {ranked[0].pictures}, by `python -m vit faithfulness`. {verdict(ranked)}"
    record_facts(checkpoint, {"faithfulness": [intro, "", *table(ranked)]})
