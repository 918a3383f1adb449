"""Uploaded pictures on the server's disk: private, limited, and found only by their key."""

import hashlib
import os
import stat
import time
from pathlib import Path

import pytest

from pages.server import uploaded_pictures


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    return tmp_path / "pictures"


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_picture_is_found_by_the_hash_of_its_content(shelf: Path) -> None:
    key = uploaded_pictures.store(b"a picture")
    assert key == hashlib.sha256(b"a picture").hexdigest() == uploaded_pictures.store(b"a picture")
    assert uploaded_pictures.find(key) == b"a picture" and len(list(shelf.iterdir())) == 1


def test_several_are_found_with_their_names_by_one_key(shelf: Path) -> None:
    uploads = [uploaded_pictures.Upload.of(f"{content}.png", content.encode()) for content in ("one", "two", "three")]
    key = uploaded_pictures.store_all(uploads)
    assert [one.data for one in uploaded_pictures.find_all(key)] == [b"one", b"two", b"three"]
    (shelf / uploads[1].key).unlink()
    assert [(one.name, one.data) for one in uploaded_pictures.find_all(key)] == [
        ("one.png", b"one"), ("three.png", b"three"),
    ]  # fmt: skip
    assert uploaded_pictures.store_all([]) == ""
    hostile = [uploaded_pictures.store(content) for content in (b"\xff\n" * 500, b'[["a", 1], "b", {}]', b"{}", b"[[")]
    for other in ("", "../secret", uploads[0].key, *hostile):
        assert uploaded_pictures.find_all(other) == []


def test_only_the_server_can_read_the_folder(shelf: Path) -> None:
    shelf.mkdir(mode=0o755)
    path = shelf / uploaded_pictures.store(b"a picture")
    assert stat.S_IMODE(shelf.stat().st_mode) == 0o700 and stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("key", ["", "../secret", "a" * 63, "A" * 64, "a" * 64, "a" * 64 + "\n", "é" * 64])
def test_another_key_opens_nothing(shelf: Path, key: str) -> None:
    uploaded_pictures.store(b"a picture")
    (shelf.parent / "secret").write_bytes(b"secret")
    assert uploaded_pictures.find(key) is None


def test_content_that_does_not_match_its_name_is_not_shown(shelf: Path) -> None:
    keys = [uploaded_pictures.store(content) for content in (b"one", b"two")]
    (shelf / keys[0]).write_bytes(b"another")
    (shelf / keys[1]).unlink()
    (shelf.parent / "elsewhere").write_bytes(b"two")
    (shelf / keys[1]).symlink_to(shelf.parent / "elsewhere")
    assert [uploaded_pictures.find(key) for key in keys] == [None, None]


def test_picture_is_deleted_a_day_after_it_was_last_opened(shelf: Path) -> None:
    keys = [uploaded_pictures.store(content) for content in (b"one", b"two")]
    for key in keys:
        age(shelf / key, uploaded_pictures.DAY - 60)
    assert uploaded_pictures.find(keys[0]) == b"one"
    age(shelf / keys[1], uploaded_pictures.DAY + 60)
    assert uploaded_pictures.find(keys[1]) is None and [path.name for path in shelf.iterdir()] == keys[:1]


def test_least_recently_opened_pictures_are_deleted_first(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_pictures, "MOST_PICTURES", 2)
    monkeypatch.setattr(uploaded_pictures, "MOST_BYTES", 100)
    keys = []
    for number, content in enumerate((b"one", b"two", b"three")):
        keys.append(uploaded_pictures.store(content))
        age(shelf / keys[-1], 100 - number)
    assert {path.name for path in shelf.iterdir()} == set(keys[1:])
    large = uploaded_pictures.store(b"4" * 96)  # leaves four bytes
    assert {path.name for path in shelf.iterdir()} == {large}
    assert uploaded_pictures.store(b"5" * 101) == ""


def test_unwritable_folder_stores_nothing(shelf: Path) -> None:
    shelf.write_text("no folder")
    assert uploaded_pictures.store(b"a picture") == "" and uploaded_pictures.find("a" * 64) is None


def test_full_disk_stores_nothing(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploaded_pictures, "FREE_BYTES", 1 << 62)
    assert uploaded_pictures.store(b"a picture") == "" and not list(shelf.iterdir())
