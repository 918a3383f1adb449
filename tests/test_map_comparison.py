"""Differences and rank correlations of maps, against numbers computed by hand."""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from vit.explain.map_comparison import Layout, agreement, counterpart, difference, rank_correlation
from vit.explain.record import AttentionRecord, record
from vit.images.geometry import Box
from vit.model.transformer import VisionTransformer
from vit.view.overlay import BLUE, COLORMAPS, RED, signed_overlay
from vit.view.payload import pack
from vit.view.stored_record import picture_of, record_of


def test_difference_is_of_shares_and_sums_to_zero() -> None:
    left, right = torch.tensor([[2.0, 2.0], [0.0, 4.0]]), torch.tensor([[30.0, 10.0], [40.0, 20.0]])
    result = difference(left, right)
    assert result.flatten().tolist() == pytest.approx([-0.05, 0.15, -0.4, 0.3])
    assert float(result.sum()) == pytest.approx(0)


def test_difference_to_an_empty_map_is_the_other_map() -> None:
    result = difference(torch.tensor([[-1.0, 0.0]]), torch.tensor([[1.0, 3.0]]))
    assert result.tolist() == [[-0.25, -0.75]]


def test_maps_of_different_grids_are_not_compared() -> None:
    with pytest.raises(ValueError, match="cannot be compared"):
        difference(torch.ones(2, 2), torch.ones(2, 3))
    with pytest.raises(ValueError, match="cannot be compared"):
        rank_correlation(torch.ones(4), torch.ones(2))


def test_rank_correlation_gives_ties_their_mean_rank() -> None:
    # ranks 1.5 1.5 3 4 and 1 3 3 3 (three share 2, 3 and 4): deviations -1 -1 .5 1.5 and -1.5 .5 .5 .5
    result = rank_correlation(torch.tensor([1.0, 1.0, 5.0, 9.0]), torch.tensor([0.0, 7.0, 7.0, 7.0]))
    assert result == pytest.approx((1.5 - 0.5 + 0.25 + 0.75) / (4.5 * 3) ** 0.5)


def test_rank_correlation_equals_that_of_pandas() -> None:
    left, right = torch.randint(0, 9, (2, 7, 8), generator=torch.Generator().manual_seed(3)).float()
    ranks = pd.DataFrame({"left": left.flatten().numpy(), "right": right.flatten().numpy()}).rank()
    assert rank_correlation(left, right) == pytest.approx(ranks.corr().loc["left", "right"])


def test_rank_correlation_depends_only_on_the_order() -> None:
    left = torch.rand(5, 5, generator=torch.Generator().manual_seed(0))
    assert rank_correlation(left, left.exp() * 7) == pytest.approx(1)
    assert rank_correlation(left, -left) == pytest.approx(-1)


def test_flat_map_has_no_order() -> None:
    assert rank_correlation(torch.ones(4), torch.arange(4.0)) is None
    assert "does not rank" in agreement(None)


@pytest.mark.parametrize(
    ("correlation", "word"), [(0.9, "nearly"), (0.5, "similar"), (0.0, "unrelated"), (-0.8, "opposite")]
)
def test_agreement_has_words(correlation: float, word: str) -> None:
    assert word in agreement(correlation)


def test_counterparts_are_found_by_name_and_position() -> None:
    coarse, fine = Layout(("cls", "reg1"), (2, 2)), Layout(("reg1", "cls"), (4, 6))
    assert [counterpart(token, coarse, fine) for token in (0, 1)] == [1, 0]
    assert counterpart(2 + 3, coarse, fine) == 2 + 3 * 6 + 4
    assert counterpart(2 + 3 * 6 + 4, fine, coarse) == 2 + 3
    assert counterpart(0, Layout(("dist",), (1, 1)), Layout(("cls",), (1, 1))) == 0


@pytest.mark.parametrize(("size", "kind"), [(32, "maps"), (136, "qk")])
def test_attention_of_a_payload_can_be_used_for_computation(
    build: Callable[..., VisionTransformer], pictures: Callable[..., torch.Tensor], size: int, kind: str
) -> None:
    recorded = record(build(), pictures(size, size, 1))
    result = record_of(pack(recorded, Image.new("RGB", (size, size)), (0, 0, size, size), COLORMAPS))
    assert (result.blocks, result.heads, result.tokens) == (recorded.blocks, recorded.heads, recorded.tokens)
    assert (result.prefix, result.grid) == (recorded.prefix, recorded.grid)
    for token in (0, 5):
        for draw in (_last, _received, _rolled):
            expected = draw(recorded, token)
            assert float((draw(result, token) - expected).abs().max()) < 0.01 * float(expected.max()), kind


def _last(kept: AttentionRecord, token: int) -> torch.Tensor:
    return kept.weights(token, 1, 0)


def _received(kept: AttentionRecord, token: int) -> torch.Tensor:
    return kept.weights(token, "mean", "max", "to")


def _rolled(kept: AttentionRecord, token: int) -> torch.Tensor:
    return kept.rollout(token)


def test_picture_of_a_payload_and_positions_of_its_patches(
    build: Callable[..., VisionTransformer], pictures: Callable[..., torch.Tensor]
) -> None:
    recorded = record(build(), pictures(32, 32, 1))
    picture, box = picture_of(pack(recorded, Image.new("RGB", (3200, 1600), "teal"), (800, 0, 2400, 1600), COLORMAPS))
    assert picture.width < 3200 and picture.width == 2 * picture.height
    assert box == pytest.approx((picture.width / 4, 0, 3 * picture.width / 4, picture.height))


def test_red_is_above_zero_blue_below_and_zero_is_transparent() -> None:
    picture = Image.new("RGB", (60, 20), "black")
    drawn = np.asarray(signed_overlay(picture, np.array([[1.0, 0.0, -1.0]]), side=60), float)
    assert drawn.shape == (20, 60, 3)
    red, grey, blue = drawn[10, 10], drawn[10, 30], drawn[10, 50]
    assert np.ptp(grey) == 0
    assert red == pytest.approx(0.9 * np.array(RED) + 0.1 * grey, abs=1)
    assert blue == pytest.approx(0.9 * np.array(BLUE) + 0.1 * grey, abs=1)


def test_difference_is_drawn_over_the_patches_only() -> None:
    drawn = signed_overlay(Image.new("RGB", (40, 20)), np.zeros((2, 2)), Box(0, -10, 40, 30), side=80)
    assert drawn.size == (80, 80)
