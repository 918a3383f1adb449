"""Flat pictures get their classes from tables beside them or from their file names."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from empty_pictures import Write, pictures, refusal
from packed import Files, Sandbox, picture

from vit.data.datasets import load_dataset
from vit.data.file_names import printable_name
from vit.data.folders import list_files
from vit.images.preprocess import Preprocess

PETS = ["cat", "dog"] * 3


def rows(head: str, *values: Sequence[Any], mark: str = ",") -> str:
    return "\n".join([head, *(mark.join(map(str, row)) for row in zip(*values, strict=True))]).lstrip("\n") + "\n"


def labels_of(folder: Path) -> dict[str, str]:
    """Return the class of each file."""
    files = list_files(folder)
    every = (*files.train, *files.validation, *files.test)
    return {str(path.relative_to(folder)): files.classes[label] for path, label in every}


TABLES = {
    "ids": ("labels.csv", rows("id,label", range(6), PETS)),
    "names": ("train.csv", rows("breed;file", PETS, [f"{i}.JPG" for i in range(6)], mark=";")),
    "no head": ("annotations.txt", rows("", [f"./images/{i}.jpg" for i in range(6)], PETS, mark=" ")),
    "backslashes": ("x.tsv", rows("path\tage\tclass", [f"C:\\{i}.jpg" for i in range(6)], range(6), PETS, mark="\t")),
    "only one repeats": ("x.csv", rows("image,what,note", range(6), PETS, "abcdef")),
    "in words": ("x.csv", rows("class id,image,class name", [1, 2] * 3, range(6), PETS)),
    "flags": ("truth.csv", rows("image,cat,dog", range(6), ["1.0", "0.0"] * 3, ["0.0", "1.0"] * 3)),
    "lines": ("meta.jsonl", "".join(f'{{"file_name": "images/{i}.jpg", "label": "{PETS[i]}"}}\n' for i in range(6))),
    "object": ("labels.json", json.dumps({f"{i}.jpg": PETS[i] for i in range(6)})),
    "lists": ("labels.json", json.dumps({"cat": ["0.jpg", "2.jpg", "4.jpg"], "dog": ["1", "3", "5"]})),
    "with a mark": ("labels.csv", "\ufeff" + rows("id,label", range(6), PETS)),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), TABLES.values(), ids=TABLES)
def test_columns_of_a_table_are_recognised_by_their_content(write: Write, name: str, content: str) -> None:
    folder = write({name: content} | pictures("images/"))
    assert labels_of(folder) == {f"images/{i}.jpg": PETS[i] for i in range(6)}
    assert name in list_files(folder).notes[0]


def test_numeric_labels_are_not_taken_for_file_names(write: Write) -> None:
    assert labels_of(write({"labels.csv": rows("label,id", [0, 1] * 3, range(6))} | pictures("")))["3.jpg"] == "1"


MIXED = [3, 0, 5, 1, 4, 2]
LABELS = [PETS[i] for i in MIXED]
NUMBERED = {
    "index of pandas": ("a.csv", rows(",filename,label", range(6), [f"{i}.jpg" for i in MIXED], LABELS)),
    "unnamed index": ("a.csv", rows("Unnamed: 0,id,label", range(6), MIXED, LABELS)),
    "index": ("a.csv", rows("index,image_id,label", range(6), MIXED, LABELS)),
    "rows from 1": ("a.csv", rows("id,name,label", range(1, 7), MIXED, LABELS)),
    "age": ("a.csv", rows("age,file,label", range(6), [f"{i}.jpg" for i in MIXED], LABELS)),
    "folders": ("a.csv", rows("size,where,label", range(6), [f"images/{i}" for i in MIXED], LABELS)),
    "key of an image": ("a.csv", rows("patient id,image,label", [1, 0, 2, 3, 4, 5], MIXED, LABELS)),
    "mask": ("a.csv", rows("mask_path,image_path,label", [f"{i}.png" for i in range(6)], [f"{i}.jpg" for i in MIXED],
                           LABELS)),
    "keys": ("a.json", json.dumps({i: {"id": MIXED[i], "label": LABELS[i]} for i in range(6)})),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), NUMBERED.values(), ids=NUMBERED)
def test_numbers_in_other_columns_are_not_taken_for_file_names(write: Write, name: str, content: str) -> None:
    folder = write({name: content} | pictures("images/"))
    assert labels_of(folder) == {f"images/{i}.jpg": PETS[i] for i in range(6)}


@pytest.mark.parametrize(
    ("head", "names"), [("left,right,label", "left and right"), ("path,image,label", "path and image"), ("", "1 and 2")]
)
def test_columns_that_name_different_pictures_are_refused(write: Write, head: str, names: str) -> None:
    message = refusal(write({"a.csv": rows(head, [1, 0, 2, 3, 4, 5], MIXED, LABELS)} | pictures("")))
    assert f"a.csv names these pictures, but its columns {names} name different ones" in message


def test_numbers_without_their_leading_zeros_name_pictures(write: Write) -> None:
    files = {f"x/{i:05}.jpg": "" for i in range(6)}
    table = rows("size,id,label", ["0.5", "1.5", "2.5", "3.5", "4.5", "5.5"], range(6), PETS)
    assert labels_of(write({"a.csv": table} | files)) == {f"x/{i:05}.jpg": PETS[i] for i in range(6)}
    two = {"01.jpg": "", "001.jpg": ""} | {f"{i}.jpg": "" for i in range(2, 8)}
    table = rows("id,label", range(1, 8), ["cat", "dog"] * 3 + ["cat"])
    assert labels_of(write({"a.csv": table} | two)).keys() == {f"{i}.jpg" for i in range(2, 8)}  # 1 may be either


def test_table_of_other_pictures_is_named_in_the_refusal(write: Write) -> None:
    table = {"labels.csv": rows("file,label", [f"IMG_{i}.jpg" for i in range(6)], PETS)}
    assert "labels.csv names fewer than half of the pictures" in refusal(write(table | pictures("images/")))


def test_cells_without_a_value_name_no_class(write: Write) -> None:
    for missing in ("", "NaN", "nan", "<NA>"):
        table = {"a.csv": rows("id,label", range(6), ["cat", "dog", "cat", "dog", missing, missing])}
        listed = list_files(write(table | pictures("")))
        assert listed.classes == ("cat", "dog") and "for 2 of 6 pictures" in listed.notes[1]


@pytest.mark.parametrize(
    ("cells", "several"),
    [
        (["healthy", "scab", "scab frog_eye_leaf_spot", "rust complex", "rust", "complex"], [2, 3]),
        (["cat", "dog", "cat, dog", "bird,cat", "bird"], [2, 3]),
        (["cat", "dog", "dog;cat", "cat|bird", "bird"], [2, 3]),
        (["cat", "dog", "cat/dog"], [2]),
        (["['cat']", "['hot dog']", "['cat', 'hot dog']"], [2]),
        (["[1]", "[2]", "[1, 2]", "[1 2]"], [2, 3]),
        (["cat", '{"choices": ["cat", "dog"]}', "dog"], [1]),
        (["golden retriever", "hot dog", "dog", "labrador retriever"], []),
        (["tench, Tinca tinca", "missile", "projectile, missile"], []),
        (["light blue", "blue", "light green", "green", "light red", "red"], []),
        (["Paris, France", "Lyon, France", "Berlin, Germany"], []),
        (["red car", "red bus", "blue car", "blue bus"], []),
    ],
)
def test_cells_of_several_classes_are_left_out_and_names_of_several_words_stay(
    write: Write, cells: list[str], several: list[int]
) -> None:
    table = rows("id\tlabel", range(4 * len(cells)), cells * 4, mark="\t")
    listed = list_files(write({"a.tsv": table} | pictures("", count=4 * len(cells))))
    assert len(listed.left_out) == 4 * len(several)
    expected = {cell.strip("[']") for place, cell in enumerate(cells) if place not in several}
    assert set(listed.classes) == expected


@pytest.mark.parametrize("mark", [" ", ",", ";", "|"])
def test_table_of_several_classes_per_picture_is_refused_as_such(write: Write, mark: str) -> None:
    words = ["primary", "water", "road", "farm", "cloud"]
    cells = [mark.join(word for bit, word in enumerate(words) if number >> bit & 1) for number in range(1, 32)]
    table = rows("id\ttags", range(31), cells, mark="\t")
    assert "a multi-label dataset" in refusal(write({"a.tsv": table} | pictures("", count=31)))


URLS = [
    "https://bucket.example/x/photo%20{}.jpg?X-Amz-Signature=ab/cd&x=1",
    "gs://bucket/photo {}.jpg",
    "/data/local-files/?d=x/photo%20{}.jpg",
    "/data/upload/1/0123abcd-photo {}.jpg",
    "D:\\x\\PHOTO {}.JPG",
]


@pytest.mark.parametrize("form", URLS)
def test_cells_with_addresses_name_files(write: Write, form: str) -> None:
    files = {f"x/photo {i}.jpg": "" for i in range(6)}
    table = rows("url,label", [form.format(i) for i in range(6)], PETS)
    assert labels_of(write({"a.csv": table} | files)) == {f"x/photo {i}.jpg": PETS[i] for i in range(6)}
    tasks = [
        {
            "data": {"image": form.format(i)},
            "annotations": [{"result": [{"value": {"choices": [PETS[i]]}, "from_name": "kind"}]}] * (1 + i % 2),
            "predictions": [{"result": [{"value": {"choices": ["fox"]}}]}],
        }
        for i in range(6)
    ]
    small = [
        {"image": form.format(i), "id": i, "choice": PETS[i], "annotator": 1, "lead_time": i / 7} for i in range(6)
    ]
    for document in (tasks, small):
        folder = write({"a.json": json.dumps(document)} | files)
        assert labels_of(folder) == {f"x/photo {i}.jpg": PETS[i] for i in range(6)}


def test_label_studios_pictures_without_one_choice_are_left_out(write: Write) -> None:
    choices: list[list[str]] = [["cat"], ["dog"], ["cat", "dog"], [], ["cat"], ["dog"]]
    results = [[{"result": [{"value": {"choices": own}}]}] for own in choices]
    results[3] = [{"was_cancelled": True, "result": [{"value": {"choices": ["fox"]}}]}]
    tasks = [{"data": {"image": f"{i}.jpg"}, "annotations": own} for i, own in enumerate(results)]
    small = [
        {"image": f"{i}.jpg", "choice": {"choices": own} if len(own) != 1 else own[0]} for i, own in enumerate(choices)
    ]
    for document in (tasks, small):
        listed = list_files(write({"a.json": json.dumps(document)} | pictures("")))
        assert listed.classes == ("cat", "dog") and len(listed.left_out) == 2


HASHES = [f"{number * 2654435761 % 2**32:08x}" for number in range(40)]


@pytest.mark.parametrize("form", ["train/{0[0]}/{0[1]}/{0[2]}/{0}.jpg", "{0[0]}{0[1]}/{0}.jpg", "images/{0}/a.jpg"])
def test_folders_named_by_hashes_are_no_classes_if_a_table_has_them(write: Write, form: str) -> None:
    files = [form.format(name) for name in HASHES]
    names = HASHES if HASHES[0] in files[0].rpartition("/")[2] else files
    table = rows("id,landmark_id", names, [100, 101] * 20)
    folder = write({"train.csv": table} | dict.fromkeys(files, ""))
    assert labels_of(folder) == {name: f"{100 + place % 2}" for place, name in enumerate(files)}


def test_folders_named_by_letters_are_classes(write: Write) -> None:
    files = {f"{letter}/{letter}_{i}.jpg": "" for letter in "abcdef" for i in range(4)}
    table = rows("file,label", [name.partition("/")[2] for name in files], [name[0] for name in files])
    assert list_files(write(files | {"labels.csv": table})).classes == tuple("abcdef")


def test_archive_with_a_table_becomes_class_folders(sandbox: Sandbox) -> None:
    files: Files = {f"images/{i}.jpg": picture(i) for i in range(7)}
    files["labels.csv"] = rows("id,label", range(6), ["n/a", ".."] * 3).encode()
    result = sandbox.pack(files).read()
    assert result.classes == ("..", "n/a")
    assert sandbox.pictures() == {"data/pets/classes.json"} | {
        f"data/pets/{('n_a', '_')[i % 2]}/{i}.jpg" for i in range(6)
    }
    assert [line.partition(":")[0] for line in result.skipped] == ["images/6.jpg"]
    assert "labels.csv" in result.notes[0] and "1 of 7 pictures" in result.notes[1]
    dataset = load_dataset(sandbox.spec, Preprocess((8, 8)), budget=0, workers=0)
    assert dataset.classes == ("..", "n/a")


def test_labels_differing_only_in_case_stay_distinct(sandbox: Sandbox) -> None:
    files: Files = {f"{i}.jpg": picture(i) for i in range(6)}
    files["a.csv"] = rows("id,label", range(6), ["Cat", "cat"] * 3).encode()
    result = sandbox.pack(files).read()
    assert result.classes == ("Cat", "cat") and "differ only in case are kept apart: Cat, cat." in result.notes[1]
    assert {Path(name).parent.name.casefold() for name in sandbox.pictures()} == {"pets", "cat", "cat 2"}


def test_unprintable_labels_are_refused(write: Write) -> None:
    for label in ("x" * 200, "do\u202eg"):
        assert "The class " in refusal(write({"a.csv": rows("id,label", range(6), [label, "cat"] * 3)} | pictures("")))


def test_long_names_leave_refusals_short(write: Write) -> None:
    titles = [f"{letter * 200}" for letter in "abcd"]
    files = pictures("images/")
    for head, columns in (
        (["image", *titles], [range(6), PETS, "aaabbb", "ababba", "aabbab"]),
        (titles[:2], [range(6), ["5.jpg", *(f"{i}.jpg" for i in range(5))]]),
    ):
        message = refusal(write({f"{'t' * 200}.csv": rows(",".join(head), *columns)} | files))
        assert len(message) <= 250 and message.endswith(".")


def test_names_of_characters_that_cannot_be_printed_stay_short() -> None:
    assert len(printable_name("\u202e" * 80)) <= 80 >= len(printable_name("\u202e" * 200))


def test_gaps_of_a_table_are_reported(write: Write) -> None:
    two = {"labels.csv": rows("id,label", [0, 1], ["cat", "dog"])}
    message = refusal(write(two | pictures("images/")))
    assert "one picture per class" in message and "labels.csv" in message and "4 of 6 pictures" in message
    message = refusal(write({"x.csv": rows("image,colour,size", range(6), PETS, "aaabbb")} | pictures("")))
    assert "several columns could be the class: colour, size" in message
    message = refusal(write({"x.csv": rows("image,caption", range(6), "abcdef")} | pictures("")))
    assert "Add one called `label`" in message
    message = refusal(write({"x.csv": rows("image,label", range(6), ["cat"] * 6)} | pictures("")))
    assert "its column label names no two classes" in message
    assert "labels.xlsx is not read" in refusal(write({"labels.xlsx": ""} | pictures("")))
    yolo = {f"labels/{i}.txt": "0 0.5 0.5 1 1" for i in range(6)}
    assert "Annotations of single pictures" in refusal(write(yolo | pictures("images/")))


def test_tables_of_splits_label_pictures_of_equal_names(write: Write) -> None:
    files = pictures("train/", "test/")
    for split, first in (("train", "cat"), ("test", "dog")):
        labels = [first, "bird", "cat", "dog", "bird", "bird"]
        files[f"{split}/metadata.csv"] = rows("file_name,label", [f"{i}.jpg" for i in range(6)], labels)
    listed = list_files(write(files))
    assert listed.classes == ("bird", "cat", "dog") and len(listed.test) == 6
    labels = {
        path.parts[-2:]: listed.classes[label] for path, label in (*listed.train, *listed.validation, *listed.test)
    }
    assert (labels["train", "0.jpg"], labels["test", "0.jpg"]) == ("cat", "dog")


def test_sample_submission_of_a_competition_has_no_labels(write: Write) -> None:
    files = pictures("train/") | {f"test/{i}.jpg": "" for i in range(10, 16)}
    files["train.csv"] = rows("id,label", range(6), PETS)
    files["sample_submission.csv"] = rows("id,label", range(10, 16), PETS)
    listed = list_files(write(files))
    assert len(listed.train) + len(listed.validation) + len(listed.test) == 6 and len(listed.left_out) == 6


def test_column_of_splits_is_recognised(write: Write) -> None:
    table = rows("class id,filepaths,labels,data set", [1, 2] * 3, range(6), PETS, ["train"] * 4 + ["test"] * 2)
    listed = list_files(write({"birds.csv": table} | pictures("x/")))
    assert sorted(path.name for path, _ in listed.test) == ["4.jpg", "5.jpg"]


def coco(names: Sequence[str], categories: Sequence[Sequence[int]]) -> str:
    return json.dumps(
        {
            "images": [{"id": 10 + i, "file_name": name} for i, name in enumerate(names)],
            "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
            "annotations": [
                {"image_id": 10 + i, "category_id": one, "bbox": [0.5, 0, 1, 1]}
                for i, own in enumerate(categories)
                for one in own
            ],
        }
    )


def test_coco_gives_the_class_of_pictures_with_one_category(write: Write) -> None:
    names = [f"{i}.jpg" for i in range(6)]
    table = coco(names, [[1], [2], [1, 1], [2], [1, 2], []])
    folder = write({"annotations/instances_all.json": table} | pictures("images/"))
    assert labels_of(folder) == {
        "images/0.jpg": "cat",
        "images/1.jpg": "dog",
        "images/2.jpg": "cat",
        "images/3.jpg": "dog",
    }
    listed = list_files(folder)
    assert "1 of the pictures has several classes" in listed.notes[1] and len(listed.left_out) == 2
    several = write({"x.json": coco(names, [[1, 2]] * 6)} | pictures("images/"))
    assert "6 of the pictures have several classes" in refusal(several)
    splits = pictures("train2017/") | {f"val2017/{i}.jpg": "" for i in range(10, 14)}
    splits["a/instances_train2017.json"] = coco(names, [[1], [2]] * 3)
    splits["a/instances_val2017.json"] = coco([f"{i}.jpg" for i in range(10, 14)], [[1], [2]] * 2)
    assert len(list_files(write(splits)).test) == 4


@pytest.mark.parametrize("form", ["{}.{}", "{}_{:03}", "{}-{}", "{} ({})", "{}{}", "great_{}_{}", "{1:04}_{0}"])
def test_file_names_give_the_class_if_all_have_one_form(write: Write, form: str) -> None:
    files = {f"x/{form.format(name, number)}.jpg": "" for name in ("cat", "dog") for number in range(1, 5)}
    listed = list_files(write(files))
    prefix = "great_" if form.startswith("great") else ""
    assert listed.classes == (f"{prefix}cat", f"{prefix}dog") and "names of the files" in listed.notes[0]
    assert len(listed.train) + len(listed.validation) + len(listed.test) == 8
    assert "at least two" in refusal(write(files | {"x/cover.jpg": ""}))


def test_camera_file_names_have_no_classes(write: Write) -> None:
    names = [f"{camera}_{number:04}.jpg" for camera in ("IMG", "DSC") for number in range(4)]
    assert "at least two" in refusal(write(dict.fromkeys(names, "")))


def test_file_names_in_a_training_folder_count_and_unlabelled_test_files_are_left_out(write: Write) -> None:
    files = {f"train/{name}.{number}.jpg": "" for name in ("cat", "dog") for number in range(5)}
    listed = list_files(write(files | pictures("test1/")))
    assert listed.classes == ("cat", "dog") and len(listed.left_out) == 6


def test_class_folders_have_priority_over_tables_and_names(write: Write) -> None:
    files = pictures("red/") | {"blue/cat_1.jpg": "", "blue/dog_2.jpg": ""}
    table = {"labels.csv": rows("id,kind", range(6), PETS), "red/labels.csv": rows("id,label", range(6), PETS)}
    assert list_files(write(table | files)).classes == ("blue", "red")
    classes = {f"class{i}/{name}_{i}{j}.jpg": "" for i in (1, 2) for j in range(3) for name in ("cat", "dog")}
    listed = list_files(write(classes))
    assert listed.classes == ("class1", "class2")
    assert "(class1/, class2/), although the names of the files give cat, dog" in listed.notes[0]
    assert list_files(write({f"cat{i}/cat{i}_{j}.jpg": "" for i in (1, 2) for j in range(3)})).notes == ()


def in_folders(*folders: str) -> dict[str, str]:
    return {f"{folder}/{folder}_{i}.jpg": "" for folder in folders for i in range(6)}


def labels_in(*folders: str, classes: Sequence[str], column: str = "label") -> str:
    names = [f"{folder}_{i}.jpg" for folder in folders for i in range(6)]
    return rows(f"file,{column}", names, list(classes) * (len(names) // len(classes)))


def test_table_that_is_too_long_does_not_hide_the_folders_beside_it(write: Write) -> None:
    files = {f"x/{name}": "" for name in in_folders("cat", "dog")}
    assert list_files(write(files | {"labels.csv": "\n" * 2_000_001})).classes == ("cat", "dog")


@pytest.mark.parametrize("place", ["labels.csv", "meta/train.csv"])
def test_table_of_labels_beside_folders_of_other_classes_is_refused(write: Write, place: str) -> None:
    folders = ("berlin", "paris")
    files = {f"x/{name}": "" for name in in_folders(*folders)}
    message = refusal(write(files | {place: labels_in(*folders, classes="ab")}))
    assert "berlin/, paris/" in message and f"{place} has other classes in its column `label`." in message
    same = labels_in(*folders, classes=["Berliner"] * 6 + ["Pariser"] * 6)  # other names of the same classes
    some = rows("file,label", [f"berlin_{i}.jpg" for i in range(4)], "abab")  # of a third of the pictures
    other = labels_in(*folders, classes="ab", column="class")
    for table in (same, some, other):
        assert list_files(write(files | {place: table})).classes == folders


def test_numbered_folders_are_no_classes_if_a_table_has_labels(write: Write) -> None:
    years = ("2019", "2020", "2021")
    listed = list_files(write(in_folders(*years) | {"labels.csv": labels_in(*years, classes="ab")}))
    assert listed.classes == ("a", "b") and "labels.csv (columns file, label)" in listed.notes[0]
    same = labels_in("0", "1", classes=["no"] * 6 + ["yes"] * 6)
    assert list_files(write(in_folders("0", "1") | {"labels.csv": same})).classes == ("0", "1")
    assert list_files(write(in_folders(*years))).classes == years


def test_parts_of_a_download_are_no_classes_if_a_table_names_them(write: Write) -> None:
    files = {f"images_part_{1 + i // 6}/X_{i}.jpg": "" for i in range(12)}
    ids = [f"L{i // 2}" for i in range(12)], [f"X_{i}" for i in range(12)]
    table = rows("lesion_id,image_id,dx,age", *ids, ["mel", "nv"] * 6, range(12))
    assert Counter(labels_of(write(files | {"metadata.csv": table})).values()) == {"mel": 6, "nv": 6}
    assert list_files(write(files)).classes == ("images_part_1", "images_part_2")


def test_damaged_and_hostile_tables_are_ignored(write: Write) -> None:
    for name, content in (
        ("a.json", "[" * 100_000),
        ("a.csv", '"' * 200_000),
        ("a.csv", "," * 200_000),
        ("a.csv", "\0,\0\n" * 9),
        ("a.jsonl", "{}\n[1]\n"),
    ):
        assert "at least two" in refusal(write({name: content} | pictures("x/")))
