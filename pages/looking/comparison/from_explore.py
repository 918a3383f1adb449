"""Initial state of page Compare, derived from page Explore."""

from dataclasses import replace

from pages.links import session
from pages.links.page_links import CompareLink, ExploreLink, SideLink
from pages.server import uploaded_pictures
from pages.server.uploaded_pictures import Upload


def link() -> CompareLink:
    """Return a link with page Explore's picture, checkpoint, class and view on the left; the right side follows it.

    Two maps of the same checkpoint have different views: if the left side shows relevance, the right shows attention.
    """
    link = ExploreLink.from_query(session.of(session.Visit).links["explore"])
    view = link.viewer.get("view", "")
    left = SideLink(
        checkpoint=link.checkpoint,
        sample=link.sample,
        size=link.size,
        classes=link.classes,
        target=link.target,
        method=link.method,
        view=view,
    )
    upload = session.of(session.Explore).upload
    if (link.upload or link.picture) and upload:
        one = Upload.of(upload.name, upload.data)
        keys = [each.key for each in uploaded_pictures.find_all(link.pictures)]
        if one.key in keys:
            left = replace(left, sample="upload", picture=link.pictures, which=keys.index(one.key) + 1)
        else:
            left = replace(left, sample="upload", picture=uploaded_pictures.store_all([one]))
    right = SideLink(
        checkpoint=link.checkpoint,
        size=link.size,
        classes=link.classes,
        view="attention" if view == "relevance" else "",
    )
    shared = {name: value for name, value in link.viewer.items() if name not in ("view", "hidden")}
    return CompareLink(a=left, b=right, viewer=shared)
