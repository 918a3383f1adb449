"""The best map is the posterior mean of its model, begins as AttnLRP, and predicts masks that it has not seen."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vit.explain.faithfulness_correlation import correlations, random_masks, removal
from vit.explain.kriging import BestMap, best_map
from vit.explain.lrp import attnlrp

PATCHES = 36


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(seed: int) -> tuple[BestMap, Tensor]:
    """Return patches of four kinds, in which relevance is a poor guide, and their true parts in the drops."""
    kinds = torch.randint(4, (PATCHES,), generator=generator(seed))
    features = torch.eye(4)[kinds] + 0.05 * torch.randn(PATCHES, 4, generator=generator(seed + 1))
    parts = torch.tensor([1.0, -0.5, 0.2, 0.0])[kinds].double()
    relevance = parts + 1.5 * torch.randn(PATCHES, generator=generator(seed + 2)).double()
    return BestMap(relevance, features), parts


def drops_of(parts: Tensor, masks: Tensor) -> Tensor:
    noise = torch.randn(len(masks), generator=generator(9)).double()
    return masks.double() @ parts + 0.5 * noise


@pytest.mark.parametrize("count", [2, 5, 60, 200])
def test_map_is_the_posterior_mean_of_its_model(count: int) -> None:
    """Written per patch instead of per mask: the ridge regression whose penalty is the inverse covariance."""
    known, parts = planted(0)
    masks = random_masks(PATCHES, count)
    drops = drops_of(parts, masks)
    random = random_masks(PATCHES, 20_000, 5).double()  # shows the variances that the model states
    random = random - random.mean(0)
    relevance = known.relevance - known.relevance.mean()
    relevance = 0.6 * drops.std() * relevance / (random @ relevance).std()
    covariance = known.alike * drops.var() / ((random @ known.alike) * random).sum(1).mean()
    z = masks.double() - masks.double().mean(0)
    result, far = known.fit(masks, drops).fitted, []
    for noise in torch.logspace(-3, 1, 17) * drops.var():
        precision = z.T @ z / noise + torch.linalg.inv(covariance)
        expected = relevance + torch.linalg.solve(precision, z.T @ (drops - z @ relevance)) / noise
        far.append(float((result - expected).abs().max() / expected.abs().max()))
    assert min(far) <= 0.03


@pytest.mark.parametrize(("noise", "least", "most"), [(0.0, 0.99, 1.0), (30.0, -0.2, 0.6)])
def test_many_drops_tell_how_noisy_they_are(noise: float, least: float, most: float) -> None:
    known, parts = planted(3)
    masks = random_masks(PATCHES, 300)
    drops = masks.double() @ parts + noise * torch.randn(300, generator=generator(1)).double()
    fitted = known.fit(masks, drops).fitted
    assert least <= float(torch.corrcoef(torch.stack([fitted, parts]))[0, 1]) <= most
    assert float((masks.double() @ fitted).std() / drops.std()) <= 1 if noise == 0 else 0.5


def test_map_keeps_less_of_attnlrp_the_more_masks_there_are() -> None:
    known, parts = planted(0)
    masks, shares = random_masks(PATCHES, 300), []
    for count in (4, 40, 300):
        fit = known.fit(masks[:count], drops_of(parts, masks[:count]))
        kept = fit.weights - fit.fitted
        assert float(torch.corrcoef(torch.stack([kept, known.relevance]))[0, 1]) == pytest.approx(1)
        shares.append(float(kept.norm() / (fit.fitted - fit.fitted.mean()).norm()))
    assert 0.5 > shares[0] > shares[1] > shares[2] > 0.1


@pytest.mark.parametrize("drops", [[], [0.5], [0.3, 0.3, 0.3]])
def test_map_without_anything_to_learn_from_is_that_of_attnlrp(drops: list[float]) -> None:
    known, _ = planted(0)
    result = known.fit(random_masks(PATCHES, len(drops)), torch.tensor(drops))
    assert torch.equal(result.weights, known.relevance) and result.correlation == 0


@pytest.mark.parametrize("count", [4, 16, 64, 256])
def test_map_predicts_fresh_masks_better_than_relevance_and_removal(count: int) -> None:
    better = []
    for seed in range(8):
        known, parts = planted(10 * seed)
        masks, fresh = random_masks(PATCHES, count), random_masks(PATCHES, 512, 1)
        drops, true = drops_of(parts, masks), fresh.double() @ parts
        fitted = removal(masks, drops).weights if count >= 8 else known.relevance
        fit = known.fit(masks, drops)
        ours, shown, *others = correlations(
            torch.stack([fit.fitted, fit.weights, known.relevance, fitted]), fresh, true
        )
        better.append(ours > max(others) - 0.005 and shown > max(others) - 0.1)  # AttnLRP is a poor guide here
    assert sum(better) >= 7


@pytest.mark.parametrize("noise", [0.5, 2.0])
def test_estimated_faithfulness_and_ceiling_are_those_on_fresh_masks(noise: float) -> None:
    """On average over pictures; each estimate has the error of its 64 masks, and few masks leave the noise open."""
    apart = []
    for seed in range(12):
        known, parts = planted(10 * seed)
        masks, fresh = random_masks(PATCHES, 64, seed), random_masks(PATCHES, 2048, 100)
        drops, true = (
            one.double() @ parts + noise * torch.randn(len(one), generator=generator(seed)).double()
            for one in (masks, fresh)
        )
        fit = known.fit(masks, drops)
        ceiling = correlations(parts, fresh, true)
        apart.append([fit.correlation - correlations(fit.fitted, fresh, true), fit.ceiling - ceiling])
    correlation, above = torch.tensor(apart).mean(0)
    assert abs(correlation) < 0.05 and -0.05 < above < 0.2


@pytest.mark.parametrize("seed", range(3))
def test_leave_one_out_is_that_of_maps_fitted_without_each_mask(seed: int) -> None:
    known, parts = planted(seed)
    masks = random_masks(PATCHES, 40, seed)
    drops = drops_of(parts, masks)
    left = [torch.arange(40) != index for index in range(40)]
    sums = [
        (one.double() - masks.double().mean(0)) @ known.fit(masks[rest], drops[rest]).fitted
        for one, rest in zip(masks, left, strict=True)
    ]
    expected = torch.corrcoef(torch.stack([torch.stack(sums), drops]))[0, 1]
    assert known.fit(masks, drops).correlation == pytest.approx(float(expected), abs=0.03)


def test_measurement_ends_when_the_other_masks_would_not_help() -> None:
    known, parts = planted(0)
    masks = random_masks(PATCHES, 400)
    exact, noisy = masks.double() @ parts, drops_of(parts, masks)
    assert known.fit(masks, exact[:200]).complete and not known.fit(masks, noisy[:10]).complete
    assert known.fit(masks[:10], noisy[:10]).complete  # none is left


def test_method_begins_as_attnlrp_and_learns_from_masks_of_its_own(
    build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, image = build(), pictures(count=1)
    relevance = attnlrp(model, image, 3)
    first = best_map(model, image, 3, masks=0)
    torch.testing.assert_close(first[1:], relevance[1:])
    assert first[0] == 0
    later = best_map(model, image, 3, masks=16)
    assert not torch.allclose(later / later.norm(), first / first.norm(), atol=0.05)
