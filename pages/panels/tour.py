"""A tour of page Explore in seven steps, with the samples and the shipped checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import streamlit as st

from pages.links import address, session
from pages.links.page_links import ExploreLink

CHECKPOINT = "cifar10"
MAP, PANELS = "map", "analysis"  # anchors that links in a step lead to
_point = st.components.v2.component(
    "vit_tour",
    js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"),
    html='<p role="status" hidden>✓ Done.</p>',
    css="p { margin: 0; font-size: 0.875rem; color: light-dark(#2b6f77, #7cc4cb); font-weight: 600; }",
)
CLICK, HOVER = "click", "pointerover"  # DOM events that count as using a control


class Step(NamedTuple):
    """A step of the tour.

    Attributes:
        title, text: the lesson.
        task: what the visitor should do.
        control: prefix of the accessible name of the control for the task.
        link: state of the page for this step.
        act: DOM event that completes the task.
    """

    title: str
    text: str
    task: str
    control: str
    link: ExploreLink
    act: str = CLICK


def _below(panel: str) -> str:
    """Return a markdown link from a panel's name to the panels."""
    return f"[{panel}](#{PANELS})"


STEPS = (
    Step(
        "Patches",
        "A Vision Transformer cuts the picture into a grid, here 8 × 8, and from then on sees only these "
        "**patches**. *The model's input* is all that this model gets: 32 × 32 pixels.",
        "Open *Display* and tick *Patch lines* to see the grid.",
        "Display",
        ExploreLink(sample="cat"),
    ),
    Step(
        "Tokens",
        "Each patch becomes a list of numbers, a **token**. One more, the **class token**, belongs to no patch: the "
        "prediction is read from it after the last block. The colours show which patches it attends to there.",
        "Point at *Class token* below the map, or tap it.",
        "Class token",
        ExploreLink(sample="cat", viewer={"block": "5", "head": "mean"}),
        HOVER,
    ),
    Step(
        "Query and key",
        "In every head each token has a **query** and attends to the tokens whose **keys** match it. The query is "
        "that of the outlined patch, an eye. Try others.",
        "Reverse the direction: press *Attended by*.",
        "Attended by",
        ExploreLink(sample="cat", viewer={"block": "2", "head": "0", "token": "31", "pinned": "1"}),
    ),
    Step(
        "Heads",
        "Every block has several **heads** that look for different things. Block 2 head 4 is local: patches give "
        f"36.4% of their attention to the eight around them, the most of all heads. {_below('Heads')} has all numbers.",
        "Click another head in the grid beside the map.",
        "Every block and head",
        ExploreLink(
            sample="cat",
            panel="heads",
            statistic="neighbours",
            viewer={"block": "1", "head": "3", "token": "31", "pinned": "1"},
        ),
    ),
    Step(
        "Blocks",
        "**Blocks** run one after the other, each on the output of the one before. Read after every block, the "
        "prediction becomes “cat” at block 3, and confident only in the last one: see the curves in "
        f"{_below('Layers')}.",
        "Click another block in the grid beside the map.",
        "Every block and head",
        ExploreLink(sample="cat", panel="layers", viewer={"block": "2", "head": "mean"}),
    ),
    Step(
        "Rollout or relevance",
        "One block is a single step. **Rollout** traces attention through all blocks, whatever the class; "
        "**relevance** shows the evidence for the predicted class. This prediction is wrong, and relevance shows what "
        f"it is based on, where rollout is no better than chance: {_below('Faithfulness')} has measured it.",
        "Press *Rollout*.",
        "Rollout",
        ExploreLink(sample="coffee", viewer={"view": "relevance"}),
    ),
    Step(
        "When a map is misleading",
        "Attention shows where information moves, not why the answer is what it is. "
        f"{_below('Faithfulness')} masks parts of the picture: here the last block's map predicts the drop of the "
        "class no better than shifted copies of it. Check other methods, and your own pictures.",
        "Press *Faithfulness* below.",
        "Faithfulness",
        ExploreLink(sample="cat", panel="weights", viewer={"block": "5", "head": "mean"}),
    ),
)


def mark_map() -> None:
    """Draw the anchor of *See it*, which takes no space, see appearance.css."""
    with st.container(key="anchor"):
        st.html(f'<div id="{MAP}" style="scroll-margin-top: 4rem"></div>')


def offer() -> None:
    """Draw a button that starts the tour."""
    if _current() is None:
        st.button("New here?", key="start tour", help="Seven short steps.", on_click=_start, type="tertiary")


def show() -> None:
    """Draw the current step, if any, with Back and Next.

    It is fixed at the bottom of the window, so that the visitor can scroll the page while reading it.
    """
    number = _current()
    if number is None:
        return
    step, last = STEPS[number], number == len(STEPS) - 1
    # The step covers the page, so reduce Streamlit's padding.
    st.html("<style>[data-testid=stBottomBlockContainer] { padding-bottom: 1rem; }</style>")
    with st.bottom:
        text, buttons = st.columns([4, 1], gap="medium")
        with text.container(gap=None):
            st.markdown(
                f"**{number + 1} of {len(STEPS)}. {step.title}** · [See\u00a0it](#{MAP})  \n{step.text} **{step.task}**"
            )
            data = {"step": number + 1, "map": MAP, "control": step.control, "act": step.act}
            _point(key="tour scroll", data=data, height="content")
        with buttons.container(horizontal=True, gap="small"):
            st.button("Back", key="tour back", on_click=_go, args=(number - 1,), disabled=number == 0)
            if last:
                st.button("Done", key="tour end", on_click=_end, type="primary")
            else:
                st.button("Next", key="tour next", on_click=_go, args=(number + 1,), type="primary")
                st.button("End the tour", key="tour end", on_click=_end)


def _current() -> int | None:
    step = address.read(ExploreLink).tour
    return step - 1 if step and step <= len(STEPS) else None


def _start() -> None:
    """Store the page's state, and go to the first step."""
    here = session.of(session.Explore)
    here.before_tour = address.read(ExploreLink), here.source
    _go(0)


def _go(number: int) -> None:
    """Go to a step, resetting all other selections."""
    address.show(replace(STEPS[number].link, tour=number + 1, checkpoint=CHECKPOINT))
    session.of(session.Explore).source = "sample"


def _end() -> None:
    """End the tour and restore the state before it; without one, keep the state of the step."""
    here = session.of(session.Explore)
    if here.before_tour is None:
        address.change(ExploreLink, tour=None)
        return
    (link, here.source), here.before_tour = here.before_tour, None
    address.show(link)
