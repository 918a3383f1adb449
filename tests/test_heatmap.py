"""`vit.heatmap` equals the command line and the page, and accepts names as people write them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.cli.main import main
from vit.errors import UserError
from vit.explain.heatmap import run_model
from vit.explain.methods import METHODS, heatmap_of, weights
from vit.explain.record import record
from vit.explain.recorded_pass import RecordedPass
from vit.explain.relevance import GradientRecord

LABELS = ("cat", "bus", "ship", "deer", "dog")
Build = Callable[..., vit.VisionTransformer]


@pytest.fixture
def checkpoint(tmp_path: Path, build: Build, preprocess: vit.Preprocess) -> vit.Checkpoint:
    return vit.load_checkpoint(vit.save_checkpoint(tmp_path / "model", build(depth=3), LABELS, preprocess))


@pytest.fixture
def image(tmp_path: Path) -> Image.Image:
    picture = Image.effect_noise((60, 40), 90).convert("RGB")
    picture.save(tmp_path / "picture.png")
    return picture


def drawn(checkpoint: vit.Checkpoint, out: Path, *options: str) -> tuple[np.ndarray, dict[str, Any]]:
    """Run the command line; return the map and its metadata."""
    arguments = ["explain", str(out.parent / "picture.png"), "--checkpoint", str(checkpoint.path), "--out", str(out)]
    assert main([*arguments, *options]) == 0
    with np.load(out) as arrays:
        return arrays["heatmap"], json.loads(str(arrays["meta"]))["view"]


@pytest.mark.parametrize("method", METHODS)
def test_heatmap_equals_that_of_the_command_line(
    checkpoint: vit.Checkpoint, image: Image.Image, tmp_path: Path, method: str
) -> None:
    result = vit.heatmap(checkpoint, image, method, "dog")
    target = ["--target=dog"] if METHODS[method].of_class else []
    np.testing.assert_allclose(drawn(checkpoint, tmp_path / "map.npz", "--method", method, *target)[0], result, 1e-5)


def test_settings_tokens_and_sizes_are_those_of_the_command_line(
    checkpoint: vit.Checkpoint, image: Image.Image, tmp_path: Path
) -> None:
    result = vit.heatmap(checkpoint, image, "rollout", query="1,2", direction="to", size=64, discard=0.5, fusion="max")
    assert result.shape == (8, 8)
    options = "--method=rollout --query=1,2 --direction=to --size=64 --discard=0.5 --head=max"
    np.testing.assert_allclose(drawn(checkpoint, tmp_path / "map.npz", *options.split())[0], result, rtol=1e-5)


@pytest.mark.parametrize(("query", "token"), [("cls", 0), ((1, 2), 7), ("1,2", 7), (7, 7)])
def test_token_is_given_by_name_position_or_index(
    checkpoint: vit.Checkpoint, image: Image.Image, query: Any, token: int
) -> None:
    recorded = record(checkpoint.model, checkpoint.preprocess(image))
    result = vit.heatmap(checkpoint, image, "attention", query=query, block=1, head=0)
    torch.testing.assert_close(result, recorded.heatmap(recorded.rows(1, [token])[0, 0]))


@pytest.mark.parametrize(("target", "index"), [(None, None), ("ship", 2), ("3", 3), (4, 4)])
def test_class_is_given_by_label_or_index(
    checkpoint: vit.Checkpoint, image: Image.Image, target: Any, index: int | None
) -> None:
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(image), index)
    expected = recorded.record.heatmap(weights(recorded, "relevance"))
    torch.testing.assert_close(vit.heatmap(checkpoint, image, "relevance", target), expected)


@pytest.mark.parametrize(
    ("question", "said"),
    [
        ({"method": "magic"}, "There is no method 'magic'. Choose from attention, rollout"),
        ({"target": "catt"}, "There is no class 'catt'. Did you mean cat?"),
        ({"target": "wolf"}, "There is no class 'wolf'. Its classes are cat, bus, ship, deer, dog."),
        ({"target": 9}, "There is no class 9: they run from 0 to 4."),
        ({"query": "here"}, "A query must be a prefix token (cls) or ROW,COL, not 'here'."),
        ({"query": 99}, "There is no token 99: they run from 0 to 16."),
    ],
)
def test_request_without_an_answer_is_refused(
    checkpoint: vit.Checkpoint, image: Image.Image, question: dict[str, Any], said: str
) -> None:
    with pytest.raises(vit.UserError) as error:
        vit.heatmap(checkpoint, image, **question)
    assert str(error.value).startswith(said)


def test_command_and_export_number_blocks_and_heads_both_ways(
    checkpoint: vit.Checkpoint, image: Image.Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python, options and files count from 0, pages from 1: block 1 is Block 2 on a page."""
    view = drawn(checkpoint, tmp_path / "map.npz", "--block=1", "--head=0")[1]
    assert (view["block"], view["head"], view["page"]) == (1, 0, {"block": "Block 2", "head": "Head 1"})
    assert "Block 1, head 0 (on the page Block 2, Head 1)" in capsys.readouterr().out
    view = drawn(checkpoint, tmp_path / "map.npz", "--method=attention")[1]
    assert (view["block"], view["head"], view["page"]) == (2, "mean", {"block": "Block 3"})


def test_attention_of_a_pooling_query_has_no_block(
    tmp_path: Path, image: Image.Image, build: Build, preprocess: vit.Preprocess
) -> None:
    pooled = vit.save_checkpoint(tmp_path / "pooled", build(pool="map", prefix=()), LABELS, preprocess)
    view = drawn(vit.load_checkpoint(pooled), tmp_path / "map.npz", "--method=attention")[1]
    assert view["block"] == "pooling query" and "page" not in view


@pytest.mark.parametrize("target", [None, 2])
@pytest.mark.parametrize("method", ["attnlrp", "legrad"])
def test_map_takes_a_single_forward_pass(
    checkpoint: vit.Checkpoint, monkeypatch: pytest.MonkeyPatch, method: str, target: int | None
) -> None:
    walks: list[Any] = []
    walk = vit.VisionTransformer.walk
    monkeypatch.setattr(vit.VisionTransformer, "walk", lambda *given, **named: walks.append(1) or walk(*given, **named))
    heatmap = vit.heatmap(checkpoint, Image.new("RGB", (40, 32), "teal"), method, target)
    assert len(walks) == 1 and heatmap.shape == (4, 4)


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.own_passes])
def test_methods_with_passes_of_their_own_take_no_backward_pass_before(checkpoint: vit.Checkpoint, method: str) -> None:
    pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    light, full = run_model(checkpoint, pixels, method), RecordedPass.of_class(checkpoint.model, pixels)
    assert not isinstance(light.record, GradientRecord) and light.explained == full.target
    torch.testing.assert_close(heatmap_of(light, method), heatmap_of(full, method))
    with pytest.raises(UserError, match="There is no class 99"):
        run_model(checkpoint, pixels, method, 99)
