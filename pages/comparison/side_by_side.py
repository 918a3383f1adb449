"""Two pictures, checkpoints, epochs of a run, classes or methods beside each other: one cursor, one difference."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast, get_args

import streamlit as st

from pages.components import viewer
from pages.shared import (
    class_question,
    class_source,
    datasets,
    link_controls,
    loading,
    navigation,
    page_links,
    session,
    stored_epochs,
)
from pages.shared.escape import plain
from pages.shared.page_links import CompareLink
from pages.shared.uploaded_pictures import Upload
from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import InvalidImage, UserError
from vit.explain.map_comparison import Layout, agreement, counterpart, difference, rank_correlation
from vit.explain.methods import METHODS
from vit.explain.record import AttentionRecord
from vit.images import samples
from vit.runs.registry import Run, list_runs
from vit.view.attention_snapshots import read_payload, read_snapshots
from vit.view.explanation import Explanation
from vit.view.overlay import COLORMAPS, signed_overlay
from vit.view.payload import read_header
from vit.view.selection import Selection, View
from vit.view.stored_record import picture_of, record_of

SIDES = {"a": "Left", "b": "Right"}
VIEWS: dict[str, View] = {"a": "attention", "b": "relevance"}  # at first
UPLOAD = "upload"
CHECKPOINT, EPOCH = "checkpoint", "epoch"
SOURCES = {CHECKPOINT: "A checkpoint", EPOCH: "An epoch of a run"}
# Of what is outside of the viewers, in links.
OUTSIDE = ("from", "checkpoint", "sample", "picture", "size", "run", "probe", "epoch", *class_source.names())
TOP = 3  # predictions named
WIDTH = 240  # of the difference [px]


class Stored(NamedTuple):
    """What is left of a picture that a run explained: see `vit.explain.Explanation`."""

    record: AttentionRecord
    payload: bytes


Explained = tuple[Checkpoint | None, Explanation | Stored]


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: "a" or "b", before everything of its own in links.
        payload: from `pages.components.viewer.feed`.
        example: its picture; the checkpoint is None for one of a run.
        question: class and method; None where there are no classes.
    """

    name: str
    payload: str
    example: class_question.Example
    question: class_question.Question | None = None

    @property
    def record(self) -> AttentionRecord:
        """Attention on demand."""
        return self.example.explanation.record

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, heads and tokens."""
        return self.record.blocks, self.record.heads, self.record.tokens

    @property
    def layout(self) -> Layout:
        """Where its tokens lie."""
        return Layout(self.record.prefix, self.record.grid)


@st.cache_resource(show_spinner=False, max_entries=8)
def stored(folder: str, epoch: int, picture: int, stamp: int) -> Stored:
    """A run's picture after an epoch."""
    payload = read_payload(Path(folder), epoch, picture)
    return Stored(record_of(payload), payload)


def show() -> None:
    """Both sides and their difference; stops with a hint where there is nothing to look at."""
    available = loading.list_checkpoints()
    seen = (run for run in list_runs() if datasets.may_see(str(run.config.get("data", ""))))
    runs = {run.id: run for run in seen if stored_epochs.epochs(run)}
    if not available.names and not runs:
        st.info("There is no checkpoint yet. Train one: `python -m vit train --preset shapes`")
        st.stop()
    sides = []
    for column, name in zip(st.columns(2, gap="large"), SIDES, strict=True):
        with column:
            explained = pick_side(name, available, runs)
            if explained:
                checkpoint, explanation = explained
                payload = viewer.feed(f"{name} feeder", explanation.payload)
                key = f"{payload} {checkpoint.identity if checkpoint else ''}"
                sides.append(Side(name, payload, class_question.Example(key, checkpoint, explanation)))
    if len(sides) == len(SIDES):
        left, right = sides
        show_both(left, right, link_controls.link_of([f"{side}_{control}" for side in SIDES for control in OUTSIDE]))


# --- What is chosen -------------------------------------------------------------------------------------------------


def pick_side(name: str, available: loading.AvailableCheckpoints, runs: dict[str, Run]) -> Explained | None:
    """Let the person choose what a side shows: the checkpoint, None for a run's, and what it made of a picture.

    None where it cannot be shown; the page says why.
    """
    sources = [source for source, there in ((CHECKPOINT, available.names), (EPOCH, runs)) if there]
    source = sources[0]
    if len(sources) > 1:
        source = link_controls.select(
            f"{SIDES[name]} side",
            f"{name}_from",
            sources,
            format_func=SOURCES.get,
            kind=st.segmented_control,
            label_visibility="collapsed",
        )
    try:
        return pick_epoch(name, runs) if source == EPOCH else pick_picture(name, available)
    except UserError as error:
        st.error(plain(str(error)))
        return None


