"""The survey of a dataset, and the folders that a page may offer."""

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit.data import survey as surveys
from vit.data.catalog import check_spec, list_folders
from vit.data.survey import CELL, COLUMNS, GAP, Survey, survey
from vit.errors import InvalidDataset
from vit.paths import data_roots
from vit.training.loop import run_folder
from vit.training.runs.uploaded_datasets import delete_upload, runs_on

Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Return `fill(sub, count, size)`, which writes `count` different pictures to a folder below tmp_path."""

    def put(sub: str, count: int = 1, size: tuple[int, int] = (8, 8)) -> Path:
        folder = tmp_path / sub
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            noise = np.random.default_rng([i, *sub.encode()]).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(noise).save(folder / f"{i:02}.png")
        return tmp_path

    return put


@pytest.fixture
def pets(fill: Fill) -> Path:
    """Four training pictures, one of them for validation, and two test pictures of each of two classes."""
    for name in ("cat", "dog"):
        fill(f"train/{name}", 4)
        root = fill(f"test/{name}", 2)
    return root


def look(root: Path) -> Survey:
    return survey(f"folder:{root}")


def test_counts_are_those_of_each_split_and_class(pets: Path) -> None:
    result = look(pets)
    assert result.classes == ("cat", "dog")
    assert result.counts == {
        "train": {"cat": 3, "dog": 3},
        "validation": {"cat": 1, "dog": 1},
        "test": {"cat": 2, "dog": 2},
    }
    assert (result.repeated, result.leaked, result.contradicting, result.unreadable) == (0, 0, 0, ())


def test_folder_without_splits_is_counted_as_it_will_be_split(fill: Fill) -> None:
    fill("cat", 20)
    assert look(fill("dog", 10)).counts == {
        "train": {"cat": 15, "dog": 8},
        "validation": {"cat": 3, "dog": 1},
        "test": {"cat": 2, "dog": 1},
    }


def test_sizes_are_width_and_height_by_area(fill: Fill) -> None:
    fill("cat", 1, (4, 30))
    fill("cat2", 1, (10, 10))
    fill("dog", 3, (20, 12))
    root = fill("cow", 2, (16, 14))
    result = look(root)
    assert result.sizes == ((10, 10), (16, 14), (20, 12))


def test_pictures_in_both_splits_are_leaks(pets: Path) -> None:
    (pets / "test/cat/copy.png").write_bytes((pets / "train/cat/00.png").read_bytes())
    result = look(pets)
    assert (result.repeated, result.leaked, result.contradicting) == (0, 1, 0)
    assert result.repeats == (("train/cat/00.png", "test/cat/copy.png"),)


def test_duplicates_within_a_split_are_reported(pets: Path) -> None:
    for name in ("a", "b"):
        (pets / f"train/cat/{name}.png").write_bytes((pets / "train/cat/00.png").read_bytes())
    assert look(pets).repeated + look(pets).leaked == 2  # one of the three may be for validation


def test_picture_in_two_classes_is_a_contradiction(pets: Path) -> None:
    (pets / "train/dog/copy.png").write_bytes((pets / "train/cat/00.png").read_bytes())
    assert (look(pets).repeated + look(pets).leaked, look(pets).contradicting) == (1, 1)


def test_files_of_equal_size_are_not_taken_for_equal(pets: Path) -> None:
    data = bytearray((pets / "train/cat/00.png").read_bytes())
    data[-1] ^= 1
    (pets / "train/cat/almost.png").write_bytes(data)
    assert look(pets).repeated == 0


def test_unreadable_files_are_named_with_the_reason(pets: Path) -> None:
    (pets / "train/cat/broken.png").write_bytes(b"\x89PNG nothing")
    result = look(pets)
    assert len(result.unreadable) == 1
    assert result.unreadable[0].startswith("train/cat/broken.png: This picture is damaged")
    assert result.counts["train"]["cat"] + result.counts["validation"]["cat"] == 5


def test_pictures_that_use_a_small_part_of_16_bits_are_reported(pets: Path) -> None:
    assert survey(f"folder:{pets}").notes == ()
    values = np.linspace(0, 4095, 64, dtype=np.uint16).reshape(8, 8)
    for split in ("train", "test"):
        Image.fromarray(values + len(split)).save(pets / split / "cat" / "xray.png")
    (note,) = survey(f"folder:{pets}").notes
    assert note.startswith("2 pictures of 14 that were opened use a small part of their 16 bits")


def test_number_of_opened_pictures_is_limited(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in pets.rglob("*.png"):
        file.write_bytes(b"broken" * 50)  # 300 bytes; each file that is opened is named
    assert len(look(pets).unreadable) == 12
    monkeypatch.setattr(surveys, "MAX_OPENED", 5)
    assert len(look(pets).unreadable) == 5
    monkeypatch.setattr(surveys, "MAX_OPENED_BYTES", 700)
    assert len(look(pets).unreadable) == 2


def test_number_of_compared_files_is_limited(pets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(8):
        (pets / f"train/cat/{i}.png").write_bytes(b"same" * 1000)
    assert look(pets).repeated + look(pets).leaked == 7
    monkeypatch.setattr(surveys, "MAX_HASHED_BYTES", 10_000)
    assert look(pets).repeated + look(pets).leaked == 0
    monkeypatch.setattr(surveys, "MAX_HASHED", 0)
    assert look(pets).repeated == 0


def test_each_row_of_the_contact_sheet_shows_its_class(tmp_path: Path) -> None:
    colours = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}
    for name, colour in colours.items():
        (tmp_path / name).mkdir()
        for i in range(3):
            Image.new("RGB", (20 + i, 40), colour).save(tmp_path / name / f"{i}.png")
    result = look(tmp_path)
    assert result.rows == tuple(colours)
    assert result.contact_sheet.size == (COLUMNS * (CELL + GAP) - GAP, 3 * (CELL + GAP) - GAP)
    for row, colour in enumerate(colours.values()):
        y = row * (CELL + GAP) + CELL // 2
        for column in range(COLUMNS):
            pixel = result.contact_sheet.getpixel((column * (CELL + GAP) + CELL // 2, y))
            assert pixel == ((*colour, 255) if column < 3 else (0, 0, 0, 0))


def test_contact_sheet_of_many_classes_stays_small(fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "MAX_ROWS", 2)
    for name in ("a", "b", "c"):
        root = fill(name, 2)
    result = look(root)
    assert result.rows == ("a", "b") and len(result.classes) == 3
    assert result.contact_sheet.height == 2 * (CELL + GAP) - GAP


def test_dataset_without_readable_pictures_has_no_sizes(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(2):
            (tmp_path / name / f"{i}.png").write_bytes(b"")
    assert look(tmp_path).sizes is None


def test_shapes_are_surveyed(tmp_path: Path) -> None:
    result = survey("shapes", tmp_path)
    assert result.counts["train"] == dict.fromkeys(result.classes, 1000)
    assert result.sizes == ((32, 32),) * 3
    assert result.counts["validation"] == dict.fromkeys(result.classes, 250)
    assert list(tmp_path.iterdir()) == []


def test_torchvisions_digits_are_surveyed_in_their_own_size(tmp_path: Path) -> None:
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (6, 28, 28), dtype=np.uint8)
    for split, count in (("train", 6), ("t10k", 4)):  # every test digit is a training digit
        images = struct.pack(">4i", 0x803, count, 28, 28) + pixels[:count].tobytes()
        (raw / f"{split}-images-idx3-ubyte").write_bytes(images)
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + bytes(range(count)))
    result = survey("mnist", tmp_path)
    assert result.sizes == ((28, 28),) * 3
    assert (result.leaked, result.repeated) == (4, 0)
    assert sum(result.counts["train"].values()) == 6


def test_survey_downloads_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset, match="Download it first"):
        survey("cifar10", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spec", ["imagenet", "folder:/nowhere/at/all", "", "folder:"])
def test_non_dataset_is_refused(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidDataset):
        survey(spec)


# --- Permitted folders ------------------------------------------------------------------------------------------


@pytest.fixture
def roots(fill: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two roots with a dataset each, one of them uploaded, and another dataset beside them."""
    for sub in ("one/uploads/pets-0123abcd", "two/birds/train", "two/birds/test", "secret", "one/.import-1.partial"):
        fill(f"{sub}/a", 2)
        fill(f"{sub}/b", 2)
    fill("one/pictures/only", 2)
    monkeypatch.setenv("VIT_DATA_ROOTS", os.pathsep.join([str(tmp_path / "one"), str(tmp_path / "two")]))
    return tmp_path / "one", tmp_path / "two"


