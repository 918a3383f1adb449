"""Labelled pictures: named datasets, folders of class folders, and a generated set that needs no download.

Pictures become uint8 tensors once, cut to the model's input size, and stay on the training device while they fit.
Larger sets are decoded as they are needed, in worker processes.

Three splits: `train` is learnt from, `validation` chooses (the best epoch, when to stop, settings), `test` is looked at
once, at the end. What a dataset does not bring is cut from the rest by a fixed seed, so that it depends on the data
alone and is the same for every run.
"""

import copy
import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args
from urllib.request import Request, urlopen

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.data import shards
from vit.data.class_names import names_of
from vit.data.pictures import Pictures, Resident, Streamed, as_tensor, log
from vit.data.shapes import SHAPES, shapes
from vit.errors import InvalidDataset, InvalidImage
from vit.files import wait_for_lock
from vit.images.decode import decode_image
from vit.images.preprocess import Preprocess
from vit.progress import tqdm

TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}
NAMES = (*TORCHVISION, "shapes", "folder:PATH")

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"}
VALIDATION_FOLDERS = ("val", "valid", "validation")
TEST_FOLDERS = ("test", *VALIDATION_FOLDERS)  # the first that is there is for testing
_TEST_SHARE = 0.1
_VALIDATION_SHARE, _VALIDATION_LEAST = 0.05, 10  # of a class; the second in pictures
_SPLIT_SEED = 0
_OVERSAMPLING = 2  # side of a picture that is decoded, over that of the input, at least

# What a whole download comes to [bytes], to say how far it is; its checksum decides whether it is right.
_DOWNLOAD_BYTES = {"cifar10": 170498071, "cifar100": 169001437, "mnist": 11594722, "fashion-mnist": 30878645}
_CHUNK_BYTES = 1 << 18
_PATIENCE_SECONDS = 30  # [s] without a byte
_T = TypeVar("_T")


Split = Literal["train", "validation", "test"]


class Files(NamedTuple):
    """What a folder of class folders holds: (file, label) of each split, nothing of it opened.

    Attributes:
        classes: their names for people, see `vit.data.class_names`, in the order of their folders.
    """

    classes: tuple[str, ...]
    train: list[tuple[Path, int]]
    validation: list[tuple[Path, int]]
    test: list[tuple[Path, int]]


@dataclass(frozen=True)
class Dataset:
    """Pictures to learn from, to choose by, and to be judged by.

    Attributes:
        name: as given on the command line.
        classes: one name per label.
        train, validation, test: the splits, see the top of this file.
        masks: bool (n, height, width) of the test pictures, True on the object; only `shapes` knows them.
        skipped: files that could not be read, with the reason.
    """

    name: str
    classes: tuple[str, ...]
    train: Pictures
    validation: Pictures
    test: Pictures
    masks: Tensor | None = None
    skipped: tuple[str, ...] = ()


