"""timm architectures with other positions, norms or pools than a plain ViT: equal to timm, or refused.

Every parameter is random; logits and every attention matrix agree within 1e-5. Files without a config.json are
distinguished by their tensors, whatever their name.
"""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny import difference, fill
from torch import Tensor, nn

import vit
from vit.checkpoints.convert import obstacle
from vit.checkpoints.families.timm_architectures import query_reads_prefix
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.checkpoints.recognition import read
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint, UnknownHeads
from vit.explain.record import record
from vit.explain.relevance import relevance_record

TOLERANCE = 1e-5
TINY: dict[str, Any] = dict(img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, num_classes=5)


def ask(model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Return timm's logits, and its attention, captured at the attention dropout."""
    attentions: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: attentions.append(output))
    with torch.inference_mode():
        return model(images), attentions


def assert_equal(checkpoint: vit.Checkpoint, model: nn.Module, size: tuple[int, int]) -> None:
    images = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(1))
    expected, attentions = ask(model, images)
    with torch.inference_mode():
        found = checkpoint.model(images, output_attentions=True)
    assert difference(found.logits, expected) <= TOLERANCE
    assert found.attentions is not None and len(found.attentions) == len(attentions)
    for mine, their in zip(found.attentions, attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE


def save(model: nn.Module, path: Path) -> Path:
    """Save a single file, without config.json."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, path)
    return path


TINY_MODELS: dict[str, dict[str, Any]] = {
    "eva02_tiny_patch14_224": {},
    "eva02_base_patch14_224": {"ref_feat_shape": [6, 5]},
    "eva02_base_patch16_clip_224": {},
    "eva02_enormous_patch14_clip_224": {},
    "vit_base_patch16_rpn_224": {},
    "vit_small_patch16_rope_224": {},
    "vit_small_patch16_rope_ape_224": {"rope_temperature": 50.0},
    "vit_small_patch16_rope_mixed_224": {"img_size": [32, 48]},
    "vit_medium_patch16_rope_reg1_gap_256": {},
    "vit_pe_core_base_patch16_224": {"attn_pool_num_heads": 2, "attn_pool_mlp_ratio": 3.0},
    "vit_pe_core_gigantic_patch14_448": {"img_size": [32, 48]},
    "vit_pe_spatial_tiny_patch16_512": {},
    "vit_pe_lang_large_patch14_448": {},
    "beit3_base_patch16_224": {},
    "vit_small_patch16_dinov3_qkvb": {},
}


@pytest.mark.parametrize("name", TINY_MODELS)
def test_model_with_config_json_equals_timms_and_survives_saving(tmp_path: Path, name: str) -> None:
    arguments = TINY | TINY_MODELS[name]
    model = fill(timm.create_model(name, **arguments)).eval()
    timm.models.save_for_hf(model, tmp_path / "theirs", model_config={"model_args": arguments}, safe_serialization=True)
    checkpoint = load_checkpoint(tmp_path / "theirs")
    size = tuple(model.patch_embed.img_size)
    assert checkpoint.config.image_size == size
    assert_equal(checkpoint, model, size)

    in_memory = checkpoint_from_module(model)
    assert in_memory.config == checkpoint.config

    save_checkpoint(tmp_path / "ours", checkpoint.model, checkpoint.labels, checkpoint.preprocess, {})
    again = load_checkpoint(tmp_path / "ours")
    pixels = torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0))
    assert again.config == checkpoint.config
    assert torch.equal(again.model(pixels).logits, checkpoint.model(pixels).logits)

    recorded, whole = record(again.model, pixels), again.model(pixels, output_attentions=True)
    assert torch.allclose(recorded.full(1), whole.attentions[1][0], rtol=1e-4, atol=1e-5)
    back = relevance_record(again.model, pixels, target=1)
    assert back.relevance().isfinite().all() and difference(back.logits, whole.logits.detach()) <= TOLERANCE
    if "dinov3" not in name:
        assert all("exactly" in obstacle(checkpoint, to) for to in ("transformers", "timm", "torchvision"))


POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "token, norm after": ("vit_tiny_patch16_224", {"fc_norm": True}),
    "mean": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "mean, norm before": ("vit_tiny_patch16_224", {"global_pool": "avg", "fc_norm": False, "reg_tokens": 2}),
    "mean of all": ("vit_tiny_patch16_224", {"global_pool": "avg", "pool_include_prefix": True}),
    "mean of all, no class token": (
        "vit_tiny_patch16_224",
        {"global_pool": "avg", "pool_include_prefix": True, "class_token": False, "reg_tokens": 2},
    ),
    "query": ("vit_tiny_patch16_224", {"global_pool": "map", "class_token": False}),
    "query, class token": ("vit_tiny_patch16_224", {"global_pool": "map"}),
    "query, registers": ("vit_so150m_patch16_reg4_map_256", {}),
    "query for all": ("vit_tiny_patch16_224", {"global_pool": "map", "pool_include_prefix": True}),
    "query of Eva": ("eva_giant_patch14_224", {"global_pool": "map"}),
    "query of Eva, rotary": ("vit_small_patch16_rope_224", {"global_pool": "map"}),
    "token of Eva, norm after": (
        "eva02_tiny_patch14_224", {"global_pool": "token", "use_fc_norm": True, "use_post_transformer_norm": False}
    ),
    "token of BEiT, norm after": ("beit_base_patch16_224", {"global_pool": "token", "use_fc_norm": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", POOLS)
def test_pool_is_the_stated_one(tmp_path: Path, case: str) -> None:
    name, changes = POOLS[case]
    model = fill(timm.create_model(name, **TINY, **changes)).eval()
    timm.models.save_for_hf(model, tmp_path, model_args=TINY | changes, safe_serialization=True)
    checkpoint = load_checkpoint(tmp_path)
    assert "pool" not in checkpoint.assumed
    assert_equal(checkpoint, model, (32, 32))
    assert checkpoint_from_module(model).config == checkpoint.config


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("vit_tiny_patch16_224", {"global_pool": "max"}, "pools by max"),
        ("vit_tiny_patch16_224", {"global_pool": "avgmax"}, "pools by avgmax"),
        ("eva02_tiny_patch14_224", {"use_fc_norm": True, "use_post_transformer_norm": True}, "`norm` and `fc_norm`"),
    ],
)
def test_pool_that_is_not_computed_is_refused(tmp_path: Path, name: str, changes: dict[str, Any], said: str) -> None:
    model = timm.create_model(name, **TINY, **changes)
    timm.models.save_for_hf(model, tmp_path, model_args=TINY | changes, safe_serialization=True)
    for opened in (lambda: load_checkpoint(tmp_path), lambda: checkpoint_from_module(model)):
        with pytest.raises(InvalidCheckpoint, match=said):
            opened()


def test_learnt_query_of_timms_eva_reads_every_token() -> None:
    eva, plain = (set(timm.list_models(module=module)) for module in ("eva", "vision_transformer"))
    sapiens = {name for name in eva if "sapiens" in name}  # refused
    assert {name for name in eva | plain if query_reads_prefix(name)} == eva - sapiens | {"test_vit3"}


UNNAMED = {
    "eva02_tiny_patch14_336": dict(depth=1, img_size=56),
    "eva02_base_patch16_clip_224": dict(depth=1, img_size=64),
    "eva02_enormous_patch14_clip_224": dict(depth=1, mlp_ratio=1, img_size=56),
    "vit_base_patch16_rpn_224": dict(depth=1, img_size=64),
    "vit_small_patch16_rope_224": dict(depth=1, img_size=64),
    "vit_small_patch16_rope_mixed_ape_224": dict(depth=1, img_size=64),
    "vit_medium_patch16_rope_reg1_gap_256": dict(depth=1, img_size=64),
    "vit_pe_core_tiny_patch16_384": dict(depth=1, img_size=64),
    "vit_pe_spatial_tiny_patch16_512": dict(depth=1, img_size=64),
    "vit_small_patch16_dinov3": dict(depth=1, img_size=64, num_classes=7),
    "vit_tiny_patch16_dinov3_qkvb": dict(depth=1, img_size=64),
    "vit_base_patch32_siglip_256": dict(depth=1, img_size=64),
}


@pytest.mark.parametrize("name", UNNAMED)
def test_single_file_equals_timms_model(tmp_path: Path, name: str) -> None:
    model = fill(timm.create_model(name, **UNNAMED[name])).eval()
    checkpoint = load_checkpoint(save(model, tmp_path / "weights.safetensors"))
    assert_equal(checkpoint, model, tuple(model.patch_embed.img_size))


@pytest.mark.parametrize(
    ("name", "changes", "said"),
    [
        ("vit_small_patch16_rope_ape_224", {}, "DeiT-III and timm's vit_.*_rope_ape.*config.json"),
        ("vit_small_patch16_dinov3_qkvb", {}, "mean of the patches and LingBot"),
        ("vit_small_patch16_lingbot", {}, "mean of the patches and LingBot"),
        ("eva02_enormous_patch14_clip_224", {"embed_dim": 64}, "match an EVA and an EVA-02"),
        ("vit_base_patch16_rpn_224", {"embed_dim": 192, "num_heads": 3}, "LayerNorms come after attention and MLP"),
        ("vit_pe_core_base_patch16_224", {"embed_dim": 48, "num_heads": 4}, "Perception Encoder of no published size"),
        ("vit_small_patch16_224", {"pos_embed": "none"}, "no position embeddings"),
        ("vit_small_patch16_224", {"global_pool": "map"}, "query reads the patches and one.*every token"),
        (
            "vit_small_patch16_224",
            {"class_token": False, "global_pool": "avg", "fc_norm": False, "final_norm": False},
            "vision encoder of Qwen3-VL",
        ),
    ],
)
def test_architecture_that_tensors_cannot_determine_is_refused_and_named(
    tmp_path: Path, name: str, changes: dict[str, Any], said: str
) -> None:
    model = timm.create_model(name, depth=1, img_size=64, **changes)
    with pytest.raises(InvalidCheckpoint, match=said):
        load_checkpoint(save(model, tmp_path / "model.safetensors"))


def test_heads_are_asked_for_if_published_models_of_one_shape_differ(tmp_path: Path) -> None:
    path = save(timm.create_model("vit_base_patch16_gap_224", depth=1), tmp_path / "model.safetensors")
    with pytest.raises(UnknownHeads):
        load_checkpoint(path)
    assert load_checkpoint(path, heads=16).config.heads == 16


NAMES = (
    "vit_vs_resnet50_folds/model", "run_xp_1/weights", "tight_rope_dataset/best", "out/kd_beit_to_vit",
    "vit_pe_core/eva02_tiny_patch14_224", "vit_small_patch16_rope_224/model", "aimv2_rpn_/vit_small_patch16_dinov3",
)  # fmt: skip


def test_file_name_does_not_change_a_plain_vit(tmp_path: Path) -> None:
    model = fill(timm.create_model("vit_tiny_patch16_224", depth=1, img_size=64)).eval()
    for name in NAMES:
        assert_equal(load_checkpoint(save(model, tmp_path / f"{name}.safetensors")), model, (64, 64))


def test_grid_is_that_of_the_config_or_a_stated_assumption(tmp_path: Path) -> None:
    arguments = dict(img_size=(32, 128), depth=1, embed_dim=192, num_classes=4)
    model = fill(timm.create_model("vit_tiny_patch16_224", **arguments)).eval()
    lone = load_checkpoint(save(model, tmp_path / "model.safetensors"))
    assert lone.config.grid == (4, 4) and "4 x 4, 2 x 8 or 8 x 2" in lone.assumed["image_size"]

    model.pretrained_cfg["input_size"] = (3, 32, 128)
    timm.models.save_for_hf(model, tmp_path / "named", safe_serialization=True)
    named = load_checkpoint(tmp_path / "named")
    assert named.config.grid == (2, 8) and "image_size" not in named.assumed
    assert_equal(named, model, (32, 128))

    odd = timm.create_model("vit_tiny_patch16_224", img_size=(32, 112), depth=1)
    with pytest.raises(InvalidCheckpoint, match="2 x 7"):
        load_checkpoint(save(odd, tmp_path / "odd.safetensors"))


def test_perception_encoder_under_metas_names_is_not_taken_for_clip() -> None:
    shapes = {
        "conv1.weight": (48, 3, 8, 8), "class_embedding": (48,), "positional_embedding": (17, 48),
        "ln_pre.weight": (48,), "transformer.resblocks.0.ln_1.weight": (48,),
    }  # fmt: skip
    with pytest.raises(InvalidCheckpoint, match="Perception Encoder under Meta's names"):
        read({f"visual.{name}": torch.zeros(shape) for name, shape in shapes.items()})
