"""Pictures as arrays of NumPy and as parquet of the Hub, in folders, in single files and in archives."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from packed import INPUT, Sandbox, classes, picture

from vit.data.archives.import_archive import import_dataset
from vit.data.catalog import list_folders
from vit.data.datasets import Dataset, load_dataset
from vit.errors import InvalidDataset

Arrays = dict[str, NDArray[Any]]


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder apart from the sandbox."""
    return tmp_path_factory.mktemp("home")


def values(count: int, *shape: int) -> NDArray[np.uint8]:
    pixels = np.random.default_rng(count).integers(0, 256, (count, *shape), dtype=np.uint8)
    pixels.reshape(-1)[0] = 255  # of floats, too
    return pixels


def labels(count: int) -> NDArray[np.int64]:
    return np.arange(count) % 3


def npy(array: NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def write(folder: Path, arrays: Arrays) -> Path:
    for name, array in arrays.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{name}.npy", array)
    return folder


def read(path: Path) -> Dataset:
    return load_dataset(f"folder:{path}", INPUT)


def sizes(dataset: Dataset) -> tuple[int, int, int]:
    return len(dataset.train.labels), len(dataset.validation.labels), len(dataset.test.labels)


def named(*names: str, shape: tuple[int, ...] = (28, 28)) -> Arrays:
    return dict(zip(names, (values(30, *shape), labels(30), values(9, *shape), labels(9)), strict=True))


MEDMNIST = {
    f"{split}_{what}": array
    for split, count in (("train", 30), ("val", 6), ("test", 9))
    for what, array in (("images", values(count, 28, 28, 3)), ("labels", labels(count)[:, None].astype(np.uint8)))
}
SETS: dict[str, Arrays] = {
    "medmnist": MEDMNIST,
    "keras": named("x_train", "y_train", "x_test", "y_test"),
    "flat rows": named("X_train", "y_train", "X_test", "y_test", shape=(784,)),
    "joined names": named("Xtrain", "ytrain", "testX", "testY"),
    "folders": named("train/images", "train/labels", "test/images", "test/labels"),
    "channels first": named("train_data", "train_targets", "test_data", "test_targets", shape=(3, 20, 28)),
    "one-hot": named("X_train", "Y_train", "X_test", "Y_test") | {"Y_train": np.eye(3)[labels(30)]},
}


def test_split_that_a_file_states_inside_needs_no_word_in_its_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "train.npz", x_train=values(30, 28, 28), y_train=labels(30))
    np.savez(tmp_path / "more.npz", x_test=values(9, 28, 28), y_test=labels(9))
    dataset = read(tmp_path)
    assert len(dataset.test.labels) == 9 and not dataset.notes


@pytest.mark.parametrize("name", ["train.NPZ", "Train.Npz"])
def test_suffix_may_have_capitals(tmp_path: Path, name: str) -> None:
    np.savez(tmp_path / "small.npz", **MEDMNIST)
    (tmp_path / "small.npz").rename(tmp_path / name)
    assert sizes(read(tmp_path)) == (30, 6, 9)


@pytest.mark.parametrize("form", ["npz", "npy", "zip of npy", "zip of npz", "file"])
@pytest.mark.parametrize("name", SETS)
def test_arrays_are_read_with_their_labels_and_splits(home: Path, sandbox: Sandbox, name: str, form: str) -> None:
    arrays, path = SETS[name], sandbox.into
    if form in ("npz", "file", "zip of npz"):
        out = io.BytesIO()
        np.savez_compressed(out, **{key.replace("/", "_"): array for key, array in arrays.items()})  # type: ignore[arg-type]
    if form == "npy":
        write(path, arrays)
    elif form == "file":
        path = home / "medmnist.npz"
        path.write_bytes(out.getvalue())
    elif form == "npz":
        sandbox.archive.write_bytes(out.getvalue())
    else:
        sandbox.pack({"sub/data.npz": out.getvalue()} if form == "zip of npz" else
                     {f"sub/{key}.npy": npy(array) for key, array in arrays.items()})  # fmt: skip
    if form in ("npz", "zip of npy", "zip of npz"):
        import_dataset(sandbox.archive, sandbox.into)
    dataset = read(path)
    assert dataset.classes == ("0", "1", "2") and dataset.skipped == ()
    train, validation, test = sizes(dataset)
    assert (train + validation, test) == (36 if name == "medmnist" else 30, 9)
    assert sorted(dataset.test.labels.tolist()) == sorted(labels(9).tolist())


