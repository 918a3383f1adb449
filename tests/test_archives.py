"""Archives: honest ones become a folder to train on, hostile ones one sentence and nothing on the disk."""

import errno
import gzip
import io
import lzma
import os
import random
import shutil
import stat
import struct
import tarfile
import tracemalloc
import unicodedata
import zipfile
from collections import namedtuple
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vit
from vit.data import archive_readers, import_archive
from vit.data.datasets import load_dataset
from vit.data.import_archive import ImportedDataset, LeftOut, import_dataset, left_out
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess

INPUT = Preprocess((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3)
KINDS = ("zip", "tar", "tar.gz", "tar.bz2", "tar.xz")
Files = dict[str, bytes]


def picture(seed: int = 0, format: str = "PNG", size: int = 8) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, format)
    return file.getvalue()


def classes(*names: str, count: int = 3) -> Files:
    """`count` different pictures in each of these folders."""
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


class Place:
    """A folder with an archive, its target, and a look at everything around."""

    def __init__(self, folder: Path):
        self.archive, self.into = folder / "upload", folder / "data" / "pets"
        self.folder = folder

    def pack(self, files: Files, kind: str = "zip") -> "Place":
        pack(self.archive, files, kind)
        return self

    def read(self) -> ImportedDataset:
        return import_dataset(self.archive, self.into)

    def refusal(self) -> str:
        with pytest.raises(InvalidDataset) as caught:
            self.read()
        assert "\n" not in str(caught.value) and ".partial" not in str(caught.value)
        return str(caught.value)

    def written(self) -> set[str]:
        return {str(p.relative_to(self.folder)) for p in self.folder.rglob("*") if p.is_file()} - {"upload"}

    def pictures(self) -> set[str]:
        return {name for name in self.written() if not Path(name).name.startswith(".")}

    def edit(self, change: Callable[[bytearray], None]) -> "Place":
        data = bytearray(self.archive.read_bytes())
        change(data)
        self.archive.write_bytes(data)
        return self


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Whatever a test does: files appear in `into` only, and there only if the import succeeded."""
    here = Place(tmp_path)
    beside = set(os.listdir(tmp_path.parent))
    yield here
    assert set(os.listdir(tmp_path.parent)) == beside
    assert set(os.listdir(tmp_path)) <= {"upload", "data"}
    if (tmp_path / "data").exists():
        assert set(os.listdir(tmp_path / "data")) <= {"pets"}
    assert all(name.startswith("data/pets/") for name in here.written())


# --- Honest archives ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_is_known_by_its_content(place: Place, kind: str) -> None:
    files = classes("cat", "dog", count=20)
    result = place.pack(files, kind).read()
    assert result.classes == ("cat", "dog")
    assert result.counts == {
        split: {"cat": n, "dog": n} for split, n in (("train", 15), ("validation", 3), ("test", 2))
    }
    assert (result.skipped, result.ignored) == ((), 0)
    assert result.spec == f"folder:{place.into}"
    assert place.written() == {f"data/pets/{c}/{i:06}.png" for c in ("cat", "dog") for i in range(20)}


def test_files_keep_their_bytes_in_the_order_of_their_names(place: Place) -> None:
    files = classes("cat", "dog")
    shuffled = dict(random.Random(1).sample(sorted(files.items()), len(files)))
    place.pack(shuffled).read()
    assert [(place.into / "cat" / f"{i:06}.png").read_bytes() for i in range(3)] == [
        files[f"cat/{i}.png"] for i in range(3)
    ]


def test_what_was_imported_loads_with_the_counts_that_were_told(place: Place) -> None:
    result = place.pack(classes("cat", count=30) | classes("dog", count=11)).read()
    dataset = load_dataset(result.spec, INPUT)
    assert dataset.classes == result.classes
    for split in ("train", "validation", "test"):
        pictures = getattr(dataset, split)
        assert pictures.labels.bincount().tolist() == [result.counts[split][name] for name in result.classes]


def test_the_package_exports_it() -> None:
    assert vit.import_dataset is import_dataset


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation", "Test"])
@pytest.mark.parametrize("root", ["", "pets/", "download/pets/"])
def test_splits_are_understood(place: Place, test: str, root: str) -> None:
    files = classes(f"{root}train/cat", f"{root}train/dog") | classes(f"{root}{test}/cat", count=2)
    result = place.pack(files).read()
    assert result.counts == {
        "train": {"cat": 2, "dog": 2},
        "validation": {"cat": 1, "dog": 1},
        "test": {"cat": 2, "dog": 0},
    }
    assert (place.into / "train/dog/000002.png").is_file() and (place.into / "test/cat/000001.png").is_file()


@pytest.mark.parametrize("validation", ["val", "valid", "Validation"])
def test_three_splits_are_kept(place: Place, validation: str) -> None:
    counts = {"train": 3, validation: 2, "test": 1}
    files = {k: v for split, n in counts.items() for k, v in classes(f"{split}/cat", f"{split}/dog", count=n).items()}
    result = place.pack(files).read()
    assert result.counts == {split: {"cat": n, "dog": n} for split, n in (("train", 3), ("validation", 2), ("test", 1))}
    assert result.skipped == ()
    assert (place.into / "val/dog/000001.png").read_bytes() == files[f"{validation}/dog/1.png"]


def test_of_several_splits_to_validate_on_the_first_is_kept_and_the_other_named(place: Place) -> None:
    splits = ("train", "test", "val", "valid")
    files = {k: v for split in splits for k, v in classes(f"{split}/cat", f"{split}/dog", count=1).items()}
    result = place.pack(files).read()
    assert result.counts["validation"] == {"cat": 1, "dog": 1}
    assert [line.partition(":")[0] for line in result.skipped] == ["valid/cat/0.png", "valid/dog/0.png"]


def test_unlabelled_test_pictures_are_left_out_and_counted(place: Place) -> None:
    result = place.pack(classes("train/cat", "train/dog", count=10) | classes("test", count=30)).read()
    assert result.counts["test"] == {"cat": 1, "dog": 1}
    assert len(result.skipped) == 1 and result.skipped[0].startswith("test/: 30 pictures")


@pytest.mark.parametrize("root", ["pets/", "a/b/", "train/"])
def test_single_folders_around_everything_are_unwrapped(place: Place, root: str) -> None:
    result = place.pack(classes(f"{root}cat", f"{root}dog") | {"readme.txt": b"hi"}).read()
    assert result.classes == ("cat", "dog")
    assert (place.into / "cat/000000.png").is_file()


def test_a_folder_of_the_same_name_in_every_class_is_unwrapped(place: Place) -> None:
    files = classes("train/cat/images", "train/dog/images") | classes("val/cat/images", "val/dog/images")
    assert place.pack(files).read().counts["test"] == {"cat": 3, "dog": 3}


def test_a_split_in_a_folder_of_its_own_name_is_unwrapped(place: Place) -> None:
    files = classes("train/train/cat", "train/train/dog", "val/val/cat", "val/val/dog")
    assert place.pack(files).read().counts["test"] == {"cat": 3, "dog": 3}


def test_an_xz_in_several_parts_is_read_whole(place: Place) -> None:
    content = pack(place.archive, classes("cat", "dog"), "tar").read_bytes()
    half = len(content) // 2
    place.archive.write_bytes(lzma.compress(content[:half]) + bytes(8) + lzma.compress(content[half:]) + bytes(4))
    assert sum(sum(own.values()) for own in place.read().counts.values()) == 6


def test_a_wrong_checksum_behind_the_last_file_is_noticed(place: Place) -> None:
    place.pack(classes("cat", "dog"), "tar.gz").edit(lambda data: data.__setitem__(-8, data[-8] ^ 1))
    assert "damaged" in place.refusal()


def test_classes_may_be_called_train_pool_and_valid(place: Place) -> None:
    assert place.pack(classes("train", "valid", "pool")).read().classes == ("pool", "train", "valid")


def test_junk_is_ignored_and_counted(place: Place) -> None:
    junk = {
        "__MACOSX/pets/cat/._0.png": b"fork",
        "__MACOSX/pets/cat/0.png": b"fork",
        "pets/.DS_Store": b"x",
        "pets/cat/Thumbs.db": b"x",
        "pets/cat/desktop.ini": b"x",
        "pets/cat/._0.png": b"x",
        "pets/.hidden/0.png": picture(),
        "pets/labels.csv": b"a,b",
        "pets/more.zip": b"PK\3\4",
    }
    result = place.pack(classes("pets/cat", "pets/dog") | junk).read()
    assert (result.skipped, result.ignored) == ((), len(junk))
    assert len(place.pictures()) == 6


def test_pictures_that_cannot_be_decoded_are_named_with_the_reason(place: Place) -> None:
    bad = {
        "cat/broken.png": b"\x89PNG nothing",
        "cat/empty.jpg": b"",
        "dog/photo.heic": b"\0\0\0\x18ftypheic" + bytes(9),
    }
    result = place.pack(classes("cat", "dog") | bad).read()
    assert {line.partition(":")[0] for line in result.skipped} == set(bad)
    assert any("HEIC" in line for line in result.skipped) and any("empty" in line for line in result.skipped)
    assert len(place.pictures()) == 6


def test_pictures_outside_the_class_folders_are_named(place: Place) -> None:
    stray = {"cover.png": picture(1), "pets/title.png": picture(2), "pets/cat/more/0.png": picture(3)}
    result = place.pack(classes("pets/cat", "pets/dog") | stray).read()
    assert {line.partition(":")[0] for line in result.skipped} == set(stray)
    assert sum(own["cat"] for own in result.counts.values()) == 3


def test_what_was_left_out_is_kept_beside_the_classes(place: Place) -> None:
    bad = {"cat/broken.png": b"\x89PNG nothing", "cover.png": picture(1), "readme.txt": b"hi", ".DS_Store": b"x"}
    result = place.pack(classes("cat", "dog") | bad).read()
    kept = left_out(place.into)
    assert kept.lines[:-1] == result.skipped and kept.total == 3
    assert kept.lines[-1].startswith("2 other files")
    assert load_dataset(result.spec, INPUT).classes == ("cat", "dog")


def test_of_very_many_files_that_were_left_out_the_first_are_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_archive, "_NOTED", 2)
    result = place.pack(classes("cat", "dog") | {f"cat/bad{i}.png": b"no" for i in range(5)}).read()
    assert left_out(place.into) == LeftOut(result.skipped[:2], 5)


def test_where_nothing_was_left_out_or_nothing_is_known_nothing_is_told(place: Place) -> None:
    place.pack(classes("cat", "dog")).read()
    assert left_out(place.into) == left_out(place.folder / "nowhere") == LeftOut()
    for damaged in (b"", b"[]", b"{}", b'{"lines": 1, "total": 2}', b"\xff"):
        (place.into / import_archive._NOTE).write_bytes(damaged)
        assert left_out(place.into) == LeftOut()


def test_the_suffix_is_that_of_the_content(place: Place) -> None:
    formats = {
        "JPEG": ".jpg",
        "PNG": ".png",
        "GIF": ".gif",
        "BMP": ".bmp",
        "WEBP": ".webp",
        "TIFF": ".tiff",
        "AVIF": ".avif",
    }
    files = {f"cat/{i}.jpg": picture(i, format) for i, format in enumerate(formats)}
    place.pack(files | classes("dog")).read()
    assert [path.suffix for path in sorted((place.into / "cat").iterdir())] == list(formats.values())


def test_names_of_files_play_no_part(place: Place) -> None:
    names = ("; rm -rf.png", "a\nb.png", "\u202egnp.png", "x" * 240 + ".png", "%s.png", "CON.png")
    place.pack(classes("dog") | {f"cat/{name}": picture(i) for i, name in enumerate(names)}, "tar").read()
    assert len(list((place.into / "cat").glob("00000?.png"))) == len(names)


def test_accents_in_zips_that_do_not_say_they_are_utf8_come_out_right(place: Place) -> None:
    def unmark(data: bytearray) -> None:  # as the zips of macOS: UTF-8 without its flag
        for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
            at = -1
            while (at := data.find(signature, at + 1)) >= 0:
                data[at + offset + 1] &= ~0x08

    decomposed = unicodedata.normalize("NFD", "éléphant")
    result = place.pack(classes(decomposed, "日本")).edit(unmark).read()
    assert result.classes == ("éléphant", "日本")


@pytest.mark.parametrize("kind", KINDS)
def test_progress_counts_the_archives_bytes(place: Place, kind: str) -> None:
    steps: list[tuple[int, int]] = []
    place.pack(classes("cat", "dog"), kind)
    import_dataset(place.archive, place.into, progress=lambda done, total: steps.append((done, total)))
    size = place.archive.stat().st_size
    assert steps == sorted(steps) and steps[-1] == (size, size) and {total for _, total in steps} == {size}


def test_an_empty_folder_is_filled(place: Place) -> None:
    place.into.mkdir(parents=True)
    assert place.pack(classes("cat", "dog")).read().classes == ("cat", "dog")


def test_a_folder_with_something_in_it_is_left_alone(place: Place) -> None:
    place.into.mkdir(parents=True)
    (place.into / "mine.txt").write_text("keep")
    assert "not empty" in place.pack(classes("cat", "dog")).refusal()
    assert place.written() == {"data/pets/mine.txt"}


def test_two_imports_into_one_folder_leave_the_first(place: Place, tmp_path: Path) -> None:
    place.pack(classes("cat", "dog"))
    first: list[ImportedDataset] = []

    def meanwhile(done: int, total: int) -> None:
        if not first:
            first.append(place.read())

    with pytest.raises(InvalidDataset, match="not empty"):
        import_dataset(place.archive, place.into, progress=meanwhile)
    assert len(place.written()) == 6


# --- Refusals: content ----------------------------------------------------------------------------------------


def test_fewer_than_two_classes_are_refused(place: Place) -> None:
    assert "at least two" in place.pack(classes("cat")).refusal()
    assert "at least two" in place.pack(classes("pets/cat")).refusal()
    assert "at least two" in place.pack({"0.png": picture()}).refusal()
    assert "at least two" in place.pack({}).refusal()
    assert "at least two" in place.pack(classes("cat") | {"dog/0.png": b"broken"}).refusal()
    assert "at least two" in place.pack(classes("animals/cat", "animals/dog", "cars/bus", "cars/tram")).refusal()


def test_one_picture_per_class_is_refused(place: Place) -> None:
    assert "none to test on" in place.pack(classes("cat", "dog", count=1)).refusal()


def test_classes_that_only_testing_has_are_refused_by_name(place: Place) -> None:
    files = classes("train/cat", "train/dog", "test/cat", "test/tram")
    assert "tram" in place.pack(files).refusal()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "neither a zip nor a tar"),
        (b"hello " * 400, "neither a zip nor a tar"),
        (b"Rar!\x1a\x07\x01\0", "RAR"),
        (b"7z\xbc\xaf\x27\x1c", "7-Zip"),
        (b"\x28\xb5\x2f\xfd" + bytes(99), "Zstandard"),
        (b"PK\3\4" + bytes(99), "damaged"),
    ],
)
def test_other_files_are_refused_by_what_they_are(place: Place, content: bytes, told: str) -> None:
    place.archive.write_bytes(content)
    assert told in place.refusal()


def test_a_gzip_of_something_else_is_refused(place: Place) -> None:
    place.archive.write_bytes(gzip.compress(b"digits " * 1000))
    assert "neither a zip nor a tar" in place.refusal()


def test_a_missing_archive_is_refused(place: Place) -> None:
    assert "no archive" in place.refusal()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
def test_a_truncated_archive_is_refused(place: Place, kind: str, share: float) -> None:
    place.pack(classes("cat", "dog", count=40), kind)
    content = place.archive.read_bytes()
    if kind == "tar":
        content = content.rstrip(b"\0")
    place.archive.write_bytes(content[: int(len(content) * share)])
    assert "damaged" in place.refusal()


def test_a_tar_cut_between_two_files_is_refused(place: Place) -> None:
    place.pack(classes("cat", "dog"), "tar")
    with tarfile.open(place.archive) as archive:
        last = archive.getmembers()[-1].offset
    place.archive.write_bytes(place.archive.read_bytes()[:last])
    assert "damaged" in place.refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_gets_past_as_anything_but_a_refusal(place: Place, kind: str) -> None:
    place.pack(classes("cat", "dog"), kind)
    whole, chance = place.archive.read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 4))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        place.archive.write_bytes(damaged)
        try:
            place.read()
        except InvalidDataset:
            assert place.written() == set()
        shutil.rmtree(place.into, ignore_errors=True)


# --- Refusals: names ------------------------------------------------------------------------------------------

ESCAPES = (
    "../evil.png",
    "cat/../../evil.png",
    "cat/..",
    "/tmp/evil.png",
    "//server/share/evil.png",
    "C:/evil.png",
    "C:evil.png",
    "\\\\server\\share\\evil.png",
    "..\\evil.png",
    "cat\\evil.png",
    "./../evil.png",
    "__MACOSX/../../evil.png",
    "notes/../../evil.txt",
)


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("name", ESCAPES)
def test_paths_that_leave_the_folder_are_refused(place: Place, kind: str, name: str) -> None:
    files = classes("cat", "dog") | {name: picture()}
    assert "could lead out of its folder" in place.pack(files, kind).refusal()


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_folders_without_end_are_refused(place: Place, kind: str) -> None:
    assert "deep" in place.pack(classes("cat", "dog", "a/" * 200), kind).refusal()


@pytest.mark.parametrize("type", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../evil", "cat/0.png"])
def test_links_in_a_tar_are_refused(place: Place, type: bytes, target: str) -> None:
    place.pack(classes("cat", "dog"), "tar")
    with tarfile.open(place.archive, "a") as archive:
        archive.addfile(entry("cat/link.png", type=type, linkname=target))
    assert "is a link" in place.refusal()


@pytest.mark.parametrize("type", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE])
def test_devices_in_a_tar_are_refused(place: Place, type: bytes) -> None:
    with tarfile.open(place.archive, "w") as archive:
        archive.addfile(entry("cat/device.png", type=type))
    assert "device" in place.refusal() or "damaged" in place.refusal()


def test_a_link_as_a_class_folder_is_refused_before_anything_is_written_through_it(
    place: Place, tmp_path: Path
) -> None:
    with tarfile.open(place.archive, "w") as archive:
        archive.addfile(entry("cat", type=tarfile.SYMTYPE, linkname=str(tmp_path)))
        archive.addfile(entry("cat/evil.png", size=len(picture())), io.BytesIO(picture()))
    assert "is a link" in place.refusal()


@pytest.mark.parametrize(
    ("kind", "told"), [(stat.S_IFLNK, "a link"), (stat.S_IFIFO, "a device"), (stat.S_IFCHR, "a device")]
)
def test_links_and_devices_in_a_zip_are_refused(place: Place, kind: int, told: str) -> None:
    place.pack(classes("cat", "dog"))
    with zipfile.ZipFile(place.archive, "a") as archive:
        info = zipfile.ZipInfo("cat/odd.png")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert told in place.refusal()


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_comes_twice_is_refused(place: Place, kind: str) -> None:
    place.pack(classes("cat", "dog"), kind)
    if kind == "zip":
        with zipfile.ZipFile(place.archive, "a") as zipped:
            zipped.writestr("cat/0.png", picture(99))
    else:
        with tarfile.open(place.archive, "a") as tarred:
            tarred.addfile(entry("./cat//0.png", size=len(picture())), io.BytesIO(picture()))
    assert "twice" in place.refusal()


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("cat/a.png", "cat/A.png"),
        ("cat/a.png", "Cat/b.png"),
        ("straße/a.png", "STRASSE/b.png"),
        ("\u00e9/a.png", "e\u0301/b.png"),
        ("cat/\u00e9.png", "cat/e\u0301.png"),
        ("\ufb01sh/a.png", "fish/b.png"),
        ("Train/cat/a.png", "train/cat/b.png"),
    ],
)
def test_names_that_a_disk_may_take_for_one_are_refused(place: Place, kind: str, first: str, second: str) -> None:
    files = classes("dog", "cow") | {first: picture(1), second: picture(2)}
    assert "differ only in" in place.pack(files, kind).refusal()


@pytest.mark.parametrize("odd", ["\x07", "\n", "\x7f", "\u202e", "\u2066", "\u200f", "\u2028", "\ufeff"])
def test_unseen_characters_in_class_names_are_refused(place: Place, odd: str) -> None:
    told = place.pack(classes("cat", f"do{odd}g"), "tar").refusal()
    assert f"U+{ord(odd):04X}" in told and odd not in told


def test_class_names_that_are_no_text_are_refused(place: Place) -> None:
    place.pack(classes("cat", "dXg"), "tar").edit(
        lambda data: data.__setitem__(slice(None), data.replace(b"dXg", b"d\xffg"))
    )
    assert "damaged" in place.refusal()  # checksum
    with tarfile.open(place.archive, "w", encoding="latin-1", format=tarfile.GNU_FORMAT) as archive:
        for name in ("cat/0.png", "d\xffg/0.png", "d\xffg/1.png"):
            archive.addfile(entry(name, size=len(picture())), io.BytesIO(picture()))
    assert "unseen characters" in place.refusal()


def test_long_class_names_are_refused(place: Place) -> None:
    told = place.pack(classes("cat", "d" * 200)).refusal()
    assert "200 characters" in told and len(told) < 300


# --- Refusals: sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bombs_are_refused_while_they_unpack(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "RATIO_FLOOR", 1_000_000)
    bombs = {f"cat/{i}.bmp": bytes(400_000) for i in range(20)}
    place.pack(classes("dog", count=1) | bombs, kind)
    if kind != "tar":
        assert "times its size" in place.refusal()


def test_a_bomb_that_is_no_picture_is_never_unpacked_from_a_zip_and_refused_in_a_tar(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_readers, "RATIO_FLOOR", 1_000_000)
    files = classes("cat", "dog") | {"zeros.bin": bytes(30_000_000)}
    assert "times its size" in place.pack(files, "tar.gz").refusal()
    assert place.pack(files, "zip").read().ignored == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_over_the_limit_is_refused_by_name(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_archive, "MAX_FILE_BYTES", 1000)
    files = classes("cat", "dog") | {"cat/big.png": picture(size=40)}
    assert "cat/big.png" in place.pack(files, kind).refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_bytes_in_all_are_refused(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "MAX_BYTES", 2000)
    assert "unpacks to more than" in place.pack(classes("cat", "dog", count=20), kind).refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_pictures_are_refused(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place.pack(classes("cat", "dog"), kind)
    monkeypatch.setattr(import_archive, "MAX_FILES", 5)
    assert "more than 5 pictures" in place.refusal()
    monkeypatch.setattr(import_archive, "MAX_FILES", 6)
    assert len(place.read().classes) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_entries_are_refused(place: Place, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (archive_readers, import_archive):
        monkeypatch.setattr(module, "MAX_ENTRIES", 20)
    files = classes("cat", "dog") | {f"notes/{i}.txt": b"" for i in range(20)}
    assert "more than 20 entries" in place.pack(files, kind).refusal()


def test_a_zip_with_an_endless_list_of_files_is_refused_before_it_is_read(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (archive_readers, import_archive):
        monkeypatch.setattr(module, "MAX_ENTRIES", 5000)
    monkeypatch.setattr(zipfile.ZipInfo, "_decodeExtra", lambda *_: pytest.fail("an entry was built"), raising=True)
    assert "entries" in place.pack({f"{i:060}.txt": b"" for i in range(6000)}).refusal()


@pytest.mark.parametrize("kind", ["zip", "zip-local"])
def test_sizes_that_a_zip_claims_are_not_believed(place: Place, kind: str) -> None:
    place.pack(classes("cat", "dog", count=2))

    def lie(data: bytearray) -> None:
        signature, offset = (b"PK\1\2", 24) if kind == "zip" else (b"PK\3\4", 22)
        at = data.find(signature)
        data[at + offset : at + offset + 4] = struct.pack("<I", 10)

    place.edit(lie)
    if kind == "zip":
        assert "damaged" in place.refusal()
    else:  # Python reads the list of files only
        assert len(place.read().classes) == 2


def test_a_zip_that_claims_less_than_it_holds_never_fills_the_memory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.pack(classes("cat", "dog") | {"cat/bomb.bmp": bytes(80_000_000)})
    tracemalloc.start()
    try:
        assert "cat/bomb.bmp" in place.refusal()
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


def test_encrypted_zips_are_refused(place: Place) -> None:
    def encrypt(data: bytearray) -> None:
        for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
            data[data.find(signature) + offset] |= 1

    assert "encrypted" in place.pack(classes("cat", "dog")).edit(encrypt).refusal()


@pytest.mark.parametrize(
    ("method", "name"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma"), (9, "deflate64"), (97, "97")]
)
def test_other_compression_in_a_zip_is_refused_by_name(place: Place, method: int, name: str) -> None:
    def claim(data: bytearray) -> None:
        at = data.find(b"PK\1\2")
        data[at + 10 : at + 12] = struct.pack("<H", method)

    assert name in place.pack(classes("cat", "dog")).edit(claim).refusal()


def test_files_that_overlap_in_a_zip_are_refused(place: Place) -> None:
    def overlap(data: bytearray) -> None:  # the second file points at the first
        at = data.find(b"PK\1\2", data.find(b"PK\1\2") + 1)
        data[at + 42 : at + 46] = bytes(4)

    assert "over each other" in place.pack(classes("cat", "dog")).edit(overlap).refusal()


def test_a_long_header_in_a_tar_is_refused_before_it_is_read(place: Place) -> None:
    with tarfile.open(place.archive, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry("cat/0.png", pax_headers={"comment": "x" * 50_000_000}))
    tracemalloc.start()
    try:
        assert "header of more than" in place.refusal()
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_tar_of_headers_in_headers_is_refused(place: Place) -> None:
    header = entry("x", type=b"x", size=0).tobuf()
    place.archive.write_bytes(header * 5000 + bytes(1024))
    assert "header" in place.refusal()


def test_a_tar_with_a_negative_size_is_refused(place: Place) -> None:
    block = bytearray(entry("cat/0.png").tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"\xff" * 10 + struct.pack(">h", -1024)
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    place.archive.write_bytes(bytes(block) * 2 + bytes(1024))
    assert "damaged" in place.refusal()


def test_xz_that_asks_for_too_much_memory_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "_MAX_DICTIONARY", 1 << 20)
    assert "damaged" in place.pack(classes("cat", "dog"), "tar.xz").refusal()


# --- The disk -------------------------------------------------------------------------------------------------


def test_a_disk_that_is_nearly_full_is_refused(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(archive_readers.shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 900_000_000))
    assert "0.9 GB free" in place.pack(classes("cat", "dog")).refusal()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_meanwhile_is_told_in_a_sentence(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write = Path.write_bytes

    def fill_up(path: Path, data: bytes) -> int:
        write(path, data[:10])
        raise OSError(code, os.strerror(code))

    place.pack(classes("cat", "dog", count=30))
    monkeypatch.setattr(Path, "write_bytes", fill_up)
    assert "disk is full" in place.refusal()
    assert place.written() == set()


def test_an_import_that_is_interrupted_leaves_nothing(place: Place) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    place.pack(classes("cat", "dog", count=40))
    with pytest.raises(KeyboardInterrupt):
        import_dataset(place.archive, place.into, progress=stop)
    assert place.written() == set()
