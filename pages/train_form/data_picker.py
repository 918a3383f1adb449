"""Choose labelled pictures, a named set, a folder on the server or an archive of one's own, and look at them."""

import base64
import hashlib
import io
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import streamlit as st

from pages.links import link_controls, session
from pages.server import access
from pages.shared import datasets, uploaders
from pages.shared.escape import plain
from pages.train_form import class_names
from vit.data import catalog, downloads, folders, import_archive
from vit.data import survey as surveys
from vit.errors import InvalidDataset, UserError
from vit.paths import data_roots
from vit.runs import uploaded_datasets

if TYPE_CHECKING:
    import pandas as pd

ROW = 46  # height of a class in the table [px]
ROWS = 6.5  # classes before it scrolls; half a row says that there are more
COPYING = "Copying the archive…"
BLOCK = 4 << 20  # [bytes] between two looks at how far a copy is


def options() -> list[str]:
    """Datasets that can be chosen, by their specs."""
    return [*datasets.NAMED, *catalog.list_folders()]


def pick(specs: Sequence[str], handler: Mapping[str, Any]) -> None:
    """Let the person choose a dataset.

    Args:
        handler: the control's key and callback.
    """
    roots = data_roots()
    names = [datasets.NAMED.get(spec) or datasets.folder_title(spec, roots) for spec in specs]
    titles = dict(zip(specs, link_controls.distinct(names), strict=True))
    st.selectbox(
        "Dataset",
        specs,
        format_func=lambda spec: titles.get(spec, spec),  # a choice of before may be gone
        **handler,
        label_visibility="collapsed",
        persist_state="session",
    )


def can_come(spec: str, root: str) -> bool:
    """Whether a run can download it: it is not here, and nobody tried in vain to get it from this page."""
    return not datasets.is_here(spec, root) and spec not in session.of(session.Train).failed


def upload(folder: Path, chosen: str, choose: Callable[[str], None]) -> None:
    """Take an archive in and choose it, unless other data are chosen while it is unpacked: a click runs the page anew.

    Args:
        chosen: the data.
        choose: called with the spec of what was taken in.
    """
    state, most = session.of(session.Train), access.upload_megabytes()
    file = st.file_uploader(
        "A zip or tar with one folder of pictures per class",
        max_upload_size=uploaders.limit(most),
        key=f"archive_{state.uploads}",
        help="The folders may lie directly in it, or below train/, test/ and val/. A table such as labels.csv beside "
        "the pictures is read, too. Larger sets: put a folder into the server's data folder.",
    )
    placeholder = st.empty()  # for a bar; it is there in every run
    if file is None:
        return
    refused, why = state.refused
    if file.file_id == refused:
        st.error(plain(why))
        return
    if state.arriving[0] != file.file_id:
        state.arriving = file.file_id, chosen
    try:
        spec = take_in(file, folder, most, placeholder)
    except UserError as error:
        state.refused = file.file_id, str(error)
        st.error(plain(str(error)))
        return
    state.uploads += 1  # another uploader takes its place, and the server forgets the file
    if chosen == state.arriving[1]:
        choose(spec)


def copy(source: BinaryIO, target: Any, tell: Callable[[int], None]) -> str:
    """Copy a file; returns the SHA-256 of its content.

    Args:
        tell: called with the bytes that are done.
    """
    digest, done = hashlib.sha256(), 0
    while block := source.read(BLOCK):
        digest.update(block)
        target.write(block)
        done += len(block)
        tell(done)
    target.flush()
    return digest.hexdigest()


def take_in(file: Any, parent: Path, most: int, container: Any) -> str:
    """Check and unpack an uploaded archive into a folder named by its content; returns its spec.

    Args:
        container: an `st.empty` for a bar that says what happens.

    Raises:
        InvalidDataset: it is too large, not a set of labelled pictures, or the disk refuses.
    """
    try:
        return _take_in(file, parent, most, container)
    except OSError as error:
        raise InvalidDataset(f"The archive was not saved: {error.strerror or error}.") from error


