"""The table of methods: each gives one number per token for any model, and equals what its module computes."""

from typing import Any

import pytest
import torch

from vit.explain.head_ablation import ablation_hook
from vit.explain.maps import geometric_mean
from vit.explain.methods import METHODS, Subject, heatmap_of, weights
from vit.explain.record import record

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
def subject(request: Any, build: Any, pictures: Any) -> Subject:
    return Subject.of(build(**KINDS[request.param]), pictures(32, 48, count=1), 3)


@names
def test_every_method_gives_a_number_for_every_patch(subject: Subject, name: str) -> None:
    result = heatmap_of(subject, name)
    assert result.shape == (4, 6) and torch.isfinite(result).all() and (result >= 0).all() and result.max() > 0


@names
def test_tokens_can_be_chosen_if_the_method_supports_it(subject: Subject, name: str) -> None:
    token = subject.record.patch(1, 2)
    if not METHODS[name].of_tokens:
        with pytest.raises(ValueError, match="the class as a whole"):
            heatmap_of(subject, name, token)
        return
    row, column = heatmap_of(subject, name, token), heatmap_of(subject, name, token, "to")
    assert not torch.allclose(row, heatmap_of(subject, name))
    assert not torch.allclose(row, column)


@names
def test_class_map_has_no_direction(subject: Subject, name: str) -> None:
    assert torch.equal(heatmap_of(subject, name, direction="to"), heatmap_of(subject, name))


@names
def test_default_value_of_a_setting_changes_nothing(subject: Subject, name: str) -> None:
    assert torch.equal(weights(subject, name, **METHODS[name].settings), weights(subject, name))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if "block" in method.settings])
def test_another_block_has_another_map(subject: Subject, name: str) -> None:
    first = weights(subject, name, block=0)
    assert not torch.allclose(first, weights(subject, name)) and not torch.allclose(
        first, weights(subject, name, block=1)
    )
    with pytest.raises(ValueError, match="There is no block 9: they run from 0 to 1"):
        weights(subject, name, block=9)


@names
def test_unknown_setting_of_a_method_is_refused(subject: Subject, name: str) -> None:
    with pytest.raises(ValueError, match=f"{METHODS[name].title} has no setting depth"):
        weights(subject, name, depth=1)


def test_last_block_is_last_for_a_model_without_a_pooling_query(subject: Subject) -> None:
    record = subject.record
    expected = record.read @ record.full(1).mean(0) if record.pool_attention is None else record.pool_attention.mean(0)
    torch.testing.assert_close(weights(subject, "attention"), expected)
    torch.testing.assert_close(weights(subject, "attention", block=1), record.read @ record.full(1).mean(0))


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if not method.of_class])
def test_methods_without_a_class_need_no_gradients(build: Any, pictures: Any, name: str) -> None:
    for changes in KINDS.values():
        model, image = build(**changes), pictures(count=1)
        torch.testing.assert_close(
            heatmap_of(Subject.without_class(model, image), name), heatmap_of(Subject.of(model, image), name)
        )


@names
def test_only_class_methods_depend_on_the_class(build: Any, pictures: Any, name: str) -> None:
    model, image = build(), pictures(count=1)
    one, other = (heatmap_of(Subject.of(model, image, target), name) for target in (0, 4))
    assert torch.allclose(one, other) != METHODS[name].of_class


CHANGES: dict[str, Any] = {"residual": 0.2, "fusion": "max", "discard": 0.5, "start_block": 1}


@pytest.mark.parametrize("setting", CHANGES)
@names
def test_settings_have_an_effect_if_the_method_has_them(build: Any, pictures: Any, name: str, setting: str) -> None:
    subject = Subject.of(build(depth=3), pictures(32, 48, count=1), 3)
    if setting not in METHODS[name].settings:
        with pytest.raises(ValueError, match="has no setting"):
            heatmap_of(subject, name, **{setting: CHANGES[setting]})
        return
    changed = heatmap_of(subject, name, **{setting: CHANGES[setting]})
    assert not torch.equal(changed, heatmap_of(subject, name))


def test_settings_are_passed_to_the_record(build: Any, pictures: Any) -> None:
    subject = Subject.of(build(depth=3), pictures(count=1), 3)
    recorded = subject.record

    def changed(name: str, *question: Any) -> torch.Tensor:
        settings = METHODS[name].settings
        return heatmap_of(subject, name, *question, **{key: value for key, value in CHANGES.items() if key in settings})

    assert torch.equal(changed("rollout", 0, "to"), recorded.heatmap(recorded.rollout(0, 0.2, "to", "max", 0.5)))
    relevance = recorded.relevance(9, "to", 1)
    relevance[9] -= 1  # its default
    relevance /= relevance.sum()
    torch.testing.assert_close(changed("relevance", 9, "to"), recorded.heatmap(relevance))
    gradient = recorded.heatmap(recorded.gradient_rollout(None, "from", 0.5, 1))  # sums to 1, up to rounding
    torch.testing.assert_close(changed("gradient-rollout"), gradient)


