"""Labelled pictures as classes: probe and neighbours against scikit-learn and brute force, on the same features."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import vit
from vit.errors import InvalidDataset, UserError
from vit.explain.classes.examples import classes_from_features
from vit.explain.features import Features
from vit.model.classification_heads import NeighbourHead


def clouds(classes: int, count: int = 60, dim: int = 16, apart: float = 1.0, seed: int = 0) -> Features:
    """Return overlapping clouds of points, one per class."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % classes)
    vectors = random.normal(size=(count, dim)) * random.uniform(0.1, 30, dim) + 5
    vectors += apart * random.normal(size=(classes, dim))[labels] * vectors.std(0)
    return Features(vectors.astype(np.float32), labels, tuple(f"kind {i}" for i in range(classes)))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_probe_equals_scikit_learns_pipeline(classes: int) -> None:
    reference, others = clouds(classes), clouds(classes, seed=1)
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)).fit(
        reference.vectors, reference.labels
    )
    head = classes_from_features(reference, "clouds").head
    with torch.inference_mode():
        shares = head(torch.from_numpy(others.vectors)).softmax(-1).numpy()
    assert shares == pytest.approx(pipeline.predict_proba(others.vectors), abs=1e-4)


@pytest.mark.parametrize(("classes", "count"), [(2, 60), (5, 60), (3, 9)])
def test_neighbours_equal_brute_force_in_float64(classes: int, count: int) -> None:
    reference, others = clouds(classes, count), clouds(classes, seed=1)
    expected = np.zeros((len(others.vectors), classes))
    for i, vector in enumerate(others.vectors.astype(np.float64)):
        similar = [
            float(vector @ one / np.linalg.norm(vector) / np.linalg.norm(one))
            for one in reference.vectors.astype(np.float64)
        ]
        for j in sorted(range(count), key=lambda j: -similar[j])[:20]:
            expected[i, reference.labels[j]] += np.exp(similar[j] / 0.07)
    head = classes_from_features(reference, "clouds", "neighbours").head
    with torch.inference_mode():
        shares = head(torch.from_numpy(others.vectors)).softmax(-1).numpy()
    assert shares == pytest.approx(expected / expected.sum(1, keepdims=True), abs=1e-5)


