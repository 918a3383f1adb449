"""Labelled pictures: named datasets, folders of class folders, and a generated set that needs no download.

Pictures are converted to uint8 tensors once, cropped to the model's input size, and stay on the training device if they
fit. Larger sets are decoded on demand by worker processes.

There are three splits: `train` is for training, `validation` for choices (best epoch, early stopping, settings), `test`
for one evaluation at the end. Missing splits are taken from the others with a fixed seed, so that they depend on the
data alone and are the same for every run.
"""

import copy
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.data import readable
from vit.data.downloads import NAMES, TORCHVISION, download, is_downloaded, torchvision_class, unpacked_folder
from vit.data.file_names import printable_name
from vit.data.folders import Files, folders_of_classes, is_packed, list_files, list_unlabelled
from vit.data.own_names import own_names
from vit.data.packed.index import SPLITS, Records, index_of
from vit.data.pictures import InMemoryPictures, Name, Pictures, StreamedPictures, as_tensor
from vit.data.readable import Opened
from vit.data.shapes import SHAPES, shapes
from vit.data.splits import choose_evenly, hold_out, random_subset, test_count, validation_count
from vit.errors import InvalidDataset, InvalidImage
from vit.images.files.decode import decode_image
from vit.images.preprocess import Preprocess
from vit.paths import split_part
from vit.progress import progress_bar

log = logging.getLogger(__name__)
S = TypeVar("S")
T = TypeVar("T")
_OVERSAMPLING = 2  # minimum side of a decoded picture, relative to the input


Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Dataset:
    """Pictures for training, for model selection, and for evaluation.

    Attributes:
        name: as given on the command line.
        classes: one name per label.
        train, validation, test: the splits, see the top of this file.
        masks: bool (n, height, width) for the test pictures, True on the object; only for `shapes`.
        skipped: files that could not be read or are in no class, with the reason.
        folders: names of the class folders, if the classes have display names.
        notes: assumptions about a folder, for people.
    """

    name: str
    classes: tuple[str, ...]
    train: Pictures
    validation: Pictures
    test: Pictures
    masks: Tensor | None = None
    skipped: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class _Limits(NamedTuple):
    """Which pictures are read, and how; see `load_dataset`."""

    budget: int
    workers: int
    only: Split | None
    at_most: int | None
    limit: int | None

    def chosen(self, split: Split, labels: Sequence[int]) -> list[int]:
        """Return the indices of the pictures to read among those of a split."""
        if self.only not in (None, split):
            return []
        chosen = choose_evenly(labels, self.at_most)
        return random_subset(chosen, self.limit) if split == "train" else chosen


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
        spec: "cifar10", "cifar100", "mnist", "fashion-mnist", "shapes", or "folder:PATH" for a folder with one folder
            per class, directly or in splits, or pictures with a table, see `list_files`; "folder:PATH#2" for the second
            level of nested folders as classes.
        preprocess: determines size, channels and crop.
        root: folder of torchvision's downloads.
        budget: pictures that need more memory than this are streamed [bytes].
        workers: processes that decode streamed pictures.
        only: the split to read; the others stay empty.
        at_most: maximum pictures per split, taken evenly from its classes; no others are decoded.
        limit: maximum pictures of the training split, a fixed random subset in a fixed order; no others are decoded.
        train_scale: side of training pictures relative to the input; for folders only.

    Raises:
        InvalidDataset: unknown name, missing folder, fewer than two classes, nothing readable.
    """
    limits = _Limits(budget, workers, only, at_most, limit)
    if spec.startswith("folder:"):
        larger = preprocess
        if train_scale != 1:
            height, width = (round(train_scale * side) for side in preprocess.size)
            larger = replace(preprocess, size=(height, width), resize_to=None, rectangle=None)
        dataset = _load_folder(spec, (larger, preprocess, preprocess), limits)
        for note in dataset.notes:
            log.warning("%s", note)
        return dataset
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
        chosen = random_subset(list(range(train)), limit)
        learnt = InMemoryPictures(learnt.images[chosen], learnt.labels[chosen])
        held_out, _ = shapes(validation, height, seed=3)
        pictures, masks = shapes(test, height, seed=2)
        return Dataset(spec, SHAPES, learnt, held_out, pictures, masks)
    if spec in TORCHVISION:
        return _load_torchvision(spec, preprocess, root, limits)
    raise InvalidDataset(f"There is no dataset {spec!r}. Choose from: {', '.join(NAMES)}.")


def load_pictures(
    spec: str,
    preprocess: Preprocess,
    *,
    root: Path = Path("data"),
    budget: int = 4 << 30,
    workers: int = 2,
    at_most: int | None = None,
) -> Dataset:
    """Read a dataset's test pictures, or all pictures of a folder without classes; see `load_dataset`."""
    path = Path(spec.removeprefix("folder:")).expanduser()
    if spec.startswith("folder:") and not is_packed(path) and not folders_of_classes(path):
        listed = list_unlabelled(path)
        if listed.test:
            for note in listed.notes:
                log.warning("%s", note)
            return _load_files(spec, path, listed, 3 * [preprocess], _Limits(budget, workers, "test", at_most, None))
    return load_dataset(spec, preprocess, root=root, budget=budget, workers=workers, only="test", at_most=at_most)


