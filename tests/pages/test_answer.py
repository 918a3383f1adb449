"""What the page says about a picture: sure, not sure, or nothing measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from saved_checkpoints import save
from streamlit.testing.v1 import AppTest

from tests.pages.controls import app_page, texts
from vit.model.transformer import VisionTransformer


@pytest.fixture
def answering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., VisionTransformer]) -> Any:
    """Return `answering(facts)`: page Explore with a checkpoint with logits log 6, log 3 and 0 for every picture."""
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    model = build(num_classes=3)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([6.0, 3.0, 1.0]).log())

    def opened(**facts: object) -> AppTest:
        save(tmp_path / "answering", model, facts=facts)
        return app_page(checkpoint="answering", sample="cat")

    return opened


def bars(page: AppTest) -> dict[str, Any]:
    """Return the bars that the viewer was sent."""
    return dict(json.loads(page.get_by_key("viewer").proto.json)[0]["answers"])


def test_answer_above_the_threshold_is_said(answering: Callable[..., AppTest]) -> None:
    page = answering(sure_from=1.7, sure_on="80% of 200 validation pictures have a sure answer")
    assert "It says **apple** (60%)" in texts(page, "markdown")
    assert "with a logit of 1.7 or more: 80% of 200" in texts(page, "caption").replace("\\", "")
    assert bars(page)["says"] == "It says apple (60%)"


def test_answer_below_the_threshold_is_a_guess(answering: Callable[..., AppTest]) -> None:
    page = answering(sure_from=1.9)
    assert "Not sure: perhaps" in texts(page, "markdown").replace("\\", "") and "It says" not in texts(page, "markdown")
    assert bars(page)["note"] == "It compares the 3 classes that it knows, and none fits well."
    assert [share for _, share in bars(page)["bars"]] == [0.6, 0.3, 0.1]
    assert bars(page)["says"].startswith("Not sure: perhaps apple, ") and "%" not in bars(page)["says"]


def test_model_without_a_threshold_claims_none(answering: Callable[..., AppTest]) -> None:
    page = answering()
    assert "It says" in texts(page, "markdown") and "Nobody has measured when it is sure" in texts(page, "caption")


def test_accuracy_is_shown_with_what_it_was_measured_on(answering: Callable[..., AppTest]) -> None:
    page = answering(accuracy=0.75, accuracy_on="40 photos (95%: 60% to 86%)")
    assert "Test accuracy</span><b>30 of 40 (60 to 86 %)" in texts(page)
    assert "Accuracy on 40 photos (95%: 60% to 86%)." in texts(page, "caption").replace("\\", "")
