"""Panel *Faithfulness* of page Explore: its verdict, the measurements behind it, and the masks sent to the viewer."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.testing.v1 import AppTest
from tiny import TINY
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import vit
from pages.links import link_controls
from pages.looking import mask_drops
from pages.server import result_cache
from tests.pages.controls import run
from tests.pages.drawings import html_elements
from tests.pages.offered import payload, sent_to
from vit.explain.faithfulness_correlation import random_masks, score_drops
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


def chart(page: AppTest, key: str) -> dict:
    (found,) = (one for one in page.get("plotly_chart") if one.key == key)
    return json.loads(found.proto.spec)


@pytest.mark.usefixtures("verdicts")
def test_verdict_is_shown_with_its_controls(page: AppTest) -> None:
    page.run()
    assert any(one.value.startswith(("**This map", "**It cannot")) for one in page.markdown)
    page.toggle(key="curves").set_value(True).run()
    page.toggle(key="ranking").set_value(True).run()
    assert not page.exception
    assert len(page.get("plotly_chart")) == 3  # two curves, ranking
    assert page.query_params["curves"] in ("1", ["1"]) and page.query_params["ranking"] in ("1", ["1"])


@pytest.mark.usefixtures("verdicts")
def test_map_of_zeros_has_no_verdict(checkpoints: Path, page: AppTest) -> None:
    checkpoint = vit.load_checkpoint("cifar10")
    with torch.no_grad():
        checkpoint.model.head.weight[2].zero_()  # nothing of the picture reaches this class
    vit.save_checkpoint(checkpoints / "deaf", checkpoint.model, checkpoint.labels, checkpoint.preprocess)
    run(page, checkpoint="deaf", view="relevance", method="legrad", target="bird")
    said = [one.value for one in page.markdown if one.value.startswith("**")]
    assert any(one.startswith("**The map is zero everywhere") for one in said)
    assert not any(one.startswith(("**This map", "**It cannot")) for one in said)


@pytest.mark.usefixtures("verdicts")
@pytest.mark.parametrize(
    ("link", "shown"),
    [
        ({}, "Raw attention"),
        ({"view": "rollout"}, "Rollout"),
        ({"view": "relevance", "method": "legrad"}, "LeGrad"),
        ({"view": "rollout", "residual": "0.8"}, "Rollout"),
        ({"view": "relevance", "precision": "bfloat16"}, "Relevance"),
        ({"precision": "bfloat16"}, "Raw attention"),
        ({"view": "relevance", "token": "20", "pinned": "1"}, None),
        ({"block": "2"}, None),
        ({"view": "similar"}, None),
    ],
)
def test_ranking_marks_the_displayed_method(page: AppTest, link: dict[str, str], shown: str | None) -> None:
    run(page, ranking="1", **link)
    names = chart(page, "ranked")["data"][0]["y"]
    assert [name for name in names if "▸" in name] == ([f"<b>▸ {shown}</b>"] if shown else [])
    assert any(
        ("comes from none of them" in one.value) == (shown is None)
        for one in page.caption
        if "Each method" in one.value
    )


@pytest.mark.usefixtures("verdicts")
def test_chance_level_is_drawn_and_every_mark_has_its_row(page: AppTest) -> None:
    page.run()
    (line,) = html_elements(page, "line")
    zero, one = (float(re.search(rf'<small style="left:([\d.]+)%">{tick}<', line)[1]) for tick in ("0", "1"))
    start, width = map(float, re.search(r'<s style="left:(.*?)%;width:(.*?)%"', line).groups())
    word = float(re.search(r'<strong style="left:(.*?)%">chance<', line)[1])
    assert start < word < start + width
    reach = float(re.search(r"chance reaches (-?[\d.]+)", line)[1])
    assert (start + width - zero) / (one - zero) == pytest.approx(reach, abs=0.006)
    rows = re.findall(r"<span>(.*?)</span><div class=row>(.*?)</div>", line)
    assert [name for name, _ in rows] == ["this map", "blob in the middle", "removal map"]
    assert [marks.count("<b ") for _, marks in rows] == [1, 1, 1]
    (alone, written) = re.search(r'<b class="disc" style="left:(.*?)%"></b>.*<em .*?>(.*?)</em>', rows[0][1]).groups()
    assert f"{(float(alone) - zero) / (one - zero):.2f}".replace("-", "−") == written
    error, across = map(float, re.search(r'<q style="left:(.*?)%;width:(.*?)%"', rows[0][1]).groups())
    assert error < float(alone) < error + across


@pytest.mark.usefixtures("verdicts")
def test_more_masks_are_measured_once_the_browser_has_the_first(page: AppTest, forwards: list[str]) -> None:
    def measured(*, wanted: str = "") -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Return the number of masks behind the verdict, in the viewer's message, and in its payload."""
        page.session_state["Explore"].more_masks = wanted
        run(page)
        caption = next(one.value for one in page.caption if " masks" in one.value)
        count = int(re.search(r"with ([\d,]+)( of [\d,]+)? masks", caption)[1].replace(",", ""))
        header, sections = payload(page, "masks feeder")
        offer = json.loads(page.get_by_key("masks feeder").proto.json)
        assert len(sections["masks"]) == len(sections["drops"]) and header["target"] == "cat"
        assert (f" of {mask_drops.MOST:,} masks so far" in caption) == (count < mask_drops.MOST) == offer["more"]
        return count, offer, sections

    result_cache.retain(set())  # no masks measured by another test
    page.run()
    count, offer, sections = measured()
    assert count == mask_drops.FIRST == len(sections["drops"]) and offer["name"] == sent_to(page, "viewer")["masks"]
    again = measured(wanted="masks of another picture")
    assert again[0] == count and len(again[2]["drops"]) == count
    while count < mask_drops.MOST:
        before, (_, offer, sections) = count, measured(wanted=offer["name"])
        assert len(sections["drops"]) > before  # the next run says so, once the browser has them
        count = measured()[0]
        assert count == len(sections["drops"])
    done = len(forwards)
    assert measured(wanted=offer["name"])[0] == mask_drops.MOST and len(forwards) == done