def load_dataset(
    spec: str,
    preprocess: Preprocess,
    *,
    root: Path = Path("data"),
    budget: int = 4 << 30,
    workers: int = 2,
    only: Split | None = None,
    at_most: int | None = None,
    limit: int | None = None,
    train_scale: float = 1.0,
) -> Dataset:
    """Read a dataset at a model's input size.

    Args:
        spec: "cifar10", "cifar100", "mnist", "fashion-mnist", "shapes", or "folder:PATH" where PATH holds one
            folder per class, directly or in splits, see `list_files`.
        preprocess: decides size, channels and cut.
        root: where torchvision keeps its downloads.
        budget: pictures that take more memory than this are streamed [bytes].
        workers: processes that decode what is streamed.
        only: the split to read; the others stay empty.
        at_most: pictures of each split, taken evenly from its classes; no others are decoded.
        limit: pictures of the training split, always the same ones in the same random order; no others are decoded.
        train_scale: side of training pictures over that of the input; of folders only.

    Raises:
        InvalidDataset: unknown name, missing folder, fewer than two classes, nothing readable.
    """
    if spec.startswith("folder:"):
        larger = preprocess
        if train_scale != 1:
            height, width = (round(train_scale * side) for side in preprocess.size)
            larger = replace(preprocess, size=(height, width), resize_to=None)
        return _load_folder(spec, (larger, preprocess, preprocess), budget, workers, only, at_most, limit)
    if spec == "shapes":
        height, width = preprocess.size
        if height != width or preprocess.channels != 3:
            raise InvalidDataset("The shapes dataset is square and in colour. Use a square model with 3 channels.")
        counts = {"train": 4000, "validation": 1000, "test": 1000}
        train, validation, test = (
            0 if only not in (None, split) else count if at_most is None else min(count, at_most)
            for split, count in counts.items()
        )
        learnt, _ = shapes(train, height, seed=1)
        chosen = _random_subset(list(range(train)), limit)
        learnt = Resident(learnt.images[chosen], learnt.labels[chosen])
        held_out, _ = shapes(validation, height, seed=3)
        pictures, masks = shapes(test, height, seed=2)
        return Dataset(spec, SHAPES, learnt, held_out, pictures, masks)
    if spec in TORCHVISION:
        return _load_torchvision(spec, preprocess, root, budget, workers, only, at_most, limit)
    raise InvalidDataset(f"There is no dataset {spec!r}. Choose from: {', '.join(NAMES)}.")


def is_downloaded(name: str, root: Path = Path("data")) -> bool:
    """Say whether a named dataset is in `root`; whether its files are whole is seen when they are read.

    >>> is_downloaded("shapes")
    True
    """
    if name not in TORCHVISION:
        return name == "shapes"
    source = _torchvision_class(name)
    if hasattr(source, "mirrors"):
        files = [file.removesuffix(".gz") for file, _ in source.resources]
    else:
        files = [file for file, _ in (*source.train_list, *source.test_list)] + [source.meta["filename"]]
    return all((_unpacked_folder(name, root) / file).is_file() for file in files)


def download(name: str, root: Path = Path("data"), progress: Callable[[int, int], object] | None = None) -> None:
    """Fetch a named dataset into `root`; files that are there already are kept.

    Args:
        name: one of `TORCHVISION`, or "shapes", which needs nothing.
        root: where torchvision looks for its files.
        progress: called with the bytes fetched and the bytes in all.

    Raises:
        InvalidDataset: unknown name, or no network: the message says which files to put where.
    """
    if is_downloaded(name, root):
        return
    if name not in TORCHVISION:
        raise InvalidDataset(f"There is no dataset {name!r}. Choose from: {', '.join(NAMES)}.")
    source = _torchvision_class(name)
    if hasattr(source, "mirrors"):
        folder = _unpacked_folder(name, root)
        downloads = [(file, md5, [mirror + file for mirror in source.mirrors]) for file, md5 in source.resources]
    else:
        folder, downloads = root, [(source.filename, source.tgz_md5, [source.url])]

    def tell(done: int) -> None:
        if progress:
            progress(done, max(done, _DOWNLOAD_BYTES[name]))

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".download.lock").open("w") as lock:
            wait_for_lock(lock.fileno())  # two runs that start together fetch it once
            if is_downloaded(name, root):
                return
            done = 0
            for file, md5, urls in downloads:
                if not _is_whole(folder / file, md5):
                    _download_file(urls, folder / file, md5, lambda count, before=done: tell(before + count))  # type: ignore[misc]
                done += (folder / file).stat().st_size
                tell(done)
            source(root, download=True)  # unpacks what lies there
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().partition("\n")[0].strip("<>") or type(error).__name__
        files, address = ", ".join(file for file, *_ in downloads), downloads[0][2][0].rpartition("/")[0]
        raise InvalidDataset(
            f"{name} is not in {root}/ and could not be downloaded ({reason}). Put {files} from {address}/ "
            f"into {folder}/, or use a folder of class folders."
        ) from error


def _torchvision_class(name: str) -> Any:
    """torchvision's class."""
    from torchvision import datasets  # noqa: PLC0415 # brings torch's compiler along: 2 s

    return getattr(datasets, TORCHVISION[name])


