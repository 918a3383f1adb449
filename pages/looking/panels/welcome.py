"""Initial view of page Explore without a link.

The method is the recommended one of the shipped model. Among the samples that the model recognises, coffee and cat,
the cat fills its picture, and so does its map. With 256 masks, the faithfulness correlation of AttnLRP is 0.45 for the
coffee (gradient rollout 0.24, relevance 0.16). No mask lowers the class by more than 2%.
"""

from pages.links import address
from pages.links.page_links import ExploreLink
from vit.view import first_view

VIEW = ExploreLink(sample=first_view.SAMPLE, method=first_view.METHOD, viewer={"view": "relevance"})


def fill() -> None:
    """Fill an empty link with the initial view, without a history entry, see `pages/server/history.js`."""
    if not address.current():
        address.show(VIEW)
