"""AttnLRP equals relevance that is propagated layer by layer, by the rules' own formulas, and the published library."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import vit
from vit.errors import UserError
from vit.explain.head_ablation import ablation_hook
from vit.explain.lrp import attnlrp
from vit.explain.relevance import relevance_record
from vit.model.classification_heads import CosineHead

pytestmark = pytest.mark.matrix

TARGET = 3


# --- The rules, written as they are in the paper: relevance in, relevance out -----------------------------------------


def of_linear(x: Tensor, weight: Tensor, bias: Tensor | None, relevance: Tensor) -> Tensor:
    """The epsilon rule, eq. 8, with an epsilon of 0: each input gets its share of the output."""
    output = x @ weight.T + (0 if bias is None else bias)
    return x * ((relevance / output) @ weight)


def of_norm(x: Tensor, norm: Any, relevance: Tensor) -> Tensor:
    """Eq. 15: a LayerNorm is a linear map, since its deviation is a constant."""
    size = x.shape[-1]
    deviation = (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    centring = torch.eye(size, dtype=x.dtype) - 1 / size
    output = norm(x)
    return x * ((relevance / output * norm.weight / deviation) @ centring)


def of_sum(one: Tensor, other: Tensor, relevance: Tensor) -> tuple[Tensor, Tensor]:
    return one / (one + other) * relevance, other / (one + other) * relevance


def of_attention(attention: Any, x: Tensor, relevance: Tensor) -> Tensor:
    """Eq. 13 for softmax, eq. 14 for both products; relevance of the layer's input (N, D)."""
    heads, size = attention.heads, x.shape[-1] // attention.heads
    q, k, v = (part.unflatten(-1, (heads, size)).transpose(0, 1) for part in attention.qkv(x).chunk(3, -1))  # (H, N, K)
    scores = q @ k.mT * size**-0.5
    weights = scores.softmax(-1)
    output = weights @ v
    joined = output.transpose(0, 1).flatten(1)
    after = of_linear(joined, attention.proj.weight, attention.proj.bias, relevance)
    after = after.unflatten(-1, (heads, size)).transpose(0, 1)
    pairs = weights[..., None] * v[:, None] / output[:, :, None] * after[:, :, None] / 2  # (H, N, N, K)
    of_weights, of_values = pairs.sum(-1), pairs.sum(1)
    of_scores = scores * (of_weights - weights * of_weights.sum(-1, keepdim=True))
    products = q[:, :, None] * k[:, None] * size**-0.5 / scores[..., None] * of_scores[..., None] / 2  # (H, N, N, K)
    of_queries, of_keys = products.sum(2), products.sum(1)
    parts = torch.cat([part.transpose(0, 1).flatten(1) for part in (of_queries, of_keys, of_values)], -1)
    return of_linear(x, attention.qkv.weight, attention.qkv.bias, parts)


def of_mlp(mlp: Any, x: Tensor, relevance: Tensor) -> Tensor:
    """Eq. 9 for the activation, eq. 14 for the product of gate and value."""
    hidden = mlp.activations(x)
    back = of_linear(hidden, mlp.fc2.weight, mlp.fc2.bias, relevance)
    if mlp.gated:
        back = torch.cat([back / 2, back / 2], -1)
    return of_linear(x, mlp.fc1.weight, mlp.fc1.bias, back)


def of_block(block: Any, x: Tensor, relevance: Tensor) -> Tensor:
    """Relevance of the tokens (N, D) that enter a block, from that of the tokens that leave it."""
    scale1, scale2 = (1 if scale is None else scale for scale in (block.scale1, block.scale2))
    first = block.attn(block.norm1(x)[None])[0] * scale1
    second = block.mlp(block.norm2(x + first)) * scale2
    stays, through = of_sum(x + first, second, relevance)
    stays = stays + of_norm(x + first, block.norm2, of_mlp(block.mlp, block.norm2(x + first), through))
    stays, through = of_sum(x, first, stays)
    return stays + of_norm(x, block.norm1, of_attention(block.attn, block.norm1(x), through))


PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"prefix": ("cls", "reg1", "reg2"), "layer_scale": 1.0, "heads": 4},
    "mean of patches": {"prefix": (), "pool": "mean"},
    "gated": {"gated_mlp": True, "activation": "silu", "qkv_bias": False},
    "QuickGELU": {"activation": "quick_gelu"},
    "tanh": {"activation": "gelu_tanh", "image_size": (24, 40)},
}


@pytest.mark.parametrize("kind", PLAIN)
@torch.no_grad()
def test_relevance_equals_the_rules_of_the_paper_layer_by_layer(build: Any, pictures: Any, kind: str) -> None:
    model = build(seed=2, **{"depth": 3} | PLAIN[kind]).double()
    image = pictures(*model.config.image_size, count=1).double()
    x, steps = model.walk(image, every=True)
    inputs = [x[0]]
    for step in steps:
        inputs.append(step(inputs[-1][None])[0])
    out = model.norm(inputs[-1])
    pooled = out[model.read].mean(0, keepdim=True)
    back = of_linear(pooled, model.head.weight, model.head.bias, model.head(pooled) * torch.eye(5)[TARGET])
    relevance = torch.zeros_like(out)
    relevance[model.read] = out[model.read] / len(out[model.read]) / pooled * back
    relevance = of_norm(inputs[-1], model.norm, relevance)
    for block in reversed(range(3)):
        relevance = of_block(model.blocks[block], inputs[block], relevance)
        result = attnlrp(model, image, TARGET, block)
        assert (result - relevance.sum(-1)).abs().max() <= 1e-7 * relevance.sum(-1).abs().max()
    assert result.min() < 0 < result.max()
    torch.testing.assert_close(attnlrp(model, image, TARGET, -1), attnlrp(model, image, TARGET, 2))


RECORDED = Path(__file__).with_name("attnlrp_of_everyday.json")


def test_relevance_of_everyday_equals_the_published_library() -> None:
    recorded = json.loads(RECORDED.read_text())
    pixels = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    result = attnlrp(vit.load_checkpoint("everyday").model, pixels, recorded["target"])
    expected = torch.tensor(recorded["relevance"])
    assert (result - expected).abs().max() <= 1e-3 * expected.abs().max()


# --- Every kind of model ----------------------------------------------------------------------------------------------

KINDS: dict[str, dict[str, Any]] = {
    "distilled": {"prefix": ("cls", "dist"), "pool": "cls_dist"},
    "class and mean": {"pool": "cls_mean"},
    "norms within": {"post_norm": True, "attn_norm": True, "mlp_norm": True, "norm_pre": True},
    "rotary": {"prefix": ("cls", "reg1"), "rope": 100.0, "layer_scale": 1.0, "gated_mlp": True},
    "mixed rotary": {"rope": 10.0, "rope_places": "mixed"},
    "biases of distance": {"position_bias": "progression", "pool": "mean"},
    "tanh before the head": {"pre_logits": 16},
}


@pytest.mark.parametrize("kind", PLAIN | KINDS)
def test_without_attention_and_biases_the_sum_is_the_logit(build: Any, pictures: Any, kind: str) -> None:
    model = build(seed=1, **(PLAIN | KINDS)[kind]).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or ".attn.proj" in name or name.endswith("attn.norm.weight"):
                parameter.zero_()
    image = pictures(*model.config.image_size, count=1).double()
    relevance, logit = attnlrp(model, image, TARGET), model(image).logits[0, TARGET]
    assert float(relevance.sum()) == pytest.approx(float(logit.detach()), rel=1e-9) and logit != 0


