"""WebDataset tars and parquet: the same pictures as from class folders, in any order, through an index built once."""

import io
import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from patience import calls_in
from PIL import Image

from vit.data import catalog, survey
from vit.data.datasets import Dataset, load_dataset
from vit.data.packed import index
from vit.data.packed.formats import tar
from vit.data.pictures import InMemoryPictures, StreamedPictures
from vit.errors import InvalidDataset
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.training.loop import pictures, trainer
from vit.training.loop.presets import train_config
from vit.training.loop.train import train

CPU = torch.device("cpu")
INPUT = Preprocess((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3)
COUNTS = {"train": 60, "val": 10, "test": 8}


def picture(split: str, number: int) -> bytes:
    noise = np.random.default_rng([number, *split.encode()]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    return encode_image(Image.fromarray(noise))


def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))


def write_tars(root: Path) -> None:
    """Write two tars per split, with alternating labels."""
    for split, count in COUNTS.items():
        for part in range(2):
            with tarfile.open(root / f"{split}-{part:04}.tar", "w") as archive:
                for number in range(part * count // 2, (part + 1) * count // 2):
                    if number % 3:
                        add(archive, f"{number:06}.cls", str(number % 2).encode())
                        add(archive, f"{number:06}.png", picture(split, number))
                    else:
                        add(archive, f"{number:06}.png", picture(split, number))
                        add(archive, f"{number:06}.json", json.dumps({"label": number % 2}).encode())
                    add(archive, f"{number:06}.txt", b"a caption")
    (root / "classes.json").write_text('{"0": "even", "1": "odd"}')


def write_parquet(root: Path) -> None:
    """Write parquet as the Hub's `datasets` does."""
    features = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": ["even", "odd"]}}}}
    (root / "data").mkdir()
    for split, count in (("train", 60), ("validation", 10), ("test", 8)):
        name = "val" if split == "validation" else split
        images = [{"bytes": picture(name, number), "path": f"{number}.png"} for number in range(count)]
        table = pa.table({"image": images, "label": [number % 2 for number in range(count)]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet", row_group_size=7)


def write_folders(root: Path) -> None:
    for split, count in COUNTS.items():
        for number in range(count):
            folder = root / split / ("even", "odd")[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:06}.png").write_bytes(picture(split, number))


@pytest.fixture(params=[write_tars, write_parquet], ids=["webdataset", "parquet"])
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    root = tmp_path / "packed"
    root.mkdir()
    request.param(root)
    return root


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    write_folders(tmp_path / "folders")
    return tmp_path / "folders"


def load(root: Path, **options: object) -> Dataset:
    return load_dataset(f"folder:{root}", INPUT, **options)  # type: ignore[arg-type]


def as_set(images: torch.Tensor, labels: torch.Tensor) -> set[tuple[bytes, int]]:
    pairs = zip(images, labels.tolist(), strict=True)
    return {(image.numpy().tobytes(), label) for image, label in pairs}


def test_pictures_equal_those_of_class_folders(packed: Path, folders: Path) -> None:
    one, other = load(packed), load(folders)
    assert one.classes == other.classes == ("even", "odd")
    for split, expected in zip(
        (one.train, one.validation, one.test), (other.train, other.validation, other.test), strict=True
    ):
        assert isinstance(split, InMemoryPictures) and isinstance(expected, InMemoryPictures)
        assert as_set(split.images, split.labels) == as_set(expected.images, expected.labels)


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_pictures_equal_those_in_memory_in_any_order(packed: Path, workers: int) -> None:
    resident, streamed = load(packed).train, load(packed, budget=0, workers=workers).train
    assert isinstance(streamed, StreamedPictures)
    for seed in range(2):
        order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
        for one, other in zip(streamed.batches(order, 16, CPU), resident.batches(order, 16, CPU), strict=True):
            assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    streamed.close()


def test_index_is_built_once_and_again_after_a_change(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = index.index_of(packed)
    assert (packed / index.INDEX).is_file()
    made: list[Path] = []
    make = index._make
    monkeypatch.setattr(index, "_make", lambda folder, *rest: (made.append(folder), make(folder, *rest))[1])
    again = index.index_of(packed)
    assert not made and again.classes == first.classes
    assert all(np.array_equal(one, other) for one, other in zip(again[1:3], first[1:3], strict=True))
    file = index.files_of(packed)[0]
    file.touch()
    index.index_of(packed)
    assert made == [packed]
    (packed / index.INDEX).write_bytes(b"PK\x03\x04torn")
    assert len(index.index_of(packed).labels) == 78 and len(made) == 2


def test_copied_pictures_are_no_dataset_for_a_format_with_their_suffix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(index._FORMATS, Path(index.COPIED).suffix, tar)
    write_parquet(tmp_path)
    for _ in range(2):  # the second time beside the copies
        assert {file.suffix for file in index.own_files_of(tmp_path)} == {".parquet"}
        index.index_of(tmp_path, bar=False)


def test_write_protected_folder_is_indexed_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path)

    def refuse(path: Path) -> object:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(index, "replaced", refuse)
    assert len(load(tmp_path).train.labels) == 60
    assert not (tmp_path / index.INDEX).exists()


def test_tars_are_read_on_a_full_disk_as_nothing_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tars(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 0}))
    assert len(load(tmp_path).train.labels) == COUNTS["train"]


def test_data_without_splits_is_split_like_folders(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        for number in range(100):
            add(archive, f"{number}.png", picture("train", number))
            add(archive, f"{number}.cls", str(number % 2).encode())
    dataset = load(tmp_path)
    counts = [len(split.labels) for split in (dataset.train, dataset.validation, dataset.test)]
    assert counts == [72, 18, 10]
    assert dataset.classes == ("0", "1")
    assert torch.equal(load(tmp_path).test.images, dataset.test.images)  # type: ignore[attr-defined]


def test_damaged_picture_is_left_out_and_named(tmp_path: Path) -> None:
    write_tars(tmp_path)
    with tarfile.open(tmp_path / "train-0002.tar", "w") as archive:
        add(archive, "broken.png", b"\x89PNG and no more")
        add(archive, "broken.cls", b"1")
        add(archive, "alone.png", picture("train", 99))  # a picture without a label
        add(archive, "odd.cls", b"seven")
        add(archive, "odd.png", picture("train", 98))
    dataset = load(tmp_path)
    assert len(dataset.train.labels) == 60
    (line,) = dataset.skipped
    assert line.startswith("train-0002.tar/broken.png: ")
    assert [note.partition(",")[0] for note in dataset.notes] == ["Pictures left out of train-0002.tar: 1"] * 2


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda root: (root / "a.tar").write_bytes(b"no tar at all" * 100), "a.tar is a damaged tar"),
        (lambda root: (root / "a.parquet").write_bytes(b"PAR1nothing"), "a.parquet is a damaged parquet file"),
        (lambda root: pq.write_table(pa.table({"text": ["a"]}), root / "a.parquet"), "has the columns text"),
        (lambda root: tarfile.open(root / "a.tar", "w").close(), "both a picture and a label"),
    ],
)
def test_invalid_data_is_refused_in_one_sentence(tmp_path: Path, write: Callable[[Path], object], words: str) -> None:
    write(tmp_path)
    with pytest.raises(InvalidDataset, match=words):
        load(tmp_path)
    assert not (tmp_path / index.INDEX).exists()


