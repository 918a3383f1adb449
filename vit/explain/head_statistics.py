"""Statistics of every head in one picture. `head_census` averages them over many."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from vit.explain.faithfulness_correlation import correlations
from vit.explain.map_comparison import rank_correlation
from vit.explain.maps import entropy
from vit.explain.record import AttentionRecord

_ROWS_PER_CHUNK = 256  # rows of the distance matrix in memory


class Statistic(NamedTuple):
    """One number for every head.

    Attributes:
        values: (L, H); the mean if there are several pictures.
        uniform: value for uniform attention.
        deviation: (L, H), standard deviation over the pictures; None for a single one.
        pictures: number of pictures.
    """

    values: Tensor
    uniform: float
    deviation: Tensor | None = None
    pictures: int = 1


def statistics(record: AttentionRecord, patch_size: int) -> dict[str, Statistic]:
    """Compute statistics of every head's attention, averaged over all patches as queries.

    Args:
        patch_size: side of a patch [px].

    Returns:
        "entropy": over all tokens; 0 for a single key, 1 for uniform attention.
        "distance": mean attention distance [px], over patch keys with weights normalised to sum to 1 (otherwise
        attention to the class token would shorten all distances). Source: Dosovitskiy et al. 2021, arXiv 2010.11929,
        figure 7.
        "self": attention on the patch itself.
        "neighbours": attention on its adjacent patches, up to eight.
        Names of prefix tokens: attention on that token; "registers" sums reg1, reg2, ....
    """
    first, (rows, cols) = len(record.prefix), record.grid
    places = torch.cartesian_prod(torch.arange(float(rows)), torch.arange(float(cols))).view(-1, 2)  # (P, 2)
    device = record.queries[0].device
    groups = _prefix_groups(record.prefix)
    blocks: dict[str, list[Tensor]] = {name: [] for name in names(record.prefix)}
    for block in range(record.blocks):
        sums = {name: torch.zeros(record.heads, device=device) for name in blocks}
        for start, chunk in record.row_chunks(block):
            rows_of_patches = chunk[:, max(0, first - start) :]  # (H, q, N), queries that are patches
            if not rows_of_patches.shape[1]:
                continue
            queries = torch.arange(max(start, first), start + chunk.shape[1], device=device) - first
            distances, adjacent = _distances(places.to(device), queries)
            patches = rows_of_patches[..., first:]
            on_patches = patches.sum(-1).clamp_min(torch.finfo(torch.float32).tiny)
            sums["entropy"] += entropy(rows_of_patches).sum(-1)
            sums["distance"] += ((patches * distances).sum(-1) * patch_size / on_patches).sum(-1)
            sums["self"] += patches[:, torch.arange(len(queries), device=device), queries].sum(-1)
            sums["neighbours"] += (patches * adjacent).sum((-1, -2))
            for name, tokens in groups.items():
                sums[name] += rows_of_patches[..., tokens].sum((-1, -2))
        for name, total in sums.items():
            blocks[name].append(total / (rows * cols))
    total_distance = total_adjacent = 0.0
    for queries in torch.arange(rows * cols).split(_ROWS_PER_CHUNK):
        distances, adjacent = _distances(places, queries)
        total_distance, total_adjacent = total_distance + float(distances.sum()), total_adjacent + float(adjacent.sum())
    uniform = {
        "entropy": 1.0,
        "distance": total_distance * patch_size / (rows * cols) ** 2,
        "self": 1 / record.tokens,
        "neighbours": total_adjacent / (rows * cols) / record.tokens,
    } | {name: len(tokens) / record.tokens for name, tokens in groups.items()}
    return {name: Statistic(torch.stack(values), uniform[name]) for name, values in blocks.items()}


def names(prefix: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the statistics of a model with these prefix tokens.

    >>> names(("cls", "reg1", "reg2"))
    ('distance', 'entropy', 'self', 'neighbours', 'cls', 'registers')
    """
    return ("distance", "entropy", "self", "neighbours", *_prefix_groups(prefix))


def _distances(places: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
    """Compute distances [patches] from the patches in `queries` to all, and whether they are adjacent; both (q, P)."""
    # The default of cdist uses a matrix product for many points, which is inaccurate for small distances.
    distances = torch.cdist(places[queries], places, compute_mode="donot_use_mm_for_euclid_dist")
    return distances, ((distances > 0) & (distances < 1.5)).float()  # 1 or the square root of 2


def _prefix_groups(prefix: tuple[str, ...]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = {}
    for token, name in enumerate(prefix):
        groups.setdefault("registers" if name.startswith("reg") else name, []).append(token)
    return groups


def agreement(record: AttentionRecord, read: Tensor, heatmap: Tensor) -> Statistic:
    """Compute Spearman's rank correlation of a map with each head's attention from the tokens that the output reads.

    Args:
        read: (N,), weight of each token in the model's output, see `AttentionRecord.read`.
        heatmap: (rows, cols).

    Returns:
        values from -1 to 1; 0 for uniform attention.
    """
    values = torch.zeros(record.blocks, record.heads)
    for block, maps in enumerate(_maps_of_heads(record, read)):
        for head, attention in enumerate(maps):
            values[block, head] = rank_correlation(attention, heatmap.cpu()) or 0.0
    return Statistic(values, 0.0)


def faithfulness(record: AttentionRecord, read: Tensor, masks: Tensor, drops: Tensor) -> Statistic:
    """Compute the faithfulness to a class of each head's attention from the tokens that the output reads.

    Args:
        read: (N,), weight of each token in the model's output, see `AttentionRecord.read`.
        masks, drops: (M, P) and (M,), see `vit.explain.faithfulness_correlation.correlations`.

    Returns:
        values from -1 to 1; 0 for uniform attention.
    """
    values = [correlations(maps.flatten(1), masks, drops).float() for maps in _maps_of_heads(record, read)]
    return Statistic(torch.stack(values), 0.0)


def _maps_of_heads(record: AttentionRecord, read: Tensor) -> Iterator[Tensor]:
    """Yield, for each block, the heads' attention maps (H, rows, cols) from the tokens in `read`, on the CPU."""
    read = read.to(record.queries[0].device)
    for block in range(record.blocks):
        weights = read.new_zeros(record.heads, record.tokens)
        for start, rows in record.row_chunks(block):  # (H, R, N)
            weights += read[start : start + rows.shape[1]] @ rows
        yield record.heatmap(weights).cpu()


class Suggestion(NamedTuple):
    """A head with an extreme value of a statistic.

    Attributes:
        kind: "local", "far", "itself", "sink", "object", "faithful" or "needed".
        statistic: key in `vit.explain.names.STATISTICS`.
    """

    kind: str
    statistic: str
    block: int
    head: int
    value: float


SINK = 0.05  # minimum share of attention for a token to count as a sink
NEGLIGIBLE = 0.1  # minimum deviation from uniform attention, relative to it; absolute if uniform attention has 0


def suggestions(measured: Mapping[str, Statistic]) -> list[Suggestion]:
    """Return the heads with extreme statistics, skipping values close to uniform attention.

    Args:
        measured: by name, from `statistics`, `agreement` and `faithfulness`; "effect" is the drop of the class's logit
            when each head is ablated.
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
