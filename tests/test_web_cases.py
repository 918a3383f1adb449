"""Functions that exist in Python and in the viewer's JavaScript, tested on the shared cases in `web/cases.json`."""

import base64
import json
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from node import NODE

from vit.explain.attention_tensors import record_of_attention
from vit.explain.correspondence import matches
from vit.explain.faithfulness_correlation import faithfulness_verdict
from vit.explain.map_comparison import Layout, counterpart
from vit.explain.maps import discard_weakest, entropy, fuse, mass_threshold, otsu_threshold
from vit.explain.record import AttentionRecord
from vit.explain.regions import region_score
from vit.explain.relevance import GradientRecord
from vit.explain.settings import ROLLOUT, Fusion, Settings
from vit.view import captions, map_view, overlay
from vit.view.payload import pack_chain, unpack
from vit.view.selection import Selection, ranges
from vit.view.stored_record import record_of

FOLDER = Path(__file__).parent / "web"
CASES: dict[str, Any] = json.loads((FOLDER / "cases.json").read_text(encoding="utf-8"))
GENERATED = {case["name"]: case for case in CASES["generated"]}


def a_record(prefix: list[str], grid: list[int], **kept: Any) -> AttentionRecord:
    """Return a record that has only a layout."""
    empty = torch.zeros(1, len(prefix) + grid[0] * grid[1], 1)
    return AttentionRecord(torch.zeros(1, 1), (empty,), (empty,), tuple(prefix), (grid[0], grid[1]), **kept)


def test_viewers_javascript_passes_its_own_tests() -> None:
    files = sorted(map(str, FOLDER.glob("*.test.js")))
    assert files
    done = subprocess.run([NODE, "--test", *files], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES["tokens"])
def test_names_of_tokens(case: dict[str, Any]) -> None:
    names = [captions.token_name(token, case["prefix"], case["grid"]) for token in range(len(case["names"]))]
    assert names == case["names"]


@pytest.mark.parametrize("case", CASES["regions"], ids=lambda case: case["text"])
def test_shares_of_regions(case: dict[str, Any]) -> None:
    heatmap = torch.tensor(case["map"])
    region = torch.zeros(heatmap.numel(), dtype=torch.bool).index_fill(0, torch.tensor(case["hidden"]), True)
    energy, pointing, area = region_score(heatmap, region.reshape(heatmap.shape))
    assert (energy, area) == pytest.approx((case["energy"], case["area"])) and pointing is case["pointing"]


@pytest.mark.parametrize("case", CASES["sentences"], ids=lambda case: case["text"])
def test_sentences(case: dict[str, Any]) -> None:
    prefix, grid = ("cls", "reg2"), (2, 3)
    view, direction, settings = case["view"], case.get("direction", "from"), Settings(**case.get("settings", {}))
    if view == "relevance":
        name = "" if case["token"] < 0 else captions.token_name(case["token"], prefix, grid)
        target = case.get("target", "<b>cat</b>")
        changed, signed = settings.changed(["start_block"]), case.get("signed", False)
        sentence = captions.class_sentence("Relevance", target, name, direction, changed, signed)
    else:
        facts = {"method": view, "query": case["token"], "direction": direction}
        facts |= {name: case[name] for name in ("block", "head")}
        if view == "similar":
            facts = {"method": view, "query": case["token"]}
            facts |= {"block": case["after_block"]} if "after_block" in case else {}
        sentence = captions.sentence(facts | (settings.changed(ROLLOUT) if view == "rollout" else {}), prefix, grid)
    assert sentence == case["text"]


def test_usual_settings_and_their_names() -> None:
    assert Settings().settings() == CASES["usual"]
    assert list(ROLLOUT) == CASES["rollout_settings"]
    assert list(get_args(Fusion)) == CASES["fusions"]


@pytest.mark.parametrize("case", CASES["settings"], ids=lambda case: case["text"])
def test_words_for_settings(case: dict[str, Any]) -> None:
    settings = Settings(**case["settings"])
    assert captions.settings(settings.changed(["discard", "fusion", "residual", "start_block"])) == case["text"]


@pytest.mark.parametrize("case", CASES["counterparts"] + CASES["generated_counterparts"])
def test_counterparts_of_tokens(case: dict[str, Any]) -> None:
    here, there = (Layout(tuple(case[side]["prefix"]), tuple(case[side]["grid"])) for side in ("here", "there"))
    pairs = case["tokens"] if isinstance(case["tokens"][0], list) else enumerate(case["tokens"])
    for token, other in pairs:
        assert counterpart(token, here, there) == other


