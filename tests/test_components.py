"""Principal components as colours: against numpy's SVD, with planted objects, and for any order of pictures."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from vit.explain.components import CUT, components, patch_features, token_features
from vit.explain.head_ablation import ablation_hook
from vit.explain.record import record
from vit.model.transformer import VisionTransformer


def scenes(seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """Return features (8, 10, 24) of four pictures with an object, whose patches form a separate cluster, and masks."""
    rows, cols, dim = 8, 10, 24
    random = torch.Generator().manual_seed(seed)
    background, thing = torch.nn.functional.normalize(torch.randn(2, dim, generator=random), dim=-1) * dim**0.5
    features, objects = [], []
    for _ in range(4):
        top, left = (int(torch.randint(1, side - 4, (), generator=random)) for side in (rows, cols))
        inside = torch.zeros(rows, cols, dtype=torch.bool)
        inside[top : top + 3, left : left + 3] = True
        noise = 0.3 * torch.randn(rows, cols, dim, generator=random)
        features.append(torch.where(inside[..., None], thing, background) + noise)
        objects.append(inside)
    return features, objects


def test_values_equal_an_svd_up_to_signs() -> None:
    features, _ = scenes()
    every = torch.cat([one.flatten(0, 1) for one in features]).double().numpy()
    centred = every - every.mean(0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    result = components(features, with_outliers=True)
    values = torch.cat([one.flatten(0, 1) for one in result.values]).numpy()
    assert np.abs(values) == pytest.approx(np.abs(centred @ directions[:3].T), abs=1e-9)
    assert result.shares.numpy() == pytest.approx(singular[:3] ** 2 / (singular**2).sum(), abs=1e-12)


def test_colours_do_not_depend_on_the_order_of_pictures() -> None:
    features, _ = scenes()
    order = [2, 0, 3, 1]
    for foreground in (False, True):
        one = components(features, foreground=foreground)
        other = components([features[i] for i in order], foreground=foreground)
        for place, i in enumerate(order):
            torch.testing.assert_close(other.colours[place], one.colours[i], rtol=0, atol=1e-6)


def test_foreground_is_the_side_that_does_not_touch_the_edges() -> None:
    features, objects = scenes()
    for sign in (1, -1):  # for either sign of the component
        result = components([sign * one for one in features], foreground=True)
        for used, inside in zip(result.used, objects, strict=True):
            assert torch.equal(used, inside)
    assert all(bool((colours[~inside] == 0).all()) for colours, inside in zip(result.colours, objects, strict=True))


def test_one_basis_gives_the_same_object_the_same_colour_in_every_picture() -> None:
    features, objects = scenes()
    colours = [one[..., 0] for one in components(features).colours]  # the other components are noise
    of_things = torch.stack([one[inside].mean(0) for one, inside in zip(colours, objects, strict=True)])
    of_grounds = torch.stack([one[~inside].mean(0) for one, inside in zip(colours, objects, strict=True)])
    assert float(of_things.std()) < 0.02 and float((of_things - of_grounds).min()) > 0.8


def test_outliers_take_no_component_and_are_black() -> None:
    features, _ = scenes()
    plain = components(features)
    spoilt = [one.clone() for one in features]
    spoilt[1][0, 0] = 1000 * torch.nn.functional.one_hot(torch.tensor(5), 24)
    result = components(spoilt)
    assert not result.used[1][0, 0] and sum(int((~used).sum()) for used in result.used) == 1
    assert result.colours[1][0, 0].tolist() == [0, 0, 0]
    torch.testing.assert_close(result.values[0][..., 0], plain.values[0][..., 0], rtol=0.02, atol=0.02)
    assert (
        float(components(spoilt, with_outliers=True).shares[0]) > 0.99
    )  # without the rule, the outlier takes the first component


def test_colours_use_the_whole_range_except_for_outliers() -> None:
    features, _ = scenes()
    colours = torch.cat([one.flatten(0, 1) for one in components(features, with_outliers=True).colours])
    assert ((colours == 0) | (colours == 1)).float().mean(0).tolist() == pytest.approx([2 * CUT] * 3, abs=0.01)


@pytest.mark.parametrize("count", [1, 2])
def test_uniform_pictures_have_no_components_and_no_errors(count: int) -> None:
    result = components([torch.ones(3, 3, 8)] * count, foreground=True)
    assert all(bool(one.isfinite().all()) for one in (*result.colours, *result.values, result.shares))


@pytest.mark.parametrize("norm", ["before_pool", "after_pool"])
def test_features_are_the_patches_of_a_plain_pass(
    build: Callable[..., VisionTransformer], pictures: Callable[..., Tensor], norm: str
) -> None:
    model, pixels = build(pool="mean", norm=norm, prefix=("cls", "reg1")), pictures(width=48, count=1)
    with torch.inference_mode():
        tokens = model(pixels, output_queries_keys=True).tokens[0, 2:]
        x, steps = model.walk(pixels, every=True)
        first = steps[0](x)[0, 2:]
    torch.testing.assert_close(patch_features(model, pixels), tokens.view(4, 6, -1), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(patch_features(model, pixels, 0), first.view(4, 6, -1), rtol=1e-5, atol=1e-5)


def test_another_picture_in_the_same_basis_keeps_its_colours() -> None:
    features, _ = scenes()
    result = components(features)
    for one, colours in zip(features, result.colours, strict=True):
        torch.testing.assert_close(result.colours_of(one), colours)
    other = scenes(seed=1)[0][0]
    other[0, 0] = 1000  # far longer than the others
    colours = result.colours_of(other)
    assert not colours[0, 0].any() and colours[1:].any()


@pytest.mark.parametrize("pool", ["cls", "mean", "all", "map", "map_patches"])
def test_features_after_the_last_block_equal_the_records(build: Callable[..., VisionTransformer], pool: str) -> None:
    model = build(pool=pool, prefix=("cls", "reg1"))
    pixels = torch.randn(1, 3, 32, 32)
    recorded = record(model, pixels)
    assert recorded.features is not None
    assert torch.equal(token_features(model, pixels), recorded.features)
    assert not torch.equal(token_features(model, pixels, 0), recorded.features)


def test_features_without_a_head_differ_after_its_block(build: Callable[..., VisionTransformer]) -> None:
    model, pixels = build(), torch.randn(1, 3, 32, 32)
    hook = ablation_hook([(1, 0)])
    for block, changed in ((0, False), (1, True)):
        one, other = (token_features(model, pixels, block, hook=how) for how in (None, hook))
        assert torch.equal(one, other) != changed
