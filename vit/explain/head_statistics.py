"""What each head does in one picture, in numbers: one per block and head. `head_census` has the mean over many."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vit.explain.map_comparison import rank_correlation
from vit.explain.maps import entropy
from vit.explain.record import AttentionRecord
from vit.explain.sensitivity import correlations

_ROWS_PER_CHUNK = 256  # of distances, held at once


class Statistic(NamedTuple):
    """One number for every head.

    Attributes:
        values: (L, H); of several pictures, their mean.
        uniform: what a head that looks everywhere alike would have.
        deviation: (L, H), the standard deviation over the pictures; None for a single one.
        pictures: how many.
    """

    values: Tensor
    uniform: float
    deviation: Tensor | None = None
    pictures: int = 1


def statistics(record: AttentionRecord, patch_size: int) -> dict[str, Statistic]:
    """How every head shares its attention, the mean over the patches that ask.

    Args:
        patch_size: side of a patch [px].

    Returns:
        "entropy": 0 is one key, 1 is uniform, of all tokens.
        "distance": from a patch to where it looks [px], of the weight on patches made to sum to 1 (a class token that
        takes 60 % would else shorten every distance). Source: Dosovitskiy et al. 2021, arXiv 2010.11929, figure 7.
        "self": on the patch itself.
        "neighbours": on the up to eight patches around it.
        The names of prefix tokens: on that token; "registers" in place of reg1, reg2, ....
    """
    first, (rows, cols) = len(record.prefix), record.grid
    places = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(cols))).view(-1, 2)  # (P, 2)
    groups = _prefix_groups(record.prefix)
    blocks: dict[str, list[Tensor]] = {name: [] for name in names(record.prefix)}
    for block in range(record.blocks):
        sums = {name: torch.zeros(record.heads) for name in blocks}
        for start, chunk in record.row_chunks(block):
            asking = chunk[:, max(0, first - start) :]  # (H, q, N), queries that are patches
            if not asking.shape[1]:
                continue
            which = torch.arange(max(start, first), start + chunk.shape[1]) - first
            distances, near = _distances(places, which)
            patches = asking[..., first:]
            on_patches = patches.sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
            sums["entropy"] += entropy(asking).sum(-1)
            sums["distance"] += ((patches * distances).sum(-1) * patch_size / on_patches).sum(-1)
            sums["self"] += patches[:, torch.arange(len(which)), which].sum(-1)
            sums["neighbours"] += (patches * near).sum((-1, -2))
            for name, tokens in groups.items():
                sums[name] += asking[..., tokens].sum((-1, -2))
        for name, total in sums.items():
            blocks[name].append(total / (rows * cols))
    away = touching = 0.0
    for which in torch.arange(rows * cols).split(_ROWS_PER_CHUNK):
        distances, near = _distances(places, which)
        away, touching = away + float(distances.sum()), touching + float(near.sum())
    uniform = {
        "entropy": 1.0,
        "distance": away * patch_size / (rows * cols) ** 2,
        "self": 1 / record.tokens,
        "neighbours": touching / (rows * cols) / record.tokens,
    } | {name: len(tokens) / record.tokens for name, tokens in groups.items()}
    return {name: Statistic(torch.stack(values), uniform[name]) for name, values in blocks.items()}


def names(prefix: tuple[str, ...]) -> tuple[str, ...]:
    """The statistics of a model with these tokens before the patches.

    >>> names(("cls", "reg1", "reg2"))
    ('distance', 'entropy', 'self', 'neighbours', 'cls', 'registers')
    """
    return ("distance", "entropy", "self", "neighbours", *_prefix_groups(prefix))


def _distances(places: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
    """Of some patches to all: the distance [patches], and whether they touch; both (q, P)."""
    distances = torch.cdist(places[which], places, compute_mode="donot_use_mm_for_euclid_dist")
    return distances, ((distances > 0) & (distances < 1.5)).float()  # 1 or the square root of 2


def _prefix_groups(prefix: tuple[str, ...]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for token, name in enumerate(prefix):
        groups.setdefault("registers" if name.startswith("reg") else name, []).append(token)
    return groups


def agreement(record: AttentionRecord, read: Tensor, heatmap: Tensor) -> Statistic:
    """Which heads look where a map is strong: Spearman's rank correlation with the attention of what the head reads.

    Args:
        read: (N,), how much of each token the answer is read from; of `GradientRecord`.
        heatmap: (rows, cols).

    Returns:
        values from -1 to 1, 0 for a head that looks everywhere alike.
    """
    values = torch.zeros(record.blocks, record.heads)
    for block, maps in enumerate(_maps_of_heads(record, read)):
        for head, attention in enumerate(maps):
            values[block, head] = rank_correlation(attention, heatmap) or 0.0
    return Statistic(values, 0.0)


def faithfulness(record: AttentionRecord, read: Tensor, masks: Tensor, drops: Tensor) -> Statistic:
    """How faithful the attention of what the head reads is to a class, of every head.

    Args:
        read: (N,), how much of each token the answer is read from; of `GradientRecord`.
        masks, drops: (M, P) and (M,), see `vit.explain.sensitivity.correlations`.

    Returns:
        values from -1 to 1, 0 for a head that looks everywhere alike.
    """
    values = [correlations(maps.flatten(1), masks, drops).float() for maps in _maps_of_heads(record, read)]
    return Statistic(torch.stack(values), 0.0)


def _maps_of_heads(record: AttentionRecord, read: Tensor) -> Iterator[Tensor]:
    """Of each block, where its heads look from what the answer is read from: (H, rows, cols)."""
    for block in range(record.blocks):
        weights = torch.zeros(record.heads, record.tokens)
        for start, rows in record.row_chunks(block):  # (H, R, N)
            weights += read[start : start + rows.shape[1]] @ rows
        yield record.heatmap(weights)


class Suggestion(NamedTuple):
    """A head worth a look.

    Attributes:
        kind: what it does: "local", "far", "itself", "sink", "object", "faithful" or "needed".
        statistic: that tells it, one of `vit.explain.names.STATISTICS`.
    """

    kind: str
    statistic: str
    block: int
    head: int
    value: float


SINK = 0.05  # of the attention, that a token must get to be called one
NEGLIGIBLE = 0.1  # of what uniform attention has, or of 1 where that has 0: a correlation, or logits


def suggestions(measured: Mapping[str, Statistic]) -> list[Suggestion]:
    """The heads with the most and the least of something, where that is not negligible.

    Args:
        measured: by name, from `statistics`, `agreement` and `faithfulness`; "effect" is what the class loses without
            each head.
    """
    ideas = [("local", "distance", -1), ("far", "distance", 1), ("itself", "self", 1)]
    ideas += [("sink", name, 1) for name in ("cls", "registers") if name in measured][:1]
    ideas += [("object", "object", 1), ("faithful", "faithfulness", 1), ("needed", "effect", 1)]
    chosen = []
    for kind, name, sign in ideas:
        if name not in measured:
            continue
        values, uniform = measured[name].values, measured[name].uniform
        block, head = divmod(int((sign * values).argmax()), values.shape[1])
        value = float(values[block, head])
        enough = kind != "sink" or value > SINK
        if enough and sign * (value - uniform) > NEGLIGIBLE * (uniform or 1.0):
            chosen.append(Suggestion(kind, name, block, head, value))
    return chosen
