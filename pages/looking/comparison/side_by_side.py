"""Two pictures, checkpoints, epochs of a run, classes or methods side by side, with one cursor and a difference map."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast, get_args

import streamlit as st

from pages.components import viewer
from pages.links import address, link_controls, navigation, session
from pages.links.page_links import CompareLink
from pages.looking import checkpoint_list, loading, token_features
from pages.looking.comparison import difference
from pages.looking.comparison.side import SIDES, Side
from pages.looking.controls import class_source, input_size, method_choice, picture_files
from pages.server import uploaded_pictures
from pages.server.uploaded_pictures import Upload
from pages.shared import datasets, stepping, trained_models
from pages.shared.escape import plain, with_code
from pages.shared.trained_models import TrainedModel
from pages.streamlit_internals.types import DeltaGenerator
from vit.checkpoints import abstention
from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import UserError
from vit.explain.map_comparison import counterpart
from vit.explain.record import AttentionRecord
from vit.images import samples
from vit.view import attention_snapshots
from vit.view.explanation import Explanation
from vit.view.overlay import COLORMAPS
from vit.view.prediction import written
from vit.view.selection import Selection, View
from vit.view.stored_record import record_of

VIEWS: dict[str, View] = {"a": "attention", "b": "relevance"}  # initial views
UPLOAD = "upload"
CHECKPOINT, EPOCH = "checkpoint", "epoch"
SOURCES = {CHECKPOINT: "A checkpoint", EPOCH: "An epoch of a run"}
# Query parameters of a side's controls outside of the viewers, without prefix.
OUTSIDE = ("from", "checkpoint", "sample", "picture", "which", "size", "run", "probe", "epoch", *class_source.names())
TOP = 3  # predictions named


class StoredExplanation(NamedTuple):
    """A run's stored attention of a picture; a subset of `vit.view.explanation.Explanation`."""

    record: AttentionRecord
    payload: bytes


class SideContent(NamedTuple):
    """Content of a side.

    Attributes:
        checkpoint: None for an epoch of a run.
        explanation: the explained picture.
        facts: the predictions as text.
        content: the picture's file, b"" for a picture of a run.
        credit: attribution of the picture, "" if none is required.
    """

    checkpoint: Checkpoint | None
    explanation: Explanation | StoredExplanation
    facts: str
    content: bytes = b""
    credit: str = ""


@st.cache_resource(show_spinner=False, max_entries=8)
def stored(folder: str, epoch: int, picture: int, stamp: int) -> StoredExplanation:
    """Read a run's picture after an epoch."""
    payload = attention_snapshots.read_payload(Path(folder), epoch, picture)
    return StoredExplanation(record_of(payload), payload)


def show(beside: DeltaGenerator) -> None:
    """Draw both sides and their difference; stop with a hint if there is neither a checkpoint nor a run.

    Args:
        beside: container beside the page's title.
    """
    available = checkpoint_list.list_checkpoints()
    seen = (model for model in trained_models.every() if datasets.may_see(model.data))
    runs = {model.id: model for model in seen if attention_snapshots.list_epochs(model.snapshots)}
    if not available.names and not runs:
        st.info(checkpoint_list.NO_CHECKPOINT)
        st.stop()
    with beside:
        apart = pick_apart()
    sides: list[Side] = []
    credits = []
    lead: SideContent | None = None
    with st.container(key="sides"):
        columns = st.columns(2, gap="large")
    for column, name in zip(columns, SIDES, strict=True):
        with column:
            show_name(name, "controls")
            picked = pick_side(name, available, runs, None if apart else lead)
            if picked:
                credits.append(picked.credit)
                lead, (checkpoint, explanation, facts, *_) = picked, picked
                payload = viewer.feed(f"{name} feeder", explanation.payload)
                key = f"{payload} {checkpoint.identity if checkpoint else ''}"
                sides.append(Side(name, payload, method_choice.Example(key, checkpoint, explanation), facts))
    if len(sides) == len(SIDES):
        left, right = sides
        show_both(
            left,
            right,
            apart,
            link_controls.link_of(["apart", *(f"{side}_{control}" for side in SIDES for control in OUTSIDE)]),
        )
        st.caption(plain("; ".join(dict.fromkeys(filter(None, credits)))))


# --- Controls -------------------------------------------------------------------------------------------------------


