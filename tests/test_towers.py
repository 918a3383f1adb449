"""Relatives of the models that are read: a picture tower that computes the same opens, others are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import small_transformers
import torch
import transformers
from saved_checkpoints import edit
from small_transformers import build, classes, differences, save
from tiny import fill

from vit.checkpoints import recognition
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

TOLERANCE = 1e-5
UNUSUAL = {"eps": 3e-3, "heads": 6, "activation": "quick_gelu"}
# model_type -> config fields of its lone weights, which no file states.
OPENED = {
    "metaclip_2": {"eps": 1e-5, "activation": "quick_gelu"},
    "altclip": {"eps": 1e-5, "activation": "quick_gelu"},
    "clipseg": {"eps": 1e-5, "activation": "quick_gelu"},
    "chinese_clip": {"eps": 1e-5, "activation": "quick_gelu"},
    "git": {"eps": 1e-5, "activation": "quick_gelu"},
    "dpt": {"eps": 1e-12, "activation": "gelu"},
    "flava": {"eps": 1e-12, "activation": "gelu"},
    "idefics3": {"eps": 1e-6, "activation": "gelu_tanh"},
    "smolvlm": {"eps": 1e-6, "activation": "gelu_tanh"},
    "granite_docling": {"eps": 1e-6, "activation": "gelu_tanh"},
    "colpali": {"eps": 1e-6, "activation": "gelu_tanh"},
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", OPENED)
def test_tower_equals_transformers_from_its_folder_and_from_the_weights_alone(tmp_path: Path, kind: str) -> None:
    for way, fields in (("folder", UNUSUAL), ("alone", OPENED[kind] | {"heads": 3})):
        model = build(classes(kind)[0], unusual=way == "folder")
        checkpoint = load_checkpoint(save(model, tmp_path, way))
        found = differences(checkpoint, model)
        assert max(found.values()) <= TOLERANCE and "tokens" in found, (way, found)
        assert {field: getattr(checkpoint.config, field) for field in fields} == fields
        assert checkpoint.labels == ()


@torch.inference_mode()
def test_comparison_of_towers_would_notice_settings_of_another_part(tmp_path: Path) -> None:
    model = build(classes("metaclip_2")[0], unusual=True)
    folder = save(model, tmp_path, "folder")
    document = json.loads((folder / "config.json").read_text())
    edit(folder / "config.json", vision_config=document["vision_config"] | {"layer_norm_eps": 1e-5})
    assert max(differences(load_checkpoint(folder), model).values()) > TOLERANCE


@torch.inference_mode()
def test_positions_of_dpt_are_resized_as_transformers_does(tmp_path: Path) -> None:
    model = build(transformers.DPTModel, unusual=True)
    images = torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    found = load_checkpoint(save(model, tmp_path, "folder")).model(images, output_queries_keys=True).tokens
    expected = model(images, interpolate_pos_encoding=True).last_hidden_state
    assert float((found - expected).abs().max()) <= TOLERANCE * float(expected.abs().max())


TINY: dict[str, Any] = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
)
TEXT = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=99)


def with_texts(kind: str) -> Any:
    """A ViT beside BERT."""
    picture, text = transformers.ViTConfig(**TINY, layer_norm_eps=1e-3), transformers.BertConfig(**TEXT)
    if kind == "dual":
        config = transformers.VisionTextDualEncoderConfig.from_vision_text_configs(picture, text, projection_dim=24)
        return fill(transformers.VisionTextDualEncoderModel._from_config(config, attn_implementation="eager"))
    text = transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(picture, text)
    return fill(transformers.VisionEncoderDecoderModel._from_config(config, attn_implementation="eager"))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["dual", "captions"])
def test_tower_beside_texts_opens_without_classes(tmp_path: Path, kind: str) -> None:
    model = with_texts(kind)
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert (checkpoint.config.num_classes, checkpoint.config.eps, checkpoint.config.heads) == (0, 1e-3, 4)
    assert "head" not in checkpoint.assumed and "left_out" in checkpoint.assumed
    assert max(differences(checkpoint, model).values()) <= TOLERANCE


def test_settings_that_config_leaves_to_transformers_are_its_defaults() -> None:
    for kind, config in (("siglip", transformers.SiglipVisionConfig), ("idefics3", transformers.Idefics3VisionConfig)):
        with torch.device("meta"):
            tower = getattr(
                transformers, {"siglip": "SiglipVisionModel", "idefics3": "Idefics3VisionTransformer"}[kind]
            )
            tensors = tower(config(num_hidden_layers=1)).state_dict()
        inner = {"model_type": config.model_type, "num_hidden_layers": 1}
        found = recognition.read(tensors, {"model_type": kind, "vision_config": inner}).config
        assert (found.activation, found.eps, found.heads) == ("gelu_tanh", 1e-6, config().num_attention_heads)


@torch.inference_mode()
def test_dinov3_without_registers_stores_an_empty_tensor_and_opens(tmp_path: Path) -> None:
    model = build(transformers.DINOv3ViTModel, unusual=True)
    assert model.embeddings.register_tokens.numel() == 0
    checkpoint = load_checkpoint(save(model, tmp_path, "folder"))
    assert checkpoint.config.prefix == ("cls",)
    assert max(differences(checkpoint, model).values()) <= TOLERANCE


def test_positions_that_two_patches_share_are_refused() -> None:
    for side, shared in ((26, False), (32, False), (25, True)):
        config = {"image_size": 8 * side, "patch_size": 8, "num_hidden_layers": 1, "hidden_size": 192}
        with torch.device("meta"):
            model = transformers.Idefics3VisionTransformer(
                transformers.Idefics3VisionConfig(**config, num_attention_heads=3, intermediate_size=48)
            )
        document = {"model_type": "idefics3_vision", **config, "num_attention_heads": 3, "intermediate_size": 48}
        if not shared:
            assert recognition.read(model.state_dict(), document).config.grid == (side, side)
            continue
        with pytest.raises(InvalidCheckpoint, match="25 x 25 patches share a position"):
            recognition.read(model.state_dict(), document)


# model_type -> words on its lone weights
REFUSED = {
    "blip": "This is a BLIP checkpoint",
    "blip-2": "This is a BLIP checkpoint",
    "internvl": "a checkpoint of an InternVL",
    "eomt": "a checkpoint of an EoMT",
    "siglip2_vision_model": "It is a linear layer, as in SigLIP 2 of NaFlex kind",
    "minicpm_ocr_vision": "This is a MiniCPM-V checkpoint",
    "paddleocr_vl": "This is a PaddleOCR-VL checkpoint",
    "rf_detr": "a detector like RF-DETR",
    "bridgetower": "Or they are those of another model",
}


@torch.inference_mode()
@pytest.mark.parametrize("kind", REFUSED)
def test_other_models_are_refused_by_the_type_that_config_states_and_else_by_their_names(
    tmp_path: Path, kind: str
) -> None:
    found = dict(small_transformers.verdicts(classes(kind)[0], tmp_path))
    assert {verdict.word for verdict in found.values()} == {"refused"}
    assert f'This is a "{kind}" model of transformers' in found["folder"].why
    assert REFUSED[kind] in found["alone"].why and found["alone"].why == found[".bin"].why


def test_other_files_are_refused_as_what_they_are() -> None:
    with torch.device("meta"):
        block = {"blocks.0.attn.qkv.weight": torch.empty(48, 16), "blocks.0.norm1.weight": torch.empty(16)}
        patches = {"patch_embed.proj.weight": torch.empty(16, 8, 8, 3), "cls_token": torch.empty(1, 1, 16)}
        second = {"modality_encoders.IMAGE.local_encoder.proj.weight": torch.empty(16, 3, 8, 8)}
    for tensors, words in (
        ({f"model/{name}": one for name, one in (block | second).items()}, "a data2vec 2 model with norms after the"),
        (block | patches, "Its channels are last, as MLX stores them"),
        ({"_fsdp_wrapped_module._flat_param": torch.empty(9, device="meta")}, "FULL_STATE_DICT"),
        (block | patches | {"blocks.0._flat_param": torch.empty(9, device="meta")}, "FULL_STATE_DICT"),
    ):
        with pytest.raises(InvalidCheckpoint, match=words) as caught:
            recognition.read(dict(tensors))
        assert len(str(caught.value)) <= 250
    with pytest.raises(InvalidCheckpoint, match='This is a "llava" model of transformers with a "pixtral"'):
        recognition.check_config({"model_type": "llava", "vision_config": {"model_type": "pixtral"}})