def _unpacked_folder(name: str, root: Path) -> Path:
    """The folder in which torchvision expects the unpacked files."""
    source = _torchvision_class(name)
    return root / source.__name__ / "raw" if hasattr(source, "mirrors") else root / source.base_folder


def _is_whole(file: Path, md5: str) -> bool:
    if not file.is_file():
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, partial(hashlib.md5, usedforsecurity=False)).hexdigest() == md5


def _download_file(urls: list[str], file: Path, md5: str, progress: Callable[[int], None]) -> None:
    """Download a file from the first address that has it; it gets its name when it is whole."""
    unfinished = file.with_name(file.name + ".partial")
    failure: Exception = OSError("no address")
    for url in urls:
        try:
            request = Request(url, headers={"User-Agent": "vit"})  # noqa: S310  the addresses are torchvision's
            with urlopen(request, timeout=_PATIENCE_SECONDS) as answer, unfinished.open("wb") as target:  # noqa: S310
                while chunk := answer.read(_CHUNK_BYTES):
                    target.write(chunk)
                    progress(target.tell())
            if not _is_whole(unfinished, md5):
                raise OSError(f"{url} sent something else")
            unfinished.replace(file)
            return
        except (OSError, HTTPException) as error:
            failure = error
        finally:
            unfinished.unlink(missing_ok=True)
    raise OSError(str(failure)) from failure


def in_turn(labels: Sequence[int]) -> list[int]:
    """Order places so that the classes take turns; within a class in a random order, always the same.

    >>> [("a", "a", "a", "b")[place] for place in in_turn([0, 0, 0, 1])][2:]
    ['a', 'a']
    """
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    turns, counts = [], dict.fromkeys(labels, 0)
    for index in torch.randperm(len(labels), generator=generator).tolist():
        turns.append((counts[labels[index]], index))
        counts[labels[index]] += 1
    return [index for _, index in sorted(turns)]


def _choose_evenly(labels: Sequence[int], count: int | None) -> list[int]:
    """Choose `count` places (None for all) evenly from the classes, in their order."""
    return list(range(len(labels))) if count is None else sorted(in_turn(labels)[:count])


def _random_subset(items: list[_T], limit: int | None) -> list[_T]:
    """Choose `limit` items at random, always the same ones; all of them, in their order, where that is no limit."""
    if limit is None or limit >= len(items):
        return items
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(_SPLIT_SEED)).tolist()
    return [items[index] for index in order[:limit]]


def _memory(count: int, preprocess: Preprocess) -> int:
    height, width = preprocess.size
    return count * preprocess.channels * height * width


def _resident(images: list[Tensor], labels: list[int], preprocess: Preprocess) -> Resident:
    none = torch.empty(0, preprocess.channels, *preprocess.size, dtype=torch.uint8)
    return Resident(torch.stack(images) if images else none, torch.tensor(labels, dtype=torch.int64))


def _load_torchvision(
    spec: str,
    preprocess: Preprocess,
    root: Path,
    budget: int,
    workers: int,
    only: Split | None,
    at_most: int | None,
    limit: int | None,
) -> Dataset:
    if not is_downloaded(spec, root):
        with _progress_bar(desc=f"downloading {spec}", unit="B", unit_scale=True) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            download(spec, root, show)
    sources = {}
    for name in ("train", "test"):
        try:
            sources[name] = _torchvision_class(spec)(root, train=name == "train")
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InvalidDataset(
                f"{spec} in {root}/ is damaged ({reason}). Delete {_unpacked_folder(spec, root)}/ and start again: "
                "it is then downloaded anew."
            ) from error
    labels = [int(label) for label in sources["train"].targets][: len(sources["train"])]
    aside = _set_aside(labels, _validation_count)
    rest = sorted(set(range(len(labels))) - set(aside))
    parts = {
        "train": _subset(sources["train"], rest if only in (None, "train") else [], at_most, limit),
        "validation": _subset(sources["train"], aside if only in (None, "validation") else [], at_most),
        "test": _subset(sources["test"], range(len(sources["test"])) if only in (None, "test") else [], at_most),
    }
    fits = _memory(sum(map(len, parts.values())), preprocess) <= budget
    splits: list[Pictures] = []
    for name, part in parts.items():
        if fits:
            bar = _progress_bar(range(len(part)), desc=f"{spec} {name}", unit="pictures", leave=False)
            images = [as_tensor(_torchvision_picture(part, i), preprocess) for i in bar]
            splits.append(_resident(images, part.targets, preprocess))
        else:
            targets = torch.tensor(part.targets, dtype=torch.int64)
            splits.append(Streamed(partial(_torchvision_picture, part), targets, preprocess, workers))
    train, validation, test = splits
    return Dataset(spec, tuple(sources["test"].classes), train, validation, test)