@pytest.mark.usefixtures("verdicts", "checkpoints")  # a checkpoint of its own: nothing is measured with it yet
def test_stopped_run_stops_measuring(page: AppTest, forwards: list[str]) -> None:
    """A visitor who clicks on starts another run beside this one, on the same processors."""
    depth = vit.load_checkpoint("cifar10").config.depth
    run(page, panel="heads", target="horse")
    page.query_params["panel"] = "faithfulness"
    del forwards[:]

    def go_on(*_: object) -> None:
        context = get_script_run_ctx()
        if context and len(forwards) == depth + 2:  # in the second block of the first masks
            context.script_requests.request_stop()

    with register_module_forward_hook(go_on):
        page.run()
    assert len(forwards) == depth + 2 and not is_fed(page)
    run(page)
    assert is_fed(page)


@pytest.mark.usefixtures("verdicts")
def test_masks_are_those_of_the_class_and_reach_the_viewer_in_every_panel(page: AppTest) -> None:
    run(page, panel="heads", sample="temple")
    assert not is_fed(page)  # not requested yet
    run(page, panel="faithfulness")
    checkpoint, grid = vit.load_checkpoint("cifar10"), (8, 8)
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("temple")))
    masks = random_masks(64, mask_drops.FIRST)
    for target in (3, 5):
        page.selectbox(key="target").set_value(target).run()
        header, sections = payload(page, "masks feeder")
        assert (header["target"], header["grid"]) == (checkpoint.labels[target], list(grid))
        expected = score_drops(checkpoint.model, pixels, target, masks)
        np.testing.assert_allclose(sections["drops"], expected.numpy(), atol=1e-4)
    run(page, panel="layers")
    assert is_fed(page) and not json.loads(page.get_by_key("masks feeder").proto.json)["more"]


@pytest.mark.usefixtures("verdicts")
def test_rerun_of_the_verdict_alone_notices_other_clicks(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser requests more masks every second; combined with a click elsewhere, this reruns only the verdict."""
    compared: list[set[str]] = []
    monkeypatch.setattr(link_controls, "redraw_if_changed", lambda before: compared.append(set(before)))
    run(page)
    elsewhere = {"sample", "picture", "checkpoint", "size", "classes_from"}
    beside = {"target", "method", "panel"}
    assert [names for names in compared if elsewhere | beside <= names]
    assert all(elsewhere <= names for names in compared)


def is_fed(page: AppTest) -> bool:
    """Whether masks are sent to the viewer."""
    return any('"masks of ' in one.proto.json for one in page.get("bidi_component") if '"address"' in one.proto.json)


@pytest.mark.usefixtures("verdicts")
def test_insensitive_model_is_reported_without_a_gauge(page: AppTest, checkpoints: Path) -> None:
    model = VisionTransformer(ViTConfig(**TINY)).eval()
    nn.init.zeros_(model.head.weight)
    vit.save_checkpoint(checkpoints / "idle", model, list("abcde"), Preprocess((32, 32)))
    run(page, checkpoint="idle")
    assert any("No mask changes “a”" in one.value for one in page.markdown)
    assert not html_elements(page, "line") and html_elements(page, "bar")


@pytest.mark.usefixtures("verdicts")
def test_blurred_picture_of_the_same_class_is_reported(page: AppTest) -> None:
    run(page, curves="1")
    (said,) = (one.value for one in page.caption if "The higher the area" in one.value)
    assert "Blurred, the picture is “cat” to 92% already" in said
    (other,) = (one.value for one in page.caption if "The lower the area" in one.value)
    assert other == "The lower the area, the better the map."
