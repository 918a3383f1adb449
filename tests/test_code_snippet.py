"""The code snippet of the page, run unchanged, gives the displayed numbers."""

import shutil
from collections.abc import Callable
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
from vit.explain.recorded_pass import RecordedPass
from vit.explain.settings import Settings
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.view import export
from vit.view.code_snippet import snippet
from vit.view.explanation import Explanation, explain
from vit.view.selection import Selection, View


@pytest.fixture
def checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """A checkpoint that is found by its name."""
    monkeypatch.setenv("VIT_CHECKPOINTS", str(saved.parent))
    monkeypatch.chdir(saved.parent)
    return load_checkpoint("tiny")


def compare(explanation: Explanation, checkpoint: Checkpoint, selection: Selection, **options: Any) -> str:
    """Run the code, compare its numbers bit by bit, and return it."""
    view = export.MapView.of(explanation.record, selection, explanation.payload)
    program = snippet(explanation, checkpoint, view.facts, **options)
    left: dict[str, Any] = {}
    exec(compile(program, "copied.py", "exec"), left)
    truth = export.weights(explanation.record, selection)
    assert torch.equal(left["weights"], truth)
    assert torch.equal(left["heatmap"], explanation.record.heatmap(truth))
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
]


@pytest.mark.parametrize(("view", "token"), [("similar", 5), ("components", 0)])
def test_code_gives_the_displayed_numbers_after_a_block(checkpoint: Checkpoint, view: View, token: int) -> None:
    Path("photo.png").write_bytes(animated())
    explanation, selection = explain(checkpoint, animated()), Selection(view=view, token=token, after_block=0)
    features = token_features(checkpoint.model, checkpoint.preprocess(explanation.picture), 0)
    explanation = replace(explanation, record=replace(explanation.record, features=features))
    map_view = export.MapView.of(explanation.record, selection)
    if view == "components":
        of = components([features[len(explanation.record.prefix) :].unflatten(0, explanation.record.grid)])
        map_view = export.MapView.of_components(explanation.record, 0, of, of.colours[0])
    left: dict[str, Any] = {}
    exec(snippet(explanation, checkpoint, map_view.facts, "photo.png"), left)
    torch.testing.assert_close(left["weights"], map_view.weights)
    torch.testing.assert_close(left["heatmap"], explanation.record.heatmap(map_view.weights))


@pytest.mark.parametrize("selection", SELECTIONS)
def test_code_gives_the_displayed_numbers(checkpoint: Checkpoint, selection: Selection) -> None:
    Path("photo.png").write_bytes(animated())
    program = compare(explain(checkpoint, animated()), checkpoint, selection, picture="photo.png")
    assert 'load_checkpoint("tiny")' in program and len(program.splitlines()) <= 12
    assert f'"{checkpoint.hash}"' in program and f'"{checkpoint.identity}"' in program


