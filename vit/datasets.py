"""Labelled pictures: named datasets, folders of class folders, and a generated set that needs no download.

Pictures become uint8 tensors once, cut to the model's input size, and stay on the training device while they fit.
Larger sets are decoded as they are needed, in worker processes.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset
from tqdm import tqdm

from vit.errors import InvalidDataset, InvalidImage
from vit.images import Preprocess, decode_image

TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}
NAMES = (*TORCHVISION, "shapes", "folder:PATH")
SHAPES = ("circle", "square", "triangle", "cross")

_PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif"}
_TEST_FOLDERS = ("test", "val", "valid", "validation")
_TEST_SHARE = 0.1
_SPLIT_SEED = 0

log = logging.getLogger(__name__)


class Pictures(Protocol):
    """One split: uint8 pictures with labels, delivered in any order, batch by batch."""

    @property
    def labels(self) -> Tensor:
        """(n,) int64."""

    def relabelled(self, to_label: Tensor) -> "Pictures":
        """The same pictures with label i replaced by `to_label[i]`."""

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,)) on `device`, following `order`."""


@dataclass(frozen=True)
class Resident:
    """Pictures held as one tensor.

    Attributes:
        images: uint8 (n, channels, height, width).
        labels: (n,) int64.
    """

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Resident":
        """The same pictures on another device."""
        return Resident(self.images.to(device), self.labels.to(device))

    def relabelled(self, to_label: Tensor) -> Self:
        """The same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels])

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on `device`, following `order`."""
        for part in order.to(self.images.device).split(batch_size):
            yield self.images[part].to(device), self.labels[part].to(device)


@dataclass(frozen=True)
class Streamed:
    """Pictures decoded as they are needed.

    Attributes:
        open: gives picture i; raises InvalidImage or OSError where it cannot be read.
        labels: (n,) int64.
        preprocess: says how a picture is cut to the input size.
        workers: processes that decode.
    """

    open: Callable[[int], Image.Image]
    labels: Tensor
    preprocess: Preprocess
    workers: int

    def relabelled(self, to_label: Tensor) -> Self:
        """The same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels])

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches on `device`, following `order`."""
        loader = DataLoader(
            _Decoded(self),
            batch_size=batch_size,
            sampler=order.tolist(),
            num_workers=self.workers,
            pin_memory=device.type == "cuda",
        )
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class _Decoded(TorchDataset[tuple[Tensor, int]]):
    def __init__(self, pictures: Streamed):
        self.pictures = pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            picture = self.pictures.open(index)
        except (InvalidImage, OSError) as error:  # a grey picture keeps the order of all others exact
            log.warning("a grey picture stands in: %s", error)
            picture = Image.new("RGB", (32, 32), (128, 128, 128))
        return _as_tensor(picture, self.pictures.preprocess), int(self.pictures.labels[index])


@dataclass(frozen=True)
class Dataset:
    """Pictures to learn from and pictures to be judged by.

    Attributes:
        name: as given on the command line.
        classes: one name per label.
        train, test: the two splits.
        masks: bool (n, height, width) of the test pictures, True on the object; only `shapes` knows them.
        skipped: files that could not be read, with the reason.
    """

    name: str
    classes: tuple[str, ...]
    train: Pictures
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
    only_test: bool = False,
) -> Dataset:
    """Read a dataset at a model's input size.

    Args:
        spec: "cifar10", "cifar100", "mnist", "fashion-mnist", "shapes", or "folder:PATH" where PATH holds one
            folder per class, directly (a fixed tenth of each is then for testing) or below train/ and test/ (or val/).
        preprocess: decides size, channels and cut.
        root: where torchvision keeps its downloads.
        budget: pictures that take more memory than this are streamed [bytes].
        workers: processes that decode what is streamed.
        only_test: leave the training split empty.

    Raises:
        InvalidDataset: unknown name, missing folder, fewer than two classes, nothing readable.
    """
    if spec.startswith("folder:"):
        return _folder(spec, Path(spec.removeprefix("folder:")).expanduser(), preprocess, budget, workers, only_test)
    if spec == "shapes":
        height, width = preprocess.size
        if height != width or preprocess.channels != 3:
            raise InvalidDataset("The shapes dataset is square and in colour. Use a square model with 3 channels.")
        train, _ = shapes(0 if only_test else 4000, height, seed=1)
        test, masks = shapes(1000, height, seed=2)
        return Dataset(spec, SHAPES, train, test, masks)
    if spec in TORCHVISION:
        return _torchvision(spec, preprocess, root, budget, workers, only_test)
    raise InvalidDataset(f"There is no dataset {spec!r}. Choose from: {', '.join(NAMES)}.")


