"""Temperature and threshold of sure answers: fitted, kept with a checkpoint, and stated wherever it answers."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import Command
from PIL import Image
from saved_checkpoints import save
from torch.nn import functional as F

import vit
from vit.checkpoints import abstention
from vit.checkpoints.convert import convert
from vit.checkpoints.custom_classes import CustomClasses
from vit.model.transformer import VisionTransformer
from vit.training.loop.calibration import calibrate, fit_temperature


def drawn(pictures: int, times: float, classes: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits whose probabilities are the true ones once they are divided by `times`, and labels."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(pictures, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return times * logits, labels


@pytest.mark.parametrize("times", [0.3, 1.0, 4.0])
def test_temperature_is_found_again(times: float) -> None:
    assert fit_temperature(*drawn(20_000, times)) == pytest.approx(times, rel=0.05)


def test_temperature_stays_finite_if_every_answer_is_right() -> None:
    labels = torch.arange(5).repeat(6)
    probabilities = (F.one_hot(labels).double() / fit_temperature(F.one_hot(labels).double(), labels)).softmax(1)
    assert 0.9 < probabilities.max(1).values.mean() < 0.99  # 30 pictures do not show more


def test_sure_answers_are_right_in_nine_of_ten_cases_and_no_lower_threshold_keeps_that() -> None:
    logits, labels = drawn(5_000, 1.0)
    found = calibrate(logits, labels)
    assert found is not None and found.pictures == 5_000 and 0 < found.sure < 0.9
    scores, answers = (logits / found.temperature).max(1)
    right = answers == labels
    assert right[scores >= found.threshold].double().mean() >= 0.9
    lower = sorted(scores[scores < found.threshold].tolist())[-1]
    assert right[scores >= lower].double().mean() < 0.9


def test_model_that_is_nearly_always_right_still_has_a_threshold() -> None:
    labels = torch.arange(4).repeat(50)
    strengths = torch.linspace(2, 6, 200)[torch.randperm(200, generator=torch.Generator().manual_seed(0))]
    found = calibrate(strengths[:, None] * F.one_hot(labels), labels)
    assert found is not None and found.right == 1 and found.sure == pytest.approx(0.95, abs=0.006)


def test_model_that_knows_nothing_is_never_sure() -> None:
    logits, labels = drawn(400, 1.0)
    found = calibrate(logits, (logits.argmax(1) + 1) % 5)
    assert found is not None and found.threshold == abstention.NEVER and found.sure == 0
    assert found.facts("validation")["sure_on"] == "0% of 400 validation pictures have a sure answer"
    assert calibrate(logits[:19], labels[:19]) is None  # too few


@pytest.mark.parametrize("threshold", [None, "0.5", True, 1, math.inf, math.nan, [0.5]])
def test_invalid_threshold_in_a_file_is_none(threshold: object) -> None:
    assert abstention.threshold_of({"sure_from": threshold}) is None
    assert abstention.is_sure(3.0, {"sure_from": threshold}) is None


@pytest.mark.parametrize(
    ("ranked", "sentence"),
    [
        (
            [("umbrella", 0.21), ("tent", 0.17), ("sail", 0.09), ("kite", 0.08)],
            "umbrella (21%), tent (17%) or sail (9%)",
        ),
        ([("yes", 0.55), ("no", 0.45)], "yes (55%) or no (45%)"),
    ],
)
def test_answer_that_is_not_sure_names_up_to_three_classes(ranked: list[tuple[str, float]], sentence: str) -> None:
    assert abstention.perhaps(ranked) == f"Not sure: perhaps {sentence}"


@pytest.fixture
def answering(tmp_path: Path, build: Callable[..., VisionTransformer]) -> Callable[[float], Path]:
    """Return `answering(threshold)`: a checkpoint with logits log 6, log 3 and 0 for every picture."""
    model = build(num_classes=3)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([6.0, 3.0, 1.0]).log())
    return lambda threshold: save(tmp_path / "answering", model, facts={"sure_from": threshold, "accuracy": 0.5})


@pytest.mark.parametrize(("threshold", "sure"), [(1.7, True), (1.9, False)])
def test_command_line_says_whether_it_is_sure(
    answering: Callable[[float], Path], command: Command, picture: Path, threshold: float, sure: bool
) -> None:
    folder = answering(threshold)
    [result] = json.loads(command("classify", picture, "--checkpoint", folder, "--json").out)["results"]
    assert result["sure"] is sure
    names = vit.load_checkpoint(folder).labels
    said = f"Not sure: perhaps {names[0]} (60%), {names[1]} (30%) or {names[2]} (10%). This model knows 3 things."
    assert (said in command("classify", picture, "--checkpoint", folder).out) is not sure


def test_threshold_is_of_the_checkpoints_own_classes(answering: Callable[[float], Path]) -> None:
    checkpoint = vit.load_checkpoint(answering(1.9))
    head = torch.nn.Linear(checkpoint.config.dim, 2).eval()
    other = checkpoint.with_classes(CustomClasses(("a", "b"), head, "by hand"))
    assert abstention.threshold_of(checkpoint.facts) == 1.9 and abstention.threshold_of(other.facts) is None


def test_converted_checkpoint_keeps_the_threshold(answering: Callable[[float], Path], tmp_path: Path) -> None:
    checkpoint = vit.load_checkpoint(answering(1.9))
    for to in ("transformers", "timm"):
        converted = vit.load_checkpoint(convert(checkpoint, tmp_path / to, to))
        assert abstention.threshold_of(converted.facts) == 1.9


def test_evaluation_writes_the_threshold_into_the_card(
    answering: Callable[[float], Path], command: Command, tmp_path: Path
) -> None:
    folder = answering(1.9)
    names, weights = vit.load_checkpoint(folder).labels, (folder / "model.safetensors").read_bytes()
    for name, count in zip(names, (28, 1, 1), strict=True):
        for split in ("train", "test"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (16, 16), (i, 80, 20)).save(tmp_path / "data" / split / name / f"{i}.png")
    data = f"folder:{tmp_path / 'data'}"
    assert (
        "Sure from a logit of 1.792: 100% of 30"
        in command("evaluate", "--data", data, "--checkpoint", folder, "--card").out
    )
    after = vit.load_checkpoint(folder)
    assert (
        abstention.threshold_of(after.facts) == pytest.approx(math.log(6), abs=1e-4) and after.facts["accuracy"] == 0.5
    )
    assert "93% of these are right" in after.card
    assert (folder / "model.safetensors").read_bytes() == weights
