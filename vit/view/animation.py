"""Maps that move: over the blocks of a model, the epochs of a run, the frames of an animation.

What draws them gives a `Film`; `encode` makes a GIF or an MP4 of it.
"""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import InvalidRun, UserError
from vit.explain.cost import Size
from vit.explain.heatmap import ask
from vit.explain.input_sizes import resized
from vit.explain.methods import METHODS
from vit.explain.record import Precision, record
from vit.images.decode import count_frames, decode_frames
from vit.images.geometry import Box
from vit.images.mp4 import mp4
from vit.images.video import evenly
from vit.view.attention_snapshots import list_epochs, read_payload, read_snapshots
from vit.view.captions import where
from vit.view.explanation import Explanation
from vit.view.export import MapView, painted, shared_top
from vit.view.overlay import Heatmap, scaled, window
from vit.view.payload import unpack, weights_of
from vit.view.selection import Selection

MAX_STEPS = 60  # pictures in one file, evenly chosen from more
PICTURE_SIDE = 480  # longer side of a picture [px]
BLOCK, EPOCH, FRAME = 700, 300, 100  # how long each is shown [ms]; a frame as long as its file says, if it does
LAST_MILLISECONDS = 1500  # the last one, before it begins again [ms]

Kind = Literal["GIF", "MP4"]

_LABEL = 26  # height of the line of text [px]


class Film(NamedTuple):
    """Pictures one after the other.

    Attributes:
        pictures: RGB, of one size.
        durations: how long each is shown [ms].
    """

    pictures: tuple[Image.Image, ...]
    durations: tuple[int, ...]


class Step(NamedTuple):
    """One picture of an animation.

    Attributes:
        picture: RGB.
        box: the part of it that the map covers [px].
        heatmap: (rows, cols).
        low, top: the values of the first and the last colour.
        query: (row, col) of the patch that is asked about, if it is one.
        label: what stands below.
        duration: [ms].
    """

    picture: Image.Image
    box: Box
    heatmap: Heatmap
    low: float
    top: float
    query: tuple[int, int] | None
    label: str
    duration: int


def over_blocks(explanation: Explanation, selection: Selection) -> Film:
    """The attention of the selected token and head, from the first block to the last.

    On the shared scale colours mean what they mean in the viewer.
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
        steps.append(Step(picture, box, heatmap, 0.0, top, query, where(block, head), BLOCK))
    return _draw_film(steps, selection)


def over_epochs(folder: Path, picture: int, selection: Selection) -> Film:
    """A picture of a run, from its first kept epoch to its last; see `vit.view.attention_snapshots`.

    Attention, rollout and the pooling query; other views are not kept and show attention. On the shared scale one
    colour means one weight in all epochs.

    Raises:
        InvalidRun: no epoch can be read.
    """
    steps: list[Step] = []
    for epoch in evenly(list_epochs(folder), MAX_STEPS):
        try:
            payload = read_payload(folder, epoch, picture)
            snapshot = read_snapshots(folder, epoch)[picture]
        except (InvalidRun, IndexError):
            continue  # thinned out meanwhile, or damaged
        header, sections = unpack(payload)
        split, grid = len(header["prefix"]), (header["grid"][0], header["grid"][1])
        heatmap = weights_of(payload, selection)[split:].reshape(grid)
        query = _query_position(selection, split, grid) if selection.view != "pool" or "pool" not in sections else None
        counted = heatmap.copy()
        if query and selection.view == "rollout":
            counted[query] = 0  # what a token keeps of itself would leave the others dark
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
    progress: Callable[[float], object] = lambda share: None,
) -> Film:
    """An animation or a video under the selected map, each frame through the model on its own.

    On the shared scale one colour means one weight in all frames: it ends at the strongest patch of any.

    Args:
        data: the bytes of a GIF, PNG, WebP or AVIF file, or of a video.
        size: (height, width) of the model's input [px].
        method: its name in `vit.explain.methods.METHODS`, for the map that it makes in float32; it is asked about the
            selected token where that is pinned. None for what is selected.
        target: index of the class that the method explains, if it is of one.
        progress: told how much is done, 0 to 1.

    Raises:
        InvalidImage: the bytes are neither picture nor video, or a frame is damaged.
        UserError: it is a still picture.
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
            subject = ask(checkpoint, pixels, method, target)
            attention, name = subject.record, "" if target is None else checkpoint.labels[target]
            token = selection.token if asks else None
            view = MapView.of_method(subject, method, name, token, selection.direction, selection)
            if target is not None:
                label += f": {name} {float(checkpoint.model.probabilities(attention.logits[0])[target]):.0%}"
        picture, box = _fit_picture(frame.picture, preprocess.geometry(frame.picture).box)
        following = frames[index + 1] if index + 1 < len(frames) else frames[index] + 1
        duration = (frame.duration or FRAME) * (following - frames[index])
        asks_token = view.facts.get("query") is not None
        query = _query_position(selection, len(attention.prefix), attention.grid) if asks_token else None
        heatmap = attention.heatmap(view.weights).numpy()
        steps.append(Step(picture, box, heatmap, view.low, view.top, query, label, duration))
        progress((index + 1) / len(frames))
    return _draw_film(_on_one_scale(steps) if selection.scale == "shared" else steps, selection, hold=False)


def encode(film: Film, kind: Kind) -> bytes:
    """Make a file of pictures and their durations: a GIF, which repeats, or an MP4 (H.264), as browsers play it."""
    if kind == "MP4":
        return mp4(film.pictures, film.durations)
    few = [picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE) for picture in film.pictures]
    durations, out = list(film.durations), io.BytesIO()
    few[0].save(out, "GIF", save_all=True, append_images=few[1:], duration=durations, loop=0, disposal=1)
    return out.getvalue()


def _on_one_scale(steps: list[Step]) -> list[Step]:
    """The same steps on one scale."""
    low, top = min(step.low for step in steps), max(step.top for step in steps)
    return [step._replace(low=low, top=top) for step in steps]


def _draw_film(steps: Sequence[Step], selection: Selection, hold: bool = True) -> Film:
    """Draw steps of one size, with the selection's colours, opacity, cover and smoothness.

    Args:
        hold: show the last one longer.
    """
    durations = [step.duration for step in steps]
    if hold:
        durations[-1] = LAST_MILLISECONDS
    return Film(tuple(_draw_step(step, selection) for step in steps), tuple(durations))


def _draw_step(step: Step, selection: Selection) -> Image.Image:
    """One picture with its label."""
    picture = painted(step.picture, step.heatmap, step.box, selection, step.low, step.top)
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
    """The picture at about `PICTURE_SIDE`, and where the model's part lies in it [px]."""
    picture, box = window(picture, box)
    return scaled(picture, box, PICTURE_SIDE / max(picture.size))
