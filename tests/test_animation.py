"""Animated maps: one picture per block, epoch or frame, each with its own map."""

import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from drawn import animated
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import InvalidImage, InvalidRun, UserError
from vit.explain.methods import METHODS
from vit.explain.methods import weights as class_weights
from vit.explain.record import record
from vit.explain.recorded_pass import RecordedPass
from vit.exports import animation
from vit.exports.animation import LAST_MILLISECONDS, Film, encode, over_blocks, over_epochs, over_frames
from vit.images.files.decode import decode_frames
from vit.images.preprocess import Normalise, Preprocess
from vit.model.transformer import VisionTransformer
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.view.explanation import Explanation, explain
from vit.view.map_view import MapView, shared_top, weights
from vit.view.overlay import COLORMAPS, SIGNED_COLOURS
from vit.view.payload import pack
from vit.view.selection import Selection
from vit.view.stored_record import record_of

GRAY: dict[str, Any] = {"opacity": 1.0, "cover": "film", "colormap": "gray"}
CLASS_TOKEN = Selection(**GRAY)  # no outline lies on its map


@pytest.fixture
def explanation(checkpoint: Checkpoint) -> Explanation:
    return explain(checkpoint, animated(1))


def played(film: Film) -> tuple[list[np.ndarray], list[int]]:
    """Return the frames of a GIF (height, width, 3) and their durations [ms]."""
    data = encode(film, "GIF")
    frames = list(decode_frames(data, range(Image.open(io.BytesIO(data)).n_frames)))
    return [np.asarray(frame.picture).astype(int) for frame in frames], [frame.duration for frame in frames]


def patches(picture: np.ndarray, box: tuple[float, float, float, float]) -> np.ndarray:
    """Return the grey level in the middle of each patch (4, 4)."""
    left, top, right, bottom = box
    x = (left + (np.arange(4) + 0.5) * (right - left) / 4).astype(int)
    y = (top + (np.arange(4) + 0.5) * (bottom - top) / 4).astype(int)
    return picture[y][:, x, 0]


BOX = (80, 0, 400, 320)  # of a 60 x 40 picture, eight times as large


@pytest.mark.parametrize("direction", ["from", "to"])
@pytest.mark.parametrize("head", [1, "max"])
def test_animation_over_blocks_has_a_frame_per_block(explanation: Explanation, head: Any, direction: Any) -> None:
    selection = replace(CLASS_TOKEN, head=head, direction=direction, scale="own")
    pictures, durations = played(over_blocks(explanation, selection))
    assert len(pictures) == 2 and durations[1] == LAST_MILLISECONDS > durations[0]
    recorded = explanation.record
    for block, picture in enumerate(pictures):
        truth = recorded.heatmap(recorded.weights(0, block, head, direction)).numpy()
        assert np.abs(patches(picture, BOX) - truth / truth.max() * 255).max() <= 4


def test_shared_scale_over_blocks_is_that_of_the_viewer(explanation: Explanation) -> None:
    top = shared_top(explanation.payload, CLASS_TOKEN)
    recorded = explanation.record
    for block, picture in enumerate(played(over_blocks(explanation, CLASS_TOKEN))[0]):
        truth = np.clip(recorded.heatmap(recorded.weights(0, block)).numpy() / top, 0, 1)
        assert np.abs(patches(picture, BOX) - truth * 255).max() <= 4


def test_blocks_are_labelled_and_the_query_is_marked(explanation: Explanation) -> None:
    first, second = played(over_blocks(explanation, Selection(token=6, **GRAY)))[0]
    assert (first[320:] != second[320:]).any() and first[320:].min() < 60
    row, col = 80, 160  # the corner of patch (1, 1)
    assert (first[row + 1, col + 5 : col + 70] > 240).all() and (first[row, col + 5 : col + 70] < 15).all()


@pytest.fixture
def probes(
    tmp_path: Path, build: Callable[..., VisionTransformer], labels: tuple[str, ...]
) -> tuple[Path, torch.Tensor, list[VisionTransformer]]:
    """Folder of a run of three epochs, its pictures, and the models."""
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    models = [build(seed) for seed in range(3)]
    writer = SnapshotWriter(tmp_path / "probes", images, [4, 0], labels, Preprocess((32, 32)))
    for epoch, model in enumerate(models, 1):
        writer.store(epoch, model)
    return tmp_path / "probes", images, models


