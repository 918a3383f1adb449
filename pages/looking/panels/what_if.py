"""Panel *Ablation*: predictions and maps with ablated heads or hidden patches, beside the original ones."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import streamlit as st
import torch
from torch import Tensor

from pages.components import head_grid, viewer
from pages.links import address, link_controls, session
from pages.links.grammar import Heads
from pages.links.page_links import ExploreLink
from pages.looking import token_features
from pages.looking.controls import method_choice
from pages.looking.controls.method_choice import Example, MethodChoice, pass_of
from pages.server import pass_queue
from pages.server.result_cache import BUTTON_ABOVE_SECONDS, SHOW_DURATION_ABOVE_SECONDS, cached, with_bar
from pages.shared.escape import for_plotly, visible
from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.head_ablation import ablation_hook, head_means, importance, importance_seconds
from vit.explain.occlusion import Baseline, hide_patches, occlusion, occlusion_seconds
from vit.explain.record import record
from vit.images import samples
from vit.images.files.decode import decode_image
from vit.view.captions import format_duration
from vit.view.chart_colours import QUIET, STRONG
from vit.view.explanation import expected_seconds
from vit.view.overlay import COLORMAPS
from vit.view.payload import pack
from vit.view.prediction import written
from vit.view.selection import Selection

MEAN = "its mean"
BASELINES: dict[Baseline, str] = {"mean": "the mean colour", "blur": "blurred", "noise": "noise"}
TOP = 5
WAIT_SECONDS = 1.0  # the viewer waits at most this long for the answer after a change [s]


@st.cache_resource(show_spinner=False, max_entries=4)
def means(identity: str, _checkpoint: Checkpoint) -> Tensor:
    """Compute the mean output of heads over the sample pictures, at the model's own size."""
    pictures = [_checkpoint.preprocess(decode_image(samples.read(name))) for name in samples.SAMPLES]
    with pass_queue.reserved(_checkpoint, _checkpoint.preprocess.size, len(pictures)):
        return head_means(_checkpoint.model, torch.cat(pictures))


def importances(example: Example, target: int, by_mean: bool) -> np.ndarray:
    """Compute the drop of the class's logit without each head (L, H)."""
    checkpoint = example.checkpoint
    instead = means(checkpoint.identity, checkpoint) if by_mean else None

    def work(progress: Callable[[float], object]) -> np.ndarray:
        with pass_of(example):
            return importance(checkpoint.model, example.pixels, target, instead, progress).numpy()

    return with_bar(("importance", example.key, target, by_mean), "Switching heads off, one after the other…", work)


def changed_example(example: Example, off: Heads, by_mean: bool, hide: tuple[int, ...], baseline: Baseline) -> Example:
    """Return the example with ablated heads and hidden patches, with its own payload."""
    # The key names the change, since heads of the last block change no attention and so leave the payload equal.
    name = f"{example.key} without {off} {by_mean} {hide} {baseline}"
    return cached(("changed", name), lambda: _changed(name, example, off, by_mean, hide, baseline))


def _changed(
    name: str, example: Example, off: Heads, by_mean: bool, hide: tuple[int, ...], baseline: Baseline
) -> Example:
    checkpoint, explanation = example.checkpoint, example.explanation
    pixels = hide_patches(example.pixels, hide, checkpoint.config.patch_size, baseline)
    instead = means(checkpoint.identity, checkpoint) if by_mean else None
    hook = ablation_hook(off, instead) if off else None
    with pass_queue.reserved(checkpoint, explanation.preprocess.size):
        recorded = record(checkpoint.model, pixels, hook=hook)
        payload = pack(recorded, explanation.picture, explanation.geometry.box, COLORMAPS)
    return Example(name, checkpoint, replace(explanation, record=recorded, payload=payload), pixels, hook)