def pick_picture(name: str, available: loading.AvailableCheckpoints) -> Explained:
    """A checkpoint and a picture."""
    one, other, third = st.columns([3, 3, 2])
    with one:
        chosen = link_controls.select(
            f"{SIDES[name]} checkpoint", f"{name}_checkpoint", available.names, format_func=available.title
        )
    with other:
        source = link_controls.select(
            f"{SIDES[name]} picture",
            f"{name}_sample",
            [*samples.SAMPLES, UPLOAD],
            format_func=lambda which: "Your own …" if which == UPLOAD else samples.SAMPLES[which].title,
        )
    uploaded: Sequence[Upload] = ()
    if source == UPLOAD:
        uploaded = loading.pick_files(1, f"{name}_upload", f"{name}_picture")
        source = next(iter(samples.SAMPLES))  # until there is one, or where it cannot be read
    checkpoint = class_source.pick_folded(open_checkpoint(chosen, available), f"{name}_")
    with third:
        size = loading.pick_size(checkpoint, f"{SIDES[name]} size", f"{name}_size", narrow=True)
    explanation = None
    if uploaded:
        try:
            explanation = loading.explained(checkpoint, uploaded[0].data, size)
        except InvalidImage as error:
            st.error(plain(str(error)))
    credit = ""
    if explanation is None:
        explanation = loading.explained(checkpoint, samples.read(source), size)
        credit = (
            f" · {samples.SAMPLES[source].title}: {samples.SAMPLES[source].credit}, {samples.SAMPLES[source].licence}"
        )
    top = ", ".join(f"{one.label} {share(one.probability)}" for one in explanation.predictions[:TOP])
    st.caption(plain((top or "This model has no classes: its maps are of attention alone") + credit))
    return checkpoint, explanation


def open_checkpoint(chosen: str, available: loading.AvailableCheckpoints) -> Checkpoint:
    """A checkpoint, with the number of heads that was chosen for it.

    Raises:
        UserError: it cannot be opened, or nobody said how many heads it has.
    """
    info = available.about(chosen)
    heads = session.of(session.Visit).heads.get(chosen)
    if info.problem and not info.choices:
        raise UserError(info.problem)
    if info.choices and heads is None:
        raise UserError(f"{info.problem} Choose their number on page Explore first.")
    return loading.open_checkpoint(chosen, str(info.folder), loading.stamp(info.folder), heads)


def pick_epoch(name: str, runs: dict[str, Run]) -> Explained:
    """An epoch of a run and one of its pictures."""
    one, other = st.columns(2)
    with one:
        run = runs[
            link_controls.select(
                f"{SIDES[name]} run", f"{name}_run", list(runs), format_func=lambda which: runs[which].name
            )
        ]
    folder, epochs = run.folder / "probes", stored_epochs.epochs(run)
    pictures = read_snapshots(folder, epochs[-1])
    with other:
        picture = link_controls.select(
            f"{SIDES[name]} picture",
            f"{name}_probe",
            range(len(pictures)),
            format_func=lambda i: f"{i + 1}: {pictures[i].label}",
        )
    epoch = epochs[0]
    if len(epochs) > 1:
        last = epochs[-1] if name == "b" else epochs[0]  # at first, how it began beside how it ended
        epoch = link_controls.select(f"{SIDES[name]} epoch", f"{name}_epoch", epochs, last, kind=st.select_slider)
    snapshot = read_snapshots(folder, epoch)[picture]
    predictions = ", ".join(f"{plain(label)} {share(probability)}" for label, probability in snapshot.predictions[:TOP])
    st.caption(f"{predictions} · it is {plain(snapshot.label)}")
    return None, stored(str(folder), epoch, picture, stored_epochs.stamp(folder, epoch))


def share(probability: float) -> str:
    """A probability in few digits, but never nothing."""
    return f"{probability:.0%}" if probability >= 0.01 else f"{probability:.1%}"


# --- What is shown --------------------------------------------------------------------------------------------------


@st.fragment
def show_both(left: Side, right: Side, link: dict[str, str]) -> None:
    """Classes, methods, viewers and difference; a click in a viewer reruns this part alone.

    Args:
        link: what it said of the controls outside when they were drawn.
    """
    link_controls.redraw_if_changed(link)
    navigation.keep("compare")
    if any(side.example.checkpoint and class_question.methods_for(side.example.checkpoint) for side in (left, right)):
        pair = []
        for column, side in zip(st.columns(2, gap="large"), (left, right), strict=True):
            with column:
                question = (
                    class_question.pick(side.example, f"{side.name}_", SIDES[side.name])
                    if side.example.checkpoint
                    else None
                )
                pair.append(replace(side, question=question))
        left, right = pair
    seeds = first_shown(left, right)
    show_difference(left, right)
    for column, side in zip(st.columns(2, gap="large"), (left, right), strict=True):
        selected = selection(side, left, right)
        with column:
            container, feeders = st.container(), st.container()
        with feeders:
            computed, method = class_question.computed_map(side.example, selected, side.question, f"{side.name} ")
        with container:
            viewer.show(
                f"{side.name} viewer",
                side.payload,
                seeds[side.name],
                computed,
                method,
                group="compare",
                own_view=True,
                on_change=partial(remember, side, left, right),
            )


