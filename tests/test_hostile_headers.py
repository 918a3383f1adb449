"""Headers of pictures, tables, parquet files and archives that let a few bytes cost much are refused or cut short."""

import io
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn import gradient, refusal
from packed import Sandbox, classes, pack, picture
from PIL import Image

from vit.data import tables
from vit.data.archives.import_archive import import_dataset
from vit.data.archives.name_encodings import encoding_of
from vit.data.layouts import labelled_files, table_columns
from vit.data.layouts.folder_structure import pictures_of
from vit.data.layouts.labelled_files import NoLabels, PictureLabels, labels_in, list_tables
from vit.data.layouts.layout import find_layout
from vit.data.layouts.table_columns import _is_number
from vit.data.packed import index
from vit.data.picture_trees import PackedTree
from vit.data.tables import TableTooLong, read_table
from vit.errors import InvalidDataset, InvalidImage
from vit.images.encode import encode_image
from vit.images.files.decode import count_frames, decode_image
from vit.images.files.tiff import read_tags
from vit.untrusted import TooMuchWork, limit_work

pytestmark = pytest.mark.usefixtures("short_refusals")


# --- Pictures -----------------------------------------------------------------------------------------------------


def overlapping_directories(count: int = 1000, size: int = 127_000) -> bytes:
    """Return a TIFF with directories of 4,096 entries each, which share nearly all of them."""
    data = bytearray(b"II*\0" + struct.pack("<I", 8) + bytes(size - 8))
    for place in range(8, size - 12, 12):
        data[place : place + 12] = struct.pack("<HHII", 4096, 4, 64, 8)
    for place in range(8, 8 + 12 * count, 12):
        data[place + 2 + 12 * 4096 : place + 6 + 12 * 4096] = struct.pack("<I", place + 12)
    return bytes(data)


def test_directories_of_a_tiff_that_overlap_are_not_all_read() -> None:
    assert read_tags(overlapping_directories()).pages <= 127_000 // (12 * 4096) + 1


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def bmp_with_run_lengths(width: int, height: int, runs: bytes) -> bytes:
    palette, start = bytes(1024), 14 + 40 + 1024
    header = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(runs), 0, 0, start) + header + palette + runs


def with_extensions(extensions: bytes) -> bytes:
    gif = encode_image(Image.new("P", (8, 8)), "GIF")
    start = gif.index(b"\x2c\0\0\0\0")
    return gif[:start] + extensions + gif[start:]


def large_progressive() -> bytes:
    """Return a JPEG of 36 megapixels with 20 more scans."""
    data = encode_image(Image.new("RGB", (6000, 6000)), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * 20 + b"\xff\xd9"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: b"\xff\xd8" + b"\xff" * 100_000, "header holds no picture"),
        (lambda: b"\xff\xd8" + b"\xff\0" * 100_000, "header holds no picture"),
        (large_progressive, "too many scans"),
        (
            lambda: picture()[:33] + chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(9))) * 101 + picture()[33:],
            "colour profiles",
        ),
        (lambda: bmp_with_run_lengths(4000, 4000, b"\1\1\0\0" * 4000), "run lengths"),
        (lambda: with_extensions(b"\x21\xfe\1a\0" * 200_000), "blocks"),
        (lambda: with_extensions(b"\x21\xfe" + b"\1a" * 200_000 + b"\0"), "blocks"),
        (lambda: with_extensions(b"\x21\xfe\0" * 200_000), "blocks"),
    ],
)
def test_picture_that_costs_much_to_read_is_refused(made: Callable[[], bytes], said: str) -> None:
    assert said in refusal(made())


def test_run_lengths_of_a_small_bmp_are_read() -> None:
    assert decode_image(bmp_with_run_lengths(20, 20, b"\x14\1\0\0" * 20)).size == (20, 20)


