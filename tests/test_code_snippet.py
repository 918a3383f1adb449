"""The code snippet of the page, run unchanged, gives the displayed numbers."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import text_models
import torch
from drawn import animated
from PIL import Image

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.explain.classes.examples import classes_from_examples, classes_from_features
from vit.explain.classes.similarity import class_from_picture
from vit.explain.classes.text import classes_from_text
from vit.explain.components import components, token_features
from vit.explain.features import Features, pooled_features
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.record import Precision
from vit.explain.recorded_pass import RecordedPass
from vit.explain.settings import Settings
from vit.exports.code_snippet import snippet
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.cost import Size
from vit.view.explanation import Explanation, explain
from vit.view.map_view import MapView, facts_of, weights
from vit.view.selection import Selection


@pytest.fixture
def checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A checkpoint that is found by its name."""
    monkeypatch.setenv("VIT_CHECKPOINTS", str(saved.parent))
    monkeypatch.chdir(saved.parent)
    return load_checkpoint("tiny")


def run(explanation: Explanation, checkpoint: Checkpoint, facts: dict[str, Any], **options: Any) -> tuple[str, Any]:
    """Return the code and its map."""
    program = snippet(explanation, checkpoint, facts, **options)
    left: dict[str, Any] = {}
    exec(compile(program, "copied.py", "exec"), left)
    return program, left["heatmap"]


def compare(explanation: Explanation, checkpoint: Checkpoint, selection: Selection, **options: Any) -> str:
    """Run the code, compare its numbers bit by bit, and return it."""
    record, facts = explanation.record, facts_of(explanation.record, selection)
    if facts["method"] == "similar" and "block" in facts:
        pixels = explanation.preprocess(explanation.picture)
        record = replace(record, features=token_features(checkpoint.model, pixels, facts["block"]))
    program, heatmap = run(explanation, checkpoint, facts, **options)
    assert torch.equal(heatmap, record.heatmap(weights(record, selection)))
    return program


SELECTIONS = [
    Selection(),
    Selection(block=0, head=1, token=6, direction="to"),
    Selection(block="max", head="min", token=0),
    Selection(block="mean", head=1, token=9, direction="to"),
    Selection(view="rollout", token=3),
    Selection(view="rollout", token=0, direction="to"),
    Selection(view="rollout", token=4, residual=0.3, fusion="max", discard=0.5),
    Selection(view="similar", token=5),
    Selection(view="similar", token=5, after_block=0),
    *(Selection(view="pool", head=head) for head in (1, "mean", "max", "min")),
]
POOLS = {"cls": ("cls",), "mean": (), "map": ()}  # with the prefix tokens


