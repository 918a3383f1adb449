"""Controls for the dataset: a named dataset, a folder on the server, or an uploaded archive; and its survey."""

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
from pages.server import access, background
from pages.shared import button_actions, datasets, job_progress, uploaders
from pages.shared.escape import plain, with_code
from pages.training.state import Train
from pages.training.train_form import class_names
from vit.confidence import too_few
from vit.data import catalog, downloads, folders
from vit.data import survey as surveys
from vit.data.archives import import_archive
from vit.data.layouts.class_levels import level_titles
from vit.errors import InvalidDataset, UserError
from vit.images.encode import data_url, encode_image
from vit.paths import data_roots, dataset_folder
from vit.training.loop.config import unequal
from vit.training.runs import uploaded_datasets
from vit.untrusted import brief_list, counted, limit_work

if TYPE_CHECKING:
    import pandas as pd

ROW = 46  # height of a class in the table [px]
ROWS = 12.5  # rows before the table scrolls; the half row shows that there are more
BLOCK = 4 << 20  # copied bytes at once
READING_SECONDS = 3600.0  # processor time for the largest archives [s]; 100,000 photos take a quarter of it


def options(chosen: str) -> list[str]:
    """List the specs of all datasets that can be selected; that of the chosen one with the level of its classes."""
    whole = f"folder:{dataset_folder(chosen)}"
    return [chosen if spec == whole else spec for spec in (*datasets.NAMED, *catalog.list_folders())]


def pick(specs: Sequence[str], handler: Mapping[str, Any]) -> None:
    """Draw the control for the dataset.

    Args:
        handler: key and callback of the control.
    """
    roots = data_roots()
    names = [datasets.NAMED.get(spec) or datasets.folder_title(spec, roots) for spec in specs]
    titles = dict(zip(specs, link_controls.distinct(names), strict=True))
    st.selectbox(
        "Dataset",
        specs,
        format_func=lambda spec: titles.get(spec, spec),  # an earlier selection may no longer exist
        **handler,
        label_visibility="collapsed",
        persist_state="session",
    )


def can_come(spec: str, root: str) -> bool:
    """Whether a run can download a dataset: it is not available yet, and no download from this page has failed."""
    return not datasets.is_here(spec, root) and spec not in session.of(Train).failed


def upload(folder: Path, chosen: str, choose: Callable[[str], None]) -> None:
    """Draw the uploader, unpack an uploaded archive and select it.

    A job of the server unpacks it, so every control of the page works meanwhile, and a closed tab loses nothing. If
    another dataset is selected meanwhile, that one stays selected.

    Args:
        chosen: spec of the selected dataset.
        choose: called with the spec of the unpacked archive.
    """
    state, most = session.of(Train), access.upload_megabytes()
    file = st.file_uploader(
        "A zip or tar with one folder of pictures per class, or a .npz",
        max_upload_size=uploaders.limit(most),
        key=f"archive_{state.uploads}",
        help="The folders may be at the top level, or below train/, test/ and val/. A table such as labels.csv beside "
        "the pictures is read, too, and so are parquet files and arrays. Larger sets: put a folder into the server's "
        "data folder.",
    )
    placeholder = st.empty()  # for the progress bar; created in every run, so that later elements keep their positions
    if file:
        refused, why = state.refused
        if file.file_id == refused:
            st.error(with_code(why))
            return
        if state.arriving[0] != file.file_id:
            state.arriving = file.file_id, chosen
            background.start(("archive", file.file_id), _unpacking(file, folder, most))
    # Without a file, the visitor has left the page and come back.
    file_id, before = state.arriving
    with placeholder.container():
        job = job_progress.ended(("archive", file_id), "Unpacking and checking every picture")
    if not job:
        return
    try:
        spec = job.result()
    except (UserError, background.Stopped) as error:
        state.refused = file_id, str(error) or "Unpacking was stopped, and nothing was saved."
        st.error(with_code(state.refused[1]))
    else:
        state.uploads += 1  # replace the uploader, so that the server deletes the file
        if chosen == before:
            choose(spec)


def copy(source: BinaryIO, target: Any) -> str:
    """Copy a file, and return the SHA-256 of its content."""
    digest = hashlib.sha256()
    while block := source.read(BLOCK):
        digest.update(block)
        target.write(block)
    target.flush()
    return digest.hexdigest()


def _unpacking(file: Any, parent: Path, most: int) -> Callable[[Callable[[float], None]], str]:
    """Return the work of a job that checks an archive and unpacks it into a folder named after its content.

    Args:
        parent: folder of uploaded datasets.
        most: maximum size of the archive [MB].

    Returns:
        Work that returns the dataset's spec, or raises `InvalidDataset`: the archive is too large, contains no labelled
        pictures, or cannot be written to disk.
    """
    content, keep = uploaders.opened(file), access.free_bytes()  # a job has no session

    def work(tick: Callable[[float], None]) -> str:
        try:
            with limit_work(file.name, READING_SECONDS):
                return _unpack(content, file.name, parent, most, keep, tick)
        except OSError as error:
            raise InvalidDataset(f"The archive was not saved: {error.strerror or error}.") from error

    return work


