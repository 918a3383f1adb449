"""Models to convert, and the libraries that open the result and compute the same."""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import timm
import torch
import transformers
from test_parity import Answer, ask_transformers
from tiny import difference
from torch import Tensor, nn

from vit.checkpoints.checkpoint import Checkpoint

TOLERANCE = 1e-5


class Ours(NamedTuple):
    """A model that could be trained or opened here, and the formats it can be converted to.

    Attributes:
        changes: to the tiny config.
        transformers: class that it is converted to; "" if the conversion is refused.
        timm, torchvision: whether they support it.
        read: fields that our reader finds in the converted folder, where they differ from the config.
        zero: regular expression of the parameters that are zero in such a model.
    """

    changes: dict[str, Any]
    transformers: str
    timm: bool = True
    torchvision: bool = False
    read: Mapping[str, Any] = MappingProxyType({})
    zero: str = r"(?!)"


REGISTERS = {"prefix": ("cls", "reg1", "reg2")}
CLIP = {"norm_pre": True, "patch_bias": False, "eps": 1e-5, "activation": "quick_gelu"}
SIGLIP = {"prefix": (), "pool": "map", "activation": "gelu_tanh"}
DINOV3 = {**REGISTERS, "rope": 100.0, "layer_scale": 1.0, "eps": 1e-5, "num_classes": 0}
SCALED = {"pool": "cls_mean", "layer_scale": 1.0}
MODELS = {
    "plain": Ours({}, "ViTForImageClassification", torchvision=True),
    "other settings": Ours(
        {"eps": 1e-3, "activation": "silu", "qkv_bias": False}, "ViTForImageClassification", timm=False
    ),
    "not square": Ours({"image_size": (32, 48)}, "ViTForImageClassification"),
    "grey": Ours({"channels": 1}, "ViTForImageClassification"),
    "without head": Ours({"num_classes": 0}, "ViTMSNModel"),
    "registers": Ours(REGISTERS, "Dinov2WithRegistersForImageClassification", read=SCALED),
    "registers and LayerScale": Ours(
        {**REGISTERS, "layer_scale": 0.1}, "Dinov2WithRegistersForImageClassification", read=SCALED
    ),
    "registers, without head": Ours(
        {**REGISTERS, "layer_scale": 0.1, "num_classes": 0}, "Dinov2WithRegistersModel", read={"layer_scale": 1.0}
    ),
    "LayerScale, mean": Ours({"layer_scale": 0.1, "pool": "mean"}, "Dinov2ForImageClassification", read=SCALED),
    "class token and mean": Ours(SCALED, "Dinov2ForImageClassification", timm=False),
    "SwiGLU": Ours(
        {"layer_scale": 0.1, "gated_mlp": True, "activation": "silu", "mlp_dim": 176}, "Dinov2ForImageClassification",
        read=SCALED,
    ),
    "mean": Ours({"prefix": (), "pool": "mean"}, "IJepaForImageClassification"),
    "mean, without head": Ours({"prefix": (), "pool": "mean", "num_classes": 0}, "IJepaModel"),
    "mean, registers, norm after": Ours({"prefix": ("reg1",), "pool": "mean", "norm": "after_pool"}, ""),
    "mean of all tokens": Ours({**REGISTERS, "pool": "all", "norm": "after_pool"}, ""),
    "query for all tokens": Ours({**REGISTERS, "pool": "map"}, ""),
    "query for the patches": Ours({**REGISTERS, "pool": "map_patches"}, ""),
    "distilled": Ours({"prefix": ("cls", "dist"), "pool": "cls_dist"}, "DeiTForImageClassificationWithTeacher"),
    "distilled, class token": Ours({"prefix": ("cls", "dist")}, "DeiTForImageClassification", timm=False),
    "CLIP projection": Ours(CLIP, "CLIPVisionModelWithProjection", zero=r"head\.bias"),
    "CLIP with classes": Ours(CLIP, ""),
    "CLIP without projection": Ours({**CLIP, "num_classes": 0}, "CLIPVisionModel"),
    "CLIP classifier": Ours({**CLIP, "pool": "mean", "norm": "none"}, "CLIPForImageClassification"),
    "SigLIP": Ours({**SIGLIP, "num_classes": 0}, "SiglipVisionModel"),
    "SigLIP with classes": Ours(SIGLIP, ""),
    "DINOv3": Ours(DINOV3, "DINOv3ViTModel", timm=False, zero=r"pos_embed"),
    "DINOv3, gated": Ours(
        {**DINOV3, "gated_mlp": True, "activation": "silu"}, "DINOv3ViTModel", timm=False, zero=r"pos_embed"
    ),
    "layer before the head": Ours({"pre_logits": 48}, "", timm=False, torchvision=True),
}  # fmt: skip
OPENS = [name for name, ours in MODELS.items() if ours.transformers]


def noise(checkpoint: Checkpoint) -> Tensor:
    shape = (2, checkpoint.config.channels, *checkpoint.preprocess.size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(7))


def assert_same(checkpoint: Checkpoint, answer: Answer) -> None:
    result = checkpoint.model(noise(checkpoint), output_attentions=True)
    assert difference(result.logits, answer.logits) <= TOLERANCE
    assert len(answer.attentions) == len(result.attentions)
    for mine, their in zip(result.attentions, answer.attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE


def open_transformers(folder: Path) -> nn.Module:
    """Load the class named in config.json; check that no key is missing, unexpected or of another shape."""
    (architecture,) = json.loads((folder / "config.json").read_text())["architectures"]
    model, loading_info = getattr(transformers, architecture).from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(loading_info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys", "error_msgs")), (
        loading_info
    )
    assert type(model).__name__ == architecture
    return model.eval()


def ask(model: nn.Module, images: Tensor) -> Answer:
    if type(model).__name__ == "IJepaModel":  # transformers leaves the mean to the user
        result = model(images, output_attentions=True)
        return Answer(result.last_hidden_state.mean(1), list(result.attentions))
    return ask_transformers(model, images) if images.shape[2:] == (32, 32) else _plain(model, images)


def _plain(model: nn.Module, images: Tensor) -> Answer:
    result = model(images, output_attentions=True)
    return Answer(result.logits, list(result.attentions))


def open_timm(folder: Path) -> nn.Module:
    return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
