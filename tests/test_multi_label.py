"""Multi-label models and models with one output: sigmoids, as in transformers."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from commands import Command
from PIL import Image
from tiny import fill
from transformers import ImageClassificationPipeline, ViTForImageClassification, ViTImageProcessor
from transformers import ViTConfig as TheirConfig

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.convert import convert
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.errors import UserError
from vit.explain.logit_lens import logit_lens
from vit.explain.relevance import relevance_record
from vit.images.files.decode import decode_image
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import TrainConfig
from vit.training.loop.evaluation import evaluate_checkpoint
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.view.attention_snapshots import read_snapshots
from vit.view.explanation import explain

SIZES = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 96,
    "image_size": 32,
    "patch_size": 8,
    "layer_norm_eps": 1e-6,
}
NAMES = {0: "beach", 1: "sea", 2: "dog", 3: "night"}


@pytest.fixture
def theirs(tmp_path: Path) -> Callable[..., Path]:
    """Return `theirs(**config)`: the folder of a transformers model with random parameters."""

    def save(**config: object) -> Path:
        folder = tmp_path / "theirs"
        fill(ViTForImageClassification(TheirConfig(**SIZES, **config))).save_pretrained(folder)
        ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def several(theirs: Callable[..., Path]) -> Checkpoint:
    """A checkpoint of four classes that are not mutually exclusive."""
    return vit.load_checkpoint(theirs(id2label=NAMES, problem_type="multi_label_classification"))


def of_their_pipeline(folder: Path, picture: Path) -> dict[str, float]:
    """Return the output of transformers' own pipeline."""
    model = ViTForImageClassification.from_pretrained(folder)
    pipeline = ImageClassificationPipeline(model=model, image_processor=ViTImageProcessor.from_pretrained(folder))
    return {one["label"]: one["score"] for one in pipeline(str(picture))}


def test_probabilities_equal_those_of_transformers_pipeline(
    several: Checkpoint, picture: Path, command: Command, tmp_path: Path
) -> None:
    expected = of_their_pipeline(several.path, picture)
    assert sum(expected.values()) != pytest.approx(1, abs=0.1)
    explained = explain(several, picture.read_bytes())
    assert dict(explained.predictions) == pytest.approx(expected, abs=1e-2)  # their processor resizes differently
    printed = command("classify", picture, "--checkpoint", several.path, "--json")
    assert {
        one["label"]: one["probability"] for one in json.loads(printed.out)["results"][0]["predictions"]
    } == pytest.approx(expected, abs=1e-2)
    module = ViTForImageClassification.from_pretrained(several.path)
    pixels = several.preprocess(decode_image(picture.read_bytes()))
    both = (one.model.probabilities(one.model(pixels).logits) for one in (several, checkpoint_from_module(module)))
    torch.testing.assert_close(*both)
    # Consumers of the explainers: the last block's answer, and the logit whose gradient is computed.
    torch.testing.assert_close(logit_lens(several.model, pixels, 1).answers[-1], torch.tensor(explained.probabilities))
    gradient = relevance_record(several.model, pixels, target=2).gradients
    vit_of_softmax = several.model.with_head(several.model.head, 4)
    for one, other in zip(gradient, relevance_record(vit_of_softmax, pixels, target=2).gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_one_output_is_a_binary_classification(theirs: Callable[..., Path], picture: Path) -> None:
    folder = theirs(num_labels=1)
    opened = vit.load_checkpoint(folder)
    (answer,) = explain(opened, picture.read_bytes()).probabilities
    assert answer == pytest.approx(of_their_pipeline(folder, picture)["LABEL_0"], abs=1e-2)
    assert 0 < answer < 1 and "sigmoid" in opened.assumed["outputs"]
    with pytest.raises(UserError, match="one output"):
        evaluate_checkpoint(opened, "shapes")


@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_conversions_keep_multi_label(several: Checkpoint, to: str, tmp_path: Path) -> None:
    again = vit.load_checkpoint(convert(several, tmp_path / "converted", to))
    assert again.config.multi_label and again.labels == several.labels
    assert json.loads((tmp_path / "converted" / "config.json").read_text())["problem_type"] == (
        "multi_label_classification"
    )


def test_single_label_checkpoint_is_saved_as_before(checkpoint: Checkpoint) -> None:
    assert "multi_label" not in checkpoint.config.to_dict() and "multi_label" not in repr(checkpoint.config)
    assert "problem_type" not in json.loads((checkpoint.path / "config.json").read_text())


def test_identity_distinguishes_sigmoid_from_softmax(several: Checkpoint) -> None:
    before = several.identity
    config = several.path / "config.json"
    document = json.loads(config.read_text())
    config.write_text(json.dumps(document | {"problem_type": "single_label_classification"}))
    assert vit.load_checkpoint(several.path).identity != before
    assert vit.load_checkpoint(several.path).body == several.body


def test_training_from_it_has_one_class_per_picture(several: Checkpoint) -> None:
    config = TrainConfig(data="shapes", init_from=str(several.path)).vit_config(4, several.config)
    assert not config.multi_label and VisionTransformer(config).activation == "softmax"


def test_snapshots_during_training_show_sigmoids(several: Checkpoint, tmp_path: Path) -> None:
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    SnapshotWriter(tmp_path, images, [1], several.labels, several.preprocess).store(1, several.model)
    (snapshot,) = read_snapshots(tmp_path, 1)
    pixels = (images / 255 - 0.5) / 0.5
    expected = several.model(pixels).logits[0].detach().sigmoid()
    assert snapshot.probability == pytest.approx(float(expected[1]), abs=1e-4)


def test_evaluation_sums_the_loss_of_each_class(several: Checkpoint, tmp_path: Path) -> None:
    with torch.no_grad():
        several.model.head.weight.zero_()
        several.model.head.bias.copy_(torch.tensor([0.0, 0.0, 3.0, 0.0]))
    for name in ("dog", "sea"):
        for split in ("train", "test"):
            (tmp_path / "pets" / split / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), "blue" if name == "sea" else "brown").save(
                tmp_path / "pets" / split / name / "0.png"
            )
    result = evaluate_checkpoint(several, f"folder:{tmp_path / 'pets'}")
    # Three classes at even odds, and "dog" at odds of e^3: right for the dog, wrong for the sea.
    dog, sea = 3 * math.log(2) + math.log(1 + math.exp(-3)), 3 * math.log(2) + math.log(1 + math.exp(3))
    assert (result.accuracy, result.loss) == pytest.approx((0.5, (dog + sea) / 2))
