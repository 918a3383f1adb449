"""`vit explain`: drawings, exports, options, and one line for every request that cannot be answered."""

import inspect
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from commands import Command, check_mistake
from PIL import Image
from tiny import LABELS

import vit
from vit import view
from vit.checkpoints.convert import To
from vit.cli.parser import option_of, options_of, parser
from vit.data import datasets
from vit.explain import head_statistics
from vit.explain.classes import examples
from vit.explain.features import features
from vit.explain.gradcam import grad_cam
from vit.explain.head_census import census
from vit.explain.method_ranking import rank
from vit.explain.methods import METHODS, method
from vit.explain.record import Precision
from vit.explain.recorded_pass import RecordedPass
from vit.exports.arrays import view_npz
from vit.lesson.page import Language
from vit.view.map_view import MapView
from vit.view.selection import Selection

pytestmark = pytest.mark.matrix


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
        (["--method=attention"], lambda a: a[-1].mean(0)[0, 1:]),
        (["--block=0", "--head=1"], lambda a: a[0, 1, 0, 1:]),
        (["--query=1,2"], lambda a: a[-1].mean(0)[7, 1:]),
        (["--query=1,2", "--direction=to", "--head=max"], lambda a: a[-1].amax(0)[1:, 7]),
        (["--block=mean"], lambda a: a.mean((0, 1))[0, 1:]),
    ],
)
def test_exported_heatmap_is_the_models_attention(
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
            lambda m, x: grad_cam(m, x, 4, 0),
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
def test_each_method_exports_its_map_and_how_it_was_made(
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
def test_page_command_line_and_python_give_the_same_numbers_in_the_same_unit(
    command: Command, saved: Path, picture: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "map.npz"
    assert command("explain", picture, "--checkpoint", saved, "--method", method, "--out", out).status == 0
    checkpoint = vit.load_checkpoint(saved)
    explanation = view.explain(checkpoint, picture.read_bytes())
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(explanation.picture))
    label = checkpoint.labels[recorded.record.target] if METHODS[method].of_class else ""
    of_page = MapView.of_method(recorded, method, label)
    saved_by_page = np.load(io.BytesIO(view_npz(explanation, Selection(), checkpoint, of_page)))
    facts_of_page = json.loads(str(saved_by_page["meta"]))
    with np.load(out) as arrays:
        np.testing.assert_allclose(arrays["heatmap"], saved_by_page["heatmap"], rtol=1e-5)
        meta = json.loads(str(arrays["meta"]))
        assert meta["unit"] == facts_of_page["unit"] and meta["view"] == facts_of_page["view"]
    in_python = vit.heatmap(checkpoint, explanation.picture, method)
    np.testing.assert_allclose(in_python, saved_by_page["heatmap"], rtol=1e-5)
    assert float(of_page.weights.abs().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_a_method_has_an_option(command: Command, name: str) -> None:
    output = command("explain", "--help").out
    assert all(f"--{option.replace('_', '-')} " in output for option in options_of(name))


def explained(help_text: str, option: str) -> str:
    """Return the help text of an option, in one line."""
    found = re.search(rf"^  --{option.replace('_', '-')} .*(?:\n {{10,}}.*)*", help_text, re.MULTILINE)
    assert found, option
    return re.sub(r"-\s+(?=\w)|\s+", lambda gap: gap[0].strip() or " ", found[0])


def default_of(help_text: str, option: str, method: str) -> str:
    """Return the default that --help states for an option of a method."""
    found = re.search(r"\(default: (.*)\)", explained(help_text, option))
    assert found, option
    cases = [case.partition(" of ") for case in found[1].split("; ")]
    return next(value for value, _, methods in cases if not methods or method in methods.split(", "))


@pytest.mark.parametrize("name", METHODS)
def test_help_states_the_default_of_every_setting_of_a_method(command: Command, name: str) -> None:
    help_text = command("explain", "--help").out
    for setting, value in METHODS[name].settings.items():
        assert default_of(help_text, option_of(setting), name) == str(value)


@pytest.fixture
def powered() -> Iterator[None]:
    """Register a method with settings of unique names, as docs/adding-a-method.md describes."""
    before = dict(METHODS)

    @method("powered", "Powered", "Attention to a power.", of_class=False)
    def powered(
        recorded: RecordedPass,
        query: Any,
        direction: Any,
        *,
        sharp_power: float = 1.0,
        steps: int = 1,
        flat: bool = False,
    ) -> torch.Tensor:
        weights = recorded.record.last_attention() ** (sharp_power * steps)
        return torch.ones_like(weights) if flat else weights

    yield
    METHODS.clear()
    METHODS.update(before)


def test_setting_with_a_new_name_has_an_option(
    command: Command, saved: Path, picture: Path, tmp_path: Path, powered: None
) -> None:
    def drawn(*options: str) -> np.ndarray:
        out = tmp_path / "map.npz"
        result = command("explain", picture, "--checkpoint", saved, "--method", "powered", "--out", out, *options)
        assert result.status == 0, result.err
        with np.load(out) as arrays:
            return arrays["heatmap"]

    plain = drawn()
    np.testing.assert_allclose(drawn("--sharp-power", "2", "--steps=3"), plain**6, rtol=1e-4)
    assert np.ptp(drawn("--flat")) == 0 < np.ptp(plain)
    assert default_of(command("explain", "--help").out, "sharp-power", "powered") == "1.0"
    check_mistake(
        command("explain", picture, "--checkpoint", saved, "--method", "rollout", "--steps", "2", "--out", "a.png"),
        "--steps has no effect on rollout; it applies to powered",
    )


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
    anyway = ", ".join(name for name, method in METHODS.items() if not method.of_class)
    assert f"{anyway}: the same for every class" in explained(help_text, "method")


def test_options_offer_the_choices_of_their_modules() -> None:
    commands = next(action for action in parser()._actions if action.choices).choices
    options = {(name, one.dest): one for name, command in commands.items() for one in command._actions}
    every = head_statistics.names(("cls", "dist", "reg1"))
    assert set(options["heads", "statistic"].choices) == set(every)
    assert options["classify", "classifier"].choices == get_args(examples.Classifier)
    assert options["explain", "precision"].choices == get_args(Precision)
    for option, function in (("classifier", vit.classes_from_examples), ("precision", vit.record)):
        usual = inspect.signature(function).parameters[option].default
        assert f"(default: {usual})" in options["explain", option].help
    assert options["convert", "to"].choices == get_args(To)
    assert options["lesson", "language"].choices == get_args(Language)
    assert set(options["train", "data"].help.split(", ")) == set(datasets.NAMES) - {"folder:PATH"}
    for name, measure in (("faithfulness", rank), ("heads", census), ("features", features)):
        assert options[name, "limit"].default == inspect.signature(measure).parameters["limit"].default


@pytest.mark.parametrize("pool", [{"pool": "mean", "prefix": ()}, {"pool": "map", "prefix": ()}])
def test_attention_of_another_block_is_that_of_the_tokens_that_the_head_reads(
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
def test_predicted_class_is_explained_by_default(
    command: Command, saved: Path, picture: Path, tmp_path: Path, method: str
) -> None:
    arguments = ["explain", picture, "--checkpoint", saved, "--method", method, "--out"]
    best = json.loads(command("classify", picture, "--checkpoint", saved, "--json").out)["results"][0]["predictions"][0]
    assert command(*arguments, tmp_path / "map.npz").status == 0
    with np.load(tmp_path / "map.npz") as arrays:
        assert json.loads(str(arrays["meta"]))["view"]["target"]["label"] == best["label"]
    assert command(*arguments, tmp_path / "map.png").status == 0
    assert Image.open(tmp_path / "map.png").size == (60, 40)


def test_all_zero_map_is_reported(command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any) -> None:
    model = build()
    with torch.no_grad():
        model.head.weight[1].zero_()  # nothing of the picture reaches this class
    path = vit.save_checkpoint(tmp_path / "deaf", model, ("cat", "dog", "cow", "bee", "ant"), preprocess)
    arguments = ["explain", picture, "--checkpoint", path, "--method=gradcam", "--out", tmp_path / "map.png"]
    assert "zero everywhere" in command(*arguments, "--target=dog").out
    assert "zero everywhere" not in command(*arguments[:-3], "--method=legrad", *arguments[-2:], "--target=cat").out


def test_model_without_classes_has_no_class_to_explain(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    path = vit.save_checkpoint(tmp_path / "features", build(num_classes=0), (), preprocess)
    result = command("explain", picture, "--checkpoint", path, "--method=legrad", "--target=cat", "--out=map.png")
    check_mistake(result, "features computes features and has no classes, so legrad has nothing to explain.")


def test_classes_of_equal_name_are_chosen_by_number(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    labels = ("crane", "bus", "Crane", "crane", "dog")
    path = vit.save_checkpoint(tmp_path / "cranes", build(), labels, preprocess)
    arguments = ["explain", picture, "--checkpoint", path, "--method=gradcam", "--out", tmp_path / "map.png"]
    check_mistake(command(*arguments, "--target=crane"), "2 classes are called 'crane': 0, 3. Give the index of one.")
    assert command(*arguments, "--target=3").status == 0
    assert command(*arguments, "--target=Crane").status == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method=relevance", "--target=do", "--out=map.npz"], "There is no class 'do'. Did you mean dog?"),
        (["--method=relevance", "--target=9", "--out=map.npz"], "There is no class 9: they run from 0 to 4."),
        (["--method=legrad", "--target=9", "--out=map.npz"], "There is no class 9: they run from 0 to 4."),
        (
            ["--method=attention", "--target=cat", "--out=map.npz"],
            "--target has no effect on attention; it applies to attnlrp, attention-gradient",
        ),
        (["--method=legrad", "--query=cls", "--out=map.npz"], "--query has no effect on legrad"),
        (
            ["--method=relevance", "--discard=0.5", "--out=map.npz"],
            "applies to rollout, gradient-rollout, relevance-rollout.",
        ),
        (["--method=rollout", "--start-block=1", "--out=map.npz"], "--start-block has no effect on rollout"),
        (["--method=gradcam", "--direction=to", "--out=map.npz"], "--direction has no effect on gradcam"),
        (["--method=rollout", "--block=0", "--out=map.npz"], "--block has no effect on rollout"),
        (["--method=gradcam", "--precision=bfloat16", "--out=map.npz"], "--precision has no effect on gradcam"),
        (["--method=rollout", "--discard=1", "--out=map.npz"], "--discard must be at least 0 and under 1, not 1."),
        (["--method=rollout", "--head=1", "--out=map.npz"], "rollout takes all heads: --head must be mean, max or min"),
        (["--method=legrad", "--start-block=2", "--out=map.npz"], "There is no block 2: they run from 0 to 1"),
        (["--query=4,0", "--out=map.npz"], "There is no patch 4,0: rows run from 0 to 3"),
        (["--query=here", "--out=map.npz"], "A query must be a prefix token (cls) or ROW,COL, not 'here'"),
        (["--query=1,2,3", "--out=map.npz"], "A query must be"),
        (["--direction=to", "--out=map.npz"], "--direction to needs --query, the token that receives the attention."),
        (["--method=relevance-rollout", "--head=0", "--out=map.npz"], "relevance-rollout takes all heads: --head must"),
        (
            ["--method=attention-gradient-last", "--block=0", "--out=map.npz"],
            "--block has no effect on attention-gradi",
        ),
        (["--method=rollout", "--block=-1", "--out=map.npz"], "--block has no effect on rollout"),
        (["--block=2", "--out=map.npz"], "There is no block 2: they run from 0 to 1"),
        (["--head=-3", "--out=map.npz"], "There is no head -3"),
        (["--head=all", "--out=map.npz"], "'all' is neither a number nor one of mean, max, min"),
        (["--out=map.jpg"], "--out must be a folder or end in .png or .npz, not 'map.jpg'"),
        (["--out=nowhere/map.png"], "nowhere/map.png cannot be written: No such file or directory"),
        ([], "The following arguments are required: --out"),
    ],
)
def test_request_without_an_answer_is_refused_in_one_line(
    command: Command, saved: Path, picture: Path, options: list[str], said: str
) -> None:
    check_mistake(command("explain", picture, "--checkpoint", saved, *options), said)
