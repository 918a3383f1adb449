"""Folder and archive layouts in use: names of splits, nested folders, and ambiguous layouts."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from empty_pictures import refusal
from packed import INPUT, Sandbox, classes, picture
from PIL import Image

from vit.cli.training import _show_classes
from vit.data import catalog
from vit.data.catalog import check_spec, list_folders
from vit.data.datasets import load_dataset
from vit.data.folders import Files, list_files
from vit.data.pictures import InMemoryPictures, StreamedPictures
from vit.data.survey import survey

Put = Callable[..., Path]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder apart from the sandbox."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def put(home: Path) -> Put:
    """Return `put("train/cat", "bus/red", count=3)`, which writes empty files; only their names are read."""

    def write(*folders: str, count: int = 3) -> Path:
        for folder in folders:
            (home / "pets" / folder).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                (home / "pets" / folder / f"{number}.jpg").touch()
        return home / "pets"

    return write


def sizes(files: Files) -> tuple[tuple[str, ...], int, int]:
    """Return the number of classes, of pictures for training and validation, and of test pictures."""
    return files.classes, len(files.train) + len(files.validation), len(files.test)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("Training", "Testing"),
        ("TRAIN", "Eval"),
        ("training_set/training_set", "test_set/test_set"),
        ("seg_train/seg_train", "seg_test/seg_test"),
        ("archive/dataset/train_data", "archive/dataset/ValidationImages"),
        ("x_train2017", "x_dev2017"),
    ],
)
def test_splits_have_many_names_in_folders_and_archives(put: Put, sandbox: Sandbox, train: str, test: str) -> None:
    names = [f"{train}/cat", f"{train}/dog"], [f"{test}/cat", f"{test}/dog"]
    put(*names[0], count=6)
    assert sizes(list_files(put(*names[1], count=2))) == (("cat", "dog"), 12, 4)
    result = sandbox.pack(classes(*names[0], count=6) | classes(*names[1], count=2)).read()
    assert result.counts["test"] == {"cat": 2, "dog": 2} and result.skipped == result.notes == ()
    assert (sandbox.into / "train/cat/5.png").is_file()


def test_eval_is_for_testing_if_val_exists(put: Put) -> None:
    put("train/cat", "train/dog", count=6)
    put("val/cat", "val/dog", count=1)
    files = list_files(put("eval/cat", "eval/dog", count=2))
    assert {path.parts[-3] for path, _ in files.test} == {"eval"}
    assert {path.parts[-3] for path, _ in files.validation} == {"val"}


def test_second_test_folder_is_not_used_for_validation(put: Put) -> None:
    files = list_files(put("train/cat", "train/dog", "test1/cat", "test2/cat"))
    assert {path.parts[-3] for path, _ in files.validation} == {"train"} and len(files.left_out) == 3


def test_splits_without_one_for_training_are_refused_in_folders_and_archives(put: Put, sandbox: Sandbox) -> None:
    names = ("val/cat", "val/dog", "val/bird", "test/cat", "test/dog")
    message = "has pictures for testing, but no class folders in train/"
    assert message in refusal(put(*names)) and message in sandbox.pack(classes(*names)).refusal()
    files = list_files(put(), only_test=True)
    assert sizes(files) == (("cat", "dog"), 0, 6)
    assert [line.partition(":")[0] for line in files.left_out] == [f"val/bird/{number}.jpg" for number in range(3)]


def test_split_names_are_classes_in_a_structure_of_classes(put: Put, sandbox: Sandbox) -> None:
    assert list_files(put("train", "bus")).classes == ("bus", "train")
    assert sandbox.pack(classes("train/steam", "train/electric", "bus/red", "bus/blue")).read().classes == (
        "bus",
        "train",
    )


def test_train_station_and_test_tube_are_no_splits(put: Put) -> None:
    assert list_files(put("train_station/a", "train_station/b", "test_tube/c", "test_tube/d")).classes == (
        "test_tube",
        "train_station",
    )


def test_training_folder_beside_flat_pictures_is_refused_as_ambiguous(put: Put) -> None:
    message = refusal(put("train/steam", "train/electric", "bus"))
    assert "in train/" in message and "bus/" in message and "Move the others away" in message


def test_pictures_in_subfolders_of_a_class_belong_to_it(put: Put, sandbox: Sandbox) -> None:
    nested = ("cat/young/1", "cat/old", "dog/1", "dog/2")
    files = list_files(put(*nested))
    assert sizes(files) == (("cat", "dog"), 10, 2) and "Level 1 is used" in files.notes[0]
    result = sandbox.pack(classes(*nested)).read()
    assert result.counts["test"] == {"cat": 1, "dog": 1} and list_files(sandbox.into).notes == files.notes
    mixed = list_files(put("cat", "cat/masks", "cat/.ipynb_checkpoints", "cat/__MACOSX"))
    assert sizes(mixed)[1:] == (13, 2)  # masks are left out, and reported
    assert mixed.left_out == ("cat/masks/: 3 pictures accompany others",)


def test_numbered_folders_in_classes_named_by_words_are_no_classes(put: Put) -> None:
    assert list_files(put("cat/1", "cat/2", "dog/1", "dog/2")).classes == ("cat", "dog")


def test_duplicate_of_the_class_folders_is_no_class(put: Put) -> None:
    files = list_files(put("cat", "dog", "backup/cat", "backup/dog"))
    assert files.classes == ("cat", "dog") and len(files.left_out) == 6


def test_splits_within_classes_are_splits(put: Put) -> None:
    put("cat/train", "dog/train", count=5)
    assert sizes(list_files(put("cat/test", "dog/test", count=1))) == (("cat", "dog"), 10, 2)


def test_pictures_beside_masks_are_used_and_reported(put: Put) -> None:
    assert sizes(list_files(put("COVID/images", "COVID/masks", "Normal/images", "Normal/masks")))[1:] == (4, 2)
    folder = put("x/images/cat", "x/images/dog", "x/masks/cat", "x/masks/dog")
    assert list_files(folder / "x").classes == ("cat", "dog")


@pytest.mark.parametrize(
    ("folders", "message"),
    [
        (("fold1/cat", "fold1/dog", "fold2/cat", "fold2/dog"), ("fold1/, fold2/", "cat/, dog/", "Keep one level")),
        (("pets/train/a", "pets/train/b", "pets/test/a", "cars/train/c", "cars/test/c"), ("cars/, pets/",)),
        (("Train A/cat", "train b/cat", "seg_train/cat", "new_train/cat", "test/cat"), ("seg_train/",)),
        (("10253/0", "10253/1", "10254/0", "10254/1"), ("10253/, 10254/", "0/, 1/", "Keep one level")),
        (("p1/0", "p1/1", "p2/0", "p2/1", "p3/0"), ("p1/, p2/, p3/", "0/, 1/", "Keep one level")),
        (("a/b",), ("a/b/ (3)", "at least two")),
    ],
)  # fmt: skip
def test_ambiguous_layout_is_refused_with_the_folders_of_pictures(
    put: Put, folders: tuple[str, ...], message: tuple[str, ...]
) -> None:
    sentence = refusal(put(*folders))
    assert all(part in sentence for part in message)


def test_unlabelled_test_pictures_are_left_out_of_folders(put: Put) -> None:
    put("test", count=30)
    files = list_files(put("train/cat", "train/dog", count=10))
    assert sizes(files) == (("cat", "dog"), 18, 2)
    assert files.left_out == ("test/: 30 pictures, in none of the class folders",)


def test_circular_links_end(put: Put) -> None:
    folder = put("cat/young", "dog")
    (folder / "cat/young/again").symlink_to(folder, target_is_directory=True)
    (folder / "bird").symlink_to(folder / "dog", target_is_directory=True)
    assert sizes(list_files(folder)) == (("bird", "cat", "dog"), 6, 3)


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("suffix", "format"), [("jfif", "JPEG"), ("JFIF", "JPEG"), ("jpe", "JPEG"), ("mpo", "MPO"), ("apng", "PNG")]
)
def test_pictures_with_rare_suffixes_are_read_from_folders_and_archives(
    home: Path, sandbox: Sandbox, suffix: str, format: str
) -> None:
    files = classes("cat") | {f"dog/{number}.{suffix}": picture(number, format) for number in range(3)}
    dataset = load_dataset(f"folder:{unpack(home, files)}", INPUT)
    assert dataset.classes == ("cat", "dog") and sorted(dataset.train.labels.tolist()) == [0, 1]
    assert sandbox.pack(files).read().counts["train"] == {"cat": 1, "dog": 1}


@pytest.mark.parametrize("name", ["0.ppm", "0.dcm", "0", "0.jpg_large"])
def test_class_folders_without_readable_pictures_are_reported(home: Path, sandbox: Sandbox, name: str) -> None:
    files = {f"x/{path}": content for path, content in classes("cat", "dog").items()} | {f"x/bird/{name}": b"P6"}
    listed, result = list_files(unpack(home, files)), sandbox.pack(files).read()
    assert "x/bird/ (1)" in listed.notes[0] and listed.notes == result.notes
    line, other = f"x/bird/: 1 files {name[1:]}, not read. Save them as JPEG or PNG.", name not in ("0.ppm", "0.dcm")
    assert listed.left_out == (() if other else (line,))
    assert result.skipped == ("1 other file: no picture, or hidden" if other else line,)


def test_pictures_of_other_formats_are_counted(home: Path, sandbox: Sandbox) -> None:
    files = classes("cat", "dog") | {f"cat/{number}.PPM": b"P6" for number in range(3)}
    listed, result = list_files(unpack(home, files | {"cat/notes.md": b""})), sandbox.pack(files).read()
    assert listed.left_out == result.skipped == ("cat/: 3 files .ppm, not read. Save them as JPEG or PNG.",)
    assert listed.notes == ()


def test_nested_classes_are_equal_in_memory_streamed_and_imported(home: Path, sandbox: Sandbox) -> None:
    files = classes("Training/cat/a", "Training/cat/b", "Training/dog/c", "Testing/cat", "Testing/dog/d")
    folder = f"folder:{unpack(home, files)}"
    sandbox.pack(files).read()
    imported = load_dataset(sandbox.spec, INPUT)
    held, streamed = load_dataset(folder, INPUT), load_dataset(folder, INPUT, budget=0, workers=0)
    for name in ("train", "validation", "test"):
        one, other, third = (getattr(dataset, name) for dataset in (held, streamed, imported))
        assert (
            isinstance(one, InMemoryPictures)
            and isinstance(other, StreamedPictures)
            and isinstance(third, InMemoryPictures)
        )
        (images, labels), *_ = other.batches(torch.arange(len(other.labels)), 99, torch.device("cpu"))
        assert torch.equal(images, one.images) and torch.equal(labels, one.labels)
        assert torch.equal(third.images, one.images) and torch.equal(third.labels, one.labels)


def test_survey_shows_counts_assumptions_and_omissions(put: Put) -> None:
    result = survey(f"folder:{put('cat/a', 'cat/b', 'dog/c', 'dog/masks')}")
    assert result.counts["train"] == {"cat": 4, "dog": 1}
    assert "(a, b, c)" in result.notes[0] and len(result.left_out) == 1


def test_terminal_shows_the_classes_with_their_counts(put: Put, capsys: pytest.CaptureFixture[str]) -> None:
    _show_classes(put("Training/cat", "Training/dog", "Testing/cat"))
    assert capsys.readouterr().out.startswith("2 classes, with pictures: cat 6, dog 3\n3 test pictures: ")


def test_pages_offer_datasets_by_nested_folders_and_by_tables(
    put: Put, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(home))
    put("Training/cat", "Training/dog", "Testing/cat")
    assert list_folders() == [f"folder:{home}/pets"]
    os.rename(home / "pets", home / "splits")
    folder = put("cat/a", "cat/b", "dog/c")
    assert check_spec(f"folder:{folder}") == f"folder:{folder}"
    (home / "flat").mkdir()
    for name in ("cat.0.png", "cat.1.png", "dog.0.png", "dog.1.png"):
        (home / "flat" / name).write_bytes(picture())
    assert f"folder:{home}/flat" in list_folders()


def test_folder_that_takes_long_is_listed_and_its_survey_tells_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flat").mkdir()
    for number in range(40):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "flat" / f"{number}.png")
    rows = "".join(f"{number}.jpg,word\n" for number in range(2_000))  # of other files
    (tmp_path / "flat" / "labels.csv").write_text("file,label\n" + rows)
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path))
    assert list_folders() == []
    monkeypatch.setattr(catalog, "_LOOK_SECONDS", 0.0)
    catalog._has_classes.cache_clear()
    assert list_folders() == [f"folder:{tmp_path}/flat"]


NAMES = [f"{name}/{number}.jpg" for name in ("cat", "dog") for number in range(12)]
TEST = [name for place, name in enumerate(NAMES) if place % 3 == 0]
TRAIN = [name for name in NAMES if name not in TEST]


def lines(*columns: Sequence[object], head: str = "", mark: str = ",") -> str:
    return "\n".join([*filter(None, [head]), *(mark.join(map(str, row)) for row in zip(*columns, strict=True))])


def split_column(words: tuple[str, str] = ("train", "test")) -> list[str]:
    return [words[name in TEST] for name in NAMES]


LISTS = {
    "one list each": {"meta/train.txt": lines(TRAIN), "meta/test.txt": lines(TEST)},
    "without suffixes": {f"{k}.txt": lines([n[:-4] for n in own]) for k, own in (("train", TRAIN), ("test", TEST))},
    "by class": {
        f"meta/{kind}.json": json.dumps({c: [name[:-4] for name in own if c in name] for c in ("cat", "dog")})
        for kind, own in (("train", TRAIN), ("test", TEST))
    },
    "by split": {"split.json": json.dumps({"train": TRAIN, "test": TEST})},
    "rows": {
        "split.json": json.dumps({k: [[name, 0, "x"] for name in own] for k, own in (("train", TRAIN), ("test", TEST))})
    },
    "validation": {"train_list.txt": lines(TRAIN, [0] * 16, mark=" "), "val_list.txt": lines(TEST, [0] * 8, mark=" ")},
    "column": {"split.csv": lines(NAMES, split_column(("Train", "TEST")), head="filename,split")},
    "Windows": {"Test.csv": lines(["C:\\" + name.upper().replace("/", "\\") for name in TEST], [1] * 8, head="Path,W")},
    "numbers": {
        "images.txt": lines(range(1, 25), NAMES, mark=" "),
        "train_test_split.txt": lines(range(1, 25), split_column(("1", "0")), mark=" "),
        "image_class_labels.txt": lines(range(1, 25), [1 + (name > "d") for name in NAMES], mark=" "),
        "classes.txt": "1 cat\n2 dog",
    },
    "flag": {"meta.csv": lines(NAMES, split_column(("True", "False")), head="filename,is_training_image")},
    "flag of validation": {"labels.csv": lines(NAMES, split_column(("no", "Yes")), head="name,is_valid")},
    "test only": {"lists/test.csv": lines(TEST, head="path")},
    "training only": {"lists/train.csv": lines(TRAIN, head="path")},
}  # fmt: skip


@pytest.mark.parametrize("files", LISTS.values(), ids=LISTS)
def test_published_splits_of_class_folders_are_used(home: Path, sandbox: Sandbox, files: dict[str, str]) -> None:
    tables = {name: text.encode() for name, text in files.items()}
    listed = list_files(unpack(home, {f"x/images/{name}": picture() for name in NAMES} | tables))
    assert {"/".join(path.parts[-2:]) for path, _ in listed.test} == set(TEST) and listed.classes == ("cat", "dog")
    assert len(listed.train) + len(listed.validation) == len(TRAIN) and listed.notes[0].startswith("Splits are from ")
    result = sandbox.pack({f"x/{name}": picture() for name in NAMES} | {f"x/{k}": v for k, v in tables.items()}).read()
    assert result.counts["test"] == {"cat": 4, "dog": 4} and listed.notes[0].startswith("Splits are from ")


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"train.txt": lines(TRAIN), "test.txt": lines(TEST + TRAIN[:1])}, "1.jpg is in several splits"),
        ({"train1.txt": lines(TRAIN), "test1.txt": lines(TEST), "train2.txt": lines(TEST)}, "is in several splits"),
        ({"split.csv": lines(NAMES[:6], ["train", "test"] * 3, head="file,split")}, "fewer than half"),
        ({"folds.csv": lines(NAMES, [0, 1, 2, 3] * 6, head="file,fold")}, "its column fold does not say train or test"),
        ({"train.txt": lines(NAMES[:12]), "test.txt": lines(NAMES[12:])}, "dog has no pictures for training there"),
        ({"setid.mat": ""}, "it is not understood"),
        ({"cars_test.txt": "x 1\ny 2"}, "it is not understood"),
    ],
)
def test_published_splits_that_cannot_be_used_are_named(put: Put, files: dict[str, str], why: str) -> None:
    folder = put("cat", "dog", count=12)
    for name, text in files.items():
        (folder / name).write_text(text)
    listed = list_files(folder)
    assert len(listed.test) == 2 and next(iter(sorted(files))) in listed.notes[0] and why in listed.notes[0]


def test_pictures_in_no_list_are_left_out_and_counted(put: Put) -> None:
    folder = put("cat", "dog", count=12)
    (folder / "train.txt").write_text(lines(TRAIN[:14]))
    (folder / "test.txt").write_text(lines(TEST))
    listed = list_files(folder)
    assert listed.notes[1] == "2 pictures are in none and left out." and len(listed.left_out) == 2
    assert len(listed.train) + len(listed.validation) == 14


OTHERS = {
    "GTSRB": ("Train/{c}", "Test/{i:05}", ("0", "14"), "Test.csv",
              lambda i, c: f"{30 + i},{i % 2},{c},Test/{i:05}.jpg", "Width,Roi.X1,ClassId,Path"),
    "padded": ("Final_Training/Images/{c}", "Final_Test/Images/{i:05}", ("00000", "00014"),
               "Final_Test/Images/GT-final_test.csv", lambda i, c: f"{i:05}.jpg;{int(c)}", "Filename;ClassId"),
    "tiny-imagenet": ("t/train/{c}/images", "t/val/images/val_{i}", ("n01443537", "n01629819"),
                      "t/val/val_annotations.txt", lambda i, c: f"val_{i}.jpg\t{c}\t0\t32\t44\t62", ""),
    "ImageNet": ("D/train/{c}", "D/val/ILSVRC2012_val_{i:08}", ("n01443537", "n01629819"), "LOC_val_solution.csv",
                 lambda i, c: f"ILSVRC2012_val_{i:08},{c} 1 1 9 9 {c} 2 2 3 3", "ImageId,PredictionString"),
    "one folder": ("train/{c}", "test/{i}", ("Cat", "Dog"), "labels.csv", lambda i, c: f"test/{i}.jpg,{c.lower()}",
                   "path,what"),
}  # fmt: skip


@pytest.mark.parametrize(("form", "flat", "names", "table", "row", "head"), OTHERS.values(), ids=OTHERS)
def test_table_gives_classes_to_test_pictures_beside_class_folders(
    home: Path, form: str, flat: str, names: tuple[str, str], table: str, row: Callable[[int, str], str], head: str
) -> None:
    files = {f"{form.format(c=c)}/{c}_{i}.jpg": b"" for c in names for i in range(100, 108)}
    files |= {f"{flat.format(i=i)}.jpg": b"" for i in range(1, 8)} | (
        {"t/test/unlabelled.jpg": b""} if "t/" in form else {}
    )
    rows = [*filter(None, [head]), *(row(i, names[i % 2]) for i in range(1, 8))]
    listed = list_files(unpack(home, files | {table: "\n".join(rows).encode()}))
    assert listed.folders == names and len(listed.train) + len(listed.validation) == 16
    assert {path.stem: listed.folders[label] for path, label in listed.test} == {
        Path(flat.format(i=i)).name: names[i % 2] for i in range(1, 8)
    }
    assert any(table in note for note in listed.notes)


def test_numbers_of_classes_are_those_in_the_list_for_training(home: Path) -> None:
    names = ("n01443537", "n01629819")
    files = {f"train/{c}/{c}_{i}.JPEG": b"" for c in names for i in range(8)}
    files |= {f"val/val_{i}.JPEG": b"" for i in range(6)}
    train = lines([name.partition("/")[2] for name in files if "train" in name], [1] * 8 + [0] * 8, mark=" ")
    val = lines([f"val_{i}.JPEG" for i in range(6)], [0, 1] * 3, mark=" ")
    listed = list_files(unpack(home, files | {"train_list.txt": train.encode(), "val_list.txt": val.encode()}))
    assert [label for _, label in sorted(listed.test)] == [1, 0] * 3
    (home / "train_list.txt").unlink()
    notes = list_files(home).notes
    assert any("val_list.txt (its classes are not those of the folders)" in note for note in notes)


def test_folders_of_splits_have_priority_over_lists(put: Put) -> None:
    put("train/cat", "train/dog", count=6)
    folder = put("test/cat", "test/dog", count=2)
    (folder / "test.txt").write_text("train/cat/0.jpg\ntrain/dog/0.jpg")
    assert sizes(list_files(folder)) == (("cat", "dog"), 12, 4) and list_files(folder).notes == ()


def test_list_of_training_and_validation_together_does_not_contradict_both(home: Path, sandbox: Sandbox) -> None:
    held = TRAIN[::4]
    lists = {"train": [name for name in TRAIN if name not in held], "val": held, "trainval": TRAIN, "test": TEST}
    files = {f"{name}.txt": lines(own).encode() for name, own in lists.items()}
    sandbox.pack({name: picture(number) for number, name in enumerate(NAMES)} | files).read()
    found = list_files(sandbox.into)
    assert (len(found.train), len(found.validation), len(found.test)) == (12, 4, 8)


def test_tables_without_a_class_in_common_are_refused(sandbox: Sandbox) -> None:
    every = [name.replace("/", "-") for name in NAMES]
    tables = {
        "train.csv": lines(every[:16], ["oak", "rose"] * 8, head="file,label").encode(),
        "test.csv": lines(every[16:], ["0", "1"] * 4, head="file,label").encode(),
    }
    assert (
        "have no class in common"
        in sandbox.pack({f"all/{name}": picture(number) for number, name in enumerate(every)} | tables).refusal()
    )


def test_picture_in_two_formats_is_one(home: Path, sandbox: Sandbox) -> None:
    files = {
        f"{name}/{number}.{kind}": picture()
        for name in ("cat", "dog")
        for number in range(4)
        for kind in ("jpg", "png")
    }
    assert sum(sandbox.pack(files).read().counts["train"].values()) < 8
    assert "with `png` in their names accompany others" in " ".join(list_files(unpack(home, files)).left_out)
