"""The best map on page Explore: it begins as AttnLRP, and improves while the browser asks for more."""

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_run_context import ThreadState
from streamlit.testing.v1 import AppTest

import vit
from pages.looking import map_exports, mask_drops
from pages.looking.controls import method_choice
from pages.looking.panels import best_map
from pages.server import result_cache
from tests.pages.controls import run
from tests.pages.offered import payload, sent_to
from vit.explain.faithfulness_correlation import FITTED, correlations, random_masks, score_drops
from vit.explain.methods import weights
from vit.explain.recorded_pass import RecordedPass
from vit.explain.settings import BEST_MAP_MASKS
from vit.images import samples
from vit.view.explanation import explain
from vit.view.method_choice import MethodChoice
from vit.view.selection import Selection

LINK = {"view": "relevance", "method": "best", "target": "dog"}


@pytest.fixture(autouse=True)
def without_button(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may expect a long measurement."""
    monkeypatch.setattr(best_map, "BUTTON_ABOVE_SECONDS", math.inf)


@pytest.fixture
def recorded() -> RecordedPass:
    checkpoint = vit.load_checkpoint("cifar10")
    return RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read("cat"))), 5)


def offered_map(page: AppTest, wanted: str = "") -> tuple[np.ndarray, str, bool]:
    """Return the map that the page offers, its name, and whether the browser may ask for more; after a request."""
    page.session_state["Explore"].more_best = wanted
    run(page, **LINK)
    offer = json.loads(page.get_by_key("best feeder").proto.json)
    return payload(page, "best feeder")[1]["values"], offer["name"], offer["more"]


def test_map_begins_as_attnlrp_and_improves_until_its_masks_are_measured(page: AppTest, recorded: RecordedPass) -> None:
    result_cache.retain(set())  # nothing measured by another test
    page.run()
    values, name, more = offered_map(page)
    begin = weights(recorded, "attnlrp")[1:]
    torch.testing.assert_close(torch.tensor(values[1:]), begin / begin.abs().sum(), rtol=1e-4, atol=1e-6)
    assert more and values[0] == 0 and sent_to(page)["method"]["chain"] == name and sent_to(page)["method"]["signed"]
    fresh = random_masks(64, 512, 7)
    drops = score_drops(recorded.model, recorded.pixels, 5, fresh)
    before = float(correlations(torch.tensor(values[1:]), fresh, drops))
    assert torch.equal(torch.tensor(offered_map(page, wanted="another picture")[0]), torch.tensor(values))
    while more:
        values, _, more = offered_map(page, wanted=name)
    assert float(correlations(torch.tensor(values[1:]), fresh, drops)) > before + 0.05
    (done,) = (
        re.findall(r"corrected by (\d+) masks: faithfulness", one.value) for one in page.caption if "corr" in one.value
    )
    expected = weights(recorded, "best", masks=int(done[0]))  # as the copied code does
    torch.testing.assert_close(torch.tensor(values), expected, rtol=1e-3, atol=1e-5)


def test_long_measurement_waits_for_a_click(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_map, "BUTTON_ABOVE_SECONDS", -1.0)
    result_cache.retain(set())
    page.run()
    values, _, more = offered_map(page)
    assert not more
    (text,) = (one.value for one in page.caption if "Masks make it truer" in one.value)
    assert "128 take" in text and text.endswith("GB of memory.")
    press(page, "Measure them")
    assert not np.array_equal(payload(page, "best feeder")[1]["values"], values)


def press(page: AppTest, label: str) -> None:
    button = page.button(key="best map")  # always the same, so that it keeps the focus
    assert button.label == label
    button.click().run()


def test_stop_keeps_the_map_until_the_visitor_goes_on(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_drops, "STEP", 0.0)  # batches of eight masks
    result_cache.retain(set())
    page.run()
    _, name, _ = offered_map(page)
    some, _, more = offered_map(page, wanted=name)
    assert more
    press(page, "Stop")
    values, _, more = offered_map(page, wanted=name)
    assert not more and np.array_equal(values, some)
    press(page, "Go on")
    values, _, more = offered_map(page, wanted=name)
    assert more and not np.array_equal(values, some)
    (text,) = (one for one in page.get("progress") if "faithfulness about" in one.proto.text)
    assert " of up to 128 masks" in text.proto.text


def test_control_used_within_a_batch_ends_it_and_measuring_goes_on(
    page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    result_cache.retain(set())
    page.run()
    _, name, _ = offered_map(page)
    batches: list[list[float]] = []

    def measure(*args: Any, progress: Callable[[float], object], **kwargs: Any) -> torch.Tensor:
        batches.append([])
        if len(batches) == 1:  # as Streamlit does for a click
            requests, fragment = get_script_run_ctx().script_requests, ThreadState.get().fragment_id
            requests.request_rerun(replace(requests._rerun_data, fragment_id_queue=[fragment]))

        def record(share: float) -> None:
            batches[-1].append(share)
            progress(share)

        return score_drops(*args, progress=record, **kwargs)

    monkeypatch.setattr(mask_drops.faithfulness_correlation, "score_drops", measure)
    offered_map(page, wanted=name)
    assert len(batches) == 2 and len(batches[0]) == 1 and batches[1][-1] == 1


def test_public_server_measures_fewer_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = vit.load_checkpoint("cifar10")
    example = method_choice.Example("public", checkpoint, explain(checkpoint, samples.read("cat")))
    assert mask_drops.most_for_best_map(example) == BEST_MAP_MASKS and mask_drops.most(example) == mask_drops.MOST
    monkeypatch.setenv("VIT_PUBLIC", "1")
    monkeypatch.setattr(mask_drops, "expected", lambda example: 2.5 * mask_drops.FIRST)
    assert mask_drops.most_for_best_map(example) == 24 and mask_drops.most(example) == mask_drops.FIRST
    result_cache.retain(set())
    mask_drops.measure_for_best_map(example, 5)
    assert len(mask_drops.drops_so_far(example, 5, FITTED)[1]) == 24


def test_map_with_passes_of_its_own_has_no_backward_pass_before(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = vit.load_checkpoint("cifar10")
    example = method_choice.Example("forward", checkpoint, explain(checkpoint, samples.read("cat")))
    result_cache.retain(set())
    monkeypatch.delattr(RecordedPass, "of_class")
    for method in ("attnlrp", "legrad"):
        numbers = method_choice.weights(example, Selection(view="relevance"), MethodChoice(5, method))
        assert bool(numbers.any())


def test_saved_viewer_has_the_map_as_it_is_now(recorded: RecordedPass) -> None:
    checkpoint = vit.load_checkpoint("cifar10")
    example = method_choice.Example("saved", checkpoint, explain(checkpoint, samples.read("cat")))
    selection, choice = Selection(view="relevance"), MethodChoice(5, "best")
    shown, method = method_choice.computed_map(example, selection, choice, growing=True)
    export, needed, _ = map_exports.for_export(example, selection, choice, shown, method, ())
    assert needed["chain"] is None and needed["method"]["chain"] == "" and needed["method"]["signed"]
    expected = weights(recorded, "attnlrp")
    values = torch.tensor(needed["computed"]["values"])
    torch.testing.assert_close(values[1:], expected[1:] / expected[1:].abs().sum(), rtol=1e-3, atol=1e-6)
    assert export is not None
    torch.testing.assert_close(export().weights, values)  # without measuring the other masks


def test_verdicts_do_not_use_the_masks_that_the_map_learnt_from() -> None:
    judges = [random_masks(64, mask_drops.MOST), *(random_masks(64, 128, seed) for seed in range(1, 40))]
    learnt = {mask.numpy().tobytes() for mask in random_masks(64, BEST_MAP_MASKS, FITTED)}
    assert len(learnt) == BEST_MAP_MASKS
    assert not any(mask.numpy().tobytes() in learnt for masks in judges for mask in masks)
