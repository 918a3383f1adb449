"""What a run will cost and whether it can learn, before it is started: shown from its own pictures and steps."""

import html
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import streamlit as st

from pages.parts import dataset
from vit.errors import UserError
from vit.text import plain

CURVES = ["#3b929a", "#c9803a"]  # readable on a light and on a dark page
SHOWN = 8  # pictures in the preview
FACTS_STYLE = """<style>
.fact { display: flex; justify-content: space-between; font-size: 0.875rem; line-height: 1.7; }
.fact span { opacity: 0.7; }
.fact b { font-weight: 500; font-variant-numeric: tabular-nums; }
</style>"""


def memory(count: float) -> str:
    """Bytes for people.

    >>> memory(3 << 30), memory(5_000_000)
    ('3.2 GB', '5 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def duration(seconds: float) -> str:
    """Seconds for people.

    >>> duration(0.31), duration(75), duration(5400), duration(200_000)
    ('0.3 s', '1 min 15 s', '1 h 30 min', '2 d 7 h')
    """
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, word, smaller, name in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // smaller
            return f"{whole // size} {word} {rest} {name}" if rest else f"{whole // size} {word}"
    return f"{whole} s"


@st.cache_data(show_spinner=False, max_entries=64)
def count_parameters(sizes: Any) -> int:
    """Numbers that a model of these sizes learns, without making one."""
    import torch

    from vit.model import VisionTransformer

    with torch.device("meta"):
        built = VisionTransformer(sizes)
    return sum(parameter.numel() for parameter in built.parameters())


@st.cache_resource(show_spinner=False, max_entries=8)
def few_pictures(subject: tuple[Any, ...], _config: Any) -> Any:
    """A few training pictures of a dataset at an input size, opened once per subject."""
    from vit.trial import sample

    return sample(_config, SHOWN)


def show_preview(config: Any) -> Any:
    """What augmentation makes of a few pictures; returns them, or None where there are none yet."""
    from vit.start import model_config
    from vit.trial import preview

    if not dataset.is_here(config.data, config.data_root):
        st.caption("A preview of the pictures comes with the download.")
        return None
    try:
        with st.spinner("Opening pictures…", show_time=False):
            model = model_config(config, num_classes=1)
            version = dataset.stamp(config.data)
            shape = (*model.image_size, model.channels)
            pictures = few_pictures((config.data, config.data_root, version, shape, config.seed, config.limit), config)
    except UserError as error:
        st.error(plain(str(error)))
        return None
    sheet = preview(config, pictures.images)
    st.image(sheet, width="stretch", alt="Training pictures as they are and after augmentation")
    st.caption("Above as they are, below as the model sees them.")
    return pictures


def show_costs(config: Any, devices: Sequence[str], pictures: Any) -> Any:
    """Size of the model, and memory and time once a few steps have been tried; returns the trial or None."""
    from vit import trial
    from vit.start import model_config

    state = st.session_state
    subject = (config.model_copy(update={"seed": 0, "patience": None}).model_dump_json(), tuple(devices))
    facts, tried = st.empty(), state.get("trial")
    with st.container(horizontal=True):
        wants_trial = st.button("Try a few steps", help="Times some real steps on the device.", disabled=not devices)
        wants_overfit = st.button(
            "Overfit one batch", help="A sound model learns a few pictures by heart in seconds.", disabled=not devices
        )
    if wants_trial:
        try:
            with st.spinner("Trying a few steps…"):
                state.trial = tried = (subject, trial.time_steps(config, devices))
        except UserError as error:
            st.error(plain(str(error)))
    measured = tried[1] if tried and tried[0] == subject else None

    rows = {}
    with suppress(UserError):  # said by the preview
        sizes = model_config(config, len(pictures.classes) if pictures else 10)
        params = count_parameters(sizes)
        rows["Parameters"] = f"{params / 1e6:.2f} M" if params >= 1e6 else f"{params:,}"
        rows["Tokens per picture"] = f"{sizes.tokens:,}"
    if pictures:
        steps = max(pictures.train_pictures // config.batch_size, 1)
        rows["Epochs × steps"] = f"{config.epochs:,} × {steps:,}"
    if measured:
        rows["Pictures per second"] = f"{measured.pictures_per_second:,.0f}"
        rows["Memory"] = memory(measured.memory) + (" on each" if len(devices) > 1 else "")
        rows["An epoch"] = duration(measured.seconds_per_epoch)
        rows["All epochs"] = f"about {duration(measured.seconds_per_epoch * config.epochs)}"
    else:
        rows["Memory"] = rows["An epoch"] = "not tried"
    facts.html(
        FACTS_STYLE + "".join(f"<div class=fact><span>{k}</span><b>{html.escape(v)}</b></div>" for k, v in rows.items())
    )
    show_overfit(config, devices, subject, wants_overfit)
    return measured


def show_overfit(config: Any, devices: Sequence[str], subject: Any, wanted: bool) -> None:
    """The curve of learning one batch by heart, drawn while it is learned."""
    from vit import trial

    state = st.session_state
    chart, words = st.empty(), st.empty()
    points: list[Any] = []
    if wanted:
        state.overfit = (subject, points)
        try:
            with words, st.spinner("Learning one batch by heart…"):
                for point in trial.overfit(config, devices[0]):
                    points.append(point)
                    if len(points) % 4 == 1:
                        draw_overfit(chart, points)
        except UserError as error:
            st.error(plain(str(error)))
    elif state.get("overfit", (None,))[0] == subject:
        points = state.overfit[1]
    if not points:
        return
    draw_overfit(chart, points)
    last = points[-1]
    said = (
        f"{last.accuracy:.0%} of the batch right after {last.step} steps, loss {points[0].loss:.2f} → {last.loss:.2f}."
    )
    if last.accuracy < 0.9:
        said += " That is little: check the learning rate and the labels."
    words.caption(said)


def draw_overfit(chart: Any, points: Sequence[Any]) -> None:
    """Loss as a share of its first value, and accuracy."""
    chart.line_chart(
        {
            "step": [point.step for point in points],
            "loss": [point.loss / (points[0].loss or 1) for point in points],
            "accuracy": [point.accuracy for point in points],
        },
        x="step",
        y=["accuracy", "loss"],
        x_label="",
        y_label="",
        color=CURVES,
        height=220,
        alt="Loss relative to its start, and accuracy, while one batch is learned",
    )
