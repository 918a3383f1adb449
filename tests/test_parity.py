"""Every family: the library's own model with random parameters, saved by the library and loaded by us, is equal.

The models are tiny. Logits and every attention matrix agree within 1e-5, at the training's size and at another; eps and
activation, which a comparison of numbers can hardly see, are compared with the config of their model.
"""

import re
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import timm
import torch
import transformers
from tiny import difference, fill
from torch import Tensor, nn

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.recognition import read
from vit.errors import InvalidCheckpoint
from vit.model.config import PositionResize, ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

TOLERANCE = 1e-5


class Answer(NamedTuple):
    """A model's output for pictures: logits (B, C) and L attention matrices (B, H, N, N)."""

    logits: Tensor
    attentions: list[Tensor]


class Case(NamedTuple):
    """A model of another library, and how to run and save it.

    Attributes:
        build: makes the model.
        ask: returns the library's own logits and attention.
        save: writes to a folder, as the library does.
        config: fields that ours must have, besides what the numbers show.
        assumed: fields that our reader cannot determine and must list as assumptions.
        other: size (height, width) of other pictures that it accepts; None if it accepts only one.
    """

    build: Callable[[], nn.Module]
    ask: Callable[[nn.Module, Tensor], Answer]
    save: Callable[[nn.Module, Path], Path]
    config: dict[str, Any]
    assumed: frozenset[str] = frozenset()
    other: tuple[int, int] | None = (48, 32)


# --- transformers ---------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
    num_labels=5,
)  # fmt: skip
TEXT = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=99)


def theirs(kind: str, settings: str = "", two_towers: bool = False, **changes: Any) -> Callable[[], nn.Module]:
    """Build a tiny random model of transformers, by the name of its class."""

    def build() -> nn.Module:
        values = {k: v for k, v in (SMALL | changes).items() if v is not None}
        made = getattr(transformers, settings or kind.split("For")[0].split("Model")[0] + "Config")
        config = made(vision_config=values, text_config=TEXT, num_labels=5) if two_towers else made(**values)
        config._attn_implementation = "eager"
        return fill(getattr(transformers, kind)(config))

    return build


def ask_transformers(model: nn.Module, images: Tensor) -> Answer:
    """Return their logits, or their pooled output, and their attention."""
    arguments: dict[str, Any] = {"output_attentions": True}
    native = tuple(images.shape[2:]) == (32, 32)
    if "Dinov2" not in type(model).__name__ and "DINOv3" not in type(model).__name__ and not native:
        arguments["interpolate_pos_encoding"] = True
    if "MAE" in type(model).__name__:
        patches = images.shape[2] * images.shape[3] // 64
        arguments["noise"] = torch.arange(patches).float()[None].expand(len(images), -1)
    result = model(images, **arguments)
    for name in ("logits", "image_embeds", "pooler_output"):
        if getattr(result, name, None) is not None and "MAE" not in type(model).__name__:
            break
    else:
        return Answer(result.last_hidden_state[:, 0], list(result.attentions))
    pooled = getattr(result, name)
    if name == "pooler_output" and hasattr(model, "pooler"):
        pooled = result.last_hidden_state[:, 0]  # their pooler is not part of the published model
    return Answer(pooled, list(result.attentions))