def _take_in(file: Any, parent: Path, most: int, container: Any) -> str:
    content = uploaders.opened(file)
    size = content.seek(0, io.SEEK_END)
    if size > most * 10**6 * 1.05:  # the browser counts in 2**20
        raise InvalidDataset(f"The archive has {size / 1e6:.0f} MB; {most} MB are allowed here.")
    parent.mkdir(parents=True, exist_ok=True)
    keep = access.limits().free_bytes
    if shutil.disk_usage(parent).free < keep + 3 * size:
        raise InvalidDataset("The server is short of disk space. Nothing was saved. Delete old runs or uploads first.")
    stem = re.sub(r"[^a-z0-9]+", "-", file.name.lower().partition(".")[0]).strip("-")[:40] or "pictures"
    bar = container.progress(0.0, COPYING)

    def unpacking(done: int, total: int) -> None:
        share = min(done / max(total, 1), 1.0)
        label = f"Unpacking and checking every picture: {share:.0%}" if share < 1 else "Sorting pictures into classes…"
        bar.progress(share, label)

    try:
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".", suffix=Path(file.name).suffix) as archive:
            content.seek(0)
            digest = copy(content, archive, lambda done: bar.progress(min(done / max(size, 1), 1.0), COPYING))
            folder = parent / f"{stem}-{digest[:8]}"
            if folder.is_dir():
                return f"folder:{folder}"
            try:
                import_archive.import_dataset(archive.name, folder, progress=unpacking)
            except InvalidDataset:
                if not folder.is_dir():  # else another server has just taken in the same archive
                    raise
    finally:
        container.empty()
    return f"folder:{folder}"


def show(spec: str, root: str, choose: Callable[[str], None]) -> None:
    """What the dataset holds, or a button that downloads it; what was uploaded can be deleted.

    Args:
        choose: called with the spec of what is taken in place of what was deleted.
    """
    state = session.of(session.Train)
    if state.undeleted:
        st.error(plain(state.undeleted))
        state.undeleted = ""
    if not datasets.is_here(spec, root):
        offer_download(spec, root)
        return
    try:
        survey, classes = surveyed(spec, root, datasets.stamp(spec))
    except UserError as error:
        st.error(plain(str(error)))
    else:
        show_survey(survey, classes)
        class_names.offer(spec)
    if catalog.is_upload(spec):
        archive = import_archive.left_out(spec.removeprefix("folder:"))
        show_notes(archive.notes)
        datasets.show_list("Left out of the archive", archive.lines, archive.total)
        offer_deletion(spec, choose)


def offer_deletion(spec: str, choose: Callable[[str], None]) -> None:
    """A button that asks before it deletes an upload; off while a run needs it."""
    names = [run.name for run in uploaded_datasets.runs_on(spec) if run.alive]
    why = f"The run {plain(names[0])} needs it." if names else None
    if st.button("Delete this upload", key="delete_data", type="tertiary", disabled=bool(names), help=why):
        confirm_deletion(spec, choose)