def _memory(count: int, preprocess: Preprocess) -> int:
    height, width = preprocess.size
    return count * preprocess.channels * height * width


def _resident(images: list[Tensor], labels: list[int], preprocess: Preprocess) -> InMemoryPictures:
    none = torch.empty(0, preprocess.channels, *preprocess.size, dtype=torch.uint8)
    return InMemoryPictures(torch.stack(images) if images else none, torch.tensor(labels, dtype=torch.int64))


def _load_torchvision(spec: str, preprocess: Preprocess, root: Path, limits: _Limits) -> Dataset:
    if not is_downloaded(spec, root):
        with progress_bar(desc=f"downloading {spec}", unit="B", unit_scale=True) as bar:

            def show(done: int, total: int) -> None:
                bar.total = total
                bar.update(done - bar.n)

            download(spec, root, show)
    sources = {}
    for name in ("train", "test"):
        try:
            sources[name] = torchvision_class(spec)(root, train=name == "train")
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InvalidDataset(
                f"{spec} in {root}/ is damaged ({reason}). Delete {unpacked_folder(spec, root)}/ and start again: "
                "it is then downloaded anew.",
                whole=True,
            ) from error
    labels = [int(label) for label in sources["train"].targets][: len(sources["train"])]
    aside = hold_out(labels, validation_count)
    rest = sorted(set(range(len(labels))) - set(aside))
    places: dict[str, Sequence[int]] = {"train": rest, "validation": aside, "test": range(len(sources["test"]))}
    parts = {
        split: _subset(sources["test" if split == "test" else "train"], places[split], split, limits)
        for split in get_args(Split)
    }
    fits = _memory(sum(map(len, parts.values())), preprocess) <= limits.budget
    splits: list[Pictures] = []
    for name, part in parts.items():
        if fits:
            bar = progress_bar(range(len(part)), desc=f"{spec} {name}", unit="pictures", leave=False)
            images = [as_tensor(_torchvision_picture(part, i), preprocess) for i in bar]
            splits.append(_resident(images, part.targets, preprocess))
        else:
            targets = torch.tensor(part.targets, dtype=torch.int64)
            splits.append(StreamedPictures(partial(_torchvision_picture, part), targets, preprocess, limits.workers))
    train, validation, test = splits
    return Dataset(spec, tuple(sources["test"].classes), train, validation, test)


def _subset(source: Any, places: Sequence[int], split: Split, limits: _Limits) -> Any:
    """Return a torchvision dataset with the pictures to read of a split."""
    labels = [int(source.targets[index]) for index in places]
    chosen = limits.chosen(split, labels)
    part = copy.copy(source)
    part.data, part.targets = source.data[[places[i] for i in chosen]], [labels[i] for i in chosen]
    return part


