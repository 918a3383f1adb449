"""User-defined classes on the command line: --text, --template, --examples, --classifier."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import Command, check_mistake
from PIL import Image
from text_models import clip

import vit
from vit.data.shapes import SHAPES


def test_typed_phrases_are_classes(command: Command, picture: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    clip(tmp_path / "clip")
    options = ("--checkpoint", tmp_path / "clip", "--text", "a cat", "--text", "a dog", "--template", "a photo of {}")
    answer = json.loads(command("classify", picture, *options, "--json").out)
    shares = {one["label"]: one["probability"] for one in answer["results"][0]["predictions"]}
    assert shares.keys() == {"a cat", "a dog"} and sum(shares.values()) == pytest.approx(1)
    assert answer["text"] == ["a cat", "a dog"] and answer["template"] == "a photo of {}"

    out = tmp_path / "map.npz"
    assert command("explain", picture, *options, "--method", "relevance", "--target", "a dog", "--out", out).status == 0
    checkpoint = vit.load_checkpoint(tmp_path / "clip")
    checkpoint = checkpoint.with_classes(vit.classes_from_text(checkpoint, ["a cat", "a dog"], "a photo of {}"))
    assert (answer["sha256"], answer["identity"]) == (checkpoint.hash, checkpoint.identity)
    meta = json.loads(str(np.load(out)["meta"]))["checkpoint"]
    assert meta["identity"] == checkpoint.identity != vit.load_checkpoint(tmp_path / "clip").identity
    expected = vit.heatmap(checkpoint, vit.decode_image(picture.read_bytes()), "relevance", "a dog")
    assert np.load(out)["heatmap"] == pytest.approx(expected.numpy(), abs=1e-6)


def test_labelled_pictures_are_classes(command: Command, picture: Path, saved: Path) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--examples", "shapes", "--json")
    answer = json.loads(result.out)
    assert {one["label"] for one in answer["results"][0]["predictions"]} == set(SHAPES)
    assert re.search(r": \d\d\.\d% of 1,000 pictures right when held out \(\d\d\.\d to \d\d\.\d %\)\.\n", result.err)


def test_similarity_to_a_picture_is_the_class(command: Command, picture: Path, saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (40, 40), (200, 30, 30)).save(other)
    result = command("classify", picture, "--checkpoint", saved, "--like", other, "--like-patch", "1,2", "--json")
    answer = json.loads(result.out)
    (prediction,) = answer["results"][0]["predictions"]
    checkpoint = vit.load_checkpoint(saved)
    alike = checkpoint.with_classes(vit.class_from_picture(checkpoint, Image.open(other), (1, 2), prediction["label"]))
    assert prediction["label"] == "like other.png at 1,2"
    with torch.inference_mode():
        logit = float(alike.model(alike.preprocess(vit.decode_image(picture.read_bytes()))).logits[0, 0])
    assert prediction["probability"] == pytest.approx(max(logit, 0), abs=1e-6)

    out = tmp_path / "map.npz"
    words = ("--like", other, "--method", "relevance", "--size", 64, "--like-patch", "7,7", "--out", out)
    assert command("explain", picture, "--checkpoint", saved, *words).status == 0
    assert np.load(out)["heatmap"].shape == (8, 8)
    result = command("classify", picture, "--checkpoint", saved, "--like", other, "--like-patch", "7,7")
    assert result.status == 2 and "rows 0 to 3 and columns 0 to 3, not 7,7" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--text", "a cat", "--examples", "shapes"), "not from both"),
        (("--like", "x.png", "--examples", "shapes"), "not from both"),
        (("--like-patch", "1,1"), "--like-patch needs --like"),
        (("--like", "nowhere.png"), "nowhere.png cannot be read"),
        (("--template", "a {}"), "--template needs --text"),
        (("--classifier", "probe"), "--classifier needs --examples"),
        (("--text", "a cat"), "tiny was not trained on pictures with texts"),
        (("--examples", "folder:nowhere"), "nowhere"),
    ],
)
def test_unusable_classes_are_refused_in_one_line(
    command: Command, picture: Path, saved: Path, words: tuple[str, ...], message: str
) -> None:
    result = command("classify", picture, "--checkpoint", saved, *words)
    assert result.status == 2 and message in result.err and result.err.count("\n") == 1


def test_typed_phrases_are_measured_on_a_dataset(command: Command, picture: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    clip(tmp_path / "clip")
    for split, name, color in [(s, n, c) for s in ("train", "test") for n, c in (("cat", 20), ("dog", 230))]:
        folder = tmp_path / "data" / split / name
        folder.mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (40, 40), (color, 60 * i, 90)).save(folder / f"{i}.png")
    data = f"folder:{tmp_path / 'data'}"
    options = (
        "--checkpoint",
        tmp_path / "clip",
        "--text",
        "cat",
        "--text",
        "dog",
        "--template",
        "a {}",
        "--data",
        data,
    )
    result = json.loads(command("evaluate", *options, "--json").out)
    checkpoint = vit.load_checkpoint(tmp_path / "clip")
    with_phrases = checkpoint.with_classes(vit.classes_from_text(checkpoint, ["cat", "dog"], "a {}"))
    right = 0
    for label, name in enumerate(with_phrases.labels):
        for file in (tmp_path / "data" / "test" / name).iterdir():
            right += with_phrases.model(with_phrases.preprocess(Image.open(file))).logits.argmax().item() == label
    assert (result["accuracy"], result["pictures"], result["identity"]) == (right / 8, 8, with_phrases.identity)
    ranked = json.loads(command("faithfulness", *options, "--limit", 4, "--json").out)
    assert ranked["pictures"] == 4 and ranked["identity"] == with_phrases.identity
    assert "relevance" in {one["name"] for one in ranked["methods"]}


def test_only_a_ranking_with_its_own_classes_is_put_into_a_checkpoints_card(command: Command, saved: Path) -> None:
    options = ("--checkpoint", saved, "--data", "shapes", "--examples", "shapes", "--card")
    before = (saved / "README.md").read_bytes()
    check_mistake(command("faithfulness", *options), "--card ")
    assert (saved / "README.md").read_bytes() == before