@pytest.mark.parametrize("kind", PLAIN | KINDS)
def test_fused_kernel_gives_the_same_relevance(
    build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    model = build(seed=1, **(PLAIN | KINDS)[kind]).double()
    image = pictures(*model.config.image_size, count=1).double()
    explicit = attnlrp(model, image, TARGET)
    monkeypatch.setattr("vit.model.attention.EXPLICIT_TOKENS", 0)
    torch.testing.assert_close(attnlrp(model, image, TARGET), explicit)


def test_pooling_query_gets_its_keys_and_values_relevance(build: Any, pictures: Any) -> None:
    """Reading the last tokens by a learnt query: half through the values, the rest through the softmax to the keys."""
    model = build(prefix=(), pool="map", depth=1).double()
    with torch.no_grad():
        for part in (model.blocks[0].attn.proj, model.blocks[0].mlp.fc2):  # the block adds nothing
            part.weight.zero_(), part.bias.zero_()
        model.pool.mlp.fc2.weight.zero_(), model.pool.mlp.fc2.bias.zero_()
    image = pictures(count=1).double()
    x = model.walk(image).x[0].detach()
    pool, heads, normed = model.pool, model.pool.heads, model.norm(x)
    q, k, v = (
        part.unflatten(-1, (heads, -1)).transpose(0, 1)
        for part in (pool.q(pool.probe[0]), *pool.kv(normed).chunk(2, -1))
    )
    weights = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (H, 1, N)
    output = (weights @ v).transpose(0, 1).flatten(1)
    pooled = pool.proj(output)
    back = of_linear(pooled, model.head.weight, model.head.bias, model.head(pooled) * torch.eye(5)[TARGET])
    back = of_linear(output, pool.proj.weight, pool.proj.bias, back).unflatten(-1, (heads, -1)).transpose(0, 1)
    pairs = weights.mT * v / (weights @ v) * back / 2  # (H, N, K)
    of_weights = pairs.sum(-1)[:, None]
    scores = q @ k.mT * q.shape[-1] ** -0.5
    of_scores = scores * (of_weights - weights * of_weights.sum(-1, keepdim=True))
    of_keys = q * k * q.shape[-1] ** -0.5 / scores.mT * of_scores.mT  # all of it: the query is a constant
    parts = torch.cat([part.transpose(0, 1).flatten(1) for part in (of_keys, pairs)], -1)
    expected = of_norm(x, model.norm, of_linear(normed, pool.kv.weight, pool.kv.bias, parts)).sum(-1)
    torch.testing.assert_close(attnlrp(model, image, TARGET), expected)


def test_relevance_of_a_similarity_keeps_its_length_constant(build: Any, pictures: Any) -> None:
    """A cosine is linear in the features but for their length, so it has the relevance of a linear head."""
    model, image = build().double(), pictures(count=1).double()
    directions = torch.randn(2, 64, generator=torch.Generator().manual_seed(1))
    head = CosineHead(nn.Identity(), directions, scale=10.0).double()
    similar = model.with_head(head, 2)
    x, steps = model.walk(image)
    for step in steps:
        x = step(x)
    features = model.pool_features(x)[0]
    unit = head.directions[1] / features.norm()
    linear = nn.Linear(64, 1, bias=False).double()
    with torch.no_grad():
        linear.weight.copy_(10 * unit)
    torch.testing.assert_close(attnlrp(similar, image, 1), attnlrp(model.with_head(linear, 1), image, 0))


def test_change_of_heads_applies_to_the_pass(build: Any, pictures: Any) -> None:
    model, image = build(depth=3), pictures(count=1)
    off = ablation_hook([(0, 0), (0, 1)])
    relevance = attnlrp(model, image, TARGET, hook=off)
    assert not torch.allclose(relevance, attnlrp(model, image, TARGET))
    with torch.no_grad():
        model.blocks[0].attn.proj.weight.zero_()
    torch.testing.assert_close(attnlrp(model, image, TARGET), relevance)


def test_model_and_later_passes_stay_as_they_are(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    with torch.inference_mode():
        before = model(image).logits
        attnlrp(model, image)
        assert torch.equal(model(image).logits, before)
    gradient = relevance_record(model, image, TARGET).input_gradient
    attnlrp(model, image)
    assert torch.equal(relevance_record(model, image, TARGET).input_gradient, gradient)
    assert all(parameter.grad is None and parameter.requires_grad for parameter in model.parameters())


def test_predicted_class_is_the_default(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    predicted = int(model(image).logits[0].argmax())
    assert torch.equal(attnlrp(model, image), attnlrp(model, image, predicted))


def test_unknown_class_block_and_model_without_classes_are_refused(build: Any, pictures: Any) -> None:
    image = pictures(count=1)
    with pytest.raises(UserError, match="There is no class 9"):
        attnlrp(build(), image, 9)
    with pytest.raises(ValueError, match="There is no block 5"):
        attnlrp(build(), image, block=5)
    with pytest.raises(UserError, match="no class to explain"):
        attnlrp(build(num_classes=0), image)