def peak_of_indexing(folder: Path) -> int:
    """Return the peak memory [bytes] of indexing or refusing a folder, measured in a separate process."""
    code = (
        "import contextlib, resource, sys; from pathlib import Path\n"
        "from vit.data.packed import index; import pyarrow.parquet\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "with contextlib.suppress(index.InvalidDataset): index.index_of(Path(sys.argv[1]), bar=False)\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024)


@pytest.mark.exhaustive
@pytest.mark.parametrize("large", ["pictures", "labels"])
def test_small_parquet_of_large_rows_takes_no_more_memory_than_a_few_of_them(tmp_path: Path, large: str) -> None:
    rows, size = 60, 16 << 20
    content = bytes(size) if large == "pictures" else picture("train", 0)
    labels = [0, 1] * (rows // 2) if large == "pictures" else ["x" * size] * rows
    table = pa.table({"image": [{"bytes": content, "path": "a"}] * rows, "label": labels})
    pq.write_table(table, tmp_path / "train.parquet", compression="zstd")
    assert (tmp_path / "train.parquet").stat().st_size < 10_000
    whole = {"image": [{"bytes": picture("train", 0), "path": "a"}] * 2, "label": [0, 1]}
    pq.write_table(pa.table(whole), tmp_path / "val.parquet")
    assert peak_of_indexing(tmp_path) < rows * size / 4


@pytest.mark.parametrize("label", [-1, 1 << 20, 1 << 63, 10**30, -(1 << 63) - 1])
def test_label_out_of_range_is_refused(tmp_path: Path, label: int) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number, text in enumerate(("0", str(label))):
            add(archive, f"{number}.png", picture("train", number))
            add(archive, f"{number}.cls", text.encode())
    with pytest.raises(InvalidDataset, match="must be numbers from 0 to"):
        index.index_of(tmp_path, bar=False)


@pytest.mark.parametrize("damage", ["in a header", "between records", "in a picture", "a header overwritten"])
def test_tar_truncated_or_damaged_anywhere_is_refused(tmp_path: Path, damage: str) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for number in range(20):
            add(archive, f"{number}.png", picture("train", number))
            add(archive, f"{number}.cls", str(number % 2).encode())
    with tarfile.open(tmp_path / "a.tar") as archive:
        member = archive.getmember("12.png")
    content = (tmp_path / "a.tar").read_bytes()
    cut = {"in a header": member.offset + 100, "between records": member.offset, "in a picture": member.offset_data + 9}
    damaged = content[: cut[damage]] if damage in cut else None
    if damaged is None:
        damaged = content[: member.offset] + b"\x55" * 512 + content[member.offset + 512 :]
    assert index.index_of(tmp_path, bar=False).labels.shape == (20,)
    (tmp_path / "a.tar").write_bytes(damaged)
    with pytest.raises(InvalidDataset, match="is a damaged tar"):
        index.index_of(tmp_path, bar=False)


@pytest.mark.parametrize("place", [0.3, 0.5, 0.99])
def test_damaged_parquet_is_refused_with_a_reason(tmp_path: Path, place: float) -> None:
    write_parquet(tmp_path)
    file = next((tmp_path / "data").iterdir())
    content = bytearray(file.read_bytes())
    start = int(place * len(content))
    content[start : start + 40] = b"\xff" * len(content[start : start + 40])
    file.write_bytes(content)
    with pytest.raises(InvalidDataset, match=r"is a damaged parquet file: (?!None)\w"):
        index.index_of(tmp_path, bar=False)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a length that is not positive": lambda arrays: arrays["length"].__setitem__(3, 0),
    "a picture behind the end": lambda arrays: arrays["offset"].__setitem__(3, 1 << 40),
    "an offset below zero": lambda arrays: arrays["offset"].__setitem__(3, -1),
    "a label without a name": lambda arrays: arrays["labels"].__setitem__(3, 2),
    "an unknown split": lambda arrays: arrays["split"].__setitem__(3, 3),
    "fewer labels": lambda arrays: arrays.update(labels=arrays["labels"][:-1]),
    "a matrix": lambda arrays: arrays.update(offset=arrays["offset"][:, None]),
    "fractions": lambda arrays: arrays.update(length=arrays["length"] + 0.5),
    "nothing": lambda arrays: arrays.update({name: arrays[name][:0] for name in arrays if name != "document"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_invalid_index_is_rebuilt(tmp_path: Path, change: str) -> None:
    write_tars(tmp_path)
    made = index.index_of(tmp_path, bar=False)
    with np.load(tmp_path / index.INDEX) as stored:
        arrays = {name: stored[name].copy() for name in stored.files}
    CHANGES[change](arrays)
    np.savez(tmp_path / index.INDEX, **arrays)
    again = index.index_of(tmp_path, bar=False)
    assert again.records.length.tolist() == made.records.length.tolist()
    assert again.records.offset.tolist() == made.records.offset.tolist()
    assert (again.labels.tolist(), again.split.tolist()) == (made.labels.tolist(), made.split.tolist())


def test_packed_data_is_offered_and_surveyed_like_any_folder(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_DATA_ROOTS", str(packed.parent))
    assert f"folder:{packed}" in catalog.list_folders()
    assert catalog.check_spec(f"folder:{packed}") == f"folder:{packed}"
    found = survey.survey(f"folder:{packed}")
    assert found.counts == {
        "train": {"even": 30, "odd": 30}, "validation": {"even": 5, "odd": 5}, "test": {"even": 4, "odd": 4},
    }  # fmt: skip


@pytest.mark.slow
def test_run_trains_the_same_weights_from_memory_streamed_and_resumed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = train_config(
        data=f"folder:{packed}", image_size=8, patch_size=4, dim=16, depth=1, heads=2, mlp_dim=16, epochs=2,
        batch_size=8, device="cpu", workers=1, crop_scale=0.5, flip=True,
    )  # fmt: skip

    train(config, tmp_path / "memory")
    monkeypatch.setattr(pictures, "memory_budget", lambda device: 0)
    train(config, tmp_path / "streamed")
    with monkeypatch.context() as patch:
        patch.setattr(trainer.Trainer, "_stop_requested", lambda self, stop: self.progress.step % 5 == 0)
        train(config, tmp_path / "parts")
        while '"finished"' not in (tmp_path / "parts" / "outcome.json").read_text():
            train(config, tmp_path / "parts", resume=True)
    weights = {
        (tmp_path / name / "checkpoints" / "last" / "model.safetensors").read_bytes()
        for name in ("memory", "streamed", "parts")
    }
    assert len(weights) == 1


def test_index_of_a_million_records_is_read_as_whole_arrays(tmp_path: Path) -> None:
    count = 1_280_000
    write_tars(tmp_path)
    index.index_of(tmp_path)
    with np.load(tmp_path / index.INDEX) as arrays:
        document = arrays["document"]
    random = np.random.default_rng(0)
    np.savez(
        tmp_path / index.INDEX,
        document=document,
        number=random.integers(0, 6, count).astype(np.int32),
        offset=random.integers(0, 1000, count),
        length=random.integers(1, 1000, count),
        names=random.integers(0, 255, 10 * count).astype(np.uint8),
        start=10 * np.arange(count),
        end=10 * np.arange(1, count + 1),
        labels=random.integers(0, 2, count),
        split=np.zeros(count, np.int8),
    )
    read = list[index.Index]()
    assert calls_in(lambda: read.append(index.index_of(tmp_path))) < count / 100  # no Python step per record
    assert len(read[0].labels) == count
