"""The command line: what it prints, what it writes, and one line for every mistake."""

import inspect
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from commands import Command, Result, check_mistake
from PIL import Image
from tiny import LABELS
from written_runs import write_run

import vit
from vit import view
from vit.checkpoints.convert import To
from vit.cli import training
from vit.cli.main import main
from vit.cli.parser import option_of, options_of, parser
from vit.data import datasets
from vit.explain import head_statistics
from vit.explain.answers import examples
from vit.explain.features import features
from vit.explain.head_census import census
from vit.explain.method_ranking import rank
from vit.explain.methods import METHODS, Subject, heatmap_of
from vit.explain.record import Precision
from vit.runs.error_report import read as read_report
from vit.view.export import MapView, view_json, view_npz
from vit.view.lesson import Language
from vit.view.selection import Selection

ROOT = Path(vit.__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training and two test pictures of each of two classes that the tiny checkpoint knows."""
    root = tmp_path / "pictures"
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (16, 16), (i * 99, 80, 20)).save(root / split / label / f"{i}.png")
    return root


TINY = ["image_size=16", "dim=24", "heads=2", "depth=1", "mlp_dim=48", "batch_size=4", "device=cpu"]


def settings(*pairs: str) -> list[str]:
    """Several behind one `--set`, and each behind its own."""
    return ["--set", *TINY, *(word for pair in pairs for word in ("--set", pair))]


# --- classify -----------------------------------------------------------------------------------------------------


def test_classify_prints_what_the_model_says(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--json")
    document = json.loads(result.out)
    checkpoint = vit.load_checkpoint(saved)
    with torch.inference_mode():
        pixels = checkpoint.preprocess(vit.decode_image(picture.read_bytes()))
        truth = dict(zip(checkpoint.labels, checkpoint.model(pixels).logits[0].softmax(0).tolist(), strict=True))
    probabilities = {p["label"]: p["probability"] for p in document["results"][0]["predictions"]}
    assert result.status == 0
    assert (document["sha256"], document["identity"]) == (checkpoint.hash, checkpoint.identity)
    assert probabilities == pytest.approx(truth)
    assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)


@pytest.mark.parametrize(("top", "shown"), [(1, 1), (3, 3), (99, 5), (0, 1), (-1, 1)])
def test_top_limits_the_predictions(command: Command, saved: Path, picture: Path, top: int, shown: int) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--json", f"--top={top}")
    assert len(json.loads(result.out)["results"][0]["predictions"]) == shown


def test_classify_takes_several_pictures(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, picture, "--checkpoint", saved)
    assert result.out.count(str(picture)) == 2
    assert result.out.count("%") == 10


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_picture_that_cannot_be_read_keeps_nothing_from_the_others(
    command: Command, saved: Path, picture: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    result = command("classify", broken, picture, tmp_path / "absent.png", "--checkpoint", saved, *options)
    assert result.status == 2 and result.out.count(str(picture)) == 1
    one, other = result.err.splitlines()
    assert str(broken) in one and str(tmp_path / "absent.png") in other
    if options:
        assert json.loads(result.out)["problems"] == result.err.splitlines()


def test_the_answer_at_another_size_is_the_one_of_the_page(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--size", 64, "--json")
    checkpoint, size = vit.load_checkpoint(saved), (64, 64)
    of_page = view.explain(checkpoint, picture.read_bytes(), size).predictions
    document = json.loads(result.out)
    assert document["size"] == list(size)
    assert {one["label"]: one["probability"] for one in document["results"][0]["predictions"]} == pytest.approx(
        {one.label: one.probability for one in of_page[:5]}
    )
    plain = json.loads(command("classify", picture, "--checkpoint", saved, "--json").out)
    assert plain["results"] != document["results"]


def test_a_model_without_classes_does_not_classify(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    features = vit.save_checkpoint(tmp_path / "features", build(num_classes=0), (), preprocess)
    check_mistake(command("classify", picture, "--checkpoint", features), "has no classes")


# --- explain ------------------------------------------------------------------------------------------------------


def test_explain_draws_on_the_picture_at_its_own_size(
    command: Command, saved: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "map.png"
    assert command("explain", picture, "--checkpoint", saved, "--out", out).status == 0
    drawn = Image.open(out)
    assert drawn.size == (60, 40)
    assert drawn.convert("RGB").tobytes() != Image.open(picture).tobytes()


@pytest.mark.parametrize(
    ("options", "pick"),
    [
        ([], lambda a: a[-1].mean(0)[0, 1:]),
        (["--block=0", "--head=1"], lambda a: a[0, 1, 0, 1:]),
        (["--query=1,2"], lambda a: a[-1].mean(0)[7, 1:]),
        (["--query=1,2", "--direction=to", "--head=max"], lambda a: a[-1].amax(0)[1:, 7]),
        (["--block=mean"], lambda a: a.mean((0, 1))[0, 1:]),
    ],
)
def test_the_exported_heatmap_is_what_the_model_attends_to(
    command: Command, saved: Path, picture: Path, tmp_path: Path, options: list[str], pick: Any
) -> None:
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", saved, "--out", out, *options).status == 0
    checkpoint = vit.load_checkpoint(saved)
    with torch.inference_mode():
        pixels = checkpoint.preprocess(vit.decode_image(picture.read_bytes()))
        attention = torch.cat(checkpoint.model(pixels, output_attentions=True).attentions)  # (L, H, N, N)
    with np.load(out) as arrays:
        assert np.allclose(arrays["heatmap"].ravel(), pick(attention).numpy(), atol=1e-6)
        assert arrays["attention"].shape == (2, 2, 17, 17)
        assert json.loads(str(arrays["meta"]))["view"]["method"] == "attention"


def test_rollout_is_exported_without_the_attention_behind_it(
    command: Command, saved: Path, picture: Path, tmp_path: Path
) -> None:
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", saved, "--out", out, "--method=rollout").status == 0
    with np.load(out) as arrays:
        assert arrays["heatmap"].shape == (4, 4)
        assert "attention" not in arrays


@pytest.mark.parametrize(
    ("options", "weights", "named"),
    [
        (
            ["--method=rollout", "--head=max", "--discard=0.5", "--query=1,2"],
            lambda m, x: vit.record(m, x).rollout(7, fusion="max", discard=0.5),
            {"query": 7, "direction": "from", "fusion": "max", "discard": 0.5},
        ),
        (
            ["--method=relevance", "--target=cat", "--start-block=1"],
            lambda m, x: vit.relevance_record(m, x, 2).relevance(start_block=1, own=False),
            {"target": {"index": 2, "label": "cat"}, "start_block": 1, "query": None, "direction": "from"},
        ),
        (
            ["--method=relevance", "--target=2", "--query=cls", "--direction=to"],
            lambda m, x: vit.relevance_record(m, x, 2).relevance(0, "to", own=False),
            {"target": {"index": 2, "label": "cat"}, "start_block": 0, "query": 0, "direction": "to"},
        ),
        (
            ["--method=gradient-rollout", "--target=Bus", "--discard=0.9"],
            lambda m, x: vit.relevance_record(m, x, 1).gradient_rollout(discard=0.9),
            {"target": {"index": 1, "label": "bus"}, "discard": 0.9, "start_block": 0},
        ),
        (
            ["--method=attention-gradient", "--target=0", "--block=max", "--head=1"],
            lambda m, x: vit.relevance_record(m, x, 0).attention_gradient(None, "max", 1),
            {"target": {"index": 0, "label": "apple"}, "block": "max", "head": 1},
        ),
        (
            ["--method=gradcam", "--target=éléphant", "--block=0"],
            lambda m, x: vit.relevance_record(m, x, 4).gradcam(0),
            {"target": {"index": 4, "label": "éléphant"}, "block": 0},
        ),
        (
            ["--method=rollout", "--residual=0.2"],
            lambda m, x: vit.record(m, x).rollout(0, 0.2),
            {"residual": 0.2, "discard": 0.0},
        ),
        (
            ["--method=input-gradient", "--target=cat"],
            lambda m, x: (kept := vit.relevance_record(m, x, 2)).last_attention() * kept.input_gradient,
            {"target": {"index": 2, "label": "cat"}, "query": None},
        ),
        (
            ["--method=relevance-rollout", "--target=cat", "--query=1,2"],
            lambda m, x: ((kept := vit.relevance_record(m, x, 2)).relevance(7, own=False) * kept.rollout(7)).sqrt(),
            {"target": {"index": 2, "label": "cat"}, "query": 7, "start_block": 0},
        ),
        (
            ["--method=legrad", "--target=dog", "--start-block=1"],
            lambda m, x: vit.legrad(m, x, 3, 1),
            {"target": {"index": 3, "label": "dog"}, "start_block": 1},
        ),
    ],
)
def test_each_method_exports_its_map_and_says_how_it_was_made(
    command: Command,
    saved: Path,
    picture: Path,
    tmp_path: Path,
    options: list[str],
    weights: Any,
    named: dict[str, Any],
) -> None:
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", saved, "--out", out, *options).status == 0
    checkpoint = vit.load_checkpoint(saved)
    expected = weights(checkpoint.model, checkpoint.preprocess(vit.decode_image(picture.read_bytes())))
    with np.load(out) as arrays:
        if METHODS[options[0].partition("=")[2]].of_class:
            expected = expected / expected.sum()
        assert np.allclose(arrays["heatmap"].ravel(), expected[1:], rtol=1e-5, atol=0)
        assert "attention" not in arrays
        view = json.loads(str(arrays["meta"]))["view"]
    assert view["method"] == options[0].partition("=")[2]
    assert {name: view[name] for name in named} == named


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("pool", [{}, {"pool": "mean", "prefix": ()}, {"pool": "mean"}, {"pool": "map", "prefix": ()}])
def test_without_options_a_method_draws_the_map_that_the_table_of_methods_has_of_the_class(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any, pool: dict[str, Any], method: str
) -> None:
    path = vit.save_checkpoint(tmp_path / "model", build(depth=3, **pool), LABELS, preprocess)
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", path, "--method", method, "--out", out).status == 0
    checkpoint = vit.load_checkpoint(path)
    subject = Subject.of(checkpoint.model, checkpoint.preprocess(vit.decode_image(picture.read_bytes())))
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["heatmap"], heatmap_of(subject, method), rtol=0, atol=1e-6)
        np.testing.assert_allclose(arrays["heatmap"], heatmap_of(subject, method), rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_page_and_command_line_and_python_give_the_same_numbers_in_the_same_unit(
    command: Command, saved: Path, picture: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", saved, "--method", method, "--out", out).status == 0
    checkpoint = vit.load_checkpoint(saved)
    explanation = view.explain(checkpoint, picture.read_bytes())
    subject = Subject.of(checkpoint.model, checkpoint.preprocess(explanation.picture))
    label = checkpoint.labels[subject.record.target] if METHODS[method].of_class else ""
    of_page = MapView.of_method(subject, method, label)
    saved_by_page = json.loads(view_json(explanation, of_page, checkpoint))
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["heatmap"], saved_by_page["heatmap"], rtol=1e-5)
        meta = json.loads(str(arrays["meta"]))
        assert meta["unit"] == saved_by_page["scale"]["unit"] and meta["view"] == saved_by_page["view"]
    in_python = vit.heatmap(checkpoint, explanation.picture, method)
    np.testing.assert_allclose(in_python, saved_by_page["heatmap"], rtol=1e-5)
    file = np.load(io.BytesIO(view_npz(explanation, Selection(), checkpoint, of_page)))
    np.testing.assert_allclose(file["heatmap"], in_python, rtol=1e-5)
    assert json.loads(str(file["meta"]))["unit"] == saved_by_page["scale"]["unit"]
    assert sum(saved_by_page["values"]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_method_has_an_option(command: Command, name: str) -> None:
    output = command("explain", "--help").out
    assert all(f"--{option.replace('_', '-')} " in output for option in options_of(name))


def explained(help_text: str, option: str) -> str:
    """What --help says of an option, in one line."""
    found = re.search(rf"^  --{option.replace('_', '-')} .*(?:\n {{10,}}.*)*", help_text, re.MULTILINE)
    assert found, option
    return re.sub(r"-\s+(?=\w)|\s+", lambda gap: gap[0].strip() or " ", found[0])


def default_of(help_text: str, option: str, method: str) -> str:
    """What --help says that an option of a method is where it is left out."""
    found = re.search(r"\(default: (.*)\)", explained(help_text, option))
    assert found, option
    cases = [case.partition(" of ") for case in found[1].split("; ")]
    return next(value for value, _, methods in cases if not methods or method in methods.split(", "))


@pytest.mark.parametrize("name", METHODS)
def test_help_tells_the_default_of_every_setting_of_a_method(command: Command, name: str) -> None:
    help_text = command("explain", "--help").out
    for setting, value in METHODS[name].settings.items():
        assert default_of(help_text, option_of(setting), name) == str(value)


def test_help_follows_the_table_of_methods(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("relevance", "rollout"):
        changed = {"start_block": 2} if name == "relevance" else {"residual": 0.3, "fusion": "max", "discard": 0.1}
        monkeypatch.setitem(METHODS, name, replace(METHODS[name], settings=changed, of_class=True))
    help_text = command("explain", "--help").out
    assert (
        default_of(help_text, "start_block", "relevance") == "2"
        and default_of(help_text, "start_block", "legrad") == "0"
    )
    assert default_of(help_text, "residual", "rollout") == "0.3" and default_of(help_text, "head", "rollout") == "max"
    assert default_of(help_text, "residual", "relevance-rollout") == "0.5"
    assert "attention: where attention goes" in explained(help_text, "method")


def test_options_offer_what_the_modules_behind_them_know() -> None:
    commands = next(action for action in parser()._actions if action.choices).choices
    options = {(name, one.dest): one for name, command in commands.items() for one in command._actions}
    every = head_statistics.names(("cls", "dist", "reg1"))
    assert set(options["heads", "statistic"].choices) == set(every)
    assert options["classify", "classifier"].choices == get_args(examples.Classifier)
    assert options["explain", "precision"].choices == get_args(Precision)
    for option, function in (("classifier", vit.answers_from_examples), ("precision", vit.record)):
        usual = inspect.signature(function).parameters[option].default
        assert f"(default: {usual})" in options["explain", option].help
    assert options["convert", "to"].choices == get_args(To)
    assert options["lesson", "language"].choices == get_args(Language)
    assert set(options["train", "data"].help.split(", ")) == set(datasets.NAMES) - {"folder:PATH"}
    for name, measure in (("faithfulness", rank), ("heads", census), ("features", features)):
        assert options[name, "limit"].default == inspect.signature(measure).parameters["limit"].default


@pytest.mark.parametrize("pool", [{"pool": "mean", "prefix": ()}, {"pool": "map", "prefix": ()}])
def test_attention_of_another_block_is_that_of_the_tokens_that_the_answer_is_read_from(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any, pool: dict[str, Any]
) -> None:
    path = vit.save_checkpoint(tmp_path / "model", build(**pool), LABELS, preprocess)
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", path, "--block=0", "--head=1", "--out", out).status == 0
    checkpoint = vit.load_checkpoint(path)
    with torch.inference_mode():
        pixels = checkpoint.preprocess(vit.decode_image(picture.read_bytes()))
        given = checkpoint.model(pixels, output_attentions=True)
    rows = given.attentions[0][0, 1]  # (N, N)
    share = torch.full((16,), 1 / 16) if pool["pool"] == "mean" else given.pool_attention[0].mean(0)
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["heatmap"].ravel(), share @ rows, rtol=1e-4)


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.of_class])
def test_the_predicted_class_is_explained_unless_another_is_named(
    command: Command, saved: Path, picture: Path, tmp_path: Path, method: str
) -> None:
    arguments = ["explain", picture, "--checkpoint", saved, "--method", method, "--out"]
    best = json.loads(command("classify", picture, "--checkpoint", saved, "--json").out)["results"][0]["predictions"][0]
    assert command(*arguments, tmp_path / "map.npz").status == 0
    with np.load(tmp_path / "map.npz") as arrays:
        assert json.loads(str(arrays["meta"]))["view"]["target"]["label"] == best["label"]
    assert command(*arguments, tmp_path / "map.png").status == 0
    assert Image.open(tmp_path / "map.png").size == (60, 40)


def test_a_map_that_is_zero_everywhere_is_told(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    model = build()
    with torch.no_grad():
        model.head.weight[1].zero_()  # nothing of the picture reaches this class
    path = vit.save_checkpoint(tmp_path / "deaf", model, ("cat", "dog", "cow", "bee", "ant"), preprocess)
    arguments = ["explain", picture, "--checkpoint", path, "--method=gradcam", "--out", tmp_path / "map.png"]
    assert "zero everywhere" in command(*arguments, "--target=dog").out
    assert "zero everywhere" not in command(*arguments[:-3], "--method=legrad", *arguments[-2:], "--target=cat").out


def test_a_model_without_classes_has_no_class_to_explain(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    path = vit.save_checkpoint(tmp_path / "features", build(num_classes=0), (), preprocess)
    result = command("explain", picture, "--checkpoint", path, "--method=legrad", "--target=cat", "--out=map.png")
    check_mistake(result, "features computes features and has no classes, so legrad has nothing to explain.")


def test_classes_of_one_name_are_told_apart_by_number(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    labels = ("crane", "bus", "Crane", "crane", "dog")
    path = vit.save_checkpoint(tmp_path / "cranes", build(), labels, preprocess)
    arguments = ["explain", picture, "--checkpoint", path, "--method=gradcam", "--out", tmp_path / "map.png"]
    check_mistake(command(*arguments, "--target=crane"), "2 classes are called 'crane': 0, 3. Name one by number.")
    assert command(*arguments, "--target=3").status == 0
    assert command(*arguments, "--target=Crane").status == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method=relevance", "--target=do", "--out=map.npz"], "There is no class 'do'. Did you mean dog?"),
        (["--method=relevance", "--target=9", "--out=map.npz"], "There is no class 9: they run from 0 to 4."),
        (["--method=legrad", "--target=9", "--out=map.npz"], "There is no class 9: they run from 0 to 4."),
        (
            ["--target=cat", "--out=map.npz"],
            "--target means nothing to attention; it is for attention-gradient, atten",
        ),
        (["--method=legrad", "--query=cls", "--out=map.npz"], "--query means nothing to legrad"),
        (
            ["--method=relevance", "--discard=0.5", "--out=map.npz"],
            "for rollout, gradient-rollout, relevance-rollout.",
        ),
        (["--method=rollout", "--start-block=1", "--out=map.npz"], "--start-block means nothing to rollout"),
        (["--method=gradcam", "--direction=to", "--out=map.npz"], "--direction means nothing to gradcam"),
        (["--method=rollout", "--block=0", "--out=map.npz"], "--block means nothing to rollout"),
        (["--method=gradcam", "--precision=bfloat16", "--out=map.npz"], "--precision means nothing to gradcam"),
        (["--method=rollout", "--discard=1", "--out=map.npz"], "--discard must be at least 0 and under 1, not 1."),
        (["--method=rollout", "--head=1", "--out=map.npz"], "rollout takes all heads: --head must be mean, max or min"),
        (["--method=legrad", "--start-block=2", "--out=map.npz"], "There is no block 2: they run from 0 to 1"),
        (["--query=4,0", "--out=map.npz"], "There is no patch 4,0: rows run from 0 to 3"),
        (["--query=here", "--out=map.npz"], "A query must be a prefix token (cls) or ROW,COL, not 'here'"),
        (["--query=1,2,3", "--out=map.npz"], "A query must be"),
        (["--direction=to", "--out=map.npz"], "--direction to says who looks at a token. Name it with --query."),
        (["--method=relevance-rollout", "--head=0", "--out=map.npz"], "relevance-rollout takes all heads: --head must"),
        (
            ["--method=attention-gradient-last", "--block=0", "--out=map.npz"],
            "--block means nothing to attention-gradi",
        ),
        (["--method=rollout", "--block=-1", "--out=map.npz"], "--block means nothing to rollout"),
        (["--block=2", "--out=map.npz"], "There is no block 2: they run from 0 to 1"),
        (["--head=-3", "--out=map.npz"], "There is no head -3"),
        (["--head=all", "--out=map.npz"], "'all' is neither a number nor one of mean, max, min"),
        (["--out=map.jpg"], "--out must be a folder or end in .png or .npz, not 'map.jpg'"),
        (["--out=nowhere/map.png"], "nowhere/map.png cannot be written: No such file or directory"),
        ([], "The following arguments are required: --out"),
    ],
)
def test_a_question_that_has_no_answer_is_told_in_one_line(
    command: Command, saved: Path, picture: Path, options: list[str], said: str
) -> None:
    check_mistake(command("explain", picture, "--checkpoint", saved, *options), said)


# --- evaluate -----------------------------------------------------------------------------------------------------


def test_evaluate_prints_one_document(command: Command, saved: Path, folder: Path) -> None:
    result = command("evaluate", "--checkpoint", saved, "--data", f"folder:{folder}", "--json")
    document = json.loads(result.out)
    assert result.status == 0
    assert document["pictures"] == 4
    assert 0 <= document["accuracy"] <= 1
    assert document["data"] == f"folder:{folder}"


def test_evaluate_says_the_same_to_people(command: Command, saved: Path, folder: Path) -> None:
    arguments = ("evaluate", "--checkpoint", saved, "--data", f"folder:{folder}")
    accuracy = json.loads(command(*arguments, "--json").out)["accuracy"]
    assert command(*arguments).out.startswith(f"{accuracy:.2%} of 4 pictures right")


# --- train --------------------------------------------------------------------------------------------------------


def test_train_leaves_a_run_whose_checkpoint_the_other_commands_open(
    command: Command, folder: Path, picture: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained = command("train", "--preset", "shapes", "--data", f"folder:{folder}", *settings("epochs=1"), "--run", run)
    assert trained.status == 0
    assert "validation pictures right" in trained.out and "of 4 test pictures right" in trained.out
    assert command("classify", picture, "--checkpoint", run / "checkpoints" / "best").status == 0
    resumed = command("train", "--resume", run)
    assert resumed.status == 0
    assert resumed.out.splitlines()[-1] == trained.out.splitlines()[-1]


def test_a_runs_own_description_trains_it_again(command: Command, folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command("train", "--data", f"folder:{folder}", *settings("epochs=1"), "--run", first)
    assert command("train", "--config", first / "config.json", "--run", second).status == 0
    weights = [(run / "checkpoints/last/model.safetensors").read_bytes() for run in (first, second)]
    assert weights[0] == weights[1]


@pytest.fixture
def trained(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run; its id."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    assert main(["train", "--data", f"folder:{folder}", *SMALL]) == 0
    return next((tmp_path / "runs").glob("2*")).name


SMALL = ["--set", "epochs=1", "image_size=8", "patch_size=4", "dim=16", "depth=1", "heads=2", "mlp_dim=16"]


def test_runs_are_listed_and_shown(command: Command, trained: str) -> None:
    listed = command("runs")
    assert listed.status == 0
    assert listed.out.split()[:3] == [trained, "finished", "100%"]
    assert re.search(r"validation \d+\.\d\d%, test \d+\.\d\d%", listed.out)
    shown = command("runs", "show", trained)
    assert json.loads(shown.out[shown.out.index("{") : shown.out.rindex("}") + 1])["dim"] == 16


def test_whoever_stops_reading_ends_a_command_without_a_word(tmp_path: Path) -> None:
    write_run(tmp_path, "one")
    unread, pipe = os.pipe()
    os.close(unread)
    line = [sys.executable, "-m", "vit", "runs"]
    done = subprocess.run(line, stdout=pipe, stderr=subprocess.PIPE, env=os.environ | {"VIT_RUNS": str(tmp_path)})
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_finished_run_is_neither_stopped_nor_resumed(command: Command, trained: str) -> None:
    assert command("runs", "stop", trained) == (2, "", "This run has ended already.\n")
    assert command("runs", "resume", trained).err == "This run has finished. Give it more epochs to continue it.\n"
    assert command("runs", "show", "none").err == "There is no such run. It may have been deleted.\n"
    assert "Name a run" in command("runs", "stop").err


def test_runs_are_deleted_when_that_is_meant(command: Command, trained: str, tmp_path: Path) -> None:
    said = command("runs", "delete", trained)
    assert said.status == 0 and said.out.startswith(f"Would delete {trained}: ") and "--yes" in said.out
    assert (tmp_path / "runs" / trained / "config.json").exists()
    assert command("runs", "delete", trained, "none", "--yes").status == 2  # nothing is done where one is unknown
    assert (tmp_path / "runs" / trained).exists()
    assert command("runs", "delete", trained, "--yes").out.startswith(f"Deleted {trained}: ")
    assert not any((tmp_path / "runs").glob("*dele*")) and not (tmp_path / "runs" / trained).exists()


def test_evaluate_keeps_which_pictures_were_taken_for_what(
    command: Command, saved: Path, folder: Path, tmp_path: Path
) -> None:
    data = f"folder:{folder}"
    result = command("evaluate", "--checkpoint", saved, "--data", data, "--report", tmp_path / "report.npz", "--json")
    assert result.status == 0, result.err
    confusion = read_report(tmp_path / "report.npz").confusion
    assert confusion.sum() == 4
    assert confusion.trace() / 4 == json.loads(result.out)["accuracy"]


def test_the_settings_are_listed(command: Command) -> None:
    result = command("train", "--settings")
    assert result.status == 0
    assert "warmup_epochs" in result.out and "cifar-cpu" in result.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "Name a --preset (shapes, "),
        (["--preset=nope"], "There is no preset 'nope'"),
        (["--preset=shapes", "--set=nope=1"], "There is no setting 'nope'"),
        (["--preset=shapes", "--set=preset=1"], "There is no setting 'preset'"),
        (["--preset=shapes", "--set=epochs"], "--set takes KEY=VALUE, not 'epochs'"),
        (["--preset=shapes", "--set=epochs=many"], "not 'many'"),
        (["--preset=shapes", "--set=lr=NaN"], "lr: "),
        (["--preset=shapes", "--set=device=tpu"], "device must be auto, cpu"),
        (["--preset=shapes", "--set=heads=7"], "heads 7 does not divide dim 48"),
        (["--preset=shapes", "--data=imagenet"], "There is no dataset 'imagenet'"),
        (["--preset=shapes", "--data=folder:nowhere"], "There is no folder 'nowhere'"),
        (["--preset=shapes", "--run=used"], "used exists and is not empty. Continue it with --resume used"),
        (["--resume=nowhere"], "--resume needs the folder of a run; nowhere/config.json cannot be read"),
        (["--resume=used", "--preset=shapes"], "it goes without other options"),
        (["--config=used/notes.txt"], "used/notes.txt is not JSON"),
        (["--config=nowhere.json"], "nowhere.json cannot be read: No such file"),
        (["--config=list.json"], "list.json must hold one JSON object"),
        (["--fast"], "Unrecognized arguments: --fast"),
    ],
)
def test_a_run_that_cannot_be_is_told_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "list.json").write_text("[1]")
    check_mistake(command("train", *options), said)
    assert (tmp_path / "used" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told_in_one_line(command: Command, tmp_path: Path) -> None:
    arguments = ("train", "--preset", "shapes", "--set", "device=cuda", "--run", tmp_path / "run")
    check_mistake(command(*arguments), "there is no CUDA GPU")


# --- All commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"", "picture.jpg: "), (b"plain text", "picture.jpg: ")]
)
def test_a_file_that_is_no_picture_is_told_in_one_line(
    command: Command, saved: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "picture.jpg"
    if content is not None:
        path.write_bytes(content)
    check_mistake(command("classify", path, "--checkpoint", saved), said)


def test_an_unknown_checkpoint_is_told_in_one_line(command: Command, picture: Path) -> None:
    check_mistake(command("classify", picture, "--checkpoint", "nowhere"), "nowhere")


@pytest.mark.parametrize("name", ["classify", "explain", "evaluate", "train"])
def test_every_command_explains_itself(command: Command, name: str) -> None:
    result = command(name, "--help")
    assert result.status == 0
    assert f"python -m vit {name}" in result.out


@pytest.mark.slow
def test_a_process_ends_with_status_2_and_one_line_for_a_mistake(tmp_path: Path) -> None:
    mistake = [sys.executable, "-m", "vit", "train", "--preset", "shapes", "--data", "folder:nowhere"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(mistake, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    check_mistake(Result(done.returncode, done.stdout, done.stderr), "There is no folder 'nowhere'")


def test_a_bug_in_a_method_is_no_mistake_of_the_users(
    command: Command, saved: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "gradcam", replace(METHODS["gradcam"], compute=lambda *_: int("bug")))
    with pytest.raises(ValueError, match="invalid literal"):
        command("explain", picture, "--checkpoint", saved, "--method=gradcam", "--out=map.npz")


def test_a_bug_keeps_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "run_train", lambda options: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # with which Python ends with status 1
        command("train")