def save_transformers(model: nn.Module, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def of_transformers(kind: str, config: dict[str, Any], *, assumed: frozenset[str] = frozenset(), **how: Any) -> Case:
    other = how.pop("other", (48, 32))
    return Case(theirs(kind, **how), ask_transformers, save_transformers, config, assumed | {"preprocess"}, other)


NAMED = frozenset({"labels"})
TRANSFORMERS = {
    "ViT": of_transformers("ViTForImageClassification", dict(eps=1e-12, activation="gelu", heads=4), assumed=NAMED),
    "ViT, other settings": of_transformers(
        "ViTForImageClassification", dict(eps=1e-3, activation="gelu_tanh", qkv_bias=False), assumed=NAMED,
        hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-3, qkv_bias=False,
    ),
    "ViT without head": of_transformers("ViTModel", dict(num_classes=0)),
    "DeiT": of_transformers(
        "DeiTForImageClassification", dict(eps=1e-12, prefix=("cls", "dist"), pool="cls"), assumed=NAMED
    ),
    "DeiT with teacher": of_transformers(
        "DeiTForImageClassificationWithTeacher", dict(eps=1e-12, pool="cls_dist"), assumed=NAMED, settings="DeiTConfig"
    ),
    "Dinov2": of_transformers(
        "Dinov2ForImageClassification", dict(eps=1e-6, activation="gelu", pool="cls_mean"), assumed=NAMED,
        intermediate_size=None,
    ),
    "Dinov2, SwiGLU": of_transformers(
        "Dinov2Model", dict(eps=1e-6, activation="silu", gated_mlp=True), intermediate_size=None, use_swiglu_ffn=True
    ),
    "Dinov2 with registers": of_transformers(
        "Dinov2WithRegistersForImageClassification",
        dict(eps=1e-6, prefix=("cls", "reg1", "reg2", "reg3"), position_resize="bicubic_antialias"), assumed=NAMED,
        intermediate_size=None, num_register_tokens=3,
    ),
    "CLIP vision": of_transformers(
        "CLIPVisionModelWithProjection", dict(eps=1e-5, activation="quick_gelu", norm_pre=True), assumed=NAMED,
        settings="CLIPVisionConfig", projection_dim=24, hidden_act="quick_gelu",
    ),
    "CLIP vision, pooled": of_transformers(
        "CLIPVisionModel", dict(eps=1e-5, activation="quick_gelu", num_classes=0), settings="CLIPVisionConfig"
    ),
    "Chinese CLIP": of_transformers("ChineseCLIPVisionModel", dict(eps=1e-5, num_classes=0)),
    "CLIP classifier": of_transformers(
        "CLIPForImageClassification", dict(eps=1e-5, pool="mean", norm="none"), assumed=NAMED, two_towers=True,
        settings="CLIPConfig",
    ),
    "SigLIP vision": of_transformers(
        "SiglipVisionModel", dict(eps=1e-6, activation="gelu_tanh", pool="map"), settings="SiglipVisionConfig"
    ),
    "SigLIP classifier": of_transformers(
        "SiglipForImageClassification", dict(eps=1e-6, pool="mean", prefix=()), assumed=NAMED, two_towers=True,
        settings="SiglipConfig",
    ),
    "MSN": of_transformers("ViTMSNForImageClassification", dict(eps=1e-6), assumed=NAMED),
    "MAE": of_transformers(
        "ViTMAEModel", dict(eps=1e-12, num_classes=0), mask_ratio=0.0, decoder_hidden_size=32,
        decoder_num_attention_heads=2,
    ),
    "I-JEPA": of_transformers("IJepaForImageClassification", dict(eps=1e-12, prefix=(), pool="mean"), assumed=NAMED),
    "DINOv3": of_transformers(
        "DINOv3ViTModel", dict(eps=1e-5, rope=100.0, activation="gelu"), num_register_tokens=4
    ),
    "DINOv3, gated": of_transformers(
        "DINOv3ViTModel", dict(eps=1e-5, rope=100.0, activation="silu", gated_mlp=True), num_register_tokens=4,
        use_gated_mlp=True, hidden_act="silu",
    ),
}  # fmt: skip


CLASSES = {i: name for i, name in enumerate(("ant", "bee", "cow", "dog", "elk", "fox", "gnu"))}
CUT = {  # classifier, suffix of the model without its head, settings of both
    "ViT": ("ViTForImageClassification", "ViTModel", {}),
    "DeiT": ("DeiTForImageClassification", "DeiTModel", {}),
    "MSN": ("ViTMSNForImageClassification", "ViTMSNModel", {}),
    "Dinov2": ("Dinov2ForImageClassification", "Dinov2Model", {"intermediate_size": None}),
}


@pytest.mark.parametrize(("classifier", "backbone", "settings"), CUT.values(), ids=CUT)
def test_backbone_cut_from_a_classifier_drops_the_class_names(
    tmp_path: Path, classifier: str, backbone: str, settings: dict[str, Any]
) -> None:
    whole = theirs(classifier, num_labels=None, id2label=CLASSES, **settings)()
    whole.save_pretrained(tmp_path / "whole")
    assert load_checkpoint(tmp_path / "whole").labels == tuple(CLASSES.values())
    getattr(transformers, backbone).from_pretrained(tmp_path / "whole").save_pretrained(tmp_path / "cut")
    cut = load_checkpoint(tmp_path / "cut")
    assert (cut.labels, cut.config.num_classes) == ((), 0)
    assert cut.assumed["labels"] == (
        "config.json names 7 classes, but the weights hold no head for them, so they are left out."
    )


@pytest.mark.parametrize(
    ("kind", "settings", "outputs"),
    [
        ("CLIPVisionModelWithProjection", "CLIPVisionConfig", 24),
        ("CLIPVisionModel", "CLIPVisionConfig", 0),
        ("SiglipVisionModel", "SiglipVisionConfig", 0),
    ],
)
def test_tower_of_another_task_drops_the_class_names(tmp_path: Path, kind: str, settings: str, outputs: int) -> None:
    more = {"projection_dim": outputs} if outputs else {}
    tower = theirs(kind, settings, num_labels=None, id2label=CLASSES, **more)()
    tower.save_pretrained(tmp_path)
    opened = load_checkpoint(tmp_path)
    assert (opened.labels, opened.config.num_classes) == ((), outputs)
    assert "config.json names 7 classes" in opened.assumed["labels"]
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert difference(opened.model(image).logits, ask_transformers(tower, image).logits) <= TOLERANCE


# --- timm -----------------------------------------------------------------------------------------------------

TINY = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)


