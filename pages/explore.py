"""The main page: a picture in, what the model makes of it, and where every head of every block looks."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import streamlit as st

from pages.components import viewer
from pages.panels import (
    downloads,
    faithfulness,
    first_view,
    layers,
    picture_picker,
    tour,
    unlike_training,
    welcome,
    what_if,
)
from pages.panels import heads as head_panel
from pages.shared import bars, class_question, link_controls, loading, navigation, session
from pages.shared.escape import plain
from pages.shared.source import Source
from vit.checkpoints import convert, families, hub, manage
from vit.errors import UserError
from vit.explain import input_sizes, map_comparison, self_check
from vit.explain import record as recording
from vit.images import decode, samples
from vit.view import overlay
from vit.view.selection import Selection

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

    from pages.shared.class_question import Example, Question
    from vit.checkpoints.checkpoint import Checkpoint, CheckpointInfo
    from vit.explain.record import AttentionRecord, Precision
    from vit.view.explanation import Explanation
    from vit.view.first_view import Explanation as StoredExplanation
    from vit.view.first_view import FirstView, Model

navigation.start_page("explore")
welcome.fill()

TOP = 5  # predictions shown
PANELS = {  # below the viewer, by the name that links have
    "faithfulness": "Is it true?",
    "what-if": "What if?",
    "heads": "Heads",
    "layers": "Layers",
    "weights": "Weights",
}
OF_CLASSES = ("faithfulness", "layers")  # panels that ask about a class
OUTSIDE = ("checkpoint", "heads", "size", "precision", "sample", "picture", "frame")  # of the viewer, in links
FEW = 20  # classes that are listed by name
SEEN = 96  # width of the model's own view [px]


@st.cache_resource(show_spinner=False, max_entries=6)
def verified(identity: str, _checkpoint: Checkpoint) -> self_check.Verification:
    """How far the attention that is shown is from the one that the model uses, on the sample picture."""
    return self_check.verify(
        _checkpoint.model, _checkpoint.preprocess(decode.decode_image(samples.read(welcome.VIEW["sample"])))
    )


def pick_checkpoint() -> Checkpoint:
    """Let the person choose a checkpoint, or the best one of a run; stop with a hint where there is none."""
    offered = loading.offered()
    names = offered.names
    if not names:
        st.info("There is no checkpoint yet. Train one: `python -m vit train --preset shapes`")
        st.stop()

    linked = st.query_params.get("checkpoint")
    if linked and linked not in names and (here := hub.find(linked)):
        st.query_params["checkpoint"] = str(here.name)
    elif linked and linked not in names and hub.parse(linked):
        st.info(f"{plain(linked)} is not here yet.")
        navigation.link("Fetch it", "checkpoints", {"fetch": linked})
    elif linked and linked not in names:
        st.info(f"There is no checkpoint {plain(linked)}. This is another one.")
    name = link_controls.select(
        "Checkpoint", "checkpoint", names, words=offered.title, along=dict.fromkeys(("heads", "target", "off"))
    )
    info = offered.about(name)
    for broken in offered.every if not info.problem else [info]:
        if broken.problem and not broken.choices:
            st.caption(f"{plain(broken.name)} cannot be opened. {plain(broken.problem)}")
    if info.problem and not info.choices:
        st.stop()
    stamp = loading.stamp(info.folder)
    heads = asked_heads(name)
    if info.choices and heads is None:
        st.info(plain(info.problem))
        pick_heads(name, info.choices, None)
        st.stop()
    try:
        checkpoint = loading.open_checkpoint(name, str(info.folder), stamp, heads)
    except UserError as error:  # a number of heads that the link asks for and the weights cannot have, above all
        st.error(plain(str(error)))
        if info.choices:
            pick_heads(name, info.choices, heads)
        if info.choices or heads is None:
            st.stop()
        checkpoint = loading.open_checkpoint(name, str(info.folder), stamp, None)
    show_facts(checkpoint, info)
    offer_conversion(checkpoint)
    if "heads" in checkpoint.assumed:
        pick_heads(name, families.possible_heads(checkpoint.config.dim), checkpoint.config.heads)
    show_self_check(checkpoint, verified(checkpoint.identity, checkpoint).error)
    return checkpoint


def show_self_check(checkpoint: Checkpoint | Model, error: float) -> None:
    """How far the attention that is shown is from the one that the model uses."""
    cannot = " It cannot tell whether the number of heads is right." if "heads" in checkpoint.assumed else ""
    st.caption(
        f"Self-check: the attention shown gives what every block computed, to {error:.0e}.{cannot}",
        help="Measured on a sample picture: what the viewer shows against what the model's own pass computed, relative "
        "to the largest number; 1e-05 and less is rounding. It would show a wrong scale or order of the attention; it "
        "cannot show a wrong number of heads.",
    )


def asked_heads(name: str) -> int | None:
    """The number of attention heads that the person chose, which the link carries, or chose earlier."""
    linked = st.query_params.get("heads", "")
    if linked.isdecimal() and len(linked) < 4:
        return int(linked)
    earlier = session.of(session.Visit).heads.get(name)
    if earlier is not None:
        st.query_params["heads"] = str(earlier)
    return earlier


def pick_heads(name: str, choices: tuple[int, ...], current: int | None) -> None:
    """Let the person say how many attention heads a checkpoint has, where no file does."""

    def remember(heads: int) -> None:
        st.query_params["heads"] = str(heads)
        session.of(session.Visit).heads[name] = heads

    current = current if current in choices else None
    key = link_controls.key_of("heads", current, (name, choices))
    st.selectbox(
        "Attention heads",
        choices,
        None if current is None else choices.index(current),
        key=key,
        on_change=link_controls.on_change,
        args=(key, remember),
        placeholder="Choose",
        help="The weights do not tell. A wrong number loads without error and makes every map wrong: look it up where "
        "the file comes from.",
    )


def show_stored_model(view: FirstView) -> None:
    """What `pick_checkpoint` and `pick_size` show of the shipped checkpoint, before others can be chosen."""
    checkpoint = view.checkpoint
    st.selectbox("Checkpoint", [checkpoint.name], disabled=True)
    show_facts(checkpoint, checkpoint)
    st.popover("For another library", width="stretch", disabled=True)
    show_self_check(checkpoint, view.error)
    option = f"{loading.pixels(view.size)} px · {view.explanation.record.tokens:,} tokens"
    st.selectbox("Input size", [option], disabled=True)
    first_view.wait()


def show_facts(checkpoint: Checkpoint | Model, info: CheckpointInfo | Model) -> None:
    """What is known about a checkpoint, as a small table, and its card."""
    config, facts = checkpoint.config, info.facts
    height, width = config.image_size
    rows = {
        "Trained at": f"{width} × {height} px",
        "Patches": f"{config.grid[0]} × {config.grid[1]} of {config.patch_size} px",
        "Blocks × heads": f"{config.depth} × {config.heads}",
        "Width": str(config.dim),
        "Parameters": f"{checkpoint.params / 1e6:.2f} M",
        "Classes": str(len(checkpoint.labels) or "none"),
    }
    if info.family and info.family != "saved":
        rows["File from"] = info.family
    if isinstance(facts.get("accuracy"), float):
        rows["Test accuracy"] = f"{facts['accuracy']:.1%}"
    elif isinstance(facts.get("validation_accuracy"), float):
        rows["Validation accuracy"] = f"{facts['validation_accuracy']:.1%}"
    st.html(
        FACTS_STYLE + "".join(f"<div class=fact><span>{k}</span><b>{html.escape(v)}</b></div>" for k, v in rows.items())
    )
    if 0 < len(checkpoint.labels) <= FEW and "labels" not in checkpoint.assumed:
        st.caption(f"It knows {', '.join(plain(label) for label in checkpoint.labels)}.")
    assumed = dict(checkpoint.assumed)
    if "heads" in assumed:  # the one that makes every map wrong, so it stands beside its control
        st.warning(plain(assumed.pop("heads")))
    if assumed:
        with st.popover(f"Assumed: {', '.join(assumed)}", width="stretch"):
            for field, why in assumed.items():
                st.caption(f"**{plain(str(field))}**: {plain(str(why))}")
    if checkpoint.card:
        with st.popover("Model card", width="stretch"):
            st.code(FRONT_MATTER.sub("", checkpoint.card), language="markdown", wrap_lines=True)


def offer_conversion(checkpoint: Checkpoint) -> None:
    """The checkpoint as another library opens it, or why that library cannot."""
    popover = st.popover("For another library", width="stretch", key="conversion", on_change="rerun")
    if not popover.open:  # four libraries' names for every tensor are not worked out for nobody
        return
    with popover:
        to = st.selectbox("Library", get_args(convert.To), key="library")
        if problem := convert.obstacle(checkpoint, to):
            st.info(plain(problem))
            return
        name = checkpoint.path.name + convert.SUFFIXES.get(to, (f"-{to}.zip",))[0]
        st.download_button(
            "Download",
            lambda: manage.converted(checkpoint, to)[1],
            name,
            "application/octet-stream",
            key=f"convert {to}",
            on_click="ignore",
            type="primary",
        )
        st.code(
            "\n".join(convert.how_to_open(checkpoint, Path(checkpoint.path.name), to)),
            language="python",
            wrap_lines=True,
        )


FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)
FACTS_STYLE = """<style>
.fact { display: flex; justify-content: space-between; font-size: 0.875rem; line-height: 1.6; }
.fact span { opacity: 0.7; }
.fact b { font-weight: 500; font-variant-numeric: tabular-nums; }
</style>"""


def pick_size(checkpoint: Checkpoint) -> tuple[tuple[int, int], Precision]:
    """Let the person enlarge the model's input, at a cost told before; returns (height, width) and the precision."""
    if factor := st.query_params.get("factor", ""):  # older links enlarge by that
        link: dict[str, str | None] = {"factor": None}
        if factor in map(str, range(2, 9)):
            link["size"] = loading.pixels(input_sizes.enlarged_size(checkpoint, int(factor)))
        navigation.rewrite(link)
    return loading.pick_size(checkpoint, "Input size", "size"), pick_precision()


