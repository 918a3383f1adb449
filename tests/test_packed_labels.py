"""Splits and labels of WebDataset tars and parquet: read, counted if they are missing, or refused with the reason."""

import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from test_packed_data import add, as_set, load, picture

from vit.data import survey
from vit.data.packed import index
from vit.errors import InvalidDataset

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def write_file(path: Path, labels: Sequence[object], split: str = "train") -> None:
    """Write a tar or a parquet file with a picture for each label."""
    path.parent.mkdir(exist_ok=True)
    contents = [picture(split, number) for number in range(len(labels))]
    if path.suffix == ".parquet":
        images = [{"bytes": content, "path": None} for content in contents]
        pq.write_table(pa.table({"image": images, "label": pa.array(labels)}), path)
        return
    with tarfile.open(path, "w") as archive:
        for number, (content, label) in enumerate(zip(contents, labels, strict=True)):
            add(archive, f"{number}.png", content)
            add(archive, f"{number}.cls", str(label).encode())


@pytest.mark.parametrize("suffix", ["tar", "parquet"])
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("imagenet1k-validation-00", "validation"),
        ("val-0003", "validation"),
        ("data/cifar_dev", "validation"),
        ("cifar_test", "test"),
        ("testing", "test"),
        ("PetsTest-00000-of-00001", "test"),
        ("test/0", "test"),
        ("testament", "train"),
        ("latest-0", "train"),
        ("imagenet1k-train-0000", "train"),
    ],
)
def test_split_is_a_word_in_the_name_of_a_file(tmp_path: Path, suffix: str, name: str, expected: str) -> None:
    write_file(tmp_path / f"a-train-0.{suffix}", [0, 1] * 10)
    write_file(tmp_path / f"{name}.{suffix}", [0, 1, 1])
    found = index.index_of(tmp_path, bar=False)
    counts = {split: int((found.split == number).sum()) for number, split in enumerate(index.SPLITS)}
    assert counts == {"train": 20, "validation": 0, "test": 0} | {expected: 23 if expected == "train" else 3}