def of_timm(
    architecture: str, config: dict[str, Any], *, assumed: frozenset[str] = frozenset(), **changes: Any
) -> Case:
    """Return a tiny timm model, saved with config.json as timm's own export does."""
    arguments = {k: v for k, v in (TINY | changes).items() if v is not None}

    def save(model: nn.Module, folder: Path) -> Path:
        timm.models.save_for_hf(model, folder, model_config={"model_args": arguments}, safe_serialization=True)
        return folder

    return Case(lambda: fill(timm.create_model(architecture, **arguments)), ask_timm, save, config, assumed, None)


def ask_timm(model: nn.Module, images: Tensor) -> Answer:
    """Return timm's logits, and its attention, captured at the attention dropout."""
    collected: list[Tensor] = []
    handles = []
    for block in model.blocks:
        block.attn.fused_attn = False
        handles.append(
            block.attn.attn_drop.register_forward_hook(lambda module, args, output: collected.append(output))
        )
    logits = model(images)
    for handle in handles:
        handle.remove()
    return Answer(logits, collected)


GELU = dict(eps=1e-6, activation="gelu", heads=4)
TIMM = {
    "ViT": of_timm("vit_base_patch16_224", GELU, assumed=NAMED),
    "ViT, no qkv bias": of_timm("vit_base_patch16_224_miil", GELU | dict(qkv_bias=False), assumed=NAMED),
    "DeiT distilled": of_timm("deit_small_distilled_patch16_224", GELU | dict(pool="cls_dist"), assumed=NAMED),
    "DeiT-III": of_timm("deit3_small_patch16_224", GELU | dict(layer_scale=1.0), assumed=NAMED),
    "gap": of_timm("vit_medium_patch16_gap_256", GELU | dict(pool="mean", prefix=()), assumed=NAMED),
    "gap with registers": of_timm(
        "vit_medium_patch16_reg4_gap_256", GELU | dict(pool="mean", norm="after_pool"), assumed=NAMED
    ),
    "DINOv2": of_timm("vit_small_patch14_dinov2", GELU, assumed=NAMED),
    "DINOv2 with registers": of_timm(
        "vit_small_patch14_reg4_dinov2", GELU | dict(prefix=("cls", "reg1", "reg2", "reg3", "reg4")), assumed=NAMED
    ),
    "DINOv2 giant, SwiGLU": of_timm(
        "vit_giant_patch14_reg4_dinov2", dict(eps=1e-6, activation="silu", gated_mlp=True), assumed=NAMED, mlp_ratio=4
    ),
    "CLIP": of_timm("vit_base_patch16_clip_224", dict(eps=1e-5, activation="gelu", norm_pre=True), assumed=NAMED),
    "CLIP, QuickGELU": of_timm(
        "vit_base_patch16_clip_quickgelu_224", dict(eps=1e-5, activation="quick_gelu"), assumed=NAMED
    ),
    "SigLIP": of_timm("vit_base_patch16_siglip_224", GELU | dict(pool="map"), assumed=NAMED),
    "SigLIP, tanh": of_timm("vit_large_patch16_siglip_512", dict(activation="gelu_tanh", pool="map"), assumed=NAMED),
    "EVA giant": of_timm("eva_giant_patch14_224", GELU | dict(norm="after_pool"), assumed=NAMED),
    "DINOv3": of_timm(
        "vit_small_patch16_dinov3_qkvb", dict(eps=1e-5, rope=100.0, pool="mean"), assumed=NAMED, img_size=32
    ),
    "no final norm": of_timm("vit_base_patch16_radio_v3", dict(norm="none"), assumed=NAMED, num_classes=5),
}