def _torchvision_picture(source: Any, index: int) -> Image.Image:
    return source[index][0]


def _load_folder(spec: str, preprocess: Sequence[Preprocess], limits: _Limits) -> Dataset:
    path = Path(spec.removeprefix("folder:")).expanduser()
    if is_packed(path):
        return _load_packed(spec, path, preprocess, limits)
    return _load_files(spec, split_part(path)[0], list_files(path, limits.only == "test"), preprocess, limits)


def _load_files(spec: str, folder: Path, listed: Files, preprocess: Sequence[Preprocess], limits: _Limits) -> Dataset:
    splits = zip(get_args(Split), (listed.train, listed.validation, listed.test), strict=True)
    parts = [[files[index] for index in limits.chosen(split, [label for _, label in files])] for split, files in splits]
    labels = [[label for _, label in files] for files in parts]
    opened = [
        partial(_nth_picture, [file for file, _ in files], _sufficient_side(one))
        for files, one in zip(parts, preprocess, strict=True)
    ]
    stamps = [partial(readable.stamps_of, [file for file, _ in files]) for files in parts]
    own = own_names(folder)
    names = [partial(_nth_of, own, [file for file, _ in files]) for files in parts]
    dataset = _opened_dataset(spec, listed.classes, labels, opened, names, stamps, preprocess, limits)
    for line in listed.left_out:
        log.warning("left out %s", line)
    skipped = (*listed.left_out, *dataset.skipped)
    return replace(dataset, skipped=skipped, folders=listed.folders, notes=listed.notes)


def _opened_dataset(
    spec: str,
    classes: tuple[str, ...],
    labels: Sequence[Sequence[int]],
    opened: Sequence[Opened],
    names: Sequence[Name],
    stamps: Sequence[Callable[[], Iterable[str]]],
    preprocess: Sequence[Preprocess],
    limits: _Limits,
) -> Dataset:
    """Build a dataset from picture files, in memory if they fit. Unreadable pictures are left out in any case.

    Args:
        labels: of each split, one for each picture.
        opened: per split, returns picture i; raises InvalidImage or OSError if it cannot be read.
        names: per split, returns the name of picture i.
        stamps: of each split, see `readable.find_unreadable`.
        preprocess: of each split.
    """
    fits = sum(_memory(len(own), one) for own, one in zip(labels, preprocess, strict=True)) <= limits.budget
    splits: list[Pictures] = []
    skipped: list[str] = []
    titles = ("training", "validation", "test")
    for own, picture, named, stamp, one, name in zip(labels, opened, names, stamps, preprocess, titles, strict=True):
        pictures: Pictures
        if fits:
            pictures, problems = _read_pictures(picture, named, own, one, f"reading {name} pictures")
        else:
            title = f"checking {name} pictures"
            pictures, problems = _streamed(picture, named, own, stamp, one, limits.workers, title)
        if own and not len(pictures.labels):
            path = str(Path(spec.removeprefix("folder:")).expanduser())
            raise InvalidDataset(f"No {name} picture in {path!r} could be read. The first: {problems[0]}")
        splits.append(pictures)
        skipped += problems
    for line in skipped:
        log.warning("left out %s", line)
    train, validation, test = splits
    return Dataset(spec, classes, train, validation, test, skipped=tuple(skipped))


def _streamed(
    opened: Opened,
    name: Name,
    labels: Sequence[int],
    stamps: Callable[[], Iterable[str]],
    preprocess: Preprocess,
    workers: int,
    title: str,
) -> tuple[StreamedPictures, list[str]]:
    """Return the readable pictures, to be decoded on demand, and the reasons for the others."""
    problems = readable.find_unreadable(opened, len(labels), stamps, title)
    intact = [index for index in range(len(labels)) if index not in problems]
    if problems:
        opened, name = partial(_nth_of, opened, intact), partial(_nth_of, name, intact)
    own = torch.tensor([labels[index] for index in intact], dtype=torch.int64)
    return StreamedPictures(opened, own, preprocess, workers, name), [problems[index] for index in sorted(problems)]