@pytest.mark.parametrize(
    ("images", "expected"),
    [
        (np.array([0, 1, 127, 255], np.uint8), (0, 1, 127, 255)),
        (np.array([0, 0.25, 0.5, 1], np.float32), (0, 64, 128, 255)),
        (np.array([0, 1, 127, 255], np.float64), (0, 1, 127, 255)),
        (np.array([0, 1, 127, 255], np.int64), (0, 1, 127, 255)),
        (np.array([False, True, False, True]), (0, 255, 0, 255)),
    ],
)
def test_pixels_keep_their_values(tmp_path: Path, images: NDArray[Any], expected: tuple[int, ...]) -> None:
    every = np.broadcast_to(images.reshape(1, 2, 2).repeat(4, 1).repeat(4, 2), (9, 8, 8))
    dataset = read(write(tmp_path, {"images": every, "labels": labels(9)}))
    corners = dataset.train.images[0, 0, ::4, ::4].flatten()  # type: ignore[attr-defined]
    assert tuple(corners.tolist()) == expected
    assert any("1 is read as white" in note for note in dataset.notes) == (images.max() <= 1)


def test_channels_and_rows_are_in_their_places(tmp_path: Path) -> None:
    colour = values(9, 8, 8, 3)
    last = read(write(tmp_path / "last", {"x": colour, "y": labels(9)}))
    first = read(write(tmp_path / "first", {"x": np.moveaxis(colour, 3, 1), "y": labels(9)}))
    index = labels(9).tolist().index(int(last.train.labels[0]))
    pixels = last.train.images[0].permute(1, 2, 0).numpy()  # type: ignore[attr-defined]
    assert any((pixels == picture).all() for picture in colour[index::3])
    assert (first.train.images == last.train.images).all()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": values(9, 8, 8), "y": labels(8)}, "x has 9 pictures and 8 labels"),
        ({"arr_0": values(9, 8, 8), "arr_1": labels(9)}, "here are arr_0, arr_1"),
        ({"x_train": values(9, 8, 8)}, "here are x_train"),
        ({"y_train": labels(9)}, "here are y_train"),
        ({"x": values(9, 8, 8, 8), "y": labels(9)}, r"\(9, 8, 8, 8\) cannot be read as pictures"),
        ({"x": values(9, 3072), "y": labels(9)}, r"\(9, 3072\) cannot be read as pictures"),
        ({"x": values(9, 3, 8, 3), "y": labels(9)}, "cannot be read as pictures"),
        ({"x": values(9, 4), "y": labels(9)}, "cannot be read as pictures"),
        ({"x": values(9, 8, 8) - 128.0, "y": labels(9)}, "values from -128 to 127"),
        ({"x": values(9, 8, 8).astype(np.uint16) * 257, "y": labels(9)}, "to 65535. Scale them"),
        ({"x": np.full((9, 8, 8), np.nan), "y": labels(9)}, "values from nan to nan"),
        ({"x": labels(9 * 64).reshape(9, 8, 8) * 8.0, "y": labels(9)}, "values from 0 to 16"),
        ({"x": values(9, 8, 8), "y": np.ones((9, 3))}, "has not one class for each picture"),
        ({"x": values(9, 8, 8), "y": labels(9), "x_train": values(9, 8, 8)}, "Several arrays are for train"),
        ({"x": np.array([[None]] * 9), "y": labels(9)}, "holds objects"),
        ({"x": np.zeros((9, 0, 8)), "y": labels(9)}, "holds no pictures or labels"),
        ({"x": values(9, 8, 8), "y": np.zeros(9, "S3")}, "holds no pictures or labels"),
    ],
)
def test_unclear_arrays_are_refused_in_one_sentence(tmp_path: Path, arrays: Arrays, words: str) -> None:
    with pytest.raises(InvalidDataset, match=words) as caught:
        read(write(tmp_path, arrays))
    assert len(str(caught.value)) <= 250 and "\n" not in str(caught.value)


def test_names_are_labels_too_and_pictures_without_labels_are_counted(tmp_path: Path) -> None:
    arrays = {"x_train": values(9, 8, 8), "y_train": np.array(["cat", "dog", "emu"])[labels(9)]}
    dataset = read(write(tmp_path, arrays | {"x_test": values(6, 8, 8)}))
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.notes == ("Pictures left out of x_test.npy: 6, because their label is missing or hidden (-1).",)