@pytest.mark.parametrize("query", [None, 0, 7])
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.of_class])
def test_code_for_a_class_gives_the_methods_numbers(checkpoint: Checkpoint, method: str, query: int | None) -> None:
    how = METHODS[method]
    if query is not None and not how.of_tokens:
        return
    Path("photo.png").write_bytes(animated())
    explanation = explain(checkpoint, animated())
    unusual = Settings(residual=0.3, fusion="min", discard=0.25, start_block=1)
    tuning = unusual if query == 7 or not how.of_tokens else Settings()
    facts: dict[str, Any] = {"method": method, "target": 3} | tuning.changed(how.settings)
    for direction in ("from", "to") if query is not None else ("from",):
        facts |= {} if query is None else {"query": query, "direction": direction}
        left: dict[str, Any] = {}
        exec(snippet(explanation, checkpoint, facts, "photo.png"), left)
        recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(explanation.picture), 3)
        view = export.MapView.of_method(recorded, method, "cat", query, direction, tuning)
        torch.testing.assert_close(left["weights"], view.weights)
        if tuning == Settings():  # in the last block, patches do not influence the class token's answer
            assert float(left["weights"].sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("query", [None, 7])
@pytest.mark.parametrize("pool", ["mean", "map"])
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.of_class])
def test_code_for_the_tokens_that_the_head_reads_gives_their_numbers(
    method: str,
    pool: str,
    query: int | None,
    tmp_path: Path,
    build: Callable[..., VisionTransformer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_checkpoint(tmp_path / "tiny", build(pool=pool, prefix=()), list("abcde"), Preprocess((32, 32)))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    checkpoint = load_checkpoint("tiny")
    Path("photo.png").write_bytes(animated())
    explanation = explain(checkpoint, animated())
    facts: dict[str, Any] = {"method": method} | ({} if query is None else {"query": query, "direction": "to"})
    left: dict[str, Any] = {}
    exec(snippet(explanation, checkpoint, facts, "photo.png"), left)
    recorded = RecordedPass.without_class(checkpoint.model, checkpoint.preprocess(explanation.picture))
    view = export.MapView.of_method(recorded, method, "", query, "to")
    assert torch.equal(left["weights"], view.weights)


def test_code_imports_everything_it_uses(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    needy = replace(
        METHODS["gradcam"], code=lambda call: "log1p(record.gradcam())", imports=("from torch import log1p",)
    )
    monkeypatch.setitem(METHODS, "needy", needy)
    Path("photo.png").write_bytes(animated())
    left: dict[str, Any] = {}
    exec(snippet(explain(checkpoint, animated()), checkpoint, {"method": "needy", "target": 3}, "photo.png"), left)
    gains = vit.relevance_record(checkpoint.model, left["pixels"], target=3).gradcam().log1p()
    torch.testing.assert_close(left["weights"], gains / gains.sum())


def test_another_selection_has_other_numbers(checkpoint: Checkpoint) -> None:
    Path("photo.png").write_bytes(animated())
    explanation = explain(checkpoint, animated())
    other = export.MapView.of(explanation.record, Selection(block=0)).facts
    left: dict[str, Any] = {}
    exec(snippet(explanation, checkpoint, other, "photo.png"), left)
    assert not torch.equal(left["weights"], export.weights(explanation.record, Selection()))


def test_sample_needs_no_file(checkpoint: Checkpoint) -> None:
    program = compare(explain(checkpoint, samples.read("cat")), checkpoint, Selection(), sample="cat")
    assert "Path" not in program


def test_size_precision_and_frame_are_stated_if_not_default(checkpoint: Checkpoint) -> None:
    Path("a.png").write_bytes(animated(3))
    explanation = explain(checkpoint, animated(3), (64, 48), "bfloat16", frame=2)
    program = compare(explanation, checkpoint, Selection(block=1, head=0), picture="a.png", frame=2)
    assert all(word in program for word in ("(64, 48)", "bfloat16", "frame=2"))
    plain = snippet(
        explain(checkpoint, animated()), checkpoint, export.MapView.of(explanation.record, Selection()).facts
    )
    assert not any(word in plain for word in ("resized", "float", "frame=", "heads="))


@pytest.mark.parametrize("head", [1, "mean", "max", "min"])
def test_pooling_query_has_its_code(
    head: Any,
    tmp_path: Path,
    build: Callable[..., VisionTransformer],
    preprocess: Preprocess,
    labels: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_checkpoint(tmp_path / "pooling", build(prefix=(), pool="map"), labels, preprocess)
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("photo.jpg").write_bytes(animated())
    pooling = load_checkpoint("pooling")
    compare(explain(pooling, animated()), pooling, Selection(view="pool", head=head))


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
    program = snippet(explanation, answering, facts, picture="photo.png", sample=sample)
    left: dict[str, Any] = {}
    exec(compile(program, "copied.py", "exec"), left)
    assert left["checkpoint"].labels == answering.labels
    torch.testing.assert_close(left["heatmap"], heatmap_of(recorded, "relevance"), rtol=1e-4, atol=1e-6)
