"""ZIP and TAR archives of class folders become datasets, and omitted files are named."""

import lzma
import random
import unicodedata
from pathlib import Path

import pytest
from packed import INPUT, KINDS, Imported, Sandbox, classes, pack, picture
from PIL import Image

import vit
from vit.data.archives import import_archive
from vit.data.archives.import_archive import SkippedFiles, import_dataset, left_out
from vit.data.datasets import load_dataset
from vit.errors import InvalidDataset
from vit.images.encode import encode_image


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_archive_is_recognised_by_its_content(sandbox: Sandbox, kind: str) -> None:
    files = classes("cat", "dog", count=20)
    result = sandbox.pack(files, kind).read()
    assert result.classes == ("cat", "dog")
    assert result.counts == {
        split: {"cat": n, "dog": n} for split, n in (("train", 15), ("validation", 3), ("test", 2))
    }
    assert result.skipped == ()
    assert sandbox.written() == {f"data/pets/{name}" for name in files}


def test_files_keep_their_bytes(sandbox: Sandbox) -> None:
    files = classes("cat", "dog")
    shuffled = dict(random.Random(1).sample(sorted(files.items()), len(files)))
    sandbox.pack(shuffled).read()
    assert {name: (sandbox.into / name).read_bytes() for name in files} == files


def test_imported_dataset_loads_with_the_reported_counts(sandbox: Sandbox) -> None:
    result = sandbox.pack(classes("cat", count=30) | classes("dog", count=11)).read()
    dataset = load_dataset(sandbox.spec, INPUT)
    assert dataset.classes == result.classes
    for split in ("train", "validation", "test"):
        pictures = getattr(dataset, split)
        assert pictures.labels.bincount().tolist() == [result.counts[split][name] for name in result.classes]


def test_package_exports_the_function() -> None:
    assert vit.import_dataset is import_dataset


def test_first_of_several_validation_splits_is_kept_and_the_other_named(sandbox: Sandbox) -> None:
    splits = ("train", "test", "val", "valid")
    files = {k: v for split in splits for k, v in classes(f"{split}/cat", f"{split}/dog", count=1).items()}
    result = sandbox.pack(files).read()
    assert result.counts["validation"] == {"cat": 1, "dog": 1}
    assert [line.partition(":")[0] for line in result.skipped] == ["valid/cat/0.png", "valid/dog/0.png"]


def test_unlabelled_test_pictures_are_left_out_and_counted(sandbox: Sandbox) -> None:
    result = sandbox.pack(classes("train/cat", "train/dog", count=10) | classes("test", count=30)).read()
    assert result.counts["test"] == {"cat": 1, "dog": 1}
    assert len(result.skipped) == 1 and result.skipped[0].startswith("test/: 30 pictures")


@pytest.mark.parametrize("root", ["pets/", "a/b/", "train/"])
def test_single_folders_around_everything_are_unwrapped(sandbox: Sandbox, root: str) -> None:
    result = sandbox.pack(classes(f"{root}cat", f"{root}dog") | {"readme.txt": b"hi"}).read()
    assert result.classes == ("cat", "dog")
    assert (sandbox.into / "cat/0.png").is_file()


def test_folder_of_the_same_name_in_every_class_is_unwrapped(sandbox: Sandbox) -> None:
    files = classes("train/cat/images", "train/dog/images") | classes("val/cat/images", "val/dog/images")
    assert sandbox.pack(files).read().counts["test"] == {"cat": 3, "dog": 3}


def test_split_in_a_folder_of_its_own_name_is_unwrapped(sandbox: Sandbox) -> None:
    files = classes("train/train/cat", "train/train/dog", "val/val/cat", "val/val/dog")
    assert sandbox.pack(files).read().counts["test"] == {"cat": 3, "dog": 3}


def test_multi_stream_xz_is_read_whole(sandbox: Sandbox) -> None:
    content = pack(sandbox.archive, classes("cat", "dog"), "tar").read_bytes()
    half = len(content) // 2
    sandbox.archive.write_bytes(lzma.compress(content[:half]) + bytes(8) + lzma.compress(content[half:]) + bytes(4))
    assert sum(sum(own.values()) for own in sandbox.read().counts.values()) == 6


def test_wrong_checksum_after_the_last_file_is_detected(sandbox: Sandbox) -> None:
    sandbox.pack(classes("cat", "dog"), "tar.gz").edit(lambda data: data.__setitem__(-8, data[-8] ^ 1))
    assert "damaged" in sandbox.refusal()


def test_classes_may_be_named_train_pool_and_valid(sandbox: Sandbox) -> None:
    assert sandbox.pack(classes("train", "valid", "pool")).read().classes == ("pool", "train", "valid")


def test_junk_is_ignored_and_counted(sandbox: Sandbox) -> None:
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
    result = sandbox.pack(classes("pets/cat", "pets/dog") | junk).read()
    assert result.skipped == (f"{len(junk)} other files: no picture, or hidden",)
    assert len(sandbox.pictures()) == 6