CASES = {f"{library} · {name}": case for library, cases in (("transformers", TRANSFORMERS), ("timm", TIMM))
         for name, case in cases.items()}  # fmt: skip


@cache
def opened(name: str) -> tuple[Case, nn.Module, Checkpoint]:
    """A case, their model, and our checkpoint loaded from their files."""
    case = CASES[name]
    model = case.build().eval()
    with tempfile.TemporaryDirectory() as folder:
        return case, model, load_checkpoint(case.save(model, Path(folder) / "theirs"))


@torch.inference_mode()
@pytest.mark.parametrize("name", CASES)
def test_logits_and_attention_equal_the_librarys(pictures: Any, name: str) -> None:
    case, model, checkpoint = opened(name)
    images = pictures(32, 32)
    expected, result = case.ask(model, images), checkpoint.model(images, output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    assert len(result.attentions) == len(expected.attentions) == 2
    for mine, their in zip(result.attentions, expected.attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.other])
def test_positions_are_resized_as_the_library_does(pictures: Any, name: str) -> None:
    case, model, checkpoint = opened(name)
    images = pictures(*case.other)
    assert difference(checkpoint.model(images).logits, case.ask(model, images).logits) <= TOLERANCE


@pytest.mark.parametrize("name", CASES)
def test_config_fields_that_numbers_hardly_show_are_equal(name: str) -> None:
    case, _, checkpoint = opened(name)
    assert {field: getattr(checkpoint.config, field) for field in case.config} == case.config
    assert set(checkpoint.assumed) == case.assumed


WRONG: dict[str, tuple[str, dict[str, Any]]] = {
    "heads": ("timm · DINOv2 with registers", {"heads": 8}),
    "tanh": ("timm · ViT", {"activation": "gelu_tanh"}),
    "quick": ("timm · CLIP", {"activation": "quick_gelu"}),
    "gate": ("timm · DINOv2 giant, SwiGLU", {"activation": "gelu"}),
    "eps": ("transformers · ViT", {"eps": 1e-3}),
    "pool": ("timm · DINOv2 with registers", {"pool": "mean"}),
    "norm after": ("timm · gap with registers", {"norm": "before_pool"}),
    "rope": ("transformers · DINOv3", {"rope": 10_000.0}),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", WRONG)
def test_comparison_would_notice_a_wrong_config(pictures: Any, what: str) -> None:
    name, changes = WRONG[what]
    case, model, checkpoint = opened(name)
    wrong = VisionTransformer(ViTConfig.from_dict(checkpoint.config.to_dict() | changes)).eval()
    wrong.load_state_dict(checkpoint.model.state_dict())
    images = pictures(32, 32)
    assert difference(wrong(images).logits, case.ask(model, images).logits) > TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.other])
