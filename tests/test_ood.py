"""Pictures out of distribution: detected, with the stated rate of false alarms."""

import io
import json
import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.data.shapes import shapes
from vit.errors import UserError
from vit.explain import ood
from vit.explain.ood import ALARM_SHARE, FILE, Reference
from vit.images import samples
from vit.images.preprocess import Normalise, Preprocess
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow

SHIPPED = Path(vit.__file__).parent.parent / "checkpoints" / "cifar10"


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a dataset of two classes of noise."""
    data = tmp_path_factory.mktemp("data") / "noise"
    generator = np.random.default_rng(0)
    for number in range(40):
        folder = data / "test" / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    (data / "train").mkdir()
    return data


@pytest.fixture(scope="module")
def fitted(
    tmp_path_factory: pytest.TempPathFactory,
    build: Callable[..., VisionTransformer],
    labels: tuple[str, ...],
    preprocess: Preprocess,
    noise: Path,
) -> Reference:
    """Statistics of the same checkpoint, fitted in another folder."""
    folder = save_checkpoint(tmp_path_factory.mktemp("known") / "tiny", build(), labels, preprocess)
    return ood.fit(load_checkpoint(folder), "shapes", f"folder:{noise}", most=600)


def scores(checkpoint: Checkpoint, fitted: Reference, images: Tensor) -> Tensor:
    pixels = Normalise(checkpoint.preprocess, torch.device("cpu"))(images)
    return fitted.score(checkpoint.model, pixels)


def test_new_pictures_in_distribution_are_flagged_at_the_stated_rate(checkpoint: Checkpoint, fitted: Reference) -> None:
    new, _ = shapes(600, 32, seed=99)
    called = [fitted.assess(float(score)).known <= ALARM_SHARE for score in scores(checkpoint, fitted, new.images)]
    assert sum(called) / len(called) == pytest.approx(ALARM_SHARE, abs=0.05)


def test_noise_is_out_of_distribution_for_shapes(fitted: Reference) -> None:
    assert fitted.detection_rate is not None and fitted.detection_rate > 0.6
    assert fitted.data == "shapes" and fitted.other_data == "noise"


def test_single_picture_scores_as_in_a_batch(checkpoint: Checkpoint, fitted: Reference) -> None:
    pictures, _ = shapes(5, 32, seed=5)
    together = scores(checkpoint, fitted, pictures.images)
    alone = torch.cat([scores(checkpoint, fitted, pictures.images[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_stored_statistics_are_read_back_for_the_same_checkpoint_only(
    checkpoint: Checkpoint, fitted: Reference
) -> None:
    assert ood.read(checkpoint) is None
    ood.write(checkpoint, fitted)
    back = ood.read(checkpoint)
    assert back is not None and back.assess(0.5) == fitted.assess(0.5) and back.other_data == "noise"
    assert ood.read(replace(checkpoint, labels=(*checkpoint.labels[:-1], "another"))) is None


def test_no_statement_on_foreign_pictures_without_any(checkpoint: Checkpoint, fitted: Reference) -> None:
    alone = replace(fitted, others=None)
    ood.write(checkpoint, alone)
    back = ood.read(checkpoint)
    assert back is not None and back.detection_rate is None and back.assess(0.0).others is None


def test_checkpoint_with_statistics_can_be_saved_again(checkpoint: Checkpoint, fitted: Reference) -> None:
    ood.write(checkpoint, fitted)
    save_checkpoint(checkpoint.path, checkpoint.model, checkpoint.labels, checkpoint.preprocess, facts={})
    assert not (checkpoint.path / FILE).exists()


def packed(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name.replace("_", "."), content)
    return out.getvalue()


def array(*shape: int) -> bytes:
    out = io.BytesIO()
    np.save(out, np.full(shape, np.nan, np.float32))
    return out.getvalue()


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole, facts: b"",
        lambda whole, facts: whole[: len(whole) // 2],
        lambda whole, facts: packed(facts_json=b"[]"),
        lambda whole, facts: packed(facts_json=facts),
        lambda whole, facts: packed(facts_json=facts, mean_npy=array(64)),
        lambda whole, facts: packed(facts_json=facts, mean_npy=array(1 << 25)),
        lambda whole, facts: packed(facts_json=facts, mean_npy=b"\x93NUMPY\x01\x00"),
        lambda whole, facts: packed(facts_json=b"[" * 100_000),
    ],
)
def test_damaged_file_is_ignored(
    checkpoint: Checkpoint, fitted: Reference, damage: Callable[[bytes, bytes], bytes]
) -> None:
    file = ood.write(checkpoint, fitted)
    facts = json.dumps({"identity": checkpoint.identity}).encode()
    file.write_bytes(damage(file.read_bytes(), facts))
    assert ood.read(checkpoint) is None


def test_model_without_classes_is_refused(build: Callable, saved: Path) -> None:
    folder = save_checkpoint(saved.parent / "bare", build(num_classes=0), (), load_checkpoint(saved).preprocess)
    with pytest.raises(UserError, match="no classes"):
        ood.fit(load_checkpoint(folder), "shapes", most=10)


def test_command_prints_its_result_and_stores_it(saved: Path, noise: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["ood", "--checkpoint", str(saved), "--data", "shapes", "--others", f"folder:{noise}"]
    assert main([*arguments, "--keep"]) == 0
    said = re.search(r"Of the pictures of noise, (\d+)% exceed it\.", capsys.readouterr().out)
    assert ood.read(load_checkpoint(saved)) is not None
    assert main([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert said and document["others_called_unlike"] == pytest.approx(int(said[1]) / 100, abs=0.006)
    assert document["data"] == "shapes" and document["others_called_unlike"] > 3 * document["known_called_unlike"]


def test_shipped_checkpoint_recognises_its_pictures() -> None:
    checkpoint = load_checkpoint(SHIPPED)
    reference = ood.read(checkpoint)
    assert reference is not None and reference.detection_rate is not None and reference.detection_rate > 0.4
    called = {}
    for sample in samples.SAMPLES:
        picture = Image.open(io.BytesIO(samples.read(sample))).convert("RGB")
        score = reference.score(checkpoint.model, checkpoint.preprocess(picture))
        called[sample] = reference.assess(float(score)).known <= ALARM_SHARE
    assert not called["cat"] and any(called.values())
