"""What the page shows to whoever opens it without a link, and what is to be seen there.

Two of the samples show a class that the shipped model knows, the cat and the horse. It finds the cat at 32 and 64 px,
the horse at 32 px only. Of all maps of these, relevance of the cat at 64 px is the truest: SaCo 0.97, where the best of
20 random maps has 0.77 and a blob in the middle 0.75. It follows the pointer, too.
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
    """Make an empty link the first view's; no step of the browser's Back, see `pages/server/history.js`."""
    if not address.current():
        address.show(VIEW)


def left() -> dict[str, str]:
    """What changes in the link with the first view's picture or checkpoint: the input size chosen for them goes."""
    link = address.read(ExploreLink)
    return {"size": ""} if (link.sample, link.size, link.upload) == (VIEW.sample, VIEW.size, "") else {}


def is_shown(checkpoint: str) -> bool:
    """Whether the page shows the first view, whatever is pinned in it.

    Args:
        checkpoint: its name.
    """
    link = address.read(ExploreLink)
    same = (link.sample, link.size, link.viewer.get("view")) == (VIEW.sample, VIEW.size, VIEW.viewer["view"])
    others = link.upload, link.picture, link.frame, link.target, link.method, link.classes.source, link.precision
    return checkpoint == CHECKPOINT and same and not any((*others, link.heads))