@pytest.fixture
def pooling(request: pytest.FixtureRequest, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A checkpoint whose head reads the class token, the mean, or what a pooling query attends to."""
    model = build(pool=request.param, prefix=POOLS[request.param])
    save_checkpoint(tmp_path / "tiny", model, list("abcde"), Preprocess((32, 32)))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").write_bytes(animated())
    return load_checkpoint("tiny")


@pytest.mark.parametrize("pooling", POOLS, indirect=True)
@pytest.mark.parametrize(("size", "precision"), [(None, "float32"), ((64, 48), "bfloat16")])
def test_code_gives_the_displayed_numbers(pooling: Checkpoint, size: Size | None, precision: Precision) -> None:
    explanation = explain(pooling, animated(), size, precision)
    for selection in SELECTIONS:
        program = compare(explanation, pooling, selection)
        assert 'load_checkpoint("tiny")' in program and len(program.splitlines()) <= 15
        assert f'"{pooling.hash}"' in program and f'"{pooling.identity}"' in program


@pytest.mark.parametrize("pooling", POOLS, indirect=True)
@pytest.mark.parametrize("method", METHODS)
def test_code_gives_the_numbers_of_every_method(pooling: Checkpoint, method: str) -> None:
    how = METHODS[method]
    explanation = explain(pooling, animated(), (64, 48), "bfloat16")
    model, pixels = pooling.model, explanation.preprocess(explanation.picture)
    recorded = RecordedPass.of_class(model, pixels, 3) if how.of_class else RecordedPass.without_class(model, pixels)
    for query in (None, 0, 7) if how.of_tokens else (None,):
        for direction in ("from", "to") if query is not None else ("from",):
            for settings in (Settings(), Settings(residual=0.3, fusion="min", discard=0.25, start_block=1)):
                facts = {"method": method, "precision": "float32"} | settings.changed(how.settings)
                facts |= {"target": 3} if how.of_class else {}
                facts |= {} if query is None else {"query": query, "direction": direction}
                displayed = MapView.of_method(recorded, method, "", query, direction, settings)
                heatmap = run(explanation, pooling, facts)[1]
                assert torch.equal(heatmap, explanation.record.heatmap(displayed.weights)), (query, direction, settings)


def test_code_of_components_gives_those_of_the_picture(checkpoint: Checkpoint) -> None:
    Path("photo.jpg").write_bytes(animated())
    explanation = explain(checkpoint, animated())
    features = token_features(checkpoint.model, explanation.preprocess(explanation.picture), 0)
    of = components([explanation.record.heatmap(features.T).permute(1, 2, 0)])
    displayed = MapView.of_components(replace(explanation.record, features=features), 0, of, of.colours[0])
    heatmap = run(explanation, checkpoint, displayed.facts)[1]
    torch.testing.assert_close(heatmap, explanation.record.heatmap(displayed.weights))


def test_another_selection_has_other_numbers(checkpoint: Checkpoint) -> None:
    Path("photo.jpg").write_bytes(animated())
    explanation = explain(checkpoint, animated())
    other, own = (
        run(explanation, checkpoint, facts_of(explanation.record, one))[1] for one in (Selection(block=0), Selection())
    )
    assert not torch.equal(other, own)


def test_sample_needs_no_file(checkpoint: Checkpoint) -> None:
    program = compare(explain(checkpoint, samples.read("cat")), checkpoint, Selection(), sample="cat")
    assert "Path" not in program


def test_size_precision_and_frame_are_stated_if_not_default(checkpoint: Checkpoint) -> None:
    Path("a.png").write_bytes(animated(3))
    explanation = explain(checkpoint, animated(3), (64, 48), "bfloat16", frame=2)
    program = compare(explanation, checkpoint, Selection(block=1, head=0), picture="a.png", frame=2)
    assert all(word in program for word in ("(64, 48)", "bfloat16", "frame=2"))
    plain = snippet(explain(checkpoint, animated()), checkpoint, MapView.of(explanation.record, Selection()).facts)
    assert not any(word in plain for word in ("resized", "float", "frame=", "heads="))


def test_unspecified_number_of_heads_is_stated(checkpoint: Checkpoint) -> None:
    explanation, facts = explain(checkpoint, animated()), {"method": "similar", "query": 0}
    assert "heads=2)" in snippet(explanation, replace(checkpoint, assumed={"heads": "why"}), facts)


def test_checkpoint_of_a_run_is_named_by_its_path(checkpoint: Checkpoint, saved: Path) -> None:
    shutil.copytree(saved, Path("runs") / "20260101-tiny" / "checkpoints" / "best")
    Path("photo.jpg").write_bytes(animated())
    compare(explain(checkpoint, animated()), replace(checkpoint, name="run-20260101-tiny"), Selection())


@pytest.mark.parametrize("name", ['"); hurt = 1; ("', "'\n\\\u2028照.png", 'it\'s "it".png'])
def test_foreign_names_are_literals(checkpoint: Checkpoint, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []
    monkeypatch.setattr(Path, "read_bytes", lambda path: requests.append(str(path)) or animated())
    left: dict[str, Any] = {}
    facts = {"method": "similar", "query": 0}
    exec(snippet(explain(checkpoint, animated()), replace(checkpoint, assumed={}), facts, name), left)
    assert name in requests and "hurt" not in left


@pytest.fixture
def answering(
    checkpoint: Checkpoint, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Checkpoint:
    """Return a checkpoint with user-defined classes, as a page creates it."""
    if request.param == "text":
        text_models.clip(tmp_path / "texts")
        monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
        texts = load_checkpoint("texts")
        return texts.with_classes(classes_from_text(texts, ["a 'cat'", "two dogs"], "a photo of {}"))
    files = [f"{i}.png" for i in range(5)]
    for i, file in enumerate(files):
        Image.new("RGB", (40, 30), (50 * i, 90, 200 - 50 * i)).save(file)
    if request.param.startswith("like"):
        sample, size = request.param == "like a sample", (64, 64) if request.param == "like a patch" else None
        like = samples.read("horse") if sample else Path(files[3]).read_bytes()
        patch = (5, 1) if size else None
        custom = class_from_picture(checkpoint, vit.decode_image(like), patch, "like 'it'", size=size)
        facts = {**custom.facts, "like": "horse" if sample else files[3], "sample": sample}
        return checkpoint.with_classes(replace(custom, facts=facts))
    groups = {"red 'ish'": files[2:], "blue": files[:2]}
    if request.param == "groups":
        vectors = [
            pooled_features(checkpoint.model, checkpoint.preprocess(Image.open(file))) for file in files[2:] + files[:2]
        ]
        features = Features(torch.cat(vectors).numpy(), np.array([0, 0, 0, 1, 1]), tuple(groups))
        return checkpoint.with_classes(classes_from_features(features, "pictures", groups=groups))
    for split, name, file in [(s, n, f) for s in ("train", "test") for n, some in groups.items() for f in some]:
        (tmp_path / "set" / split / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(file, tmp_path / "set" / split / name)
    custom = classes_from_examples(checkpoint, f"folder:{tmp_path / 'set'}", "neighbours", limit=4)
    return checkpoint.with_classes(custom)


@pytest.mark.parametrize(
    "answering", ["groups", "dataset", "text", "like a file", "like a patch", "like a sample"], indirect=True
)
@pytest.mark.parametrize("sample", ["", "cat"])
def test_code_recreates_user_defined_classes(answering: Checkpoint, sample: str) -> None:
    data = samples.read(sample) if sample else animated()
    Path("photo.png").write_bytes(data)
    explanation = explain(answering, data)
    target = len(answering.labels) - 1
    recorded = RecordedPass.of_class(answering.model, explanation.preprocess(explanation.picture), target)
    facts = {"method": "relevance", "target": target}
    left: dict[str, Any] = {}
    exec(snippet(explanation, answering, facts, picture="photo.png", sample=sample), left)
    assert left["checkpoint"].labels == answering.labels
    torch.testing.assert_close(left["heatmap"], heatmap_of(recorded, "relevance"), rtol=1e-4, atol=1e-6)
