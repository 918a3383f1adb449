"""Initial view of page Explore without a link, and its caption.

Two of the samples show a class of the shipped model, the cat and the horse. The model recognises the cat at 32 and
64 px, the horse at 32 px only. Of all maps of these, relevance of the cat at 64 px is the most faithful: SaCo 0.97,
compared with 0.77 for the best of 20 random maps and 0.75 for a blob in the middle. It also follows the pointer.
"""

from pages.links import address
from pages.links.page_links import ExploreLink
from vit.view import first_view

SIZE = first_view.INPUT_SIZE
VIEW = ExploreLink(sample=first_view.SAMPLE, size=str(SIZE[0]), viewer={"view": "relevance"})
CHECKPOINT = "cifar10"
CAPTION = (
    "At 64 px, twice what it was trained at, this speaks for “cat”: one eye and its rim, the fur between the eyes, and "
    "the nose. Point at a patch, or tap it, to see what it drew on; choose *Attention* or one of the maps to see where "
    "each head looks."
)


def fill() -> None:
    """Fill an empty link with the initial view, without a history entry, see `pages/server/history.js`."""
    if not address.current():
        address.show(VIEW)


def link_changes_on_leave() -> dict[str, str]:
    """Return link changes for leaving the initial view: its input size is removed."""
    link = address.read(ExploreLink)
    return {"size": ""} if (link.sample, link.size, link.upload) == (VIEW.sample, VIEW.size, "") else {}


def is_shown(checkpoint: str) -> bool:
    """Whether the page shows the initial view, regardless of the pinned token.

    Args:
        checkpoint: name of the current checkpoint.
    """
    link = address.read(ExploreLink)
    same = (link.sample, link.size, link.viewer.get("view")) == (VIEW.sample, VIEW.size, VIEW.viewer["view"])
    others = link.upload, link.picture, link.frame, link.target, link.method, link.classes.source, link.precision
    return checkpoint == CHECKPOINT and same and not any((*others, link.heads))
