"""The table of methods: each gives one number per token for any model, and equals what its module computes."""

from typing import Any

import pytest
import torch

from vit.explain.head_ablation import ablation_hook
from vit.explain.maps import geometric_mean
from vit.explain.methods import METHODS, heatmap_of, weights
from vit.explain.record import record
from vit.explain.recorded_pass import RecordedPass

pytestmark = pytest.mark.matrix

KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "registers": {"prefix": ("cls", "reg1")},
    "mean": {"prefix": (), "pool": "mean"},
    "both": {"pool": "cls_mean"},
    "query": {"prefix": (), "pool": "map"},
    "rotary, other norms": {
        "rope": 10.0,
        "rope_places": "mixed",
        "post_norm": True,
        "attn_norm": True,
        "mlp_norm": True,
    },
    "biases": {"position_bias": "progression", "pool": "mean"},
}
names = pytest.mark.parametrize("name", METHODS)


@pytest.fixture(params=KINDS)
def recorded(request: Any, build: Any, pictures: Any) -> RecordedPass:
    return RecordedPass.of_class(build(**KINDS[request.param]), pictures(32, 48, count=1), 3)


@names
def test_every_method_gives_a_number_for_every_patch(recorded: RecordedPass, name: str) -> None:
    result = heatmap_of(recorded, name)
    assert result.shape == (4, 6) and torch.isfinite(result).all() and result.abs().max() > 0
    assert METHODS[name].signed or (result >= 0).all()


@names
def test_tokens_can_be_chosen_if_the_method_supports_it(recorded: RecordedPass, name: str) -> None:
    token = recorded.record.patch(1, 2)
    if not METHODS[name].of_tokens:
        with pytest.raises(ValueError, match="the class as a whole"):
            heatmap_of(recorded, name, token)
        return
    row, column = heatmap_of(recorded, name, token), heatmap_of(recorded, name, token, "to")
    assert not torch.allclose(row, heatmap_of(recorded, name))
    assert not torch.allclose(row, column)


@names
def test_class_map_has_no_direction(recorded: RecordedPass, name: str) -> None:
    assert torch.equal(heatmap_of(recorded, name, direction="to"), heatmap_of(recorded, name))


@names
def test_default_value_of_a_setting_changes_nothing(recorded: RecordedPass, name: str) -> None:
    assert torch.equal(weights(recorded, name, **METHODS[name].settings), weights(recorded, name))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "block" in method.settings])
def test_another_block_has_another_map(recorded: RecordedPass, name: str) -> None:
    first = weights(recorded, name, block=0)
    assert not torch.allclose(first, weights(recorded, name)) and not torch.allclose(
        first, weights(recorded, name, block=1)
    )
    with pytest.raises(ValueError, match="There is no block 9: they run from 0 to 1"):
        weights(recorded, name, block=9)


@names
def test_unknown_setting_of_a_method_is_refused(recorded: RecordedPass, name: str) -> None:
    with pytest.raises(ValueError, match=f"{METHODS[name].title} has no setting depth"):
        weights(recorded, name, depth=1)


def test_last_block_is_last_for_a_model_without_a_pooling_query(recorded: RecordedPass) -> None:
    record = recorded.record
    expected = record.read @ record.full(1).mean(0) if record.pool_attention is None else record.pool_attention.mean(0)
    torch.testing.assert_close(weights(recorded, "attention"), expected)
    torch.testing.assert_close(weights(recorded, "attention", block=1), record.read @ record.full(1).mean(0))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.of_class])
def test_methods_without_a_class_need_no_gradients(build: Any, pictures: Any, name: str) -> None:
    for changes in KINDS.values():
        model, image = build(**changes), pictures(count=1)
        torch.testing.assert_close(
            heatmap_of(RecordedPass.without_class(model, image), name),
            heatmap_of(RecordedPass.of_class(model, image), name),
        )


@names
def test_only_class_methods_depend_on_the_class(build: Any, pictures: Any, name: str) -> None:
    model, image = build(), pictures(count=1)
    one, other = (heatmap_of(RecordedPass.of_class(model, image, target), name) for target in (0, 4))
    assert torch.allclose(one, other) != METHODS[name].of_class


CHANGES: dict[str, Any] = {"residual": 0.2, "fusion": "max", "discard": 0.5, "start_block": 1}


@pytest.mark.parametrize("setting", CHANGES)
@names
def test_settings_have_an_effect_if_the_method_has_them(build: Any, pictures: Any, name: str, setting: str) -> None:
    recorded = RecordedPass.of_class(build(depth=3), pictures(32, 48, count=1), 3)
    if setting not in METHODS[name].settings:
        with pytest.raises(ValueError, match="has no setting"):
            heatmap_of(recorded, name, **{setting: CHANGES[setting]})
        return
    changed = heatmap_of(recorded, name, **{setting: CHANGES[setting]})
    assert not torch.equal(changed, heatmap_of(recorded, name))