def test_only_one_way_of_resizing_equals_theirs(pictures: Any, name: str) -> None:
    case, model, checkpoint = opened(name)
    if checkpoint.config.rope:
        return  # turned, not resized
    images = pictures(*case.other)
    expected = case.ask(model, images).logits
    for how in set(get_args(PositionResize)) - {checkpoint.config.position_resize}:
        other = VisionTransformer(replace(checkpoint.config, position_resize=how)).eval()
        other.load_state_dict(checkpoint.model.state_dict())
        assert difference(other(images).logits, expected) > 1e-4, how


# --- All timm models ------------------------------------------------------------------------------------------

ENTRIES = [name for module in ("vision_transformer", "deit", "eva") for name in timm.list_models(module=module)]


def truth(model: Any) -> dict[str, Any]:
    """Return what a timm model computes, read from its modules."""
    block = model.blocks[0]
    act = type(block.mlp.act).__name__
    distilled = hasattr(model, "head_dist")
    # Only timm's VisionTransformer can leave the prefix out of the pool; its Eva reads all tokens with a query.
    patches_alone = model.num_prefix_tokens and not getattr(model, "pool_include_prefix", True)
    pools = {"token": "cls", "avg": "mean", "map": "map_patches" if patches_alone else "map"}
    return {
        "heads": block.attn.num_heads,
        "eps": block.norm1.eps,
        "activation": {"GELU": "gelu", "GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu", "SiLU": "silu"}[act],
        "pool": "cls_dist" if distilled else pools[model.global_pool],
        "depth": len(model.blocks),
        "prefix": model.num_prefix_tokens,
        "norm_pre": isinstance(getattr(model, "norm_pre", None), nn.LayerNorm),
        "norm": "after_pool"
        if isinstance(model.fc_norm, nn.LayerNorm)
        else "before_pool"
        if isinstance(model.norm, nn.LayerNorm)
        else "none",
        "rotary": getattr(model, "rope", None) is not None,
    }


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_timm_model_is_read_correctly_or_refused() -> None:
    """With two blocks each, since further ones are alike; with all blocks for sapiens2, whose blocks differ."""
    right, refused = [], []
    for name in ENTRIES:
        with torch.device("meta"):
            model = timm.create_model(name, **({} if name.endswith("sapiens2") else {"depth": 2}))
        document = {"architecture": name, "global_pool": model.global_pool}
        try:
            config = read(dict(model.state_dict()), document).config
        except InvalidCheckpoint:
            refused.append(name)
            continue
        result = {field: getattr(config, field) for field in ("heads", "eps", "activation", "pool", "depth", "norm")}
        result |= {"prefix": len(config.prefix), "norm_pre": config.norm_pre, "rotary": config.rope is not None}
        assert result == truth(model), name
        right.append(name)
    assert len(right) >= 160, (len(right), refused)
    plain = r"^(vit|deit3?)_(tiny|small|medium|base|large|huge)_(distilled_)?patch\d+_(reg4_)?(gap_|dinov2|clip_)?\d*$"
    assert not [name for name in refused if re.match(plain, name)]


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["vit_base_patch16_224", "vit_small_patch14_reg4_dinov2", "flexivit_small", "deit3_small_patch16_224"]
)
def test_timm_positions_are_resized_equally(tmp_path: Path, pictures: Any, name: str) -> None:
    small = fill(timm.create_model(name, **TINY)).eval()
    timm.models.save_for_hf(small, tmp_path, model_config={"model_args": TINY}, safe_serialization=True)
    overlay = {"file": str(tmp_path / "model.safetensors"), "num_classes": 5, "custom_load": False}
    large = timm.create_model(name, **TINY | {"img_size": 48}, pretrained=True, pretrained_cfg_overlay=overlay).eval()
    images = pictures(48, 48)
    assert difference(load_checkpoint(tmp_path).model(images).logits, large(images)) <= TOLERANCE