def test_datasets_are_found_below_the_roots(roots: tuple[Path, Path]) -> None:
    one, two = roots
    assert list_folders() == [f"folder:{two}/birds", f"folder:{one}/uploads/pets-0123abcd"]
    for spec in list_folders():
        assert len(survey(spec).classes) == 2


def test_root_may_be_a_dataset_itself(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(roots[1] / "birds"))
    assert list_folders() == [f"folder:{roots[1]}/birds"]


def test_missing_roots_contain_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "nowhere"))
    assert list_folders() == []


def test_projects_data_folder_is_the_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIT_DATA_ROOTS", raising=False)
    (root,) = data_roots()
    assert root.is_absolute() and root.name == "data" and (root.parent / "vit").is_dir()


def test_offered_folders_are_accepted(roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for spec in ("shapes", "cifar10", "fashion-mnist", *list_folders()):
        assert check_spec(spec) == spec
    monkeypatch.chdir(roots[1])
    assert check_spec("folder:birds/") == f"folder:{roots[1]}/birds"


@pytest.mark.parametrize(
    "sent",
    [
        "folder:{root}/secret",
        "folder:{root}/one/../secret",
        "folder:{root}/one/uploads/pets-0123abcd/../../../secret",
        "folder:{root}/two/birds/train",
        "folder:{root}/one/pictures",
        "folder:{root}/one/.import-1.partial",
        "folder:{root}/one",
        "folder:/etc",
        "folder:/",
        "folder:",
        "folder:~",
        "folder:{root}/two/birds\0",
        "folder:FOLDER",
        "imagenet",
        "folder:PATH",
        "",
    ],
)
def test_no_other_folder_is_accepted_from_a_stranger(roots: tuple[Path, Path], sent: str) -> None:
    with pytest.raises(InvalidDataset, match="no dataset"):
        check_spec(sent.format(root=roots[0].parent))


# --- Deleting ---------------------------------------------------------------------------------------------------


@pytest.fixture
def upload(roots: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An uploaded dataset, and no runs."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    return roots[0] / "uploads" / "pets-0123abcd"


def test_upload_is_deleted_with_all_its_files(upload: Path) -> None:
    delete_upload(f"folder:{upload}")
    assert list(upload.parent.iterdir()) == []
    with pytest.raises(InvalidDataset, match="no dataset"):
        delete_upload(f"folder:{upload}")


@pytest.mark.parametrize("place", ["", "/a", "/../pets-0123abcd"])
def test_upload_is_kept_while_a_run_needs_it(upload: Path, tmp_path: Path, place: str) -> None:
    run = tmp_path / "runs" / "20260101-000000-pets-0000"
    run.mkdir(parents=True)
    (run / "config.json").write_text(json.dumps({"data": f"folder:{upload}{place}"}))
    with run_folder.hold_run(run), pytest.raises(InvalidDataset, match="'pets' needs it"):
        delete_upload(f"folder:{upload}")
    assert len(list(upload.iterdir())) == 2
    delete_upload(f"folder:{upload}")


def test_runs_on_other_data_do_not_keep_an_upload(upload: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "20260101-000000-pets-0000"
    run.mkdir(parents=True)
    for data in ("shapes", f"folder:{upload}2", f"folder:{upload.parent}", None):
        (run / "config.json").write_text(json.dumps({"data": data}))
        with run_folder.hold_run(run):
            assert not [one for one in runs_on(f"folder:{upload}") if one.alive]


@pytest.mark.parametrize("sent", ["shapes", "folder:{two}/birds", "folder:{one}/uploads", "folder:{one}/../secret", ""])
def test_only_uploads_are_deleted(upload: Path, roots: tuple[Path, Path], sent: str) -> None:
    before = set(roots[0].parent.rglob("*"))
    with pytest.raises(InvalidDataset):
        delete_upload(sent.format(one=roots[0], two=roots[1]))
    assert set(roots[0].parent.rglob("*")) == before
