"""Share of a map inside a region: hand-computed cases, masks of pictures, command and contact sheet."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Command, check_mistake
from PIL import Image

import vit
from vit.errors import InvalidImage
from vit.explain.regions import region_of, region_score
from vit.exports import contact_sheet, tables
from vit.exports.contact_sheet import Picture, classify_and_explain, evaluate
from vit.images.preprocess import Preprocess


def test_share_maximum_and_chance_of_a_region() -> None:
    region = torch.zeros(4, 8, dtype=torch.bool)
    region[:2, :6] = True  # the first patch, and half of the second
    heatmap = torch.tensor([[4.0, 3.0], [1.0, 0.0]])
    assert region_score(heatmap, region) == (5.5 / 8, True, 3 / 8)
    assert not region_score(-heatmap, region).pointing and region_score(-heatmap, region).energy == 0
    signed = torch.tensor([[3.0, -4.0], [1.0, -9.0]])
    assert region_score(signed, region).energy == 3 / 4  # of what is positive


def test_uniform_map_has_the_energy_of_chance() -> None:
    region = torch.rand(12, 20, generator=torch.Generator().manual_seed(0)) < 0.3
    score = region_score(torch.ones(3, 5), region)
    assert score.energy == pytest.approx(score.area) and score.area == pytest.approx(float(region.double().mean()))


@pytest.mark.parametrize("scale", [1, 3])
def test_mask_is_resized_and_cropped_as_its_picture(scale: int) -> None:
    picture = Image.new("RGB", (40, 20))
    marks = np.zeros((20 * scale, 40 * scale), np.uint8)
    marks[:, : 20 * scale] = 1  # the left half; masks of classes hold small numbers
    region = region_of(Image.fromarray(marks), picture, Preprocess((20, 20)))
    assert region.shape == (20, 20) and region[:, :10].all() and not region[:, 10:].any()


def test_mask_that_does_not_fit_is_refused() -> None:
    picture, preprocess = Image.new("RGB", (40, 20)), Preprocess((20, 20))
    with pytest.raises(InvalidImage, match=r"20 x 40 px has another shape than its picture, 40 x 20 px"):
        region_of(Image.new("L", (20, 40), 255), picture, preprocess)
    outside = Image.new("L", (40, 20))
    outside.paste(255, (0, 0, 10, 20))  # the model sees the middle only
    with pytest.raises(InvalidImage, match="0 wherever the model looks"):
        region_of(outside, picture, preprocess)


def test_command_measures_a_mask(command: Command, saved: Path, picture: Path, tmp_path: Path) -> None:
    mask = tmp_path / "mask.png"
    Image.fromarray(np.tile(np.uint16([0, 1]), (40, 30)).repeat(1, 0)).save(mask)  # 16 bits, every other column
    out = tmp_path / "map.npz"
    done = command("explain", picture, "--checkpoint", saved, "--region", mask, "--out", out)
    assert done.status == 0, done.err
    file = np.load(out)
    score = json.loads(str(file["meta"]))["view"]["region"]
    marks = Image.open(mask).point(lambda value: 255 * value, "L")
    region = region_of(marks, Image.open(picture), vit.load_checkpoint(saved).preprocess)
    assert score == region_score(torch.from_numpy(file["heatmap"]), region)._asdict()
    assert f"In the region: {score['energy']:.1%} of the map" in done.out


def test_command_measures_masks_of_a_folder(command: Command, saved: Path, picture: Path, tmp_path: Path) -> None:
    other, masks, out = tmp_path / "other.png", tmp_path / "masks", tmp_path / "maps"
    masks.mkdir()
    Image.open(picture).save(other)
    Image.new("L", (60, 40), 255).save(masks / f"{picture.stem}.gif")
    done = command("explain", picture, other, "--checkpoint", saved, "--region", masks, "--out", out)
    assert done.status == 2 and done.err.count("\n") == 1 and "masks/other.png cannot be read" in done.err
    [row] = csv.DictReader(io.StringIO((out / "region.csv").read_text()))
    assert row["picture"] == str(picture) and (float(row["energy"]), float(row["area"])) == (1, 1)
    assert row["pointing"] == "True"
    single = command("explain", other, "--checkpoint", saved, "--region", masks, "--out", tmp_path / "map.png")
    check_mistake(single, "masks/other.png cannot be read: No such file")


def test_contact_sheet_measures_masks(saved: Path, picture: Path) -> None:
    checkpoint, mask = vit.load_checkpoint(saved), io.BytesIO()
    left = Image.new("L", (60, 40))
    left.paste(255, (0, 0, 30, 40))
    left.save(mask, "PNG")
    one = Picture("cat", picture.read_bytes(), region=mask.getvalue())
    result = classify_and_explain(checkpoint, one, "rollout")
    image = vit.decode_image(picture.read_bytes())
    wanted = region_score(vit.heatmap(checkpoint, image, "rollout"), region_of(left, image, checkpoint.preprocess))
    assert result.region == pytest.approx(wanted)
    [row] = tables.sheet_table([evaluate(checkpoint, one, result)])
    assert (row["region_energy"], row["region_area"]) == (result.region.energy, result.region.area)
    without = evaluate(checkpoint, one, classify_and_explain(checkpoint, one._replace(region=None), "rollout"))
    assert tables.sheet_table([without])[0]["region_energy"] is None


def test_sheet_of_a_dataset_with_objects_measures_them(saved_shapes: Path) -> None:
    checkpoint = vit.load_checkpoint(saved_shapes)
    pictures = contact_sheet.pictures_of(checkpoint, "shapes", count=4)
    scores = [classify_and_explain(checkpoint, one, "rollout").region for one in pictures]
    assert all(score and 0 < score.area < 0.5 for score in scores)
