"""Exported tables: CSV has the numbers that pages draw."""

import csv
import io
from typing import Any

import pytest
import torch

from vit.explain.faithfulness_correlation import Verdict
from vit.explain.head_statistics import statistics
from vit.explain.logit_lens import logit_lens
from vit.explain.record import record
from vit.exports import tables
from vit.exports.contact_sheet import EvaluatedPicture, Picture, PictureResult


def read(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode())))


def test_file_has_the_numbers_of_its_rows() -> None:
    rows: list[Any] = [
        {"name": 'é, "b"', "share": 0.1 + 0.2, "known": None},
        {"name": "c", "share": 1e-9, "known": True},
    ]
    csv_rows = read(tables.encode(rows))
    assert [float(row["share"]) for row in csv_rows] == [row["share"] for row in rows]
    assert [row["name"] for row in csv_rows] == [row["name"] for row in rows] and csv_rows[0]["known"] == ""


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(A1)", "\tx"])
def test_names_of_pictures_are_no_formulas(name: str) -> None:
    (row,) = read(tables.encode([{"picture": name, "number": -1.5}]))
    assert row["picture"] == f"'{name}" and float(row["number"]) == -1.5


def test_table_has_a_row_per_head(build: Any, pictures: Any) -> None:
    model, pixels = build(), pictures(count=1)
    by_name = statistics(record(model, pixels), model.config.patch_size)
    rows = tables.heads_table(by_name)
    assert [(row["block"], row["head"]) for row in rows] == [(b, h) for b in range(2) for h in range(2)]
    assert rows[3]["distance_px"] == pytest.approx(float(by_name["distance"].values[1, 1]))
    assert rows[1]["entropy"] == pytest.approx(float(by_name["entropy"].values[0, 1]))


def test_table_has_a_row_per_block_and_class(build: Any, pictures: Any) -> None:
    model, pixels = build(), pictures(count=1)
    labels = [f"kind {i}" for i in range(model.config.num_classes)]
    rows = tables.layers_table(logit_lens(model, pixels, 0), labels)
    with torch.inference_mode():
        answer = model(pixels).logits[0].softmax(-1)
    last = {row["class"]: row["probability"] for row in rows if row["block"] == 1}
    assert last == pytest.approx(dict(zip(labels, answer.tolist(), strict=True)), abs=1e-6)


def test_table_has_a_row_per_patch_and_picture() -> None:
    left, right = torch.tensor([[1.0, 3.0]]), torch.tensor([[1.0, 1.0]])
    rows = tables.maps_table(left, right, torch.tensor([[-0.25, 0.25]]))
    assert rows[1] == {"row": 0, "col": 1, "left": 3.0, "right": 1.0, "difference_of_shares": 0.25}
    picture = Picture("a.png", b"bytes", "cat")
    verdict = Verdict(*[0.5] * len(Verdict._fields))
    judged = EvaluatedPicture(picture, PictureResult("dog", 0.75, 0.5, b""), False, verdict)
    row, plain = tables.sheet_table([judged, judged._replace(verdict=None)])
    assert row["sha256"] == picture.digest and row["right"] is False and row["verdict"] == verdict.label
    assert plain["faithfulness"] is None and plain["confidence"] == 0.75