def _unpack(content: BinaryIO, name: str, parent: Path, most: int, keep: int, tick: Callable[[float], None]) -> str:
    size = content.seek(0, io.SEEK_END)
    if size > most * 10**6 * 1.05:  # the browser counts in 2**20
        raise InvalidDataset(f"The archive has {size / 1e6:.0f} MB; {most} MB are allowed here.")
    parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(parent).free < keep + 3 * size:
        raise InvalidDataset("The server is short of disk space. Nothing was saved. Delete old runs or uploads first.")
    stem = re.sub(r"[^a-z0-9]+", "-", name.lower().partition(".")[0]).strip("-")[:40] or "pictures"
    with tempfile.NamedTemporaryFile(dir=parent, prefix=".", suffix=Path(name).suffix) as archive:
        content.seek(0)
        folder = parent / f"{stem}-{copy(content, archive)[:8]}"
        if not folder.is_dir():
            try:
                import_archive.import_dataset(
                    archive.name, folder, progress=lambda done, total: tick(done / max(total, 1))
                )
            except InvalidDataset:
                if not folder.is_dir():  # otherwise another process has just unpacked the same archive
                    raise
    return f"folder:{folder}"


def show(spec: str, root: str, choose: Callable[[str], None], balance: Callable[[], None] | None = None) -> None:
    """Show the survey of a dataset, or a button that downloads it; an upload can be deleted.

    Args:
        choose: called with the spec of the dataset that replaces a deleted one, or with another level of classes.
        balance: called to balance classes of unequal size; None if the form does.
    """
    state = session.of(Train)
    if state.undeleted:
        st.error(with_code(state.undeleted))
        state.undeleted = ""
    if not datasets.is_here(spec, root):
        offer_download(spec, root)
        return
    try:
        survey, classes = surveyed(spec, root, datasets.stamp(spec))
    except UserError as error:
        st.error(with_code(str(error)))
    else:
        pick_level(spec, survey.levels, choose)
        show_survey(survey, classes, balance)
        class_names.offer(spec)
    if catalog.is_upload(spec):
        archive = import_archive.left_out(dataset_folder(spec))
        show_notes(archive.notes)
        datasets.show_list("Left out of the archive", archive.lines, archive.total)
        offer_deletion(spec, choose)


def pick_level(spec: str, levels: Sequence[Sequence[str]], choose: Callable[[str], None]) -> None:
    """Draw the control for the level of nested folders that are the classes, if there are several."""
    if len(levels) < 2:
        return
    whole = f"folder:{dataset_folder(spec)}"
    specs = [whole, *(f"{whole}#{number}" for number in range(2, len(levels) + 1))]
    chosen = spec if spec in specs else whole
    titles = {one: title[0].upper() + title[1:] for one, title in zip(specs, level_titles(levels), strict=True)}
    st.selectbox(
        "Folders are nested. Which level are the classes?",
        specs,
        index=specs.index(chosen),
        format_func=titles.__getitem__,
        **link_controls.bound("level", chosen, choose, list(titles.values())),
    )


def offer_deletion(spec: str, choose: Callable[[str], None]) -> None:
    """Draw a button that deletes an upload after confirmation; disabled while a run needs it."""
    names = [run.name for run in uploaded_datasets.runs_on(spec) if run.alive]
    why = f"The run {plain(names[0])} needs it." if names else None
    if st.button("Delete this upload", key="delete_data", disabled=bool(names), help=why):
        confirm_deletion(spec, choose)


@st.dialog("Delete this upload?")
def confirm_deletion(spec: str, choose: Callable[[str], None]) -> None:
    """Show what will be deleted, and ask for confirmation."""
    folder = dataset_folder(spec)
    files = [path for path in folder.rglob("*") if path.is_file()]
    pictures = sum(path.suffix.lower() in folders.PICTURES for path in files)
    size = sum(path.stat().st_size for path in files)
    parts = [f"the folder {folder}", f"{pictures:,} pictures, {size / 1e6:,.1f} MB"]
    title = datasets.folder_title(spec, data_roots())
    st.markdown(f"**{plain(title)}** is deleted for good:\n" + "".join(f"\n- {plain(text)}" for text in parts))
    if count := len(uploaded_datasets.runs_on(spec)):
        st.caption(f"Runs that learnt from it: {count:,}. They are kept, but cannot be continued.")
    button_actions.confirm_or_keep("Delete", delete, (spec, choose))


def delete(spec: str, choose: Callable[[str], None]) -> None:
    """Delete an upload and select another dataset; a button's callback. The page reports an error in its next run."""
    if not access.may_train():  # callbacks run before the page's own check, which then shows the reason
        return
    try:
        uploaded_datasets.delete_upload(spec)
    except UserError as error:
        session.of(Train).undeleted = str(error)
        return
    choose(next(iter(datasets.NAMED)))


