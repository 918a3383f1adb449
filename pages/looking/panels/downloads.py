"""Sharing and downloads of page Explore: link, pictures, numbers, figures, a standalone page, animations, code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st

from pages.links import address, session
from pages.links.source import Source
from pages.server import pass_queue, uploaded_pictures
from pages.shared import download_buttons
from pages.shared.escape import with_code
from vit.errors import UserError
from vit.exports import animation, arrays, code_snippet, figures, map_pictures
from vit.images.files import decode, video
from vit.view import map_view, standalone_page
from vit.view.captions import file_stem, map_stem

if TYPE_CHECKING:
    from pages.streamlit_internals.types import DeltaGenerator
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.explain.record import Precision
    from vit.view.explanation import Explanation
    from vit.view.selection import Selection

BAR = "Frame by frame…"
FIGURES = {"PNG": "image/png", "SVG": "image/svg+xml", "PDF": "application/pdf"}


class _View(NamedTuple):
    """The current view; `drawn_map` computes its map once, `stem` names its files."""

    explanation: Explanation
    selection: Selection
    checkpoint: Checkpoint
    source: Source
    drawn_map: Callable[[], map_view.MapView]
    stem: str


def show(
    share: DeltaGenerator,
    explanation: Explanation,
    selection: Selection,
    checkpoint: Checkpoint,
    source: Source,
    server_map: Callable[[], map_view.MapView] | None = None,
    code: dict[str, Any] | None = None,
    others: Callable[[], dict[str, Any]] = dict,
    **viewer: Any,
) -> None:
    """Draw what the popover *Share* contains, and a row of downloads, for the current view.

    Args:
        share: the popover.
        server_map: returns the displayed map if the server computes it; None for one that the browser computes
            from the selection.
        code: arguments of `vit.exports.code_snippet.snippet` for such a map.
        others: returns further arguments of `vit.view.standalone_page.standalone`; called when the page is saved.
        viewer: `computed`, `method`, `chain`, `masks` and `features` of `vit.view.standalone_page.standalone`, as
            passed to the viewer.
    """
    facts = code or map_view.facts_of(explanation.record, selection)

    def named(what: str) -> str:
        return file_stem(checkpoint.name, explanation.preprocess.size, what, source.name)

    stem = named(map_stem(facts, checkpoint.labels[facts["target"]] if "target" in facts else ""))
    heads_stem = named(_heads_stem(explanation, selection))

    @cache
    def drawn_map() -> map_view.MapView:  # takes seconds for a large model, so it is computed on the first download
        drawn = server_map() if server_map else map_view.MapView.of(explanation.record, selection, explanation.payload)
        return drawn.with_faithfulness(explanation.record, viewer.get("masks"))

    view = _View(explanation, selection, checkpoint, source, drawn_map, stem)
    # The buttons do not rerun the page: a rerun would delete the files of the other buttons.
    with share:
        _share(view, viewer, others)
    with st.container(horizontal=True, vertical_alignment="center"):
        heads = partial(map_pictures.grid_png, explanation, selection)
        download_buttons.file("All heads as PNG", heads, f"{heads_stem}.png", "image/png", key="heads.png")
        size = arrays.attention_bytes(explanation.record)
        download_buttons.file(
            f"All attention as NPZ ({size / 1e6:.1f} MB)",
            lambda: arrays.view_npz(explanation, selection, checkpoint, drawn_map()),
            f"{named('all-attention')}.npz",
            "application/octet-stream",
            key="npz",
            disabled=size > arrays.MAX_BYTES,
            help="This map; all attention as float16 (blocks, heads, tokens, tokens); labels, geometry and versions"
            if size <= arrays.MAX_BYTES
            else "More than 1 GB: choose a smaller input size.",
        )
        with st.popover("More files", width="content"):
            _figures(view, heads_stem)
            st.markdown("**Animation** of this map")
            with st.container(horizontal=True):
                _blocks(view)
            _frames(view, {} if code is None else code)
        _code(explanation, checkpoint, source, facts)


def _share(view: _View, viewer: dict[str, Any], others: Callable[[], dict[str, Any]]) -> None:
    """Show the link of the view, and draw the buttons for the picture with its caption and the standalone page."""
    explanation, selection, checkpoint, source, drawn_map, stem = view
    credit = source.credit if source.sample else ""

    def picture() -> bytes:
        return figures.shared_picture(explanation, selection, checkpoint, drawn_map(), credit)

    def page() -> bytes:
        title, facts = f"{source.name} · {checkpoint.name}", figures.caption(explanation, checkpoint, "", source.credit)
        return standalone_page.standalone(explanation.payload, selection, title, [facts], **viewer | others())

    st.markdown("**Link** to this view")
    st.code(address.url(), language=None, wrap_lines=True)
    if not source.sample:
        st.caption(uploaded_pictures.retention_note())
    st.markdown("**Picture** with a caption")
    download_buttons.file("Picture as PNG", picture, f"{stem}.png", "image/png", key="map")
    st.markdown("**Interactive page**")
    size, most = len(explanation.payload) + len(viewer.get("chain") or b""), standalone_page.MAX_PAYLOAD
    label, help = f"Viewer as HTML ({size * 4 / 3e6:.1f} MB)", "This viewer as one file, which works offline."
    if size > most:
        help = f"More than {most / 1e6:.0f} MB: choose a smaller input size."
    download_buttons.file(label, page, f"{stem}.html", "text/html", key="page", disabled=size > most, help=help)


def _heads_stem(explanation: Explanation, selection: Selection) -> str:
    """Name the picture of all heads, which show attention in every view."""
    facts = map_view.facts_of(explanation.record, replace(selection, view="attention"))
    return f"{map_stem({name: facts[name] for name in ('method', 'query', 'direction')})}-heads"


def _figures(view: _View, heads_stem: str) -> None:
    """Draw the controls for figures for print, of the map or of all heads."""
    explanation, selection, checkpoint, source, drawn_map, stem = view

    def draw(what: str, kind: Any, width: float) -> bytes:
        if what == "All heads":
            facts = figures.caption(
                explanation, checkpoint, figures.grid_sentence(explanation, selection), source.credit
            )
            return figures.grid_figure(explanation, selection, facts, width, kind)
        sentence = f"{drawn_map().sentence} {drawn_map().verdict}".strip()
        facts = figures.caption(explanation, checkpoint, sentence, source.credit)
        return figures.map_figure(explanation, selection, drawn_map(), facts, width, kind)

    st.markdown("**Figure for print**, with colour bar and caption")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        what = _choice("Of", "This map", "All heads")
        kind = _choice("File", "PNG", "SVG", "PDF")
        width = _choice("Width", "85 mm", "180 mm")
        draw_it = partial(draw, what, kind.lower(), float(width.removesuffix(" mm")))
        name = heads_stem if what == "All heads" else f"{stem}-figure"
        download_buttons.file(
            "Figure",
            draw_it,
            f"{name}.{kind.lower()}",
            FIGURES[kind],
            key="figure",
            help="One column of a journal, or two; PNG at 300 dpi",
        )


def _choice(label: str, *options: str) -> str:
    return st.segmented_control(label, options, default=options[0], required=True, key=f"figure {label}")


def _blocks(view: _View) -> None:
    """Draw the buttons for the animation over blocks."""
    download_buttons.films(
        "Attention over blocks",
        lambda: animation.over_blocks(view.explanation, view.selection),
        f"{view.stem}-blocks",
        help="Attention of this token, in the selected head or its fusion, from the first block to the last",
    )


def _frames(view: _View, code: dict[str, Any]) -> None:
    """Draw the buttons for an animation with the map of each frame, which needs one forward pass per frame."""
    explanation, selection, checkpoint, source, _, stem = view
    try:
        several = decode.count_frames(source.data) > 1
    except UserError:  # the page shows another picture instead
        return
    if not several:
        return
    size = explanation.preprocess.size
    precision: Precision = "bfloat16" if "bfloat16" in str(explanation.record.queries[0].dtype) else "float32"
    choice = {
        name: code[name] for name in ("target", "against", "method") if name in code and selection.view == "relevance"
    }
    picture = uploaded_pictures.key_of(source.data)
    request = (picture, checkpoint.identity, size, precision, selection, *choice.items())
    made = session.of(session.Explore).frames
    if made and made[0] == request:
        with st.container(horizontal=True):
            for kind, mime in download_buttons.FILMS.items():
                download_buttons.file(
                    f"Frames as {kind}", made[1][kind], f"{stem}-frames.{kind.lower()}", mime, key=f"Frames {kind}"
                )
    elif st.button("Animate all frames", help="Up to 60 frames as GIF and MP4; each frame is a separate forward pass"):
        bar = st.progress(0.0, BAR)
        try:
            with pass_queue.reserved(checkpoint, size, pass_queue.WITH_GRADIENTS, precision):
                film = animation.over_frames(
                    checkpoint,
                    source.data,
                    selection,
                    size,
                    precision,
                    **choice,
                    progress=lambda share: bar.progress(share, BAR),
                )
        except UserError as error:
            st.error(with_code(str(error)))
            return
        session.of(session.Explore).frames = (
            request,
            {kind: animation.encode(film, kind) for kind in download_buttons.FILMS},
        )
        st.rerun(scope="fragment")


def _code(explanation: Explanation, checkpoint: Checkpoint, source: Source, facts: dict[str, Any]) -> None:
    """Show Python code that computes the map."""
    with st.popover("Copy as code", width="content"):
        program = code_snippet.snippet(
            explanation,
            checkpoint,
            facts,
            source.name,
            sample=source.sample,
            frame=source.frame,
            video=video.is_video(source.data),
            stretch=source.stretch,
        )
        st.code(program, language="python")
