"""Test pictures of a dataset, with which a checkpoint that was trained on it opens on page Explore."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from pages.server import uploaded_pictures
from pages.server.result_cache import cached
from pages.server.uploaded_pictures import Upload
from pages.shared import datasets
from vit.data import datasets as vit_datasets
from vit.data import folders, splits
from vit.data.own_names import own_names
from vit.data.pictures import InMemoryPictures
from vit.errors import UserError
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.paths import dataset_folder

COUNT = 12  # pictures
_SIDE = 32  # side of pictures that are not stored as files [px]


def entries(data: str, root: str) -> Sequence[tuple[str, str]]:
    """Store a few test pictures like uploads, and return names and keys; none if unavailable or not permitted."""
    if not datasets.may_see(data) or not datasets.is_here(data, root):
        return []

    def work() -> list[tuple[str, str]]:
        return [(one.name, uploaded_pictures.store(one.data)) for one in choose_test_pictures(data, root)]

    try:
        pairs: list[tuple[str, str]] = cached(("test pictures", data, datasets.stamp(data)), work)
        if not all(uploaded_pictures.is_stored(key) for _, key in pairs):  # stored pictures expire after a day
            pairs = work()
    except (UserError, OSError):  # reported where the data is shown
        return []
    return pairs if all(key for _, key in pairs) else []


def choose_test_pictures(data: str, root: str) -> list[Upload]:
    """Select `COUNT` test pictures, evenly over classes and deterministically, each named after its class.

    Raises:
        InvalidDataset, OSError: there are no pictures, or they cannot be read.
    """
    if data.startswith("folder:") and folders.folders_of_classes(Path(data.removeprefix("folder:"))):
        files = folders.list_files(Path(data.removeprefix("folder:")), only_test=True)
        order = splits.interleave_classes([label for _, label in files.test])[:COUNT]
        pairs = [files.test[place] for place in order]
        named = own_names(dataset_folder(data))
        return [Upload.of(_title(files.classes[label], named(file)), file.read_bytes()) for file, label in pairs]
    dataset = vit_datasets.load_dataset(
        data, Preprocess((_SIDE, _SIDE)), root=Path(root), only="test", at_most=COUNT, budget=1 << 30
    )
    assert isinstance(dataset.test, InMemoryPictures)  # so few pictures fit into memory
    images, labels = dataset.test.images, dataset.test.labels.tolist()
    pictures = []
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True), 1):
        content = encode_image(Image.fromarray(pixels.permute(1, 2, 0).numpy()), "PNG")
        name = dataset.test.name(number - 1) or f"test picture {number}"
        pictures.append(Upload.of(_title(dataset.classes[label], name), content))
    return pictures


def _title(label: str, name: str) -> str:
    """Name a picture, and its class unless a folder does."""
    return name if label in name.split("/")[:-1] else f"{label}, {name}"