def offer_download(spec: str, root: str) -> None:
    """Draw a button that downloads a named dataset in a job, or its progress."""
    failed, key = session.of(Train).failed, ("download", spec, root)

    def work(tick: Callable[[float], None]) -> None:
        downloads.download(spec, Path(root), lambda done, total: tick(done / max(total, 1)))

    title = f"Download {datasets.NAMED[spec]}"
    if st.button(title, help="Only once; it is stored in the data folder.", disabled=background.find(key) is not None):
        failed.pop(spec, None)
        background.start(key, work)
    if job := job_progress.ended(key, "Downloading"):
        try:
            job.result()
        except background.Stopped:
            pass
        except UserError as error:
            failed[spec] = str(error)
        st.rerun()  # the button was drawn while the job was running
    if spec in failed:
        st.error(with_code(failed[spec]))


@st.cache_resource(show_spinner="Looking through the pictures…", max_entries=8)
def surveyed(spec: str, root: str, stamp: int) -> tuple[Any, "pd.DataFrame"]:
    """Return the survey of a dataset and the table of its classes, cached per version of its folders."""
    with limit_work(spec.rpartition("/")[2], READING_SECONDS, session.end_if_stopped):
        survey = surveys.survey(spec, Path(root))
    return survey, table(survey)


class Size(NamedTuple):
    """Size of a dataset; zeros if it is not available or cannot be read.

    Attributes:
        pictures: number of training pictures.
        side: shorter side of the median picture [px].
    """

    pictures: int = 0
    side: int = 0


def size(spec: str, root: str) -> Size:
    """Return the size of a dataset."""
    if not datasets.is_here(spec, root):
        return Size()
    try:
        survey, _ = surveyed(spec, root, datasets.stamp(spec))
    except UserError:
        return Size()
    return Size(sum(survey.counts["train"].values()), min(survey.sizes.median) if survey.sizes else 0)


def table(survey: Any) -> "pd.DataFrame":
    """Return a table with name, sample pictures and number of pictures per split of each class."""
    sheet, height = survey.contact_sheet, survey.contact_sheet.height / max(len(survey.rows), 1)
    strips = {}
    for row, name in enumerate(survey.rows):
        strip = sheet.crop((0, round(row * height), sheet.width, round((row + 1) * height)))
        strips[name] = data_url(encode_image(strip, "WEBP", quality=80), "WEBP")
    import pandas as pd  # noqa: PLC0415 # takes half a second, and most pages do not need it

    return pd.DataFrame(
        {
            "class": list(survey.classes),
            **{split: [counts.get(name, 0) for name in survey.classes] for split, counts in survey.counts.items()},
            "pictures": [strips.get(name) for name in survey.classes],
        }
    )


def show_survey(survey: Any, classes: "pd.DataFrame", balance: Callable[[], None] | None = None) -> None:
    """Show the table of classes, the split, picture sizes, and problems with files."""
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
        summary += f" {median} px." if smallest == largest else f" {smallest} to {largest} px, median {median} px."
    st.caption(summary)
    if few := too_few(test):
        st.info(few)
    show_notes(survey.notes)
    if not validation:
        st.warning("These are too few pictures to keep any for validation. Add some: four of a class are enough.")
    learnt = {name: count for name, count in zip(classes["class"], classes["train"], strict=True) if count}
    if unequal(learnt.values()):
        few, many = min(learnt, key=learnt.__getitem__), max(learnt, key=learnt.__getitem__)
        st.info(
            f"{plain(few)} has {counted(learnt[few], 'picture')} to learn from and {plain(many)} {learnt[many]:,}. "
            + ("Nothing balances them: " if balance else "The loss balances them: ")
            + "*Balance of classes* in *Settings*."
        )
        if balance:
            st.button("Balance the classes", key="balance_classes", on_click=balance)
    if untested := [
        name for name, count in zip(classes["class"], classes[[*survey.counts][-1]], strict=True) if not count
    ]:
        st.warning(f"No test picture: {plain(brief_list(untested))}. The accuracy does not cover them.")
    if survey.leaked:
        many = f"{survey.leaked:,} pictures are" if survey.leaked > 1 else "1 picture is"
        st.warning(f"{many} in two splits, which makes every accuracy too high.")
    if survey.contradicting:
        one = survey.contradicting == 1
        st.warning(f"{survey.contradicting:,} repeated {'picture is' if one else 'pictures are'} in two classes.")
    datasets.show_list("Pictures that cannot be read", survey.unreadable)
    datasets.show_list("Pictures in no class", survey.left_out)
    repeats = [f"{again}  repeats  {first}" for first, again in survey.repeats]
    count = survey.repeated + survey.leaked
    datasets.show_list("Repeated pictures", repeats, count)


def show_notes(notes: Sequence[str]) -> None:
    """Show assumptions about the data."""
    for note in notes:
        st.info(with_code(note))
