"""Controls of page Explore for the picture: a sample, an upload, a camera shot, or a frame of an animation or video."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import streamlit as st

from pages.components import gallery
from pages.links import address, link_controls, session
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.looking import loading
from pages.looking.panels import own_pictures, welcome
from pages.server import public, uploaded_pictures, uploads
from pages.shared import trained_models, uploaders
from pages.shared.escape import plain, with_code
from pages.streamlit_internals import sessions
from vit.errors import UserError
from vit.images import samples
from vit.images.files import decode
from vit.images.files import video as videos
from vit.images.files.file_checks import MAX_FRAMES

if TYPE_CHECKING:
    from pages.streamlit_internals.types import DeltaGenerator

READING = "Reading the video…"
PREVIEW = 3  # thumbnails on the button that opens all samples
TOUCH = 3600.0  # interval at which the expiry of a displayed upload is extended [s]


def current_sample() -> str:
    """Return the sample of the link, or the default one."""
    name = address.read(ExploreLink).sample
    return name if name in samples.SAMPLES else welcome.VIEW.sample


def sample_source(name: str) -> Source:
    """Return a sample as a source."""
    return Source(f"{name}.jpg", samples.read(name), name)


def pick_picture(row: DeltaGenerator) -> Source:
    """Draw the controls for the picture, and return the picture that was selected last.

    Args:
        row: container of samples, uploader and camera; messages are drawn below it.
    """
    state = session.of(session.Explore)

    def choose_sample(name: str) -> None:
        choose("sample", sample=name)

    def choose_upload(name: str, picture: str) -> None:
        if uploaded_pictures.is_stored(picture):
            choose("upload", upload=name, picture=picture)
        else:
            state.refused = f"{name} was deleted. Upload it again."

    def use_camera_picture() -> None:
        if uploaders.newly_uploaded("camera") is not None:
            choose("camera")

    def accept_uploads() -> None:
        files = [file for file in uploaders.newly_uploaded(key) or () if file.file_id not in state.files]
        if not files:
            return
        for file in state.files:
            uploaders.discard(file)
        state.files = tuple(file.file_id for file in files)
        state.uploads += 1
        open_uploads([Source(file.name, uploaders.content(file)) for file in files])

    begin_with_test_pictures()
    reopen_upload()
    source, sample = state.source, current_sample()
    shot, key = None, f"upload {state.uploads}"
    with row:
        gallery.show("gallery", sample if source == "sample" else None, choose_sample, preview=PREVIEW)
        # A new uploader after each upload. The old one would delete the earlier file before it sends the next one, and
        # would show the name of another file after the browser's Back.
        with st.container(key="uploader", width="content"):
            st.file_uploader(
                "Drop, paste or browse for files",
                max_upload_size=uploaders.limit(uploads.LARGEST),
                accept_multiple_files=True,
                key=key,
                on_change=accept_uploads,
                label_visibility="collapsed",
            )
        with st.popover("Camera", width="content"):
            if st.toggle("Use the camera"):
                shot = st.camera_input("Camera", key="camera", on_change=use_camera_picture)
    if public.is_public():
        st.caption("Your pictures are kept in memory for this visit and deleted when you leave.")
    if state.refused:
        st.error(with_code(state.refused))
    own_pictures.show(choose_upload)
    if source == "upload" and state.upload:
        return state.upload
    if source == "camera" and shot is not None:
        return Source("camera.jpg", shot.getvalue())
    if missed := address.read(ExploreLink).upload:
        st.info(f"The picture of this link, {plain(missed)}, was deleted. Upload it again to see the same.")
    return sample_source(sample)


def choose(source: Literal["sample", "upload", "camera"], **link: str) -> None:
    """Select a picture of this kind.

    Args:
        link: attributes of the link to set; an earlier upload is removed from it.
    """
    state = session.of(session.Explore)
    state.source, state.refused = source, ""
    address.change(ExploreLink, **{"upload": "", "picture": "", "frame": None, "stretch": False, **link})


def open_uploads(uploaded: Sequence[Source]) -> None:
    """Select new uploads, showing the first one; report unreadable files, which change nothing else."""
    state = session.of(session.Explore)
    readable, problems = loading.readable(uploaded, with_videos=True)  # `pick_frame` reads videos
    if len(readable) > (most := uploaded_pictures.MOST_TOGETHER):
        problems.append(f"These are the last {most} of {len(readable)} pictures; more are not taken.")
        readable = readable[-most:]
    if readable:
        pictures = own_pictures.add(readable)
        state.upload = first = readable[0]
        picture = uploaded_pictures.key_of(first.data)
        choose("upload", upload=first.name, picture=picture, pictures=pictures)
        if len(readable) > 1 and not pictures:
            problems.append("This server keeps no pictures now, so the first one alone is shown.")
    state.refused = " ".join(problems)


def begin_with_test_pictures() -> None:
    """Select a run's test pictures if its checkpoint is opened without a picture."""
    link = address.read(ExploreLink)
    model = trained_models.find(link.checkpoint)
    if model is None or link.sample or link.picture or link.upload:
        return
    loading.start_torch()
    from pages.looking import dataset_pictures  # noqa: PLC0415 # imports torch, which the page must not wait for

    entries = dataset_pictures.entries(model.data, model.data_root)
    together = uploaded_pictures.store_list(entries)
    if together:
        (name, key), *_ = entries
        address.change(ExploreLink, upload=name, picture=key, pictures=together)
    else:
        address.change(ExploreLink, sample=welcome.VIEW.sample)