@names
def test_maps_of_an_ablated_model_equal_those_with_zero_weights(build: Any, pictures: Any, name: str) -> None:
    """Ablating heads is equivalent to zeroing their columns of the projection."""
    for changes in ({}, {"prefix": ("cls", "reg1")}, {"prefix": (), "pool": "mean"}):
        model, image = build(**changes), pictures(32, 48, count=1)
        off = ablation_hook([(0, 1), (1, 0)])
        before, result = (heatmap_of(Subject.of(model, image, 3, change), name) for change in (None, off))
        with torch.no_grad():
            model.blocks[0].attn.proj.weight[:, 32:] = 0
            model.blocks[1].attn.proj.weight[:, :32] = 0
        torch.testing.assert_close(result, heatmap_of(Subject.of(model, image, 3), name))
        assert not torch.allclose(result, before)


def test_map_of_the_class_token_equals_the_records(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    subject, recorded = Subject.of(model, image, 1), record(model, image)
    torch.testing.assert_close(heatmap_of(subject, "attention"), recorded.heatmap(recorded.weights(0)))
    torch.testing.assert_close(heatmap_of(subject, "rollout"), recorded.heatmap(recorded.rollout(0)))
    relevance = subject.record.relevance(own=False)
    torch.testing.assert_close(heatmap_of(subject, "relevance"), recorded.heatmap(relevance) / relevance.sum())
    both = geometric_mean(relevance, recorded.rollout(0))
    torch.testing.assert_close(heatmap_of(subject, "relevance-rollout"), recorded.heatmap(both) / both.sum())


@names
def test_class_maps_are_shares_of_the_whole_map(subject: Subject, name: str) -> None:
    assert METHODS[name].unit == ("share" if METHODS[name].of_class else "weight")
    assert float(weights(subject, name).sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("name", ["attention-gradient", "attention-gradient-last", "gradcam", "legrad"])
def test_class_map_does_not_grow_with_the_logits(build: Any, pictures: Any, name: str) -> None:
    """Raw sums of gradients grow with the last layer's weights, so that two pictures could not be compared."""
    model, image = build(), pictures(count=1)
    before = weights(Subject.of(model, image, 1), name)
    with torch.no_grad():
        model.head.weight *= 100
    torch.testing.assert_close(weights(Subject.of(model, image, 1), name), before, rtol=1e-3, atol=1e-6)


def test_attention_of_a_mean_is_the_mean_of_its_tokens(build: Any, pictures: Any) -> None:
    model, image = build(prefix=(), pool="mean"), pictures(count=1)
    recorded = record(model, image)
    expected = recorded.full(-1).mean((0, 1))
    torch.testing.assert_close(heatmap_of(Subject.of(model, image), "attention"), recorded.heatmap(expected))


def test_attention_of_a_pooling_query_is_its_own(build: Any, pictures: Any) -> None:
    subject = Subject.of(build(prefix=(), pool="map"), pictures(count=1))
    recorded = subject.record
    assert recorded.pool_attention is not None
    torch.testing.assert_close(heatmap_of(subject, "attention"), recorded.heatmap(recorded.pool_attention.mean(0)))
    torch.testing.assert_close(heatmap_of(subject, "attention", head=1), recorded.heatmap(recorded.pool_attention[1]))


@pytest.mark.parametrize("token", [None, 0, 9])
def test_chain_in_the_browser_equals_relevance(build: Any, pictures: Any, token: int | None) -> None:
    """Multiply the payload as the browser does."""
    kept = Subject.of(build(prefix=("cls", "reg1")), pictures(count=1), 2).record
    row = kept.read if token is None else torch.eye(kept.tokens)[token]
    for block in reversed(range(kept.blocks)):
        row = row + row @ kept.flow(block)
    torch.testing.assert_close(row, kept.relevance(token))


def test_rollout_of_a_mixture_is_the_mixture_of_rollouts(build: Any, pictures: Any) -> None:
    recorded = record(build(), pictures(count=1))
    mixture = torch.zeros(recorded.tokens)
    mixture[1], mixture[5] = 0.25, 0.75
    torch.testing.assert_close(recorded.rollout(mixture), 0.25 * recorded.rollout(1) + 0.75 * recorded.rollout(5))