def _subset(source: Any, places: Sequence[int], at_most: int | None, limit: int | None = None) -> Any:
    """These pictures of a torchvision dataset, or so many of them, as one of its kind; see `load_dataset`."""
    labels = [int(source.targets[index]) for index in places]
    chosen = _random_subset(_choose_evenly(labels, at_most), limit)
    part = copy.copy(source)
    part.data, part.targets = source.data[[places[i] for i in chosen]], [labels[i] for i in chosen]
    return part


def _torchvision_picture(source: Any, index: int) -> Image.Image:
    return source[index][0]


def list_files(path: Path, only_test: bool = False) -> Files:
    """Find the pictures of a folder of class folders, by their names only.

    Class folders may lie directly in `path`: then a tenth of each class is for testing, and of the rest a part for
    validation. They may lie below train/ and test/ (or val/, valid/, validation/, where there is no test/): then a part
    of train/ is for validation. Or below train/, val/ and test/. A part is 5 % of a class and at least 10 pictures, but
    no more than a fifth. All are chosen by a fixed seed: the same files give the same splits.

    Args:
        only_test: list test pictures only, and be content without others.

    Raises:
        InvalidDataset: no such folder, fewer than two classes, a split that is missing or does not fit the others.
    """
    if not path.is_dir():
        raise InvalidDataset(f"There is no folder {str(path)!r}. Name one that holds a folder of pictures per class.")
    train_root = path / "train"
    beside = [path / name for name in TEST_FOLDERS if class_folders(path / name)]
    test_root = beside[0] if beside else None
    validation_root = beside[1] if len(beside) > 1 and beside[0].name == "test" else None
    if class_folders(train_root) and test_root is None:
        raise InvalidDataset(
            f"{str(path)!r} has train/ but no test/ or val/ beside it. Add one, or drop the train/ level."
        )
    if test_root and not class_folders(train_root):
        if not only_test:
            raise InvalidDataset(f"{str(path)!r} has {test_root.name}/ but no class folders in train/. Add them.")
        train_root = test_root
    root = train_root if test_root else path
    classes = class_folders(root)
    if len(classes) < 2:
        raise InvalidDataset(
            f"Folders with pictures in {str(root)!r}: {len(classes)}. A classifier needs at least two, one per class."
        )
    for other in filter(None, (validation_root, test_root)):
        if strangers := sorted(set(class_folders(other)) - set(classes)):
            raise InvalidDataset(f"{str(other)!r} has classes that train/ lacks: {', '.join(strangers)}.")
    if test_root:
        test = _labelled(test_root, classes)
        train = [] if only_test else _labelled(root, classes)
    else:
        train, test = _split_off(_labelled(root, classes), _test_count)
        if not test:
            raise InvalidDataset(f"{str(path)!r} has one picture per class, and none to test on. Add more.")
    names = names_of(path, classes)
    if only_test:
        return Files(names, [], [], test)
    if validation_root:
        validation = _labelled(validation_root, classes)
    else:
        train, validation = _split_off(train, _validation_count)
    return Files(names, train, validation, test)


