"""Uploader for one or several pictures."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from pages.links import address, session
from pages.looking import loading
from pages.server import uploaded_pictures, uploads
from pages.server.uploaded_pictures import Upload
from pages.shared import uploaders
from pages.shared.escape import plain


def pick(most: int, key: str, link: str = "") -> Sequence[Upload]:
    """Draw an uploader, and return at most `most` uploaded pictures.

    Args:
        key: of the uploader.
        link: query parameter that reopens the pictures; "" for none.
    """
    remembered = session.of(session.Compare).files

    def accept_uploads() -> None:
        files = uploaders.newly_uploaded(key)
        if files is None:
            return
        uploaded = [Upload.of(file.name, uploaders.content(file)) for file in files]
        set_key = uploaded_pictures.store_all(uploaded[:most]) if link else ""
        remembered[key] = session.UploadedPictures(set_key, uploaded, fresh=True)
        if link:
            address.rewrite({link: set_key or None})

    here = remembered.get(key, session.UploadedPictures())
    linked = address.text(link) if link else here.key
    if linked != here.key:  # a link from another session, or the browser's Back
        here = remembered[key] = session.UploadedPictures(linked, uploaded_pictures.find_all(linked))
        if linked and not here.pictures:
            st.info("The pictures of this link were deleted. Upload them again to see the same.")
    st.file_uploader(
        f"Drop or browse for up to {most} pictures" if most > 1 else "Drop or browse for a picture",
        max_upload_size=uploaders.limit(uploads.LARGEST),
        accept_multiple_files=most > 1,
        key=key,
        on_change=accept_uploads,
        label_visibility="visible" if most > 1 else "collapsed",
        help=uploaded_pictures.retention_note() if link else None,
    )
    for picture in here.pictures[:most]:
        if used := loading.used_range(picture.data):
            st.caption(f"{plain(picture.name)} {used.sentence} Page Explore can stretch it.")
        if note := loading.pages_note(picture.data):
            st.caption(f"{plain(picture.name)} {note}")
    count = len(here.pictures)
    if count and not (here.fresh and st.session_state.get(key)):  # the uploader does not show these pictures
        one = f"Showing the uploaded {plain(here.pictures[0].name)}."
        st.caption(f"Showing {count} uploaded pictures." if count > 1 else one)
    if count > most:
        st.caption(f"These are the first {most} of {count} pictures.")
    return here.pictures[:most]