def test_limit_of_work_is_not_taken_for_damage() -> None:
    with pytest.raises(TooMuchWork), limit_work("a.tiff", 0):
        decode_image(encode_image(gradient(), "TIFF"))


# --- Tables -------------------------------------------------------------------------------------------------------


def from_tables(
    pictures: list[tuple[str, ...]], tables: list[tuple[str, ...]], read: Callable[[tuple[str, ...]], bytes]
) -> PictureLabels | NoLabels:
    return labels_in(list_tables(pictures, tables, read), pictures, "any")


def test_equal_names_in_many_folders_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def counted(names: tuple[str, ...]) -> None:
        nonlocal calls
        calls += 1

    monkeypatch.setattr(labelled_files, "split_of", counted)
    pictures = [(f"site {c}", f"{i}.jpg") for c in range(100) for i in range(20)]
    lines = "".join(f"site {c}/{i}.jpg,{'cat' if (c + i) % 3 else 'dog'}\n" for c, i in np.ndindex(100, 20))
    found = from_tables(pictures, [("labels.csv",)], lambda path: b"file,label\n" + lines.encode())
    assert isinstance(found, PictureLabels) and len(found.labels) == len(pictures)
    assert found.labels["site 4", "2.jpg"] == ("dog", "") and found.labels["site 4", "3.jpg"] == ("cat", "")
    assert calls < 3 * len(pictures)


def test_only_likely_columns_are_looked_up_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = set[str]()
    find = labelled_files._Index.find
    monkeypatch.setattr(
        labelled_files._Index, "find", lambda index, text, *rest: looked_up.add(text) or find(index, text, *rest)
    )
    rows = [[f"{i}.jpg", "ab"[i % 2], *(f"{i * 50 + k}" for k in range(50))] for i in range(3000)]
    content = "\n".join(map(",".join, [["file", "label", *(f"n{k}" for k in range(50))], *rows])).encode()
    found = from_tables([(f"{i}.jpg",) for i in range(3000)], [("labels.csv",)], lambda path: content)
    assert isinstance(found, PictureLabels) and len(found.labels) == 3000
    assert len(looked_up) < 70_000


@pytest.mark.parametrize(
    ("content", "suffix"),
    [
        (b"[" + b"{}," * 2_000_000 + b"{}]", ".json"),
        (b"[{" + b",".join(b'"%d":1' % i for i in range(200)) + b"}" + b",{}" * 84_000 + b"]", ".json"),
        (b'{"a":[' + b"1," * 1_000_001 + b"1]}", ".json"),
        (b"\n" * 2_000_001, ".csv"),
        (b",".join([b"1"] * 200) + b"\n" + b"1,2\n" * 84_000, ".csv"),
    ],
)
def test_table_that_takes_much_memory_is_not_read(content: bytes, suffix: str) -> None:
    with pytest.raises(TableTooLong, match="so it is not read"):
        read_table(content, suffix)


def test_tables_beyond_the_limits_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = [(f"{i}.jpg",) for i in range(6)]
    content = "file,label\n" + "".join(f"{i}.jpg,{'ab'[i % 2]}\n" for i in range(6))
    names = [(f"l{number:03}.csv",) for number in range(60)]
    found = from_tables(pictures, names, lambda path: content.encode())
    assert isinstance(found, PictureLabels)
    assert found.notes[-1] == "Only the first 50 tables are read, before l050.csv."
    monkeypatch.setattr(labelled_files, "_MOST_TABLE_BYTES", 100)
    found = from_tables(pictures, names, lambda path: content.encode())
    assert isinstance(found, PictureLabels) and "Only the first 2 tables" in found.notes[-1]


def test_columns_of_many_values_are_not_searched_for_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = 0

    def counted(name: str) -> None:
        nonlocal parsed
        parsed += 1

    monkeypatch.setattr(table_columns, "split_name", counted)
    values = {column: [f"{column} {row % (5 + 50 * (column > 9))}" for row in range(500)] for column in range(200)}
    assert table_columns.splits_in(values, None, "train_test") == {} and parsed == 50