def under_pointer(example: Example, choice: MethodChoice | None, selection: Selection) -> viewer.Occlusion | None:
    """Draw the toggle that replaces the patch under the pointer; return the predictions for the viewer."""
    if choice is None:
        return None
    labels = example.checkpoint.labels
    seconds = occlusion_seconds(example.checkpoint.model, example.explanation.preprocess.size)
    takes = f" ({format_duration(seconds)})" if seconds > SHOW_DURATION_ABOVE_SECONDS else ""
    with st.container(horizontal=True, vertical_alignment="center"):
        asks = link_controls.toggle(
            f"Replace the patch under the pointer{takes}",
            "probe",
            help="Every patch is replaced once; then the prediction follows the pointer.",
        )
        baseline = link_controls.select(
            "Hidden patches become", "baseline", list(BASELINES), format_func=BASELINES.__getitem__, width=220
        )
    if not asks:
        return None
    new = apply_changes(example, selection)
    model, hook = example.checkpoint.model, new.hook

    def work(progress: Callable[[float], object]) -> Tensor:
        with pass_of(example):
            return occlusion(model, example.pixels, baseline, hook, selection.hidden, progress)

    answers = with_bar(("occlusion", new.key, baseline), "Replacing one patch after the other…", work)
    before, numbers = probabilities(new), example.checkpoint.estimates
    best, usual = answers.argmax(-1).tolist(), int(before.argmax())
    return viewer.Occlusion(
        target=visible(labels[choice.target_index]),
        before=float(before[choice.target_index]),
        after=answers[:, choice.target_index].tolist(),
        answers=[visible(labels[one]) if one != usual and not numbers else "" for one in best],
        numbers=numbers,
    )


def ablation(example: Example, choice: MethodChoice | None, selection: Selection) -> viewer.Ablation | None:
    """Return the prediction with the changes for the viewer, which waits for it.

    None without changes or classes, or if the viewer would wait long.
    """
    if choice is None or expected_seconds(example.checkpoint, example.explanation.preprocess.size) > WAIT_SECONDS:
        return None
    new = apply_changes(example, selection)
    if new is example:
        return None
    before, after, numbers = probabilities(example), probabilities(new), example.checkpoint.estimates
    best, usual = int(after.argmax()), int(before.argmax())
    labels = example.checkpoint.labels
    return viewer.Ablation(
        hidden=selection.hidden,
        target=visible(labels[choice.target_index]),
        before=float(before[choice.target_index]),
        after=float(after[choice.target_index]),
        answer=visible(labels[best]) if best != usual and not numbers else "",
        numbers=numbers,
    )


def probabilities(example: Example) -> Tensor:
    """Return the predicted probabilities, or numbers (C,)."""
    return example.checkpoint.model.probabilities(example.explanation.record.logits[0])


def heads_off(blocks: int, heads: int) -> Heads:
    """Return the link's ablated heads that exist in the model."""
    off = address.read(ExploreLink).off
    return tuple((block, head) for block, head in off if block < blocks and head < heads)


def apply_changes(example: Example, selection: Selection) -> Example:
    """Return the example with the changes of link and selection; the example itself if there are none."""
    record = example.explanation.record
    off = heads_off(record.blocks, record.heads)
    if not off and not selection.hidden:
        return example
    return changed_example(example, off, _by_mean(), selection.hidden, _baseline())


def _baseline() -> Baseline:
    linked = address.read(ExploreLink).baseline
    return next((name for name in BASELINES if name == linked), "mean")


def _by_mean() -> bool:
    return address.read(ExploreLink).instead in ("", MEAN)


def show(example: Example, choice: MethodChoice | None, selection: Selection) -> None:
    """Draw the controls for heads and patches, and the effect of the changes."""
    record = example.explanation.record
    off = heads_off(record.blocks, record.heads)

    def toggle(cell: tuple[int, int]) -> None:
        address.change(ExploreLink, off=tuple(sorted(set(off) ^ {cell})))

    def all_on() -> None:
        address.change(ExploreLink, off=())

    heads, patches = st.columns([3, 2], gap="large")
    with heads:
        link_controls.select(
            "A head that is off outputs",
            "instead",
            [MEAN, "zero"],
            kind=st.segmented_control,
            help="Its mean over the sample pictures is the milder choice: no head ever outputs zero, so zero "
            "overstates the effect.",
        )
        values = _importances(example, choice, _by_mean())
        label, numbers = "Click a head to switch it off", example.checkpoint.estimates
        if choice and np.isfinite(values).any():
            name = visible(example.checkpoint.labels[choice.target_index])
            when = f"{'' if numbers else ' [logits]'}{', before any change' if off or selection.hidden else ''}"
            label = f"Drop of “{name}” without each head{when}. Click one to switch it off"
        text = "{:+.3g}".format if numbers else _signed
        head_grid.show("whatif", values, text, label=label, scale="signed", marked=off, on_choose=toggle)
        if off:
            listing = ", ".join(f"block {block + 1} head {head + 1}" for block, head in off)
            st.caption(f"Off: {listing}.")
            st.button("All heads on", on_click=all_on)
    with patches:
        count = len(selection.hidden)
        st.caption(
            f"{count} of {record.tokens - len(record.prefix)} patches are hidden."
            if count
            else "Tick *Hide patches by dragging* below the picture above, and drag over it, or use arrow keys and "
            "Enter on it; *Keep only these* turns it around."
        )
    if not off and not selection.hidden:
        return
    new = apply_changes(example, selection)
    if choice:
        show_answers(example, probabilities(example), probabilities(new), choice)
    show_after(new, example, choice, selection, "changed", "After the change")


