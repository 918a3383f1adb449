"""Export the numbers of pages as CSV; without torch, for the page Runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.head_statistics import Statistic
    from vit.explain.logit_lens import Lens
    from vit.exports.contact_sheet import EvaluatedPicture

Row = Mapping[str, str | int | float | bool | None]
UNITS = {"distance": "px", "effect": "logits"}  # statistics that have a unit


def encode(rows: Sequence[Row]) -> bytes:
    """Encode rows as CSV, UTF-8.

    Args:
        rows: all with the same keys, which include units; None is empty.
    """
    out = io.StringIO()
    table = csv.DictWriter(out, rows[0] if rows else [], lineterminator="\n")
    table.writerow({name: _inert(name) for name in table.fieldnames})
    table.writerows({name: _inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue().encode()


def _inert(value: Any) -> Any:
    """Escape text that spreadsheets would interpret as a formula; a picture's name may look like one.

    Source: https://owasp.org/www-community/attacks/CSV_Injection

    >>> _inert("=1+1"), _inert(" =1"), _inert("a = b"), _inert(-1.5)
    ("'=1+1", "' =1", 'a = b', -1.5)
    """
    formula = isinstance(value, str) and (value.lstrip()[:1] in ("=", "+", "-", "@") or value[:1] in ("\t", "\r"))
    return f"'{value}" if formula else value


def heads_table(by_name: Mapping[str, Statistic]) -> list[Row]:
    """Return a row for each head, indices from 0; with standard deviations if there are several pictures."""
    blocks, heads = next(iter(by_name.values())).values.shape
    rows: list[Row] = []
    for block in range(blocks):
        for head in range(heads):
            row: dict[str, Any] = {"block": block, "head": head}
            for name, statistic in by_name.items():
                title = f"{name}_{UNITS[name]}" if name in UNITS else name
                row[title] = float(statistic.values[block, head])
                if statistic.deviation is not None:
                    row[f"{title}_deviation"] = float(statistic.deviation[block, head])
            rows.append(row)
    return rows


def layers_table(reading: Lens, labels: Sequence[str], estimates: bool = False) -> list[Row]:
    """Return a row for each block, from 0, and class, with the class's probability after the block."""
    of, value = ("output", "value") if estimates else ("class", "probability")
    return [
        {"block": block, of: label, value: probability}
        for block, answer in enumerate(reading.answers.tolist())
        for label, probability in zip(labels, answer, strict=True)
    ]


def maps_table(left: Tensor, right: Tensor, difference: Tensor) -> list[Row]:
    """Return a row for each patch, indices from 0, with the values of two maps (rows, cols) and their difference.

    Args:
        difference: see `vit.explain.map_comparison.difference`.
    """
    rows, cols = left.shape
    return [
        {
            "row": row,
            "col": col,
            "left": float(left[row, col]),
            "right": float(right[row, col]),
            "difference_of_shares": float(difference[row, col]),
        }
        for row in range(rows)
        for col in range(cols)
    ]


def sheet_table(results: Sequence[EvaluatedPicture], estimates: bool = False) -> list[Row]:
    """Return a row for each picture, in the order of the sheet; see `layers_table`."""
    return [
        {
            "picture": one.picture.name,
            "sha256": one.picture.digest,
            "truth": one.picture.truth or None,
            "output" if estimates else "prediction": one.result.label or None,
            "value" if estimates else "confidence": one.result.confidence,
            "sure": one.result.sure,
            "right": one.correct,
            "spread": one.result.entropy,
            "faithfulness": one.verdict.correlation if one.verdict else None,
            "faithfulness_of_chance": one.verdict.reach if one.verdict else None,
            "verdict": one.verdict.label if one.verdict else None,
            **{f"region_{name}": getattr(one.result.region, name, None) for name in ("energy", "pointing", "area")},
        }
        for one in results
    ]
