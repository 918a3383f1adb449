"""Panels below the viewer of Explore: Faithfulness, Ablation, layers, weights; Heads is in `test_heads_panel`."""

import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest
from tiny import TINY, fill

import vit
from pages.looking.panels import what_if
from tests.pages.controls import control, run
from tests.pages.drawings import html_elements
from tests.pages.offered import payload, sent_to
from vit.explain.gradcam import grad_cam
from vit.explain.head_ablation import ablation_hook, head_means
from vit.explain.methods import METHODS, heatmap_of, weights
from vit.explain.occlusion import hide_patches
from vit.explain.record import record
from vit.explain.recorded_pass import RecordedPass
from vit.explain.weight_views import position_similarity
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


def chosen(page: AppTest, **selection: object) -> None:
    """Set a selection as the browser reports one from the viewer."""
    sent = page.session_state["viewer (sent)"]
    values = asdict(sent.seed) | selection | {"revision": sent.revision}
    page.session_state["viewer"] = {"selection": values}
    page.run()


@pytest.mark.usefixtures("verdicts")
@pytest.mark.parametrize("panel", ["faithfulness", "what-if", "heads", "layers", "features", "weights"])
def test_display_changes_cost_no_forward_pass(
    checkpoints: Path, page: AppTest, forwards: list[str], panel: str
) -> None:
    assert not run(page, panel=panel).error
    before = len(forwards)
    assert before > 0
    chosen(page, colormap="magma", opacity=0.3)
    assert not page.exception
    chosen(page, block=2, head=1)  # all maps are judged by the same masks
    assert len(forwards) == before


@pytest.mark.usefixtures("verdicts")
def test_switches_follow_the_link(page: AppTest) -> None:
    run(page, curves="1", ranking="yes", precision="bfloat16")
    assert control(page.toggle, "curves").value and not control(page.toggle, "ranking").value
    assert control(page.toggle, "precision").value
    control(page.toggle, "curves").set_value(False).run()
    assert "curves" not in page.query_params and not control(page.toggle, "curves").value
    run(page, ranking="1")  # as Back does
    assert control(page.toggle, "ranking").value


def test_bars_of_the_most_probable_classes_are_proportional(page: AppTest, checkpoints: Path) -> None:
    page.run()
    checkpoint = vit.load_checkpoint(checkpoints / "cifar10")
    logits = checkpoint.model(checkpoint.preprocess(vit.decode_image(samples.read("cat")))).logits[0]
    wanted = sorted(zip(logits.softmax(0).tolist(), checkpoint.labels, strict=True), reverse=True)[:5]
    (found,) = html_elements(page, "bar")
    rows = re.findall(r'<span>(.*?)</span><i><b style="width:(.*?)%"></b></i><em>(.*?)%</em>', found)
    assert rows == [(label, f"{100 * share:.1f}", f"{100 * share:.1f}") for share, label in wanted]
    assert f'aria-label="Predictions: cat {wanted[0][0]:.0%}, ' in found
    assert re.findall('class="bar(.*?)"', found) == [" strong", "", "", "", ""]


def test_class_names_are_escaped_in_the_bars(page: AppTest, checkpoints: Path) -> None:
    model = VisionTransformer(ViTConfig(**TINY)).eval()
    vit.save_checkpoint(checkpoints / "hostile", model, ["<img src=x>", *"bcde"], Preprocess((32, 32)))
    run(page, checkpoint="hostile")
    (found,) = html_elements(page, "bar")
    assert "<img" not in found and found.count("&lt;img src=x&gt;") == 2


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("cat", "1 patch token has an outlying norm after block 6."),
        ("horse", "2 patch tokens have outlying norms after block 5."),
    ],
)
def test_outlier_tokens_are_counted(page: AppTest, sample: str, words: str) -> None:
    run(page, panel="layers", sample=sample)
    assert any(one.value == words for one in page.caption)


def test_colours_of_positions_have_a_legend(page: AppTest) -> None:
    run(page, panel="weights")
    similar = position_similarity(vit.load_checkpoint("cifar10").model)
    assert similar is not None
    said = [one.value for one in page.caption]
    assert f"{float(similar.min()):.2f}" in said and "1.00" in said


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].of_class])
def test_every_class_method_reaches_the_viewer(page: AppTest, method: str) -> None:
    assert not run(page, view="relevance", method=method, target="dog").error
    sent = sent_to(page)
    assert sent["method"]["title"] == METHODS[method].title and sent["method"]["target"] == "dog"
    assert sent["method"]["sentence"] == METHODS[method].sentence
    if method in ("relevance", "best"):
        assert sent["method"]["chain"] and sent["computed"] is None
        return
    checkpoint = vit.load_checkpoint("cifar10")
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read("cat"))), 5)
    numbers = weights(recorded, method)
    torch.testing.assert_close(torch.tensor(sent["computed"]["values"]), numbers, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "map"])
