"""BEiT of timm and transformers: biases by relative position, per block or shared. Every parameter is random."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from safetensors.torch import save_file
from tiny import difference, fill
from torch import Tensor, nn

import vit
from vit.checkpoints.convert import obstacle
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint
from vit.explain.record import record
from vit.explain.relevance import relevance_record
from vit.explain.self_check import verify
from vit.model.attention import attention_weights
from vit.training.loop.fine_tuning import load_weights_

TOLERANCE = 1e-5
TIMM: dict[str, Any] = dict(img_size=(32, 48), patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=5)
THEIRS: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8,
    num_labels=5, attn_implementation="eager",
)  # fmt: skip
KINDS = {
    "per block": dict(use_relative_position_bias=True),
    "shared": dict(use_shared_relative_position_bias=True, use_mean_pooling=False),
    "both": dict(
        use_relative_position_bias=True, use_shared_relative_position_bias=True, use_absolute_position_embeddings=True
    ),
    "none": dict(use_absolute_position_embeddings=True),
}  # fmt: skip


def pixels(*size: int) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def ask_timm(model: nn.Module, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    attentions: list[Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_hook(lambda module, args, output: attentions.append(output))
    return model(images), attentions


@torch.inference_mode()
def assert_equal(model: vit.VisionTransformer, images: Tensor, logits: Tensor, attentions: Any) -> None:
    found = model(images, output_attentions=True)
    assert difference(found.logits, logits) <= TOLERANCE
    assert difference(model(images).logits, logits) <= TOLERANCE
    assert found.attentions is not None and len(found.attentions) == len(attentions)
    for mine, their in zip(found.attentions, attentions, strict=True):
        assert mine.shape == their.shape and (mine - their).abs().max() <= TOLERANCE


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "beitv2_base_patch16_224"])
def test_timms_file_folder_and_module_give_equal_results(tmp_path: Path, name: str) -> None:
    model = fill(timm.create_model(name, **TIMM)).eval()
    expected = ask_timm(model, pixels(32, 48))
    timm.models.save_for_hf(model, tmp_path / "theirs", model_config={"model_args": TIMM}, safe_serialization=True)
    named = load_checkpoint(tmp_path / "theirs")
    assert named.config.grid == (4, 6) and named.config.heads == 2 and named.config.pool == "mean"
    assert_equal(named.model, pixels(32, 48), *expected)
    assert checkpoint_from_module(model).config == named.config

    model = fill(timm.create_model(name, **TIMM | {"img_size": 32})).eval()
    index = {"blocks.0.attn.relative_position_index": torch.zeros(17, 17, dtype=torch.long)}  # of Microsoft's files
    save_file(model.state_dict() | index, tmp_path / "weights.safetensors")
    assert_equal(
        load_checkpoint(tmp_path / "weights.safetensors").model, pixels(32, 32), *ask_timm(model, pixels(32, 32))
    )


@pytest.mark.parametrize("size", [(64, 64), (24, 16)])
def test_another_size_equals_timms_resized_model(size: tuple[int, int]) -> None:
    model = fill(timm.create_model("beit_base_patch16_224", **TIMM, use_shared_rel_pos_bias=True)).eval()
    checkpoint = checkpoint_from_module(model)
    model.set_input_size(img_size=size)
    assert_equal(checkpoint.model, pixels(*size), *ask_timm(model, pixels(*size)))

    other = vit.VisionTransformer(vit.ViTConfig.from_dict(checkpoint.config.to_dict() | {"image_size": size})).eval()
    load_weights_(other, checkpoint, checkpoint.labels)
    assert torch.allclose(other(pixels(*size)).logits, checkpoint.model(pixels(*size)).logits, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_model_is_equal_from_disk_in_memory_and_resized(tmp_path: Path, kind: str) -> None:
    config = transformers.BeitConfig(**THEIRS, **KINDS[kind])
    model = fill(transformers.BeitForImageClassification(config)).eval()
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config == checkpoint_from_module(model).config
    assert len({parameter.data_ptr() for parameter in checkpoint.model.parameters()}) == len(
        checkpoint.model.state_dict()
    )
    for size in ((32, 32), (48, 48)):
        with torch.inference_mode():
            expected = model(pixels(*size), output_attentions=True)
        assert_equal(checkpoint.model, pixels(*size), expected.logits, expected.attentions)


@torch.inference_mode()
def test_data2vec_and_a_file_without_config_open(tmp_path: Path) -> None:
    config = transformers.Data2VecVisionConfig(**THEIRS, **KINDS["per block"])
    model = fill(transformers.Data2VecVisionForImageClassification(config)).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    checkpoint = load_checkpoint(tmp_path / "model.safetensors")
    assert "heads" not in checkpoint.assumed
    expected = model(pixels(32, 32), output_attentions=True)
    assert_equal(checkpoint.model, pixels(32, 32), expected.logits, expected.attentions)


@torch.inference_mode()
def test_masked_image_modeling_opens_without_its_output_layer(tmp_path: Path) -> None:
    config = transformers.BeitConfig(
        **THEIRS, use_shared_relative_position_bias=True, use_mask_token=True, vocab_size=7
    )
    model = fill(transformers.BeitForMaskedImageModeling(config)).eval()
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.config.num_classes == 0
    expected = model(pixels(32, 32), bool_masked_pos=torch.zeros(2, 16, dtype=torch.bool), output_attentions=True)
    found = checkpoint.model(pixels(32, 32), output_attentions=True).attentions
    assert all((a - b).abs().max() <= TOLERANCE for a, b in zip(found, expected.attentions, strict=True))


def test_saved_model_computes_everything_with_the_biases(tmp_path: Path) -> None:
    checkpoint = checkpoint_from_module(fill(timm.create_model("beit_base_patch16_224", **TIMM)).eval())
    save_checkpoint(tmp_path / "ours", checkpoint.model, checkpoint.labels, checkpoint.preprocess, {})
    again = load_checkpoint(tmp_path / "ours")
    one = pixels(32, 48)[:1]
    assert again.config == checkpoint.config
    assert torch.equal(again.model(one).logits, checkpoint.model(one).logits)

    whole = again.model(one, output_attentions=True).attentions
    recorded = record(again.model, one)
    assert torch.allclose(recorded.full(1), whole[1][0], atol=1e-6)
    assert torch.allclose(recorded.columns(1, [0, 3]), whole[1][0][..., [0, 3]], atol=1e-6)
    back = relevance_record(again.model, one, target=1)
    for block in range(2):
        assert torch.allclose(attention_weights(back.queries[block], back.keys[block]), whole[block][0], atol=1e-6)
    assert difference(back.logits, again.model(one).logits) <= TOLERANCE
    assert verify(again.model, one) <= TOLERANCE
    assert all(
        "biases by relative position" in obstacle(checkpoint, to) for to in ("transformers", "timm", "torchvision")
    )


def test_biases_of_a_non_square_grid_are_refused(tmp_path: Path) -> None:
    model = timm.create_model("beit_base_patch16_224", **TIMM)
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    with pytest.raises(InvalidCheckpoint, match="80 biases by relative position"):
        load_checkpoint(tmp_path / "model.safetensors")
