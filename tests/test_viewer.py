"""The viewer's payload and selection."""

import io
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from PIL import Image

from vit.explain.record import AttentionRecord
from vit.explain.record import record as record_attention
from vit.view import web
from vit.view.payload import pack, pack_chain, pack_features, read_header, unpack
from vit.view.selection import Selection, View

COLORMAPS = {"gray": np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1)}
PICTURE = Image.new("RGB", (40, 30), (200, 100, 50))


def a_record(blocks=2, heads=3, grid=(4, 5), prefix=("cls", "reg1"), width=8, sharpness=2.0) -> AttentionRecord:
    torch.manual_seed(0)
    tokens = len(prefix) + grid[0] * grid[1]
    queries, keys = (torch.randn(blocks, heads, tokens, width) * sharpness for _ in range(2))
    keys = keys + torch.randn(blocks, heads, 1, width) * 20  # a mean that softmax does not notice
    return AttentionRecord(torch.zeros(1, 4), tuple(queries), tuple(keys), prefix, grid)


def test_every_segmented_control_has_a_tooltip() -> None:
    page = (Path(web.__file__).parent / "viewer.html").read_text()
    buttons = re.findall(r'<button type="button" data-value="(\w+)"([^>]*)>', page)
    unexplained = [value for value, attributes in buttons if 'title="' not in attributes]
    assert unexplained == ["relevance"]  # its texts come from the table of methods
    assert len(buttons) > 8


def packed(record: AttentionRecord):
    return unpack(pack(record, PICTURE, (0, 0, 40, 30), COLORMAPS))


def attention_of(header, sections) -> np.ndarray:
    """Return every map (L, H, N, N) of a payload, as a reader of the format computes it."""
    if header["kind"] == "maps":
        patches = sections["maps"] * (sections["scales"][..., None] / 255)
        return np.concatenate([sections["prefix"].astype(np.float32), patches], -1)
    q, k = sections["queries"].astype(np.float32), sections["keys"].astype(np.float32)
    return np.exp(q @ k.swapaxes(-1, -2) - sections["log_sums"][..., None])


def full(record: AttentionRecord) -> np.ndarray:
    return torch.stack([record.full(block) for block in range(record.blocks)]).numpy()


def test_maps_are_exact_to_half_a_step_of_the_row_maximum():
    record = a_record()
    truth = full(record)
    error = np.abs(attention_of(*packed(record)) - truth).max(-1)
    assert (error <= truth.max(-1) / 510 + 1e-7).all()


def test_sink_does_not_cost_the_patches_their_precision():
    record = a_record(sharpness=0.2)
    queries = tuple(torch.cat([q, torch.full_like(q[..., :1], 8.0)], -1) for q in record.queries)
    keys = tuple(torch.cat([k, torch.zeros_like(k[..., :1])], -1) for k in record.keys)
    for k in keys:
        k[:, 0, -1] = 4  # the class token takes nearly everything
    record = AttentionRecord(record.logits, queries, keys, record.prefix, record.grid)
    truth = full(record)
    patches = truth[..., 2:]
    assert truth[..., 0].min() > 0.9
    error = np.abs(attention_of(*packed(record))[..., 2:] - patches)
    assert (error <= patches.max(-1, keepdims=True) / 510 * 1.001).all()


def test_queries_and_keys_give_rows_and_columns_within_one_percent():
    record = a_record(grid=(16, 17), width=16, sharpness=1.2)
    header, sections = packed(record)
    assert header["kind"] == "qk"
    attention = attention_of(header, sections)
    for block in range(record.blocks):
        rows = record.rows(block, [0, 7]).numpy()
        columns = record.columns(block, [1, 100]).numpy()
        np.testing.assert_allclose(attention[block][:, [0, 7]], rows, rtol=0.02, atol=1e-6)
        np.testing.assert_allclose(attention[block][:, :, [1, 100]], columns, rtol=0.02, atol=1e-6)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)


