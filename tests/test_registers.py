"""Test-time registers: planted neurons are found and moved, and the model itself is unchanged."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from planted_registers import PLANTED, STRANGE, plant
from torch import Tensor

from vit.explain.record import record
from vit.explain.registers import register_neurons, with_register
from vit.explain.weight_views import outliers
from vit.model.transformer import VisionTransformer


def lengths(model: VisionTransformer, pixels: Tensor) -> Tensor:
    """Return the norms of all tokens after every block: (L, N)."""
    after = []
    x, steps = model.walk(pixels, every=True)
    with torch.inference_mode():
        for step in steps:
            x = step(x)
            after.append(x[0].norm(dim=-1))
    return torch.stack(after)


@pytest.fixture
def planted(
    build: Callable[..., VisionTransformer], pictures: Callable[..., Tensor], request: Any
) -> tuple[Any, Tensor]:
    """Build a model with neurons that write great norms into two patches of a picture; return both."""
    torch.manual_seed(0)
    model, pixels = build(depth=3, **getattr(request, "param", {})), pictures(count=1)
    plant(model, pixels)
    return model, pixels


POOLS = [{"pool": pool, "prefix": prefix} for pool, prefix in
         (("cls", ("cls",)), ("cls", ("cls", "reg1")), ("mean", ()), ("map", ()))]  # fmt: skip


@pytest.mark.parametrize(
    "planted", [*POOLS, {"layer_scale": 0.5}, {"gated_mlp": False, "norm": "before_pool"}], indirect=True
)
def test_planted_neurons_are_found_and_moved(planted: tuple[VisionTransformer, Tensor]) -> None:
    model, pixels = planted
    first = len(model.config.prefix)
    before = lengths(model, pixels)
    assert outliers(before[1:2, first:])[0].nonzero()[:, 0].tolist() == list(STRANGE)
    found = register_neurons(model, [pixels])
    assert set(found.neurons[:2]) == set(PLANTED) and found.block == 1 and found.tokens == 2
    assert sum(found.shares) > 0.5

    changed = with_register(model, found.neurons)
    assert changed.config.prefix[:-1] == model.config.prefix and changed.config.prefix[-1].startswith("reg")
    after = lengths(changed, pixels)
    usual = before[1, first:].median()
    assert float(after[1, first + 1 :].max()) < 3 * float(usual) < float(before[1, first:].max())
    assert float(after[1, first]) > 3 * float(usual)  # the register receives the norms
    others = with_register(model, [(1, 3), (1, 11)])
    assert float(lengths(others, pixels)[1, first + 1 :].max()) > 0.8 * float(before[1, first:].max())


def test_model_itself_is_unchanged(planted: tuple[VisionTransformer, Tensor]) -> None:
    model, pixels = planted
    with torch.inference_mode():
        before = model(pixels).logits
    names = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    changed = with_register(model, register_neurons(model, [pixels]).neurons)
    with torch.inference_mode():
        assert not torch.equal(changed(pixels).logits, before)
        assert torch.equal(model(pixels).logits, before)
    assert names.keys() == model.state_dict().keys()
    assert all(torch.equal(names[name], tensor) for name, tensor in model.state_dict().items())
    assert changed.blocks[0].attn is model.blocks[0].attn  # the same weights


def test_attention_is_recorded_with_the_register(planted: tuple[VisionTransformer, Tensor]) -> None:
    model, pixels = planted
    changed = with_register(model, PLANTED)
    result = record(changed, pixels)
    assert result.prefix == changed.config.prefix and result.tokens == record(model, pixels).tokens + 1
    torch.testing.assert_close(result.full(2).sum(-1), torch.ones(result.heads, result.tokens))


def test_nothing_to_move_without_outlier_tokens(
    build: Callable[..., VisionTransformer], pictures: Callable[..., Tensor]
) -> None:
    model, pixels = build(), torch.zeros_like(pictures(count=1))  # all patches are alike
    with torch.no_grad():
        model.pos_embed.zero_()
    assert register_neurons(model, [pixels]) == ((), (), -1, 0, (0.0,))
