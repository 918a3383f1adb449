"""Results of a run: its best checkpoint, and an evaluation with confusion matrix and mistakes."""

import hashlib
import html
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from PIL import Image

from pages.links import link_controls, navigation
from pages.links.page_links import ExploreLink, best_of_run
from pages.server import access
from pages.shared import datasets, pushing, zip_downloads
from pages.shared.escape import visible, with_code
from pages.training.run_views import run_actions
from vit.confidence import figure, share
from vit.errors import UserError
from vit.exports import tables
from vit.images.encode import data_url, encode_image
from vit.training.loop import run_folder
from vit.training.runs import control, error_report, registry
from vit.view import first_view

_TILE = 130  # width of a wrong prediction [px]
NAMED_CLASSES = 30  # label the confusion matrix up to this number of classes


def show(run: registry.Run) -> None:
    """Draw the best checkpoint and its evaluation."""
    if run.best is None:
        st.info("There is no checkpoint yet: the first one is written after the first epoch.")
        return
    _checkpoint(run)
    if run.loop and not run.config.get("data"):
        st.caption("Its test pictures are where it was trained, so it is not evaluated here.")
        return
    st.markdown("**Evaluation**")
    running = error_report.state(run.folder).status == "running"

    @st.fragment(run_every=1 if running else None)
    def evaluation() -> None:
        state = error_report.state(run.folder)
        if running != (state.status == "running"):
            st.rerun()
        if state.status == "running":
            st.progress(state.share or 0.0, "Classifying the test pictures…")
            return
        if state.status == "failed":
            st.error(with_code(state.reason))
        if state.status == "done":
            _show_report(run)
        elif not access.may_train():
            st.caption("This run has not been evaluated.")
        _button(run, "Evaluate again" if state.status in ("done", "failed") else "Evaluate on the test pictures")

    evaluation()


def _button(run: registry.Run, label: str) -> None:
    def start() -> None:
        data, root = str(run.config.get("data", "")), str(run.config.get("data_root", "data"))
        run_actions.act("The evaluation has started.", error_report.start, run.folder, data, root)

    if access.may_train() and st.button(
        label, key="evaluate", on_click=start, help="Runs in a separate process; you may leave the page."
    ):
        st.rerun()  # of the whole page, so that the fragment starts to poll


def _checkpoint(run: registry.Run) -> None:
    """Draw the buttons that download, copy or push the best checkpoint."""

    def keep() -> None:
        name = st.session_state[f"keep name {run.id}"]
        run_actions.act(f"Kept as checkpoint {name}.", control.keep_checkpoint, run.id, name)

    with st.container(horizontal=True, vertical_alignment="center"):
        zip_downloads.link(
            "Download checkpoint",
            best_of_run(run.id),
            "Weights, config, preprocessing and card, as transformers and this app open them.",
        )
        if access.may_train():
            with st.popover("Keep as checkpoint"):
                tooltip = "Lower-case letters, digits, dots, dashes, underscores."
                st.text_input("Name", run_folder.slug(run.name) or "model", key=f"keep name {run.id}", help=tooltip)
                st.button("Copy to the checkpoints", key="keep", on_click=keep, type="primary")
        if run.best is not None and run.status == "finished":
            pushing.button(run.best, run_folder.slug(run.name) or "model")


@st.cache_resource(show_spinner=False, max_entries=8)
def _report(file: str, stamp: int) -> error_report.Report:
    return error_report.read(Path(file))


@st.cache_data(show_spinner=False, max_entries=8)
def _hash(file: str, stamp: int) -> str:
    """Return the hash of a weights file, as `Checkpoint.hash`."""
    with open(file, "rb") as weights:
        return hashlib.file_digest(weights, "sha256").hexdigest()[:16]


def _show_report(run: registry.Run) -> None:
    file = run.folder / error_report.FILE
    try:
        report = _report(str(file), file.stat().st_mtime_ns)
    except (UserError, OSError) as error:
        st.error(with_code(str(error)))
        return
    total = int(report.confusion.sum())
    balanced = report.per_class[report.confusion.sum(1) > 0].mean()
    said = figure(report.accuracy, total, "test pictures right")
    st.caption(f"{said}, with 95% confidence; {share(balanced, total)} in the mean over the classes.")
    weights = run.folder / "checkpoints" / "best" / "model.safetensors"
    if weights.exists() and _hash(str(weights), weights.stat().st_mtime_ns) != report.checkpoint:
        st.caption("These are figures of earlier weights: the run has found better ones since.")
    left, right = st.columns([3, 2], gap="large")
    with left:
        _confusion(report)
    with right:
        _per_class(report)
    if datasets.may_see(str(run.config.get("data", ""))):
        _mistakes(run, report)


