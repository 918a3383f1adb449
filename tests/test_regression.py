"""Models that estimate numbers: outputs without probabilities, in an unknown unit."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from commands import Command
from PIL import Image
from tiny import fill
from torch import Tensor, nn
from transformers import ViTConfig as TheirConfig
from transformers import ViTForImageClassification, ViTImageProcessor, ViTModel

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.convert import convert
from vit.checkpoints.load import summarise
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.checkpoints.modules.live_module import find_vit
from vit.checkpoints.save import save_checkpoint
from vit.errors import UserError
from vit.explain.faithfulness import Curve, deletion
from vit.explain.faithfulness_correlation import (
    faithfulness_verdict,
    masks_are_informative,
    random_masks,
    score_drops,
)
from vit.explain.logit_lens import logit_lens
from vit.explain.method_ranking import rank
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.occlusion import occlusion
from vit.explain.recorded_pass import RecordedPass
from vit.exports import contact_sheet, figures, tables
from vit.images.files.decode import decode_image
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import TrainConfig
from vit.training.loop.evaluation import evaluate_checkpoint
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.view.attention_snapshots import read_snapshots
from vit.view.explanation import explain
from vit.view.prediction import answer, written

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-6,
}
NAMES = {0: "age", 1: "weight"}


def their_model(**config: object) -> ViTForImageClassification:
    """Return a regression model of transformers whose second output is the largest for every picture."""
    model = fill(ViTForImageClassification(TheirConfig(**SIZES, problem_type="regression", **config)))
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([-20.0, 300.0])[: model.num_labels])
    return model.eval()


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Path]:
    """Return `theirs(**config)`: the folder of such a model."""

    def save(**config: object) -> Path:
        their_model(**config).save_pretrained(tmp_path / "theirs")
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "theirs")
        return tmp_path / "theirs"

    return save


@pytest.fixture
def numbers(theirs: Callable[..., Path]) -> Checkpoint:
    """A checkpoint that estimates age and weight."""
    return vit.load_checkpoint(theirs(id2label=NAMES))


def pixels_of(checkpoint: Checkpoint, picture: Path) -> Tensor:
    return checkpoint.preprocess(decode_image(picture.read_bytes()))


@pytest.mark.parametrize("names", [None, NAMES])
@pytest.mark.parametrize("in_memory", [False, True])
def test_outputs_are_those_of_transformers(
    theirs: Callable[..., Path], picture: Path, names: dict[int, str] | None, in_memory: bool
) -> None:
    config = {"id2label": names} if names else {"num_labels": 2}
    folder = theirs(**config)
    opened = checkpoint_from_module(their_model(**config)) if in_memory else vit.load_checkpoint(folder)
    assert opened.estimates and opened.labels == (tuple(names.values()) if names else ("output 0", "output 1"))
    assert ("labels" in opened.assumed) is not bool(names) and "outputs" not in opened.assumed
    explained, pixels = explain(opened, picture.read_bytes()), pixels_of(opened, picture)
    with torch.no_grad():
        expected = their_model(**config)(pixels).logits[0].tolist()
    assert explained.probabilities == pytest.approx(expected, rel=1e-4)
    assert [one.label for one in explained.predictions] == list(opened.labels)  # the second one is the largest
    assert summarise(folder).labels == 0 and not summarise(folder).problem


@pytest.mark.parametrize("name", ["classifier", "regressor"])
def test_names_beside_the_weights_name_the_outputs(tmp_path: Path, name: str) -> None:
    whole = nn.ModuleDict(
        {"vit": fill(ViTModel(TheirConfig(**SIZES), add_pooling_layer=False)), name: nn.Linear(48, 2)}
    )
    torch.save(whole.state_dict(), tmp_path / "best.pth")
    (tmp_path / "labels.txt").write_text("age\nweight\n")
    opened = vit.load_checkpoint(tmp_path, heads=3)
    assert opened.labels == ("age", "weight") and opened.estimates is (name == "regressor")


class Estimator(nn.Module):
    """Somebody's own module, which returns (B,) numbers."""

    def __init__(self, link: Callable[[Tensor], Tensor]):
        super().__init__()
        self.vit = fill(ViTModel(TheirConfig(**SIZES), add_pooling_layer=False))
        self.regressor, self.link = nn.Linear(48, 1), link

    def forward(self, images: Tensor) -> Tensor:
        """Estimate (B,) numbers of pictures."""
        return self.link(self.regressor(self.vit(images).last_hidden_state[:, 0])).squeeze(-1)


@pytest.mark.parametrize("link", [torch.sigmoid, lambda x: x])
def test_own_module_estimates_numbers(picture: Path, link: Callable[[Tensor], Tensor]) -> None:
    module = Estimator(link).eval()
    opened = checkpoint_from_module(module)
    assert opened.estimates and opened.labels == ("output 0",) and find_vit(module).labels == ("output 0",)
    pixels = pixels_of(opened, picture)
    with torch.no_grad():
        torch.testing.assert_close(link(opened.model(pixels).logits[:, 0]), module(pixels), atol=1e-5, rtol=1e-5)
    assert ("before it" in opened.assumed.get("outputs", "")) is (link is torch.sigmoid)


