"""Ablated heads, masked patches and the logit lens, against plain passes of the model."""

from typing import Any

import pytest
import torch
from torch import Tensor

from vit.explain import head_ablation
from vit.explain.head_ablation import ablation_hook, head_means, importance
from vit.explain.logit_lens import Lens, logit_lens
from vit.explain.occlusion import hide_patches, occlusion
from vit.explain.record import record
from vit.model import cost

pytestmark = pytest.mark.matrix

KINDS: dict[str, dict[str, Any]] = {
    "cls": {},
    "registers": {"prefix": ("cls", "reg1", "reg2"), "layer_scale": 0.5},
    "mean": {"prefix": (), "pool": "mean", "norm": "after_pool"},
    "both": {"pool": "cls_mean"},
    "distilled": {"prefix": ("cls", "dist"), "pool": "cls_dist"},
    "query": {"prefix": (), "pool": "map"},
    "rotary": {"rope": 100.0, "prefix": ("cls", "reg1")},
}
kinds = pytest.mark.parametrize("kind", KINDS)


def silenced(model: Any, block: int, head: int) -> Any:
    """Return the model with a head's columns of the projection set to zero: a second way to ablate it."""
    width = model.config.dim // model.config.heads
    with torch.no_grad():
        model.blocks[block].attn.proj.weight[:, head * width : (head + 1) * width] = 0
    return model


@kinds
def test_head_replaced_by_zero_equals_its_projection_removed(build: Any, pictures: Any, kind: str) -> None:
    model, image = build(**KINDS[kind]), pictures(32, 48, count=1)
    for block, head in ((0, 1), (1, 0)):
        result = record(model, image, hook=ablation_hook([(block, head)]))
        expected = record(silenced(build(**KINDS[kind]), block, head), image)
        torch.testing.assert_close(result.logits, expected.logits)
        torch.testing.assert_close(result.full(1), expected.full(1))
        with torch.inference_mode():
            torch.testing.assert_close(model(image, hook=ablation_hook([(block, head)])).logits, expected.logits)


