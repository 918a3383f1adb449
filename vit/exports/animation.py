"""Animated maps over the blocks of a model, the epochs of a run, or the frames of an animation or video.

The drawing functions return a `Film`, which `encode` writes as GIF or MP4.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized
from vit.errors import InvalidRun, UserError
from vit.explain.heatmap import run_model, with_difference
from vit.explain.methods import METHODS
from vit.explain.record import Precision, record
from vit.exports.map_pictures import paint_heatmap
from vit.images.files.decode import count_frames, decode_frames
from vit.images.files.video_decoder import evenly
from vit.images.geometry import Box
from vit.images.mp4 import mp4
from vit.model.cost import Size
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.captions import format_block_and_head
from vit.view.explanation import Explanation
from vit.view.map_view import MapView, shared_top, weights
from vit.view.overlay import Heatmap, scaled, window
from vit.view.payload import unpack
from vit.view.prediction import written
from vit.view.selection import Selection
from vit.view.stored_record import record_of

MAX_STEPS = 60  # maximum number of pictures in a file, sampled evenly
PICTURE_SIDE = 480  # longer side of a picture [px]
BLOCK, EPOCH, FRAME = 700, 300, 100  # durations [ms]; FRAME applies if the file states none
LAST_MILLISECONDS = 1500  # duration of the last picture before the loop restarts [ms]

Kind = Literal["GIF", "MP4"]

_LABEL = 26  # height of the line of text [px]


class Film(NamedTuple):
    """A sequence of pictures.

    Attributes:
        pictures: RGB, all of the same size.
        durations: of each picture [ms].
    """

    pictures: tuple[Image.Image, ...]
    durations: tuple[int, ...]


class Step(NamedTuple):
    """One picture of an animation.

    Attributes:
        picture: RGB.
        box: the part of the picture that the map covers [px].
        heatmap: (rows, cols).
        low, top: values of the first and the last colour.
        query: (row, col) of the query patch; None if the query is not a patch.
        label: text below the picture.
        duration: [ms].
        signed: see `MapView.signed`.
    """

    picture: Image.Image
    box: Box
    heatmap: Heatmap
    low: float
    top: float
    query: tuple[int, int] | None
    label: str
    duration: int
    signed: bool = False


def over_blocks(explanation: Explanation, selection: Selection) -> Film:
    """Animate the attention of the selected token and head, from the first block to the last.

    The shared scale is the same as in the viewer.
    """
    record = explanation.record
    picture, box = _fit_picture(explanation.picture, explanation.geometry.box)
    steps = []
    for block in range(record.blocks):
        numbers = record.weights(selection.token, block, selection.head, selection.direction)
        heatmap = record.heatmap(numbers).numpy()
        top = shared_top(explanation.payload, selection) if selection.scale == "shared" else float(heatmap.max())
        head = selection.head if isinstance(selection.head, str) else selection.head % record.heads
        query = _query_position(selection, len(record.prefix), record.grid)
        steps.append(Step(picture, box, heatmap, 0.0, top, query, format_block_and_head(block, head), BLOCK))
    return _draw_film(steps, selection)


def over_epochs(folder: Path, picture: int, selection: Selection) -> Film:
    """Animate a picture of a run over its stored epochs, see `vit.view.attention_snapshots`.

    Supports attention, rollout and the pooling query; other views show attention. The shared scale covers all epochs.

    Args:
        folder: `probes/` of the run.
        picture: index of the picture.

    Raises:
        InvalidRun: no epoch can be read.
    """
    steps: list[Step] = []
    for epoch in evenly(list_epochs(folder), MAX_STEPS):
        try:
            payload = read_payload(folder, epoch, picture)
            snapshot = read_snapshots(folder, epoch)[picture]
        except (InvalidRun, IndexError):
            continue  # deleted in the meantime by the running training, or damaged
        header, sections = unpack(payload)
        split, grid = len(header["prefix"]), (header["grid"][0], header["grid"][1])
        heatmap = weights(record_of(payload), selection)[split:].view(grid).numpy()
        query = _query_position(selection, split, grid) if selection.view != "pool" or "pool" not in sections else None
        counted = heatmap.copy()
        if query and selection.view == "rollout":
            counted[query] = 0  # a token's share of itself dominates the map, so the scale ignores it
        tops = sections["tops"][0 if selection.direction == "from" else 1, selection.token]
        top = float(tops) if selection.scale == "shared" and selection.view == "attention" else float(counted.max())
        image, box = _fit_picture(
            Image.open(io.BytesIO(sections["picture"].tobytes())).convert("RGB"), Box(*header["box"])
        )
        label = f"Epoch {epoch}"
        if snapshot.probability is not None:
            label += f": {snapshot.label} {snapshot.probability:.0%}"
        steps.append(Step(image, box, heatmap, 0.0, top, query, label, EPOCH))
    if not steps:
        raise InvalidRun("No epoch of these pictures can be read.")
    return _draw_film(_on_one_scale(steps) if selection.scale == "shared" else steps, selection)


def over_frames(
    checkpoint: Checkpoint,
    data: bytes,
    selection: Selection,
    size: Size,
    precision: Precision = "float32",
    *,
    method: str | None = None,
    target: int | None = None,
    against: int | None = None,
    progress: Callable[[float], object] = lambda share: None,
) -> Film:
    """Overlay the selected map on the frames of an animation or a video. Each frame is a separate forward pass.

    The shared scale ends at the strongest patch of all frames.

    Args:
        data: contents of a GIF, PNG, WebP or AVIF file, or of a video.
        size: (height, width) of the model's input [px].
        method: a name in `vit.explain.methods.METHODS`, computed in float32 for the selected token if it is pinned.
            None for the selected view.
        target, against: indices of the class, and of the one that it is compared with, see `vit.heatmap`.
        progress: called with the fraction that is done, 0 to 1.

    Raises:
        InvalidImage: the data is neither a picture nor a video, or a frame is damaged.
        UserError: the data is a still picture.
    """
    frames = evenly(range(count_frames(data)), MAX_STEPS)
    if len(frames) < 2:
        raise UserError("This is a still picture; choose an animation or a video.")
    preprocess = resized(checkpoint.preprocess, size)
    asks = method is not None and selection.pinned and METHODS[method].of_tokens
    steps: list[Step] = []
    for index, frame in enumerate(decode_frames(data, frames)):
        pixels, label = preprocess(frame.picture), f"Frame {frames[index] + 1}"
        if method is None:
            attention = record(checkpoint.model, pixels, precision)
            view = MapView.of(attention, selection)
        else:
            question = checkpoint if against is None else with_difference(checkpoint, pixels, target, against)
            subject = run_model(question, pixels, method, target if against is None else 0)
            attention, name = subject.record, "" if target is None else question.labels[subject.explained]
            token = selection.token if asks else None
            view = MapView.of_method(subject, method, name, token, selection.direction, selection)
            if target is not None and against is None:
                value = float(checkpoint.model.probabilities(attention.logits[0])[target])
                label += f": {name} {written(checkpoint, value, '.0%')}"
        picture, box = _fit_picture(frame.picture, preprocess.geometry(frame.picture).box)
        following = frames[index + 1] if index + 1 < len(frames) else frames[index] + 1
        duration = (frame.duration or FRAME) * (following - frames[index])
        asks_token = view.facts.get("query") is not None
        query = _query_position(selection, len(attention.prefix), attention.grid) if asks_token else None
        heatmap = attention.heatmap(view.weights).numpy()
        steps.append(Step(picture, box, heatmap, view.low, view.top, query, label, duration, view.signed))
        progress((index + 1) / len(frames))
    return _draw_film(_on_one_scale(steps) if selection.scale == "shared" else steps, selection, hold=False)


def encode(film: Film, kind: Kind) -> bytes:
    """Encode a film as a looping GIF, or as an MP4 (H.264) that browsers play."""
    if kind == "MP4":
        return mp4(film.pictures, film.durations)
    few = [picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for picture in film.pictures]
    durations, out = list(film.durations), io.BytesIO()
    few[0].save(out, "GIF", save_all=True, append_images=few[1:], duration=durations, loop=0, disposal=1)
    return out.getvalue()


def _on_one_scale(steps: list[Step]) -> list[Step]:
    """Give all steps a common scale."""
    low, top = min(step.low for step in steps), max(step.top for step in steps)
    return [step._replace(low=low, top=top) for step in steps]


def _draw_film(steps: Sequence[Step], selection: Selection, hold: bool = True) -> Film:
    """Draw all steps with the selection's colours, opacity, cover and smoothness.

    Args:
        hold: show the last picture longer.
    """
    durations = [step.duration for step in steps]
    if hold:
        durations[-1] = LAST_MILLISECONDS
    return Film(tuple(_draw_step(step, selection) for step in steps), tuple(durations))


def _draw_step(step: Step, selection: Selection) -> Image.Image:
    """Draw one picture with its map, query patch and label."""
    picture = paint_heatmap(step.picture, step.heatmap, step.box, selection, step.low, step.top, step.signed)
    sheet = Image.new("RGB", (picture.width, picture.height + _LABEL), "white")
    sheet.paste(picture)
    draw = ImageDraw.Draw(sheet)
    draw.text((6, picture.height + _LABEL // 2), step.label, "black", ImageFont.load_default(14), anchor="lm")
    if step.query:
        (rows, cols), (row, col) = step.heatmap.shape, step.query
        left, top, right, bottom = step.box
        width, height = (right - left) / cols, (bottom - top) / rows
        edges = (left + col * width, top + row * height, left + (col + 1) * width - 1, top + (row + 1) * height - 1)
        draw.rectangle(edges, outline="black", width=3)
        draw.rectangle((edges[0] + 1, edges[1] + 1, edges[2] - 1, edges[3] - 1), outline="white")
    return sheet


def _query_position(selection: Selection, split: int, grid: tuple[int, int]) -> tuple[int, int] | None:
    patch = selection.token - split
    return divmod(patch, grid[1]) if patch >= 0 else None


def _fit_picture(picture: Image.Image, box: Box) -> tuple[Image.Image, Box]:
    """Scale a picture to about `PICTURE_SIDE`; return it with the scaled box [px]."""
    picture, box = window(picture, box)
    return scaled(picture, box, PICTURE_SIDE / max(picture.size))