def reopen_upload() -> None:
    """Restore the picture of the link: a stored upload, or a sample after the browser's Back."""
    state, link = session.of(session.Explore), address.read(ExploreLink)
    if sessions.is_history_navigation():
        state.refused = ""
        if not link.upload:
            state.source = "sample"
    # After Back to a sample, Forward leads to the same upload again, so compare only if an upload is shown.
    open_key = state.stored_upload.key if state.source == "upload" else ""
    key = link.picture
    if key and key != open_key and (content := uploaded_pictures.find(key)) is not None:
        name = link.upload[: uploaded_pictures.LONGEST_NAME] or "picture"
        state.upload, state.source = Source(name, content), "upload"
        state.stored_upload = session.StoredUpload(content, key, time.monotonic())


def store_upload(source: Source) -> None:
    """Store a readable upload and put it into the link, so that the link reopens it for a day after the session."""
    state = session.of(session.Explore)
    if state.upload is None or source.data is not state.upload.data:
        return
    if state.stored_upload.content is not source.data or time.monotonic() > state.stored_upload.since + TOUCH:
        state.stored_upload = session.StoredUpload(source.data, uploaded_pictures.store(source.data), time.monotonic())
    address.change(ExploreLink, upload=state.upload.name, picture=state.stored_upload.key)


def drop_upload(source: Source) -> None:
    """Remove an upload from the link if it could not be explained and therefore was not stored."""
    state = session.of(session.Explore)
    if state.upload is not None and source.data is state.upload.data and state.stored_upload.content is not source.data:
        address.change(ExploreLink, upload="", picture="")


def pick_frame(source: Source) -> Source:
    """Draw the slider for a frame of an animation or a video, which is decoded first."""
    placeholder = st.empty()
    video, total = videos.is_video(source.data), 0
    try:
        if video:
            total = videos.read_video(
                source.data,
                MAX_FRAMES,
                lambda share: placeholder.progress(share, READING),
                lambda: placeholder.caption("Other videos are being read first."),
            ).total
            placeholder.empty()
        frames = decode.count_frames(source.data)
    except UserError:  # reported where the picture is explained
        placeholder.empty()
        return source
    if frames < 2:
        return source

    def remember(frame: int) -> None:
        upload = session.of(session.Explore).upload
        if upload is not None and upload.data is source.data:  # not if another upload arrived in the same message
            address.change(ExploreLink, frame=frame)

    first = min(address.read(ExploreLink).frame or 1, frames)
    offers = uploaded_pictures.key_of(source.data), frames
    frame = st.slider(
        "Frame",
        1,
        frames,
        first,
        **link_controls.bound("frame", first, remember, offers),
        help="The viewer shows this frame. *More files* below the viewer has an animation of all frames.",
    )
    if total > frames:
        st.caption(f"Of its {total:,} frames, {frames} can be chosen, evenly spread.")
    elif frames == MAX_FRAMES and not video:
        st.caption(f"Of long animations, the first {frames} frames can be chosen.")
    return source._replace(frame=frame - 1)


def pick_range(source: Source) -> Source:
    """Show how much of a file is not shown: further pages, and a toggle for stretching a narrow range of values."""
    if note := loading.pages_note(source.data):
        st.caption(plain(f"{source.name} {note}"))
    used = None if source.sample or videos.is_video(source.data) else loading.used_range(source.data)
    if used is None:
        return source
    st.caption(plain(f"{source.name} {used.sentence}"))
    return source._replace(stretch=link_controls.toggle("Stretch it over the whole range", "stretch"))
