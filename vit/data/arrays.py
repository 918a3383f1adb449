"""Pictures in arrays of NumPy from strangers: `.npz` of MedMNIST and Keras, or X_train.npy beside y_train.npy.

A word in an array's name says whether it holds pictures (`x`, `images`, `data`) or labels (`y`, `labels`, `targets`),
and another its split. Pictures are (n, height, width), with 1, 3 or 4 channels last or 1 or 3 first, or flat squares.
"""

import re
from collections.abc import Iterator, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vit.data.archive_readers import Budget, list_members, read_chunks
from vit.data.split_names import Kind, split_name
from vit.errors import InvalidDataset
from vit.images.encode import encode_image
from vit.untrusted import brief, brief_list, spend

SUFFIXES = (".npz", ".npy")
_PICTURES, _LABELS = (
    {"x", "image", "images", "img", "imgs", "data", "pictures"},
    {"y", "label", "labels", "target", "targets"},
)
_MOST = 1_000_000  # pictures of an array
_LEAST_SIDE = 8  # of pictures as flat rows, which are else features [px]
_CHUNK_BYTES = 1 << 26  # read at once; also the maximum of a picture


class _Array(NamedTuple):
    """An array, and the number of its file."""

    file: int
    name: str
    values: NDArray[Any]


def read_arrays(
    files: Sequence[Path], splits: Sequence[Kind | None], folder: Path, budget: Budget, notes: list[str]
) -> Iterator[tuple[int, bytes, Any, Kind]]:
    """Yield the file's number, the content as PNG, the label (None without one) and the split of each picture.

    Args:
        splits: of each file by its name; for training if neither it nor the array's name states one.
        folder: empty, for arrays unpacked from files.
        notes: receives assumptions, for people.

    Raises:
        InvalidDataset: damaged files, or arrays that are not pictures with one label each.
    """
    pictures, labels, names = dict[Kind, _Array](), dict[Kind, _Array](), list[str]()
    for number, name, path in _unpacked(files, folder, budget):
        names.append(brief(name))
        name = re.sub(r"^([XxYy])(?=tr|te|va|dev)", r"\1_", name)  # as in xtrain
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
        if words & (_PICTURES | _LABELS):
            stated, kind = split_name(name), labels if words & _LABELS else pictures
            split = stated.kind if stated else splits[number] or "train"
            if split in kind:
                both = brief_list(brief(files[one].name) for one in (kind[split].file, number))
                raise InvalidDataset(f"Several arrays are for {split}, in {both}. Put each set into its own folder.")
            kind[split] = _opened(number, names[-1], path)
    if not pictures or not labels:
        raise InvalidDataset(
            f"Arrays of pictures and labels are needed, such as x_train and y_train; here are {brief_list(names)}. "
            "Rename them, or save the pictures as PNG in a folder per class."
        )
    for split, array in pictures.items():
        own = _labels_of(labels[split]) if split in labels else [None] * len(array.values)
        if len(own) != len(array.values):
            count = f"{len(array.values):,} pictures, but there are {len(own):,} labels"
            raise InvalidDataset(f"{array.name} has {count}. Save both again.")
        for picture, label in zip(_pictures_of(array, notes), own, strict=True):
            yield array.file, encode_image(Image.fromarray(picture), compress_level=1), label, split


def _unpacked(files: Sequence[Path], folder: Path, budget: Budget) -> Iterator[tuple[int, str, Path]]:
    """Yield the number of its file, the name, and the file of each array."""
    for number, file in enumerate(files):
        if file.suffix == ".npy":
            yield number, file.stem, file
            continue
        with file.open("rb") as raw:
            for count, member in enumerate(list_members(raw, budget, [])):
                path = folder / f"{number}-{count}.npy"
                with path.open("wb") as out:
                    for chunk in read_chunks(member):
                        budget.store(len(chunk))
                        out.write(chunk)
                yield number, member.path[-1].removesuffix(".npy"), path


def _opened(file: int, name: str, path: Path) -> _Array:
    try:
        values = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises almost anything on hostile bytes
        raise InvalidDataset(f"The array {name} is empty or damaged, or holds objects. Save it again.") from error
    shape = values.shape
    if values.dtype.kind not in "biufU" or not values.itemsize or not 0 < len(shape) < 5 or len(values) > _MOST:
        raise InvalidDataset(f"The array {name} of {values.dtype} {shape} holds no pictures or labels, or too many.")
    return _Array(file, name, values)


def _labels_of(array: _Array) -> list[Any]:
    """Return the labels of an array (n,), (n, 1) or, one-hot, (n, classes)."""
    values = array.values
    if values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind != "U":
        if not (np.isin(values, (0, 1)).all() and (values.sum(1) == 1).all()):
            raise InvalidDataset(f"{array.name} has several labels in a row. One class for each picture is needed.")
        values = values.argmax(1)
    if values.size != len(values):
        raise InvalidDataset(f"{array.name} of shape {values.shape} has no label for each picture. Save it again.")
    return values.reshape(-1).tolist()


def _pictures_of(array: _Array, notes: list[str]) -> Iterator[NDArray[np.uint8]]:
    """Yield the pictures of an array, with values from 0 to 255 or, scaled, from 0 to 1."""
    values, (count, *shape) = array.values, array.values.shape
    flat = isqrt(shape[0]) if len(shape) == 1 else 0
    first, last = (len(shape) == 3 and shape[axis] in channels for axis, channels in ((0, (1, 3)), (2, (1, 3, 4))))
    readable = len(shape) == 2 or first != last or (flat >= _LEAST_SIDE and flat**2 == shape[0])
    if values.dtype.kind == "U" or not readable or values[0].nbytes > _CHUNK_BYTES:
        raise InvalidDataset(
            f"{array.name} of {values.dtype} {values.shape} cannot be read as pictures. Save it as (n, height, width) "
            "or (n, height, width, 3)."
        )
    step = _CHUNK_BYTES // values[0].nbytes
    chunks = [values[start : start + step] for start in range(0, count, step)]
    low, high = float(np.min([chunk.min() for chunk in chunks])), float(np.max([chunk.max() for chunk in chunks]))
    if not 0 <= low <= high <= 255 or (1 < high < 128 and values.dtype != np.uint8):
        raise InvalidDataset(f"{array.name} has values from {low:g} to {high:g}. Scale them to 0 to 255, or 0 to 1.")
    if unit := 0 < high <= 1:
        notes.append(f"{array.name} has values from {low:g} to {high:g}; 1 is read as white.")
    for value in values:
        spend()
        pixels = np.rint(np.multiply(value, 255.0 if unit else 1.0)).astype(np.uint8)
        pixels = np.moveaxis(pixels, 0, -1) if first else pixels.reshape(flat, flat) if flat else pixels
        yield np.ascontiguousarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