def test_keys_beyond_float16_are_supported():
    record = a_record(grid=(16, 17))
    record = AttentionRecord(
        record.logits,
        tuple(q * 1e-6 for q in record.queries),
        tuple(k * 1e6 for k in record.keys),
        record.prefix,
        record.grid,
    )
    header, sections = packed(record)
    assert np.isfinite(sections["keys"]).all()
    np.testing.assert_allclose(attention_of(header, sections)[0, :, :5], full(record)[0, :, :5], rtol=0.1, atol=1e-3)


def test_payload_uses_queries_and_keys_from_256_tokens():
    assert packed(a_record(grid=(16, 16), prefix=()))[0]["kind"] == "maps"
    assert packed(a_record(grid=(16, 16), prefix=("cls",)))[0]["kind"] == "qk"


@pytest.mark.parametrize(
    ("blocks", "heads", "side", "limit"), [(12, 12, 14, 6e6), (6, 4, 8, 0.25e6), (6, 8, 8, 0.25e6)]
)
def test_payloads_are_small(blocks, heads, side, limit):
    record = a_record(blocks, heads, (side, side), ("cls",), width=8)
    record = replace(record, features=torch.randn(record.tokens, 768 if side == 14 else 192))
    picture = Image.effect_noise((1600, 1200), 60) if side == 14 else Image.new("RGB", (32, 32))
    assert len(pack(record, picture, (0, 0, 9, 9), COLORMAPS)) <= limit


def cosines_of(sections) -> np.ndarray:
    """Return cosines (N, N), as a reader of the format computes them."""
    features, units = sections["features"].astype(np.int64), sections["units"]
    return (features @ features.T) * units * units[:, None]


@pytest.mark.parametrize(("huge", "bound"), [(0, 0.002), (20, 0.01)])
def test_cosines_of_features_are_exact_to_the_displayed_digits(huge, bound):
    record = a_record()
    features = torch.randn(record.tokens, 384)
    features[:, 7] += huge * torch.rand(record.tokens)  # a massive channel, as in trained models
    record = replace(record, features=features)
    cosines = cosines_of(packed(record)[1])
    truth = torch.stack([record.similarity(token) for token in range(record.tokens)]).numpy()
    assert np.abs(cosines - truth).max() < bound
    np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)


def test_features_take_a_byte_per_number():
    record = replace(a_record(), features=torch.randn(22, 768))
    with_them, without = (len(pack(r, PICTURE, (0, 0, 40, 30), COLORMAPS)) for r in (record, a_record()))
    assert with_them - without < 22 * (768 + 4) + 200


def test_features_after_a_block_have_colours():
    features, colours = torch.randn(7, 16), torch.rand(2, 3, 3)
    header, sections = unpack(pack_features(features, (2, 3), 4, colours, (0.5, 0.25, 0.125)))
    assert (header["kind"], header["block"], header["shares"]) == ("features", 4, [0.5, 0.25, 0.125])
    truth = torch.nn.functional.normalize(features, dim=-1)
    assert np.abs(cosines_of(sections) - (truth @ truth.T).numpy()).max() < 0.005
    assert np.abs(sections["colours"].reshape(2, 3, 3) / 255 - colours.numpy()).max() <= 0.5 / 255 + 1e-6
    assert "colours" not in unpack(pack_features(features, (2, 3), 0))[1]


def test_token_without_features_is_similar_to_no_other():
    features = torch.randn(22, 16)
    features[3] = 0
    cosines = cosines_of(packed(replace(a_record(), features=features))[1])
    assert (cosines[3] == 0).all() and np.isfinite(cosines).all()


def test_patches_with_an_outlying_norm_are_named_artefacts():
    norms = torch.rand(22) + 1
    assert "artefacts" not in packed(replace(a_record(), norms=norms))[0]
    norms[[0, 5, 21]] *= 20  # token 0 is the class token
    assert packed(replace(a_record(), norms=norms))[0]["artefacts"] == [5, 21]


def test_data_missing_in_a_record_is_missing_in_its_payload():
    header, sections = packed(a_record())
    assert not {"features", "units", "pool"} & set(sections)
    assert "pool_top" not in header


def test_pooling_query_of_a_model_without_prefix_is_stored(build, pictures):
    model = build(prefix=(), pool="map", num_classes=0)
    recorded = record_attention(model, pictures(count=1))
    _, sections = packed(recorded)
    assert sections["pool"].shape == (2, 16)
    np.testing.assert_array_equal(sections["pool"], recorded.pool_attention.numpy())
    truth = np.stack([recorded.similarity(token).numpy() for token in range(16)])
    np.testing.assert_allclose(cosines_of(sections), truth, atol=0.01)


