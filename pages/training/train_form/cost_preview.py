"""Preview of augmented pictures, of memory and time from a dry run, and of overfitting one batch."""

import io
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

import streamlit as st
from PIL import Image

from pages.links import session
from pages.shared import bars, datasets
from pages.shared.escape import with_code
from pages.training.state import Train, TriedRecipe
from vit.devices import memory as memory_of_this_machine
from vit.errors import UserError
from vit.images.encode import encode_image
from vit.model.config import ViTConfig
from vit.training.loop import augmentation_preview, dry_run, fine_tuning, picture_sample
from vit.training.loop import memory as memory_of_training
from vit.training.loop.config import TrainConfig
from vit.untrusted import limit_work
from vit.view.captions import format_duration
from vit.view.chart_colours import SERIES

if TYPE_CHECKING:
    from torch import Tensor

    from pages.streamlit_internals.types import DeltaGenerator


SHOWN = 8  # pictures in the preview
SAMPLE_SECONDS = 600.0  # processor time for opening a dataset [s]; a million files take a tenth of it
LEARNING = "Overfitting one batch…"


def memory(count: float) -> str:
    """Format a number of bytes.

    >>> memory(3 << 30), memory(5_000_000)
    ('3.2 GB', '5 MB')
    """
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


@st.cache_data(show_spinner=False, max_entries=64)
def count_parameters(sizes: ViTConfig) -> int:
    """Return the number of parameters of a config, without building the model."""
    return memory_of_training.parameters_of(sizes)


@st.cache_data(show_spinner=False, max_entries=64)
def too_large(recipe: str, classes: int, batch: int, free: int, _config: TrainConfig) -> str:
    """Cached `vit.training.loop.dry_run.too_large`; `free` is rounded to 0.1 GB, so that the cache is effective."""
    return dry_run.too_large(_config, classes, batch, free)