def _load_folder(
    spec: str,
    preprocess: Sequence[Preprocess],
    budget: int,
    workers: int,
    only: Split | None,
    at_most: int | None,
    limit: int | None,
) -> Dataset:
    path = Path(spec.removeprefix("folder:")).expanduser()
    if shards.files_of(path) and not folders_of_classes(path):
        return _load_shards(spec, path, preprocess, budget, workers, only, at_most, limit)
    classes, *every = list_files(path, only == "test")
    every = [files if only in (None, split) else [] for files, split in zip(every, get_args(Split), strict=True)]
    parts = [[files[index] for index in _choose_evenly([label for _, label in files], at_most)] for files in every]
    parts[0] = _random_subset(parts[0], limit)
    labels = [[label for _, label in files] for files in parts]
    opened = [
        partial(_nth_picture, [file for file, _ in files], _enough(one))
        for files, one in zip(parts, preprocess, strict=True)
    ]
    return _opened_dataset(spec, classes, labels, opened, preprocess, budget, workers)


def _opened_dataset(
    spec: str,
    classes: tuple[str, ...],
    labels: Sequence[Sequence[int]],
    opened: Sequence[Callable[[int], Image.Image]],
    preprocess: Sequence[Preprocess],
    budget: int,
    workers: int,
) -> Dataset:
    """A dataset of pictures in files, in memory where they fit.

    Args:
        labels: of each split, one for each picture.
        opened: of each split what gives picture i; raises InvalidImage or OSError where it cannot be read.
        preprocess: of each split.
    """
    fits = sum(_memory(len(own), one) for own, one in zip(labels, preprocess, strict=True)) <= budget
    splits: list[Pictures] = []
    skipped: list[str] = []
    names = ("training", "validation", "test")
    for own, picture, one, name in zip(labels, opened, preprocess, names, strict=True):
        if fits:
            resident, unreadable = _read_pictures(picture, own, one, f"reading {name} pictures")
            if own and not len(resident.labels):
                path = str(Path(spec.removeprefix("folder:")).expanduser())
                raise InvalidDataset(f"No {name} picture in {path!r} could be read. The first: {unreadable[0]}")
            splits.append(resident)
            skipped += unreadable
        else:
            splits.append(Streamed(picture, torch.tensor(own, dtype=torch.int64), one, workers))
    for line in skipped:
        log.warning("left out %s", line)
    train, validation, test = splits
    return Dataset(spec, classes, train, validation, test, skipped=tuple(skipped))


def folders_of_classes(path: Path) -> tuple[str, ...]:
    """Names of the class folders of a dataset, in the order of its classes; none where it is no dataset."""
    return class_folders(path / "train") or class_folders(path)


