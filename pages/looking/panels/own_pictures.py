"""A strip of the visitor's uploaded pictures."""

from collections.abc import Callable, Sequence

import streamlit as st

from pages.components import gallery
from pages.components.gallery import Thumbnail
from pages.links import address, session
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.server import uploaded_pictures
from pages.server.result_cache import cached
from pages.server.uploaded_pictures import MOST_TOGETHER, Upload
from pages.shared import stepping
from vit.errors import UserError
from vit.images.files import decode
from vit.images.files import video as videos


def show(on_choose: Callable[[str, str], None]) -> None:
    """Draw the strip if there are several pictures.

    Args:
        on_choose: called with a picture's name and key before the rerun that a click causes.
    """
    pictures = uploaded()
    if len(pictures) < 2:
        return
    keys = [one["name"] for one in pictures]
    link = address.read(ExploreLink)
    here = keys.index(link.picture) if link.picture in keys else None

    def choose(key: str) -> None:
        on_choose(pictures[keys.index(key)]["credit"], key)

    with st.container(key="own_pictures", horizontal=True, vertical_alignment="center", gap="small"):
        gallery.show("own pictures", None if here is None else keys[here], choose, pictures, "Your pictures")
        stepping.buttons("own pictures", len(keys), here, lambda number: choose(keys[number]))


def add(sources: Sequence[Source]) -> str:
    """Append pictures to the strip, and return the key of all for the link.

    Returns "" for a single picture, or if the server cannot store them.
    """
    new = [(one.name, uploaded_pictures.store(one.data)) for one in sources] if _several(sources) else []
    entries = {key: name for name, key in [*_entries(), *new]}
    if len(entries) < 2:
        return ""
    return uploaded_pictures.store_list([(name, key) for key, name in entries.items()][-MOST_TOGETHER:])


def uploaded() -> tuple[Thumbnail, ...]:
    """Return the link's pictures that are still stored, with the key as name and the file name as credit."""
    key, scope = address.read(ExploreLink).pictures, uploaded_pictures.cache_scope()
    if not key:
        return ()

    def address_of(one: Upload) -> str:  # cached by picture, since every upload makes another strip
        source: str = cached(("own picture", scope, one.key), lambda: _address(one.data))
        return source

    def work() -> tuple[Thumbnail, ...]:
        pictures = uploaded_pictures.find_all(key)
        return tuple(Thumbnail(name=one.key, credit=one.name, source=address_of(one)) for one in pictures)

    strip: tuple[Thumbnail, ...] = cached(("own pictures", scope, key), work)
    return strip


def other_keys(key: str, most: int) -> list[str]:
    """Return keys of at most `most` other pictures of the strip, without videos; none if `key` is not in the strip."""
    strip = uploaded()
    if key not in [one["name"] for one in strip]:
        return []
    others = [one["name"] for one in strip if one["name"] != key and one["source"] != _FILM]
    return [one for one in others if uploaded_pictures.is_stored(one)][:most]


def _several(sources: Sequence[Source]) -> bool:
    """Whether the strip will have more than one picture with these."""
    return len(sources) > 1 or bool(_entries())


def _entries() -> list[tuple[str, str]]:
    """Return names and keys of the strip's pictures, or of the current single upload."""
    if strip := uploaded():
        return [(one["credit"], one["name"]) for one in strip]
    stored, upload = session.of(session.Explore).stored_upload, session.of(session.Explore).upload
    link = address.read(ExploreLink)
    return [(upload.name, stored.key)] if upload and stored.key and link.picture == stored.key else []


def _address(data: bytes) -> str:
    if videos.is_video(data):
        return _FILM
    try:
        return gallery.address_of(decode.decode_image(data, least=gallery.SIDE))
    except UserError:  # readable when it was uploaded, but no longer
        return _FILM


_FILM = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 9 9'%3E%3Crect width='9' height='9' "
    "fill='%23888'/%3E%3Cpath d='M3 2l4 2.5L3 7z' fill='white'/%3E%3C/svg%3E"
)