def test_arrays_beside_pictures_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "set", {"x": values(9, 8, 8), "y": labels(9)})
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path))
    assert list_folders() == [f"folder:{tmp_path / 'set'}"]
    for name, content in classes("cat", "dog").items():
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "set" / name).write_bytes(content)
    assert read(tmp_path / "set").classes == ("cat", "dog")


def test_files_of_equal_names_in_folders_of_splits_keep_their_pictures(tmp_path: Path) -> None:
    for split, count in (("train", 30), ("test", 9)):
        (tmp_path / split).mkdir()
        np.savez(tmp_path / split / "set.npz", x=np.full((count, 8, 8), count, np.uint8), y=labels(count))
    dataset = read(tmp_path)
    assert {int(one.images.max()) for one in (dataset.train, dataset.test)} == {30, 9}  # type: ignore[attr-defined]


def test_arrays_in_a_file_called_index_are_read_and_an_index_of_an_earlier_version_is_not(tmp_path: Path) -> None:
    np.savez(tmp_path / "index.npz", x=values(9, 8, 8), y=labels(9))
    assert read(tmp_path).classes == ("0", "1", "2")
    (tmp_path / "index.npz").rename(tmp_path / "set.npz")
    np.savez(tmp_path / "index.npz", labels=labels(9))
    assert read(tmp_path).classes == ("0", "1", "2")


@pytest.mark.parametrize(
    "name",
    [
        "train_32x32.mat",
        "data.pkl",
        "camelyon.h5",
        "raw/train-images-idx3-ubyte.gz",
        "train-images-idx3-ubyte",
        "fer2013.csv",
    ],
)
def test_other_arrays_are_named(sandbox: Sandbox, name: str) -> None:
    message = sandbox.pack({name: b"1,2\n" * 9, "README.md": b""}).refusal()
    assert name in message and "Save arrays as images.npy and labels.npy, or pictures as PNG" in message
    assert len(message) <= 250


# --- Parquet -------------------------------------------------------------------------------------------------------


def parquet(path: Path, count: int = 9) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    column = [{"bytes": picture(number), "path": None} for number in range(count)]
    pq.write_table(pa.table({"image": column, "label": labels(count).tolist()}), path)
    return path.read_bytes()


@pytest.mark.parametrize("config", ["mnist", "plain_text", "default", "fashion_mnist", "data", "cifar10/train"])
def test_parquet_is_read_in_the_folder_of_a_configuration(home: Path, sandbox: Sandbox, config: str) -> None:
    split = config.partition("/")[0]
    files = {
        f"{config}/train-00000-of-00001.parquet": parquet(home / f"hub/{config}/train-00000-of-00001.parquet"),
        f"{split}/test-00000-of-00001.parquet": parquet(home / f"hub/{split}/test-00000-of-00001.parquet", 6),
    }
    import_dataset(sandbox.pack(files | {"README.md": b"# MNIST"}).archive, sandbox.into)
    for path in (home / "hub", sandbox.into):
        dataset = read(path)
        assert dataset.classes == ("0", "1", "2") and sorted(dataset.test.labels.tolist()) == sorted(labels(6).tolist())


def test_several_configurations_are_listed(home: Path, sandbox: Sandbox) -> None:
    files = {f"{config}/train.parquet": parquet(home / f"hub/{config}/train.parquet") for config in ("clean", "dirty")}
    for read_it in (lambda: read(home / "hub"), sandbox.pack(files).refusal):
        try:
            message = read_it()
        except InvalidDataset as error:
            message = str(error)
        assert message == "There are several datasets, in clean/, dirty/. Choose one of these folders."


def test_parquet_beside_pictures_in_nested_folders_is_not_read(tmp_path: Path) -> None:
    for name, content in classes("a/cat", "a/dog", "b/emu").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for name in ("meta", "more"):
        parquet(tmp_path / name / "train.parquet")
    assert read(tmp_path).classes == ("a", "b")


# --- Hostile files ---------------------------------------------------------------------------------------------------


def test_a_header_that_declares_more_than_the_file_has_is_refused(tmp_path: Path) -> None:
    write(tmp_path, {"x": values(9, 8, 8), "y": labels(9)})
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"(9, 8, 8)", b"(999999,)"))
    with pytest.raises(InvalidDataset, match="empty or damaged"):
        read(tmp_path)
