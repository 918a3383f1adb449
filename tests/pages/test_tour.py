"""The guided tour: every step opens what it talks about, and what it says is so."""

from pathlib import Path

import pytest
import torch
from streamlit.testing.v1 import AppTest

import vit
from pages.parts.tour import STEPS
from vit import samples
from vit.atlas import statistics
from vit.faithfulness import Faithfulness, controls, scores
from vit.intervene import logit_lens
from vit.methods import Subject, heatmap
from vit.viewer.selection import Selection

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DOWNLOADS", str(tmp_path / "downloads"))
    return AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)


def told(page: AppTest) -> str:
    return next(one.value for one in page.markdown if " of 7. " in one.value)


def test_the_tour_goes_through_all_steps_and_back_and_ends(page: AppTest) -> None:
    page.run()
    page.button(key="start tour").click().run()
    for number, step in enumerate(STEPS, 1):
        assert not page.exception and not page.error
        assert f"{number} of 7. {step.title}" in told(page)
        for name, value in step.link.items():
            assert page.query_params[name] == [value] or page.query_params[name] == value
        if number < len(STEPS):
            page.button(key="tour next").click().run()
    page.button(key="tour back").click().run()
    assert "6 of 7." in told(page)
    page.button(key="tour end").click().run()
    assert "tour" not in page.query_params and any(button.key == "start tour" for button in page.button)


def test_a_step_brings_the_page_back_to_what_it_talks_about(page: AppTest) -> None:
    page.query_params.update({"sample": "temple", "size": "64", "method": "legrad", "view": "similar"})
    page.run()
    page.button(key="start tour").click().run()
    assert not page.exception
    assert page.selectbox(key="size").value == (32, 32) and page.selectbox(key="method").value == "relevance"
    assert "view" not in page.query_params


@pytest.mark.parametrize("asked", ["0", "8", "-1", "x", "99999999999999999999"])
def test_a_hostile_link_starts_no_tour(page: AppTest, asked: str) -> None:
    page.query_params["tour"] = asked
    page.run()
    assert not page.exception and any(button.key == "start tour" for button in page.button)


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    checkpoint = vit.load_checkpoint(ROOT / "checkpoints" / "cifar10")
    return {
        name: Subject.of(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read(name))))
        for name in ("cat", "horse")
    }


def test_the_selection_of_every_step_exists(subjects: dict[str, Subject]) -> None:
    for step in STEPS:
        kept = subjects[step.link["sample"]].kept
        found = Selection.from_query(step.link, kept.blocks, kept.heads, kept.tokens).to_query()
        assert all(found[name] == step.link[name] for name in step.link.keys() & found.keys() - {"view"})


def test_the_head_that_is_called_local_is(subjects: dict[str, Subject]) -> None:
    step = next(step for step in STEPS if step.title == "Heads")
    near = statistics(subjects["cat"].kept, 4)["neighbours"]
    block, head = int(step.link["block"]), int(step.link["head"])
    assert f"{float(near.values[block, head]):.0%}".replace("%", " %") in step.words
    assert f"block {block + 1} head {head + 1}" in step.words
    assert float(near.values[block, head]) > 3 * near.uniform


def test_the_answer_is_found_where_the_tour_says(subjects: dict[str, Subject]) -> None:
    subject = subjects["cat"]
    lens = logit_lens(subject.model, subject.pixels, subject.kept.target)
    assert lens.decided + 1 == 3 and "at block 3" in next(step.words for step in STEPS if step.title == "Blocks")
    certain = lens.answers[:, subject.kept.target]
    assert certain[-1] > 0.8 and certain[:-1].max() < 0.5


def verdict(subject: Subject, name: str) -> Faithfulness:
    asked = subject.model, subject.pixels, subject.kept.target
    return Faithfulness(scores(*asked, [heatmap(subject, name)])[0], controls(*asked, subject.kept.grid))


def test_relevance_is_truer_than_rollout_where_the_tour_compares_them(subjects: dict[str, Subject]) -> None:
    with torch.inference_mode():
        assert verdict(subjects["horse"], "relevance").saco > verdict(subjects["horse"], "rollout").saco + 0.5


def test_the_map_not_to_be_believed_is_no_better_than_chance(subjects: dict[str, Subject]) -> None:
    assert "no better than chance" in verdict(subjects["cat"], "attention").words