def test_scale_of_the_pooling_query_lies_above_every_second_head():
    pool = (torch.randn(4, 22) * torch.tensor([1.0, 2.0, 3.0, 4.0])[:, None]).softmax(-1)
    pool[0, :2] = 0.45  # prefix tokens do not count
    top = packed(replace(a_record(heads=4), pool_attention=pool))[0]["pool_top"]
    strongest = pool[:, 2:].amax(-1)
    assert int((strongest <= top * 1.001).sum()) >= 2
    assert 4 / 22 * 0.999 <= top <= max(float(strongest.median()) * 1.8, 4 / 22)


def test_sections_are_aligned_for_typed_arrays():
    header = read_header(pack(a_record(), PICTURE, (0, 0, 40, 30), COLORMAPS))
    assert all(offset % 8 == 0 for offset, _ in header["sections"].values())


def test_header_keeps_original_pixels_and_the_displayed_picture_is_limited():
    big = Image.new("RGB", (5000, 2500))
    payload = pack(a_record(), big, (-10.5, 0, 5000, 2500), COLORMAPS)
    header, _ = unpack(payload)
    offset, length = header["sections"]["picture"]
    pixels = Image.open(io.BytesIO(payload[offset : offset + length]))
    assert (header["picture"]["width"], header["picture"]["height"]) == (5000, 2500)
    assert header["box"] == [-10.5, 0, 5000, 2500]
    assert max(pixels.size) <= 2048


def test_small_pictures_are_stored_losslessly():
    payload = pack(a_record(), PICTURE, (0, 0, 40, 30), COLORMAPS)
    assert read_header(payload)["picture"]["type"] == "image/png"


def test_both_kinds_end_the_shared_scale_at_the_same_weight(monkeypatch):
    record = a_record()
    maps = packed(record)[1]["tops"]
    monkeypatch.setattr("vit.view.payload.MAPS_UP_TO", 0)
    same = np.isclose(packed(record)[1]["tops"], maps, rtol=1e-5)
    assert same.mean() > 0.9  # float16 may round one up to the next round number


def test_shared_scale_of_uniform_attention_has_headroom():
    record = a_record(sharpness=0.0)
    np.testing.assert_allclose(packed(record)[1]["tops"], 4 / record.tokens, rtol=1e-6)


def test_shared_scale_of_one_head_ends_at_or_just_above_its_strongest_patch():
    record = a_record(blocks=1, heads=1)
    truth = full(record)[0, 0]
    from_each, to_each = packed(record)[1]["tops"]
    for tops, strongest in ((from_each, truth[:, 2:].max(1)), (to_each, truth[2:].max(0))):
        reached = np.maximum(strongest, 4 / record.tokens)
        assert (tops >= reached * 0.999).all()
        assert (tops <= np.minimum(reached * 1.34, 1.001)).all()


@pytest.mark.parametrize("box", [(0, 0, 0, 10), (5, 0, 4, 10), (0, 0, float("nan"), 10)])
def test_empty_box_is_refused(box):
    with pytest.raises(ValueError, match="box"):
        pack(a_record(), PICTURE, box, COLORMAPS)


def test_wrong_colour_map_is_refused():
    with pytest.raises(ValueError, match="Colour map"):
        pack(a_record(), PICTURE, (0, 0, 1, 1), {"x": np.zeros((256, 4), np.uint8)})


def test_other_bytes_are_refused():
    with pytest.raises(ValueError, match="not a viewer payload"):
        unpack(b"GIF89a" + bytes(100))


def test_packing_needs_no_streamlit():
    code = "import sys, vit.view.payload, vit.view.selection; assert 'streamlit' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_selection_survives_a_link():
    chosen = Selection(
        block="max", head=2, token=30, pinned=True, view="rollout", direction="to",
        colormap="magma", opacity=0.3, cover="film", smooth=True, scale="own",
        contour="mass", mass=0.35, hidden=(1, 2, 9),
        residual=0.15, fusion="min", discard=0.95, start_block=5, after_block=4,
    )  # fmt: skip
    query = chosen.to_query()
    assert all(isinstance(value, str) for value in query.values())
    assert Selection.from_query(query, 12, 3, 197) == chosen


