"""Statistics of heads: by hand on a few patches, against full matrices, and from weights and norms."""

import math
from typing import Any

import pytest
import torch

from vit.explain import record as attention
from vit.explain.faithfulness_correlation import random_masks
from vit.explain.head_statistics import Statistic, agreement, faithfulness, statistics, suggestions
from vit.explain.record import AttentionRecord, record
from vit.explain.weight_views import filters, outliers, position_similarity


def looking(matrix: torch.Tensor, prefix: tuple[str, ...], grid: tuple[int, int]) -> AttentionRecord:
    """Return a record of one block whose heads have exactly this attention: (H, N, N)."""
    tokens = matrix.shape[-1]
    queries = matrix.clamp_min(1e-30).log() * tokens**0.5
    return AttentionRecord(torch.zeros(1, 2), (queries,), (torch.eye(tokens).expand_as(matrix),), prefix, grid)


def test_statistics_of_a_head_by_hand() -> None:
    """Two adjacent patches, and a class token that receives half of every row."""
    matrix = torch.tensor([[[1.0, 0.0, 0.0], [0.5, 0.1, 0.4], [0.5, 0.5, 0.0]]])
    result = statistics(looking(matrix, ("cls",), (1, 2)), patch_size=16)
    assert float(result["cls"].values) == pytest.approx(0.5)
    assert float(result["self"].values) == pytest.approx(0.05)
    assert float(result["neighbours"].values) == pytest.approx(0.45)
    assert float(result["distance"].values) == pytest.approx((0.8 + 1.0) / 2 * 16)  # of the half on patches
    entropies = [-(0.5 * math.log(0.5) + 0.1 * math.log(0.1) + 0.4 * math.log(0.4)), math.log(2)]
    assert float(result["entropy"].values) == pytest.approx(sum(entropies) / 2 / math.log(3), rel=1e-5)


@pytest.mark.parametrize(("prefix", "grid"), [((), (3, 5)), (("cls", "dist", "reg1", "reg2"), (4, 2))])
def test_uniform_attention_has_the_uniform_values(prefix: tuple[str, ...], grid: tuple[int, int]) -> None:
    tokens = len(prefix) + grid[0] * grid[1]
    result = statistics(looking(torch.full((2, tokens, tokens), 1 / tokens), prefix, grid), patch_size=14)
    assert ("registers" in result) == ("reg1" in prefix) and "reg1" not in result
    for name, statistic in result.items():
        torch.testing.assert_close(statistic.values, torch.full((1, 2), statistic.uniform), msg=name)


def test_computation_in_chunks_gives_the_same(build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(prefix=("cls", "reg1"))
    recorded = record(model, pictures(count=1))
    whole = statistics(recorded, 8)
    monkeypatch.setattr(attention, "_CHUNK_SCORES", 1)
    for name, statistic in statistics(recorded, 8).items():
        torch.testing.assert_close(statistic.values, whole[name].values)
        assert statistic.values.shape == (2, 2)


def test_head_equal_to_the_map_agrees_with_it(build: Any, pictures: Any) -> None:
    recorded = record(build(), pictures(count=1))
    read = torch.zeros(recorded.tokens)
    read[0] = 1
    result = agreement(recorded, read, recorded.heatmap(recorded.weights(0, 1, 0)))
    assert float(result.values[1, 0]) == pytest.approx(1) and result.values.abs().max() <= 1 + 1e-6
    turned = agreement(recorded, read, -recorded.heatmap(recorded.weights(0, 1, 0)))
    torch.testing.assert_close(turned.values, -result.values)


def test_suggested_heads_are_the_extremes() -> None:
    result = {
        "distance": Statistic(torch.tensor([[10.0, 4.0], [30.0, 12.0]]), 20.0),
        "self": Statistic(torch.tensor([[0.1, 0.2], [0.3, 0.1]]), 0.02),
        "registers": Statistic(torch.tensor([[0.1, 0.6], [0.3, 0.1]]), 0.02),
        "effect": Statistic(torch.tensor([[-3.0, 0.2], [0.3, 1.5]]), 0.0),
    }
    assert [one[:4] for one in suggestions(result)] == [
        ("local", "distance", 0, 1),
        ("far", "distance", 1, 0),
        ("itself", "self", 1, 0),
        ("sink", "registers", 0, 1),
        ("needed", "effect", 1, 1),
    ]
    assert suggestions(result)[-1].value == 1.5


def test_heads_with_little_variation_are_not_suggested() -> None:
    tokens = 17
    record = looking(torch.full((2, tokens, tokens), 1 / tokens), ("cls",), (4, 4))
    small = {name: Statistic(torch.tensor([[0.0, 0.05]]), 0.0) for name in ("object", "effect")}
    assert suggestions(statistics(record, 8) | small) == []


def test_positions_are_most_similar_to_themselves(build: Any) -> None:
    result = position_similarity(build(image_size=(32, 48)))
    assert result is not None and result.shape == (24, 4, 6)
    torch.testing.assert_close(result.flatten(1).diagonal(), torch.ones(24))
    assert (result.flatten(1).argmax(-1) == torch.arange(24)).all()


def test_rotary_positions_are_not_learnt(build: Any) -> None:
    model = build(rope=100.0)
    with torch.no_grad():
        model.pos_embed.zero_()
    assert position_similarity(model) is None


def test_planted_filter_is_the_strongest(build: Any) -> None:
    model, pattern = build(), torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        weight = model.patch_embed.weight
        weight.mul_(0.01).add_(torch.linspace(-1, 1, len(weight))[:, None, None, None] * pattern)
    components, shares = filters(model)
    assert components.shape[1:] == (3, 8, 8) and shares[0] > 0.95
    assert abs(float((components[0] * pattern).sum() / pattern.norm())) > 0.99


def test_only_extreme_values_are_outliers() -> None:
    norms = 10 + torch.rand(3, 50, generator=torch.Generator().manual_seed(0))
    norms[1, 7] = 40
    result = outliers(norms)
    assert result.nonzero().tolist() == [[1, 7]]
    assert not outliers(torch.ones(2, 9)).any()


def test_head_that_decides_the_answer_is_faithful_to_it(build: Any, pictures: Any) -> None:
    recorded, masks = record(build(), pictures(count=1)), random_masks(16, 64)
    read = torch.zeros(recorded.tokens)
    read[0] = 1
    planted = recorded.heatmap(recorded.weights(0, 1, 1)).flatten()
    result = faithfulness(recorded, read, masks, 3 * masks.float() @ planted - 1)
    assert float(result.values[1, 1]) == pytest.approx(1) and result.values.shape == (2, 2)
    assert divmod(int(result.values.argmax()), 2) == (1, 1)
    assert [one.kind for one in suggestions({"faithfulness": result})] == ["faithful"]