@pytest.mark.parametrize("view", ["attention", "rollout"])
def test_animation_over_epochs_has_a_frame_per_epoch(probes: Any, view: Any) -> None:
    folder, images, models = probes
    selection = replace(CLASS_TOKEN, block=0, head=1, view=view, scale="own")
    pictures, durations = played(over_epochs(folder, 1, selection))
    assert len(pictures) == 3 and durations[-1] == LAST_MILLISECONDS
    for model, picture in zip(models, pictures, strict=True):
        recorded = record(model, Normalise(Preprocess((32, 32)), torch.device("cpu"))(images[1:]))
        truth = recorded.heatmap(recorded.rollout(0) if view == "rollout" else recorded.weights(0, 0, 1)).numpy()
        assert np.abs(patches(picture, (0, 0, 480, 480)) - truth / truth.max() * 255).max() <= 4


def test_shared_scale_over_epochs_is_one_for_all(probes: Any) -> None:
    folder, images, models = probes
    pictures, _ = played(over_epochs(folder, 0, replace(CLASS_TOKEN, block=1)))
    truth = []
    for model in models:
        recorded = record(model, Normalise(Preprocess((32, 32)), torch.device("cpu"))(images[:1]))
        truth.append(recorded.heatmap(recorded.weights(0, 1)).numpy())
    levels = np.stack([patches(picture, (0, 0, 480, 480)) for picture in pictures])
    below = levels < 250
    ratio = levels[below] / np.stack(truth)[below]
    assert below.sum() > 30 and ratio.std() < 0.05 * ratio.mean()


def test_damaged_epochs_are_skipped(probes: Any) -> None:
    folder, _, _ = probes
    (folder / "epoch-00002.zip").write_bytes(b"torn")
    assert len(played(over_epochs(folder, 0, Selection()))[0]) == 2
    for path in folder.iterdir():
        path.write_bytes(b"torn")
    with pytest.raises(InvalidRun):
        over_epochs(folder, 0, Selection())


def test_each_video_frame_is_explained_on_its_own(checkpoint: Checkpoint) -> None:
    data, selection, reports = animated(3, duration=[100, 200, 300]), replace(CLASS_TOKEN, scale="own"), []
    pictures, durations = played(over_frames(checkpoint, data, selection, (32, 32), progress=reports.append))
    assert durations == [100, 200, 300] and reports == [1 / 3, 2 / 3, 1]
    for number, picture in enumerate(pictures):
        kept = explain(checkpoint, data, frame=number).record
        truth = kept.heatmap(kept.weights(0)).numpy()
        assert np.abs(patches(picture, BOX) - truth / truth.max() * 255).max() <= 4


def test_shared_scale_over_frames_ends_at_the_strongest_patch_of_any(checkpoint: Checkpoint) -> None:
    data = animated(3)
    levels = [patches(picture, BOX) for picture in played(over_frames(checkpoint, data, CLASS_TOKEN, (32, 32)))[0]]
    records = [explain(checkpoint, data, frame=number).record for number in range(3)]
    truth = np.stack([kept.heatmap(kept.weights(0)).numpy() for kept in records])
    assert np.abs(np.stack(levels) - truth / truth.max() * 255).max() <= 4


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.of_class])
@pytest.mark.parametrize("pinned", [False, True])
def test_frames_show_the_class_map_of_the_method(checkpoint: Checkpoint, method: str, pinned: bool) -> None:
    data = animated(3)
    selection = replace(CLASS_TOKEN, view="relevance", token=9, pinned=pinned, direction="to")
    film = over_frames(checkpoint, data, selection, (32, 32), target=3, method=method)
    token = 9 if pinned and METHODS[method].of_tokens else None
    truth = []
    for frame in decode_frames(data, range(3)):
        recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(frame.picture), 3)
        direction = "from" if token is None else "to"  # the class token attends only to itself
        weights = class_weights(recorded, method, token, direction, **selection.settings(METHODS[method].settings))
        truth.append(recorded.record.heatmap(weights / weights.abs().sum()).numpy().ravel())
    counted = np.stack(truth)
    if token is not None:
        counted[:, token - 1] = 0  # the scale ends at the strongest of the other patches
    levels = np.clip(np.stack(truth) / counted.max(), 0, 1) * 255
    if METHODS[method].signed:
        places = np.rint((np.stack(truth) / np.abs(counted).max() + 1) * 127.5).astype(int)
        levels = SIGNED_COLOURS[places, 0].astype(float)  # `patches` returns the red of a pixel
    result = np.stack([patches(picture, BOX).ravel() for picture in played(film)[0]])
    inside = np.ones(16, bool) if token is None else np.arange(16) != token - 1  # an outline lies on that patch
    assert np.abs(result - levels)[:, inside].max() <= 4


