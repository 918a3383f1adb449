"""Pages with a model that estimates numbers: no share, no answer, the first output first."""

from pathlib import Path
from typing import Any

import pytest
import torch
from streamlit.testing.v1 import AppTest
from tiny import TINY, fill

import vit
from tests.pages.controls import app_page, control, run
from tests.pages.drawings import html_elements
from tests.pages.offered import sent_to
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


@pytest.fixture
def estimator(checkpoints: Path) -> str:
    """A checkpoint that estimates age and weight; the weight is the larger number for every picture."""
    model = fill(VisionTransformer(ViTConfig(**TINY | {"num_classes": 2, "regression": True}))).eval()
    with torch.no_grad():
        model.head.bias.copy_(torch.tensor([-20.0, 30_000.0]))
    vit.save_checkpoint(checkpoints / "estimator", model, ["age", "weight"], Preprocess((32, 32)))
    return "estimator"


def words(page: AppTest) -> str:
    """Return all texts of the page, without tooltips."""
    return "\n".join(str(one.value) for kind in (page.markdown, page.caption, page.info, page.error) for one in kind)


def test_explorer_shows_numbers_in_the_models_order(page: AppTest, estimator: str) -> None:
    run(page, checkpoint=estimator, panel="predictions")
    assert "It estimates age = −" in words(page) and "weight = 30,0" in words(page)
    box = control(page.selectbox, "target")
    assert box.label == "Output" and [option.partition(" · ")[0] for option in box.options] == ["age", "weight"]
    assert not any("%" in option for option in box.options)
    assert "in a unit that is not known" in page.info[0].value and not html_elements(page, "bar")
    answers = sent_to(page, "viewer")["answers"]
    assert [bar[0] for bar in answers["bars"]] == ["age", "weight"] and answers["bars"][1][2].startswith("30,0")


@pytest.mark.usefixtures("verdicts")
@pytest.mark.parametrize(
    ("panel", "link"),
    [
        ("faithfulness", {"curves": "1", "ranking": "1"}),
        ("what-if", {"off": "0-0", "hidden": "3", "probe": "1"}),
        ("layers", {}),
        ("heads", {}),
    ],
)
def test_panels_explain_an_output(page: AppTest, estimator: str, panel: str, link: dict[str, Any]) -> None:
    assert not run(page, checkpoint=estimator, panel=panel, **link).error
    said = words(page)
    assert "Decided at block" not in said and "The answer becomes" not in said
    if panel == "faithfulness":
        assert "Measured by the change of “age”" in said and "noticeably" not in said
    if panel == "what-if":
        sent = sent_to(page, "viewer")
        assert sent["ablation"]["numbers"] and sent["ablation"]["before"] < 0 and not sent["ablation"]["answer"]
        assert sent["occlusion"]["numbers"] and not any(sent["occlusion"]["answers"])


@pytest.mark.parametrize("link", [{}, {"mode": "many"}])
def test_compare_shows_numbers(estimator: str, link: dict[str, str]) -> None:
    page = app_page("compare", a_checkpoint=estimator, b_checkpoint=estimator, m_checkpoint=estimator, **link)
    assert not page.error
    said = words(page)
    if link:
        assert "**age** −" in said and "0%" not in said and "predicted" not in said
        assert control(page.button_group, "m_sort").options[1] == "Value"
    else:
        assert "age −" in said and "weight 30,0" in said and "%, weight" not in said


def test_list_of_checkpoints_counts_no_classes(estimator: str) -> None:
    page = app_page("checkpoints", name=estimator)
    table = page.dataframe[0].value
    assert table[table["Name"] == estimator]["Classes"].isna().all()