def first_shown(left: Side, right: Side) -> dict[str, Selection]:
    """What each viewer is told to show, from the link; afterwards they move each other in the browser.

    They are told again where they come back to the page, or where other tokens make the same numbers mean others.
    """
    state = session.of(session.Compare)
    layouts = [(*side.shape, side.layout) for side in (left, right)]
    if state.layouts != layouts or not all(f"{name} viewer" in st.session_state for name in SIDES):
        link = page_links.read(CompareLink)
        for name, text in (("a", link.a.view), ("b", link.b.view)):
            state.views[name] = cast(View, text) if text in get_args(View) else VIEWS[name]
        state.lead = "a", Selection.from_query({**link.viewer, "view": state.views["a"]}, *left.shape)
        state.layouts, state.seeds = layouts, {side.name: selection(side, left, right) for side in (left, right)}
    return state.seeds


def selection(side: Side, left: Side, right: Side) -> Selection:
    """What a side shows, judged by the viewer that was used last."""
    state = session.of(session.Compare)
    name, chosen = state.lead
    leader = left if name == "a" else right
    token = chosen.token if leader.name == side.name else counterpart(chosen.token, leader.layout, side.layout)
    own = {"token": token, "view": state.views[side.name]}
    return Selection.from_query(asdict(chosen) | own, *side.shape)


def remember(side: Side, left: Side, right: Side, chosen: Selection) -> None:
    """Keep what was chosen in a viewer for the page and in the link, there as the left one shows it."""
    state = session.of(session.Compare)
    state.lead = side.name, chosen
    state.views[side.name] = chosen.view
    values = selection(left, left, right).to_query()
    default = Selection.from_query({"colormap": next(iter(COLORMAPS))}, *left.shape).to_query()
    link: dict[str, str | None] = {}
    for name in (*VIEWS, *set(values) - {"view", "hidden"}):
        if name in VIEWS:
            link[f"{name}_view"] = state.views[name] if state.views[name] != VIEWS[name] else None
        else:
            unusual = values[name] != default[name] or (name == "token" and chosen.pinned)
            link[name] = values[name] if unusual else None
    page_links.rewrite(link)


def show_difference(left: Side, right: Side) -> None:
    """Where one map gives more than the other, and whether they agree on the order of patches."""
    if left.record.grid != right.record.grid:
        grids = ["{} × {}".format(*side.record.grid) for side in (left, right)]
        st.info(
            f"There is no difference map: the left picture has {grids[0]} patches and the right one {grids[1]}, so "
            "they cannot be subtracted. Choose checkpoints or sizes with equal grids."
        )
        return
    maps, names = [], []
    for side in (left, right):
        selected = selection(side, left, right)
        maps.append(side.record.heatmap(class_question.weights(side.example, selected, side.question)))
        names.append(describe(selected, side.question))
    one, other = maps
    both, correlation = difference(one, other), rank_correlation(one, other)
    picture, box = picture_of(left.example.explanation.payload)
    strongest = float(both.abs().max())
    drawn, text = st.columns([1, 3], gap="medium", vertical_alignment="center")
    with drawn:
        st.image(signed_overlay(picture, both.numpy(), box), width=WIDTH, alt="Left map minus right map")
    with text:
        st.metric(
            "Rank correlation",
            "–" if correlation is None else f"{correlation:.2f}".replace("-", "−"),
            help="Spearman: 1 where both maps put the patches in the same order, 0 where the orders have nothing to do "
            "with each other, −1 where one is the other upside down. How strong the maps are plays no part.",
        )
        st.markdown(agreement(correlation))
        if strongest < 1e-6:
            st.markdown("Both maps are the same.")
        else:
            st.markdown(
                f"**Red** patches get more from the left map ({names[0]}), **blue** ones from the right map "
                f"({names[1]}). Each map counts in shares of all that it gives to patches; the strongest colour is "
                f"a difference of {strongest:.1%}."
            )
        if one_picture(left) != one_picture(right):
            st.caption("The pictures differ; the left one is shown below the colours.")
        st.caption("The difference follows what is clicked and pinned below, not the pointer.")


def one_picture(side: Side) -> bytes:
    """The bytes of what is shown below the map, to tell whether two are the same."""
    payload = side.example.explanation.payload
    offset, length = read_header(payload)["sections"]["picture"]
    return payload[offset : offset + length]


def describe(selected: Selection, question: class_question.Question | None) -> str:
    """A map in a few words."""
    if selected.view == "relevance" and question:
        return METHODS[question.method].title
    if selected.view in ("rollout", "similar", "pool"):
        return {"rollout": "rollout", "similar": "nearest patches", "pool": "pooling query"}[selected.view]
    block = f"block {selected.block + 1}" if isinstance(selected.block, int) else f"{selected.block} of blocks"
    head = f"head {selected.head + 1}" if isinstance(selected.head, int) else f"{selected.head} of heads"
    return f"attention, {block}, {head}"