def test_frames_of_a_class_state_its_probability(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(animation, "_draw_step", lambda step, selection: messages.append(step.label) or step.picture)
    over_frames(checkpoint, animated(2), CLASS_TOKEN, (32, 32), method="legrad", target=3)
    probability = explain(checkpoint, animated(2), frame=1).record.logits[0].softmax(0)[3]
    assert messages[1] == f"Frame 2: {checkpoint.labels[3]} {float(probability):.0%}"


def test_many_frames_are_thinned_at_equal_duration(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(animation, "MAX_STEPS", 4)
    pictures, durations = played(over_frames(checkpoint, animated(10, duration=50), CLASS_TOKEN, (32, 32)))
    assert len(pictures) == 4 and sum(durations) == 10 * 50


def test_mp4_shows_the_same_as_the_gif(explanation: Explanation) -> None:
    film = over_blocks(explanation, CLASS_TOKEN)
    with av.open(io.BytesIO(encode(film, "MP4"))) as container:
        pixels = [frame.to_image() for frame in container.decode(video=0)]
    assert len(pixels) == len(film.pictures)
    for result, truth in zip(pixels, played(film)[0], strict=True):
        assert np.abs(patches(np.asarray(result).astype(int), BOX) - patches(truth, BOX)).max() <= 6


def test_panorama_is_cropped_around_the_patches(checkpoint: Checkpoint) -> None:
    out = io.BytesIO()
    Image.linear_gradient("L").resize((3000, 200)).save(out, "PNG")
    picture = played(over_blocks(explain(checkpoint, out.getvalue()), CLASS_TOKEN))[0][0]
    assert picture.shape[0] - 26 == pytest.approx(480 / 2.5, abs=1) and picture.shape[1] == 480


def test_still_picture_or_empty_input_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(UserError, match="still picture"):
        over_frames(checkpoint, animated(1), Selection(), (32, 32))
    with pytest.raises(InvalidImage):
        over_frames(checkpoint, b"nothing", Selection(), (32, 32))


@pytest.mark.parametrize("side", [32, 160])
@pytest.mark.parametrize(
    "selection",
    [
        Selection(block=0, head=1, token=6),
        Selection(block=1, head="max", token=0, direction="to"),
        Selection(block="min", head="mean", token=9, direction="to"),
        Selection(view="rollout", token=3),
        Selection(view="rollout", token=0, direction="to"),
        Selection(view="rollout", token=3, residual=0.2, fusion="max", discard=0.5),
        Selection(view="rollout", token=0, direction="to", fusion="min", discard=0.25),
    ],
)
def test_payload_gives_the_weights_of_its_record(
    build: Callable[..., VisionTransformer], side: int, selection: Selection
) -> None:
    pixels = torch.randn(1, 3, side, side, generator=torch.Generator().manual_seed(7))
    recorded = record(build(), pixels)
    payload = pack(recorded, Image.new("RGB", (side, side)), (0, 0, side, side), COLORMAPS)
    truth = MapView.of(recorded, selection).weights.numpy()
    wrong = np.abs(weights(record_of(payload), selection).numpy() - truth) / truth.max()
    swapped = 1 if selection.discard else 0  # of two nearly equal weakest patches, either may be dropped
    assert (wrong > 0.005).sum() <= swapped and wrong.max() < 0.05


def test_payload_gives_the_weights_of_the_pooling_query(build: Callable[..., VisionTransformer]) -> None:
    recorded = record(build(prefix=(), pool="map"), torch.randn(1, 3, 32, 32))
    payload = pack(recorded, Image.new("RGB", (32, 32)), (0, 0, 32, 32), COLORMAPS)
    for head in (1, "max"):
        selection = Selection(view="pool", head=head)
        assert np.allclose(weights(record_of(payload), selection), MapView.of(recorded, selection).weights, atol=1e-6)
