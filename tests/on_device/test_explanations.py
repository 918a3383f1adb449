"""Explanations on the device equal those of the CPU, and hardly any makes the host wait for it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pretended
import pytest
import torch
from pretended import no_waits

from tests.tiny import TINY, fill
from vit.explain.classes.examples import classes_from_features
from vit.explain.components import components, token_features
from vit.explain.components import patch_features as component_features
from vit.explain.correspondence import matches
from vit.explain.faithfulness import deletion, faithfulness, insertion
from vit.explain.faithfulness_correlation import faithfulness_verdict, random_masks, removal_map, score_drops
from vit.explain.features import Features, patch_features, pooled_features
from vit.explain.gradcam import grad_cam
from vit.explain.head_ablation import ablation_hook, head_means, importance
from vit.explain.head_census import tally
from vit.explain.logit_lens import logit_lens
from vit.explain.methods import METHODS, weights
from vit.explain.occlusion import hide_patches, occlusion
from vit.explain.record import record
from vit.explain.recorded_pass import RecordedPass
from vit.explain.registers import register_neurons, with_register
from vit.explain.relevance import legrad, relevance_record
from vit.explain.self_check import verify
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

Compute = Callable[[Any, Any], Any]


def tiny_model(**changes: Any) -> Any:
    return fill(VisionTransformer(ViTConfig(**TINY | changes)))


def noise() -> torch.Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def forward_pass(model: Any, pixels: Any) -> Any:
    output = model(pixels, output_attentions=True)
    return [output.logits, *output.attentions, model(pixels).logits]


def another_size(model: Any, pixels: Any) -> Any:
    return model(pixels[:, :, :24]).logits


def readings_of_a_record(model: Any, pixels: Any) -> Any:
    one = record(model, pixels[:1])
    found = [one.logits, *(one.full(block) for block in range(one.blocks)), one.rows(0, [2, 5]), one.columns(1, [3])]
    found += [one.log_sums(0), one.similarity(4), one.rollout(0), one.rollout(3, direction="to")]
    return [*found, one.last_attention(), one.weights(2, 1, 0)]


def relevance_and_legrad(model: Any, pixels: Any) -> Any:
    one = relevance_record(model, pixels[:1], 2)
    maps = [one.relevance(), one.relevance(3), one.gradient_rollout(), one.attention_gradient()]
    return [*maps, one.flow(1), grad_cam(model, pixels[:1], 2), legrad(model, pixels[:1], 2)]


def every_method(model: Any, pixels: Any) -> Any:
    recorded = RecordedPass.of_class(model, pixels[:1], 1)
    return [weights(recorded, name).float() for name in METHODS]


def score_drops_under_masks(model: Any, pixels: Any) -> Any:
    return [score_drops(model, pixels[:1], 1, random_masks(16, 24)), removal_map(model, pixels[:1], 1)]


def faithfulness_of_a_map(model: Any, pixels: Any) -> Any:
    one, masks = record(model, pixels[:1]), random_masks(16, 24)
    heatmap = one.heatmap(one.last_attention())
    verdict = faithfulness_verdict(heatmap, masks, score_drops(model, pixels[:1], 1, masks))
    curves = [curve(model, pixels[:1], 1, heatmap, 4)[1] for curve in (deletion, insertion)]
    return [torch.tensor(values) for values in (verdict, *curves, faithfulness(model, pixels[:1], 1, [heatmap], 4))]


def hidden_patches(model: Any, pixels: Any) -> Any:
    hidden = [hide_patches(pixels[:1], [1, 5], 8, baseline) for baseline in ("mean", "blur", "noise")]
    return [*hidden, occlusion(model, pixels[:1])]


def ablation_of_heads(model: Any, pixels: Any) -> Any:
    means = head_means(model, pixels)
    changed = model(pixels, hook=ablation_hook([(0, 1)], means)).logits
    return [means, changed, importance(model, pixels[:1], 2), importance(model, pixels[:1], 2, means)]


def statistics_of_heads(model: Any, pixels: Any) -> Any:
    return list(tally(model, pixels).means.values())


def components_of_features(model: Any, pixels: Any) -> Any:
    found = components([component_features(model, one[None]) for one in pixels], foreground=True)
    return [token_features(model, pixels[:1]), *found.colours]


def registers(model: Any, pixels: Any) -> Any:
    register_neurons(model, [pixels[:1] * 20])
    return with_register(model, [(0, 3), (1, 7)])(pixels[:1]).logits


def features_and_matches(model: Any, pixels: Any) -> Any:
    vectors = patch_features(model, pixels)
    found = matches(vectors[:2], vectors[2:])
    return [pooled_features(model, pixels), vectors, *(one.float() for one in found)]


def predictions_after_every_block(model: Any, pixels: Any) -> Any:
    verify(model, pixels[:1])
    return [one for one in logit_lens(model, pixels[:1], 1) if isinstance(one, torch.Tensor)]


WITHOUT_WAITING = (
    forward_pass, another_size, readings_of_a_record, hidden_patches, ablation_of_heads, statistics_of_heads,
    features_and_matches,
)  # fmt: skip
# These find tokens, fit a basis, or hand their results to the CPU.
WAITING = (
    relevance_and_legrad, every_method, score_drops_under_masks, faithfulness_of_a_map, components_of_features,
    registers, predictions_after_every_block,
)  # fmt: skip


@pytest.mark.parametrize("compute", WITHOUT_WAITING + WAITING, ids=lambda compute: compute.__name__)
def test_result_equals_that_of_the_cpu(compute: Compute, device: str, assert_close: Callable[..., None]) -> None:
    expected = compute(tiny_model(), noise())
    model, pixels = tiny_model().to(device), noise().to(device)
    with pretended.count_waits() as waits:
        result = compute(model, pixels)
        waited = dict(waits)
    assert_close(result, expected)
    assert compute in WAITING or not waited, waited


@pytest.mark.parametrize("pool", ["mean", "map"])
def test_pooled_logits_equal_those_of_the_cpu(pool: str, device: str, assert_close: Callable[..., None]) -> None:
    expected = tiny_model(pool=pool)(noise()).logits
    model, pixels = tiny_model(pool=pool).to(device), noise().to(device)
    with no_waits():
        result = model(pixels).logits
    assert_close(result, expected)


def test_more_heads_need_no_more_waits(device: str) -> None:
    counts = []
    for heads in (2, 8):
        model, pixels = tiny_model(heads=heads).to(device), noise().to(device)
        with pretended.count_waits() as waits:
            every_method(model, pixels)
            counts.append(sum(waits.values()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("classifier", ["probe", "neighbours"])
def test_heads_from_examples_equal_those_of_the_cpu(
    classifier: str, device: str, assert_close: Callable[..., None]
) -> None:
    random = np.random.default_rng(0)
    vectors, labels = random.standard_normal((24, 64)).astype(np.float32), np.arange(24) % 3
    head = classes_from_features(Features(vectors, labels, ("a", "b", "c")), "noise", classifier).head
    tokens = torch.from_numpy(vectors[:2])
    expected = head(tokens).detach()
    assert_close(head.to(device)(tokens.to(device)), expected)
