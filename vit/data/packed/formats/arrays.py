"""Pictures in arrays of NumPy from strangers: `.npz` of MedMNIST and Keras, or X_train.npy beside y_train.npy.

A word in an array's name says that it holds pictures or labels, another one its split.
"""

import re
from collections.abc import Iterator
from math import isqrt
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vit.data.archives.archive_readers import list_members, read_chunks
from vit.data.layouts.split_names import Kind, split_name
from vit.data.packed.contract import Files, Picture
from vit.errors import InvalidDataset
from vit.images.encode import encode_image
from vit.untrusted import brief, brief_list, spend

SUFFIXES, ALONE = (".npz", ".npy"), True  # arrays beside pictures are often features
_PICTURES, _LABELS = {"x", "image", "images", "img", "imgs", "data"}, {"y", "label", "labels", "target", "targets"}
_MOST = 1_000_000  # pictures of an array
_LEAST_SIDE = 8  # of a picture as a flat row; shorter rows are other features [px]
_MOST_HEADER = 10_000  # [bytes]
_CHUNK_BYTES = 1 << 26  # read at once; also the maximum of a picture


def read(files: Files) -> Iterator[Picture]:
    """Yield the pictures of all arrays, as PNG; those without a split in a name are for training.

    Raises:
        InvalidDataset: damaged files, or arrays that are not pictures with one label each.
    """
    with TemporaryDirectory(dir=files.budget.folder, prefix=".") as empty:
        yield from _pictures(files, Path(empty))


def _pictures(files: Files, empty: Path) -> Iterator[Picture]:
    found: dict[tuple[bool, Kind], tuple[Path, str, NDArray[Any]]] = {}
    names: list[str] = []
    for file, split, name, path in _unpacked(files, empty):
        names.append(brief(name))
        words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", re.sub(r"^([XxYy])(?=tr|te|va|dev)", r"\1_", name))  # as in xtrain
        stated, kinds = split_name("_".join(words)), {word.lower() for word in words} & (_PICTURES | _LABELS)
        if kinds:
            key = bool(kinds & _LABELS), stated.kind if stated else split or "train"
            if key in found:
                both = brief_list(brief(one.name) for one in (found[key][0], file))
                raise InvalidDataset(f"Several arrays are for {key[1]}, in {both}. Put each set into its own folder.")
            found[key] = file, names[-1], _opened(path, names[-1])
    if len({labels for labels, _ in found}) < 2:
        raise InvalidDataset(
            f"Arrays of pictures and labels are needed, such as x_train and y_train; here are {brief_list(names)}. "
            "Rename them, or save the pictures as PNG in a folder per class."
        )
    for (labels, kind), (file, name, values) in found.items():
        if not labels:
            own = _labels_of(*found[True, kind][1:]) if (True, kind) in found else [None] * len(values)
            if values.ndim == 4 and values.shape[2:] == (3, len(own)) != values.shape[:2]:  # pictures last, as in SVHN
                values = np.moveaxis(values, -1, 0)
            if len(own) != len(values):
                raise InvalidDataset(f"{name} has {len(values):,} pictures and {len(own):,} labels. Save both again.")
            inner = f"{name}.npy/" if file.suffix == ".npz" else ""
            for row, (picture, label) in enumerate(zip(_pixels_of(name, values, files.notes), own, strict=True)):
                content = encode_image(Image.fromarray(picture), compress_level=1)
                yield Picture(file, content, label, kind, f"{inner}row {row}")


def _unpacked(files: Files, empty: Path) -> Iterator[tuple[Path, Kind | None, str, Path]]:
    """Yield file, split by the file's name, name, and a file of its own for each array."""
    for number, (file, split) in enumerate(zip(files, files.splits, strict=True)):
        if file.suffix == ".npy":
            yield file, split, file.stem, file
            continue
        with file.open("rb") as raw:
            for count, member in enumerate(list_members(raw, files.budget, [])):
                with (path := empty / f"{number}-{count}").open("wb") as out:
                    for chunk in read_chunks(member):
                        files.budget.store(len(chunk))
                        out.write(chunk)
                yield file, split, member.path[-1].removesuffix(".npy"), path


def _opened(path: Path, name: str) -> NDArray[Any]:
    try:
        with path.open("rb") as file:
            head = file.read(12)
        if head[6] > 1 and int.from_bytes(head[8:], "little") > _MOST_HEADER:  # NumPy would read all of it
            raise ValueError("a long header")
        values = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy raises almost anything on hostile bytes
        raise InvalidDataset(f"The array {name} is empty or damaged, or holds objects. Save it again.") from error
    if values.dtype.kind not in "biufU" or not values.nbytes or not 0 < values.ndim < 5 or len(values) > _MOST:
        kind = f"{values.dtype} {values.shape}"
        raise InvalidDataset(f"The array {name} of {kind} holds no pictures or labels, or more than {_MOST:,}.")
    return values


def _labels_of(name: str, values: NDArray[Any]) -> list[Any]:
    """Return the labels of an array (n,), (n, 1) or, one-hot, (n, classes)."""
    wide = values.ndim == 2 and values.shape[1] > 1 and values.dtype.kind != "U"
    if wide and np.isin(values, (0, 1)).all() and (values.sum(1) == 1).all():
        values = values.argmax(1)
    if values.size != len(values):
        raise InvalidDataset(f"{name} of shape {values.shape} has not one class for each picture. Save it again.")
    return list(values.reshape(-1).tolist())


def _pixels_of(name: str, values: NDArray[Any], notes: list[str]) -> Iterator[NDArray[np.uint8]]:
    """Yield the pictures: with 1, 3 or 4 channels last or 1 or 3 first, or none; or flat squares."""
    shape = values.shape[1:]
    flat = isqrt(shape[0]) if len(shape) == 1 else 0
    first, last = (len(shape) == 3 and shape[axis] in channels for axis, channels in ((0, (1, 3)), (2, (1, 3, 4))))
    readable = len(shape) == 2 or first != last or (flat >= _LEAST_SIDE and flat**2 == shape[0])
    if values.dtype.kind == "U" or not readable or values[0].nbytes > _CHUNK_BYTES:
        raise InvalidDataset(
            f"{name} of {values.dtype} {values.shape} cannot be read as pictures. Save it as (n, height, width) or (n, "
            "height, width, 3)."
        )
    step = _CHUNK_BYTES // values[0].nbytes
    chunks = [values[start : start + step] for start in range(0, len(values), step)]
    low, high = float(np.min([chunk.min() for chunk in chunks])), float(np.max([chunk.max() for chunk in chunks]))
    if not 0 <= low <= high <= 255 or (1 < high < 128 and values.dtype != np.uint8):
        raise InvalidDataset(f"{name} has values from {low:g} to {high:g}. Scale them to 0 to 255, or 0 to 1.")
    if unit := 0 < high <= 1:
        notes.append(f"{name} has values from {low:g} to {high:g}; 1 is read as white.")
    for value in values:
        spend()
        pixels = np.rint(np.multiply(value, 255.0 if unit else 1.0)).astype(np.uint8)
        pixels = np.moveaxis(pixels, 0, -1) if first else pixels.reshape(flat, flat) if flat else pixels
        yield np.ascontiguousarray(pixels[..., 0] if pixels.ndim == 3 and pixels.shape[2] == 1 else pixels)
