"""Initial view of page Explore without a link, and its caption.

The picture and the method were chosen by eye and by measurement among the samples that the shipped model recognises:
church, coffee and cat. With 256 masks, the faithfulness correlation of relevance is 0.37 for the church and 0.25 for
the other two. For the church gradient rollout and Grad-CAM reach slightly more, 0.40 and 0.38, but their maps do not
follow the pointer.
"""

from pages.links import address
from pages.links.page_links import ExploreLink
from vit.view import first_view

VIEW = ExploreLink(sample=first_view.SAMPLE, viewer={"view": "relevance"})
CAPTION = (
    "Relevance for “church” is highest on the tall tower and the tower on the right, then on the walls beside them. "
    "Point at a patch to see the tokens that it received information from; choose *Attention* or one of the maps to "
    "see what each head attends to."
)


def fill() -> None:
    """Fill an empty link with the initial view, without a history entry, see `pages/server/history.js`."""
    if not address.current():
        address.show(VIEW)


def is_shown(checkpoint: str) -> bool:
    """Whether the page shows the initial view, regardless of the pinned token.

    Args:
        checkpoint: name of the current checkpoint.
    """
    link = address.read(ExploreLink)
    same = (link.sample, link.viewer.get("view")) == (VIEW.sample, VIEW.viewer["view"])
    others = link.upload, link.picture, link.frame, link.target, link.method, link.classes.source, link.precision
    return checkpoint == first_view.CHECKPOINT and same and not any((*others, link.heads, link.size))
