"""The guided tour: every step opens its recorded, and its statements are true."""

import json
import math
import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import vit
from pages.panels.tour import MAP, PANELS, STEPS, Step
from tests.pages.controls import app_page, query
from tests.pages.offered import request_all_masks
from vit.explain.head_statistics import statistics, suggestions
from vit.explain.logit_lens import logit_lens
from vit.explain.methods import heatmap_of
from vit.explain.names import STATISTICS, format_statistic
from vit.explain.recorded_pass import RecordedPass
from vit.explain.sensitivity import faithfulness_verdict, random_masks, score_drops
from vit.images import samples
from vit.view.explanation import explain
from vit.view.selection import Selection

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("only_shipped")


def told(page: AppTest) -> str:
    return next(one.value for one in page.markdown if " of 7. " in one.value)


def test_tour_goes_through_all_steps_and_back_and_ends() -> None:
    page = app_page()
    page.button(key="start tour").click().run()
    for number, step in enumerate(STEPS, 1):
        assert not page.exception and not page.error
        assert f"{number} of 7. {step.title}" in told(page)
        for name, value in query(step.link).items():
            assert page.query_params[name] == [value] or page.query_params[name] == value
        if number < len(STEPS):
            page.button(key="tour next").click().run()
    page.button(key="tour back").click().run()
    assert "6 of 7." in told(page)
    page.button(key="tour end").click().run()
    assert "tour" not in page.query_params and any(button.key == "start tour" for button in page.button)


def test_step_restores_the_view_of_its_subject() -> None:
    page = app_page(sample="temple", size="64", method="legrad", view="similar")
    page.button(key="start tour").click().run()
    assert not page.exception
    chosen = {one.label: one.value for one in page.selectbox}
    assert chosen["Input size"] == (32, 32) and chosen["Method for the class"] == "relevance"
    assert "view" not in page.query_params
    page.button(key="tour next").click().run()
    page.button(key="tour end").click().run()
    chosen = {one.label: one.value for one in page.selectbox}
    assert chosen["Input size"] == (64, 64) and chosen["Method for the class"] == "legrad"
    for name, value in (("sample", "temple"), ("view", "similar")):
        assert page.query_params[name] in (value, [value])


@pytest.mark.parametrize("asked", ["0", "8", "-1", "x", "99999999999999999999"])
def test_hostile_link_starts_no_tour(asked: str) -> None:
    page = app_page(tour=asked)
    assert any(button.key == "start tour" for button in page.button)


def step_of(title: str) -> Step:
    return next(step for step in STEPS if step.title == title)


@pytest.fixture(scope="module")
def recorded_passes() -> dict[str, RecordedPass]:
    """Model inputs of each step, by its title."""
    checkpoint = vit.load_checkpoint(ROOT / "checkpoints" / "cifar10")
    found = {}
    for step in STEPS:
        side = int(step.link.size or "32")
        explained = explain(checkpoint, samples.read(step.link.sample), (side, side))
        found[step.title] = RecordedPass.of_class(checkpoint.model, explained.preprocess(explained.picture))
    return found


def test_selection_of_every_step_exists(recorded_passes: dict[str, RecordedPass]) -> None:
    for step in STEPS:
        record = recorded_passes[step.title].record
        linked = step.link.viewer
        found = Selection.from_query(linked, record.blocks, record.heads, record.tokens).to_query()
        assert all(found[name] == linked[name] for name in linked.keys() - {"view"})


def test_outlined_patch_is_an_eye() -> None:
    """Found by eye: the right eye is at (145, 237) of 300 × 300 px of the model's input."""
    row, col = 145 * 8 // 300, 237 * 8 // 300
    assert "an eye" in step_of("Query and key").text
    assert {step.link.viewer["token"] for step in STEPS if "token" in step.link.viewer} == {str(1 + 8 * row + col)}


def test_head_called_local_is_local(recorded_passes: dict[str, RecordedPass]) -> None:
    step, found = step_of("Heads"), statistics(recorded_passes["Heads"].record, 4)
    near = found["neighbours"]
    block, head = int(step.link.viewer["block"]), int(step.link.viewer["head"])
    value = float(near.values[block, head])
    assert value == near.values.max() and value > 3 * near.uniform
    assert format_statistic("neighbours", value) in step.text and f"Block {block + 1} head {head + 1}" in step.text
    local = next(one for one in suggestions(found) if one.kind == "local")
    assert (local.block, local.head) == (block, head)  # the panel says so too


def test_panel_opens_with_the_numbers_of_the_step() -> None:
    page = app_page(tour=str(1 + STEPS.index(step_of("Heads"))), **query(step_of("Heads").link))
    told_there = json.loads(page.get_by_key("heads grid").proto.json)
    assert told_there["label"].startswith(STATISTICS["neighbours"]) and told_there["ends"][1] == "36.4%"
    marked = [(i, j) for i, row in enumerate(told_there["cells"]) for j, cell in enumerate(row) if cell["marked"]]
    assert marked == [(1, 3)]


def test_answer_is_where_the_tour_says(recorded_passes: dict[str, RecordedPass]) -> None:
    recorded = recorded_passes["Blocks"]
    lens = logit_lens(recorded.model, recorded.pixels, recorded.record.target)
    assert lens.decided + 1 == 3 and "at block 3" in step_of("Blocks").text
    certain = lens.answers[:, recorded.record.target]
    assert certain[-1] > 0.8 and certain[:-1].max() < 0.5


def verdict(step: Step, **other: str) -> str:
    """Return the page's verdict on a step's map."""
    page = app_page(**query(step.link) | {"tour": str(1 + STEPS.index(step))} | other)
    assert not page.error
    request_all_masks(page)
    return next(one.value for one in page.markdown if re.match(r"\*\*This map", one.value))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("verdicts")
def test_relevance_is_faithful_and_rollout_is_not_in_the_tours_examples() -> None:
    step = step_of("Rollout or relevance")
    assert "relevance shows what it is based on" in step.text and "rollout is no better than chance" in step.text
    assert verdict(step).startswith("**This map is better than chance: ")
    assert "no better than chance" in verdict(step, view="rollout")
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read(step.link.sample)))
    recorded = RecordedPass.of_class(checkpoint.model, pixels)
    assert checkpoint.labels[recorded.record.target] == "automobile"  # a cup of coffee, so the answer is wrong
    masks = random_masks(math.prod(recorded.record.grid), 1024)
    drops = score_drops(checkpoint.model, pixels, recorded.record.target, masks)
    one, other = (faithfulness_verdict(heatmap_of(recorded, name), masks, drops) for name in ("relevance", "rollout"))
    assert one.label == "better than chance" and other.label == "no better than chance"
    assert one.correlation > one.reach + 0.1 and other.correlation < other.reach - 0.1  # with a margin for rounding


@pytest.mark.exhaustive
@pytest.mark.usefixtures("verdicts")
def test_unfaithful_map_is_no_better_than_chance() -> None:
    assert "no better than chance" in verdict(step_of("When a map is misleading"), panel="faithfulness")


def test_links_in_steps_lead_to_places_of_the_page() -> None:
    page = app_page()
    places = {one.value.strip("# ").lower().replace(" ", "-") for one in page.markdown if one.value.startswith("#")}
    places |= {MAP} if any(f'id="{MAP}"' in one.proto.body for one in page.get("html")) else set()
    for step in STEPS:
        assert set(re.findall(r"\(#(.+?)\)", step.text)) <= places
    assert {MAP, PANELS} <= places