def pick_apart() -> bool:
    """Draw the toggle that gives the right side its own picture, class and view."""
    link = address.read(CompareLink)
    apart = is_apart(link)

    def choose(on: bool) -> None:
        which = str(link.a.which or "")
        left = {"b_sample": link.a.sample, "b_picture": link.a.picture, "b_which": which}
        own = left if on else dict.fromkeys(OWN, "")
        address.rewrite({"apart": "1" if on else None} | {name: value or None for name, value in own.items()})

    return st.toggle(
        "The right side has its own picture, class and view",
        apart,
        **link_controls.bound("apart", apart, choose),
        help="Otherwise it shows those of the left one, where it can. Two maps of one checkpoint keep their own views.",
    )


# Parameters that the right side otherwise shares with the left one.
OWN = ("b_from", "b_sample", "b_picture", "b_which", "b_target", "b_method", "b_view")


def is_apart(link: CompareLink) -> bool:
    """Whether the right side has its own picture, class and view: the link says so, or sets one of them."""
    own = [link.b.source, link.b.sample, link.b.picture, link.b.target, link.b.method]
    own += [link.b.view] if link.a.checkpoint != link.b.checkpoint else []
    return link.apart or any(own) or link.a.source == EPOCH


def pick_side(
    name: str, available: checkpoint_list.AvailableCheckpoints, runs: dict[str, TrainedModel], lead: SideContent | None
) -> SideContent | None:
    """Draw a side's controls and return its content; on a `UserError`, show it and return None.

    Args:
        lead: the side whose picture it shares; None if it has its own.
    """
    sources = [source for source, options in ((CHECKPOINT, available.names), (EPOCH, runs)) if options]
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
        return pick_epoch(name, runs) if source == EPOCH else pick_picture(name, available, lead)
    except UserError as error:
        st.error(with_code(str(error)))
        return None


def pick_picture(name: str, available: checkpoint_list.AvailableCheckpoints, lead: SideContent | None) -> SideContent:
    """Draw the controls for a checkpoint and, without a `lead`, a picture."""
    one, *other, third, fourth = st.columns([3, 2, 2] if lead else [3, 3, 2, 2], gap="xsmall")
    with one:
        chosen = link_controls.select(
            f"{SIDES[name]} checkpoint",
            f"{name}_checkpoint",
            available.names,
            format_func=available.title,
            # Another checkpoint shows the left one's view, unless the right side has a view of its own.
            along={} if is_apart(address.read(CompareLink)) else {"b_view": None},
            label_visibility="collapsed",
        )
    content, credit = (lead.content, lead.credit) if lead else (b"", "")
    uploaded: Sequence[Upload] = ()
    if not lead:
        with other[0]:
            source = pick_sample(name)
        if source == UPLOAD:
            files = picture_files.pick(uploaded_pictures.MOST_TOGETHER, f"{name}_upload", f"{name}_picture")
            uploaded, problems = loading.readable(files)
            if problems:
                st.error(with_code(" ".join(problems)))
            source = next(iter(samples.SAMPLES))  # shown until there is a readable upload
        content = samples.read(source)
        credit = f"{samples.SAMPLES[source].title}: {samples.SAMPLES[source].credit}, {samples.SAMPLES[source].licence}"
    if len(uploaded) > 1:
        uploaded = [step_through(name, uploaded)]
    with fourth:
        checkpoint = class_source.pick_folded(open_checkpoint(chosen, available), f"{name}_")
    with third:
        size = input_size.pick(checkpoint, f"{SIDES[name]} size", f"{name}_size", narrow=True)
    if uploaded:
        content, credit = uploaded[0].data, ""
    explanation = loading.explained(checkpoint, content, size)
    top = ", ".join(f"{one.label} {format_value(one.probability, checkpoint)}" for one in explanation.predictions[:TOP])
    if top and abstention.is_sure(explanation.logit, checkpoint.facts) is False:
        top = f"not sure: perhaps {top}"
    facts = top or "This model has no classes: its maps are of attention alone"
    return SideContent(checkpoint, explanation, plain(facts), content, credit)


def step_through(name: str, uploaded: Sequence[Upload]) -> Upload:
    """Return the current one of several uploaded pictures, and draw Previous and Next."""
    link = address.read(CompareLink)
    which = (link.a if name == "a" else link.b).which or 1
    here = min(max(which, 1), len(uploaded)) - 1

    def step(index: int) -> None:
        address.rewrite({f"{name}_which": str(index + 1) if index else None})

    stepping.buttons(f"{name}_picture", len(uploaded), here, step)
    return uploaded[here]


