"""The forward pass: shapes, probabilities, positions, sizes, training-only behaviour, and validation of configs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vit.model.attention import HeadInputs
from vit.model.config import SMALL_MODELS, ViTConfig, preset_names
from vit.model.positions import resize_positions
from vit.model.transformer import VisionTransformer

TOLERANCE = 1e-5

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "registers": {"prefix": ("cls", "reg1", "reg2")},
    "mean pool": {"pool": "mean", "prefix": (), "norm": "after_pool"},
    "layer scale": {"layer_scale": 1e-5},
    "no norm, tanh": {"norm": "none", "activation": "gelu_tanh"},
    "quick gelu, no bias": {"activation": "quick_gelu", "qkv_bias": False},
    "not square, grey": {"image_size": (24, 40), "channels": 1},
    "no head": {"num_classes": 0},
}


def on_meta(config: ViTConfig) -> VisionTransformer:
    with torch.device("meta"):
        return VisionTransformer(config)


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.fixture(params=VARIANTS, ids=lambda name: name.replace(" ", "-"))
def variant(request: pytest.FixtureRequest, build: Callable[..., VisionTransformer]) -> VisionTransformer:
    """One model of every kind that a config can describe."""
    return build(**VARIANTS[request.param])


@pytest.fixture
def images(variant: VisionTransformer, pictures: Callable[..., torch.Tensor]) -> torch.Tensor:
    """Input for `variant`."""
    return pictures(*variant.config.image_size, channels=variant.config.channels)


# --- Shapes and probabilities ---------------------------------------------------------------------------------


def test_picture_of_224_px_in_patches_of_16_is_197_tokens_of_768() -> None:
    config = ViTConfig(depth=1)
    model = VisionTransformer(config)
    assert config.tokens == 197
    assert model.embed(torch.zeros(1, 3, 224, 224)).shape == (1, 197, 768)
    assert model(torch.zeros(1, 3, 224, 224), output_attentions=True).attentions[0].shape == (1, 12, 197, 197)


@torch.inference_mode()
def test_rows_of_attention_sum_to_one(variant: VisionTransformer, images: torch.Tensor) -> None:
    attentions = variant(images, output_attentions=True).attentions
    config = variant.config
    assert len(attentions) == config.depth
    for attention in attentions:
        assert attention.shape == (2, config.heads, config.tokens, config.tokens)
        assert (attention.sum(-1) - 1).abs().max() <= TOLERANCE
        assert attention.min() >= 0


@torch.inference_mode()
def test_three_kinds_of_passes_agree(variant: VisionTransformer, images: torch.Tensor) -> None:
    fast, explicit = variant(images), variant(images, output_attentions=True)
    recorded = variant(images, output_queries_keys=True)
    scale = fast.logits.abs().max()
    assert (fast.logits - explicit.logits).abs().max() <= TOLERANCE * scale
    assert (fast.logits - recorded.logits).abs().max() <= TOLERANCE * scale
    for q, k, attention in zip(recorded.queries, recorded.keys, explicit.attentions, strict=True):
        again = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)
        assert (again - attention).abs().max() <= TOLERANCE


@torch.inference_mode()
def test_attention_is_that_of_the_forward_pass(build: Any, pictures: Any) -> None:
    """Rebuild the logits by hand from the returned matrices; a matrix of another block must give others."""
    model, images = build(), pictures()
    output = model(images, output_attentions=True)

    def by_hand(attentions: tuple[torch.Tensor, ...]) -> torch.Tensor:
        x = model.embed(images)
        for block, attention in zip(model.blocks, attentions, strict=True):
            v = F.linear(block.norm1(x), *(t.chunk(3)[2] for t in (block.attn.qkv.weight, block.attn.qkv.bias)))
            mixed = attention @ v.unflatten(-1, (2, 32)).transpose(1, 2)
            x = x + block.attn.proj(mixed.transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
        return model.head(model.norm(x)[:, 0])

    scale = output.logits.abs().max()
    assert (by_hand(output.attentions) - output.logits).abs().max() <= TOLERANCE * scale
    assert (by_hand(output.attentions[::-1]) - output.logits).abs().max() > 1e-3 * scale  # negative control


@torch.inference_mode()
def test_agreement_would_notice_a_wrong_number_of_heads(build: Any, pictures: Any) -> None:
    right, wrong = build(), build(heads=4)
    wrong.load_state_dict(right.state_dict())
    assert (right(pictures()).logits - wrong(pictures()).logits).abs().max() > 1e-2


def test_both_outputs_at_once_are_refused(build: Any, pictures: Any) -> None:
    with pytest.raises(ValueError, match="not for both"):
        build()(pictures(), output_attentions=True, output_queries_keys=True)


@pytest.mark.parametrize("shape", [(1, 3, 33, 32), (1, 1, 32, 32), (3, 32, 32), (1, 3, 0, 32), (1, 3, 4, 8)])
def test_pictures_that_do_not_fit_are_refused(build: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="Picture"):
        build()(torch.zeros(shape))


# --- Positions ------------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("size", [(64, 64), (16, 16), (40, 24), (8, 96)])
@pytest.mark.parametrize("prefix", [("cls",), ("cls", "reg1")])
def test_pictures_of_another_size_and_aspect_work(
    build: Any, pictures: Any, size: tuple[int, int], prefix: tuple[str, ...]
) -> None:
    model = build(prefix=prefix)
    output = model(pictures(*size), output_attentions=True)
    tokens = len(prefix) + size[0] // 8 * (size[1] // 8)
    assert output.attentions[0].shape == (2, 2, tokens, tokens)
    assert torch.isfinite(output.logits).all()
    assert (output.attentions[0].sum(-1) - 1).abs().max() <= TOLERANCE


def test_positions_are_resized_as_maps_with_rows_before_cols() -> None:
    rows, cols = torch.meshgrid(torch.arange(4.0), torch.arange(6.0), indexing="ij")
    positions = torch.stack([rows, cols], -1).reshape(1, 24, 2)
    resized = resize_positions(positions, (4, 6), (8, 6), "bilinear").reshape(8, 6, 2)
    assert torch.allclose(resized[..., 1], cols[:1].expand(8, 6))  # columns stay
    assert (resized[1:, :, 0] >= resized[:-1, :, 0]).all() and resized[0, 0, 0] == 0 and resized[-1, 0, 0] == 3


def test_positions_at_the_training_size_are_unchanged() -> None:
    positions = torch.randn(1, 24, 2)
    assert resize_positions(positions, (4, 6), (4, 6), "bicubic_antialias") is positions


def test_four_ways_to_resize_positions_differ() -> None:
    positions = torch.randn(1, 16, 8, generator=torch.Generator().manual_seed(0))
    modes = ("bicubic", "bicubic_antialias", "bicubic_corners", "bilinear")
    results = [resize_positions(positions, (4, 4), (6, 6), mode) for mode in modes]
    for i, one in enumerate(results):
        for other in results[:i]:
            assert (one - other).abs().max() > 1e-2


@torch.inference_mode()
def test_picture_is_read_row_by_row(build: Any) -> None:
    """The token of patch (1, 2) changes with its pixels, and no other token does."""
    model = build(image_size=(24, 40))
    image = torch.zeros(1, 3, 24, 40)
    before = model.embed(image)
    image[..., 8:16, 16:24] = 1
    changed = (model.embed(image) - before).abs().amax(-1)[0].nonzero().flatten().tolist()
    assert changed == [1 + 1 * 5 + 2]


# --- Sizes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "torchvision_params"),
    # Source: torchvision 0.29, `num_params` in the meta of ViT_*_Weights.IMAGENET1K_V1; H/14 at 224 px.
    [
        ("B/16", 86_567_656),
        ("B/32", 88_224_232),
        ("L/16", 304_326_632),
        ("L/32", 306_535_400),
        ("H/14", 632_045_800),
    ],
)
def test_named_sizes_have_the_published_number_of_parameters(name: str, torchvision_params: int) -> None:
    config = ViTConfig.preset(name)
    # Ours lacks one row: the class token's position is part of the token.
    assert count(on_meta(config)) == torchvision_params - config.dim


@pytest.mark.parametrize(("name", "millions"), [("Ti/16", 5.7), ("S/16", 22.1)])
def test_deit_sizes_have_the_published_number_of_parameters(name: str, millions: float) -> None:
    """Source: Touvron et al. 2021, arXiv 2012.12877, table 5."""
    assert round(count(on_meta(ViTConfig.preset(name))) / 1e6, 1) == millions


@pytest.mark.parametrize("name", preset_names())
def test_every_named_size_runs(name: str) -> None:
    config = ViTConfig.preset(name)
    model = on_meta(config)
    output = model(torch.zeros(1, config.channels, *config.image_size, device="meta"))
    assert output.logits.shape == (1, config.num_classes)


@pytest.mark.parametrize("name", SMALL_MODELS)
def test_small_sizes_have_under_ten_million_parameters(name: str) -> None:
    assert count(on_meta(ViTConfig.preset(name))) < 10e6


def test_named_size_takes_changes_and_an_unknown_one_lists_the_known() -> None:
    assert ViTConfig.preset("B/16", image_size=384).tokens == 577
    for name in ("B/17", "X/16", "B", ""):
        with pytest.raises(ValueError, match="B/16"):
            ViTConfig.preset(name)


# --- Initialisation and training ------------------------------------------------------------------------------


def test_untrained_model_has_equal_logits(tiny: ViTConfig, pictures: Any) -> None:
    assert VisionTransformer(tiny).eval()(pictures()).logits.abs().max() == 0


@torch.no_grad()
def test_initial_weights_have_the_spread_of_the_paper() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig.preset("Ti/16", depth=2))
    dim = 192
    assert model.patch_embed.weight.std() == pytest.approx((3 * 16 * 16) ** -0.5, rel=0.1)
    assert model.pos_embed.std() == pytest.approx(0.02, rel=0.05)
    for part in model.blocks[0].attn.qkv.weight.chunk(3):  # each (D, D) on its own
        assert part.std() == pytest.approx((2 / (2 * dim)) ** 0.5, rel=0.05)
    assert model.prefix_tokens.abs().max() == 0


def test_initial_registers_differ_from_each_other() -> None:
    tokens = VisionTransformer(ViTConfig(depth=1, prefix=("cls", "reg1", "reg2"))).prefix_tokens[0]
    assert not torch.equal(tokens[1], tokens[2])


@pytest.mark.parametrize("name", ["dropout", "drop_path"])
def test_dropout_and_drop_path_act_only_in_training(build: Any, pictures: Any, name: str) -> None:
    plain, dropping, images = build(), build(**{name: 0.5}), pictures(count=8)
    assert torch.equal(dropping(images).logits, plain(images).logits)
    dropping.train()
    assert not torch.equal(dropping(images).logits, dropping(images).logits)


def test_drop_path_rises_from_zero_to_its_value_and_keeps_the_mean(build: Any) -> None:
    model = build(depth=5, drop_path=0.4).train()
    assert [block.branch.drop_path for block in model.blocks] == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    torch.manual_seed(0)
    out = model.blocks[-1].branch(torch.ones(20_000, 1, 1), None)
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.6])
    assert out.mean() == pytest.approx(1, abs=0.02)


def test_every_parameter_gets_a_gradient(variant: VisionTransformer, images: torch.Tensor) -> None:
    variant(images).logits.square().sum().backward()
    unused = {"prefix_tokens"} if not variant.config.prefix else set()
    for name, parameter in variant.named_parameters():
        assert name in unused or (parameter.grad is not None and parameter.grad.abs().max() > 0), name


# --- Config ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"heads": 3}, "heads"),
        ({"patch_size": 7}, "patch_size"),
        ({"image_size": (32,)}, "image_size"),
        ({"image_size": 0}, "image_size"),
        ({"image_size": True}, "image_size"),
        ({"dim": 64.0}, "dim"),
        ({"depth": 0}, "depth"),
        ({"num_classes": -1}, "num_classes"),
        ({"num_classes": True}, "num_classes"),
        ({"activation": "relu"}, "activation"),
        ({"norm": "batch"}, "norm"),
        ({"pool": "max"}, "pool"),
        ({"position_resize": "nearest"}, "position_resize"),
        ({"prefix": ()}, "pool"),
        ({"prefix": ("cls", "cls")}, "prefix"),
        ({"dropout": 1.0}, "dropout"),
        ({"drop_path": -0.1}, "drop_path"),
        ({"dropout": float("nan")}, "dropout"),
        ({"eps": 0.0}, "eps"),
        ({"layer_scale": float("inf")}, "layer_scale"),
    ],
)
def test_impossible_config_is_refused_by_the_name_of_its_field(
    tiny: ViTConfig, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(ValueError, match=field):
        ViTConfig.from_dict(tiny.to_dict() | changes)


def test_unknown_fields_and_wrong_types_are_refused(tiny: ViTConfig) -> None:
    with pytest.raises(ValueError, match="colour"):
        ViTConfig.from_dict(tiny.to_dict() | {"colour": 1})
    for name in tiny.to_dict():
        with pytest.raises(ValueError):
            ViTConfig.from_dict(tiny.to_dict() | {name: {"a": [object()]}})


@pytest.mark.parametrize("name", VARIANTS)
def test_config_survives_json(tiny: ViTConfig, name: str) -> None:
    import json

    config = ViTConfig.from_dict(tiny.to_dict() | VARIANTS[name])
    assert ViTConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.slow
def test_pass_compiles_into_one_graph(build: Any, pictures: Any) -> None:
    """A training loop may compile the model, where graph breaks would slow down every step."""
    model, images = build(depth=2), pictures()
    compiled = torch.compile(lambda x: model(x).logits, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), model(images).logits)


def test_hook_sees_every_block_and_its_return_value_replaces_the_output(build: Any, pictures: Any) -> None:
    model, images = build(depth=3), pictures()
    plain, collected = model(images), []

    def halve_the_last(block: int, inputs: HeadInputs) -> torch.Tensor:
        collected.append((block, tuple(inputs.q.shape)))
        return inputs.output() * (0.5 if block == 2 else 1)

    hooked = model(images, hook=halve_the_last)
    heads = (len(images), model.config.heads, 17, model.config.dim // model.config.heads)
    assert collected == [(block, heads) for block in range(3)]
    assert not torch.allclose(hooked.logits, plain.logits)
    torch.testing.assert_close(model(images, hook=lambda block, inputs: inputs.output()).logits, plain.logits)


def test_blocks_called_by_hand_equal_the_pass(build: Any, pictures: Any) -> None:
    for changes in ({}, {"pool": "mean", "prefix": ()}, {"rope": 100.0, "prefix": ("cls", "reg1")}):
        model, images = build(**changes), pictures()
        x, steps = model.walk(images)
        for step in steps:
            x = step(x)
        torch.testing.assert_close(model.classify(x), model(images).logits)
        assert x.shape[1] == len(range(len(model.config.prefix) + 16)[model.read])
