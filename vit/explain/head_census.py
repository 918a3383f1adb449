"""Head statistics over many pictures, streaming mean and standard deviation; and their share of artefacts.

The ViT paper averages attention distances over 128 pictures (Dosovitskiy et al. 2021, arXiv 2010.11929, figure 7).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import record_facts
from vit.data.datasets import load_pictures
from vit.data.pictures import Pictures, first_batches
from vit.errors import InvalidImage, UserError
from vit.explain.head_statistics import Statistic, names, statistics
from vit.explain.method_ranking import interval
from vit.explain.names import STATISTICS, display_name, format_statistic
from vit.explain.record import AttentionRecord
from vit.explain.weight_views import LEAST, high_norm
from vit.images.files.decode import decode_image
from vit.images.preprocess import Normalise, Preprocess
from vit.model.cost import count_tokens, pass_seconds, products
from vit.model.transformer import VisionTransformer

CENSUS_PICTURES = 128  # as in the paper

# Tokens per batch. On two cores, the shipped model takes a third of the time per picture in batches of 32 compared with
# single pictures. The time of ViT-B/16 does not depend on the batch size.
_BATCH_TOKENS = 2048
_PRODUCTS_PER_WEIGHT = 1000  # duration of the statistics of an attention weight [products of a plain pass]
_BUDGET_BYTES = 1 << 28  # memory for decoded pictures [bytes]; larger datasets are decoded on demand


@dataclass(frozen=True)
class Tally:
    """Accumulated head statistics. Tallies of different pictures are combined with +.

    Attributes:
        pictures: number of pictures.
        means: mean of each statistic, (L, H) float64.
        squares: sum of squared differences from the mean, (L, H) float64.
        uniform: see `Statistic`.
        artefacts: share of artefacts among the patch tokens after the last block, for each picture, see `high_norm`.
            Tensors without dimensions, so that nothing waits for a GPU.
    """

    pictures: int = 0
    means: Mapping[str, Tensor] = field(default_factory=dict)
    squares: Mapping[str, Tensor] = field(default_factory=dict)
    uniform: Mapping[str, float] = field(default_factory=dict)
    artefacts: tuple[Tensor, ...] = ()

    def __add__(self, other: "Tally") -> "Tally":
        """Combine the statistics of two sets of pictures.

        Source: Chan, Golub & LeVeque 1979, "Updating formulae and a pairwise algorithm for computing sample variances".
        """
        if not self.pictures or not other.pictures:
            return self if self.pictures else other
        total = self.pictures + other.pictures
        means, squares = {}, {}
        for name, mean in self.means.items():
            apart = other.means[name] - mean
            means[name] = mean + apart * (other.pictures / total)
            between = apart**2 * (self.pictures * other.pictures / total)
            squares[name] = self.squares[name] + other.squares[name] + between
        return Tally(total, means, squares, self.uniform, self.artefacts + other.artefacts)

    def statistics(self) -> dict[str, Statistic]:
        """Return the mean and standard deviation (L, H) of each statistic over the pictures, by name."""
        by_name = {}
        for name, mean in self.means.items():
            deviation = (self.squares[name] / (self.pictures - 1)).sqrt().float() if self.pictures > 1 else None
            by_name[name] = Statistic(mean.float(), self.uniform[name], deviation, self.pictures)
        return by_name


@torch.inference_mode()
def tally(model: VisionTransformer, pixels: Tensor) -> Tally:
    """Compute head statistics of a batch of pictures (B, channels, height, width); B may be 0."""
    if not len(pixels):
        return Tally()
    output, patch = model(pixels, output_queries_keys=True), model.config.patch_size
    together = AttentionRecord(  # statistics are per head, so the pictures' heads are stacked in one record
        logits=output.logits,
        queries=tuple(q.flatten(0, 1) for q in output.queries),  # (B * H, N, K)
        keys=tuple(k.flatten(0, 1) for k in output.keys),
        prefix=model.config.prefix,
        grid=(pixels.shape[2] // patch, pixels.shape[3] // patch),
    )
    means, squares, uniform = {}, {}, {}
    for name, statistic in statistics(together, patch).items():
        values = statistic.values.double().unflatten(1, (len(pixels), -1))  # (L, B, H)
        means[name] = values.mean(1)
        squares[name] = (values - means[name][:, None]).square().sum(1)
        uniform[name] = statistic.uniform
    artefacts = high_norm(output.norms[:, len(together.prefix) :]).double().mean(1)
    return Tally(len(pixels), means, squares, uniform, artefacts.unbind())


def census(
    checkpoint: Checkpoint,
    data: str,
    limit: int = CENSUS_PICTURES,
    *,
    root: Path = Path("data"),
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tally:
    """Compute head statistics over a dataset's test pictures. The model may have other classes.

    Args:
        limit: number of pictures, taken evenly from the classes.
        progress: called with the number of pictures done and the total.

    Raises:
        InvalidDataset: the dataset cannot be read.
    """
    preprocess, device = checkpoint.preprocess, torch.device("cpu")
    pictures = pictures_of(data, preprocess, root=root, limit=limit)
    normalise, batch = Normalise(preprocess, device), batch_size(checkpoint, preprocess)
    batches = first_batches(pictures, len(pictures.labels), batch, device, progress)
    return sum((tally(checkpoint.model, normalise(images)) for images, _ in batches), Tally())


# --- Pictures -------------------------------------------------------------------------------------------------


def batch_size(checkpoint: Checkpoint, preprocess: Preprocess) -> int:
    """Return the number of pictures per batch."""
    return max(1, _BATCH_TOKENS // count_tokens(checkpoint.config, preprocess.size))


def seconds(checkpoint: Checkpoint, preprocess: Preprocess, count: int) -> float:
    """Estimate the duration of statistics over `count` pictures [s]."""
    config, size = checkpoint.config, preprocess.size
    weights = config.depth * config.heads * count_tokens(config, size) ** 2
    return pass_seconds(checkpoint.model, size, count * (1 + _PRODUCTS_PER_WEIGHT * weights / products(config, size)))


def pictures_of(
    data: str,
    preprocess: Preprocess,
    *,
    root: Path = Path("data"),
    limit: int = CENSUS_PICTURES,
    workers: int = 2,
) -> Pictures:
    """Load at most `limit` test pictures of a dataset, taken evenly from its classes, or of a folder without classes.

    Raises:
        InvalidDataset: the dataset cannot be read.
    """
    return load_pictures(data, preprocess, root=root, budget=_BUDGET_BYTES, workers=workers, at_most=limit).test


class DecodedFiles(NamedTuple):
    """Model input, and the files that could not be decoded.

    Attributes:
        pixels: (B, channels, height, width).
        unreadable: file names, each with the reason.
    """

    pixels: Tensor
    unreadable: tuple[str, ...] = ()


def preprocess_pictures(pictures: Pictures, places: range, preprocess: Preprocess) -> DecodedFiles:
    """Preprocess the pictures of a dataset at these indices."""
    device = torch.device("cpu")
    (images, _), *_ = pictures.batches(torch.tensor(places), len(places), device)
    return DecodedFiles(Normalise(preprocess, device)(images))


def decode_files(files: Sequence[tuple[str, bytes]], preprocess: Preprocess) -> DecodedFiles:
    """Decode and preprocess files, given as (name, content). Files that cannot be decoded are reported, not raised."""
    pixels, unreadable = [torch.empty(0, preprocess.channels, *preprocess.size)], []
    for name, content in files:
        try:
            pixels.append(preprocess(decode_image(content)))
        except InvalidImage as error:
            unreadable.append(f"{name}: {error}")
    return DecodedFiles(torch.cat(pixels), tuple(unreadable))


# --- Words ----------------------------------------------------------------------------------------------------


def check_name(checkpoint: Checkpoint, name: str) -> None:
    """Check that a model has a statistic.

    Raises:
        UserError: unknown statistic, or the model lacks the tokens for it.
    """
    available = names(checkpoint.config.prefix)
    if name not in available:
        raise UserError(f"{checkpoint.name} has no statistic {name!r}. Choose from {', '.join(available)}.")


def table(name: str, statistic: Statistic) -> list[str]:
    """Format a statistic as lines of a Markdown table: blocks by heads, and a last column with each block's mean."""
    heads = statistic.values.shape[1]
    rows = [["Block", *(display_name("Head", head) for head in range(heads)), "Mean"]]
    for block, values in enumerate(statistic.values.tolist()):
        spread = [None] * heads if statistic.deviation is None else statistic.deviation[block].tolist()
        cells = [format_statistic(name, value, deviation) for value, deviation in zip(values, spread, strict=True)]
        rows.append([str(block + 1), *cells, format_statistic(name, sum(values) / heads)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["| " + " | ".join(map(str.ljust, row, widths)) + " |" for row in rows]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def sentence(name: str, statistic: Statistic) -> str:
    """Return the caption of `table`: the statistic, over how many pictures, and its value for uniform attention."""
    many = statistic.pictures
    what = f"mean ± standard deviation over {many:,} pictures" if many > 1 else "of one picture"
    return f"{STATISTICS[name]}, {what}. Uniform attention: {format_statistic(name, statistic.uniform)}."


def artefacts_sentence(shares: Sequence[float | Tensor]) -> str:
    """Describe the mean share of artefacts over pictures, see `Tally.artefacts`."""
    mean, low, high = interval(torch.tensor(shares))
    return (
        f"Artefacts: {mean:.1%} of the patch tokens ({low:.1%} to {high:.1%}, the 95% interval over {len(shares):,} "
        f"pictures) have an outlying norm, above {LEAST:.0f} medians, after the last block (Darcet et al. 2024)."
    )


def record_in_card(checkpoint: Checkpoint, data: str, measured: Mapping[str, Statistic]) -> None:
    """Write each block's mean attention distance into the model card of a checkpoint that this app saved.

    Raises:
        UserError: the checkpoint comes from another library; its card is not modified.
    """
    distance = measured["distance"]
    blocks = ", ".join(f"{mean:.1f}" for mean in distance.values.mean(1).tolist())
    line = (
        f"Mean attention distance of the heads of each block, the first one first: {blocks} px; uniform attention "
        f"would have {format_statistic('distance', distance.uniform)}. Test pictures of {data}: {distance.pictures}, "
        f"by `python -m vit heads --checkpoint {checkpoint.name} --data {data} --limit {distance.pictures}`."
    )
    record_facts(checkpoint, {"heads": [line]})


def to_dict(measured: Mapping[str, Statistic]) -> dict[str, Any]:
    """Convert statistics to JSON: `mean` and `deviation` are lists of blocks, each a list of heads.

    `deviation` is None for a single picture.
    """
    return {
        name: {
            "uniform": one.uniform,
            "mean": one.values.tolist(),
            "deviation": None if one.deviation is None else one.deviation.tolist(),
        }
        for name, one in measured.items()
    }
