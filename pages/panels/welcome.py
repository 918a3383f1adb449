"""What the page shows to whoever opens it without a link, and what is to be seen there.

Two of the samples show a class that the shipped model knows, the cat and the horse. It finds the cat at 32 and 64 px,
the horse at 32 px only. Of all maps of these, relevance of the cat at 64 px is the truest: SaCo 0.97, where the best of
20 random maps has 0.77 and a blob in the middle 0.75. It follows the pointer, too.
"""

import streamlit as st

from vit.view import first_view

SIZE = first_view.INPUT_SIZE
VIEW = {"sample": first_view.SAMPLE, "size": str(SIZE[0]), "view": "relevance"}  # as links have it
CHECKPOINT = "cifar10"
WORDS = (
    "At 64 px, twice what it was trained at, this speaks for “cat”: one eye and its rim, the fur between the eyes, and "
    "the nose. Point at a patch to see what it drew on; choose *Attention* or one of the maps to see where each head "
    "looks."
)


def fill() -> None:
    """Make an empty link the first view's; no step of the browser's Back, see `pages/shared/history.js`."""
    if not st.query_params:
        st.query_params.from_dict(VIEW)


def left() -> dict[str, None]:
    """What leaves the link with the first view's picture or checkpoint: the input size chosen for them."""
    here = all(st.query_params.get(name) == VIEW[name] for name in ("sample", "size"))
    return {"size": None} if here and "upload" not in st.query_params else {}


def is_shown(checkpoint: str) -> bool:
    """Whether the page shows the first view, whatever is pinned in it.

    Args:
        checkpoint: its name.
    """
    linked = st.query_params.to_dict()
    others = {"upload", "picture", "frame", "target", "method", "precision", "heads"}
    return checkpoint == CHECKPOINT and VIEW.items() <= linked.items() and not others & linked.keys()