def _as_tensor(picture: Image.Image, preprocess: Preprocess) -> Tensor:
    pixels = torch.from_numpy(np.array(preprocess.seen(picture)))
    return pixels.reshape(*preprocess.size, preprocess.channels).permute(2, 0, 1).contiguous()


def _bytes(count: int, preprocess: Preprocess) -> int:
    height, width = preprocess.size
    return count * preprocess.channels * height * width


def _resident(images: list[Tensor], labels: list[int], preprocess: Preprocess) -> Resident:
    none = torch.empty(0, preprocess.channels, *preprocess.size, dtype=torch.uint8)
    return Resident(torch.stack(images) if images else none, torch.tensor(labels, dtype=torch.int64))


def _torchvision(spec: str, preprocess: Preprocess, root: Path, budget: int, workers: int, only_test: bool) -> Dataset:
    from torchvision import datasets

    sources = {}
    for name in ("train", "test"):
        try:
            sources[name] = getattr(datasets, TORCHVISION[spec])(root, train=name == "train", download=True)
        except (OSError, RuntimeError, ValueError, EOFError) as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise InvalidDataset(
                f"{spec} is not in {root}/ and could not be downloaded ({reason}). Put torchvision's "
                f"{TORCHVISION[spec]} files there, or name a folder of class folders: --data folder:PATH."
            ) from error
    if only_test:
        sources["train"].data = sources["train"].data[:0]
    fits = _bytes(sum(map(len, sources.values())), preprocess) <= budget
    splits: list[Pictures] = []
    for name, source in sources.items():
        labels = [int(label) for label in source.targets][: len(source)]
        if fits:
            bar = tqdm(range(len(source)), desc=f"{spec} {name}", unit="pictures", leave=False)
            splits.append(_resident([_as_tensor(_item(source, i), preprocess) for i in bar], labels, preprocess))
        else:
            splits.append(Streamed(partial(_item, source), torch.tensor(labels), preprocess, workers))
    return Dataset(spec, tuple(sources["test"].classes), splits[0], splits[1])


def _item(source: Any, index: int) -> Image.Image:
    return source[index][0]


def _folder(spec: str, path: Path, preprocess: Preprocess, budget: int, workers: int, only_test: bool) -> Dataset:
    if not path.is_dir():
        raise InvalidDataset(f"There is no folder {str(path)!r}. Name one that holds a folder of pictures per class.")
    train_root = path / "train"
    test_root = next((path / name for name in _TEST_FOLDERS if _classes(path / name)), None)
    if _classes(train_root) and test_root is None:
        raise InvalidDataset(
            f"{str(path)!r} has train/ but no test/ or val/ beside it. Add one, or drop the train/ level."
        )
    if test_root and not _classes(train_root):
        if not only_test:
            raise InvalidDataset(f"{str(path)!r} has {test_root.name}/ but no class folders in train/. Add them.")
        train_root = test_root
    root = train_root if test_root else path
    classes = _classes(root)
    if len(classes) < 2:
        raise InvalidDataset(
            f"Folders with pictures in {str(root)!r}: {len(classes)}. A classifier needs at least two, one per class."
        )
    train_files = _labelled(root, classes)
    if test_root:
        strangers = sorted(set(_classes(test_root)) - set(classes))
        if strangers:
            raise InvalidDataset(f"{str(test_root)!r} has classes that train/ lacks: {', '.join(strangers)}.")
        test_files = _labelled(test_root, classes)
    else:
        train_files, test_files = _split(train_files)
        if not test_files:
            raise InvalidDataset(f"{str(path)!r} has one picture per class, and none to test on. Add more.")
    if only_test:
        train_files = []

    fits = _bytes(len(train_files) + len(test_files), preprocess) <= budget
    splits: list[Pictures] = []
    skipped: list[str] = []
    for files, name in ((train_files, "train"), (test_files, "test")):
        if fits:
            resident, unreadable = _read(files, preprocess, f"reading {name}")
            if files and not len(resident.labels):
                raise InvalidDataset(f"No {name} picture in {str(path)!r} could be read. The first: {unreadable[0]}")
            splits.append(resident)
            skipped += unreadable
        else:
            labels = torch.tensor([label for _, label in files], dtype=torch.int64)
            splits.append(Streamed(partial(_nth, [file for file, _ in files]), labels, preprocess, workers))
    for line in skipped:
        log.warning("left out %s", line)
    return Dataset(spec, classes, splits[0], splits[1], skipped=tuple(skipped))