def show_after(
    now: Example, before: Example, choice: MethodChoice | None, selection: Selection, name: str, title: str
) -> None:
    """Draw a viewer with the changed attention, synchronised with the viewer above.

    Args:
        now, before: the example with and without the change.
        name: prefix of the viewer's keys.
    """
    st.caption(f"{title}. It follows the viewer above, and maps of one kind have one scale in both.")
    payload = viewer.feed(f"{name} feeder", now.explanation.payload)
    container, feeders = st.container(), st.container()
    with feeders:
        computed, method = method_choice.computed_map(now, selection, choice, f"{name} ")
        features = token_features.feed(f"{name} features", now, selection, [token_features.open_example(before)])
    with container:
        viewer.show(
            f"{name} viewer", payload, selection, computed, method, group="whatif", compact=True, features=features
        )


def _seconds(example: Example) -> float:
    """Estimate the duration of measuring all heads [s]."""
    return importance_seconds(example.checkpoint.model, example.explanation.preprocess.size)


def measured(example: Example, choice: MethodChoice) -> bool:
    """Whether the importance of all heads was requested or can be measured quickly."""
    asked_for = session.of(session.Explore).importance == f"{example.key} {choice.target}"
    return asked_for or _seconds(example) <= BUTTON_ABOVE_SECONDS


def _importances(example: Example, choice: MethodChoice | None, by_mean: bool) -> np.ndarray:
    record = example.explanation.record
    unknown = np.full((record.blocks, record.heads), np.nan)
    if choice is None:
        return unknown
    if not measured(example, choice) and not st.button(f"Measure every head ({format_duration(_seconds(example))})"):
        return unknown
    # Remember the request, so that no button appears if the estimate grows on a busy machine.
    session.of(session.Explore).importance = f"{example.key} {choice.target}"
    return importances(example, choice.target_index, by_mean)


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def show_answers(example: Example, before: Tensor, after: Tensor, choice: MethodChoice) -> None:
    """Draw probabilities of the most probable classes before and after the change."""
    checkpoint, labels = example.checkpoint, example.checkpoint.labels
    classes = {choice.target_index, *before.topk(min(TOP, len(before))).indices.tolist(), int(after.argmax())}
    order = [choice.target_index] if checkpoint.estimates else sorted(classes, key=lambda index: float(before[index]))
    names = [for_plotly(labels[index]) for index in order]
    figure = go.Figure()
    for name, values, color in (("after", after, STRONG), ("before", before, QUIET)):
        numbers = [float(values[index]) for index in order]
        figure.add_bar(
            x=numbers,
            y=names,
            name=name,
            orientation="h",
            marker_color=color,
            text=[written(checkpoint, number) for number in numbers],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
        )
    figure.update_layout(
        height=48 * len(order) + 40,
        margin={"l": 0, "r": 56, "t": 0, "b": 0},
        barmode="group",
        legend={"orientation": "h", "traceorder": "reversed", "y": 1.1},
    )
    figure.update_xaxes(range=None if checkpoint.estimates else [0, 1], visible=False, fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    best = visible(labels[order[0] if checkpoint.estimates else int(after.argmax())])
    st.plotly_chart(figure, config={"displayModeBar": False}, key="answers", alt=f"After the change: {best}")