def pick_precision() -> Precision:
    """Let the person trade exactness for time, where the processor is faster at that."""
    if st.query_params.get("precision") != "bfloat16" and not recording.has_bfloat16():
        return "float32"
    rounded = link_controls.toggle(
        "Fast, slightly inexact (bfloat16)",
        "precision",
        "bfloat16",
        help="Rounds what goes into every product to 8 bits. Probabilities and weights change in the second or third "
        "digit. Off, everything is computed in float32.",
    )
    return "bfloat16" if rounded else "float32"


def show_predictions(checkpoint: Checkpoint | Model, explanation: Explanation | StoredExplanation) -> None:
    """The most probable classes as bars, beside what the model saw."""
    chart, seen = st.columns([3, 1])
    if not explanation.predictions:
        chart.info("This model has no classes, so it predicts none. All about its attention is below.")
        show_seen(seen, explanation)
        return
    top = explanation.predictions[:TOP]
    names = ", ".join(f"{p.label} {p.probability:.0%}" for p in top)
    with chart:
        bars.show([bars.Bar(p.label, p.probability, p == top[0]) for p in top], f"Predictions: {names}")
        unlike_training.show(checkpoint, explanation)
    show_seen(seen, explanation)
    if welcome.is_shown(checkpoint.name):
        st.markdown(welcome.WORDS)


