"""Pictures are named as their owner named them, whatever the names under which they are stored."""

import json
import shutil
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packed import INPUT, Files, Sandbox, classes, picture

from pages.looking.dataset_pictures import choose_test_pictures
from vit.data.archives.archive_names import stored_names
from vit.data.datasets import load_dataset
from vit.data.own_names import FILE
from vit.data.survey import survey
from vit.exports import contact_sheet

ODD = [
    "A.png", "a.PNG", "CON.png", "com1.JPEG", "dots.png...", "space.png ", "a:b?.png", "y" * 300 + ".png", "line\n.png",
    "e\u0301.png", "\u00e9.png", "<b>&amp;.png", "\u202egnp.png", "back\\slash.png", "../../up.png", "000000.png",
    "猫.png", " lead.png", "😀\u200d.png", "%s;rm.png", "lost+found.png", "nul .png",
]  # fmt: skip


def names_of(sandbox: Sandbox, budget: int = 1 << 20) -> list[str]:
    dataset = load_dataset(sandbox.spec, INPUT, budget=budget, workers=0)
    parts = (dataset.train, dataset.validation, dataset.test)
    return sorted(part.name(index) for part in parts for index in range(len(part.labels)))


@pytest.mark.parametrize("kind", ["zip", "tar"])
@pytest.mark.parametrize("budget", [0, 1 << 20])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_odd_names_are_stored_safely_and_shown_as_they_were(sandbox: Sandbox, kind: str, budget: int) -> None:
    inside = {f"pets/cat/{name}": picture(number) for number, name in enumerate(ODD) if ".." not in name[:2]}
    sandbox.pack(classes("pets/dog") | inside, kind).read()
    expected = [name.removeprefix("pets/") for name in inside] + [f"dog/{number}.png" for number in range(3)]
    assert names_of(sandbox, budget) == sorted(expected)
    stored = [Path(name).name for name in sandbox.pictures() if "/cat/" in name]
    assert len({unicodedata.normalize("NFKC", name).casefold() for name in stored}) == len(inside)
    assert all(name.isprintable() and not {*name} & {*'<>:"\\|?*'} and len(name.encode()) <= 255 for name in stored)


def test_plain_names_need_no_file_of_names(sandbox: Sandbox) -> None:
    files = {f"photos/bird/{name}": picture(i) for i, name in enumerate(("x.JPEG", "Ä (1).png", "n01_b.jpg"))}
    sandbox.pack(classes("photos/dog") | files).read()
    assert {f"data/pets/bird/{name}" for name in ("x.JPEG", "Ä (1).png", "n01_b.jpg")} <= sandbox.written()
    assert not (sandbox.into / FILE).exists()
    assert "bird/x.JPEG" in names_of(sandbox)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_equal_names_are_both_kept(sandbox: Sandbox) -> None:
    twice: Files = {"cat/0.png": picture(1), "./cat//0.png": picture(2), "cat/../cat/0.png": picture(3)}
    sandbox.pack(classes("dog") | twice, "tar").read()
    assert len(list((sandbox.into / "cat").iterdir())) == 3
    assert [name for name in names_of(sandbox) if "cat" in name] == sorted(
        ["cat//0.png", "cat/../cat/0.png", "cat/0.png"]
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [("a:b", "a?b"), ("Cat", "cat"), ("con", "CON"), ("straße", "STRASSE"), ("\ufb01sh", "fish"), ("x.", "x")],
)
def test_classes_are_shown_under_their_own_names(sandbox: Sandbox, first: str, second: str) -> None:
    result = sandbox.pack(classes(first, second, "dog")).read()
    assert result.classes == tuple(sorted((first, second, "dog"), key=lambda name: result.classes.index(name)))
    assert {name.partition("/")[0] for name in names_of(sandbox)} == {first, second, "dog"}


def test_names_that_would_be_read_as_masks_are_numbers_in_the_folder(sandbox: Sandbox) -> None:
    names = [f"{i}{end}.png" for i in range(4) for end in ("", "_mask")]
    files = {f"images/{name}": picture(number) for number, name in enumerate(names)}
    table = "file,label\n" + "".join(f"{name},{('cat', 'dog')[i // 2 % 2]}\n" for i, name in enumerate(names))
    result = sandbox.pack(files | {"labels.csv": table.encode()}).read()
    assert sum(sum(own.values()) for own in result.counts.values()) == 8
    assert names_of(sandbox) == sorted(Path(name).name for name in files)
    assert {Path(name).stem for name in sandbox.pictures() if name.endswith("png")} == {f"{i:06}" for i in range(4)}


def test_uploads_of_earlier_versions_open(sandbox: Sandbox) -> None:
    for name in ("cat", "dog"):
        (sandbox.into / name).mkdir(parents=True)
        for number in range(3):
            (sandbox.into / name / f"{number:06}.png").write_bytes(picture(number))
    earlier = [f"{name}/{number:06}.png" for name in ("cat", "dog") for number in range(3)]
    assert names_of(sandbox) == earlier
    for damaged in (b"[]", b"{", json.dumps({"cat/000000.png": 5}).encode()):
        (sandbox.into / FILE).write_bytes(damaged)
        assert names_of(sandbox) == earlier


def test_pages_and_sheets_name_pictures(sandbox: Sandbox) -> None:
    names = [f"{name}/photo:{i}.png" for name in ("cat", "dog") for i in range(5)]
    files = {name: picture(number) for number, name in enumerate(names)}
    sandbox.pack(files | {"dog/twin.png": files["cat/photo:1.png"]}).read()
    checkpoint: Any = SimpleNamespace(preprocess=INPUT)
    on_sheet = contact_sheet.pictures_of(checkpoint, sandbox.spec)
    assert {*files} > {one.name for one in on_sheet} == {one.name for one in choose_test_pictures(sandbox.spec, "data")}
    assert {name for pair in survey(sandbox.spec).repeats for name in pair} == {"cat/photo:1.png", "dog/twin.png"}


def test_packed_pictures_have_their_own_names(sandbox: Sandbox) -> None:
    folder = sandbox.into
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    arrays = {f"{split}_images": random.integers(0, 255, (10, 8, 8), np.uint8) for split in ("train", "val", "test")}
    labels = {f"{split}_labels": np.arange(10)[:, None] % 2 for split in ("train", "val", "test")}
    np.savez(folder / "mnist.npz", **arrays, **labels)  # type: ignore[arg-type]
    packed = load_dataset(f"folder:{folder}", INPUT)
    assert [packed.test.name(i) for i in range(2)] == [f"mnist.npz/test_images.npy/row {i}" for i in range(2)]
    sandbox.archive.write_bytes((folder / "mnist.npz").read_bytes())
    shutil.rmtree(folder)
    sandbox.read()
    assert {"test_images.npy/row 0", "train_images.npy/row 9"} <= {*names_of(sandbox)}


def test_stored_names_are_distinct_among_other_names() -> None:
    assert stored_names(["x", "x", "X 2", "x"], ["X"]) == ["x 2", "x 3", "X 2 2", "x 4"]