@st.dialog("Delete this upload?")
def confirm_deletion(spec: str, choose: Callable[[str], None]) -> None:
    """Say what goes, and delete it if that is meant."""
    folder = Path(spec.removeprefix("folder:"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    pictures = sum(path.suffix.lower() in folders.PICTURES for path in files)
    size = sum(path.stat().st_size for path in files)
    goes = [f"the folder {folder}", f"{pictures:,} pictures, {size / 1e6:,.1f} MB"]
    title = datasets.folder_title(spec, data_roots())
    st.markdown(f"**{plain(title)}** goes for good:\n" + "".join(f"\n- {plain(text)}" for text in goes))
    if count := len(uploaded_datasets.runs_on(spec)):
        st.caption(f"Runs that learnt from it: {count:,}. They stay, but cannot be continued.")
    with st.container(horizontal=True):
        if st.button("Delete", key="really_delete_data", type="primary", on_click=delete, args=(spec, choose)):
            st.rerun()
        if st.button("Keep it", key="keep_data"):
            st.rerun()


def delete(spec: str, choose: Callable[[str], None]) -> None:
    """Delete an upload and choose what is left, from a button's callback; why it stays is said on the page."""
    if not access.may_train():  # a callback runs before the page asks, and says so
        return
    try:
        uploaded_datasets.delete_upload(spec)
    except UserError as error:
        session.of(session.Train).undeleted = str(error)
        return
    choose(next(iter(datasets.NAMED)))


def offer_download(spec: str, root: str) -> None:
    """Fetch a named dataset when asked to, with a progress bar."""
    failed = session.of(session.Train).failed
    if not st.button(f"Download {datasets.NAMED[spec]}", help="Once; it is kept in the data folder."):
        if spec in failed:
            st.error(plain(failed[spec]))
        return
    bar = st.progress(0.0, "Downloading…")
    try:
        downloads.download(
            spec, Path(root), lambda done, total: bar.progress(min(done / max(total, 1), 1.0), f"{done / 1e6:.0f} MB")
        )
    except UserError as error:
        bar.empty()
        failed[spec] = str(error)
        st.error(plain(str(error)))
        return
    st.rerun()


@st.cache_resource(show_spinner="Looking through the pictures…", max_entries=8)
def surveyed(spec: str, root: str, stamp: int) -> tuple[Any, "pd.DataFrame"]:
    """Survey a dataset once per version of its folders; with the table of its classes."""
    survey = surveys.survey(spec, Path(root))
    return survey, table(survey)


class Size(NamedTuple):
    """How large a dataset is; zeros where it is not here or cannot be read.

    Attributes:
        pictures: to learn from.
        side: shorter side of the picture in the middle [px].
    """

    pictures: int = 0
    side: int = 0


def size(spec: str, root: str) -> Size:
    """How many pictures it has, and how large they are."""
    if not datasets.is_here(spec, root):
        return Size()
    try:
        survey, _ = surveyed(spec, root, datasets.stamp(spec))
    except UserError:
        return Size()
    return Size(sum(survey.counts["train"].values()), min(survey.sizes.median) if survey.sizes else 0)


def table(survey: Any) -> "pd.DataFrame":
    """Per class its name, a strip of pictures and the counts of all splits."""
    sheet, height = survey.contact_sheet, survey.contact_sheet.height / max(len(survey.rows), 1)
    strips = {}
    for row, name in enumerate(survey.rows):
        out = io.BytesIO()
        sheet.crop((0, round(row * height), sheet.width, round((row + 1) * height))).save(out, "WEBP", quality=80)
        strips[name] = f"data:image/webp;base64,{base64.b64encode(out.getvalue()).decode()}"
    import pandas as pd  # noqa: PLC0415 # half a second, and other pages need none of it

    return pd.DataFrame(
        {
            "class": list(survey.classes),
            **{split: [counts.get(name, 0) for name in survey.classes] for split, counts in survey.counts.items()},
            "pictures": [strips.get(name) for name in survey.classes],
        }
    )


def show_survey(survey: Any, classes: "pd.DataFrame") -> None:
    """Contact sheet and class counts, the split, sizes, and what is odd about the files."""
    counts = {
        split: st.column_config.ProgressColumn(
            format="localized", min_value=0, max_value=int(classes[split].max()) or 1, width=80
        )
        for split in survey.counts
    }
    st.dataframe(
        classes,
        hide_index=True,
        row_height=ROW,
        height=round(38 + ROW * min(len(classes), ROWS)),
        column_config={
            "class": st.column_config.TextColumn(width=90),
            "pictures": st.column_config.ImageColumn(width=ROW * 8 - 24),
            **counts,
        },
    )
    train, validation, test = (int(classes[split].sum()) for split in survey.counts)
    summary = (
        f"{len(classes):,} classes. {train:,} pictures to learn from, {validation:,} for validation, which chooses "
    )
    summary += f"the best epoch, {test:,} to be tested on at the end."
    if survey.sizes:
        smallest, median, largest = ("{} × {}".format(*size) for size in survey.sizes)
        summary += f" {median} px." if smallest == largest else f" {smallest} to {largest} px, {median} in the middle."
    st.caption(summary)
    show_notes(survey.notes)
    if not validation:
        st.warning("These are too few pictures to keep any for validation, which chooses the best epoch. Add some.")
    if survey.leaked:
        many = f"{survey.leaked:,} pictures are" if survey.leaked > 1 else "1 picture is"
        st.warning(f"{many} in two splits: that flatters every accuracy.")
    if survey.contradicting:
        one = survey.contradicting == 1
        st.warning(f"{survey.contradicting:,} repeated {'picture is' if one else 'pictures are'} in two classes.")
    datasets.show_list("Pictures that cannot be read", survey.unreadable)
    datasets.show_list("Pictures in no class", survey.left_out)
    repeats = [f"{again}  repeats  {first}" for first, again in survey.repeats]
    count = survey.repeated + survey.leaked
    datasets.show_list("Repeated pictures", repeats, count)


def show_notes(notes: Sequence[str]) -> None:
    """What was assumed about the data."""
    for note in notes:
        st.info(plain(note))