def _confusion(report: error_report.Report) -> None:
    """Draw the confusion matrix: rows are true classes, columns predicted ones, normalised by row."""
    counts = report.confusion
    present = np.flatnonzero(counts.sum(1) + counts.sum(0))  # classes that occur
    counts = counts[np.ix_(present, present)]
    names = [report.classes[i] for i in present]
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    few = len(names) <= NAMED_CLASSES
    figure = go.Figure(
        go.Heatmap(
            z=100 * shares,
            x=[html.escape(name) for name in names] if few else None,
            y=[html.escape(name) for name in names] if few else None,
            text=counts,
            colorscale="Viridis",
            zmin=0,
            zmax=100,
            texttemplate="%{text}" if len(names) <= 12 else None,
            hovertemplate="%{y} taken for %{x}: %{text} pictures, %{z:.0f}%<extra></extra>",
            colorbar={"ticksuffix": "%", "thickness": 10},
        )
    )
    side = min(520, max(260, 34 * len(names) + 90))
    figure.update_layout(height=side, margin={"l": 0, "r": 0, "t": 4, "b": 0})
    figure.update_yaxes(autorange="reversed", title="true", fixedrange=True)
    figure.update_xaxes(title="predicted", fixedrange=True)
    st.plotly_chart(figure, config={"displayModeBar": False}, key="confusion", alt="Confusion matrix")


def _per_class(report: error_report.Report) -> None:
    """Draw a table with the accuracy of each class, lowest first."""
    rows: list[dict[str, Any]] = []
    for name, right, count in zip(report.classes, report.per_class, report.confusion.sum(1), strict=True):
        if count:
            row = {"Class": name, "Accuracy": 100 * float(right), "Pictures": int(count)}
            rows.append(row | {"Right": figure(float(right), int(count))})
    st.dataframe(
        pd.DataFrame(rows).sort_values("Accuracy"),
        hide_index=True,
        height=min(420, 38 + 35 * len(rows)),
        column_config={"Accuracy": st.column_config.ProgressColumn(format="%.0f%%", min_value=0, max_value=100)},
        key="per class",
        alt="Accuracy of each class",
    )


def _mistakes(run: registry.Run, report: error_report.Report) -> None:
    """Draw the wrong predictions with the highest probability, optionally with attention, and ask why."""
    if not len(report.indices):
        return
    st.markdown("**Most confidently wrong**")
    looked = st.toggle("Attention", True, key="looked", help="The last block's attention, mean of its heads.")
    pictures = report.overlays if looked else report.pictures
    labels = link_controls.distinct(report.classes)
    st.html(_STYLE)
    with st.container(horizontal=True):
        for i in range(len(report.pictures)):
            true, predicted = report.classes[report.true[i]], report.classes[report.predicted[i]]
            caption, alt = f"{predicted} {report.probability[i]:.0%}", f"{true}, taken for {predicted}"
            name = html.escape(visible(report.names[i] if report.names else ""))
            with st.container(width=_TILE, gap=None):
                st.html(
                    f'<figure class="mistake"><img src="{_address(pictures[i])}" alt="{html.escape(alt)}">'
                    f"<figcaption><b>{html.escape(caption)}</b><br>is {html.escape(true)}"
                    f'<span title="{name}">{name}</span></figcaption></figure>'
                )
                why = f"Why it says {predicted} and not {true}: opens the picture on page Explore"
                if st.button("Why?", key=f"why {i}", type="tertiary", help=why):
                    link = ExploreLink(
                        checkpoint=best_of_run(run.id),
                        target=labels[report.predicted[i]],
                        against=labels[report.true[i]],
                        method=first_view.METHOD,
                        viewer={"view": "relevance"},
                    )
                    content = encode_image(Image.fromarray(report.pictures[i]), "PNG")
                    navigation.open_picture(report.names[i] if any(report.names) else f"{true}.png", content, link)
    if any(report.names):
        st.download_button("All wrong ones as CSV", partial(_to_csv, report), "wrong.csv", "text/csv", key="wrong")


def _to_csv(report: error_report.Report) -> bytes:
    """Encode all mistakes as CSV, most confident first."""
    facts = zip(report.names, report.true, report.predicted, report.probability, strict=True)
    titles = ("picture", "truth", "prediction", "confidence")
    rows = [(name, report.classes[true], report.classes[said], float(share)) for name, true, said, share in facts]
    return tables.encode([dict(zip(titles, row, strict=True)) for row in rows])


def _address(pixels: np.ndarray) -> str:
    picture = Image.fromarray(pixels)
    if max(picture.size) <= 128:
        return data_url(encode_image(picture, "PNG"), "PNG")
    return data_url(encode_image(picture, "JPEG", quality=85), "JPEG")


_STYLE = """<style>
.mistake { margin: 0; }
.mistake img { width: 100%; aspect-ratio: 1; object-fit: cover; border-radius: 0.3rem; image-rendering: pixelated; }
.mistake figcaption { font-size: 0.8rem; line-height: 1.35; margin-top: 0.25rem; opacity: 0.9; }
.mistake b { font-weight: 600; }
.mistake span { display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 4; overflow: hidden; }
.mistake span { overflow-wrap: anywhere; }
</style>"""