def pick_sample(name: str) -> str:
    """Draw the control for a sample or `UPLOAD`, and return the selected one."""
    return link_controls.select(
        f"{SIDES[name]} picture",
        f"{name}_sample",
        [*samples.SAMPLES, UPLOAD],
        format_func=lambda which: "Your own …" if which == UPLOAD else samples.SAMPLES[which].title,
        label_visibility="collapsed",
    )


def open_checkpoint(chosen: str, available: checkpoint_list.AvailableCheckpoints) -> Checkpoint:
    """Open a checkpoint, with the number of heads that the visitor has entered for it.

    Raises:
        UserError: it cannot be opened, or its number of heads is unknown.
    """
    info = available.about(chosen)
    heads = session.of(session.Visit).heads.get(chosen)
    if info.problem and not info.choices:
        raise UserError(info.problem)
    if info.choices and heads is None:
        raise UserError(f"{info.problem} Choose their number on page Explore first.")
    return loading.open_checkpoint(chosen, str(info.folder), loading.stamp(info.folder), heads)


def pick_epoch(name: str, runs: dict[str, TrainedModel]) -> SideContent:
    """Draw the controls for a run, its picture and its epoch."""
    one, other = st.columns(2)
    with one:
        run = runs[
            link_controls.select(
                f"{SIDES[name]} run", f"{name}_run", list(runs), format_func=lambda which: runs[which].name
            )
        ]
    folder, epochs = run.snapshots, attention_snapshots.list_epochs(run.snapshots)
    pictures = attention_snapshots.read_snapshots(folder, epochs[-1])
    with other:
        picture = link_controls.select(
            f"{SIDES[name]} picture",
            f"{name}_probe",
            range(len(pictures)),
            format_func=lambda i: f"{i + 1}: {pictures[i].label}",
        )
    epoch = epochs[0]
    if len(epochs) > 1:
        default = epochs[-1] if name == "b" else epochs[0]  # the first epoch beside the last one
        epoch = link_controls.select(f"{SIDES[name]} epoch", f"{name}_epoch", epochs, default, kind=st.select_slider)
    snapshot = attention_snapshots.read_snapshots(folder, epoch)[picture]
    predictions = ", ".join(
        f"{plain(label)} {format_value(probability)}" for label, probability in snapshot.predictions[:TOP]
    )
    seen = stored(str(folder), epoch, picture, attention_snapshots.stamp(folder, epoch))
    return SideContent(None, seen, f"{predictions} · it is {plain(snapshot.label)}")


def format_value(value: float, checkpoint: Checkpoint | None = None) -> str:
    """Format a probability with few digits, but not as 0%; or a number, see `written`."""
    return written(checkpoint, value, ".0%" if value >= 0.01 else ".1%")


# --- Viewers --------------------------------------------------------------------------------------------------------


@st.fragment
def show_both(left: Side, right: Side, apart: bool, link: dict[str, str]) -> None:
    """Draw classes, methods, viewers and the difference. A click in a viewer reruns only this fragment.

    Args:
        apart: the right side has its own class and view.
        link: values of the controls outside of the fragment when they were drawn.
    """
    link_controls.redraw_if_changed(link)
    navigation.keep("compare")
    with st.container(key="viewers"):
        one, other = st.columns(2, gap="large")
    one_view = not apart and identity_of(left) != identity_of(right)
    seeds = first_shown(left, right, one_view)
    with one, facts_row(left):
        left = replace(left, choice=pick_choice(left))
    with other, facts_row(right):
        shared = None if apart else shared_choice(left, right)
        right = replace(right, choice=shared or pick_choice(right))
        if shared and shared.target is not None:
            predictions = right.example.explanation.predictions
            probability = right.example.explanation.probabilities[shared.target]
            label = right.example.checkpoint.labels[shared.target]
            # The row already states the probability of the first class. One line keeps both pictures at equal height.
            stated = predictions and predictions[0].label == label
            parts = [] if stated else [f"“{plain(label)}” {format_value(probability, right.example.checkpoint)}"]
            parts += ["by the same method"] if session.of(session.Compare).views["b"] == "relevance" else []
            st.caption(", ".join(parts), width="content")
    for column, side in ((one, left), (other, right)):
        selected = selection(side, left, right)
        with column:
            container, feeders = st.container(), st.container()
        with feeders:
            computed, method = method_choice.computed_map(side.example, selected, side.choice, f"{side.name} ")
            pictures = [token_features.open_example(one.example) for one in (left, right)]
            features = token_features.feed(f"{side.name} features", side.example, selected, pictures)
        with container:
            viewer.show(
                f"{side.name} viewer",
                side.payload,
                seeds[side.name],
                computed,
                method,
                group="compare",
                own_view=not one_view,
                model=side.example.checkpoint.hash if side.example.checkpoint else "",
                features=features,
                on_change=partial(remember, side, left, right),
            )
    difference.show([(side, selection(side, left, right)) for side in (left, right)])


