"""Folders easily mistaken for classes: masks, splits, timestamps, conflicting tables; and files nested too deep."""

import json
import unicodedata
from pathlib import Path

import pytest
from empty_pictures import Write, pictures, refusal
from packed import Sandbox, pack, picture

from vit.data import tables
from vit.data.archives.import_archive import import_dataset, left_out
from vit.data.folders import list_files
from vit.data.layouts.split_names import split_name


def labels_of(folder: Path, split: str = "") -> dict[str, str]:
    """Return the class of each file, of one split or all."""
    files = list_files(folder)
    every = getattr(files, split) if split else (*files.train, *files.validation, *files.test)
    return {path.name: files.classes[label] for path, label in every}


def rows(head: str, *lines: str) -> str:
    return "\n".join([head, *lines]) + "\n"


def test_pictures_in_nested_splits_get_classes_from_tables_and_names(write: Write) -> None:
    """Kaggle's dogs-vs-cats as it unpacks, and train/images/ beside a table."""
    flat = {f"train/train/{name}.{number}.jpg": "" for name in ("cat", "dog") for number in range(6)}
    assert set(labels_of(write(flat | pictures("test1/test1/"))).values()) == {"cat", "dog"}
    files = {f"{split}/images/{split}{number}.jpg": "" for split in ("train", "test") for number in range(6)}
    for split in ("train", "test"):
        lines = (f"{split}{number}.jpg,{'ab'[number % 2]}" for number in range(6))
        files[f"{split}/labels.csv"] = rows("image,label", *lines)
    assert labels_of(write(files), "test") == {f"test{number}.jpg": "ab"[number % 2] for number in range(6)}
    yolo = {f"{split}/labels/{number}.txt": "0 .5 .5 1 1" for split in ("train", "valid") for number in range(6)}
    message = refusal(write(yolo | pictures("train/images/", "valid/images/")))
    assert "Annotations of single pictures" in message


@pytest.mark.parametrize(
    "folders",
    [
        ("train/", "test/"),
        ("train/", "test1/"),
        ("images/train/", "images/val/"),
        ("seg_train/", "seg_test/"),
        ("train_cat/", "train_dog/", "test/"),
        ("train_cat/", "train_dog/", "test_dog/"),
        ("train_cat/", "train dog/", "test-cat/", "valid-cat/"),
        ("train1/", "train2/", "test1/", "test2/"),
    ],
)
def test_splits_without_class_folders_are_refused(write: Write, folders: tuple[str, ...]) -> None:
    message = refusal(write(pictures(*folders) | {"labels/train/0.txt": "0 .5 .5 .1 .1", "data.yaml": "names: [a, b]"}))
    assert "only folders of splits" in message and f"{folders[0].split('/')[-2]}/" in message
    assert "Annotations of single pictures, such as labels/train/0.txt, are not read" in message


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("{split}-{name}/", ("cat", "dog")),
        ("{name}_{split}/", ("Katze", "Kätzchen", "Äffin")),
        ("pets/{name} {split} 2/", ("cat", "dog")),
        ("{split}{name}/", ("A", "B")),
        ("{split}_{name}/", ("cat 1", "cat 2")),
    ],
)
def test_folders_named_by_split_and_class_are_read_as_both(write: Write, form: str, names: tuple[str, ...]) -> None:
    folders = [form.format(split=split, name=name) for split in ("train", "test") for name in names]
    listed = list_files(write(pictures(*folders)))
    suffix = " 2" if "2/" in form else ""
    assert listed.classes == tuple(f"{name}{suffix}" for name in sorted(names))
    for path, label in (*listed.train, *listed.validation, *listed.test):
        split = "test" if (path, label) in listed.test else "train"
        assert form.format(split=split, name=listed.classes[label].removesuffix(suffix)) in f"{path.parent}/"
    assert "from the names of the folders" in listed.notes[0]


def test_words_beside_a_splits_name_that_no_other_split_shares_are_classes(write: Write) -> None:
    assert list_files(write(pictures("train_station/", "test_tube/"))).classes == ("test_tube", "train_station")