def test_model_is_unchanged(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    before = record(model, image).logits
    record(model, image, hook=ablation_hook([(0, 0), (1, 1)]))
    assert torch.equal(record(model, image).logits, before)


@kinds
def test_means_equal_those_of_the_heads_outputs(build: Any, pictures: Any, kind: str) -> None:
    model, images = build(**KINDS[kind]), pictures(count=3)
    means = head_means(model, images)
    first = len(model.config.prefix)
    assert means.shape == (2, 2, first + 1, 32)
    outputs = []
    for block in model.blocks:
        block.attn.proj.register_forward_pre_hook(lambda _, args: outputs.append(args[0]))
    model(images, output_attentions=True)
    for result, output in zip(means, outputs, strict=True):
        heads = output.detach().unflatten(-1, (2, -1)).permute(2, 0, 1, 3)  # (H, B, N, K)
        torch.testing.assert_close(result[:, :first], heads[:, :, :first].mean(1))
        torch.testing.assert_close(result[:, first], heads[:, :, first:].mean((1, 2)))


@kinds
@pytest.mark.parametrize("by", ["mean", "zero"])
def test_importance_equals_ablating_head_by_head(
    build: Any, pictures: Any, kind: str, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, image = build(**KINDS[kind]), pictures(48, 32, count=1)
    means = head_means(model, pictures(count=2)) if by == "mean" else None
    result = importance(model, image, 3, means)
    whole = record(model, image).logits[0, 3]
    for block in range(2):
        for head in range(2):
            left = record(model, image, hook=ablation_hook([(block, head)], means)).logits[0, 3]
            assert float(result[block, head]) == pytest.approx(float(whole - left), abs=2e-5)
    monkeypatch.setattr(head_ablation, "CACHED_NUMBERS", 1)
    shares: list[float] = []
    torch.testing.assert_close(importance(model, image, 3, means, shares.append), result, atol=2e-5, rtol=1e-4)
    assert shares == sorted(shares) and shares[-1] == 1
    monkeypatch.setattr(head_ablation, "_HELD_NUMBERS", 1)  # the last batch of a block runs before the next begins
    torch.testing.assert_close(importance(model, image, 3, means), result, atol=2e-5, rtol=1e-4)


def test_importance_starts_a_blocks_heads_in_that_block(build: Any, pictures: Any) -> None:
    model, passed = build(depth=4), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args, passed=passed: passed.append(len(args[0])))
    importance(model, pictures(count=1), 0)
    assert sum(passed) == 4 + 2 * (
        3 + 2 + 1
    )  # one picture in every block, and each head's from the block after its own


# --- Patches --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("baseline", ["mean", "blur", "noise"])
def test_only_masked_patches_change(pictures: Any, baseline: Any) -> None:
    image: Tensor = pictures(32, 48, count=1) + 2
    result = hide_patches(image, [0, 8], 8, baseline)
    changed = (result != image).any(1)[0].view(4, 8, 6, 8).any(3).any(1)
    assert changed.nonzero().tolist() == [[0, 0], [1, 2]]
    assert torch.equal(hide_patches(image, [], 8, baseline), image)
    if baseline == "mean":
        torch.testing.assert_close(result[0, :, 0, 0], image.mean((2, 3))[0])
    assert torch.equal(result, hide_patches(image, [0, 8], 8, baseline))  # the noise is the same each time


@kinds
@pytest.mark.parametrize("baseline", ["mean", "blur", "noise"])
def test_occlusion_equals_masking_patch_by_patch(
    build: Any, pictures: Any, kind: str, baseline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, image, off = build(**KINDS[kind]), pictures(32, 48, count=1), ablation_hook([(0, 1)])
    shares: list[float] = []
    result = occlusion(model, image, baseline, off, [2, 9], shares.append)
    assert result.shape == (24, 5) and shares[-1] == 1
    for patch in (0, 7, 23):
        recorded = record(model, hide_patches(image, [2, 9, patch], 8, baseline), hook=off)
        torch.testing.assert_close(result[patch], recorded.logits[0].softmax(0))
    monkeypatch.setattr(cost, "CACHED_NUMBERS", 1)
    torch.testing.assert_close(occlusion(model, image, baseline, off, [9, 2], shares.append), result)
    assert len(shares) > 24 and not torch.allclose(result, occlusion(model, image, baseline))


def test_patch_out_of_range_is_refused(pictures: Any) -> None:
    with pytest.raises(ValueError, match="0 to 23"):
        hide_patches(pictures(32, 48, count=1), [24], 8)


# --- Logit lens -----------------------------------------------------------------------------------------------


@kinds
def test_lens_ends_with_the_answer(build: Any, pictures: Any, kind: str) -> None:
    model, image = build(**KINDS[kind]), pictures(32, 48, count=1)
    result = logit_lens(model, image, 2)
    answer = record(model, image).logits[0].softmax(-1)
    torch.testing.assert_close(result.answers[-1], answer)
    tokens = len(model.config.prefix) + 24
    assert result.targets.shape == result.lengths.shape == (2, tokens)
    if model.config.pool == "cls":
        torch.testing.assert_close(result.targets[-1, 0], answer[2])


def test_answer_of_a_token_is_that_of_a_picture_of_such_tokens(build: Any, pictures: Any) -> None:
    model, image = build(prefix=(), pool="mean"), pictures(count=1)
    result = logit_lens(model, image, 1)
    x, (first, *_) = model.walk(image)
    expected = model.classify(first(x)[:, 5:6].expand(-1, 7, -1)).softmax(-1)[0].detach()
    assert float(result.targets[0, 5]) == pytest.approx(float(expected[1]), abs=1e-6)


def test_lens_in_chunks_gives_the_same(build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = build(), pictures(count=1)
    whole = logit_lens(model, image, 1)
    monkeypatch.setattr("vit.explain.logit_lens.CACHED_NUMBERS", 1)
    torch.testing.assert_close(logit_lens(model, image, 1).targets, whole.targets)


@pytest.mark.parametrize(
    ("best", "block"), [([1, 2, 2, 2], 1), ([2, 2, 2, 2], 0), ([2, 1, 2, 1], 3), ([0, 2, 1, 1], 2)]
)
def test_deciding_block(best: list[int], block: int) -> None:
    answers = torch.nn.functional.one_hot(torch.tensor(best), 3).float()
    empty = torch.zeros(4, 1)
    assert Lens(answers, empty, empty).decided == block