@pytest.mark.parametrize("view", get_args(View))
def test_every_view_survives_a_link(view):
    assert Selection.from_query(Selection(view=view).to_query(), 12, 3, 197).view == view


@pytest.mark.parametrize(("tokens", "smooth"), [(65, False), (257, False), (577, True), (1370, True)])
def test_maps_of_small_patches_are_smooth_by_default(tokens, smooth):
    assert Selection.from_query({}, 12, 3, tokens).smooth is smooth
    assert not Selection.from_query({"smooth": "0"}, 12, 3, tokens).smooth
    assert Selection.from_query({"smooth": "1"}, 12, 3, tokens).smooth


def test_empty_link_shows_the_last_block():
    assert Selection.from_query({}, 12, 3, 197) == Selection(block=11, after_block=11)
    assert [Selection.from_query({"after_block": text}, 12, 3, 197).after_block for text in ("99", "mean", "2")] == [
        11,
        11,
        2,
    ]


@pytest.mark.parametrize(("asked", "shown"), [("999", 11), ("-1", 11), ("-999", 0), ("3", 3), (5, 5), ("min", "min")])
def test_block_out_of_range_becomes_the_nearest(asked, shown):
    assert Selection.from_query({"block": asked}, 12, 3, 197).block == shown


@pytest.mark.parametrize("token", ["197", "-1", "1e400", "99999999999999999999"])
def test_token_out_of_range_is_the_default_and_not_pinned(token):
    selected = Selection.from_query({"token": token, "pinned": "1"}, 12, 3, 197)
    assert (selected.token, selected.pinned) == (0, False)


HOSTILE = [
    "", " ", "nan", "inf", "-inf", "1e999", "9" * 5000, "<script>", "../../etc/passwd", "\0", "é", "None", "true",
    None, True, [], {}, 1.5, float("nan"), float("inf"), 10**400, b"1", ["1"],
]  # fmt: skip


@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: repr(value)[:20])
@pytest.mark.parametrize("name", list(Selection().to_query()))
def test_hostile_values_become_a_valid_selection(name, value):
    selected = Selection.from_query({name: value}, 12, 3, 197)
    for count, index in ((12, selected.block), (3, selected.head)):
        assert index in ("mean", "max", "min") or (type(index) is int and 0 <= index < count)
    assert type(selected.token) is int and 0 <= selected.token < 197
    assert type(selected.pinned) is bool and type(selected.smooth) is bool
    assert (
        0 <= selected.opacity <= 1
        and 0 <= selected.residual <= 1
        and 0 <= selected.discard < 1
        and 0 < selected.mass <= 1
    )
    assert type(selected.start_block) is int and 0 <= selected.start_block < 12
    assert selected.fusion in ("mean", "max", "min")
    assert selected.view in ("attention", "rollout", "relevance", "similar", "pool")
    assert selected.direction in ("from", "to")
    assert selected.scale in ("shared", "own")
    assert selected.cover in ("weight", "film")
    assert isinstance(selected.colormap, str) and len(selected.colormap) <= 32


def test_chain_is_exact_to_a_thousandth_for_any_magnitude():
    torch.manual_seed(0)
    matrices, start = [torch.rand(6, 6) * 10.0**-power for power in (0, 9, 20)], torch.rand(6)
    header, sections = unpack(pack_chain(matrices, start))
    assert header["kind"] == "chain" and header["tokens"] == 6
    np.testing.assert_allclose(sections["start"], start)
    for result, scale, expected in zip(sections["matrices"], sections["scales"], matrices, strict=True):
        np.testing.assert_allclose(result.astype(np.float32) * scale, expected, rtol=1e-3, atol=1e-6 * float(scale))


def test_chain_of_zeros_is_finite():
    _, sections = unpack(pack_chain([torch.zeros(4, 4)], torch.ones(4)))
    assert not sections["matrices"].any() and np.isfinite(sections["scales"]).all()