def test_masks_beside_pictures_are_no_class(write: Write) -> None:
    for folders in (("images/", "masks/"), ("Train/images/", "Train/masks/", "Val/images/", "Val/masks/")):
        assert "has 1 class folder with pictures" in refusal(write(pictures(*folders)))
    assert set(labels_of(write(pictures("mask/", "no_mask/"))).values()) == {"mask", "no_mask"}


@pytest.mark.parametrize(
    ("plain", "others"),
    [
        ("{c}/{c} ({i}).png", ["{c}/{c} ({i})_mask.png", "{c}/{c} ({i})_mask_1.png"]),
        ("{t}/{c}/ISIC_{i:07}.jpg", ["{t}/{c}/ISIC_{i:07}_Segmentation.png", "{t}/{c}/ISIC_{i:07}_superpixels.png"]),
        ("{c}/{c}_1/{i}_crop.png", ["{c}/{c}_1/{i}_depthcrop.png", "{c}/{c}_1/{i}_maskcrop.png"]),
        ("{c}/IMG_{i}.JPG", ["{c}/thumb_IMG_{i}.jpg", "{c}/IMG_{i}Thumb.jpg", "{c}/img_{i}-GT.png"]),
        ("{c}/image_{i}.png", ["{c}/label_{i}.png", "{c}/Ground Truth {i}.png"]),
        ("{t}/{c}/images/{i}.png", ["{t}/{c}/lung masks/{i}.png", "{t}/{c}/infection masks/{i}.png"]),
        ("{c}/rgb/{i}.png", ["{c}/GroundTruth/{i}.png", "{c}/depth maps/{i}.png", "{c}/Masks/{i}_mask.png"]),
        ("images/{c}/{i}.png", ["binary masks/{c}/{i}.png"]),
        ("{c}/{c}{i}.png", ["Masks/{c}{i}.png"]),
        ("{c}/{i}.png", ["{c}_depth/{i}.png"]),
        ("{c}_{i}.png", ["{c}_{i}_mask.png"]),
    ],
)
def test_pictures_that_accompany_others_are_left_out_and_counted(
    write: Write, tmp_path: Path, plain: str, others: list[str]
) -> None:
    splits = ("train", "test") if "{t}" in plain else ("",)

    def names(form: str) -> list[str]:
        return [form.format(c=c, i=i, t=t) for t in splits for c in ("cat", "dog") for i in range(4)]

    accompanying = [name for form in others for name in names(form)]
    listed = list_files(write(dict.fromkeys([*names(plain), *accompanying], "")))
    every = (*listed.train, *listed.validation, *listed.test)
    assert listed.classes == ("cat", "dog") and {str(path).endswith(tuple(names(plain))) for path, _ in every} == {True}
    assert len(every) == len(names(plain))
    counts = [int(line.partition(": ")[2].split()[0]) for line in listed.left_out]
    assert sum(counts) == len(accompanying) and all("accompany others" in line for line in listed.left_out)
    archive = pack(tmp_path / "a.zip", dict.fromkeys([*names(plain), *accompanying], picture()))
    import_dataset(archive, tmp_path / "into")
    unpacked = list_files(tmp_path / "into")
    assert len((*unpacked.train, *unpacked.validation, *unpacked.test)) == len(every)
    assert left_out(tmp_path / "into").lines == listed.left_out


@pytest.mark.parametrize(
    "files",
    [
        [f"{c}/{c}_{i}.jpg" for c in ("with_mask", "without_mask") for i in range(4)],
        [f"{c}/{i}.jpg" for c in ("mask", "no_mask", "incorrect_mask") for i in range(4)],
        [f"{c}/{form.format(i)}.jpg" for c in ("mask", "face") for form in ("{}", f"{c} ({{}})") for i in range(4)],
        [f"{c}/{i}.jpg" for c in ("Edge-Loc", "Edge-Ring", "Donut", "Loc") for i in range(4)],
        [f"{c}/{c}{'_mask' * (c == 'cat')}_{i}.jpg" for c in ("cat", "dog") for i in range(4)],
        [f"label_{c}/{i}.jpg" for c in range(3) for i in range(4)],
        [f"cat/{c}/{i}.jpg" for c in ("no mask", "seg_train", "young") for i in range(4)] + ["dog/1.jpg", "dog/2.jpg"],
        [f"{c}_{i}.jpg" for c in ("mask", "no_mask") for i in range(4)],
        [f"bad/{c}/{i}_{c}.jpg" for c in ("Mask_Chin", "Mask_Nose") for i in range(4)] + ["good/1.jpg", "good/2.jpg"],
    ],
    ids=lambda files: files[0],
)
def test_words_for_companions_without_a_partner_name_classes(write: Write, files: list[str]) -> None:
    listed = list_files(write(dict.fromkeys(files, "")))
    assert len((*listed.train, *listed.validation, *listed.test)) == len(files) and listed.left_out == ()