def _classes(root: Path) -> tuple[str, ...]:
    """Names of the folders that hold pictures; none where `root` is no folder."""
    if not root.is_dir():
        return ()
    folders = (entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return tuple(sorted(folder.name for folder in folders if _files(folder)))


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.suffix.lower() in _PICTURES and not p.name.startswith("."))


def _labelled(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    return [
        (path, label) for label, name in enumerate(classes) if (root / name).is_dir() for path in _files(root / name)
    ]


def _split(files: list[tuple[Path, int]]) -> tuple[list[tuple[Path, int]], list[tuple[Path, int]]]:
    """Set a fixed tenth of each class aside for testing: at least one picture, but never a class's last."""
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    train, test = [], []
    for label in sorted({label for _, label in files}):
        own = [file for file in files if file[1] == label]
        order = torch.randperm(len(own), generator=generator).tolist()
        count = min(max(1, round(len(own) * _TEST_SHARE)), len(own) - 1)
        chosen = set(order[:count])
        train += [file for i, file in enumerate(own) if i not in chosen]
        test += [file for i, file in enumerate(own) if i in chosen]
    return train, test


def _opened(path: Path) -> Image.Image:
    try:
        return decode_image(path.read_bytes())
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def _nth(paths: Sequence[Path], index: int) -> Image.Image:
    return _opened(paths[index])


def _read(files: list[tuple[Path, int]], preprocess: Preprocess, title: str) -> tuple[Resident, list[str]]:
    """Decode all files; those that cannot be read are left out and named with the reason."""

    def one(file: tuple[Path, int]) -> Tensor | str:
        try:
            return _as_tensor(_opened(file[0]), preprocess)
        except (InvalidImage, OSError) as error:
            return str(error)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(tqdm(pool.map(one, files), total=len(files), desc=title, unit="pictures", leave=False))
    images = [r for r in results if isinstance(r, Tensor)]
    labels = [label for r, (_, label) in zip(results, files, strict=True) if isinstance(r, Tensor)]
    return _resident(images, labels, preprocess), [r for r in results if isinstance(r, str)]


def shapes(count: int, size: int, seed: int) -> tuple[Resident, Tensor]:
    """Draw one bright shape per picture on a dark, noisy ground, and the mask of what was drawn.

    Args:
        count: pictures; classes in `SHAPES` take turns.
        size: side of a picture [px].
        seed: equal seeds give equal pictures.

    Returns:
        pictures, and masks bool (count, size, size), True on the shape.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator) * (high - low) + low

    labels = torch.arange(count) % len(SHAPES)
    radius = uniform(0.25, 0.4)
    centre = torch.rand(count, 2, generator=generator) * (1 - 2 * radius[:, None]) + radius[:, None]
    angle = uniform(-0.3, 0.3)
    steps = (torch.arange(size) + 0.5) / size
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    dy, dx = y - centre[:, 0, None, None], x - centre[:, 1, None, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    u, v = (dx * cos + dy * sin) / radius[:, None, None], (dy * cos - dx * sin) / radius[:, None, None]
    inside = torch.stack(
        [
            u**2 + v**2 < 1,
            torch.maximum(u.abs(), v.abs()) < 0.85,
            (v < 0.75) & (v > 2 * u.abs() - 1),
            (torch.minimum(u.abs(), v.abs()) < 0.3) & (torch.maximum(u.abs(), v.abs()) < 1),
        ],
        dim=1,
    )  # (count, 4, size, size)
    masks = inside[torch.arange(count), labels]

    ground = uniform(0, 0.4, 3, 1, 1) + uniform(-0.15, 0.15, 3, 1, 1) * (x + y)
    paint = uniform(0.5, 1, 3, 1, 1)
    images = torch.where(masks[:, None], paint, ground) + uniform(-0.05, 0.05, 3, size, size)
    return Resident((images.clamp(0, 1) * 255).to(torch.uint8), labels), masks