def test_wide_rows_in_json_are_no_table() -> None:
    row = b"[" + b"1," * 300 + b"1]"
    assert read_table(b"[" + row + b"]", ".json") is None and read_table(b'{"train": [' + row + b"]}", ".json") is None


def test_empty_text_is_no_table() -> None:
    assert read_table(b"", ".txt") is None and read_table(b"\n \n", ".txt") is None
    assert isinstance(from_tables([("a.jpg",)], [("readme.txt",)], lambda path: b""), NoLabels)


def test_long_digits_are_compared_in_linear_time() -> None:
    assert not _is_number("1" * 200_000 + "x")
    assert all(map(_is_number, ["", "1", "-1.5", ".5", "+2e-3"])) and not any(map(_is_number, ["1.", ".", "e3", "1x"]))


def test_encoding_of_many_lines_is_found_from_a_part() -> None:
    lines = [f"Größe {i}".encode("cp1252") for i in range(20_000)]
    assert "größe".encode("cp1252").decode(encoding_of(lines)) == "größe"
    assert tables._text(b"\n".join(lines)).startswith("Größe 0\nGröße 1\n")


# --- Parquet and tar ----------------------------------------------------------------------------------------------


def packed_refusal(folder: Path) -> str:
    """Return the sentence for a folder, and check that nothing is left."""
    with pytest.raises(InvalidDataset) as caught:
        index.index_of(folder, bar=False)
    assert not list(folder.glob("pictures.bin*"))
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and len(message) <= 250
    return message


def test_parquet_that_writes_much_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    pictures = pa.array([bytes(1 << 20)] * 200, pa.binary()).dictionary_encode()
    pq.write_table(pa.table({"image": pictures, "label": [0, 1] * 100}), tmp_path / "a.parquet")
    assert "more than 200 times its size" in packed_refusal(tmp_path)


def test_full_disk_is_noticed_before_pictures_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"image": [picture()] * 2, "label": [0, 1]}), tmp_path / "a.parquet")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    assert "disk is too full" in packed_refusal(tmp_path)


def test_rows_without_content_are_limited(tmp_path: Path) -> None:
    rows = 1_000_000
    pq.write_table(pa.table({"image": pa.nulls(rows, pa.binary()), "label": pa.nulls(rows)}), tmp_path / "a.parquet")
    assert "more rows than its size can hold" in packed_refusal(tmp_path)


def test_label_that_is_not_utf8_is_refused_in_a_sentence(tmp_path: Path) -> None:
    buffers = [None, pa.py_buffer(struct.pack("<ii", 0, 1)), pa.py_buffer(b"\xff")]
    label = pa.Array.from_buffers(pa.string(), 1, buffers)
    pq.write_table(pa.table({"image": [b"x"], "label": label}), tmp_path / "a.parquet")
    assert "is a damaged parquet file" in packed_refusal(tmp_path)


@pytest.mark.parametrize(
    "label",
    [
        pa.nulls(2),
        pa.array([[0], [1, 2]]),
        pa.array([{"a": 1}, None]),
        pa.array(["cat", "dog"]).dictionary_encode(),
        pa.array([2**62, -(2**62)], pa.timestamp("us")),
        pa.array([2**30, 2**31 - 1], pa.date32()),
        pa.array([0, 1], pa.duration("s")),
        pa.array([1.5, 2.5]),
        pa.array([b"\xff", b"a"]),
    ],
    ids=lambda label: str(label.type),
)
def test_every_type_of_label_is_read_or_refused_in_a_sentence(tmp_path: Path, label: "pa.Array") -> None:
    pq.write_table(pa.table({"image": [picture(1), picture(2)], "label": label}), tmp_path / "a.parquet")
    try:
        assert len(index.index_of(tmp_path, bar=False).labels) > 0
    except InvalidDataset as error:
        assert str(error).endswith(".") and "\n" not in str(error)