def test_companions_that_a_table_names_are_used(write: Write) -> None:
    names = [f"{number}{mark}.jpg" for number in range(4) for mark in ("", "_mask")]
    table = rows("file,label", *(f"{name},{'mask' if 'mask' in name else 'face'}" for name in names))
    folder = write({f"x/{name}": "" for name in names} | {"labels.csv": table})
    assert labels_of(folder) == {name: "mask" if "mask" in name else "face" for name in names}
    of_two = rows("rgb_path,depth_path,label", *(f"{i}_rgb.png,{i}_depth.png,{'ab'[i % 2]}" for i in range(6)))
    files = {f"x/{i}_{kind}.png": "" for i in range(6) for kind in ("rgb", "depth")}
    assert labels_of(write(files | {"a.csv": of_two})) == {f"{i}_rgb.png": "ab"[i % 2] for i in range(6)}


@pytest.mark.parametrize(
    "names",
    [
        ["{split}/{p:04}_c{k}s1_{k}00_00.jpg", "bounding_box_train", "bounding_box_test", "query", "gt_bbox"],
        ["{split}/{p:04}_c{k}_f00{p}{k}.jpg", "image_train", "image_query"],
        ["{split}/{p}{k}.jpg", "query", "gallery"],
        ["{split}/{p}{k}.jpg", "probe", "gallery", "train"],
        ["{split}/{p}{k}.jpg", "labelled", "Unlabeled"],
    ],
    ids=lambda names: names[1],
)
def test_folders_for_retrieval_are_splits(write: Write, names: list[str]) -> None:
    form, *splits = names
    files = [form.format(split=split, p=p, k=k) for split in splits for p in range(3) for k in range(4)]
    message = refusal(write(dict.fromkeys(files, "")))
    assert "only folders of splits" in message and ("begin with identities" in message) == ("_c" in form)


def test_folder_read_as_a_class_is_reported(write: Write) -> None:
    for name in ("test images/", "test/"):
        assert any(name in note for note in list_files(write(pictures("cat/", "dog/", name))).notes)
    assert list_files(write(pictures("car/", "bus/", "train/"))).notes == ()


def test_timestamps_in_file_names_are_no_classes(write: Write) -> None:
    for form in ("{}_12000{}.jpg", "signal-{}-12{}.jpg", "holiday {} 1{}.jpg"):
        for days in (("20230101", "20230102"), ("2023-01-01", "2023-01-02")):
            refusal(write({form.format(day, number): "" for day in days for number in range(4)}))


def test_column_of_splits_is_no_class(write: Write) -> None:
    table = rows("image_id,partition", *(f"{number}.jpg,{number % 3}" for number in range(6)))
    assert "no column that could be their class" in refusal(write({"list.csv": table} | pictures("")))


def test_conflicting_tables_are_refused(write: Write) -> None:
    def table(*names: str) -> str:
        return rows("id,label", *(f"{number},{name}" for number, name in enumerate(names)))

    one, other = table(*"aabbab"), table(*"bbaaba")
    message = refusal(write({"cat_train.csv": one, "dog_train.csv": other} | pictures("")))
    assert "cat_train.csv and dog_train.csv name different classes" in message
    numbers = {"all.csv": one, "numbers.csv": table(*"112212")}
    assert set(labels_of(write(numbers | pictures(""))).values()) == {"a", "b"}
    disjoint = {"labels.csv": table(*"aabb"), "train.csv": rows("id,label", "4,a", "5,b")}
    assert len(labels_of(write(disjoint | pictures("")))) == 6