@pytest.mark.parametrize("suffix", ["tar", "parquet"])
def test_files_without_a_split_are_noted_beside_files_with_one(
    tmp_path: Path, suffix: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_file(tmp_path / f"unsupervised-0.{suffix}", [0, 1] * 5)
    assert not load(tmp_path).notes
    write_file(tmp_path / f"train-0.{suffix}", [0, 1] * 10)
    note = f"Read as training pictures, because their names state no split: unsupervised-0.{suffix}."
    for _ in range(2):  # from the files, and from the stored index
        assert load(tmp_path).notes == (note,) and note in caplog.text
    assert survey.survey(f"folder:{tmp_path}").notes == (note,)


@pytest.mark.parametrize("hidden", [-1, None])
@pytest.mark.parametrize("others", [[], [1, 0]])
def test_pictures_with_a_hidden_or_missing_label_in_parquet_are_left_out_and_counted(
    tmp_path: Path, hidden: int | None, others: list[int]
) -> None:
    write_file(tmp_path / "train-0.parquet", [0, 1] * 10)
    write_file(tmp_path / "test-0.parquet", [hidden] * 9 + others, "test")
    dataset = load(tmp_path)
    assert dataset.notes == ("Pictures left out of test-0.parquet: 9, because their label is missing or hidden (-1).",)
    held_out = (len(dataset.train.labels), len(dataset.validation.labels), len(dataset.test.labels))
    assert held_out == ((16, 4, 2) if others else (16, 2, 2))
    if others:
        expected = zip((picture("test", 9), picture("test", 10)), others, strict=True)
        pixels = [(torch.from_numpy(np.array(Image.open(io.BytesIO(content)))), label) for content, label in expected]
        images = torch.stack([one.permute(2, 0, 1) for one, _ in pixels])
        assert as_set(dataset.test.images, dataset.test.labels) == as_set(images, torch.tensor(others))  # type: ignore[attr-defined]


TEXTS = ["dog", "cat", "cat", "owl"] * 6


@pytest.mark.parametrize(
    ("suffix", "labels", "classes", "expected"),
    [
        ("tar", TEXTS, ("cat", "dog", "owl"), [1, 0, 0, 2] * 6),
        ("parquet", TEXTS, ("cat", "dog", "owl"), [1, 0, 0, 2] * 6),
        ("tar", ["b2\n", "10", "a1"] * 6, ("10", "a1", "b2"), [2, 0, 1] * 6),
        ("parquet", [True, False] * 6, ("False", "True"), [1, 0] * 6),
        ("parquet", [1.0, 0.0] * 6, ("0", "1"), [1, 0] * 6),
        ("parquet", [[1], [0]] * 6, ("0", "1"), [1, 0] * 6),
        ("parquet", [["dog"], ["cat"]] * 6, ("cat", "dog"), [1, 0] * 6),
    ],
)
def test_labels_of_other_kinds_are_numbered(
    tmp_path: Path, suffix: str, labels: list[object], classes: tuple[str, ...], expected: list[int]
) -> None:
    write_file(tmp_path / f"train-0.{suffix}", labels)
    for _ in range(2):  # from the files, and from the stored index
        found = index.index_of(tmp_path, bar=False)
        assert (found.classes, found.labels.tolist(), found.notes) == (classes, expected, ())


def test_names_in_json_are_labels(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "train.tar", "w") as archive:
        for number, label in enumerate(TEXTS):
            add(archive, f"{number}.json", json.dumps({"label": label}).encode())
            add(archive, f"{number}.png", picture("train", number))
    found = index.index_of(tmp_path, bar=False)
    assert (found.classes, found.labels.tolist()) == (("cat", "dog", "owl"), [1, 0, 0, 2] * 6)


def test_files_that_number_their_classes_differently_are_refused(tmp_path: Path) -> None:
    for name, classes in (("train-0", ["cat", "dog"]), ("train-1", ["cat", "dog"]), ("test-0", ["dog", "cat"])):
        write_file(tmp_path / f"{name}.parquet", [0, 1] * 10)
        table = pq.read_table(tmp_path / f"{name}.parquet")
        features = {"info": {"features": {"label": {"names": classes, "_type": "ClassLabel"}}}}
        pq.write_table(
            table.replace_schema_metadata({"huggingface": json.dumps(features)}), tmp_path / f"{name}.parquet"
        )
    with pytest.raises(InvalidDataset, match=r"train-0\.parquet numbers its classes differently"):
        load(tmp_path)
    (tmp_path / "test-0.parquet").unlink()
    assert load(tmp_path).classes == ("cat", "dog")


def write_records(*names: str) -> Callable[[Path], None]:
    """Return a function that writes a tar with these files, of which pictures end in .png."""

    def write(root: Path) -> None:
        with tarfile.open(root / "a.tar", "w") as archive:
            for name in names:
                add(archive, name, picture("train", 0) if name.endswith(".png") else b'{"class": 1}')

    return write


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (write_records("cat/0.png", "dog/0.png"), "a.tar: 2, because no KEY.cls .* If the folders .* unpack it"),
        (write_records("0.png", "0.txt"), "a.tar: 1, because no KEY.cls"),
        (write_records("0.png", "0.json"), "a.tar: 1, because their label is missing"),
        (lambda root: write_file(root / "a.tar", ["x" * 101]), "a.tar: 1, because their label is neither"),
        (lambda root: write_file(root / "a.parquet", [-1, -1]), "a.parquet: 2, because their label is missing or hid"),
        (lambda root: write_file(root / "a.parquet", [0.5, 1.5]), "a.parquet: 2, because their label is neither"),
        (lambda root: write_file(root / "a.parquet", [[0, 1]] * 3), "a.parquet: 3, because their label is neither"),
        (
            lambda root: pq.write_table(
                pa.table(
                    {"image": [{"bytes": None, "path": "0.jpg"}] * 3, "label": [0, 1, 2]},
                    schema=pa.schema([("image", IMAGE), ("label", pa.int64())]),
                ),
                root / "a.parquet",
            ),
            "a.parquet: 3, because their bytes are not in the column",
        ),
    ],
)
def test_data_without_a_usable_label_are_refused_with_the_reason(
    tmp_path: Path, write: Callable[[Path], object], reason: str
) -> None:
    write(tmp_path)
    with pytest.raises(InvalidDataset, match=f"both a picture and a label. Pictures left out of {reason}"):
        load(tmp_path)