def show_seen(place: DeltaGenerator, explanation: Explanation | StoredExplanation) -> None:
    """The picture as the model saw it, enlarged."""
    width, height = explanation.input_image.size
    with place:
        st.image(
            explanation.input_image.resize((SEEN, SEEN * height // width), 0), width=SEEN, alt="What the model saw"
        )
        st.caption(f"What it saw: {width} × {height} px")


def feed(payload: bytes) -> str:
    """Bring a payload to the browser; outside the fragment, so that a click does not touch it."""
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
    """The viewer, its downloads, and what follows from what it shows; a click in it reruns this part alone.

    Args:
        link: what it said of the controls outside when they were drawn.
        stored: the first view, while there is no PyTorch to compute what follows.
    """
    link_controls.redraw_if_changed(link)
    navigation.keep("explore")
    record = explanation.record
    shape = record.blocks, record.heads, record.tokens

    def remember(selection: Selection) -> None:
        default = Selection.from_query({"colormap": next(iter(overlay.COLORMAPS))}, *shape).to_query()
        chosen = selection.to_query()
        unusual = {name for name in chosen if chosen[name] != default[name] or (name == "token" and selection.pinned)}
        navigation.rewrite({name: chosen[name] if name in unusual else None for name in chosen})

    if not stored:
        keep_place(record)
    example = class_question.Example(f"{payload} {checkpoint.identity}", checkpoint, explanation, stored=stored)
    question = class_question.pick(example)
    wanted = Selection.from_query(st.query_params, *shape)
    with st.container(gap=None):
        tour.mark_map()
        container = st.container()
    more, below, feeders = (st.container() for _ in range(3))
    with feeders:  # behind the viewer, which would be mounted anew if something came in before it
        computed, method = class_question.computed_map(example, wanted, question)
    of_class = question if question and question.target is not None else None
    with below:
        panel = pick_panel(of_class)
        occlusion = None
        if panel == "what-if" and not stored:
            occlusion = what_if.under_pointer(example, of_class, wanted)
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
            on_change=remember,
        )

    if stored:
        with below:
            first_view.wait()
        return
    with more:
        map_view, page_map, code = class_question.for_export(example, selection, question, computed, method)
        downloads.show(explanation, selection, checkpoint, source, map_view, code, **page_map)
    with below:
        show_panel(example, of_class, selection, panel)


def keep_place(record: AttentionRecord) -> None:
    """Of another grid, keep the token that the link asks about at its place on the picture.

    A link that names another token than before, by the browser's way back or the tour, means one of its own grid.
    """
    here = map_comparison.Layout(record.prefix, record.grid)
    state = session.of(session.Explore)
    before, linked = state.place or (here, {})
    now = {name: st.query_params.get(name, "") for name in ("token", "hidden")}
    if before != here and now == linked:
        token = now["token"]
        link: dict[str, str | None] = {"hidden": None}
        if token.isdecimal() and len(token) < 6 and int(token) < len(before.prefix) + before.grid[0] * before.grid[1]:
            link["token"] = now["token"] = str(map_comparison.counterpart(int(token), before, here))
        navigation.rewrite(link)
        now["hidden"] = ""
    state.place = here, now


def pick_panel(question: Question | None) -> str:
    """What is shown below the viewer."""
    names = [name for name in PANELS if question or name not in OF_CLASSES]
    st.markdown("## Ask more")
    return link_controls.select(
        "Ask more", "panel", names, words=PANELS.get, kind=st.segmented_control, label_visibility="collapsed"
    )


def show_panel(example: Example, question: Any, selection: Selection, panel: str) -> None:
    """What goes beyond looking at a map."""

    def select(cell: tuple[int, int]) -> None:
        st.query_params.update({"block": str(cell[0]), "head": str(cell[1]), "view": "attention"})

    if panel == "faithfulness":
        faithfulness.show(example, question, selection)
    elif panel == "what-if":
        what_if.show(example, question, selection)
    elif panel == "heads":
        head_panel.show(example, question, selection, select)
    elif panel == "layers":
        layers.show(example, question)
    else:
        layers.show_weights(example)


def look_ahead() -> None:
    """Compute what the page asks for where nothing else was chosen, so that all of it is drawn in one go."""
    folder = loading.shipped_folder()
    assert folder is not None, "the first view is of the shipped checkpoint"
    checkpoint = loading.open_checkpoint(loading.SHIPPED, str(folder), loading.stamp(folder), None)
    loading.explained(checkpoint, samples.read(welcome.VIEW["sample"]), welcome.SIZE)
    verified(checkpoint.identity, checkpoint)


def main() -> None:
    """The page. In a function, as Streamlit keeps the names of a page's file for long: not this picture and model."""
    with st.sidebar:
        st.title("ViT attention explorer")
        st.caption("Hover a patch: where does it look? Click to pin it.")
        tour.offer()
        model_controls = st.container()
    tour.show()
    inputs, predictions = st.columns(2, gap="large")
    waiting = st.container()  # for what says that it takes long: a place of its own in every run
    with inputs:
        source = picture_picker.pick_picture()  # before anything that imports torch: a newcomer sees the page at once
    if stored := first_view.stored(source):
        with model_controls:
            show_stored_model(stored)
        with predictions:
            show_predictions(stored.checkpoint, stored.explanation)
        link = link_controls.link_of(OUTSIDE)
        show_viewer(stored.checkpoint, stored.explanation, feed(stored.explanation.payload), source, link, stored)
        first_view.load_rest(look_ahead)
        return
    with model_controls:
        loading.start_torch()
        checkpoint = pick_checkpoint()
        if checkpoint.name != welcome.CHECKPOINT:
            navigation.rewrite(welcome.left())
        size, precision = pick_size(checkpoint)
    with inputs:
        source = picture_picker.pick_frame(source)

    def explained(source: Source) -> Explanation:
        with waiting:
            return loading.explained(checkpoint, source.data, size, precision, source.frame)

    try:
        explanation = explained(source)
    except UserError as error:
        picture_picker.forget(source)
        source = picture_picker.sample_source(picture_picker.current_sample())
        with inputs:
            st.error(plain(str(error)))
            st.caption(f"Instead, this is the sample “{samples.SAMPLES[source.sample].title}”.")
        explanation = explained(source)
    else:
        picture_picker.carry(source)
    with predictions:
        show_predictions(checkpoint, explanation)
    show_viewer(checkpoint, explanation, feed(explanation.payload), source, link_controls.link_of(OUTSIDE))


main()
