"""Damaged, hostile and non-dataset archives are refused in one sentence and leave no files."""

import errno
import gzip
import io
import os
import random
import shutil
import stat
import struct
import tarfile
import tracemalloc
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from packed import KINDS, Sandbox, classes, entry, pack, picture

from vit.data.archives import archive_readers, import_archive
from vit.data.archives.import_archive import import_dataset
from vit.errors import InvalidDataset

pytestmark = pytest.mark.usefixtures("short_refusals")

# --- Content ---------------------------------------------------------------------------------------------------


@contextmanager
def peak_below(most: int) -> Iterator[None]:
    """Check that the peak memory of the block is below this number of bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


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
def test_other_files_are_refused_by_their_kind(sandbox: Sandbox, content: bytes, told: str) -> None:
    sandbox.archive.write_bytes(content)
    assert told in sandbox.refusal()


def test_gzip_of_something_else_is_refused(sandbox: Sandbox) -> None:
    sandbox.archive.write_bytes(gzip.compress(b"digits " * 1000))
    assert "neither a zip nor a tar" in sandbox.refusal()


def test_missing_archive_is_refused(sandbox: Sandbox) -> None:
    assert "no archive" in sandbox.refusal()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.3, 0.9, 0.99])
def test_truncated_archive_is_refused(sandbox: Sandbox, kind: str, share: float) -> None:
    sandbox.pack(classes("cat", "dog", count=40), kind)
    content = sandbox.archive.read_bytes()
    if kind == "tar":
        content = content.rstrip(b"\0")
    sandbox.archive.write_bytes(content[: int(len(content) * share)])
    assert "damaged" in sandbox.refusal()


def test_tar_cut_between_two_files_is_refused(sandbox: Sandbox) -> None:
    sandbox.pack(classes("cat", "dog"), "tar")
    with tarfile.open(sandbox.archive) as archive:
        last = archive.getmembers()[-1].offset
    sandbox.archive.write_bytes(sandbox.archive.read_bytes()[:last])
    assert "damaged" in sandbox.refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_any_damage_leads_to_a_refusal_or_an_import(sandbox: Sandbox, kind: str) -> None:
    sandbox.pack(classes("cat", "dog"), kind)
    whole, chance = sandbox.archive.read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 4))):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        sandbox.archive.write_bytes(damaged)
        try:
            sandbox.read()
        except InvalidDataset:
            assert sandbox.written() == set()
        shutil.rmtree(sandbox.into, ignore_errors=True)


# --- Names ----------------------------------------------------------------------------------------------------

ESCAPES = (
    "../evil.png",
    "cat/../../evil.png",
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
def test_paths_outside_the_folder_are_stored_inside(sandbox: Sandbox, kind: str, name: str) -> None:
    result = sandbox.pack(classes("cat", "dog") | {name: picture()}, kind).read()
    assert {"cat", "dog"} <= {*result.classes} <= {"cat", "dog", "tmp", "server", "C:"}
    assert {path.name for path in sandbox.folder.iterdir()} == {"upload", "data"}
    assert {path.name for path in (sandbox.folder / "data").iterdir()} == {"pets"}


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_endless_folders_are_refused(sandbox: Sandbox, kind: str) -> None:
    assert "deep" in sandbox.pack(classes("cat", "dog", "a/" * 200), kind).refusal()


@pytest.mark.parametrize("type", [tarfile.SYMTYPE, tarfile.LNKTYPE])
@pytest.mark.parametrize("target", ["/etc/passwd", "../../evil", "cat/0.png"])
def test_links_in_a_tar_are_refused(sandbox: Sandbox, type: bytes, target: str) -> None:
    sandbox.pack(classes("cat", "dog"), "tar")
    with tarfile.open(sandbox.archive, "a") as archive:
        archive.addfile(entry("cat/link.png", type=type, linkname=target))
    assert "is a link" in sandbox.refusal()


@pytest.mark.parametrize("type", [tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.GNUTYPE_SPARSE])
def test_devices_in_a_tar_are_refused(sandbox: Sandbox, type: bytes) -> None:
    with tarfile.open(sandbox.archive, "w") as archive:
        archive.addfile(entry("cat/device.png", type=type))
    assert "device" in sandbox.refusal() or "damaged" in sandbox.refusal()


def test_link_as_a_class_folder_is_refused_before_anything_is_written_through_it(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    with tarfile.open(sandbox.archive, "w") as archive:
        archive.addfile(entry("cat", type=tarfile.SYMTYPE, linkname=str(tmp_path)))
        archive.addfile(entry("cat/evil.png", size=len(picture())), io.BytesIO(picture()))
    assert "is a link" in sandbox.refusal()


@pytest.mark.parametrize(
    ("kind", "told"), [(stat.S_IFLNK, "a link"), (stat.S_IFIFO, "a device"), (stat.S_IFCHR, "a device")]
)
def test_links_and_devices_in_a_zip_are_refused(sandbox: Sandbox, kind: int, told: str) -> None:
    sandbox.pack(classes("cat", "dog"))
    with zipfile.ZipFile(sandbox.archive, "a") as archive:
        info = zipfile.ZipInfo("cat/odd.png")
        info.external_attr = (kind | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert told in sandbox.refusal()


@pytest.mark.parametrize("odd", ["\x07", "\n", "\x7f", "\u202e", "\u2066", "\u200f", "\u2028", "\ufeff"])
def test_invisible_characters_in_class_names_are_refused(sandbox: Sandbox, odd: str) -> None:
    sentence = sandbox.pack(classes("cat", f"do{odd}g"), "tar").refusal()
    assert f"U+{ord(odd):04X}" in sentence and odd not in sentence


def test_changed_bytes_of_a_name_are_refused(sandbox: Sandbox) -> None:
    sandbox.pack(classes("cat", "dXg"), "tar").edit(
        lambda data: data.__setitem__(slice(None), data.replace(b"dXg", b"d\xffg"))
    )
    assert "damaged" in sandbox.refusal()  # checksum


def test_long_class_names_are_refused(sandbox: Sandbox) -> None:
    sentence = sandbox.pack(classes("cat", "d" * 200)).refusal()
    assert "200 characters" in sentence and len(sentence) < 300


# --- Sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_bombs_are_refused_while_they_unpack(sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "RATIO_FLOOR", 1_000_000)
    bombs = {f"cat/{i}.bmp": bytes(400_000) for i in range(20)}
    sandbox.pack(classes("dog", count=1) | bombs, kind)
    if kind != "tar":
        assert "times its size" in sandbox.refusal()


def test_non_picture_bomb_is_never_unpacked_from_a_zip_and_refused_in_a_tar(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_readers, "RATIO_FLOOR", 1_000_000)
    files = classes("cat", "dog") | {"zeros.bin": bytes(30_000_000)}
    assert "times its size" in sandbox.pack(files, "tar.gz").refusal()
    assert sandbox.pack(files, "zip").read().skipped == ("1 other file: no picture, or hidden",)


@pytest.mark.parametrize("kind", KINDS)
def test_picture_over_the_limit_is_refused_by_name(
    sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_archive, "MAX_FILE_BYTES", 1000)
    files = classes("cat", "dog") | {"cat/big.png": picture(size=40)}
    assert "cat/big.png" in sandbox.pack(files, kind).refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_bytes_in_total_are_refused(sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "MAX_BYTES", 2000)
    assert "unpacks to more than" in sandbox.pack(classes("cat", "dog", count=20), kind).refusal()


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_pictures_are_refused(sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox.pack(classes("cat", "dog"), kind)
    monkeypatch.setattr(import_archive, "MAX_FILES", 5)
    assert "more than 5 pictures" in sandbox.refusal()
    monkeypatch.setattr(import_archive, "MAX_FILES", 6)
    assert len(sandbox.read().classes) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_too_many_entries_are_refused(sandbox: Sandbox, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "MAX_ENTRIES", 20)
    files = classes("cat", "dog") | {f"notes/{i}.txt": b"" for i in range(20)}
    assert "more than 20 entries" in sandbox.pack(files, kind).refusal()


def test_zip_with_an_endless_list_of_files_is_refused_before_it_is_read(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_readers, "MAX_ENTRIES", 5000)
    monkeypatch.setattr(zipfile.ZipInfo, "_decodeExtra", lambda *_: pytest.fail("an entry was built"), raising=True)
    assert "entries" in sandbox.pack({f"{i:060}.txt": b"" for i in range(6000)}).refusal()


@pytest.mark.parametrize("kind", ["zip", "zip-local"])
def test_claimed_sizes_of_a_zip_are_not_trusted(sandbox: Sandbox, kind: str) -> None:
    sandbox.pack(classes("cat", "dog", count=2))

    def lie(data: bytearray) -> None:
        signature, offset = (b"PK\1\2", 24) if kind == "zip" else (b"PK\3\4", 22)
        at = data.find(signature)
        data[at + offset : at + offset + 4] = struct.pack("<I", 10)

    sandbox.edit(lie)
    if kind == "zip":
        assert "damaged" in sandbox.refusal()
    else:  # Python reads only the list of files
        assert len(sandbox.read().classes) == 2


def test_zip_that_claims_less_than_it_holds_never_fills_the_memory(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox.pack(classes("cat", "dog") | {"cat/bomb.bmp": bytes(80_000_000)})
    with peak_below(200_000_000):
        assert "cat/bomb.bmp" in sandbox.refusal()


def test_encrypted_zips_are_refused(sandbox: Sandbox) -> None:
    def encrypt(data: bytearray) -> None:
        for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
            data[data.find(signature) + offset] |= 1

    assert "encrypted" in sandbox.pack(classes("cat", "dog")).edit(encrypt).refusal()


@pytest.mark.parametrize(
    ("method", "name"), [(zipfile.ZIP_BZIP2, "bzip2"), (zipfile.ZIP_LZMA, "lzma"), (9, "deflate64"), (97, "97")]
)
def test_other_compression_in_a_zip_is_refused_by_name(sandbox: Sandbox, method: int, name: str) -> None:
    def claim(data: bytearray) -> None:
        at = data.find(b"PK\1\2")
        data[at + 10 : at + 12] = struct.pack("<H", method)

    assert name in sandbox.pack(classes("cat", "dog")).edit(claim).refusal()


def test_overlapping_files_in_a_zip_are_refused(sandbox: Sandbox) -> None:
    def overlap(data: bytearray) -> None:  # the second file points at the first
        at = data.find(b"PK\1\2", data.find(b"PK\1\2") + 1)
        data[at + 42 : at + 46] = bytes(4)

    assert "overlap" in sandbox.pack(classes("cat", "dog")).edit(overlap).refusal()


def test_long_header_in_a_tar_is_refused_before_it_is_read(sandbox: Sandbox) -> None:
    with tarfile.open(sandbox.archive, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry("cat/0.png", pax_headers={"comment": "x" * 50_000_000}))
    with peak_below(5_000_000):
        assert "header of more than" in sandbox.refusal()


def test_tar_of_nested_headers_is_refused(sandbox: Sandbox) -> None:
    header = entry("x", type=b"x", size=0).tobuf()
    sandbox.archive.write_bytes(header * 5000 + bytes(1024))
    assert "header" in sandbox.refusal()


def test_tar_with_a_negative_size_is_refused(sandbox: Sandbox) -> None:
    block = bytearray(entry("cat/0.png").tobuf(tarfile.USTAR_FORMAT))
    block[124:136] = b"\xff" * 10 + struct.pack(">h", -1024)
    block[148:156] = b"        "
    block[148:156] = f"{sum(block):06o}\0 ".encode()
    sandbox.archive.write_bytes(bytes(block) * 2 + bytes(1024))
    assert "damaged" in sandbox.refusal()


def test_xz_that_requires_too_much_memory_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_readers, "_MAX_DICTIONARY", 1 << 20)
    assert "damaged" in sandbox.pack(classes("cat", "dog"), "tar.xz").refusal()


# --- The disk -------------------------------------------------------------------------------------------------


def test_nearly_full_disk_is_refused(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(archive_readers.shutil, "disk_usage", lambda _: usage(1 << 40, 1 << 40, 900_000_000))
    assert "0.9 GB free" in sandbox.pack(classes("cat", "dog")).refusal()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_disk_that_fills_up_during_the_import_is_reported_in_one_sentence(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write = Path.write_bytes

    def fill_up(path: Path, data: bytes) -> int:
        write(path, data[:10])
        raise OSError(code, os.strerror(code))

    sandbox.pack(classes("cat", "dog", count=30))
    monkeypatch.setattr(Path, "write_bytes", fill_up)
    assert "disk is full" in sandbox.refusal()
    assert sandbox.written() == set()


def test_interrupted_import_leaves_nothing(sandbox: Sandbox) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    sandbox.pack(classes("cat", "dog", count=40))
    with pytest.raises(KeyboardInterrupt):
        import_dataset(sandbox.archive, sandbox.into, progress=stop)
    assert sandbox.written() == set()


def test_write_protected_folder_is_reported_in_one_sentence(
    tmp_path_factory: pytest.TempPathFactory, read_only: Any
) -> None:
    content = pack(tmp_path_factory.mktemp("archive") / "pets.zip", classes("cat", "dog")).parent
    with read_only(content) as closed:
        for into in (closed / "pets", closed / "deep" / "pets"):
            with pytest.raises(InvalidDataset, match=r"was not imported: Permission denied\."):
                import_dataset(closed / "pets.zip", into)
        assert [path.name for path in closed.iterdir()] == ["pets.zip"]