def facts_row(side: Side) -> DeltaGenerator:
    """Draw a side's predictions, and return the row that contains them."""
    show_name(side.name, "predictions")
    row = st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", key=f"{side.name} row"
    )
    row.caption(side.facts, width="content")
    return row


def show_name(name: str, below: str) -> None:
    """Draw a side's name above its controls or predictions, on phones only: see appearance.css."""
    with st.container(key=f"{name} name above {below}"):
        st.markdown(f"**{SIDES[name]}**")


def identity_of(side: Side) -> str:
    """Return the identity of the side's checkpoint, "" for a run."""
    return side.example.checkpoint.identity if side.example.checkpoint else ""


def pick_choice(side: Side) -> method_choice.MethodChoice | None:
    """Draw the controls for a side's class and method; None for a run or without methods."""
    if not side.example.checkpoint:
        return None
    choice = method_choice.pick_folded(side.example, f"{side.name}_", SIDES[side.name])
    if missing := method_choice.missing_class(side.example, f"{side.name}_"):
        st.caption(plain(missing))
    return choice


def shared_choice(left: Side, right: Side) -> method_choice.MethodChoice | None:
    """Return the left side's class and method for the right side; None if its model does not have them."""
    choice, one, other = left.choice, left.example.checkpoint, right.example.checkpoint
    if not choice or not other or choice.method not in method_choice.methods_for(other):
        return None
    if choice.target is None or not other.labels:
        return None if other.labels else choice._replace(target=None)
    label = one.labels[choice.target]
    return choice._replace(target=other.labels.index(label)) if label in other.labels else None


def first_shown(left: Side, right: Side, one_view: bool) -> dict[str, Selection]:
    """Return the initial selection of each viewer from the link; afterwards, the viewers synchronise in the browser.

    They are initialised again when the visitor returns to the page, or when the token layout changes.

    Args:
        one_view: both sides show the left one's view.
    """
    state = session.of(session.Compare)
    layouts = [(*side.shape, side.layout) for side in (left, right)]
    same = state.layouts == layouts and state.one_view == one_view
    if not same or not all(f"{name} viewer" in st.session_state for name in SIDES):
        link = address.read(CompareLink)
        for name, text in (("a", link.a.view), ("b", link.b.view)):
            state.views[name] = cast(View, text) if text in get_args(View) else VIEWS[name]
        state.one_view = one_view
        if one_view:
            state.views["b"] = state.views["a"]
        state.lead = "a", Selection.from_query({**link.viewer, "view": state.views["a"]}, *left.shape)
        state.layouts, state.seeds = layouts, {side.name: selection(side, left, right) for side in (left, right)}
    return state.seeds


def selection(side: Side, left: Side, right: Side) -> Selection:
    """Return a side's selection, derived from the viewer that was used last."""
    state = session.of(session.Compare)
    name, chosen = state.lead
    leader = left if name == "a" else right
    token = chosen.token if leader.name == side.name else counterpart(chosen.token, leader.layout, side.layout)
    own = {"token": token, "view": state.views[side.name]}
    return Selection.from_query(asdict(chosen) | own, *side.shape)


def remember(side: Side, left: Side, right: Side, chosen: Selection) -> None:
    """Store a viewer's selection in the session and in the link; the link has the left side's selection."""
    state = session.of(session.Compare)
    state.lead = side.name, chosen
    for name in SIDES if state.one_view else (side.name,):
        state.views[name] = chosen.view
    values = selection(left, left, right).to_query()
    default = Selection.from_query({"colormap": next(iter(COLORMAPS))}, *left.shape).to_query()
    link: dict[str, str | None] = {}
    for name in (*VIEWS, *set(values) - {"view", "hidden"}):
        if name in VIEWS:
            usual = state.views["a"] if state.one_view and name == "b" else VIEWS[name]
            link[f"{name}_view"] = state.views[name] if state.views[name] != usual else None
        else:
            unusual = values[name] != default[name] or (name == "token" and chosen.pinned)
            link[name] = values[name] if unusual else None
    address.rewrite(link)
