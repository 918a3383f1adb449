"""The ranking of methods on a dataset: numbers, wording, and the card that contains it."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.data.datasets import load_dataset
from vit.errors import InvalidDataset, UserError
from vit.explain import method_ranking
from vit.explain.faithfulness import faithfulness
from vit.explain.method_ranking import (
    MethodResult,
    interval,
    rank,
    record_in_card,
    summarise,
    table,
    verdict,
)
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.explain.recorded_ranking import BLOB, RANDOM, Interval, read_table, recommended, recorded_results
from vit.images.preprocess import Normalise, Preprocess


@pytest.fixture
def checkpoint(saved_shapes: Path) -> Checkpoint:
    return load_checkpoint(saved_shapes)


def test_every_method_and_control_is_ranked_on_the_same_pictures(checkpoint: Checkpoint) -> None:
    result = rank(checkpoint, "shapes", 6)
    assert {one.name for one in result} == {*METHODS, RANDOM, BLOB}
    means = [one.saco.mean for one in result]
    assert means == sorted(means, reverse=True)
    for one in result:
        assert one.pictures == 6 and one.points is not None and one.overlap is not None
        assert one.saco.low <= one.saco.mean <= one.saco.high
        assert 0 <= one.points.mean <= 1 and 0 < one.overlap.mean < 1


def test_mean_is_that_of_its_pictures() -> None:
    """SaCo, correlation, whether it beats chance, pointing game and overlap of three pictures."""
    rows = [(0.5, 0.1, 1.0, 1.0, 0.5), (-0.25, 0.2, 0.0, 0.0, 0.25), (0.5, 0.6, 0.0, 1.0, 0.0)]
    chance, blob = (0.0, 0.0, 0.0, 0.0, 0.0), (-0.5, -0.5, -0.5, -0.5, -0.5)
    best, middle, last = summarise([{"rollout": row, RANDOM: chance, BLOB: blob} for row in rows], has_objects=True)
    assert (best.name, best.pictures, best.saco.mean) == ("rollout", 3, 0.25)
    assert best.correlation.mean == pytest.approx(0.3) and best.better.mean == pytest.approx(1 / 3)
    assert best.points and best.points.mean == pytest.approx(0.666667, abs=1e-6)
    assert best.overlap and best.overlap.mean == 0.25
    assert (middle.name, middle.saco) == (RANDOM, (0, 0, 0)) and (last.name, last.saco) == (BLOB, (-0.5, -0.5, -0.5))


def test_score_over_pictures_is_the_mean_of_their_scores_alone(checkpoint: Checkpoint) -> None:
    images = load_dataset("shapes", checkpoint.preprocess, only="test", at_most=3).test
    normalise = Normalise(checkpoint.preprocess, torch.device("cpu"))
    (result,) = [one for one in rank(checkpoint, "shapes", 3, names=["rollout"]) if one.name == "rollout"]
    scores = []
    for image, _ in images.batches(torch.arange(3), 1, torch.device("cpu")):
        recorded = RecordedPass.of_class(checkpoint.model, normalise(image))
        alone = [heatmap_of(recorded, "rollout")]
        scores += faithfulness(checkpoint.model, recorded.pixels, recorded.record.target, alone)
    assert len(set(scores)) == 3 and result.saco.mean == pytest.approx(sum(scores) / 3)


def test_map_is_judged_by_masks_that_it_was_not_fitted_to(checkpoint: Checkpoint) -> None:
    """A removal map fitted to the same masks would reach 1; a copy of another picture's map reaches about 0."""
    result = {one.name: one for one in rank(checkpoint, "shapes", 4, names=["removal", "relevance"])}
    assert result["relevance"].correlation.mean < result["removal"].correlation.mean < 0.999
    assert abs(result[RANDOM].correlation.mean) < 0.3 and 0 <= result["removal"].better.mean <= 1


def test_every_map_has_a_score_of_one_if_nothing_changes(checkpoint: Checkpoint) -> None:
    """All drops are equal then, which SaCo counts as right for every map."""
    with torch.no_grad():
        checkpoint.model.head.weight.zero_()
    result = rank(checkpoint, "shapes", 3, names=["rollout"])
    assert {one.name: one.saco for one in result} == dict.fromkeys(("rollout", RANDOM, BLOB), (1, 1, 1))


def test_classes_must_be_known(saved_shapes: Path, tmp_path: Path, build: Any) -> None:
    other = save_checkpoint(tmp_path / "other", build(), list("abcde"), Preprocess((32, 32)))
    with pytest.raises(InvalidDataset, match="has no class"):
        rank(load_checkpoint(other), "shapes", 2)


def test_interval_narrows_with_more_pictures_and_contains_the_mean() -> None:
    few, many = (torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) for n in (10, 1000))
    wide, narrow = interval(few), interval(many)
    assert wide.high - wide.low > 3 * (narrow.high - narrow.low)
    assert narrow.high - narrow.low == pytest.approx(2 * 1.96 / 1000**0.5, rel=0.15)
    assert interval(torch.ones(5, dtype=torch.float64)) == Interval(1.0, 1.0, 1.0)


