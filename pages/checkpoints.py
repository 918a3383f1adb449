"""Page Checkpoints: list, add, rename, delete and download checkpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd
import streamlit as st

from pages.components import scroll
from pages.links import address, navigation, session
from pages.links.page_links import CheckpointsLink, ExploreLink
from pages.looking import checkpoint_list, fetching, loading
from pages.server import access
from pages.shared import (
    button_actions,
    datasets,
    download_buttons,
    pushing,
    trained_models,
    uploaders,
    zip_downloads,
)
from pages.shared.escape import plain, with_code
from vit import checkpoints
from vit.checkpoints import manage
from vit.checkpoints.formats import weight_files
from vit.checkpoints.hub import models as hub
from vit.confidence import decimals, figure, recorded
from vit.errors import UserError
from vit.lesson import page as lesson
from vit.untrusted import limit_work

if TYPE_CHECKING:
    from pages.streamlit_internals.types import UploadedFile
    from vit.checkpoints.checkpoint import CheckpointInfo

navigation.start_page("checkpoints", remember=False)

ROW, MOST_ROWS = 35, 10  # height of a row of `st.dataframe` [px], and the number shown without scrolling, as by default
LANGUAGES: dict[lesson.Language, str] = {"en": "English", "de": "Deutsch", "zh": "中文"}


act = partial(button_actions.attempt, "checkpoints")


def table(infos: list[CheckpointInfo]) -> pd.DataFrame:
    """Return the table of checkpoints."""
    rows = []
    for info in infos:
        accuracy = recorded(info.facts)
        rows.append(
            {
                "Name": hub.shortened(info.name),
                "Test accuracy": 100 * accuracy[0] if accuracy else None,
                "Parameters": info.params / 1e6 if info.params else None,
                "Size": info.size / 1e6,
                "Classes": info.labels or None,
                "File from": "this app" if info.family == "saved" else info.family,
                "Trained on": datasets.label(str(info.facts.get("data", ""))),
                "Note": "Heads unknown" if info.choices else "Cannot be opened" if info.problem else "",
            }
        )
    return pd.DataFrame(rows)


def choose(infos: list[CheckpointInfo]) -> CheckpointInfo:
    """Draw the table, and return the selected checkpoint."""
    names = [info.name for info in infos]
    linked = address.read(CheckpointsLink).name
    digits = decimals(*(found[1] for info in infos if (found := recorded(info.facts))))
    columns = {
        "Test accuracy": st.column_config.NumberColumn(format=f"%.{digits}f%%"),
        "Parameters": st.column_config.NumberColumn(format="%.2f M"),
        "Size": st.column_config.NumberColumn(format="%.1f MB"),
    }
    event = st.dataframe(
        table(infos),
        hide_index=True,
        # A new table when the list changes, since the selection is a row number, and when the page selects a row.
        key=f"checkpoints {names} {session.of(session.Checkpoints).selections}",
        on_select="rerun",
        selection_mode="single-row-required",
        selection_default={"selection": {"rows": [names.index(linked) if linked in names else 0]}},
        column_config=columns,
        placeholder="",
        height=ROW * (min(len(infos), MOST_ROWS) + 1) + 2,  # fixed: nothing below moves when the script arrives
        alt="Checkpoints",
    )
    chosen = infos[min(event.selection.rows[0], len(infos) - 1)] if event.selection.rows else infos[0]
    if chosen.name != linked:
        address.change(CheckpointsLink, name=chosen.name)
    return chosen


def show(info: CheckpointInfo) -> None:
    """Draw the actions for a checkpoint, and scroll to it if it has just been added."""
    state = session.of(session.Checkpoints)
    added, state.added = state.added, ""
    scroll.here(added)
    st.markdown(f"**{plain(info.name)}**")
    if info.problem:
        if info.choices:
            st.info(f"{plain(info.problem)} Open it in Explore and choose the number there.")
        else:
            st.error(with_code(info.problem))
    with st.container(horizontal=True, vertical_alignment="center", key="checkpoint_actions"):
        closed = bool(info.problem) and not info.choices
        navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=info.name).to_query(), disabled=closed)
        size = f"{info.size / 1e6:,.1f} MB"
        zip_downloads.link(f"Download ({size})", info.name, "Every file of its folder, in one ZIP.")
        if info.family == "saved" and "/" not in info.name:
            pushing.button(info.folder, info.name)
        if info.labels and not closed and info.params <= lesson.MAX_PARAMETERS:
            with st.popover("Lesson"):
                offer_lesson(info)
        if access.may_train():
            if "/" not in info.name:  # the name of a downloaded checkpoint is its origin
                with st.popover("Rename"):
                    st.text_input("New name", info.name, key=f"name {info.name}", help=manage.NAME_HELP)
                    st.button("Rename", on_click=rename, args=(info.name,), type="primary")
            if st.button("Delete", type="tertiary"):
                confirm_deletion(info)


def offer_lesson(info: CheckpointInfo) -> None:
    """Draw the controls that create a lesson with this model."""
    st.markdown(
        "One HTML file with this model, exercises, and every number of a head. It runs on a pupil's own device, also a "
        "phone, without a network."
    )
    language = st.selectbox("Language", list(LANGUAGES), format_func=LANGUAGES.__getitem__, key=f"lesson {info.name}")
    state, key = session.of(session.Checkpoints), (info.folder, loading.stamp(info.folder), language)
    about = f"Make it (about {lesson.expected_size(info.params) / 1e6:.1f} MB)"
    if st.button(about, key=f"make lesson {info.name}"):
        try:
            with st.spinner("Packing the model…"):
                state.lesson = key, lesson.lesson(checkpoints.load_checkpoint(info.folder), language)
        except UserError as error:
            st.error(with_code(str(error)))
            return
    if state.lesson and state.lesson[0] == key:  # also after the popover was closed and reopened
        content = state.lesson[1]
        size = f"{len(content) / 1e6:.1f} MB"
        download_buttons.file(f"Download the lesson ({size})", content, f"{info.name}-lesson.html", "text/html")


def change_name(name: str, new: str) -> bool:
    """Rename a checkpoint unless a waiting run starts from it."""
    trained_models.check_not_awaited(name)
    manage.rename(name, new)
    return True


def rename(name: str) -> None:
    """Rename a checkpoint to the typed name; a button's callback."""
    new = st.session_state[f"name {name}"]
    # A module's function, as a double click is recognised by function and arguments.
    if act(f"{name} is called {new}.", change_name, name, new):
        address.change(CheckpointsLink, name=new)