def test_maps_equal_those_of_the_table_of_methods_for_any_pool(page: AppTest, checkpoints: Path, pool: str) -> None:
    model = fill(VisionTransformer(ViTConfig(**TINY | {"pool": pool, "prefix": ()})))
    path = vit.save_checkpoint(checkpoints / "pooled", model, list("abcde"), Preprocess((32, 32)))
    checkpoint = vit.load_checkpoint(path)
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read("cat"))))
    page.query_params.update({"checkpoint": "pooled", "view": "relevance"})
    for method in [name for name in METHODS if name not in ("relevance", "best")]:
        assert not run(page, method=method).error
        found = recorded.record.heatmap(torch.tensor(sent_to(page)["computed"]["values"]))
        wanted = heatmap_of(recorded, method)
        torch.testing.assert_close(found / found.abs().sum(), wanted / wanted.abs().sum(), rtol=1e-4, atol=1e-6)


def test_two_classes_from_one_backbone_have_separate_maps(page: AppTest, checkpoints: Path) -> None:
    """Their attention and the viewer's payload are bit-identical."""
    first = vit.load_checkpoint("cifar10")
    with torch.no_grad():
        first.model.head.weight.neg_()
    vit.save_checkpoint(checkpoints / "turned", first.model, first.labels, first.preprocess)
    pixels = first.preprocess(vit.decode_image(samples.read("cat")))
    for name in ("cifar10", "turned"):
        assert not run(page, checkpoint=name, view="relevance", method="gradcam", target="dog").error
        found = sent_to(page)["computed"]["values"]
        numbers = grad_cam(vit.load_checkpoint(name).model, pixels, 5)
        torch.testing.assert_close(torch.tensor(found), numbers / numbers.sum(), rtol=1e-4, atol=1e-6)


def test_ablated_head_changes_the_answer_and_the_second_viewer(page: AppTest) -> None:
    run(page, panel="what-if")
    run(page, off="2-1.0-0")
    assert any("Off: block 1 head 1, block 3 head 2" in one.value for one in page.caption)
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    pictures = [checkpoint.preprocess(vit.decode_image(samples.read(name))) for name in samples.SAMPLES]
    hook = ablation_hook([(0, 0), (2, 1)], head_means(checkpoint.model, torch.cat(pictures)))
    wanted = record(checkpoint.model, pixels, hook=hook)
    _, sections = payload(page, "changed feeder")
    shown = sections["maps"] / 255 * sections["scales"][..., None]
    np.testing.assert_allclose(shown[5], wanted.full(5)[..., 1:], atol=0.004)


def test_hidden_patches_change_the_answer(page: AppTest) -> None:
    run(page, panel="what-if")
    assert sent_to(page)["ablation"] is None
    run(page, panel="what-if", hidden="0-47", target="dog")
    assert any("48 of 64 patches are hidden" in one.value for one in page.caption)
    assert page.get_by_key("changed feeder") is not None
    checkpoint, sent = vit.load_checkpoint("cifar10"), sent_to(page)["ablation"]
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    hidden = hide_patches(pixels, list(range(48)), 4, "mean")
    before, after = (checkpoint.model(one).logits[0].softmax(-1).detach() for one in (pixels, hidden))
    assert sent["hidden"] == list(range(48)) and sent["target"] == "dog"
    assert [sent["before"], sent["after"]] == pytest.approx([float(before[5]), float(after[5])], abs=1e-5)
    assert before.argmax() != after.argmax() and sent["answer"] == checkpoint.labels[int(after.argmax())]


