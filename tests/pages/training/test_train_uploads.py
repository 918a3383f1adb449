"""Archives of pictures on page Train: imported, selected, deleted."""

import io
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from patience import until
from streamlit.testing.v1 import AppTest

from pages.shared import job_progress
from pages.training.train_form import data_picker
from tests.pages.controls import button, control, open_to_a_network, pictures, run
from tests.pages.controls import train_page as opened
from tests.pages.pictures import png
from vit.data.archives import import_archive
from vit.training.loop import run_folder
from vit.training.loop.presets import train_config
from vit.training.runs import registry

STOP = "stop Unpacking and checking every picture"


@pytest.fixture
def page(folders: Path) -> AppTest:
    """The page, opened without a link."""
    return opened()


def zipped(path: Path) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for file in sorted(path.rglob("*.png")):
            archive.write(file, file.relative_to(path))
        archive.writestr("class 0/broken.png", b"no picture")
    return out.getvalue()


def test_uploaded_archive_is_selected_and_omissions_are_named(page: AppTest, folders: Path) -> None:
    pictures(folders / "mine")
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    assert not page.exception and not page.error
    assert control(page.selectbox, "data").value.startswith(f"folder:{folders}/data/uploads/my-zoo-")
    for again in (page, opened(data=control(page.selectbox, "data").value), opened()):
        if control(again.selectbox, "data").value == "shapes":
            again.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
        assert any("broken.png" in code.value for code in again.code)
        assert any(expander.label == "Left out of the archive: 1" for expander in again.expander)


def test_classes_without_a_test_picture_are_named(page: AppTest, folders: Path) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for split, names, count in (("train", ("cat", "dog", "emu"), 6), ("val", ("cat", "dog"), 3)):
            for name in names:
                for number in range(count):
                    picture = png(9, 9, color=(number * 20, len(name + split) * 9, ord(name[0])))
                    archive.writestr(f"{split}/{name}/{number}.png", picture)
    page.file_uploader(key="archive_0").upload("zoo.zip", out.getvalue()).run()
    assert not page.exception and not page.error
    assert [one.value for one in page.warning if "No test picture: emu. " in one.value]


def test_upload_is_deleted_after_confirmation(page: AppTest, folders: Path) -> None:
    pictures(folders / "mine")
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    (folder,) = (folders / "data" / "uploads").iterdir()
    page.button(key="delete_data").click().run()
    said = " ".join(element.value for element in page.markdown).replace("\\", "")
    assert str(folder) in said and "8 pictures" in said and "MB" in said
    assert folder.is_dir()
    page.button(key="really delete").click().run()
    assert not page.exception and not page.error and not list((folders / "data" / "uploads").iterdir())
    assert control(page.run().selectbox, "data").value == "shapes"
    assert control(page.selectbox, "preset").value == "shapes"


def test_upload_that_a_run_needs_cannot_be_deleted(page: AppTest, folders: Path) -> None:
    pictures(folders / "mine")
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    spec = control(page.selectbox, "data").value
    run = folders / "runs" / "20260101-000000-zoo-0000"
    run.mkdir(parents=True)
    (run / "config.json").write_text(train_config("shapes", data=spec).model_dump_json())
    with run_folder.hold_run(run):
        assert page.run().button(key="delete_data").disabled
        assert "zoo" in page.button(key="delete_data").help
    assert not page.run().button(key="delete_data").disabled