def _nth_of(of: Callable[[S], T], places: Sequence[S], index: int) -> T:
    return of(places[index])


def _open_picture(path: Path, least: int) -> Image.Image:
    """Decode a file.

    Args:
        least: shorter side that suffices [px].
    """
    try:
        return decode_image(path.read_bytes(), least=least)
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def _nth_picture(paths: Sequence[Path], least: int, index: int) -> Image.Image:
    return _open_picture(paths[index], least)


def _sufficient_side(preprocess: Preprocess) -> int:
    """Return the shorter side [px] from which a larger picture would not improve the resized input."""
    return _OVERSAMPLING * max(preprocess.size)


def _read_pictures(
    opened: Opened, name: Name, labels: Sequence[int], preprocess: Preprocess, title: str
) -> tuple[InMemoryPictures, list[str]]:
    """Decode all pictures; unreadable ones are left out and listed with the reason.

    Args:
        opened: returns picture i; raises InvalidImage or OSError if it cannot be read.
        labels: one for each of them.
    """
    count, skipped = len(labels), list[str]()
    # Allocate one tensor at the start: stacking a list of tensors would need twice the memory.
    images = torch.empty(count, preprocess.channels, *preprocess.size, dtype=torch.uint8)

    def read(index: int) -> None:
        images[index] = as_tensor(opened(index), preprocess)

    intact: list[int] = []
    for index, problem in enumerate(readable.each(read, count, title)):
        if problem is None:
            intact.append(index)
        else:
            skipped.append(problem)
    for place, index in enumerate(intact) if skipped else ():  # compact the readable ones in place
        images[place] = images[index]
    own = torch.tensor([labels[index] for index in intact], dtype=torch.int64)
    return InMemoryPictures(images[: len(intact)], own, partial(_nth_of, name, intact)), skipped


def _load_packed(spec: str, path: Path, preprocess: Sequence[Preprocess], limits: _Limits) -> Dataset:
    path, level = split_part(path)
    if level:
        raise InvalidDataset(f"{str(path)!r} has its classes in files, not in levels of folders. Leave out #{level}.")
    index = index_of(path)
    labels = index.labels.tolist()
    every = {name: np.flatnonzero(index.split == number).tolist() for number, name in enumerate(SPLITS)}
    if not every["test"] and every["validation"]:  # a single held-out split is used for testing, as in folders
        every["test"], every["validation"] = every["validation"], []
    for name, count in (("test", test_count), ("validation", validation_count)):
        if not every[name]:
            train = every["train"]
            aside = set(hold_out([labels[place] for place in train], count))
            every[name] = [place for i, place in enumerate(train) if i in aside]
            every["train"] = [place for i, place in enumerate(train) if i not in aside]
    if len({labels[place] for place in every["train"]} if every["train"] else set(labels)) < 2:
        raise InvalidDataset(f"{str(path)!r} has pictures of one class only. A classifier needs at least two.")
    parts = [
        [every[name][i] for i in limits.chosen(name, [labels[place] for place in every[name]])]
        for name in get_args(Split)
    ]
    records = [index.records.chosen(places) for places in parts]
    opened = [partial(_nth_record, own, _sufficient_side(one)) for own, one in zip(records, preprocess, strict=True)]
    own = [[labels[place] for place in places] for places in parts]
    stamps = [partial(Records.stamps, chosen) for chosen in records]
    names = [partial(Records.name, chosen) for chosen in records]
    dataset = _opened_dataset(spec, index.classes, own, opened, names, stamps, preprocess, limits)
    return replace(dataset, notes=index.notes)


def _nth_record(records: Records, least: int, index: int) -> Image.Image:
    try:
        return decode_image(records[index], least=least)
    except InvalidImage as error:
        raise InvalidImage(f"{printable_name(records.name(index))}: {error}") from error
