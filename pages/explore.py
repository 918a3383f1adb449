"""Page Explore: prediction and attention of a model for a picture."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from pages.components import viewer
from pages.links import address, link_controls, navigation, session
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.looking import checkpoint_list, loading, map_exports, token_features
from pages.looking.controls import class_source, method_choice
from pages.looking.panels import (
    best_map,
    checkpoint_picker,
    downloads,
    faithfulness,
    features,
    first_view,
    layers,
    own_pictures,
    picture_picker,
    predictions,
    welcome,
    what_if,
)
from pages.looking.panels import heads as head_panel
from pages.server import first_html, uploaded_pictures
from pages.shared.escape import plain, with_code
from vit.errors import UserError
from vit.explain import map_comparison
from vit.images import samples
from vit.view import overlay
from vit.view.selection import Selection

if TYPE_CHECKING:
    from pages.looking.controls.method_choice import Example, MethodChoice
    from pages.streamlit_internals.types import DeltaGenerator
    from vit.explain.record import AttentionRecord
    from vit.view.explanation import Explanation
    from vit.view.first_view import FirstView

navigation.start_page("explore")
welcome.fill()

PANELS = {  # panels below the viewer, by name in links
    "faithfulness": "Faithfulness",
    "what-if": "Ablation",
    "heads": "Heads",
    "layers": "Layers",
    "features": "Features",
    "weights": "Weights",
}
OF_CLASSES = ("faithfulness", "layers")  # panels that need a class
# Query parameters of controls outside of the viewer's fragment.
OUTSIDE = (
    "checkpoint",
    "heads",
    "size",
    "precision",
    "sample",
    "picture",
    "frame",
    "stretch",
    *class_source.names(),
)

INSIDE = ("target", "against", "method", "panel")  # query parameters of controls in the viewer's fragment


def feed(payload: bytes) -> str:
    """Serve the payload to the browser, outside the fragment, so that a click does not resend it."""
    return viewer.feed("feeder", payload)


@st.fragment
def show_viewer(
    checkpoint: Any,
    explanation: Any,
    payload: str,
    source: Source,
    link: dict[str, str],
    stored: FirstView | None = None,
) -> None:
    """Draw the viewer, downloads and panels. A click in the viewer reruns only this fragment.

    Args:
        link: values of the controls outside of the fragment when they were drawn.
        stored: the precomputed first view, while PyTorch is not imported.
    """
    link_controls.redraw_if_changed(link)
    navigation.keep("explore")
    record = explanation.record
    shape = record.blocks, record.heads, record.tokens

    def remember(selection: Selection) -> None:
        default = Selection.from_query({"colormap": next(iter(overlay.COLORMAPS))}, *shape).to_query()
        chosen = selection.to_query()
        unusual = {name for name in chosen if chosen[name] != default[name] or (name == "token" and selection.pinned)}
        # Links name the method, so that they keep it where a later version recommends another.
        named = {"method": choice.method} if choice and selection.view == "relevance" else {}
        address.change(ExploreLink, viewer={name: chosen[name] for name in unusual}, **named)

    def ask(against: str) -> None:
        """Ask why the model says the explained class rather than this one, or no longer if it is asked already."""
        link = address.read(ExploreLink)
        viewer_link = {**link.viewer, "view": "relevance"}
        method = choice.method if choice else ""
        again = link.against == against
        address.change(ExploreLink, against="" if again else against, method=method, viewer=viewer_link)

    if not stored:
        keep_token(record)
    example = method_choice.Example(
        method_choice.example_key(payload, checkpoint), checkpoint, explanation, stored=stored
    )
    with st.container():
        if missing := method_choice.missing_class(example):
            st.caption(plain(missing))
    with st.container(gap=None, key="stage"):
        share = st.container(key="share").popover("Share", width="content", disabled=bool(stored))
        with st.container(key="choice"):  # positioned beside the viewer's controls, see appearance.css
            choice = method_choice.pick_folded(example)
        contrast, contrast_choice = method_choice.contrastive(example, choice)
        container = st.container()
    wanted = Selection.from_query(address.read(ExploreLink).viewer, *shape)
    improving, more, below, feeders = (st.container() for _ in range(4))
    with feeders:  # after the viewer, which Streamlit would remount if an element were inserted before it
        computed, method = method_choice.computed_map(contrast, wanted, contrast_choice, growing=True)
        pictures = open_pictures(example) if wanted.view == "components" and not stored else ()
        features = token_features.feed("features feeder", example, wanted, pictures)
    of_class = choice if choice and choice.target is not None else None
    explained = contrast_choice if of_class else None
    with below:
        panel = pick_panel(of_class)
        # Every panel has a place of its own, and an empty element replaces the previous panel at once. Some panels
        # request more results by themselves; after such a request at the moment of a click, Streamlit would keep them.
        places = {name: st.container() if name == panel else st.empty() for name in PANELS}
        unseen = st.container()
    occlusion = ablation = None
    if panel == "what-if" and not stored:
        with places[panel]:
            occlusion = what_if.under_pointer(example, of_class, wanted)
            ablation = what_if.ablation(example, of_class, wanted)
    answers = predictions.bars_of(checkpoint, explanation)
    if answers and choice and choice.target is not None and not checkpoint.estimates:
        answers |= {"target": checkpoint.labels[choice.target], "against": address.text("against")}
    with container:
        selection = viewer.show(
            "viewer",
            payload,
            wanted,
            computed,
            method,
            group="whatif",
            paintable=panel == "what-if",
            occlusion=occlusion,
            ablation=ablation,
            answers=answers,
            masks=method_choice.masks_name(contrast, explained.target_index) if explained else "",
            on_ask=ask,
            features=features,
            on_change=remember,
        )
        if not source.sample:
            st.caption(plain(source.name), width="content", help=uploaded_pictures.retention_note())

    if stored:
        with below:
            first_view.show_waiting()
        return
    with more:
        server_map, page_map, code = map_exports.for_export(
            contrast, selection, contrast_choice, computed, method, pictures
        )
        if explained:
            page_map["masks"] = faithfulness.packed(contrast, explained.target_index)
        page_map["answers"] = answers
        downloads.show(
            share,
            token_features.with_features(example, selection).explanation,
            selection,
            checkpoint,
            source,
            server_map,
            code,
            **page_map,
        )
    if explained and explained.method == method_choice.GROWING and selection.view == "relevance":
        with improving:
            best_map.show(contrast, explained.target_index)
    if explained:
        with places[panel] if panel == "faithfulness" else unseen:
            faithfulness.show(
                contrast, explained, selection, panel == "faithfulness", link_controls.link_of(INSIDE) | link
            )
    with places[panel]:
        show_panel(example, of_class, selection, panel)


def open_pictures(example: Example) -> list[token_features.OpenPicture]:
    """Return this picture and the others of the strip, whose components share a basis."""
    others = own_pictures.other_keys(address.read(ExploreLink).picture, features.MOST)
    return [token_features.open_example(example), *token_features.open_uploads(others, example)]


def keep_token(record: AttentionRecord) -> None:
    """If the grid has changed, map the link's token to the same position on the picture.

    If the link's token has changed too, by the browser's Back, it already refers to the new grid.
    """
    here = map_comparison.Layout(record.prefix, record.grid)
    state = session.of(session.Explore)
    before, linked = state.shown_token or (here, {})
    linked_viewer = dict(address.read(ExploreLink).viewer)
    current = {name: linked_viewer.get(name, "") for name in ("token", "hidden")}
    if before != here and current == linked:
        token = current["token"]
        linked_viewer.pop("hidden", None)
        if token.isdecimal() and len(token) < 6 and int(token) < len(before.prefix) + before.grid[0] * before.grid[1]:
            linked_viewer["token"] = current["token"] = str(map_comparison.counterpart(int(token), before, here))
        address.change(ExploreLink, viewer=linked_viewer)
        current["hidden"] = ""
    state.shown_token = here, current


def pick_panel(choice: MethodChoice | None) -> str:
    """Draw the control for the panel below the viewer."""
    names = [name for name in PANELS if choice or name not in OF_CLASSES]
    st.markdown("## Analysis")
    return link_controls.select(
        "Analysis", "panel", names, format_func=PANELS.get, kind=st.segmented_control, label_visibility="collapsed"
    )


def show_panel(example: Example, choice: Any, selection: Selection, panel: str) -> None:
    """Draw the selected panel."""

    def select(cell: tuple[int, int]) -> None:
        block, head = map(str, cell)
        linked_viewer = address.read(ExploreLink).viewer
        address.change(ExploreLink, viewer={**linked_viewer, "block": block, "head": head, "view": "attention"})

    if panel == "what-if":
        what_if.show(example, choice, selection)
    elif panel == "heads":
        head_panel.show(example, choice, selection, select)
    elif panel == "layers":
        layers.show(example, choice, selection)
    elif panel == "features":
        features.show(example)
    elif panel == "weights":
        layers.show_weights(example)


def fill_caches(stored: FirstView) -> None:
    """Fill the caches for the initial view, so that the complete page is drawn at once."""
    folder = checkpoint_list.shipped_folder()
    assert folder is not None, "the first view is of the shipped checkpoint"
    checkpoint = loading.open_checkpoint(checkpoint_list.SHIPPED, str(folder), loading.stamp(folder), None)
    explanation = loading.explained(checkpoint, samples.read(welcome.VIEW.sample), checkpoint.preprocess.size)
    checkpoint_picker.verified(checkpoint.identity, checkpoint)
    method_choice.remember_map(explanation, checkpoint, stored)


def main() -> None:
    """Draw the page.

    This is a function because Streamlit keeps a page's module-level names alive; picture and model must be freed.
    """
    model_controls = st.sidebar.container()
    with st.container(horizontal=True, vertical_alignment="center", key="pictures"):
        with st.container(width="content", key="title"):
            st.title(first_html.TITLE, anchor=False, width="content")
        top = st.container(width="content", key="answer")
        row = st.container(horizontal=True, vertical_alignment="center", width="content", key="sources")
        details = st.popover("Answer", width="content")
    with st.container(gap=None):  # without a gap, empty containers take no space
        explain(row, top, details, model_controls)


def explain(row: DeltaGenerator, top: DeltaGenerator, details: DeltaGenerator, model_controls: DeltaGenerator) -> None:
    """Draw the controls for picture and model, the prediction, and the viewer.

    Args:
        row: container of the picture controls.
        top, details: containers of the prediction, in one line and in detail.
        model_controls: container of the model controls.
    """
    # Both containers are created in every run, so that later elements keep their positions.
    inputs, waiting = st.container(key="inputs"), st.container()
    with inputs:
        source = picture_picker.pick_picture(row)  # before anything that imports torch, so that it appears at once
    if stored := first_view.stored(source):
        with model_controls:
            checkpoint_picker.show_stored_model(stored)
        predictions.show_top(top, stored.checkpoint, stored.explanation)
        with details:
            predictions.show(stored.checkpoint, stored.explanation)
            class_source.show_stored()
        link = link_controls.link_of(OUTSIDE)
        show_viewer(stored.checkpoint, stored.explanation, feed(stored.explanation.payload), source, link, stored)
        first_view.load_rest(partial(fill_caches, stored))
        return
    with waiting:
        loading.start_torch()
    with model_controls:
        checkpoint = checkpoint_picker.pick_checkpoint(inputs)
        size, precision = checkpoint_picker.pick_size(checkpoint)
    with inputs:
        source = picture_picker.pick_range(picture_picker.pick_frame(source))
    with details:
        predicted = st.container()
        checkpoint = class_source.pick(checkpoint, size=size)

    def explained(source: Source) -> Explanation:
        with waiting:
            return loading.explained(checkpoint, source.data, size, precision, source.frame, source.stretch)

    try:
        explanation = explained(source)
    except UserError as error:
        picture_picker.drop_upload(source)
        source = picture_picker.sample_source(picture_picker.current_sample())
        with inputs:
            st.error(with_code(str(error)))
            st.caption(f"Instead, this is the sample “{samples.SAMPLES[source.sample].title}”.")
        explanation = explained(source)
    else:
        picture_picker.store_upload(source)
    predictions.show_top(top, checkpoint, explanation)
    with predicted:
        predictions.show(checkpoint, explanation)
    show_viewer(checkpoint, explanation, feed(explanation.payload), source, link_controls.link_of(OUTSIDE))


main()