@pytest.mark.parametrize("to", ["saved", "transformers", "timm"])
def test_round_trips_keep_the_outputs(numbers: Checkpoint, picture: Path, tmp_path: Path, to: str) -> None:
    if to == "saved":
        folder = save_checkpoint(tmp_path / "copy", numbers.model, numbers.labels, numbers.preprocess)
        assert "2 estimated numbers" in (folder / "README.md").read_text()
    else:
        folder = convert(numbers, tmp_path / "copy", to)
    assert json.loads((folder / "config.json").read_text())["problem_type"] == "regression"
    again = vit.load_checkpoint(folder)
    assert again.estimates and again.labels == numbers.labels
    pixels = pixels_of(numbers, picture)
    torch.testing.assert_close(again.model(pixels).logits, numbers.model(pixels).logits)


def test_single_file_of_a_saved_checkpoint_keeps_the_outputs(numbers: Checkpoint, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path / "copy", numbers.model, numbers.labels, numbers.preprocess)
    again = vit.load_checkpoint((folder / "model.safetensors").rename(tmp_path / "alone.safetensors"))
    assert again.estimates and again.labels == numbers.labels


def test_conversion_that_would_make_a_classifier_is_refused(numbers: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its outputs are numbers"):
        convert(numbers, tmp_path / "copy.pth", "torchvision")


def scaled(model: VisionTransformer, factor: float, offset: float) -> VisionTransformer:
    """Return the model with its outputs in another unit."""
    head = fill(nn.Linear(48, 2))
    with torch.no_grad():
        head.weight.copy_(factor * model.head.weight)
        head.bias.copy_(factor * model.head.bias + offset)
    return model.with_head(head, 2, "none")


def test_faithfulness_does_not_depend_on_the_unit(numbers: Checkpoint, picture: Path) -> None:
    pixels, masks, found = pixels_of(numbers, picture), random_masks(16, 64), []
    for factor, offset in ((1.0, 0.0), (1e-6, 0.0), (1e6, 0.0), (1.0, 273.0)):
        model = scaled(numbers.model, factor, offset)
        recorded = RecordedPass.of_class(model, pixels)
        drops = score_drops(model, pixels, 0, masks)
        assert masks_are_informative(drops, float(recorded.record.logits[0, 0]))
        maps = {name: heatmap_of(recorded, name) for name in METHODS}
        heatmap = maps["relevance"]
        curve = deletion(model, pixels, 0, heatmap)
        found.append(
            [*faithfulness_verdict(heatmap, masks, drops), curve.is_informative, torch.stack([*maps.values()])]
        )
        assert curve.probabilities[0] == pytest.approx(float(model(pixels).logits[0, 0].detach()), rel=1e-5)
    for other in found[1:]:
        assert other[:-1] == pytest.approx(found[0][:-1], abs=0.02)
        torch.testing.assert_close(other[-1], found[0][-1], atol=1e-3, rtol=1e-2)


def test_rounding_errors_of_a_number_are_no_change() -> None:
    drops = torch.tensor([2e-4, -1e-4])
    assert masks_are_informative(drops, 0.5) and not masks_are_informative(drops, 70.0)
    assert not masks_are_informative(drops)  # of a log-probability
    assert not masks_are_informative(torch.zeros(2), 0.0)


@pytest.mark.parametrize(
    ("values", "leads"), [((-9.0, -1.0, -8.9), False), ((-9.0, -5.0, -1.0), True), ((-4.0, 4.0), True)]
)
def test_curve_of_numbers_is_judged_by_its_range(values: tuple[float, ...], leads: bool) -> None:
    assert Curve((0.0,) * len(values), values, numbers=True).is_informative is leads
    shifted = tuple(1000 + value for value in values)
    assert Curve((0.0,) * len(values), shifted, numbers=True).is_informative is leads


@pytest.mark.parametrize("method", [name for name in METHODS if METHODS[name].of_class])
def test_every_method_explains_the_first_output_by_default(numbers: Checkpoint, picture: Path, method: str) -> None:
    image = decode_image(picture.read_bytes())
    usual, first, second = (vit.heatmap(numbers, image, method, target) for target in (None, 0, "weight"))
    torch.testing.assert_close(usual, first)
    assert not torch.allclose(usual, second)
    assert int(numbers.model(pixels_of(numbers, picture)).logits.argmax()) == 1


def test_numbers_are_measured_as_they_are(numbers: Checkpoint, picture: Path) -> None:
    pixels = pixels_of(numbers, picture)
    expected = numbers.model(pixels).logits[0].detach()
    torch.testing.assert_close(logit_lens(numbers.model, pixels, 1).answers[-1], expected)
    hidden = occlusion(numbers.model, pixels)
    assert hidden.shape == (16, 2) and (hidden[:, 0] < 0).all() and (hidden[:, 1] > 1).all()


def test_answer_states_numbers_and_no_shares(numbers: Checkpoint, picture: Path) -> None:
    explained = explain(numbers, picture.read_bytes())
    values = explained.probabilities
    said = "".join(answer(numbers, explained))
    assert said == f"It estimates age = {values[0]:.4g}, weight = {values[1]:.4g}.".replace("-", "−")
    caption = figures.caption(explained, numbers, "")
    assert "It estimates age = −" in caption and "predicted" not in caption and "%" not in caption
    assert [written(numbers, one) for one in (412_345.6, -0.00123, 3.0)] == ["412,346", "−0.00123", "3"]


def test_many_numbers_are_abridged(theirs: Callable[..., Path], picture: Path) -> None:
    wide = ViTForImageClassification(TheirConfig(**SIZES, problem_type="regression", num_labels=98))
    opened = checkpoint_from_module(fill(wide))
    said = "".join(answer(opened, explain(opened, picture.read_bytes())))
    assert "output 7 = " in said and "output 8" not in said and said.endswith(", ….")


def test_command_line_prints_numbers(numbers: Checkpoint, picture: Path, command: Command) -> None:
    values = explain(numbers, picture.read_bytes()).probabilities
    printed = json.loads(command("classify", picture, "--checkpoint", numbers.path, "--json").out)
    (result,) = printed["results"]
    assert [one["label"] for one in result["predictions"]] == ["age", "weight"]
    assert [one["value"] for one in result["predictions"]] == pytest.approx(values, rel=1e-5)
    text = command("classify", picture, "--checkpoint", numbers.path).out
    assert f"{values[1]:.4g}" in text and "%" not in text and "█" not in text


def test_notebook_states_numbers(numbers: Checkpoint, picture: Path) -> None:
    shown = vit.view(numbers, picture, method="relevance")
    assert shown.target == "age"
    value = explain(numbers, picture.read_bytes()).probabilities[1]
    assert any(f"weight {value:.4g}" in fact for fact in shown._facts)


def test_contact_sheet_and_tables_have_values(numbers: Checkpoint, picture: Path) -> None:
    one = contact_sheet.Picture("one", picture.read_bytes(), "cat")
    result = contact_sheet.classify_and_explain(numbers, one, "relevance")
    value = explain(numbers, picture.read_bytes()).probabilities[0]
    (row,) = tables.sheet_table([contact_sheet.evaluate(numbers, one, result)], numbers.estimates)
    assert row["output"] == "age" and row["value"] == pytest.approx(value, rel=1e-5)
    assert row["right"] is None and not {"prediction", "confidence"} & row.keys()
    lens = logit_lens(numbers.model, pixels_of(numbers, picture), 0)
    assert tables.layers_table(lens, numbers.labels, numbers.estimates)[0].keys() == {"block", "output", "value"}


@pytest.fixture
def pets(tmp_path: Path) -> str:
    """A dataset of two classes."""
    for name, colour in (("dog", "brown"), ("cat", "grey")):
        for split in ("train", "test"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), colour).save(tmp_path / "pets" / split / name / "0.png")
    return f"folder:{tmp_path / 'pets'}"