def test_undecodable_pictures_are_named_with_the_reason(sandbox: Sandbox) -> None:
    bad = {
        "cat/broken.png": b"\x89PNG nothing",
        "cat/empty.jpg": b"",
        "dog/photo.heic": b"\0\0\0\x18ftypheic" + bytes(9),
    }
    result = sandbox.pack(classes("cat", "dog") | bad).read()
    assert {line.partition(":")[0] for line in result.skipped} == set(bad)
    assert any("HEIC" in line for line in result.skipped) and any("empty" in line for line in result.skipped)
    assert len(sandbox.pictures()) == 6


def test_pictures_outside_the_class_folders_are_named(sandbox: Sandbox) -> None:
    stray = {"cover.png": picture(1), "pets/title.png": picture(2), "pets/cat/masks/0.png": picture(3)}
    result = sandbox.pack(classes("pets/cat", "pets/dog") | stray).read()
    assert [line.partition(":")[0] for line in result.skipped] == ["cover.png", "pets/title.png", "pets/cat/masks/"]
    assert sum(own["cat"] for own in result.counts.values()) == 3


def test_omissions_are_recorded_beside_the_classes(sandbox: Sandbox) -> None:
    bad = {"cat/broken.png": b"\x89PNG nothing", "cover.png": picture(1), "readme.txt": b"hi", ".DS_Store": b"x"}
    sandbox.pack(classes("cat", "dog") | bad).read()
    note = left_out(sandbox.into)
    assert [line.partition(":")[0] for line in note.lines[:-1]] == ["cat/broken.png", "cover.png"] and note.total == 3
    assert note.lines[-1].startswith("2 other files")
    assert load_dataset(sandbox.spec, INPUT).classes == ("cat", "dog")


def test_list_of_omissions_is_limited_to_the_first(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_archive, "_NOTED_LINES", 2)
    result = sandbox.pack(classes("cat", "dog") | {f"cat/bad{i}.png": b"no" for i in range(5)}).read()
    assert [line.partition(":")[0] for line in result.skipped] == ["cat/bad0.png", "cat/bad1.png"]
    assert left_out(sandbox.into).total == 5


def test_no_omissions_are_shown_if_there_are_none_or_the_record_is_unreadable(sandbox: Sandbox) -> None:
    sandbox.pack(classes("cat", "dog")).read()
    assert left_out(sandbox.into) == left_out(sandbox.folder / "nowhere") == SkippedFiles()
    for damaged in (b"", b"[]", b"{}", b'{"lines": 1, "total": 2}', b"\xff"):
        (sandbox.into / import_archive._NOTE).write_bytes(damaged)
        assert left_out(sandbox.into) == SkippedFiles()


def test_stacks_whose_other_pages_are_not_used_are_counted(sandbox: Sandbox) -> None:
    page = Image.new("L", (8, 8))
    stack = encode_image(page, "TIFF", save_all=True, append_images=[page, page])
    sandbox.pack(classes("cat", "dog") | {"cat/a.tif": stack, "dog/b.tif": encode_image(page, "TIFF")}).read()
    assert left_out(sandbox.into).notes == ("TIFF files with several pages, of which the first is used: 1.",)


def test_accents_in_zips_without_the_utf8_flag_are_decoded(sandbox: Sandbox) -> None:
    def unmark(data: bytearray) -> None:  # as the zips of macOS: UTF-8 without its flag
        for signature, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
            at = -1
            while (at := data.find(signature, at + 1)) >= 0:
                data[at + offset + 1] &= ~0x08

    decomposed = unicodedata.normalize("NFD", "éléphant")
    result = sandbox.pack(classes(decomposed, "日本")).edit(unmark).read()
    assert result.classes == ("éléphant", "日本")


@pytest.mark.parametrize("kind", KINDS)
def test_progress_counts_the_archives_bytes(sandbox: Sandbox, kind: str) -> None:
    steps: list[tuple[int, int]] = []
    sandbox.pack(classes("cat", "dog"), kind)
    import_dataset(sandbox.archive, sandbox.into, progress=lambda done, total: steps.append((done, total)))
    size = sandbox.archive.stat().st_size
    assert steps == sorted(steps) and steps[-1] == (size, size) and {total for _, total in steps} == {size}


def test_empty_folder_is_filled(sandbox: Sandbox) -> None:
    sandbox.into.mkdir(parents=True)
    assert sandbox.pack(classes("cat", "dog")).read().classes == ("cat", "dog")


def test_nonempty_folder_is_not_changed(sandbox: Sandbox) -> None:
    sandbox.into.mkdir(parents=True)
    (sandbox.into / "mine.txt").write_text("keep")
    assert "not empty" in sandbox.pack(classes("cat", "dog")).refusal()
    assert sandbox.written() == {"data/pets/mine.txt"}


def test_two_imports_into_one_folder_leave_the_first(sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.pack(classes("cat", "dog"))
    first: list[Imported] = []

    def meanwhile(done: int, total: int) -> None:
        if not first:
            first.append(sandbox.read())

    with pytest.raises(InvalidDataset, match="not empty"):
        import_dataset(sandbox.archive, sandbox.into, progress=meanwhile)
    assert len(sandbox.written()) == 6