def problem(config: TrainConfig, devices: Sequence[str], pictures: "picture_sample.Sample | None") -> str:
    """Return why a run does not fit into memory, "" if it does."""
    if devices[0] != "cpu":
        return ""
    free = memory_of_this_machine()[1]
    batch = min(config.batch_size, pictures.train_pictures) if pictures else config.batch_size
    recipe = config.model_dump_json(exclude={"seed", "epochs", "lr", "data", "data_root"})
    with suppress(UserError):  # reported by the preview
        return too_large(recipe, len(pictures.classes) if pictures else 10, batch, free // 10**8 * 10**8, config)
    return ""


@st.cache_resource(show_spinner=False, max_entries=8)
def few_pictures(preprocessing: tuple[Any, ...], _config: TrainConfig) -> "picture_sample.Sample":
    """Read a few training pictures of a dataset at an input size.

    Args:
        preprocessing: cache key of dataset and preprocessing.
    """
    with limit_work(_config.data.rpartition("/")[2], SAMPLE_SECONDS, session.end_if_stopped):
        return picture_sample.sample(_config, SHOWN)


@st.cache_resource(show_spinner=False, max_entries=8)
def augmented(preprocessing: tuple[Any, ...], augmentation: str, _config: TrainConfig, _images: "Tensor") -> bytes:
    """Return a PNG file of pictures with their augmented versions. Cached, as encoding takes 0.3 s at 224 px.

    Args:
        preprocessing: cache key of the pictures.
        augmentation: cache key of all augmentation settings.
    """
    return encode_image(augmentation_preview.preview(_config, _images))


def show_preview(config: TrainConfig) -> "picture_sample.Sample | None":
    """Draw a few pictures before and after augmentation, and return them; None if there are none yet."""
    if not datasets.is_here(config.data, config.data_root):
        st.caption("A preview of the pictures comes with the download.")
        return None
    try:
        with st.spinner("Opening pictures…", show_time=False):
            model = fine_tuning.model_config(config, num_classes=1)
            version = datasets.stamp(config.data)
            shape = (*model.image_size, model.channels)
            preprocessing = config.data, config.data_root, version, shape, config.train_scale, config.seed, config.limit
            pictures = few_pictures(preprocessing, config)
    except UserError as error:
        st.error(with_code(str(error)))
        return None
    sheet = augmented(preprocessing, str(config.augmentation()), config, pictures.images)
    width, height = Image.open(io.BytesIO(sheet)).size
    with st.container(key="preview"):  # reserve the height, so that buttons below do not move away from the pointer
        st.html(f"<style>.st-key-preview img {{ aspect-ratio: {width} / {height}; }}</style>")
        st.image(sheet, width="stretch", alt="Training pictures as they are and after augmentation")
    st.caption("Above as they are, below as the model sees them.")
    return pictures


def show_costs(
    config: TrainConfig, devices: Sequence[str], pictures: "picture_sample.Sample | None"
) -> "dry_run.DryRun | None":
    """Show the size of the model, and memory and time after a dry run; return its result or None.

    Args:
        devices: devices of this machine; empty if the run computes on a cluster.
    """
    state = session.of(Train)
    recipe = recipe_key(config, devices)
    facts, tried = st.empty(), state.dry_run
    wants_dry_run = wants_overfit = False
    if devices:
        with st.container(horizontal=True):
            wants_dry_run = st.button("Try a few steps", help="Times some real steps on the device.")
            wants_overfit = st.button("Overfit one batch", help="A correct setup memorises a few pictures in seconds.")
    placeholder = st.empty()
    if state.cancelled:
        placeholder.caption("Cancelled.")
    state.cancelled = False
    if wants_dry_run and (result := try_steps(placeholder, config, devices, pictures)):
        state.dry_run = tried = (recipe, result)
    measured = tried[1] if tried and tried[0] == recipe else None

    rows = {}
    with suppress(UserError):  # reported by the preview
        sizes = fine_tuning.model_config(config, len(pictures.classes) if pictures else 10)
        rows = {"Parameters": numbers(count_parameters(sizes)), "Tokens per picture": f"{sizes.tokens:,}"}
    if pictures:
        steps = max(pictures.train_pictures // config.batch_size, 1)
        rows["Epochs × steps"] = f"{config.epochs:,} × {steps:,}"
    if measured:
        rows["Pictures per second"] = f"about {float(f'{measured.pictures_per_second:.2g}'):,g}"
        rows["Memory"] = f"about {memory(measured.memory)}" + ("" if len(devices) == 1 else " on each")
        rows["An epoch"] = format_duration(measured.seconds_per_epoch)
        rows["All epochs"] = format_duration(measured.seconds_per_epoch * config.epochs)
    elif devices:
        rows["Memory"] = rows["An epoch"] = "not tried"
    facts.html(bars.facts(rows))
    if measured:
        show_doubts(config, measured)
    if devices:
        show_overfit(config, devices, recipe, wants_overfit)
    return measured


def recipe_key(config: TrainConfig, devices: Sequence[str]) -> TriedRecipe:
    """Return the key of a dry run: all settings that influence its cost."""
    return config.model_copy(update={"seed": 0, "patience": None}).model_dump_json(), tuple(devices)


def numbers(count: int) -> str:
    """Format a number of parameters.

    >>> numbers(843_210), numbers(86_000_000), numbers(9_876)
    ('0.84 M', '86.00 M', '9,876')
    """
    return f"{count / 1e6:.2f} M" if count >= 1e5 else f"{count:,}"


def try_steps(
    container: "DeltaGenerator", config: TrainConfig, devices: Sequence[str], pictures: "picture_sample.Sample | None"
) -> "dry_run.DryRun | None":
    """Run a dry run with a progress bar and a Cancel button; return None if it fails or is cancelled."""

    def cancel() -> None:
        session.of(Train).cancelled = True

    with container.container(horizontal=True, vertical_alignment="center"):
        bar = st.empty()
        st.button("Cancel", key="cancel_trial", on_click=cancel)  # any click stops this run of the page
    try:
        with closing(dry_run.try_steps(config, devices, pictures)) as updates:
            for update in updates:
                if isinstance(update, dry_run.DryRun):
                    container.empty()
                    return update
                bar.progress(update / dry_run.STEPS, f"Trying a few steps: {update} of {dry_run.STEPS}…")
    except UserError as error:
        container.error(with_code(str(error)))
    return None


def show_doubts(config: TrainConfig, measured: "dry_run.DryRun") -> None:
    """Show how the steps differ from the run's, and warn of a run that takes too long."""
    notes = []
    if config.compile:
        notes.append("Timed without compiling, which takes longer than a trial.")
    if measured.parts > 1:
        notes.append(f"Each batch is computed in {measured.parts} parts to save memory.")
    if measured.streamed:
        notes.append("The pictures do not fit into memory: they are decoded anew in every epoch.")
    if notes:
        st.caption(" ".join(notes))
    total = measured.seconds_per_epoch * config.epochs
    if total > dry_run.TOO_LONG_SECONDS:
        where = "CPU" if measured.device == "cpu" else "device"
        st.warning(f"On this {where} all epochs take {format_duration(total)}.")


def show_overfit(config: TrainConfig, devices: Sequence[str], recipe: TriedRecipe, start: bool) -> None:
    """Draw the curve of overfitting one batch, live if `start` is set."""
    state = session.of(Train)
    chart, status = st.empty(), st.empty()
    points: list[dry_run.Point] = []
    if start:
        state.overfit = (recipe, points)
        try:
            bar = status.progress(0.0, LEARNING)
            with closing(dry_run.overfit(config, devices[0])) as updates:
                for point in updates:
                    bar.progress(len(points) / (len(points) + 20), LEARNING)
                    if point is not None:
                        points.append(point)
                        if len(points) % 4 == 1:
                            draw_overfit(chart, points)
            status.empty()
        except UserError as error:
            status.error(with_code(str(error)))
    elif state.overfit and state.overfit[0] == recipe:
        points = state.overfit[1]
    if not points:
        return
    draw_overfit(chart, points)
    last = points[-1]
    sentence = (
        f"{last.accuracy:.0%} of the batch right after {last.step} steps, loss {points[0].loss:.2f} → {last.loss:.2f}."
    )
    if last.accuracy < 0.9:
        sentence += " That is little: check the learning rate and the labels."
    status.caption(sentence)


def draw_overfit(chart: "DeltaGenerator", points: "Sequence[dry_run.Point]") -> None:
    """Draw accuracy, and the loss relative to its first value."""
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
        color=[*SERIES[:2]],
        height=220,
        alt="Loss relative to its start, and accuracy, while one batch is learned",
    )