@pytest.mark.parametrize("case", CASES["selections"])
def test_selections_beyond_a_model(case: dict[str, Any]) -> None:
    has = case["has"]
    tokens = len(has["prefix"]) + has["grid"][0] * has["grid"][1]
    selected = Selection.from_query(case["asked"], has["blocks"], has["heads"], tokens)
    assert {name: getattr(selected, name) for name in case["shown"]} == case["shown"]


@pytest.mark.parametrize("case", CASES["views"])
def test_views_of_missing_data(case: dict[str, Any]) -> None:
    record = a_record(["cls"], [1, 1])
    record = replace(record, features=torch.ones(2, 1) if case["features"] else None)
    record = replace(record, pool_attention=torch.ones(1, 2) if case["pool"] else None)
    assert map_view.facts_of(record, Selection(view=case["asked"]))["method"] == case["shown"]


@pytest.mark.parametrize("case", CASES["hidden"])
def test_hidden_patches_in_links(case: dict[str, Any]) -> None:
    assert ranges(case["patches"]) == case["text"]
    asked = [{"hidden": case["text"]}, {"hidden": case["patches"]}]
    assert all(Selection.from_query(query, 1, 1, 12).hidden == tuple(case["patches"]) for query in asked)


def test_float16_by_its_bits() -> None:
    for bits, number in CASES["halves"]:
        assert np.array(bits, np.uint16).view(np.float16) == number


@pytest.mark.parametrize("case", CASES["fused"])
def test_fused_maps(case: dict[str, Any]) -> None:
    assert fuse(torch.tensor(case["maps"]), case["how"]).tolist() == case["one"]


@pytest.mark.parametrize("case", CASES["discarded"])
def test_weakest_patches_left_out(case: dict[str, Any]) -> None:
    result = discard_weakest(torch.tensor(case["row"]), case["share"], case["prefix"]).tolist()
    order = sorted if case.get("equal") else list
    assert order(result) == order(case["left"])


@pytest.mark.parametrize("case", CASES["left_out"])
def test_number_left_out(case: dict[str, Any]) -> None:
    row = torch.arange(1.0, case["patches"] + 1)
    assert int((discard_weakest(row, case["share"], 0) == 0).sum()) == case["count"]


ROLLOUTS = [(case, answer) for case in CASES["rollouts"] for answer in case["answers"]]


@pytest.mark.parametrize(("case", "answer"), ROLLOUTS)
def test_rollout(case: dict[str, Any], answer: dict[str, Any]) -> None:
    settings = {name: answer[name] for name in ROLLOUT if name in answer}
    of = record_of_attention(torch.tensor(case["attentions"]), tuple(case["grid"]), case["prefix"])
    result = of.rollout(answer["token"], direction=answer.get("direction", "from"), **settings)
    np.testing.assert_allclose(result, answer["row"], atol=1e-6)


CHAINS = [(case, answer) for case in CASES["chains"] for answer in case["answers"]]


@pytest.mark.parametrize(("case", "answer"), CHAINS)
def test_chains(case: dict[str, Any], answer: dict[str, Any]) -> None:
    """Compute with the record of the map methods, from its matrices as the payload gives them."""
    matrices, start = [torch.tensor(matrix, dtype=torch.float32) for matrix in case["matrices"]], case["start"]
    _, sections = unpack(pack_chain(matrices, torch.tensor(start, dtype=torch.float32)))
    packed = torch.from_numpy(sections["matrices"].astype(np.float32) * sections["scales"][:, None, None])
    ones = tuple(torch.ones(1, len(start), 1) for _ in matrices)
    read, none = torch.tensor(start, dtype=torch.float32), torch.zeros(1)
    record = GradientRecord(
        logits=torch.zeros(1, 1), queries=ones, keys=ones, values=ones, gradients=ones, prefix=(), grid=(1, len(start)),
        target=0, read=read, input_gradient=none,
    )  # fmt: skip
    query = None if answer["token"] < 0 else answer["token"]
    direction, first = answer.get("direction", "from"), answer.get("first", 0)
    result = record._chain(query, direction, first, lambda block, rows: packed[block][rows]) - record._start_vector(
        query
    )
    np.testing.assert_allclose(result / result.sum().clamp_min(1e-30), answer["shares"], atol=1e-5)


@pytest.mark.parametrize("case", CASES["outlines"])
def test_outlines(case: dict[str, Any]) -> None:
    heatmap = torch.tensor(case["heatmap"], dtype=torch.float32)
    marked = mass_threshold(heatmap, case["mass"]) if case["kind"] == "mass" else otsu_threshold(heatmap)
    assert marked.flatten().int().tolist() == case["marked"]


