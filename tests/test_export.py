"""Exported numbers equal the model's, and state their origin."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import UserError
from vit.explain.components import components
from vit.explain.faithfulness_correlation import random_masks
from vit.explain.record import record
from vit.exports import arrays, figures
from vit.exports.arrays import attention_npz, view_npz
from vit.exports.map_pictures import draw_map, grid_png
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.view.explanation import Explanation, explain
from vit.view.map_view import MapView, facts_of, weights
from vit.view.overlay import OUTSIDE_BRIGHTNESS
from vit.view.payload import pack_masks
from vit.view.selection import Selection


@pytest.fixture
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 100, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


@pytest.fixture
def explanation(checkpoint: Checkpoint, picture: Image.Image) -> Explanation:
    return explain(checkpoint, encode_image(picture))


@pytest.fixture
def pack(checkpoint: Checkpoint, picture: Image.Image) -> Callable[..., dict[str, Any]]:
    """Return `pack(**view)`: the contents of an NPZ file, by default of the last block's class-token attention."""

    def packed(**view: Any) -> dict[str, Any]:
        recorded = record(checkpoint.model, checkpoint.preprocess(picture))
        geometry = checkpoint.preprocess.geometry(picture)
        data = attention_npz(
            recorded,
            recorded.heatmap(recorded.weights(0)),
            checkpoint,
            checkpoint.preprocess,
            geometry,
            {"method": "attention"} | view,
            "weight",
        )
        with np.load(io.BytesIO(data)) as arrays:  # without allow_pickle
            return dict(arrays)

    return packed


def attentions(checkpoint: Checkpoint, picture: Image.Image) -> torch.Tensor:
    """Return the model's own attention: (L, H, N, N)."""
    with torch.inference_mode():
        output = checkpoint.model(checkpoint.preprocess(picture), output_attentions=True)
    return torch.stack([a[0] for a in output.attentions])


def test_heatmap_is_the_models_attention(
    pack: Callable[..., dict[str, Any]], checkpoint: Checkpoint, picture: Image.Image
) -> None:
    truth = attentions(checkpoint, picture)[-1].mean(0)[0, 1:].unflatten(0, (4, 4)).numpy()
    assert np.allclose(pack()["heatmap"], truth, atol=1e-6)


def test_all_attention_is_in_half_precision(
    pack: Callable[..., dict[str, Any]], checkpoint: Checkpoint, picture: Image.Image
) -> None:
    every = pack()["attention"]
    assert every.shape == (2, 2, 17, 17)
    assert every.dtype == np.float16
    assert np.allclose(every, attentions(checkpoint, picture).numpy(), atol=1e-3)


def test_other_methods_omit_the_full_attention(pack: Callable[..., dict[str, Any]]) -> None:
    assert "attention" not in pack(method="rollout")


def test_file_states_the_origin_of_its_numbers(pack: Callable[..., dict[str, Any]], checkpoint: Checkpoint) -> None:
    meta = json.loads(str(pack(query="cls")["meta"]))
    assert meta["view"] == {"method": "attention", "query": "cls"}
    assert meta["labels"] == list(checkpoint.labels)
    assert meta["checkpoint"]["sha256"] == checkpoint.hash
    assert meta["checkpoint"]["identity"] == checkpoint.identity
    assert meta["grid"] == [4, 4] and meta["prefix"] == ["cls"]
    assert meta["picture"] == {"width": 100, "height": 50, "box": [25.0, 0.0, 75.0, 50.0]}


def test_too_large_attention_is_refused(pack: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "MAX_BYTES", 1000)
    with pytest.raises(UserError, match="Choose a smaller input size"):
        pack()


def overlaid(explanation: Explanation, selection: Selection, view: MapView | None = None) -> Image.Image:
    """Draw a map over the whole picture; the selection's without `view`."""
    view = view or MapView.of(explanation.record, selection, explanation.payload)
    return draw_map(explanation.record, explanation.picture, explanation.geometry.box, selection, view)


