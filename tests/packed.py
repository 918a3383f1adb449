"""Archives of class folders for tests, in the usual formats, and a sandbox to import them in."""

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from vit.data.archives.import_archive import import_dataset, left_out
from vit.data.folders import list_files
from vit.errors import InvalidDataset
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess

INPUT = Preprocess((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3)
KINDS = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")
Files = dict[str, bytes]


def picture(seed: int = 0, format: str = "PNG", size: int = 8) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    return encode_image(Image.fromarray(noise), format)


def classes(*names: str, count: int = 3) -> Files:
    """Return `count` different pictures in each of these folders."""
    return {f"{name}/{i}.png": picture(hash_of(name) + i) for name in names for i in range(count)}


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode()[-6:], "big") * 1000


def pack(path: Path, files: Files, kind: str = "zip") -> Path:
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, f"w:{kind.partition('.')[2]}") as archive:
        for name, data in files.items():
            archive.addfile(entry(name, size=len(data)), io.BytesIO(data))
    return path


def entry(name: str, **values: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for key, value in values.items():
        setattr(info, key, value)
    return info


class Imported(NamedTuple):
    """A dataset after its import, as a page shows it: pictures by split and class, and what was left out."""

    classes: tuple[str, ...]
    counts: dict[str, dict[str, int]]
    skipped: tuple[str, ...]
    notes: tuple[str, ...]


class Sandbox:
    """A folder with an archive and its target, which lists every file written."""

    def __init__(self, folder: Path):
        self.archive, self.into = folder / "upload", folder / "data" / "pets"
        self.folder = folder

    def pack(self, files: Files, kind: str = "zip") -> "Sandbox":
        pack(self.archive, files, kind)
        return self

    @property
    def spec(self) -> str:
        return f"folder:{self.into}"

    def read(self) -> Imported:
        import_dataset(self.archive, self.into)
        names, *splits = list_files(self.into)[:4]
        labels = [[label for _, label in split] for split in splits]
        counts = {
            split: {name: own.count(label) for label, name in enumerate(names)}
            for split, own in zip(("train", "validation", "test"), labels, strict=True)
        }
        note = left_out(self.into)
        return Imported(names, counts, note.lines, note.notes)

    def refusal(self) -> str:
        with pytest.raises(InvalidDataset) as caught:
            self.read()
        assert "\n" not in str(caught.value) and ".partial" not in str(caught.value)
        return str(caught.value)

    def written(self) -> set[str]:
        return {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()} - {"upload"}

    def pictures(self) -> set[str]:
        return {name for name in self.written() if not Path(name).name.startswith(".")}

    def edit(self, change: Callable[[bytearray], None]) -> "Sandbox":
        data = bytearray(self.archive.read_bytes())
        change(data)
        self.archive.write_bytes(data)
        return self
