"""Named groups of uploaded example pictures; the link reopens them for a day."""

from collections.abc import Sequence

import streamlit as st

from pages.links import address, session
from pages.links.page_links import CLASSES
from pages.looking import loading
from pages.server import uploaded_pictures
from pages.server import uploads as upload_limits
from pages.server.result_cache import cached
from pages.server.uploaded_pictures import Upload
from pages.shared import uploaders
from pages.shared.escape import plain, with_code

MOST_GROUPS, MOST_PICTURES, LONGEST_NAME = 20, 100, 100


def pick(prefix: str) -> dict[str, Sequence[Upload]]:
    """Draw the controls that add and remove groups, and return the groups by name.

    Args:
        prefix: prefix of the query parameters, for a page with several sources.
    """
    name = f"{prefix}{CLASSES}group"
    linked = address.texts(name)
    added = session.of(session.Visit).groups_added
    number = added.get(name, 0)  # part of the widget keys, so that the form is empty after each added group
    typed, dropped = f"{name} name {number}", f"{name} pictures {number}"

    def add() -> None:
        title = " ".join(st.session_state[typed].split())[:LONGEST_NAME]
        files = uploaders.files(dropped)
        uploads = [Upload.of(file.name, uploaders.content(file)) for file in files[:MOST_PICTURES]]
        pictures, left_out = loading.readable(uploads)
        if len(files) > MOST_PICTURES:
            left_out.append(f"Of {len(files)} pictures, the first {MOST_PICTURES} are taken.")
        notes = session.of(session.Visit).group_notes
        notes[name] = _group_note(title, pictures, left_out)
        if not title or not pictures:
            return
        others = [one for one in linked if one.partition(" ")[2] != title]
        if key := uploaded_pictures.store_all(pictures):
            added[name] = number + 1
            address.rewrite({name: [*others, f"{key} {title}"], f"{prefix}target": None})
        else:
            notes[name] = "The pictures cannot be kept: the server's disk is full."

    def remove(group: str) -> None:
        address.rewrite({name: [one for one in linked if one != group], f"{prefix}target": None})

    groups: dict[str, Sequence[Upload]] = {}
    for group in linked[:MOST_GROUPS]:
        key, _, title = group.partition(" ")
        uploads = _uploads_of(key)
        with st.container(horizontal=True, vertical_alignment="center"):
            if uploads:
                groups[title] = uploads
                st.markdown(f"**{plain(title)}** · {len(uploads)} picture{'s' if len(uploads) > 1 else ''}")
            else:
                st.caption(f"The pictures of {plain(title)} were deleted.")
            st.button("Remove", key=f"remove {group}", type="tertiary", on_click=remove, args=(group,))
    if len(linked) < MOST_GROUPS:
        with st.form(f"{name} form", border=False):
            left, right = st.columns([2, 3], vertical_alignment="bottom")
            left.text_input("Name of a group", key=typed, placeholder="cat")
            right.file_uploader(
                "Its pictures",
                accept_multiple_files=True,
                max_upload_size=uploaders.limit(upload_limits.LARGEST),
                key=dropped,
            )
            st.form_submit_button("Add the group", on_click=add)
    if note := session.of(session.Visit).group_notes.pop(name, ""):
        st.warning(with_code(note))
    return groups


def _uploads_of(key: str) -> Sequence[Upload]:
    """Return a group's pictures, none if they were deleted. Only success is cached: they may be uploaded again."""

    def work() -> Sequence[Upload]:
        uploads = uploaded_pictures.find_all(key)
        if not uploads:
            raise LookupError(key)
        return uploads

    try:
        uploads: Sequence[Upload] = cached(("group", uploaded_pictures.cache_scope(), key), work)
    except LookupError:
        return ()
    return uploads


def _group_note(title: str, pictures: Sequence[Upload], left_out: Sequence[str]) -> str:
    """Return the warning about an added group, "" if there is none."""
    missing = [what for what, value in (("a name", title), ("pictures", pictures)) if not value]
    return " ".join([*left_out, *([f"The group needs {' and '.join(missing)}."] if missing else [])])