def test_tables_of_splits_split_the_files_of_another_and_file_names_give_class_names(write: Write) -> None:
    """As Oxford's pets: list.txt of all, with numbers, and one list for each split."""
    names = [f"{breed}_{number}" for breed in ("Abyssinian", "shiba_inu") for number in range(1, 7)]
    lines = [f"{name} {1 + (name < 'B')} 1 1" for name in names]
    files = {"annotations/list.txt": rows("#Image CLASS-ID SPECIES BREED ID", "#ID: 1:37 Class ids", *lines)}
    files["annotations/trainval.txt"] = rows(*(line for line in lines if not line.split()[0].endswith(("5", "6"))))
    files["annotations/test.txt"] = rows(*(line for line in lines if line.split()[0].endswith(("5", "6"))))
    folder = write(files | {f"images/{name}.jpg": "" for name in names})
    assert labels_of(folder, "test") == {f"{name}.jpg": name[:-2] for name in names if name.endswith(("5", "6"))}


def test_class_names_of_several_words_stay_whole_in_lists(write: Write) -> None:
    lines = [f"{number} {('707-320', 'Fokker 50', 'Fokker 100')[number % 3]}" for number in range(6)]
    assert labels_of(write({"variant.txt": rows(*lines)} | pictures("")))["1.jpg"] == "Fokker 50"
    lines = [f"my pets/{number} a.jpg {('red fox', 'cat')[number % 2]}" for number in range(6)]
    spaces = {"list.txt": rows(*lines)} | {f"my pets/{number} a.jpg": "" for number in range(6)}
    assert labels_of(write(spaces))["0 a.jpg"] == "red fox"


def test_too_long_tables_are_reported(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_MOST_ROWS", 4)
    long = rows("id,label", *(f"{number},{'ab'[number % 2]}" for number in range(6)))
    assert "labels.csv has more than 4 rows" in refusal(write({"labels.csv": long} | pictures("")))
    short = json.dumps({f"{number}.jpg": "ab"[number % 2] for number in range(4)})
    notes = list_files(write({"labels.csv": long, "some.json": short} | pictures(""))).notes
    assert any("labels.csv has more than 4 rows" in note for note in notes)


SPLITS = (
    ("Trainingsdaten", "Validierung", "Testdaten"), ("Entraînement", "validation", "Test"),
    ("entrenamiento", "validación", "prueba"), ("treino", "validação", "teste"), ("eğitim", "doğrulama", "test"),
    ("обучение", "валидация", "тест"), ("训练集", "验证集", "测试集"), ("学習用", "検証用", "テスト用"),
    ("학습", "검증", "테스트"),
)  # fmt: skip


def test_names_of_splits_are_known_in_several_languages() -> None:
    kinds = ("train", "validation", "test")
    for names in SPLITS:
        assert tuple(split.kind for name in names if (split := split_name(name))) == kinds
        decomposed = (unicodedata.normalize("NFD", name) for name in names)  # as macOS writes them
        assert tuple(split.kind for name in decomposed if (split := split_name(name))) == kinds


def test_a_folder_without_pictures_says_what_it_holds(write: Write) -> None:
    message = refusal(write({f"{name}/{number}.ppm": "" for name in ("cat", "dog") for number in range(3)}))
    assert "Files .ppm, 6 here, are not read." in message
    assert "Files without a suffix, 2 here, are not read." in refusal(write({"cat/0": "", "dog/0": ""}))


def test_an_archive_without_pictures_says_what_it_holds(sandbox: Sandbox) -> None:
    sandbox.pack({"train.zip": b"", "test.zip": b"", "README.md": b""})
    assert "Files .zip, 2 here, are not read." in sandbox.refusal()
    sandbox.pack({f"{name}/0.heic": b"\0\0\0\x18ftypheic" for name in ("cat", "dog")})
    assert "2 of its pictures cannot be read: cat/0.heic: This HEIC" in sandbox.refusal()
