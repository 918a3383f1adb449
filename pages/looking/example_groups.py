"""Named groups of pictures that somebody drops as examples; the link reopens them for a day."""

from collections.abc import Sequence
from typing import Any

import streamlit as st

from pages.links import address, session
from pages.links.page_links import CLASSES
from pages.server import uploaded_pictures
from pages.server import uploads as upload_limits
from pages.server.result_cache import cached
from pages.server.uploaded_pictures import Upload
from pages.shared import uploaders
from pages.shared.escape import plain
from vit.errors import UserError
from vit.images import decode

MOST_GROUPS, MOST_PICTURES, LONGEST_NAME = 20, 100, 100


def pick(prefix: str) -> dict[str, Sequence[Upload]]:
    """Let the person add and remove groups; those that are there, by name.

    Args:
        prefix: of its name in links, where a page asks several times.
    """
    name = f"{prefix}{CLASSES}group"
    linked = address.texts(name)
    added = session.of(session.Visit).groups_added
    number = added.get(name, 0)  # each group has a form of its own: what was typed and dropped belongs to one group
    typed, dropped = f"{name} name {number}", f"{name} pictures {number}"

    def add() -> None:
        title = " ".join(st.session_state[typed].split())[:LONGEST_NAME]
        taken, left_out = _readable(uploaders.files(dropped))
        notes = session.of(session.Visit).group_notes
        notes[name] = _group_note(title, taken, left_out)
        if not title or not taken:
            return
        others = [one for one in linked if one.partition(" ")[2] != title]
        if key := uploaded_pictures.keep_all(taken):
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
                st.caption(f"The pictures of {plain(title)} are not here any more.")
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
        st.warning(plain(note))
    return groups


def _uploads_of(key: str) -> Sequence[Upload]:
    """A group's pictures, none where they are gone: which is not remembered, as they may be uploaded again."""

    def work() -> Sequence[Upload]:
        uploads = uploaded_pictures.find_all(key)
        if not uploads:
            raise LookupError(key)
        return uploads

    try:
        uploads: Sequence[Upload] = cached(("group", uploaded_pictures.readers(), key), work)
    except LookupError:
        return ()
    return uploads


def _readable(files: Sequence[Any]) -> tuple[list[Upload], list[str]]:
    """Those of the uploaded files that are pictures, so many at most; and why others are left out."""
    taken, left_out = [], []
    for file in files[:MOST_PICTURES]:
        try:
            content = uploaders.content(file)
            decode.decode_image(content)
            taken.append(Upload.of(file.name, content))
        except UserError as error:
            left_out.append(f"{file.name} is left out: {error}")
    if len(files) > MOST_PICTURES:
        left_out.append(f"Of {len(files)} pictures, the first {MOST_PICTURES} are taken.")
    return taken, left_out


def _group_note(title: str, taken: Sequence[Upload], left_out: Sequence[str]) -> str:
    """What is to be said of a group that somebody added, "" for nothing."""
    missing = [what for what, there in (("a name", title), ("pictures", taken)) if not there]
    return " ".join([*left_out, *([f"The group needs {' and '.join(missing)}."] if missing else [])])
