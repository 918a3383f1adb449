"""PDF reports of the panels and of page Compare."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import MaxNLocator, PercentFormatter
from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.head_statistics import Statistic
from vit.explain.logit_lens import Lens
from vit.explain.names import display_name
from vit.view.chart_colours import STRONG
from vit.view.contact_sheet import EvaluatedPicture
from vit.view.overlay import COLORMAPS, colorize
from vit.view.paper import document, picture_rows, plot_row, text_rows

_TITLE = 12.0  # [pt]
_PLOT = 62.0  # height of a row of plots [mm]
_TILE = 480  # longer side of a map without a picture [px]
_MAX_LABELLED = 12  # maximum number of heads or blocks for which cells contain their values
_CURVES = 4  # maximum number of classes in a plot


def describe(checkpoint: Checkpoint) -> str:
    """Describe the checkpoint that a report is about."""
    return f"Checkpoint {checkpoint.name} (SHA-256 {checkpoint.hash}…, identity {checkpoint.identity})."


def heads_report(
    by_name: Mapping[str, Statistic],
    titles: Mapping[str, str],
    amounts: Mapping[str, Callable[[float], str]],
    facts: str,
) -> bytes:
    """Report head statistics: for each, a table of all heads and a plot over the blocks.

    Args:
        by_name: statistics by name.
        titles: display names.
        amounts: functions that format values.
        facts: text printed at the end.
    """
    rows = text_rows("Heads", _TITLE, bold=True)
    for name, statistic in by_name.items():
        grid = partial(_draw_grid, statistic=statistic, title=titles[name], amount=amounts[name])
        rows.append(plot_row(_PLOT, [grid, partial(_draw_depth, statistic=statistic, amount=amounts[name])]))
    return document([*rows, *text_rows(facts)])


def layers_report(reading: Lens, labels: Sequence[str], target: int, maps: Tensor, facts: str) -> bytes:
    """Report the prediction after every block: a plot of the most probable classes, and maps of one class.

    Args:
        reading: from `vit.explain.logit_lens`.
        labels: class names.
        target: index of the class of the maps.
        maps: (L, rows, cols), its probability in each patch.
        facts: text printed at the end.
    """
    final = reading.answers[-1]
    most = final.topk(min(_CURVES, len(final))).indices.tolist()
    classes = [target, *(index for index in most if index != target)][:_CURVES]

    def curves(axes: Axes) -> None:
        for index in classes:
            values = reading.answers[:, index].tolist()
            axes.plot(range(1, len(values) + 1), values, label=labels[index], linewidth=2 if index == target else 1)
        axes.axvline(reading.decided + 1, color="grey", linestyle=":", linewidth=0.8)
        axes.legend(loc="upper left", frameon=False)
        axes.set(xlabel="Block", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))

    numbers = maps.numpy()
    top = float(numbers.max()) or 1.0
    tiles = [
        (_enlarged(colorize(one, vmax=top)), f"{display_name('Block', block)}: to {one.max():.0%}")
        for block, one in enumerate(numbers)
    ]
    answer = labels[int(final.argmax())]
    return document(
        [
            *text_rows("The answer after every block", _TITLE, bold=True),
            *text_rows(f"Decided at block {reading.decided + 1}: from there on it is “{answer}”."),
            plot_row(_PLOT, [curves]),
            *text_rows(f"“{labels[target]}” in each patch, by the patch's own token after each block:"),
            *picture_rows(tiles, 6),
            *text_rows(facts),
        ]
    )


def comparison_report(tiles: Sequence[tuple[Image.Image, str]], sentences: Sequence[str], facts: str) -> bytes:
    """Report two maps and their difference.

    Args:
        tiles: pictures with their maps, each with a caption.
        sentences: paragraphs that describe the comparison.
        facts: text printed at the end.
    """
    title = text_rows("Two maps beside each other", _TITLE, bold=True)
    paragraphs = [row for sentence in sentences for row in text_rows(sentence)]
    return document([*title, *picture_rows(tiles, len(tiles)), *paragraphs, *text_rows(facts)])


def sheet_report(results: Sequence[EvaluatedPicture], captions: Sequence[str], facts: str) -> bytes:
    """Report a contact sheet, on as many pages as needed.

    Args:
        results: the pictures.
        captions: of each picture.
        facts: text printed at the end.
    """
    tiles = [
        (Image.open(io.BytesIO(one.result.thumbnail)), words) for one, words in zip(results, captions, strict=True)
    ]
    return document([*text_rows("Contact sheet", _TITLE, bold=True), *picture_rows(tiles, 5), *text_rows(facts)])


def _draw_grid(axes: Axes, statistic: Statistic, title: str, amount: Callable[[float], str]) -> None:
    """Draw a table with a coloured cell for each head."""
    values = statistic.values.numpy()
    blocks, heads = values.shape
    axes.imshow(values, cmap=ListedColormap(COLORMAPS["viridis"] / 255), aspect="auto")
    axes.set_title(title, loc="left", size=8, pad=3)
    axes.set(xlabel="Head", ylabel="Block")
    axes.set_xticks(range(heads), [str(head + 1) for head in range(heads)])
    axes.set_yticks(range(blocks), [str(block + 1) for block in range(blocks)])
    if max(blocks, heads) > _MAX_LABELLED:
        axes.tick_params(labelsize=4)
        return
    low, high = np.nanmin(values), np.nanmax(values)
    for (block, head), value in np.ndenumerate(values):
        dark = value < (low + high) / 2
        axes.text(
            head, block, amount(float(value)), ha="center", va="center", size=5.5, color="white" if dark else "black"
        )


def _draw_depth(axes: Axes, statistic: Statistic, amount: Callable[[float], str]) -> None:
    """Plot every head over its block, with standard deviations if there are several pictures."""
    values = statistic.values.numpy()
    blocks, heads = values.shape
    apart = (np.arange(heads) - (heads - 1) / 2) * (0.5 / heads)
    places = np.arange(1, blocks + 1)[:, None] + apart
    bars = None if statistic.deviation is None else statistic.deviation.numpy().ravel()
    axes.errorbar(places.ravel(), values.ravel(), bars, fmt="o", markersize=2.5, elinewidth=0.5, color=STRONG)
    axes.axhline(
        statistic.uniform, color="grey", linestyle="--", linewidth=0.8, label=f"uniform: {amount(statistic.uniform)}"
    )
    pictures = statistic.pictures
    axes.set_title(f"Mean over {pictures:,} pictures" if pictures > 1 else "One picture", loc="left", size=8, pad=3)
    axes.set(xlabel="Block")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="best", frameon=False)


def _enlarged(pixels: np.ndarray) -> Image.Image:
    """Enlarge a map by an integer factor, so that its patches are sharp in print."""
    picture = Image.fromarray(pixels)
    factor = max(1, _TILE // max(picture.size))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)
