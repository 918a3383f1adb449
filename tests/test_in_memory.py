"""In-memory models of other libraries give the same results as their saved files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from tiny import fill
from torch import nn

import vit
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.errors import InvalidCheckpoint, UserError
from vit.images.preprocess import Preprocess

SIZES: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32, patch_size=8
)
TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 2, "num_classes": 5}


def of_transformers(kind: str, **changes: Any) -> Callable[[], nn.Module]:
    """Return a builder of a transformers class by its prefix, for classification if there is such a class."""

    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**SIZES | changes)
        classifier = getattr(transformers, f"{kind}ForImageClassification", None)
        return (classifier or getattr(transformers, f"{kind}Model"))(config)

    return build


def of_siglip() -> nn.Module:
    text = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, vocab_size=64)
    text |= dict(bos_token_id=1, eos_token_id=2)
    return transformers.SiglipForImageClassification(transformers.SiglipConfig(vision_config=SIZES, text_config=text))


def of_torchvision() -> nn.Module:
    return torchvision.models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=48, mlp_dim=96, num_classes=5
    )


MODULES: dict[str, Callable[[], nn.Module]] = {
    "timm": lambda: timm.create_model("vit_tiny_patch16_224", **TIMM),
    "timm, mean": lambda: timm.create_model("vit_tiny_patch16_224", **TIMM, global_pool="avg"),
    "timm, 1e-5": lambda: timm.create_model("vit_base_patch16_clip_224", **TIMM),
    "timm, DeiT": lambda: timm.create_model("deit_tiny_distilled_patch16_224", **TIMM),
    "timm, SigLIP": lambda: timm.create_model("vit_base_patch16_siglip_224", **TIMM | {"num_classes": 0}),
    "timm, DINOv3": lambda: timm.create_model("vit_small_patch16_dinov3", **TIMM),
    "torchvision": of_torchvision,
    "ViT": of_transformers("ViT"),
    "DeiT": of_transformers("DeiT"),
    "DINOv2": of_transformers("Dinov2"),
    "DINOv2, registers": of_transformers("Dinov2WithRegisters"),
    "DINOv3": of_transformers("DINOv3ViT", num_register_tokens=2),
    "CLIP": of_transformers("CLIPVision"),
    "SigLIP": of_siglip,
    "MSN": of_transformers("ViTMSN"),
    "MAE": of_transformers("ViTMAE"),
    "I-JEPA": of_transformers("IJepa"),
}


def saved_by_its_library(module: nn.Module, folder: Path) -> vit.Checkpoint:
    """Save the model with its own library, and load the file."""
    if isinstance(module, transformers.PreTrainedModel):
        module.save_pretrained(folder)
        return vit.load_checkpoint(folder)
    if type(module).__module__.startswith("timm"):
        arguments = {"img_size": 32, "num_heads": 2}
        timm.models.save_for_hf(module, folder, model_args=arguments)
        return vit.load_checkpoint(folder)
    torch.save(module.state_dict(), folder / "model.pth")
    return vit.load_checkpoint(folder / "model.pth", heads=2)


@pytest.mark.parametrize("name", MODULES)
def test_module_computes_the_same_as_its_file(name: str, tmp_path: Path) -> None:
    module = fill(MODULES[name]())
    here, there = checkpoint_from_module(module), saved_by_its_library(module, tmp_path)
    assert here.config == there.config
    image = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(3))
    one, other = (checkpoint.model(image, output_attentions=True) for checkpoint in (here, there))
    assert torch.equal(one.logits, other.logits)
    assert all(map(torch.equal, one.attentions, other.attentions))
    assert (here.labels, here.hash) == (there.labels, checkpoint_from_module(module).hash)


def test_module_answers_what_files_leave_open() -> None:
    module = fill(MODULES["timm"]())
    del module.pretrained_cfg, module.default_cfg
    checkpoint = checkpoint_from_module(module)
    assert checkpoint.config.heads == 2 and "heads" not in checkpoint.assumed
    odd = timm.models.VisionTransformer(**TIMM, act_layer=timm.layers.QuickGELU)
    assert checkpoint_from_module(odd).config.activation == "quick_gelu"
    assert "heads" not in checkpoint_from_module(of_torchvision()).assumed


def test_our_own_model_is_accepted(build: Callable[..., vit.VisionTransformer]) -> None:
    model = build()
    checkpoint = checkpoint_from_module(model, labels=list("abcde"), preprocess=Preprocess((32, 32)))
    assert (checkpoint.config, checkpoint.labels, checkpoint.assumed) == (model.config, tuple("abcde"), {})


def test_checkpoint_is_unaffected_by_further_training_of_the_module() -> None:
    module = fill(MODULES["torchvision"]())
    checkpoint = checkpoint_from_module(module)
    before = {name: tensor.clone() for name, tensor in checkpoint.model.state_dict().items()}
    fill(module, seed=1)
    assert all(torch.equal(before[name], tensor) for name, tensor in checkpoint.model.state_dict().items())


def test_wrapped_and_compiled_modules_are_accepted() -> None:
    module = fill(MODULES["ViT"]())
    for wrapped in (nn.DataParallel(module), torch.compile(module)):
        assert checkpoint_from_module(wrapped).identity == checkpoint_from_module(module).identity


def test_callers_preprocessing_is_used() -> None:
    module = fill(MODULES["ViT"]())
    processor = transformers.ViTImageProcessor(size={"height": 32, "width": 32}, image_mean=[0.1] * 3)
    for named in (processor, processor.to_dict(), Preprocess((32, 32), "squash", mean=(0.1,) * 3)):
        checkpoint = checkpoint_from_module(module, preprocess=named)
        assert checkpoint.preprocess.mean == (0.1,) * 3 and "preprocess" not in checkpoint.assumed


def test_model_for_another_size_is_run_at_that_size() -> None:
    assert checkpoint_from_module(fill(MODULES["timm"]())).preprocess.size == (32, 32)  # its recipe says 224


def odd_block() -> nn.Module:
    class OddBlock(timm.models.vision_transformer.Block):
        pass

    return timm.models.VisionTransformer(**TIMM, block_fn=OddBlock)


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a ResNet": (lambda: timm.create_model("resnet10t"), "This is timm's resnet10t."),
    "a Swin": (lambda: torchvision.models.SwinTransformer([4, 4], 16, [1, 1], [1, 1], [2, 2]), "This is a Swin"),
    "a text model": (of_transformers("Bert"), 'This is a "bert" model of transformers'),
    "other blocks": (odd_block, "This VisionTransformer has blocks of timm's class OddBlock"),
    "another activation": (
        lambda: timm.models.VisionTransformer(**TIMM, act_layer=nn.ReLU), "The activation of this model is ReLU"
    ),
    "other positions": (
        lambda: timm.models.Eva(**TIMM, use_rot_pos_emb=True, rope_grid_offset=0.5), "This Eva has rotary positions"
    ),
    "no transformer": (lambda: nn.Linear(2, 2), "This is not a Vision Transformer that this app supports"),
}  # fmt: skip


def check_refusal(build: Callable[[], Any], said: str) -> None:
    """A module must be refused in one short sentence that contains this pattern."""
    with pytest.raises(InvalidCheckpoint, match=said) as error:
        checkpoint_from_module(build())
    assert "\n" not in str(error.value) and len(str(error.value)) < 250


@pytest.mark.parametrize("kind", REFUSED)
def test_inconvertible_model_is_refused_in_one_sentence(kind: str) -> None:
    check_refusal(*REFUSED[kind])


def test_non_finite_weights_are_refused() -> None:
    module = fill(MODULES["torchvision"]())
    with torch.no_grad():
        module.class_token.fill_(torch.nan)
    with pytest.raises(InvalidCheckpoint, match="NaN"):
        checkpoint_from_module(module)


def test_wrong_names_by_the_caller_are_refused() -> None:
    module = fill(MODULES["torchvision"]())
    for arguments, said in (
        ({"labels": ["one"]}, "There are 1 labels and the model's head has 5 classes."),
        ({"preprocess": 3}, "preprocess must be a vit.Preprocess"),
    ):
        with pytest.raises(UserError, match=said):
            checkpoint_from_module(module, **arguments)