def test_settings_are_passed_to_the_record(build: Any, pictures: Any) -> None:
    recorded = RecordedPass.of_class(build(depth=3), pictures(count=1), 3)
    attention_record = recorded.record

    def changed(name: str, *question: Any) -> torch.Tensor:
        settings = METHODS[name].settings
        return heatmap_of(
            recorded, name, *question, **{key: value for key, value in CHANGES.items() if key in settings}
        )

    assert torch.equal(
        changed("rollout", 0, "to"), attention_record.heatmap(attention_record.rollout(0, 0.2, "to", "max", 0.5))
    )
    relevance = attention_record.relevance(9, "to", 1)
    relevance[9] -= 1  # its default
    relevance /= relevance.sum()
    torch.testing.assert_close(changed("relevance", 9, "to"), attention_record.heatmap(relevance))
    gradient = attention_record.heatmap(
        attention_record.gradient_rollout(None, "from", 0.5, 1)
    )  # sums to 1, up to rounding
    torch.testing.assert_close(changed("gradient-rollout"), gradient)


@names
def test_maps_of_an_ablated_model_equal_those_with_zero_weights(build: Any, pictures: Any, name: str) -> None:
    """Ablating heads is equivalent to zeroing their columns of the projection."""
    for changes in ({}, {"prefix": ("cls", "reg1")}, {"prefix": (), "pool": "mean"}):
        model, image = build(**changes), pictures(32, 48, count=1)
        off = ablation_hook([(0, 1), (1, 0)])
        before, result = (heatmap_of(RecordedPass.of_class(model, image, 3, change), name) for change in (None, off))
        with torch.no_grad():
            model.blocks[0].attn.proj.weight[:, 32:] = 0
            model.blocks[1].attn.proj.weight[:, :32] = 0
        torch.testing.assert_close(result, heatmap_of(RecordedPass.of_class(model, image, 3), name))
        assert not torch.allclose(result, before)


def test_map_of_the_class_token_equals_the_records(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    recorded, attention_record = RecordedPass.of_class(model, image, 1), record(model, image)
    torch.testing.assert_close(heatmap_of(recorded, "attention"), attention_record.heatmap(attention_record.weights(0)))
    torch.testing.assert_close(heatmap_of(recorded, "rollout"), attention_record.heatmap(attention_record.rollout(0)))
    relevance = recorded.record.relevance(own=False)
    torch.testing.assert_close(heatmap_of(recorded, "relevance"), attention_record.heatmap(relevance) / relevance.sum())
    both = geometric_mean(relevance, attention_record.rollout(0))
    torch.testing.assert_close(heatmap_of(recorded, "relevance-rollout"), attention_record.heatmap(both) / both.sum())


@names
def test_class_maps_are_shares_of_the_whole_map(recorded: RecordedPass, name: str) -> None:
    assert METHODS[name].unit == ("share" if METHODS[name].of_class else "weight")
    assert float(weights(recorded, name).abs().sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["attention-gradient", "attention-gradient-last", "gradcam", "legrad"])
def test_class_map_does_not_grow_with_the_logits(build: Any, pictures: Any, name: str) -> None:
    """Raw sums of gradients grow with the last layer's weights, so that two pictures could not be compared."""
    model, image = build(), pictures(count=1)
    before = weights(RecordedPass.of_class(model, image, 1), name)
    with torch.no_grad():
        model.head.weight *= 100
    torch.testing.assert_close(weights(RecordedPass.of_class(model, image, 1), name), before, rtol=1e-3, atol=1e-6)


def test_attention_of_a_mean_is_the_mean_of_its_tokens(build: Any, pictures: Any) -> None:
    model, image = build(prefix=(), pool="mean"), pictures(count=1)
    attention_record = record(model, image)
    expected = attention_record.full(-1).mean((0, 1))
    torch.testing.assert_close(
        heatmap_of(RecordedPass.of_class(model, image), "attention"), attention_record.heatmap(expected)
    )


def test_attention_of_a_pooling_query_is_its_own(build: Any, pictures: Any) -> None:
    recorded = RecordedPass.of_class(build(prefix=(), pool="map"), pictures(count=1))
    attention_record = recorded.record
    assert attention_record.pool_attention is not None
    torch.testing.assert_close(
        heatmap_of(recorded, "attention"), attention_record.heatmap(attention_record.pool_attention.mean(0))
    )
    torch.testing.assert_close(
        heatmap_of(recorded, "attention", head=1), attention_record.heatmap(attention_record.pool_attention[1])
    )


@pytest.mark.parametrize("token", [None, 0, 9])
def test_chain_in_the_browser_equals_relevance(build: Any, pictures: Any, token: int | None) -> None:
    """Multiply the payload as the browser does."""
    attention_record = RecordedPass.of_class(build(prefix=("cls", "reg1")), pictures(count=1), 2).record
    row = attention_record.read if token is None else torch.eye(attention_record.tokens)[token]
    for block in reversed(range(attention_record.blocks)):
        row = row + row @ attention_record.flow(block)
    torch.testing.assert_close(row, attention_record.relevance(token))


def test_rollout_of_a_mixture_is_the_mixture_of_rollouts(build: Any, pictures: Any) -> None:
    attention_record = record(build(), pictures(count=1))
    mixture = torch.zeros(attention_record.tokens)
    mixture[1], mixture[5] = 0.25, 0.75
    torch.testing.assert_close(
        attention_record.rollout(mixture), 0.25 * attention_record.rollout(1) + 0.75 * attention_record.rollout(5)
    )
