"""Survey a dataset before training: counts, sizes, duplicates, unreadable files, and a contact sheet."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image, ImageOps

from vit.data.datasets import load_dataset
from vit.data.downloads import TORCHVISION, is_downloaded
from vit.data.folders import Files, is_packed, list_files
from vit.data.own_names import own_names
from vit.data.pictures import InMemoryPictures, Pictures, StreamedPictures
from vit.data.splits import interleave_classes
from vit.errors import InvalidDataset, InvalidImage
from vit.images.files.decode import decode_image, used_range
from vit.images.preprocess import Preprocess
from vit.paths import dataset_folder
from vit.untrusted import spend

MAX_OPENED = 1000  # maximum number of pictures to decode
MAX_OPENED_BYTES = 150_000_000  # total size of the files to decode
MAX_HASHED = 100_000  # maximum number of files to read for duplicates
MAX_HASHED_BYTES = 1 << 30
MAX_ROWS = 20  # classes on the contact sheet
COLUMNS = 8  # pictures per class
CELL, GAP = 64, 2  # [px]
MAX_EXAMPLES = 50  # maximum number of duplicates to list

SPLITS = ("train", "validation", "test")

_PICTURE_SIDE = 32  # [px] of `shapes`, and of torchvision's pictures, which are not resized by it


class Sizes(NamedTuple):
    """The (width, height) of the smallest, the median and the largest picture by area [px]."""

    smallest: tuple[int, int]
    median: tuple[int, int]
    largest: tuple[int, int]


@dataclass(frozen=True)
class Survey:
    """Survey of a dataset.

    Attributes:
        classes: one name per label.
        counts: split ("train", "validation", "test") -> pictures per class.
        sizes: of pictures taken evenly from the classes; None if none could be read.
        unreadable: those of them that could not be decoded, with the reason.
        repeated: duplicates of an earlier picture in the same split: files with equal bytes, else equal pixels.
        leaked: duplicates of a picture in another split, which inflate the accuracy.
        contradicting: duplicates of either kind with another class.
        repeats: some duplicates by name: the first picture, and its duplicate.
        contact_sheet: RGBA, one row per class, transparent in empty cells.
        rows: the class of each row.
        left_out: pictures of a folder that are in no class.
        notes: assumptions about a folder, and remarks on its pictures.
        levels: classes by level of nested folders, of which any can be the classes.
    """

    classes: tuple[str, ...]
    counts: dict[str, dict[str, int]]
    sizes: Sizes | None
    unreadable: tuple[str, ...]
    repeated: int
    leaked: int
    contradicting: int
    repeats: tuple[tuple[str, str], ...]
    contact_sheet: Image.Image
    rows: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()


class _Item(NamedTuple):
    """A picture that is not opened yet."""

    split: str
    label: int
    name: str
    size: int  # [bytes] that `content` returns
    content: Callable[[], bytes]
    picture: Callable[[], Image.Image]


def survey(spec: str, root: Path = Path("data")) -> Survey:
    """Survey a dataset within the limits of this module.

    Args:
        spec: as for `load_dataset`.
        root: folder of torchvision's downloads; nothing is downloaded.

    Raises:
        InvalidDataset: no such dataset, or it is unsuitable for training.
    """
    path = Path(spec[7:]).expanduser() if spec.startswith("folder:") else None
    files = list_files(path) if path and not is_packed(path) else None
    classes, items, notes = (
        (files.classes, _in_folder(dataset_folder(spec), files), files.notes) if files else _items_of(spec, root)
    )
    counted = Counter((item.split, item.label) for item in items)
    counts = {split: {name: counted[split, label] for label, name in enumerate(classes)} for split in SPLITS}
    sizes, cells, unreadable, narrow = _open_some(items)
    repeats = _find_repeats(items)
    return Survey(
        classes=classes,
        counts=counts,
        sizes=Sizes(sizes[0], sizes[len(sizes) // 2], sizes[-1]) if sizes else None,
        unreadable=tuple(unreadable),
        repeated=sum(first.split == second.split for first, second in repeats),
        leaked=sum(first.split != second.split for first, second in repeats),
        contradicting=sum(first.label != second.label for first, second in repeats),
        repeats=tuple((first.name, second.name) for first, second in repeats[:MAX_EXAMPLES]),
        contact_sheet=_contact_sheet(cells, min(len(classes), MAX_ROWS)),
        rows=classes[:MAX_ROWS],
        left_out=files.left_out if files else (),
        notes=(*notes, *_range_notes(narrow, len(sizes))),
        levels=files.levels if files else (),
    )


def _range_notes(narrow: int, opened: int) -> list[str]:
    """Return a note about pictures that use less than half of their range of values."""
    if not narrow:
        return []
    many = "1 picture" if narrow == 1 else f"{narrow:,} pictures"
    return [
        f"{many} of {opened:,} that were opened use a small part of their 16 bits or more, as from microscopes and "
        "X-ray machines: they are read as they are, dark or with little contrast. Stretch them first to 8 bits."
    ]


def _in_folder(path: Path, files: Files) -> list[_Item]:
    name = own_names(path)
    return [
        _Item(split, label, name(file), file.stat().st_size, file.read_bytes, partial(_decode_file, file))
        for split, own in zip(SPLITS, (files.train, files.validation, files.test), strict=True)
        for file, label in own
    ]


def _decode_file(file: Path) -> Image.Image:
    return decode_image(file.read_bytes())


def _items_of(spec: str, root: Path) -> tuple[tuple[str, ...], list[_Item], tuple[str, ...]]:
    """Return classes, pictures and notes of a dataset that is not a folder of picture files."""
    if spec in TORCHVISION and not is_downloaded(spec, root):
        raise InvalidDataset(f"{spec} is not in {root}/. Download it first.")
    dataset = load_dataset(spec, Preprocess((_PICTURE_SIDE, _PICTURE_SIDE)), root=root, budget=0, workers=0)
    items = []
    for split, pictures in zip(SPLITS, (dataset.train, dataset.validation, dataset.test), strict=True):
        picture = pictures.open if isinstance(pictures, StreamedPictures) else partial(_dataset_picture, pictures)
        for index, label in enumerate(pictures.labels.tolist()):
            name = pictures.name(index) or f"{split} picture {index}"
            items.append(_Item(split, label, name, 0, partial(_pixel_bytes, picture, index), partial(picture, index)))
    return dataset.classes, items, dataset.notes


def _dataset_picture(pictures: Pictures, index: int) -> Image.Image:
    assert isinstance(pictures, InMemoryPictures)  # `shapes` is never streamed
    return Image.fromarray(pictures.images[index].permute(1, 2, 0).numpy())


def _pixel_bytes(picture: Callable[[int], Image.Image], index: int) -> bytes:
    return picture(index).tobytes()


def _open_some(items: Sequence[_Item]) -> tuple[list[tuple[int, int]], dict[int, list[Image.Image]], list[str], int]:
    """Decode pictures of alternating classes within the limits.

    Returns:
        (width, height) of each, sorted by area; a few thumbnails by label; unreadable pictures with the reason; and the
        number of pictures that use a small part of their range of values.
    """
    sizes, unreadable, read, narrow = [], [], 0, 0
    cells: dict[int, list[Image.Image]] = defaultdict(list)
    for index in interleave_classes([item.label for item in items])[:MAX_OPENED]:
        spend()
        item = items[index]
        read += item.size
        if read > MAX_OPENED_BYTES:
            break
        try:
            picture = item.picture()
            narrow += bool(item.size and used_range(item.content()))  # size 0: not a file
        except (InvalidImage, OSError) as error:
            unreadable.append(f"{item.name}: {error if isinstance(error, InvalidImage) else error.strerror}")
            continue
        sizes.append(picture.size)
        if item.label < MAX_ROWS and len(cells[item.label]) < COLUMNS:
            cells[item.label].append(ImageOps.fit(picture.convert("RGB"), (CELL, CELL)))
    return sorted(sizes, key=lambda size: (size[0] * size[1], size)), cells, sorted(unreadable), narrow


def _find_repeats(items: Sequence[_Item]) -> list[tuple[_Item, _Item]]:
    """Find pictures with equal content.

    Only files of equal size are read, smaller ones first, within the limits.

    Returns:
        Pairs of the first one, in the order of `items`, and a duplicate.
    """
    by_size: dict[int, list[_Item]] = defaultdict(list)
    for item in items:
        by_size[item.size].append(item)
    hashed = read = 0
    pairs = []
    for size, own in sorted(by_size.items()):
        if len(own) > 1:
            hashed, read = hashed + len(own), read + size * len(own)
            if hashed > MAX_HASHED or read > MAX_HASHED_BYTES:
                break
            first: dict[bytes, _Item] = {}
            for item in own:
                spend()
                with suppress(OSError):  # `_open_some` reports it
                    same = first.setdefault(hashlib.sha256(item.content()).digest(), item)
                    if same is not item:
                        pairs.append((same, item))
    return pairs


def _contact_sheet(cells: dict[int, list[Image.Image]], rows: int) -> Image.Image:
    sheet = Image.new("RGBA", (COLUMNS * (CELL + GAP) - GAP, rows * (CELL + GAP) - GAP))
    for row in range(rows):
        for column, cell in enumerate(cells[row]):
            sheet.paste(cell, (column * (CELL + GAP), row * (CELL + GAP)))
    return sheet