@st.dialog("Delete this checkpoint?")
def confirm_deletion(info: CheckpointInfo) -> None:
    """Show what will be deleted, and ask for confirmation."""
    accuracy = recorded(info.facts)
    right = f", {figure(*accuracy, 'test pictures right')}" if accuracy else ""
    st.markdown(f"**{plain(info.name)}** is deleted for good: {info.size / 1e6:,.1f} MB of weights{right}.")
    fetched = "/" in info.name
    st.caption("It can be fetched again." if fetched else "Runs keep their own checkpoints.")

    def delete() -> None:
        trained_models.check_not_awaited(info.name)
        (hub.remove if fetched else manage.delete)(info.name)

    button_actions.confirm_or_keep("Delete", act, (f"{info.name} was deleted.", delete))


def fetch() -> None:
    """Draw the form that downloads a checkpoint from the Hub or torchvision."""
    with st.form("fetch", border=False):
        name = st.text_input(
            "Name on the Hugging Face Hub, or of torchvision",
            address.read(CheckpointsLink).fetch,
            max_chars=200,
            placeholder="google/vit-base-patch16-224",
            help="owner/name, owner/name@revision, timm/vit_base_patch16_224.augreg2_in21k_ft_in1k, "
            "torchvision/vit_b_16. Private repositories need a token in the server's environment (HF_TOKEN).",
        ).strip()
        wanted = st.form_submit_button("Fetch", type="primary")
    state = session.of(session.Checkpoints)
    if wanted and name:
        fetching.start(name)
        state.fetching = name
    if state.fetching:
        fetching.show(state.fetching)


def upload(refused: bool) -> None:
    """Draw the uploader for weights and accompanying files; if the last upload was rejected, show the reason here."""
    state = session.of(session.Checkpoints)
    files = st.file_uploader(
        "Weights, best with their config.json, preprocessor_config.json and labels.txt",
        accept_multiple_files=True,
        max_upload_size=uploaders.limit(access.upload_megabytes()),
        key=f"weights {state.uploads}",
        help="Files are checked before they are read, and nothing in them is executed. Larger ones: put a folder with "
        "the weights into the server's checkpoints folder.",
    )
    names = [file.name for file in files]
    weights = manage.weights_of(names)
    if not weights:
        if not all(name.endswith(manage.TEXTS) for name in names):
            st.error(with_code(manage.no_weights_message(names)))
        elif names:
            st.caption("The weights are still missing.")
        return
    name = suggested(files, weights[0])
    if state.suggested != name or "new name" not in st.session_state:  # a config.json may come after the weights
        state.suggested = st.session_state["new name"] = name
    with st.form("bring", border=False):
        st.text_input("Name", key="new name", help=manage.NAME_HELP)
        st.form_submit_button("Add", on_click=add, args=(files,), type="primary")
    if refused:
        button_actions.show_outcome()


def suggested(files: list[UploadedFile], weights: str) -> str:
    """Suggest a name for an upload, see `vit.checkpoints.manage.suggest`."""
    configs = (file for file in files if file.name == "config.json" and file.size <= weight_files.MAX_TEXT)
    config = next((uploaders.opened(file).read() for file in configs), b"")
    return manage.suggest(weights, config)


def add(files: list[UploadedFile]) -> None:
    """Add the uploaded checkpoint; a button's callback."""
    name = st.session_state["new name"]
    with limit_work(name, loading.READING_SECONDS):
        added = act(
            f"{name} was added.",
            manage.add,
            {file.name: uploaders.opened(file) for file in files},
            name,
            None,
            access.free_bytes(),
        )
    state = session.of(session.Checkpoints)
    state.refused = not added
    if added:
        state.uploads += 1  # replaces the uploader by an empty one
        state.added = name
        address.change(CheckpointsLink, name=name)


st.title("Checkpoints", anchor=False)
state = session.of(session.Checkpoints)
refused, state.refused = state.refused, False
if refused:
    st.container()  # in place of the outcome, so that later elements keep their positions
else:
    button_actions.show_outcome()
every = checkpoint_list.list_checkpoints().every
if every:
    show(choose(every))
else:
    st.info("There is no checkpoint yet. Add one, or train one on the page Train.")
st.header("Recommended checkpoints", anchor=False)
fetching.show_recommended()
st.header("Add another" if every else "Add one", anchor=False)
if access.may_train():
    by_name, by_file = st.columns(2, gap="large")
    with by_name:
        fetch()
    with by_file:
        upload(refused)
else:
    st.caption("Only people who may train can add checkpoints here.")