def test_overlay_has_the_size_of_the_original(explanation: Explanation) -> None:
    for selection in (Selection(), Selection(view="rollout"), Selection(direction="to", scale="own", smooth=True)):
        assert overlaid(explanation, selection).size == (100, 50)


def test_overlay_of_zero_opacity_shows_the_picture(explanation: Explanation, picture: Image.Image) -> None:
    drawn = overlaid(explanation, Selection(opacity=0.0))
    seen = (25, 0, 75, 50)
    assert drawn.crop(seen).tobytes() == picture.crop(seen).tobytes()


def test_other_selections_draw_other_overlays(explanation: Explanation) -> None:
    selections = [Selection(), Selection(head=1), Selection(block=0), Selection(token=5), Selection(direction="to")]
    assert len({overlaid(explanation, selection).tobytes() for selection in selections}) == len(selections)


def test_grid_has_a_map_for_every_head_of_every_block(explanation: Explanation) -> None:
    small, large = (Image.open(io.BytesIO(grid_png(explanation, Selection(), cell=c))).size for c in (32, 64))
    assert large[0] >= 2 * 64 and large[1] >= 2 * 64
    assert small < large


def test_view_exports_the_displayed_numbers(
    explanation: Explanation, checkpoint: Checkpoint, picture: Image.Image
) -> None:
    selection = Selection(block=0, head=1, token=6, direction="to")
    with np.load(io.BytesIO(view_npz(explanation, selection, checkpoint))) as arrays:
        truth = attentions(checkpoint, picture)[0, 1, 1:, 6].unflatten(0, (4, 4)).numpy()
        assert np.allclose(arrays["heatmap"], truth, atol=1e-5)
        assert json.loads(str(arrays["meta"]))["view"]["head"] == 1