def ranked(**saco: float) -> list[MethodResult]:
    """Build results by name, with a correlation of half the SaCo."""

    def around(value: float) -> Interval:
        return Interval(value, value - 0.1, value + 0.1)

    return [
        MethodResult(name.replace("_", "-"), around(one), around(one / 2), around(0.25), None, None, 9)
        for name, one in saco.items()
    ]


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ({"relevance": 0.4, "rollout": 0.2, "random": 0.01}, ("within 0.1", "is above rollout", "rollout is above")),
        ({"relevance": 0.1, "rollout": 0.2, "random": 0.3}, ("not within", "is not above", "rollout is not above")),
    ],
)
def test_verdict_states_disagreement_with_the_literature(numbers: dict[str, float], words: tuple[str, ...]) -> None:
    sentence = verdict(ranked(**numbers))
    assert all(word in sentence for word in words) and "Relevance" in sentence


def test_table_has_a_line_for_each_method() -> None:
    lines = table(ranked(relevance=0.4, random=0.01))
    assert lines[2] == "| Relevance | 0.400 (0.300 to 0.500) | 0.200 (0.100 to 0.300) | 25.0% |"
    assert lines[3].startswith("| Random |")


def test_table_of_the_card_is_read_back(saved_shapes: Path) -> None:
    result = ranked(relevance=0.4, random=-0.01) + ranked(**{"blob in the middle": 0.2})
    back = read_table(table(result))
    assert list(back) == [one.name for one in result]
    for one in result:
        assert back[one.name].saco == pytest.approx(one.saco)
        assert back[one.name].correlation == pytest.approx(one.correlation) and back[one.name].better == 0.25
    shipped, scores = recorded_results(load_checkpoint("cifar10").facts)
    assert shipped == 500 and max(scores, key=lambda name: scores[name].saco.mean) == "attnlrp"
    correlations = {name: one.correlation.mean for name, one in scores.items()}
    assert max(correlations, key=correlations.__getitem__) == "removal"
    assert scores[RANDOM].better == pytest.approx(0.05, abs=0.02)  # the rate of chance
    assert {RANDOM, BLOB, "relevance", "rollout"} < scores.keys() <= {*METHODS, RANDOM, BLOB}


@pytest.mark.parametrize("lines", [None, 3, [], [3], ["| Relevance | 0.1 |"], ["Test pictures of a: x, by"]])
def test_card_without_a_ranking_has_none(lines: Any) -> None:
    assert recorded_results({} if lines is None else {"faithfulness": lines}) == (0, {})


_OF_THE_CARD = ("README.md", "config.json")


def test_command_ranks_and_the_card_contains_the_table(saved_shapes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        command = ["faithfulness", "--checkpoint", str(saved_shapes), "--data", "shapes", *words]
        return main(command), *capsys.readouterr()

    (saved_shapes / "first_view.zip").write_bytes(b"made from the weights")
    others = {file.name: file.read_bytes() for file in saved_shapes.iterdir() if file.name not in _OF_THE_CARD}
    before = load_checkpoint(saved_shapes)
    status, out, err = run("--limit", "3", "--card", "--json")
    assert status == 0, err
    facts = json.loads(out)
    assert facts["pictures"] == 3 and {one["name"] for one in facts["methods"]} == {*METHODS, RANDOM, BLOB}
    after = load_checkpoint(saved_shapes)
    assert after.hash == before.hash and after.facts["accuracy"] == 0.25
    assert {name: (saved_shapes / name).read_bytes() for name in others} == others
    assert "## Faithfulness" in after.card and "| Relevance |" in after.card and "Random maps reach" in after.card
    status, _, err = run("--limit", "0")
    assert status == 2 and err.strip() == "--limit must be at least 1, not 0."


def test_card_of_another_library_is_unchanged(saved_shapes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import load_file, save_file

    file = saved_shapes / "model.safetensors"
    save_file(load_file(file), file)  # without our metadata
    result = rank(load_checkpoint(saved_shapes), "shapes", 2, names=["rollout", "relevance"])
    before = (saved_shapes / "README.md").read_bytes()
    with pytest.raises(UserError, match="card cannot be changed"):
        record_in_card(load_checkpoint(saved_shapes), "shapes", result)
    monkeypatch.setattr(method_ranking, "rank", None)  # refused before the hours of measuring
    assert main(["faithfulness", "--checkpoint", str(saved_shapes), "--data", "shapes", "--card"]) == 2
    assert (saved_shapes / "README.md").read_bytes() == before


def test_recommended_is_the_best_measured_method_without_masks() -> None:
    def card(**correlations: float) -> dict[str, Any]:
        lines = table(ranked(**correlations))  # SaCo is twice the correlation
        return {"faithfulness": ["Test pictures of a: 9, by `python -m vit faithfulness`.", "", *lines]}

    best = {"attnlrp": 0.2, "relevance": 0.4, "removal": 0.9, "best": 0.8, "rollout": 0.7, RANDOM: 0.6}
    assert recommended(card(**best)) == "relevance"  # the others need masks, or no class
    assert recommended(card(**best | {"attnlrp": 0.5})) == "attnlrp"
    assert recommended(card(relevance=0.4)) == recommended({}) == "attnlrp"  # ranked before there was AttnLRP
