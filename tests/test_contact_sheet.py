"""Contact sheets of many pictures: figures, order, and correct against wrong answers."""

import io
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.errors import InvalidImage
from vit.explain.faithfulness_correlation import HELD_OUT, Verdict, random_masks, score_drops
from vit.explain.maps import entropy
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.exports import contact_sheet
from vit.exports.contact_sheet import (
    EvaluatedPicture,
    Picture,
    PictureResult,
    classify_and_explain,
    evaluate,
    means,
    measure,
    sort_pictures,
)
from vit.images import samples
from vit.images.preprocess import Preprocess


def test_figures_of_an_entry_equal_its_parts(checkpoint: Checkpoint) -> None:
    result = classify_and_explain(checkpoint, Picture("", samples.read("cat")), "relevance")
    recorded = RecordedPass.of_class(checkpoint.model, checkpoint.preprocess(vit.decode_image(samples.read("cat"))))
    probabilities = recorded.record.logits[0].softmax(0)
    assert result.label == checkpoint.labels[int(probabilities.argmax())]
    assert result.confidence == pytest.approx(float(probabilities.max()))
    assert result.entropy == pytest.approx(float(entropy(recorded.record.rows(1, [0]).mean(0)[0])), abs=1e-5)
    masks = random_masks(math.prod(recorded.record.grid), contact_sheet.MASKS, HELD_OUT)
    drops = score_drops(checkpoint.model, recorded.pixels, recorded.record.target, masks)
    verdict = measure(checkpoint, Picture("", samples.read("cat")), "relevance")
    sums = masks.double().numpy() @ heatmap_of(recorded, "relevance").flatten().double().numpy()
    assert verdict.correlation == pytest.approx(np.corrcoef(sums, drops.numpy())[0, 1], abs=1e-6)
    assert Image.open(io.BytesIO(result.thumbnail)).size == (contact_sheet.THUMBNAIL_SIDE, contact_sheet.THUMBNAIL_SIDE)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_gives_an_entry(checkpoint: Checkpoint, method: str) -> None:
    picture = Picture("", samples.read("cat"))
    assert (
        classify_and_explain(checkpoint, picture, method).thumbnail and 0 < measure(checkpoint, picture, method).p <= 1
    )


@pytest.mark.parametrize("changes", [{"num_classes": 0}, {"num_classes": 0, "prefix": (), "pool": "mean"}])
@pytest.mark.parametrize("method", contact_sheet.WITHOUT_CLASSES)
def test_model_without_classes_has_a_spread_and_a_map(build, tmp_path: Path, changes: dict, method: str) -> None:
    folder = save_checkpoint(tmp_path / "bare", build(**changes), (), Preprocess((32, 32)))
    result = classify_and_explain(vit.load_checkpoint(folder), Picture("", samples.read("cat")), method)
    assert (result.label, result.confidence) == ("", None)
    assert 0 < result.entropy < 1


def test_a_file_that_is_no_picture_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(InvalidImage):
        classify_and_explain(checkpoint, Picture("notes.txt", b"no picture"), "relevance")


def test_pictures_come_evenly_from_the_classes(checkpoint: Checkpoint) -> None:
    pictures = contact_sheet.pictures_of(checkpoint, "shapes")
    assert len(pictures) == contact_sheet.FEW_PICTURES
    assert {name: sum(one.truth == name for one in pictures) for name in SHAPES} == dict.fromkeys(SHAPES, 15)
    assert len({one.digest for one in pictures}) == contact_sheet.FEW_PICTURES
    assert isinstance(pictures[0].content, torch.Tensor)
    assert classify_and_explain(checkpoint, pictures[0], "relevance").label in checkpoint.labels


def test_any_head_can_be_the_map(checkpoint: Checkpoint) -> None:
    picture = Picture("", samples.read("cat"))
    usual, first = (
        classify_and_explain(checkpoint, picture, "attention"),
        classify_and_explain(checkpoint, picture, "attention", block=0, head=1),
    )
    assert usual.thumbnail != first.thumbnail and usual._replace(thumbnail=b"") == first._replace(thumbnail=b"")
    assert (
        classify_and_explain(checkpoint, picture, "attention", block=1, head="mean") == usual
    )  # of two blocks, the last one
    assert measure(checkpoint, picture, "attention", block=0, head=1) != measure(checkpoint, picture, "attention")


def test_correctness_is_known_only_for_classes_of_the_model(checkpoint: Checkpoint) -> None:
    result = PictureResult("cat", 0.9, 0.5, b"")
    judged = [evaluate(checkpoint, Picture("", b"", truth), result) for truth in ("cat", "dog", "whale", "")]
    assert [one.correct for one in judged] == [True, False, None, None]


def entry(confidence: float | None, faithfulness: float | None = None) -> EvaluatedPicture:
    verdict = None if faithfulness is None else Verdict(faithfulness, 0.0, 1.0, 0.0)
    return EvaluatedPicture(Picture("", b""), PictureResult("", confidence, 0.5, b""), None, verdict)


def test_entries_are_sorted_by_a_figure_with_missing_ones_last() -> None:
    entries = [entry(0.2), entry(None), entry(0.9)]
    assert [one.result.confidence for one in sort_pictures(entries, "confidence")] == [0.9, 0.2, None]
    assert [one.result.confidence for one in sort_pictures(entries, "confidence", lowest_first=True)] == [
        0.2,
        0.9,
        None,
    ]


def test_unmeasured_maps_come_last_and_have_no_mean() -> None:
    entries = [entry(0.2, -0.1), entry(0.3), entry(0.9, 0.4)]
    assert [one.figure("faithfulness") for one in sort_pictures(entries, "faithfulness")] == [0.4, -0.1, None]
    result = means(entries)
    assert result is not None and result.faithfulness is None


def test_means_of_several_entries() -> None:
    result = means([entry(0.2, -0.5), entry(0.6, 1.0)])
    assert result is not None
    assert result.pictures == 2
    assert result[1:] == pytest.approx((0.4, 0.5, 0.25))
    assert means([]) is None