def test_first_of_equal_neighbours_votes() -> None:
    examples = torch.tensor([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    head = NeighbourHead(examples, torch.tensor([1, 0, 0, 2]), 3, k=1)
    assert head(torch.tensor([[2.0, 0.1]]))[0].argmax() == 1


@pytest.mark.parametrize("classifier", ["probe", "neighbours"])
def test_held_out_accuracy_reaches_the_optimum(classifier: Any) -> None:
    apart = classes_from_features(clouds(3, apart=4), "clouds", classifier)
    mixed = classes_from_features(clouds(3, 300, apart=0), "clouds", classifier)
    assert apart.accuracy == 1 and apart.interval is not None and 0.9 < apart.interval[0] < apart.interval[1] == 1
    assert mixed.interval is not None and mixed.interval[0] < 1 / 3 < mixed.interval[1]


def test_one_picture_per_class_leaves_no_held_out_accuracy() -> None:
    reference = Features(np.eye(3, dtype=np.float32)[[0, 0, 1]], np.array([0, 0, 1]), ("a", "b"))
    custom = classes_from_features(reference, "three")
    assert custom.accuracy is None and custom.interval is None


def test_unusable_examples_are_refused() -> None:
    reference = clouds(2)
    with pytest.raises(InvalidDataset, match="Class 'kind 2' has no picture"):
        classes_from_features(reference._replace(classes=(*reference.classes, "kind 2")), "clouds")
    with pytest.raises(UserError, match=r"no classifier 'forest'\. Choose from probe, neighbours"):
        classes_from_features(reference, "clouds", "forest")  # type: ignore[arg-type]


def colours(red: int) -> list[Image.Image]:
    return [Image.new("RGB", (32, 32), (red, green, 90)) for green in range(0, 250, 25)]


@pytest.mark.parametrize("pool", [{"pool": "cls"}, {"prefix": (), "pool": "mean"}, {"prefix": (), "pool": "map"}])
@pytest.mark.parametrize("classifier", ["probe", "neighbours"])
def test_pictures_in_named_groups_become_classes(
    tmp_path: Path, build: Any, preprocess: Any, pool: dict[str, Any], classifier: Any
) -> None:
    folder = vit.save_checkpoint(tmp_path / "backbone", build(num_classes=0, **pool), (), preprocess)
    checkpoint = vit.load_checkpoint(folder)
    groups = {"blueish": colours(0), "reddish": colours(255)}
    custom = vit.classes_from_pictures(checkpoint, groups, classifier)
    probed = checkpoint.with_classes(custom)
    assert probed.labels == ("blueish", "reddish") and probed.identity != checkpoint.identity
    for expected, group in enumerate(groups.values()):
        with torch.inference_mode():
            predicted = probed.model(torch.cat([probed.preprocess(one) for one in group])).logits.argmax(1)
        assert (predicted == expected).float().mean() >= 0.9
    heatmap = vit.heatmap(probed, groups["reddish"][3], method="relevance", target="reddish")
    assert heatmap.shape == (4, 4) and heatmap.sum() > 0
    with pytest.raises(UserError, match="two named groups"):
        vit.classes_from_pictures(checkpoint, {"blueish": colours(0), "reddish": []}, classifier)


def test_probe_can_be_saved_as_a_head(tmp_path: Path, build: Any, preprocess: Any) -> None:
    checkpoint = vit.load_checkpoint(vit.save_checkpoint(tmp_path / "a", build(num_classes=0), (), preprocess))
    probed = checkpoint.with_classes(
        vit.classes_from_pictures(checkpoint, {"blueish": colours(0), "reddish": colours(255)})
    )
    opened = vit.load_checkpoint(vit.save_checkpoint(tmp_path / "b", probed.model, probed.labels, probed.preprocess))
    pixels = probed.preprocess(colours(120)[4])
    assert probed.custom_classes is not None and probed.custom_classes.linear
    assert torch.equal(opened.model(pixels).logits, probed.model(pixels).logits) and opened.labels == probed.labels


def test_dataset_gives_its_classes_and_its_test_pictures_stay_unseen(
    build: Any, tmp_path: Path, preprocess: Any
) -> None:
    checkpoint = vit.load_checkpoint(vit.save_checkpoint(tmp_path / "a", build(), list("abcde"), preprocess))
    for split, count in (("train", 30), ("test", 5)):
        for name in ("blueish", "reddish"):
            (folder := tmp_path / "data" / split / name).mkdir(parents=True)
            for i, picture in enumerate((colours(0) + colours(99) + colours(255))[:count]):
                picture.save(folder / f"{i}.png")
    custom = vit.classes_from_examples(checkpoint, f"folder:{tmp_path / 'data'}", limit=20)
    assert custom.names == ("blueish", "reddish") and custom.facts["pictures"] == 20
    for file in (tmp_path / "data" / "test").rglob("*.png"):
        Image.new("RGB", (32, 32)).save(file)  # changes the pictures of that folder
    assert vit.classes_from_examples(checkpoint, f"folder:{tmp_path / 'data'}", limit=20).digest == custom.digest


def test_figures_of_the_checkpoints_own_classes_are_not_shown_for_others() -> None:
    own = vit.load_checkpoint("cifar10")
    assert {"accuracy", "faithfulness", "limits", "data"} <= own.facts.keys()
    custom = classes_from_features(clouds(3, dim=own.config.dim), "clouds")
    assert not {"accuracy", "faithfulness", "limits", "data"} & own.with_classes(custom).facts.keys()