def class_folders(root: Path) -> tuple[str, ...]:
    """Names of the folders that hold pictures; none where `root` is no folder."""
    if not root.is_dir():
        return ()
    folders = (entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return tuple(sorted(folder.name for folder in folders if _holds_pictures(folder)))


def _holds_pictures(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_picture(Path(entry.name)) for entry in entries)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


def _picture_files(folder: Path) -> list[Path]:
    return sorted(filter(_is_picture, folder.iterdir()))


def _labelled(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if (root / name).is_dir()
        for path in _picture_files(root / name)
    ]


_Labelled = list[tuple[Path, int]]


def _split_off(files: _Labelled, count: Callable[[int], int]) -> tuple[_Labelled, _Labelled]:
    """Set some files of each class aside: those that are left, and those."""
    chosen = set(_set_aside([label for _, label in files], count))
    return (
        [file for index, file in enumerate(files) if index not in chosen],
        [file for index, file in enumerate(files) if index in chosen],
    )


def _set_aside(labels: Sequence[int], count: Callable[[int], int]) -> list[int]:
    """Choose places of each class, as many as `count` says for a class of so many; always the same, in order."""
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    places: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        places.setdefault(label, []).append(index)
    chosen = []
    for _, own in sorted(places.items()):
        order = torch.randperm(len(own), generator=generator)
        chosen += [own[i] for i in order[: count(len(own))].tolist()]
    return sorted(chosen)


def _test_count(pictures: int) -> int:
    """Of a class: a tenth, at least one picture, but never the last."""
    return min(max(1, round(pictures * _TEST_SHARE)), pictures - 1)


def _validation_count(pictures: int) -> int:
    """Of a class: a twentieth and at least ten, but no more than a fifth of a small one, and never the last."""
    count = max(round(pictures * _VALIDATION_SHARE), _VALIDATION_LEAST)
    return min(count, max(pictures // 5, 1), pictures - 1)


def _open_picture(path: Path, least: int) -> Image.Image:
    """Decode a file.

    Args:
        least: shorter side that is enough [px].
    """
    try:
        return decode_image(path.read_bytes(), least=least)
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def _progress_bar(*things: Any, **facts: Any) -> Any:
    """Progress on a terminal, and now and then a line of it in a log."""
    return tqdm(*things, **facts, mininterval=0.1 if sys.stderr.isatty() else 10)


def _nth_picture(paths: Sequence[Path], least: int, index: int) -> Image.Image:
    return _open_picture(paths[index], least)


def _enough(preprocess: Preprocess) -> int:
    """Shorter side from which a picture is shrunk to the input as well as from a larger one [px]."""
    return _OVERSAMPLING * max(preprocess.size)


def _read_pictures(
    opened: Callable[[int], Image.Image], labels: Sequence[int], preprocess: Preprocess, title: str
) -> tuple[Resident, list[str]]:
    """Decode all pictures; those that cannot be read are left out and named with the reason.

    Args:
        opened: gives picture i; raises InvalidImage or OSError where it cannot be read.
        labels: one for each of them.
    """

    def one(index: int) -> Tensor | str:
        try:
            return as_tensor(opened(index), preprocess)
        except (InvalidImage, OSError) as error:
            return str(error)

    count = len(labels)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(
            _progress_bar(pool.map(one, range(count)), total=count, desc=title, unit="pictures", leave=False)
        )
    images = [r for r in results if isinstance(r, Tensor)]
    readable = [label for r, label in zip(results, labels, strict=True) if isinstance(r, Tensor)]
    return _resident(images, readable, preprocess), [r for r in results if isinstance(r, str)]


def _load_shards(
    spec: str,
    path: Path,
    preprocess: Sequence[Preprocess],
    budget: int,
    workers: int,
    only: Split | None,
    at_most: int | None,
    limit: int | None,
) -> Dataset:
    index = shards.index(path)
    labels = index.labels.tolist()
    every = {name: np.flatnonzero(index.split == number).tolist() for number, name in enumerate(shards.SPLITS)}
    if not every["test"] and every["validation"]:  # the first that is there is for testing, as in folders
        every["test"], every["validation"] = every["validation"], []
    for name, count in (("test", _test_count), ("validation", _validation_count)):
        if not every[name]:
            train = every["train"]
            aside = set(_set_aside([labels[place] for place in train], count))
            every[name] = [place for i, place in enumerate(train) if i in aside]
            every["train"] = [place for i, place in enumerate(train) if i not in aside]
    if len({labels[place] for place in every["train"]} if every["train"] else set(labels)) < 2:
        raise InvalidDataset(f"{str(path)!r} has pictures of one class only. A classifier needs at least two.")
    parts = []
    for name in get_args(Split):
        places = every[name] if only in (None, name) else []
        chosen = [places[i] for i in _choose_evenly([labels[place] for place in places], at_most)]
        parts.append(_random_subset(chosen, limit) if name == "train" else chosen)
    opened = [
        partial(_nth_record, index.records.chosen(places), _enough(one))
        for places, one in zip(parts, preprocess, strict=True)
    ]
    own = [[labels[place] for place in places] for places in parts]
    return _opened_dataset(spec, index.classes, own, opened, preprocess, budget, workers)


def _nth_record(records: shards.Records, least: int, index: int) -> Image.Image:
    try:
        return decode_image(records[index], least=least)
    except InvalidImage as error:
        raise InvalidImage(f"{records.name(index)}: {error}") from error
