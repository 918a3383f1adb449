"""Attention during training: a few pictures of a run, epoch by epoch, in the viewer."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import streamlit as st
from PIL import Image

from pages.components import viewer
from pages.shared import bars, download_buttons
from pages.shared.escape import plain, with_code
from pages.training.run_views import curves
from vit.errors import UserError
from vit.exports import animation
from vit.images.encode import data_url, encode_image
from vit.training.runs.registry import Run
from vit.view import attention_snapshots
from vit.view.attention_snapshots import Snapshot, read_payload, read_snapshots
from vit.view.chart_colours import GREY, STRONG
from vit.view.payload import read_header
from vit.view.selection import Selection

THUMBNAIL = 72  # width [px]


@st.cache_data(show_spinner=False, max_entries=5000)
def _read(folder: str, epoch: int, stamp: int) -> list[Snapshot]:
    return read_snapshots(Path(folder), epoch)


@st.cache_resource(show_spinner=False, max_entries=64)
def _payload(folder: str, epoch: int, picture: int, stamp: int) -> bytes:
    return read_payload(Path(folder), epoch, picture)


@st.fragment
def show(run: Run) -> None:
    """Draw a slider over epochs, with prediction, trends and attention of one picture."""
    epochs = attention_snapshots.list_epochs(folder := run.folder / "probes")
    if not epochs:
        st.info("Attention is kept after every epoch. The first one has not ended yet.")
        return
    history = {}
    for epoch in epochs:
        try:
            history[epoch] = _read(str(folder), epoch, attention_snapshots.stamp(folder, epoch))
        except UserError:
            continue  # deleted to save space, or damaged; show the other epochs
    if not history:
        st.error("The pictures cannot be read.")
        return
    shape = [(snapshot.label, len(snapshot.entropy)) for snapshot in history[max(history)]]
    history = {
        epoch: snapshots
        for epoch, snapshots in history.items()
        if [(p.label, len(p.entropy)) for p in snapshots] == shape
    }
    epochs = list(history)

    left, right = st.columns([2, 3], gap="large")
    with left:
        picture = _pick_picture(folder, epochs[-1], history[epochs[-1]])
        newest = epochs[-1]
        if st.session_state.get("epoch") not in epochs:
            st.session_state.epoch = newest
        epoch = newest
        if len(epochs) > 1:
            epoch = st.select_slider("Epoch", epochs, key="epoch", help="The arrow keys step through the epochs.")
        _predictions(history[epoch][picture])
    with right:
        _trends(history, picture, epoch)
    try:
        payload = viewer.feed(
            "epochs feeder", _payload(str(folder), epoch, picture, attention_snapshots.stamp(folder, epoch))
        )
    except UserError as error:
        st.error(with_code(str(error)))
        return
    selection = viewer.show("epochs viewer", payload, Selection())
    if len(epochs) > 1:
        with st.container(horizontal=True):
            download_buttons.films(
                "Epochs",
                lambda: _animated(folder, picture, selection),
                f"{run.name}-epochs",
                help="This picture and token, in the selected block and head, from the first epoch to the last",
            )


def _animated(folder: Path, picture: int, selection: Selection) -> animation.Film:
    return animation.over_epochs(folder, picture, selection)


def _pick_picture(folder: Path, epoch: int, snapshots: list[Snapshot]) -> int:
    """Draw thumbnails of the pictures, and return the index of the selected one."""
    if len(snapshots) < 2:
        return 0
    labels = []
    for i, snapshot in enumerate(snapshots):
        source = _thumbnail(str(folder), epoch, i)
        labels.append(
            f"![{plain(snapshot.label)}]({source}) {plain(snapshot.label)}" if source else plain(snapshot.label)
        )
    chosen = st.pills(
        "Picture",
        range(len(snapshots)),
        format_func=lambda i: labels[i],
        default=0,
        key="epochs picture",
        required=True,
        wrap=True,
    )
    return chosen if chosen is not None else 0


@st.cache_data(show_spinner=False, max_entries=200)
def _thumbnail(folder: str, epoch: int, picture: int) -> str:
    """Return a picture as a data URL, "" if it cannot be read."""
    try:
        payload = read_payload(Path(folder), epoch, picture)
        offset, length = read_header(payload)["sections"]["picture"]
        image = Image.open(io.BytesIO(payload[offset : offset + length]), formats=("PNG", "JPEG"))
        small = image.convert("RGB").resize((THUMBNAIL, THUMBNAIL * image.height // image.width), 0)
    except (UserError, OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        return ""
    return data_url(encode_image(small, "PNG"), "PNG")


def _predictions(snapshot: Snapshot) -> None:
    """Draw the most probable classes as bars, with the true class highlighted."""
    every = [bars.Bar(label, probability, label == snapshot.label) for label, probability in snapshot.predictions]
    if every:  # a model without classes has none
        bars.show(every, "Predictions: " + ", ".join(f"{one.label} {one.share:.0%}" for one in every))


def _trends(history: dict[int, list[Snapshot]], picture: int, epoch: int) -> None:
    """Plot the probability of the true class and the entropy of each block's attention over epochs."""
    snapshots = {e: epoch_snapshots[picture] for e, epoch_snapshots in history.items()}
    mark = {"silent": True, "symbol": "none", "label": {"show": False}, "lineStyle": {"color": GREY}}
    mark |= {"data": [{"xAxis": epoch}]}
    points = [(e, 100 * p.probability) for e, p in snapshots.items() if p.probability is not None]
    if points:
        sure = curves.line("true class", points, STRONG, dots=True)
        option = curves.chart(
            "Probability of the true class", [sure | {"markLine": mark}], percent=True, low=True, whole=True
        )
        option["yAxis"] |= {"min": 0, "max": 100, "scale": False}
        st.echarts_chart(
            option, key="epochs probability", height=150, alt="Probability of the true class over the epochs"
        )
    blocks = len(next(iter(snapshots.values())).entropy)
    lines: list[dict[str, Any]] = []
    for block in range(blocks):
        points = [(e, sum(p.entropy[block]) / len(p.entropy[block])) for e, p in snapshots.items()]
        shade = block / max(blocks - 1, 1)
        trace = curves.line(f"Block {block + 1}", points, _mixed(shade), dots=True)
        lines.append(trace | ({"markLine": mark} if block == 0 else {}))
    option = curves.chart("Spread of attention", lines, low=True, whole=True)
    st.echarts_chart(
        option, key="epochs entropy", height=190, alt="Entropy of attention per block over the epochs, 1 is uniform"
    )
    st.caption("Spread is 0 if each token attends to a single token, 1 if attention is uniform.")


def _mixed(share: float) -> str:
    """Interpolate between the colours of the first and the last block."""
    first, last = (192, 127, 60), (59, 110, 154)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(first, last, strict=True))
