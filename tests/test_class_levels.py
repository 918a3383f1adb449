"""Nested class folders: the folders of any level can be the classes, by PATH#2."""

from pathlib import Path

import pytest
from commands import Command, check_mistake
from packed import INPUT, Files, Sandbox, classes
from short_runs import tiny, write_dead_run

from vit.checkpoints.load import load_checkpoint
from vit.data.catalog import check_spec
from vit.data.datasets import load_dataset
from vit.data.folders import list_files
from vit.data.survey import survey
from vit.errors import InvalidDataset
from vit.paths import dataset_folder
from vit.training.runs.uploaded_datasets import runs_on

KINDS = ("Fruit/Apple/Red", "Fruit/Apple/Golden", "Fruit/Avocado", "Packages/Juice/Orange", "Vegetables/Pepper/Red")
LEVELS = (
    ("Fruit", "Packages", "Vegetables"),
    ("Apple", "Avocado", "Juice", "Pepper"),
    ("Avocado", "Fruit/Apple/Red", "Golden", "Orange", "Vegetables/Pepper/Red"),
)


def groceries(root: Path) -> Path:
    """Write pictures in splits, in folders of two or three levels."""
    return write(root, packed("train", 5) | packed("val", 2) | packed("test", 3))


def packed(split: str, count: int) -> Files:
    return classes(*(f"{split}/{kind}" for kind in KINDS), count=count)


def write(root: Path, files: Files) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


@pytest.mark.parametrize("level", [1, 2, 3])
def test_folders_of_each_level_can_be_the_classes(tmp_path: Path, level: int) -> None:
    root = groceries(tmp_path / "groceries")
    files = list_files(Path(f"{root}#{level}"))
    assert files.classes == LEVELS[level - 1] and files.levels == LEVELS
    assert (len(files.train), len(files.validation), len(files.test)) == (25, 10, 15)
    assert all(LEVELS[level - 1][label].split("/")[-1] in file.parts for file, label in files.train)
    dataset = load_dataset(f"folder:{root}#{level}", INPUT)
    assert dataset.classes == files.classes and f"Level {level} is used" in dataset.notes[0]
    assert survey(f"folder:{root}#{level}").counts["test"].keys() == set(files.classes)


def test_the_first_level_is_used_and_the_others_are_named(tmp_path: Path) -> None:
    files = list_files(groceries(tmp_path / "groceries"))
    assert files.classes == LEVELS[0]
    assert files.notes == (
        "Folders are nested: level 1 has 3 classes (Fruit, Packages, Vegetables), level 2 has 4 classes (Apple, "
        "Avocado, Juice and 1 more), level 3 has 5 classes (Avocado, Fruit/Apple/Red, Golden and 2 more). Level 1 is "
        "used; PATH#2 stands for level 2.",
    )


@pytest.mark.parametrize("level", ["0", "4", "x", "-1", "²", "02"])
def test_an_unknown_level_is_refused_and_the_known_ones_are_listed(tmp_path: Path, level: str) -> None:
    root = groceries(tmp_path / "groceries")
    with pytest.raises(InvalidDataset, match=r"#1 \(3 classes\), #2 \(4 classes\), #3 \(5 classes\)\.$"):
        list_files(Path(f"{root}#{level}"))


def test_a_folder_with_a_hash_in_its_name_is_itself(tmp_path: Path) -> None:
    root = groceries(tmp_path / "groceries#2")
    assert list_files(root).classes == LEVELS[0] and dataset_folder(f"folder:{root}") == root
    assert list_files(Path(f"{root}#2")).classes == LEVELS[1]


@pytest.mark.parametrize(
    "folders",
    [
        ("cat/images", "cat/masks", "dog/images", "dog/masks"),
        ("cat/train", "cat/test", "dog/train", "dog/test"),
        ("cat", "cat/images", "dog"),
        ("cat/only", "dog/one"),
        ("cat", "dog"),
    ],
)
def test_folders_of_splits_and_masks_are_no_level(tmp_path: Path, folders: tuple[str, ...]) -> None:
    files = list_files(write(tmp_path, classes(*folders)))
    assert files.levels == (("cat", "dog"),) and not any("nested" in note for note in files.notes)


def test_a_train_among_vehicles_is_a_class(tmp_path: Path) -> None:
    write(tmp_path, classes("vehicle/train", "vehicle/bus", "animal/cat", "animal/dog"))
    assert list_files(Path(f"{tmp_path}#2")).classes == ("bus", "cat", "dog", "train")


def test_folders_of_single_pictures_are_no_level(tmp_path: Path) -> None:
    folders = (f"{name}/{number}" for name in ("cat", "dog") for number in range(5))
    assert list_files(write(tmp_path, classes(*folders, count=1))).levels == (("cat", "dog"),)


def test_an_archive_keeps_its_nested_folders(sandbox: Sandbox) -> None:
    result = sandbox.pack(packed("train", 5) | packed("test", 3)).read()
    assert result.classes == LEVELS[0] and result.notes == ()
    for level, names in enumerate(LEVELS, 1):
        files = list_files(Path(f"{sandbox.into}#{level}"))
        assert files.classes == names and len(files.test) == 15
    assert (sandbox.into / "train/Fruit/Avocado/4.png").is_file()


@pytest.mark.parametrize(
    "folders",
    [
        ("cat/images/red", "cat/images/blue", "dog/images/red", "dog/images/blue"),
        ("cat/a\u202eb", "cat/c", "dog/d"),  # a class cannot have this name
    ],
)
def test_nested_folders_that_would_be_unclear_are_not_kept(sandbox: Sandbox, folders: tuple[str, ...]) -> None:
    result = sandbox.pack(classes(*folders, count=4)).read()
    assert result.classes == ("cat", "dog")
    assert {path.parent.name for path in sandbox.into.rglob("*.png")} == {"cat", "dog"}


def test_levels_are_accepted_in_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path))
    spec = f"folder:{groceries(tmp_path / 'groceries')}"
    assert check_spec(f"{spec}#2") == f"{spec}#2"
    for wrong in ("#7", "#", "#x", "#2#2", "/..#2"):
        with pytest.raises(InvalidDataset, match="There is no dataset"):
            check_spec(spec + wrong)


def test_a_run_on_a_level_uses_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    spec = f"folder:{groceries(tmp_path / 'groceries')}"
    (tmp_path / "runs").mkdir()
    config = tiny(data=f"{spec}#2").model_dump_json()
    (write_dead_run(tmp_path / "runs") / "config.json").write_text(config)
    assert [run.name for run in runs_on(spec)] == [run.name for run in runs_on(f"{spec}#3")] == ["dead"]


def test_the_command_line_takes_a_level(tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    groceries(tmp_path / "groceries")
    settings = (f"{name}={value}" for name, value in tiny(epochs=1).model_dump(exclude_defaults=True).items())
    line = ["train", "--data", "folder:groceries#2", "--run-dir", "run"]
    result = command(*line, *(word for pair in settings if not pair.startswith("data=") for word in ("--set", pair)))
    assert result.status == 0 and "4 classes, with pictures: Apple 20" in result.out
    best = load_checkpoint(tmp_path / "run/checkpoints/best")
    assert tuple(best.labels) == LEVELS[1] and best.facts["data"] == "folder groceries#2"
    result = command("evaluate", "--checkpoint", "run/checkpoints/best", "--data", "folder:groceries#2")
    assert result.status == 0
    check_mistake(command(*line[:2], "folder:groceries#9", "--run-dir", "other"), "has no level '9' of class folders")