def test_viewer_does_not_wait_for_a_slow_model(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(what_if, "expected_seconds", lambda *_: 1.5)
    run(page, panel="what-if", hidden="0-30")
    assert sent_to(page)["ablation"] is None and page.get_by_key("changed feeder") is not None


@pytest.mark.parametrize("baseline", ["mean", "noise"])
def test_patch_under_the_pointer_can_be_replaced(page: AppTest, baseline: str) -> None:
    run(page, panel="what-if", off="0-0", hidden="3", target="dog", instead="zero", baseline=baseline)
    assert sent_to(page)["occlusion"] is None
    page.toggle(key="probe").set_value(True).run()
    assert not page.exception and not page.error
    sent = sent_to(page)["occlusion"]
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    one, both = (hide_patches(pixels, patches, 4, baseline) for patches in ([3], [3, 20]))
    model, off = checkpoint.model, ablation_hook([(0, 0)])
    assert sent["target"] == "dog"
    assert sent["before"] == pytest.approx(float(record(model, one, hook=off).logits[0].softmax(0)[5]), abs=1e-5)
    assert sent["after"][20] == pytest.approx(float(record(model, both, hook=off).logits[0].softmax(0)[5]), abs=1e-5)
    assert len(sent["after"]) == 64 and len(set(sent["after"])) > 32


@pytest.mark.parametrize(
    ("link", "baseline", "cover"),
    [
        ({"baseline": "noise", "cover": "film"}, "noise", "film"),  # one does not push the other out of the link
        ({"cover": "film"}, "mean", "film"),
    ],
)
def test_replacement_of_hidden_patches_and_overlay_style_are_independent(
    page: AppTest, link: dict[str, str], baseline: str, cover: str
) -> None:
    run(page, panel="what-if", **link)
    assert control(page.selectbox, "baseline").value == baseline
    assert sent_to(page)["seed"]["cover"] == cover


@pytest.mark.parametrize("view", ["attention", "relevance"])
@pytest.mark.parametrize("method", ["relevance", "gradient-rollout", "legrad"])
def test_map_of_the_changed_model_is_its_own(page: AppTest, view: str, method: str) -> None:
    assert not run(page, panel="what-if", off="5-0", instead="zero", view=view, method=method).error
    before, sent = (sent_to(page, name) for name in ("viewer", "changed viewer"))
    assert sent["method"]["title"] == METHODS[method].title
    if view == "attention":
        return
    if method == "relevance":
        assert sent["method"]["chain"] not in ("", before["method"]["chain"])
        return
    checkpoint = vit.load_checkpoint("cifar10")
    pixels = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
    target = int(record(checkpoint.model, pixels).logits[0].argmax())
    recorded = RecordedPass.of_class(checkpoint.model, pixels, target, ablation_hook([(5, 0)]))
    numbers = weights(recorded, method)
    torch.testing.assert_close(torch.tensor(sent["computed"]["values"]), numbers / numbers.sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("off", ["9-9", "x", "-1-0", "0-0-0", "0.1", "²-1"])
def test_hostile_link_ablates_no_head(page: AppTest, off: str) -> None:
    assert not run(page, panel="what-if", off=off).error
    assert not any(one.value.startswith("Off:") for one in page.caption)


def test_model_without_classes_has_the_panels_that_need_none(page: AppTest, checkpoints: Path) -> None:
    model = fill(VisionTransformer(ViTConfig(**TINY | {"num_classes": 0})))
    vit.save_checkpoint(checkpoints / "backbone", model, [], Preprocess((32, 32)))
    page.query_params["checkpoint"] = "backbone"
    for panel in ("what-if", "heads", "weights", "faithfulness"):
        assert not run(page, panel=panel, off="0-0").error


def test_ablated_head_is_replaced_by_the_mean_for_the_selected_number_of_heads(page: AppTest, headless: str) -> None:
    page.query_params.update({"checkpoint": headless, "heads": "4", "panel": "what-if", "off": "0-1"})
    for heads in (4, 8):
        page.run() if heads == 4 else page.selectbox(key="heads").set_value(heads).run()
        assert not page.exception and not page.error
        checkpoint = vit.load_checkpoint(headless, heads)
        inputs = [checkpoint.preprocess(vit.decode_image(samples.read(name))) for name in samples.SAMPLES]
        hook = ablation_hook([(0, 1)], head_means(checkpoint.model, torch.cat(inputs)))
        cat = checkpoint.preprocess(vit.decode_image(samples.read("cat")))
        wanted = record(checkpoint.model, cat, hook=hook).full(1)
        _, sections = payload(page, "changed feeder")
        np.testing.assert_allclose(
            (sections["maps"] / 255 * sections["scales"][..., None])[1], wanted[..., 1:], atol=0.004
        )


@pytest.mark.parametrize(("name", "option", "linked"), [("method", "gradcam", "gradcam"), ("target", 5, "dog")])
def test_selected_method_or_class_is_shown_from_any_previous_view(
    page: AppTest, name: str, option: str | int, linked: str
) -> None:
    run(page, view="rollout")
    control(page.selectbox, name).set_value(option).run()
    assert not page.exception
    assert page.query_params["view"] in ("relevance", ["relevance"])
    assert page.query_params[name] in (linked, [linked])
