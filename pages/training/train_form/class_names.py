"""Dialog that renames the classes of a dataset folder."""

from pathlib import Path

import streamlit as st

from pages.server import access
from pages.shared.escape import plain, with_code
from vit.data.folders import folders_of_classes, is_packed
from vit.data.layouts import class_names
from vit.errors import UserError
from vit.paths import dataset_folder
from vit.training.runs import uploaded_datasets

ROWS_HEIGHT = 420  # maximum height of the table [px]


def offer(spec: str) -> None:
    """Draw a button that opens the dialog for a folder; disabled while a run uses the current names."""
    if not spec.startswith("folder:") or is_packed(Path(spec.removeprefix("folder:"))):
        return
    active = [run.name for run in uploaded_datasets.runs_on(spec) if run.alive]
    why = f"The run {plain(active[0])} needs them." if active else "The folders keep their names and their order."
    if st.button("Rename classes", key="rename_classes", disabled=bool(active), help=why):
        _ask(spec)


@st.dialog("Names of classes")
def _ask(spec: str) -> None:
    folders = folders_of_classes(Path(spec.removeprefix("folder:")))
    table = {"folder": list(folders), "name": list(class_names.names_of(dataset_folder(spec), folders))}
    edited = st.data_editor(
        table,
        disabled=["folder"],
        hide_index=True,
        width="stretch",
        height=min(38 + 35 * len(folders), ROWS_HEIGHT),
        column_config={"name": st.column_config.TextColumn(max_chars=class_names.MAX_NAME)},
        key="class_names",
        alt="Folders with the names of their classes",
    )
    if st.button("Save", key="save_class_names", type="primary") and save(spec, [str(n or "") for n in edited["name"]]):
        st.rerun()


def save(spec: str, names: list[str]) -> bool:
    """Save the names; on failure, show the error and return False."""
    if not access.may_train():
        return False
    try:
        class_names.rename(dataset_folder(spec), folders_of_classes(Path(spec.removeprefix("folder:"))), names)
    except UserError as error:
        st.error(with_code(str(error)))
        return False
    return True