@pytest.mark.parametrize("labels", [[["y" * 1000] * 1000] * 200, [[0] * 300_000]])
def test_lists_of_labels_that_take_much_memory_are_refused(tmp_path: Path, labels: list[list[object]]) -> None:
    pq.write_table(pa.table({"image": [b"x"] * len(labels), "label": labels}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 10_000
    assert "one label per row" in packed_refusal(tmp_path)


def test_name_that_claims_gigabytes_is_not_allocated(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("././@LongLink").tobuf(tarfile.GNU_FORMAT))
    header[124:136], header[156:157] = b"77777777777\0", b"L"
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * 32)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(1024))
    assert "a header is too long" in packed_refusal(tmp_path)


def test_tar_with_a_negative_size_is_refused(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a.jpg").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = b"\xff" * 10 + struct.pack(">h", -1024)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(4096))
    assert "damaged tar" in packed_refusal(tmp_path)


def test_tar_with_a_damaged_sparse_map_is_refused(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("a.jpg")
    entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "100"}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry)
    assert "damaged tar" in packed_refusal(tmp_path)


# --- Archives -----------------------------------------------------------------------------------------------------


def test_entries_of_a_small_archive_are_limited(tmp_path: Path) -> None:
    pack(tmp_path / "a", {}, "tar.gz")
    with tarfile.open(tmp_path / "a", "w:gz") as archive:
        for _ in range(30_000):
            archive.addfile(tarfile.TarInfo("a"))
    with pytest.raises(InvalidDataset, match="entries, the limit"):
        import_dataset(tmp_path / "a", tmp_path / "into")


def test_long_extra_fields_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", b"")
        archive.infolist()[0].extra = bytes(60_000)
    with pytest.raises(InvalidDataset, match="extra fields"):
        import_dataset(tmp_path / "a.zip", tmp_path / "into")


def test_long_names_are_stored_under_short_ones(tmp_path: Path) -> None:
    long = {"a/" + "\u0345\u0327" * 2000 + ".png": next(iter(classes("c").values()))}
    sandbox = Sandbox(tmp_path).pack(classes("a", "b") | long)
    assert sum(sandbox.read().counts["train"].values()) >= 2 and len(sandbox.pictures()) == 7
    assert all(len(Path(name).name.encode()) <= 255 for name in sandbox.written())


# --- Random changes -----------------------------------------------------------------------------------------------


def mutated(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 5, 20))):
        at = dice.randrange(len(changed))
        action = dice.randrange(4)
        if action == 0:
            changed[at] = dice.randrange(256)
        elif action == 1:
            changed[at : at + 4] = dice.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\1\0"))
        elif action == 2:
            changed[at:at] = changed[at : at + dice.randrange(60)] * dice.randrange(1, 20)
        else:
            del changed[at : at + dice.randrange(1, 30)]
        changed = changed or bytearray(b"\0")
    return bytes(changed)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["TIFF", "PNG", "JPEG", "GIF", "BMP", "WEBP", "AVIF"])