def test_only_users_who_may_upload_may_delete(page: AppTest, folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures(folders / "mine")
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    page.button(key="delete_data").click().run()
    open_to_a_network(monkeypatch)
    page.button(key="really delete").click().run()
    assert not page.exception and len(list((folders / "data" / "uploads").iterdir())) == 1
    assert "closed" in page.title[0].value


def test_other_folders_cannot_be_deleted(folders: Path) -> None:
    pictures(folders / "data" / "zoo")
    page = opened(data=f"folder:{folders / 'data' / 'zoo'}")
    assert control(page.selectbox, "data").value.endswith("/zoo")
    assert not any(button.key == "delete_data" for button in page.button)


def test_archive_without_classes_is_refused_in_one_sentence(page: AppTest) -> None:
    page.file_uploader(key="archive_0").upload("notes.zip", zipped(Path("/nonexistent"))).run()
    assert not page.exception and len(page.error) == 1
    page.run()
    assert len(page.error) == 1, "it stays while the file does"
    assert control(page.selectbox, "data").value == "shapes"


def test_archive_that_cannot_be_stored_is_refused_in_one_sentence(
    folders: Path, read_only: Callable[[Path], AbstractContextManager[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(folders / "mine")
    content = zipped(folders / "mine")
    with read_only(folders / "data") as closed:
        monkeypatch.setenv("VIT_DATA_ROOTS", str(closed))
        page = opened()
        page.file_uploader(key="archive_0").upload("My zoo.zip", content).run()
        assert not page.exception and [one.value for one in page.error] == [
            "The archive was not saved\\: Permission denied\\."
        ]
        assert control(page.selectbox, "data").value == "shapes" and not list(closed.iterdir())


@pytest.fixture
def unpacking(page: AppTest, folders: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Upload an archive whose unpacking waits for the event."""
    pictures(folders / "mine")
    proceed = threading.Event()
    import_dataset = import_archive.import_dataset

    def held(archive: str, into: Path, *, progress: Callable[[int, int], None]) -> object:
        while not proceed.wait(0.01):
            progress(1, 2)
        return import_dataset(archive, into, progress=progress)

    monkeypatch.setattr(import_archive, "import_dataset", held)
    monkeypatch.setattr(job_progress, "WAIT", 0.0)
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    assert not page.exception and button(page, STOP) is not None
    yield proceed
    proceed.set()


def unpacked(page: AppTest, proceed: threading.Event) -> AppTest:
    """Let the unpacking end, and run the page until it has selected the dataset or shown an error."""
    proceed.set()
    until(lambda: run(page) and button(page, STOP) is None, "the end of unpacking")
    return page


def test_data_selected_during_the_import_is_kept(page: AppTest, unpacking: threading.Event) -> None:
    control(page.selectbox, "data").set_value("mnist")
    assert button(run(page), STOP) is not None
    unpacked(page, unpacking)
    assert control(page.selectbox, "data").value == "mnist"
    assert any("my-zoo" in one for one in map(str, control(page.selectbox, "data").options))


def test_start_works_during_the_import(page: AppTest, unpacking: threading.Event, folders: Path) -> None:
    page.button(key="start").click().run()
    assert not page.exception and [one.config["data"] for one in registry.list_runs()] == ["shapes"]
    assert not unpacking.is_set()


def test_import_continues_after_leaving_the_page(page: AppTest, unpacking: threading.Event) -> None:
    page.switch_page("pages/compare.py").run()
    page.switch_page("pages/train.py").run()
    assert not page.exception and button(page, STOP) is not None
    unpacked(page, unpacking)
    assert "my-zoo" in control(page.selectbox, "data").value


def test_stopped_import_leaves_nothing(page: AppTest, unpacking: threading.Event, folders: Path) -> None:
    page.button(key=STOP).click().run()
    until(lambda: run(page) and page.error, "the sentence")
    assert [one.value for one in page.error] == ["Unpacking was stopped, and nothing was saved\\."]
    assert not list((folders / "data" / "uploads").iterdir())
    assert button(page, STOP) is None


def test_archive_imported_concurrently_by_another_server_is_selected(
    page: AppTest, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures(folders / "mine")
    import_dataset = data_picker.import_archive.import_dataset

    def late(archive: str, into: Path, **more: object) -> object:
        import_dataset(archive, into)
        return import_dataset(archive, into, **more)

    monkeypatch.setattr(data_picker.import_archive, "import_dataset", late)
    page.file_uploader(key="archive_0").upload("My zoo.zip", zipped(folders / "mine")).run()
    assert not page.exception and not page.error
    assert control(page.selectbox, "data").value.startswith(f"folder:{folders}/data/uploads/my-zoo-")


def test_single_doubtful_picture_is_reported_in_the_singular(page: AppTest, folders: Path) -> None:
    pictures(folders / "mine")
    first = next((folders / "mine").rglob("*.png"))
    for split in ("class 0", "class 1"):
        (folders / "mine" / split / "again.png").write_bytes(first.read_bytes())
    page.file_uploader(key="archive_0").upload("Twice.zip", zipped(folders / "mine")).run()
    said = [warning.value for warning in page.warning]
    assert said and not any("1 repeated pictures" in words or "1 test pictures" in words for words in said)