def npz(explanation: Explanation, selection: Selection, checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the file's arrays; `view` is its metadata."""
    with np.load(io.BytesIO(view_npz(explanation, selection, checkpoint))) as arrays:
        return dict(arrays) | {"view": json.loads(str(arrays["meta"]))["view"]}


def test_rollout_exports_its_own_map_beside_all_attention(explanation: Explanation, checkpoint: Checkpoint) -> None:
    held = npz(explanation, Selection(view="rollout", token=3), checkpoint)
    assert held["view"] == {"method": "rollout", "query": 3, "direction": "from"}
    assert np.allclose(held["heatmap"], explanation.record.heatmap(explanation.record.rollout(3)).numpy())
    assert held["attention"].shape == (2, 2, 17, 17)


def test_nearest_patches_export_their_cosines_and_features(explanation: Explanation, checkpoint: Checkpoint) -> None:
    held = npz(explanation, Selection(view="similar", token=3), checkpoint)
    assert held["view"] == {"method": "similar", "query": 3}
    lengths = np.linalg.norm(held["features"], axis=1)
    cosines = held["features"] @ held["features"][3] / lengths / lengths[3]
    assert np.allclose(held["heatmap"], cosines[1:].reshape(4, 4), atol=1e-5)
    assert "attention" in held
    assert "features" not in npz(explanation, Selection(), checkpoint)


def drawn(explanation: Explanation, **selection: Any) -> np.ndarray:
    """Return the overlay's colours alone, one per patch: (4, 4, 3)."""
    chosen = Selection(opacity=1.0, cover="film", colormap="gray", **selection)
    picture = overlaid(explanation, chosen)
    return np.asarray(picture.crop((25, 0, 75, 50)))[6::12, 6::12][:4, :4]


def test_nearest_patches_are_drawn_from_0_to_1(explanation: Explanation) -> None:
    features = explanation.record.features.clone()
    features[5] = -features[3]
    explanation = replace(explanation, record=replace(explanation.record, features=features))
    cosines = explanation.record.heatmap(explanation.record.similarity(3)).numpy()
    assert cosines.min() < -0.9
    levels = np.rint(np.clip(cosines, 0, 1) * 255)
    assert np.abs(drawn(explanation, view="similar", token=3)[..., 0] - levels).max() <= 1


def test_nearest_other_patch_ends_the_colours_on_its_own_scale(explanation: Explanation) -> None:
    cosines = explanation.record.similarity(3)[1:].numpy()
    levels = drawn(explanation, view="similar", token=3, scale="own")[..., 0].ravel()
    others = np.delete(cosines, 2)
    assert levels[2] == 255 and (levels == 255).sum() == 2
    assert levels[cosines == others.max()] == 255 and levels[cosines == others.min()] == 0


@pytest.fixture
def pooling(
    tmp_path: Path, build: Callable[..., VisionTransformer], preprocess: Preprocess, labels: tuple[str, ...]
) -> Checkpoint:
    """Return a checkpoint whose head reads the output of one learnt query."""
    model = build(prefix=(), pool="map")
    return load_checkpoint(save_checkpoint(tmp_path / "pooling", model, labels, preprocess))


def test_pooling_query_exports_its_attention(pooling: Checkpoint, picture: Image.Image) -> None:
    explanation = explain(pooling, encode_image(picture))
    with torch.inference_mode():
        output = pooling.model(pooling.preprocess(picture), output_attentions=True)
    truth = output.pool_attention[0].numpy()  # (H, N)
    held = npz(explanation, Selection(view="pool", head=1), pooling)
    assert held["view"] == {"method": "pool", "head": 1, "page": {"head": "Head 2"}}
    assert np.allclose(held["heatmap"].ravel(), truth[1], atol=1e-6)
    assert np.allclose(held["pool_attention"], truth, atol=1e-6)
    fused = npz(explanation, Selection(view="pool", head="max"), pooling)["heatmap"]
    assert np.allclose(fused.ravel(), truth.max(0), atol=1e-6)
    levels = drawn(explanation, view="pool", head=1, scale="own")[..., 0].ravel()
    assert np.abs(levels - 255 * truth[1] / truth[1].max()).max() <= 1
    assert drawn(explanation, view="pool", head=1).tobytes() != levels.tobytes()


@pytest.mark.parametrize("view", ["similar", "pool", "relevance"])
def test_view_unavailable_for_the_model_exports_attention(
    explanation: Explanation, checkpoint: Checkpoint, view: Any
) -> None:
    without = replace(explanation, record=replace(explanation.record, features=None, pool_attention=None))
    assert npz(without, Selection(view=view), checkpoint)["view"]["method"] == "attention"
    assert overlaid(without, Selection(view=view)) == overlaid(without, Selection())


SELECTIONS = [
    Selection(block=0, head=1, token=6, direction="to"),
    Selection(block="max", head="min", token=0),
    Selection(view="rollout", token=3),
    Selection(view="similar", token=3, scale="own"),
]


@pytest.mark.parametrize("selection", SELECTIONS)
def test_file_holds_the_map_bit_by_bit(explanation: Explanation, checkpoint: Checkpoint, selection: Selection) -> None:
    view = MapView.of(explanation.record, selection, explanation.payload)
    with np.load(io.BytesIO(view_npz(explanation, selection, checkpoint, view))) as arrays:
        truth = explanation.record.heatmap(weights(explanation.record, selection))
        assert np.array_equal(arrays["heatmap"], truth.numpy())
        assert json.loads(str(arrays["meta"]))["unit"] == view.unit


def test_files_state_whether_their_map_is_faithful(explanation: Explanation, checkpoint: Checkpoint) -> None:
    record, selection = explanation.record, Selection(block=1, head=0)
    view, (rows, cols) = MapView.of(record, selection), explanation.record.grid
    masks = random_masks(rows * cols, 50)
    drops = masks.double() @ record.heatmap(view.weights).flatten().double()
    packed = pack_masks(masks, drops, record.grid, "cat <1>", ceiling=0.9, decidable=True)
    judged = view.with_faithfulness(record, packed)
    with np.load(io.BytesIO(view_npz(explanation, selection, checkpoint, judged))) as arrays:
        faithfulness = json.loads(str(arrays["meta"]))["view"]["faithfulness"]
    assert faithfulness["correlation"] == pytest.approx(1, abs=1e-5) and faithfulness["verdict"] == "better than chance"
    assert [faithfulness[name] for name in ("class", "masks", "ceiling", "decidable")] == ["cat <1>", 50, 0.9, True]
    assert judged.verdict == "Faithfulness to “cat <1>” 1.00 (removal map 0.90), better than chance, by 50 masks."
    assert judged.sentence == view.sentence
    idle = view.with_faithfulness(
        record, pack_masks(masks, drops * 0, record.grid, "cat", ceiling=0.0, decidable=False)
    )
    assert "hardly change" in idle.verdict and "correlation" not in idle.facts["faithfulness"]
    assert view.with_faithfulness(record, None) == view


def test_given_map_is_drawn_if_the_selection_does_not_determine_it(explanation: Explanation) -> None:
    numbers = torch.arange(17.0)
    view = MapView(numbers, {"method": "other"}, "Another.", 0.0, 16.0, "share")
    selection = Selection(opacity=1.0, cover="film", colormap="gray")
    picture = overlaid(explanation, selection, view)
    levels = np.asarray(picture.crop((25, 0, 75, 50)))[6::12, 6::12][:4, :4, 0]
    assert np.abs(levels.ravel() - 255 * numbers[1:].numpy() / 16).max() <= 1


def test_given_map_is_in_the_npz_file_if_the_selection_does_not_determine_it(
    explanation: Explanation, checkpoint: Checkpoint
) -> None:
    view = MapView(torch.arange(17.0), {"method": "other", "target": "cat"}, "Another.", 0.0, 16.0, "share")
    with np.load(io.BytesIO(view_npz(explanation, Selection(), checkpoint, view))) as arrays:
        assert np.array_equal(arrays["heatmap"].ravel(), np.arange(1.0, 17.0)) and "attention" in arrays
        assert json.loads(str(arrays["meta"]))["view"] == view.facts


def test_components_are_drawn_in_colour_and_written_as_numbers(
    explanation: Explanation, checkpoint: Checkpoint
) -> None:
    record = explanation.record
    assert record.features is not None
    patches = record.features[len(record.prefix) :].unflatten(0, record.grid)
    of = components([patches])
    map_view = MapView.of_components(record, record.blocks - 1, of, of.colours[0])
    assert record.heatmap(map_view.weights) == pytest.approx(of.values[0][..., 0].float().numpy(), abs=1e-5)
    chosen = Selection(view="components", opacity=1.0)
    picture = overlaid(explanation, chosen, map_view)
    colours = np.asarray(picture.crop((25, 0, 75, 50)))[6::12, 6::12][:4, :4]
    assert np.abs(colours - of.colours[0].numpy() * 255).max() <= 1
    assert np.array_equal(
        np.asarray(picture)[0, 0], np.rint(np.asarray(explanation.picture)[0, 0] * OUTSIDE_BRIGHTNESS)
    )
    with np.load(io.BytesIO(view_npz(explanation, chosen, checkpoint, map_view))) as arrays:
        assert json.loads(str(arrays["meta"]))["unit"] == "component"
        assert arrays["heatmap"] == pytest.approx(of.values[0][..., 0].float().numpy(), abs=1e-5)
    figure = figures.map_figure(explanation, chosen, map_view, "Facts.", kind="svg").decode()
    assert f"Red {float(of.shares[0]):.0%}" in figure and "multiples of uniform" not in figure


def test_nearest_patches_after_a_block_name_the_block(explanation: Explanation) -> None:
    selection = Selection(view="similar", token=3, after_block=0)
    assert facts_of(explanation.record, selection) == {"method": "similar", "query": 3, "block": 0}
    assert "after block 1." in MapView.of(explanation.record, selection).sentence
