"""Curves on page Runs, without a browser: their zoom, scale and smoothing, and links to them."""

import json
from collections.abc import Callable

import pytest

from pages.training.run_views import curves
from tests.pages.controls import texts
from tests.pages.runs_page import option, show


def test_link_opens_a_run_with_its_curves(write: Callable[..., str]) -> None:
    page = show(write("First"))
    assert not page.error
    assert page.header[0].value == "First"
    series = {trace["name"]: trace["data"] for trace in option(page, "accuracy")["series"]}
    assert series["validation"] == [[1, 60], [2, 70], [3, 80], [4, 90]]
    said = texts(page)
    assert "Validation accuracy</span><b>9 of 10 (60 to 98 %), which also chose epoch 4<" in said
    assert "Test accuracy</span><b>7 of 8 (53 to 98 %)<" in said
    [trace] = option(page, "accuracy")["series"]
    assert trace["tooltip"]["valueFormatter"] == "%.0f%% of 10"
    columns = json.loads(page.dataframe[0].proto.columns)
    assert {columns[name]["type_config"]["format"] for name in ("Validation", "Test")} == {"%.0f%%"}


def test_zoom_and_scale_are_kept(write: Callable[..., str]) -> None:
    page = show(write("First"))
    page.slider(key="zoom epochs 4").set_value((1, 3)).run()
    page.toggle(key="log").set_value(True).run()
    loss = option(page, "loss")
    assert (loss["xAxis"]["min"], loss["xAxis"]["max"]) == (1, 3)
    assert loss["yAxis"]["type"] == "log"
    assert all(1 <= x <= 3 for trace in loss["series"] for x, _ in trace["data"])


def test_address_keeps_the_display_of_curves(write: Callable[..., str]) -> None:
    page = show(write("First"))
    page.slider(key="zoom epochs 4").set_value((1, 4)).run()
    page.slider(key="smoothing").set_value(0.9).run()
    page.toggle(key="log").set_value(True).run()
    assert [page.query_params[name] for name in ("epochs", "smoothing", "log")] == ["1-", "0.9", "1"]
    page.slider(key="zoom epochs 4").set_value((0, 4)).run()
    assert "epochs" not in page.query_params


def test_link_sets_the_display_of_curves(write: Callable[..., str]) -> None:
    page = show(write("First"), epochs="1-3", smoothing="0.9", log="1")
    assert page.slider(key="zoom epochs 4").value == (1, 3)
    assert (page.slider(key="smoothing").value, page.toggle(key="log").value) == (0.9, True)
    assert option(page, "loss")["yAxis"]["type"] == "log"


@pytest.mark.parametrize("zoom", ["9-12", "3-1", "-1-2", "1", "<b>", "1-" + 50 * "9"])
def test_invalid_link_shows_all(write: Callable[..., str], zoom: str) -> None:
    page = show(write("First"), epochs=zoom, smoothing="nan", log="<b>")
    assert page.slider(key="zoom epochs 4").value == (0, 4)
    assert (page.slider(key="smoothing").value, page.toggle(key="log").value) == (0.6, False)


def test_logarithmic_axis_ends_where_the_data_does() -> None:
    losses = curves.line("loss", [(0.0, 2.3), (1.0, 0.6)], "red")
    axis = curves.chart("Loss", [losses], view=curves.View(log=True))["yAxis"]
    assert 0.5 < axis["min"] < 0.6 and 2.3 < axis["max"] < 2.6
    labels = axis["axisLabel"]["customValues"]
    assert len(labels) > 3 and all(axis["min"] <= value <= axis["max"] for value in labels)


def test_curve_of_one_point_is_a_number_without_axes() -> None:
    once = [curves.line("training", [(1.0, 1.9)], "red", faint=True), curves.line("validation", [(1.0, 1.875)], "red")]
    option = curves.chart("Loss", once)
    assert set(option) == {"title"} and option["title"]["subtext"] == "validation: 1.875"
    share = curves.chart("Accuracy", [curves.line("validation", [(1.0, 59.09)], "red")], percent=True)
    assert share["title"]["subtext"] == "validation: 59.1%"
    of_few = curves.chart("Accuracy", [curves.line("validation", [(1.0, 59.09)], "red", pictures=44)], percent=True)
    assert of_few["title"]["subtext"] == "validation: 59% of 44"
    twice = curves.line("validation", [(1.0, 1.9), (2.0, 1.8)], "red")
    assert "yAxis" in curves.chart("Loss", [once[1], twice])


def test_zero_loss_has_no_logarithm() -> None:
    losses = curves.line("loss", [(0.0, 2.3), (1.0, 0.0)], "red")
    assert curves.chart("Loss", [losses], view=curves.View(log=True))["yAxis"]["type"] == "value"


def test_curve_has_few_points_and_its_last() -> None:
    points = [(float(i), float(i)) for i in range(12345)]
    downsampled = curves.downsample(points)
    assert len(downsampled) <= curves.POINTS and downsampled[-1] == points[-1] and downsampled[0] == points[0]