@pytest.mark.parametrize("seed", range(3))
def test_changed_pictures_are_read_or_refused_with_bounded_work(kind: str, seed: int) -> None:
    dice, file = random.Random(seed), io.BytesIO()
    more = {"save_all": True, "append_images": [gradient(), gradient()]} if kind in ("TIFF", "GIF", "PNG") else {}
    gradient().save(file, kind, **more)
    for _ in range(150):
        data = mutated(file.getvalue(), dice)
        with limit_work("a picture", 2):
            for read in (decode_image, count_frames, read_tags):
                try:
                    read(data)
                except InvalidImage as error:
                    assert str(error).endswith(".") and "\n" not in str(error)


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "content",
    [
        b"file,label\n" + b"".join(b"%d.jpg,%d\n" % (i, i % 3) for i in range(200)),
        b"".join(b'{"file_name": "%d.jpg", "label": "a%d"}\n' % (i, i % 3) for i in range(200)),
        b'{"images":[{"id":1,"file_name":"1.jpg"}],"categories":[{"id":2,"name":"a"}],"annotations":['
        b'{"image_id":1,"category_id":2}]}',
    ],
)
def test_changed_tables_are_read_or_left(content: bytes, seed: int) -> None:
    dice, pictures = random.Random(seed), [(f"{i}.jpg",) for i in range(200)]
    for _ in range(100):
        data = mutated(content, dice)
        for suffix in ("csv", "txt", "json", "jsonl"):
            with limit_work("a table", 2):
                from_tables(pictures, [(f"table.{suffix}",)], lambda path, data=data: data)  # type: ignore[misc]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "content",
    [
        b"id,split\n" + b"".join(b"%c/%d.jpg,t%s\n" % (97 + i % 2, i, b"rain" if i % 3 else b"est") for i in range(90)),
        b"".join(b"%d %d\n" % (i, i % 2) for i in range(90)),
        b"".join(b"test/%d.jpg\t%s 1 2\n" % (i, b"ab"[i % 2 :][:1]) for i in range(200, 230)),
        b'{"train": [["a/0.jpg", 0, "x"], ["b/1.jpg", 1, "y"]], "test": [["a/2.jpg", 0, "x"], ["b/3.jpg", 1, "y"]]}',
        b'[{"data":{"image":"/x/0-a.jpg"},"annotations":[{"result":[{"value":{"choices":["a"]}}]}]}]',
    ],
)
def test_changed_lists_of_splits_are_used_or_left(content: bytes, seed: int) -> None:
    dice = random.Random(seed)
    numbers = b"".join(b"%d %s/%d.jpg\n" % (i, b"ab"[i % 2 :][:1], i) for i in range(90))
    for _ in range(40):
        data = mutated(content, dice)
        for name in ("train_test_split.txt", "test.csv", "split.json"):
            tree = PackedTree()
            for i in range(90):
                tree.add(("ab"[i % 2], f"{i}.jpg"), "all_pictures")
            for i in range(200, 230):
                tree.add(("test", f"{i}.jpg"), "all_pictures")
            for table in (name, "images.txt"):
                tree.add((table,), "tables")
            with limit_work("a list", 5), suppress(InvalidDataset):
                layout = find_layout(tree, lambda path, data=data: numbers if path[0] == "images.txt" else data, "It")  # type: ignore[misc]
                pictures = [path for own in layout.splits.values() for one in own.values() for path in pictures_of(one)]
                assert len(pictures) == len(set(pictures))


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["parquet", "tar", "npz"])
@pytest.mark.parametrize("seed", range(3))
def test_changed_shards_are_read_or_refused(tmp_path: Path, kind: str, seed: int) -> None:
    dice, file = random.Random(seed), tmp_path / f"a.{kind}"
    if kind == "parquet":
        images = [{"bytes": picture(i), "path": ""} for i in range(8)]
        pq.write_table(pa.table({"image": images, "label": [0, 1] * 4}), file)
    elif kind == "npz":  # not compressed, so that most damage reaches the arrays
        np.savez(file, x=np.arange(8 * 64, dtype=np.uint8).reshape(8, 8, 8), y=np.arange(8) % 2)
    else:
        pack(file, {f"{i}.{k}": c for i in range(8) for k, c in (("png", picture(i)), ("cls", b"%d" % (i % 2)))}, "tar")
    content = file.read_bytes()
    for _ in range(100):
        file.write_bytes(mutated(content, dice))
        (tmp_path / index.INDEX).unlink(missing_ok=True)
        try:
            with limit_work("a shard", 2):
                index.index_of(tmp_path, bar=False)
        except InvalidDataset as error:
            assert str(error).endswith(".") and "\n" not in str(error)
