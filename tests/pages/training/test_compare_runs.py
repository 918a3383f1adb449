"""Comparison of runs on page Runs: differing settings, curves, and the table as CSV."""

import csv
import io
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from pages.training.run_views.compare_runs import to_csv
from tests.pages.runs_page import option, show


def test_runs_are_compared_by_differing_settings(write: Callable[..., str]) -> None:
    page = show(write("Slow", lr=1e-4), write("Fast", lr=1e-2))
    assert not page.error
    table = page.dataframe[1].value
    assert set(table["Run"]) == {"Slow", "Fast"}
    assert set(table["Learning rate, AdamW"]) == {1e-4, 1e-2} and "Seed" not in table
    assert {trace["name"] for trace in option(page, "compared accuracy")["series"]} == {"Slow", "Fast"}


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"accuracy": 7 / 8, "right": "7f", "split": "x"}, r"[+-]25 \([+-]\d+ to [+-]\d+\)"),
        ({"accuracy": 7 / 8, "right": "7f", "split": "y"}, "other pictures"),
        ({"accuracy": 7 / 8}, "not recorded"),  # an earlier version
    ],
)
def test_tests_on_the_same_pictures_have_a_paired_difference(
    write: Callable[..., str], other: dict[str, Any], difference: str
) -> None:
    some = write("Some", test={"accuracy": 5 / 8, "right": "1f", "split": "x"})
    table = show(some, write("Other", test=other)).dataframe[1].value.set_index("Run")
    assert dict(table["Test pictures right"]) == {"Some": "5 of 8 (31 to 86 %)", "Other": "7 of 8 (53 to 98 %)"}
    assert dict(table["Test accuracy [%]"]) == {"Some": 62, "Other": 88}
    (shown,) = set(table["Test difference, 95% [points]"]) - {"reference"}
    assert re.fullmatch(difference, shown)


def test_settings_derived_from_a_size_are_compared_by_value(write: Callable[..., str]) -> None:
    chosen = write("Tutorial", size="tintn"), write("Given", size="shapes", dim=96, heads=4), write("Shapes")
    table = show(*chosen).dataframe[1].value.set_index("Run")
    assert dict(table["Blocks"]) == {"Tutorial": 4, "Given": 3, "Shapes": 3}
    assert dict(table["Width"]) == {"Tutorial": 48, "Given": 96, "Shapes": 48}
    assert dict(table["Heads per block"]) == {"Tutorial": 4, "Given": 4, "Shapes": 3}
    assert "Patch size" not in table  # 4 in all of them


def test_unknown_value_is_no_difference(write: Callable[..., str], folder: Path) -> None:
    known, begun = write("Known"), write("Begun", lr=0.5, outcome="stopped", done=0)
    shutil.rmtree(folder / begun / "checkpoints")
    assert list(show(known, begun).dataframe[1].value.columns[7:]) == ["Learning rate, AdamW"]
    deep = write("Deep", depth=6)
    assert show(deep, begun).dataframe[1].value.set_index("Run")["Blocks"]["Deep"] == 6


def test_run_from_a_checkpoint_has_no_size_of_its_own(write: Callable[..., str], folder: Path) -> None:
    parent = write("Parent", size="tintn")
    child = write("Child", init_from=str(folder / parent / "checkpoints" / "best"))
    table = show(parent, child).dataframe[1].value.set_index("Run")
    assert table["Size"]["Parent"] == "tintn" and pd.isna(table["Size"]["Child"])
    assert "Blocks" not in table  # 4 in both


def test_runs_of_one_name_are_distinguished(write: Callable[..., str]) -> None:
    page = show(write("Same"), write("Same"))
    assert len({trace["name"] for trace in option(page, "compared loss")["series"]}) == 2


def test_runs_started_together_are_compared_by_a_click(write: Callable[..., str]) -> None:
    some = [write(f"Depth {depth}", search="s", depth=depth) for depth in (3, 1, 2)]
    page = show(some[0])
    page.button(key="family").click().run()
    assert "".join(page.query_params["search"]) == "s" and len(page.dataframe[0].value) == len(some)


def test_legend_of_runs_started_together_shows_the_varied_setting(write: Callable[..., str]) -> None:
    long = "All that I know about shapes, in one name"
    some = [write(f"{long}, depth {d}", search="s", depth=d, lr=0.1 / d) for d in (1, 2)]
    page = show(*some)
    for chart in ("compared accuracy", "compared loss"):
        assert [trace["name"] for trace in option(page, chart)["series"]] == ["depth 2, lr 0.05", "depth 1, lr 0.1"]
    assert set(page.dataframe[1].value["Run"]) == {f"{long}, depth {d}" for d in (1, 2)}


def test_formulas_in_a_csv_are_escaped() -> None:
    table = pd.DataFrame({"=Run": ["=1+1", "+a", "@b", "-c", "fine"], "lr": [-0.5, 1, 2, 3, 4]})
    rows = list(csv.reader(io.StringIO(to_csv(table).decode())))
    assert rows[0] == ["'=Run", "lr"]
    assert [row[0] for row in rows[1:]] == ["'=1+1", "'+a", "'@b", "'-c", "fine"]
    assert rows[1][1] == "-0.5"
