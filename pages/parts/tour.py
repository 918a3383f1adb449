"""Seven short steps that teach to read the page, on the samples and the shipped checkpoint."""

from typing import NamedTuple

import streamlit as st

CHECKPOINT = "cifar10"


class Step(NamedTuple):
    """One step.

    Attributes:
        title, words: what to learn, and where to look for it.
        link: what the page shows for it, as its address says it; everything else is as at first.
    """

    title: str
    words: str
    link: dict[str, str]


STEPS = (
    Step(
        "Patches",
        "A Vision Transformer cuts the picture into a grid, here 8 × 8, and from then on knows only these "
        "**patches**. Small on the right is what this model saw: 32 × 32 pixels. Tick *Patch lines* below the"
        " picture to see the grid.",
        {"sample": "cat"},
    ),
    Step(
        "Tokens",
        "Each patch becomes a list of numbers, a **token**. One more token, the **class token** below the "
        "picture, belongs to no patch: the answer is read from it after the last block. The colours show from"
        " which patches it gathers there.",
        {"sample": "cat", "block": "5", "head": "mean"},
    ),
    Step(
        "Query and key",
        "In every head each token asks a question, its **query**, and looks at the tokens whose **keys** fit."
        " The outlined patch on the eye asks; move the pointer over others to make them ask. *Who looks at "
        "it* turns the question around.",
        {"sample": "cat", "block": "2", "head": "0", "token": "22", "pinned": "1"},
    ),
    Step(
        "Heads",
        "Every block has several **heads** that look for different things at the same time. This one, block 2"
        " head 3, is local: it gives 36 % of its attention to the eight patches around. Hover its neighbours "
        "in the grid on the right. *Heads* below the picture has these numbers for all.",
        {"sample": "cat", "block": "1", "head": "2", "token": "22", "pinned": "1", "panel": "Heads"},
    ),
    Step(
        "Blocks",
        "**Blocks** work one after the other, each on what the last one left. Read after every block, the "
        "answer becomes “cat” at block 3 and sure only in the last one: see the curves below.",
        {"sample": "cat", "block": "2", "head": "mean", "panel": "Layers"},
    ),
    Step(
        "Rollout or relevance",
        "One block's attention is not the whole way. **Rollout** multiplies all blocks and asks where content"
        " came from, whatever the class. **Relevance** also asks which of it speaks for the class, “horse” "
        "here. Switch between the two above the picture, and watch the measurement below.",
        {"sample": "horse", "view": "relevance"},
    ),
    Step(
        "When not to believe a map",
        "Attention shows where information moves, not why the answer is what it is. Below, parts of the "
        "picture are taken away: if what the map calls important matters no more than random patches, do not "
        "believe it. Here the last block's attention fails. Try other methods, and your own picture.",
        {"sample": "cat", "block": "5", "head": "mean"},
    ),
)


def offer() -> None:
    """A button that starts the tour."""
    if _current() is None:
        st.button("New here? Seven short steps", key="start tour", on_click=_go, args=(0,), width="stretch")


def show() -> None:
    """The step that the link names, if any, with the way on and back."""
    number = _current()
    if number is None:
        return
    step = STEPS[number]
    with st.container(border=True):
        st.markdown(f"**{number + 1} of {len(STEPS)}. {step.title}**  \n{step.words}")
        with st.container(horizontal=True):
            last = number == len(STEPS) - 1
            st.button("Back", key="tour back", on_click=_go, args=(number - 1,), disabled=number == 0)
            if last:
                st.button("Done", key="tour end", on_click=_end, type="primary")
            else:
                st.button("Next", key="tour next", on_click=_go, args=(number + 1,), type="primary")
                st.button("End the tour", key="tour end", on_click=_end)


def _current() -> int | None:
    asked = st.query_params.get("tour", "")
    number = int(asked) - 1 if asked.isdecimal() and len(asked) < 3 else -1
    return number if 0 <= number < len(STEPS) else None


def _go(number: int) -> None:
    """Show what a step shows, and nothing of what was chosen before."""
    st.query_params.from_dict({"tour": str(number + 1), **STEPS[number].link})
    for key in ("size", "precision", "target", "method", "panel", "curves", "ranking", "heads", "statistic"):
        st.session_state.pop(key, None)
    st.session_state.checkpoint = CHECKPOINT
    st.session_state.source = "sample"


def _end() -> None:
    st.query_params.pop("tour", None)