@pytest.mark.parametrize("case", CASES["spreads"])
def test_spread_of_a_row(case: dict[str, Any]) -> None:
    row = torch.tensor(case["row"])
    assert float(entropy(row)) == pytest.approx(case["entropy"], abs=1e-6)
    assert case["prefix"] + int(row[case["prefix"] :].argmax()) == case["best"]


@pytest.mark.parametrize("case", CASES["strongest"])
def test_the_last_colour_of_one_map(case: dict[str, Any]) -> None:
    record = a_record(case["prefix"], case["grid"])
    without = None if case["except"] < 0 else case["except"]
    assert map_view._strongest_patch(torch.tensor(case["values"]), record, without) == case["top"]


@pytest.mark.parametrize("case", CASES["similar_ends"])
def test_colours_of_cosines(case: dict[str, Any]) -> None:
    values = torch.tensor(case["values"], dtype=torch.float32)
    record = a_record(case["prefix"], case["grid"], features=values[:, None])
    selection = Selection(view="similar", token=case["token"], scale=case["scale"])
    assert list(map_view._scale_ends(record, selection, values, b"a payload")) == case["ends"]


@pytest.mark.parametrize("case", CASES["covers"])
def test_how_much_a_colour_covers(case: dict[str, Any]) -> None:
    mean = case["mean"] if case["cover"] == "weight" else None
    veil = overlay._coverage(case["opacity"], mean, case.get("signed", False))
    assert [[level, int(veil[level])] for level, _ in case["levels"]] == case["levels"]


def test_colours_of_signed_maps() -> None:
    for level, colour in CASES["signed_colours"]:
        assert overlay.SIGNED_COLOURS[level].tolist() == colour


@pytest.mark.parametrize("name", GENERATED)
def test_reading_a_payload_in_python(name: str) -> None:
    case = GENERATED[name]
    record = record_of(base64.b64decode(case["payload"]))
    for row in case["rows"]:
        named = {key: row[key] for key in ("block", "head", "token", "direction")}
        np.testing.assert_allclose(map_view.weights(record, Selection(**named)), row["values"], atol=0.5 / 255)
    for row in case["rollouts"]:
        named = {key: row[key] for key in (*ROLLOUT, "token", "direction")}
        np.testing.assert_allclose(
            map_view.weights(record, Selection(view="rollout", **named)), row["values"], atol=2e-3
        )
    for head, values in enumerate(case["pool"]):
        np.testing.assert_allclose(map_view.weights(record, Selection(view="pool", head=head)), values, atol=1e-5)


@pytest.mark.parametrize("case", CASES["generated_judged"], ids=lambda case: case["name"])
def test_python_judges_maps_as_the_viewer_does(case: dict[str, Any]) -> None:
    masks, drops = torch.tensor(case["masks"], dtype=torch.bool), torch.tensor(case["drops"])
    for one in case["maps"]:
        verdict = faithfulness_verdict(torch.tensor(one["values"]).view(*case["grid"]), masks, drops)
        expected = one["correlation"], one["reach"], one["p"]
        assert (verdict.correlation, verdict.reach, verdict.p) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("case", CASES["generated_judged"], ids=lambda case: case["name"])
def test_packed_masks_are_read_back(case: dict[str, Any]) -> None:
    header, sections = unpack(base64.b64decode(case["payload"]))
    patches = header["tokens"]
    masks = np.unpackbits(sections["masks"], axis=1, bitorder="little")[:, :patches]
    assert masks.tolist() == case["masks"] and sections["drops"].tolist() == case["drops"]
    assert (header["grid"], header["target"], header["decidable"]) == (case["grid"], "cat", case["decidable"])


@pytest.mark.parametrize("case", CASES["generated_matches"], ids=lambda case: case["name"])
def test_matches_in_another_picture(case: dict[str, Any]) -> None:
    split = len(case["prefix"])
    source, target = (torch.tensor(case[name], dtype=torch.float32)[split:] for name in ("source", "target"))
    result = matches(source, target)
    for expected in case["matches"]:
        patch = expected["patch"]
        assert result.patches[patch].tolist() == expected["best"]
        assert result.mutual[patch].tolist() == expected["mutual"]
        cosines = [expected["cosines"][split + best] for best in expected["best"]]
        assert result.cosines[patch].numpy() == pytest.approx(cosines, abs=1e-6)
