"""Faithfulness of a map by random masks: against brute force, planted answers, and random maps."""

import copy
import gc
import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch
from sklearn.linear_model import RidgeCV
from torch import Tensor
from torch.nn import functional as F

from vit.explain import faithfulness_correlation
from vit.explain.faithfulness_correlation import (
    _STRENGTHS,
    MASKED_SHARE,
    Verdict,
    copies,
    correlations,
    faithfulness_verdict,
    random_masks,
    removal,
    score_drops,
)
from vit.explain.occlusion import hide_patches
from vit.model.attention import Hook
from vit.model.classification_heads import Activation
from vit.model.transformer import VisionTransformer

ROWS, COLS = 6, 8
PATCHES = ROWS * COLS


def smooth(seed: int) -> Tensor:
    """Return a random map with similar neighbours: (rows, cols)."""
    noise = torch.rand(1, 1, ROWS, COLS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return F.avg_pool2d(F.pad(noise, (1, 1, 1, 1), mode="circular"), 3, stride=1)[0, 0]


def planted(count: int = 512, noise: float = 0.0, seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return masks, the drops of a model that is linear in its patches, and its weights."""
    weights, masks = smooth(99).flatten() - 0.3, random_masks(PATCHES, count, seed)
    drops = masks.double() @ weights
    spread = noise * drops.std() * torch.randn(count, generator=torch.Generator().manual_seed(seed)).double()
    return masks, drops + spread, weights


@pytest.mark.parametrize("patches", [1, 2, 49, 196])
def test_every_mask_hides_three_tenths_and_more_masks_begin_with_the_same(patches: int) -> None:
    masks = random_masks(patches, 150)
    assert (masks.sum(1) == max(1, round(MASKED_SHARE * patches))).all()
    assert torch.equal(random_masks(patches, 70), masks[:70]) and random_masks(patches, 0).shape == (0, patches)
    assert patches < 3 or not torch.equal(random_masks(patches, 150, seed=1), masks)


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("activation", ["softmax", "sigmoid", "none"])
def test_drops_equal_those_of_one_mask_after_the_other(
    build: Callable[..., VisionTransformer], pictures: Callable[..., Tensor], pool: str, activation: Activation
) -> None:
    model = build(pool=pool)
    model.activation = activation
    pixels, masks = pictures(count=1), random_masks(16, 9)
    with torch.inference_mode():
        whole = model(pixels).logits[0].double()
        for cost, part in zip(score_drops(model, pixels, 2, masks), masks, strict=True):
            left = (
                model(hide_patches(pixels, part.nonzero()[:, 0].tolist(), model.config.patch_size)).logits[0].double()
            )
            score: Callable[[Tensor], Any] = {
                "softmax": lambda one: one[2] - one.logsumexp(0),
                "sigmoid": lambda one: -math.log1p(math.exp(-one[2])),
                "none": lambda one: one[2],
            }[activation]
            before, after = float(score(whole)), float(score(left))
            assert float(cost) == pytest.approx(before - after, rel=1e-5, abs=1e-5)
    assert score_drops(model, pixels, 2, masks[:0]).shape == (0,)


def test_callback_is_called_for_every_block_and_can_end_the_measurement(
    build: Callable[..., VisionTransformer], pictures: Callable[..., Tensor]
) -> None:
    model, pixels, masks = build(), pictures(count=1), random_masks(16, 9)
    shares: list[float] = []
    score_drops(model, pixels, 2, masks, progress=shares.append)
    assert len(shares) % model.config.depth == 0 and shares == sorted(set(shares)) and shares[-1] == 1
    passes: list[object] = []
    model.blocks[1].register_forward_pre_hook(lambda *_: passes.append(_))

    def end(share: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        score_drops(model, pixels, 2, masks, progress=end)
    assert len(passes) == 1  # of the picture without masks


def test_correlations_equal_pearsons_for_any_scale_of_the_map() -> None:
    masks, drops, _ = planted(100, noise=0.5)
    maps = torch.stack([smooth(seed).flatten() for seed in range(4)]).view(2, 2, PATCHES)
    result = correlations(maps, masks, drops)
    for i, j in np.ndindex(2, 2):
        sums = masks.numpy() @ maps[i, j].numpy()
        assert float(result[i, j]) == pytest.approx(np.corrcoef(sums, drops.numpy())[0, 1], abs=1e-12)
    torch.testing.assert_close(correlations(7 * maps - 3, masks, drops), result)  # all masks hide equally many patches
    assert correlations(torch.full((PATCHES,), 0.1), masks, drops) == 0 == correlations(maps[0, 0], masks, drops * 0)


def test_copies_are_all_shifts_of_the_map_and_its_mirror_image() -> None:
    heatmap = torch.arange(12.0).view(3, 4)
    shifts = [torch.roll(one, (i, j), (0, 1)) for one in (heatmap, heatmap.flip(1)) for i in range(3) for j in range(4)]
    result = copies(heatmap)
    assert result.shape == (23, 3, 4)
    assert sorted(map(repr, result.tolist())) == sorted(repr(one.tolist()) for one in shifts[1:])


@pytest.mark.parametrize("seed", range(3))
def test_removal_map_of_a_model_linear_in_its_patches_is_its_weights(seed: int) -> None:
    masks, drops, weights = planted(seed=seed)
    result = removal(masks, drops)
    assert result.ceiling > 0.999
    torch.testing.assert_close(result.weights - result.weights.mean(), weights - weights.mean(), atol=1e-3, rtol=0)
    verdict = faithfulness_verdict(weights.view(ROWS, COLS), masks, drops)
    assert verdict.correlation > 0.9999 and verdict.p == 1 / (2 * PATCHES) and verdict.label == "better than chance"


def test_removal_map_equals_that_of_scikit_learn() -> None:
    masks, drops, _ = planted(256, noise=0.7)
    reference = RidgeCV(_STRENGTHS.numpy()).fit(masks.double().numpy(), drops.numpy())
    assert np.corrcoef(reference.coef_, removal(masks, drops).weights.numpy())[0, 1] > 0.99


def test_shuffled_answers_give_no_correlation() -> None:
    masks, drops, weights = planted(256)
    ceilings = [
        removal(masks, drops[torch.randperm(256, generator=torch.Generator().manual_seed(s))]).ceiling for s in range(8)
    ]
    assert abs(sum(ceilings) / 8) < 0.1 and max(map(abs, ceilings)) < 0.25
    assert (
        removal(masks, drops * 0).ceiling == 0
        and faithfulness_verdict(weights.view(ROWS, COLS), masks, drops * 0).p == 1
    )


@pytest.mark.exhaustive
def test_one_in_twenty_random_maps_is_called_better_than_chance() -> None:
    """Within the 99.9% interval of a binomial of 1,000 with 5%: 30 to 74."""
    masks, drops, _ = planted(128, noise=1.0)
    words = [faithfulness_verdict(smooth(1000 + seed), masks, drops).label for seed in range(1000)]
    assert 30 <= words.count("better than chance") <= 74


def test_many_masks_decide_what_few_cannot() -> None:
    weights = planted()[2].view(ROWS, COLS)
    few, many = ((masks, drops) for masks, drops, _ in (planted(8, noise=3.0), planted(2048, noise=3.0)))
    assert faithfulness_verdict(weights, *few).label == "cannot be decided yet"
    assert faithfulness_verdict(weights, *many).label == "better than chance"
    assert faithfulness_verdict(-weights, *many).label == "no better than chance"


def test_wording_of_a_verdict() -> None:
    assert Verdict(0.2, 0.3, 0.05, 0.0).label == "better than chance"
    assert Verdict(0.2, 0.3, 0.06, 0.06).label == "cannot be decided yet"
    assert Verdict(0.2, 0.3, 0.06, 0.04).label == "no better than chance"


@pytest.fixture
def large(build: Callable[..., VisionTransformer], monkeypatch: pytest.MonkeyPatch) -> VisionTransformer:
    """A model counted as large, on a processor counted as fast in bfloat16; without bfloat16 units it is slow."""
    monkeypatch.setattr(faithfulness_correlation, "has_bfloat16", lambda: True)
    monkeypatch.setattr(faithfulness_correlation, "_ROUNDED_PRODUCTS", 0)
    return build()


def exact_drops(model: VisionTransformer, pixels: Tensor, masks: Tensor, hook: Hook | None = None) -> Tensor:
    """Return the drops in float32, as on a processor without bfloat16 units."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(faithfulness_correlation, "has_bfloat16", lambda: False)
        return score_drops(model, pixels, 2, masks, hook=hook)


def test_large_model_uses_bfloat16_without_changing_any_displayed_figure(
    large: VisionTransformer, pictures: Callable[..., Tensor]
) -> None:
    pixels, masks = pictures(count=1), random_masks(16, 256)
    drops, exact = score_drops(large, pixels, 2, masks), exact_drops(large, pixels, masks)
    assert not torch.equal(drops, exact) and drops.dtype is torch.float64
    maps = torch.rand(200, 16, generator=torch.Generator().manual_seed(0))
    apart = correlations(maps, masks, drops) - correlations(maps, masks, exact)
    assert apart.abs().max() < 0.01 and apart.square().mean().sqrt() < 0.003  # where 256 masks leave 0.06 open


@pytest.mark.parametrize("reason", ["it does not agree", "small drops", "a hook", "a small model", "another precision"])
def test_passes_stay_exact_where_rounding_could_show(
    large: VisionTransformer, pictures: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    pixels, masks, hook = pictures(count=1), random_masks(16, 20), None
    if reason == "it does not agree":
        monkeypatch.setattr(faithfulness_correlation, "_AGREEMENT", 1.1)
    if reason == "small drops":
        large.head.weight.data /= 1e4
    if reason == "a small model":
        monkeypatch.setattr(faithfulness_correlation, "_ROUNDED_PRODUCTS", 1e9)
    if reason == "a hook":
        hook = cast(Hook, lambda block, inputs: inputs.output())
    if reason == "another precision":
        large, pixels = large.double(), pixels.double()
    assert torch.equal(score_drops(large, pixels, 2, masks, hook=hook), exact_drops(large, pixels, masks, hook))


def test_equal_drops_do_not_keep_a_model_from_rounding(
    large: VisionTransformer, pictures: Callable[..., Tensor]
) -> None:
    even = torch.zeros_like(pictures(count=1))  # any masked picture looks the same
    masks = random_masks(16, 20)
    assert torch.equal(score_drops(large, even, 2, masks), exact_drops(large, even, masks))
    pixels = pictures(count=1)
    assert not torch.equal(score_drops(large, pixels, 2, masks), exact_drops(large, pixels, masks))


@pytest.mark.parametrize("shrink", [1, 1e4])
def test_check_of_rounding_runs_once_and_is_dropped_with_the_model(
    large: VisionTransformer, pictures: Callable[..., Tensor], monkeypatch: pytest.MonkeyPatch, shrink: float
) -> None:
    """Its result does not depend on the drops: a page asks for a few masks at a time."""
    large.head.weight.data /= shrink
    measured, real = list[int](), faithfulness_correlation._drops

    def counted(*args: Any, **named: Any) -> Tensor:
        measured.append(len(args[3]))
        return real(*args, **named)

    monkeypatch.setattr(faithfulness_correlation, "_drops", counted)
    for _ in range(3):
        score_drops(large, pictures(count=1), 2, random_masks(16, 20))
    assert measured.count(faithfulness_correlation._COMPARED) == 2  # exact and rounded
    assert large.blocks in faithfulness_correlation._agreeing
    gc.collect()
    before = len(faithfulness_correlation._agreeing)
    score_drops(copy.deepcopy(large), pictures(count=1), 2, random_masks(16, 20))
    gc.collect()
    assert len(faithfulness_correlation._agreeing) == before
