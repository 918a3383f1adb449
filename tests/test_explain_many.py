"""Several pictures at once: `explain` into a folder, and `vit.heatmap` of a list."""

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Command, check_mistake
from PIL import Image

import vit


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Three pictures in unsorted order, two of them of one name."""
    paths = [tmp_path / "b" / "cat.png", tmp_path / "a" / "cat.png", tmp_path / "a" / "<b>&.png"]
    for seed, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        pixels = np.random.default_rng(seed).integers(0, 256, (30 + seed, 40, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
    return paths


def test_each_picture_is_drawn_as_alone(command: Command, saved: Path, photos: list[Path], tmp_path: Path) -> None:
    out, options = tmp_path / "maps", ("--checkpoint", saved, "--method=relevance", "--target=cat")
    result = command("explain", *photos, *options, "--out", out)
    assert (result.status, result.out.strip()) == (0, str(out))
    for photo, name in zip(photos, ("cat.png", "cat-2.png", "<b>&.png"), strict=True):
        assert command("explain", photo, *options, "--out", tmp_path / "one.png").status == 0
        assert np.array_equal(Image.open(out / name), Image.open(tmp_path / "one.png")), name


def test_unreadable_picture_costs_one_line(command: Command, saved: Path, photos: list[Path], tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"nothing")
    files = [photos[0], tmp_path / "bad.png", tmp_path / "nowhere.png", photos[1]]
    result = command("explain", *files, "--checkpoint", saved, "--out", tmp_path / "maps")
    assert result.status == 2
    said = [line for line in result.err.splitlines() if line.startswith(str(tmp_path))]
    assert len(said) == 2 and "bad.png: This file is not a picture" in said[0] and "nowhere.png cannot be" in said[1]
    assert {path.name for path in (tmp_path / "maps").iterdir()} == {"cat.png", "cat-2.png"}


def test_several_pictures_need_a_folder(command: Command, saved: Path, photos: list[Path], tmp_path: Path) -> None:
    result = command("explain", *photos, "--checkpoint", saved, "--out", tmp_path / "map.png")
    check_mistake(result, "3 pictures do not fit into one file. Name a folder: --out FOLDER.")
    result = command("explain", photos[0], "--checkpoint", saved, "--out", tmp_path / "map.jpg")
    check_mistake(result, "--out must be a folder or end in .png or .npz, not 'map.jpg'.")
    (tmp_path / "file").write_bytes(b"")
    result = command("explain", photos[0], "--checkpoint", saved, "--out", tmp_path / "file")
    check_mistake(result, "file cannot be written: File exists.")


@pytest.mark.parametrize("method", ["attention", "relevance"])
def test_maps_of_a_list_equal_those_of_each_picture(
    checkpoint: vit.Checkpoint, photos: list[Path], method: str
) -> None:
    images = [Image.open(path) for path in photos]
    together = vit.heatmap(checkpoint, images, method)
    assert together.shape == (3, 4, 4)
    assert all(
        torch.equal(one, vit.heatmap(checkpoint, image, method)) for one, image in zip(together, images, strict=True)
    )


def test_empty_list_is_refused(checkpoint: vit.Checkpoint) -> None:
    with pytest.raises(vit.UserError, match="There is no picture to explain"):
        vit.heatmap(checkpoint, [])


def test_folder_is_explained_picture_by_picture(
    command: Command, saved: Path, photos: list[Path], tmp_path: Path
) -> None:
    nested = tmp_path / "photos"
    (nested / "May").mkdir(parents=True)
    for path in (nested / "first.png", nested / "May" / "first.png"):
        Image.open(photos[0]).save(path)
    (nested / "notes.txt").write_text("no picture")
    result = command("explain", nested, "--checkpoint", saved, "--out", tmp_path / "maps")
    assert result.status == 0, result.err
    assert sorted(file.name for file in (tmp_path / "maps").iterdir()) == ["May-first.png", "first.png"]
    assert f"1 file in {str(nested)!r} is no picture and was skipped." in result.err
    (tmp_path / "empty").mkdir()
    check_mistake(
        command("explain", tmp_path / "empty", "--checkpoint", saved, "--out", tmp_path / "maps"),
        f"There are no pictures in {tmp_path / 'empty'}.",
    )