def test_dataset_ranks_methods_and_evaluates_nothing(numbers: Checkpoint, pets: str) -> None:
    with pytest.raises(UserError, match="estimates numbers, not classes"):
        evaluate_checkpoint(numbers, pets)
    assert rank(numbers, pets, 2, names=["relevance"])[0].pictures == 2


def test_identity_and_body(numbers: Checkpoint) -> None:
    config = numbers.path / "config.json"
    document = json.loads(config.read_text())
    config.write_text(json.dumps(document | {"problem_type": "single_label_classification"}))
    classifier = vit.load_checkpoint(numbers.path)
    assert not classifier.estimates and classifier.identity != numbers.identity and classifier.body == numbers.body


def test_config_of_other_checkpoints_is_saved_as_before(checkpoint: Checkpoint) -> None:
    assert "regression" not in checkpoint.config.to_dict() and "regression" not in repr(checkpoint.config)


def test_training_from_it_classifies(numbers: Checkpoint) -> None:
    config = TrainConfig(data="shapes", init_from=str(numbers.path)).vit_config(4, numbers.config)
    assert VisionTransformer(config).activation == "softmax"


def test_other_classes_replace_the_numbers(numbers: Checkpoint) -> None:
    classes = vit.CustomClasses(("a", "b"), fill(nn.Linear(48, 2)), "a test")
    assert not numbers.with_classes(classes).estimates and not numbers.with_classes(classes).config.regression
    difference = replace(classes, activation="none")
    assert numbers.with_classes(difference).estimates


def test_snapshots_leave_numbers_out(numbers: Checkpoint, tmp_path: Path) -> None:
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    SnapshotWriter(tmp_path, images, [1], numbers.labels, numbers.preprocess).store(1, numbers.model)
    (snapshot,) = read_snapshots(tmp_path, 1)
    assert snapshot.probability is None and not snapshot.predictions
