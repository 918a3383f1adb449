"""Files in the original authors' formats, which no library here writes: OpenAI's, Meta's and tintn's tutorial's."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from test_parity import TINY, TOLERANCE, Answer, ask_timm
from tiny import difference, fill
from torch import Tensor, nn

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.recognition import read
from vit.errors import InvalidCheckpoint
from vit.model.positions import resize_positions

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")


def lone(folder: Path, tensors: dict[str, Tensor], name: str, heads: int | None = 4) -> Checkpoint:
    """Save tensors as a file and load it; 64 wide, a width without a usual number of heads."""
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    return load_checkpoint(folder / name, heads)


@torch.inference_mode()
def test_openai_clip_equals_timms(tmp_path: Path, pictures: Any) -> None:
    """timm reads OpenAI's names, so the same file opens in both."""
    made = timm.create_model("vit_base_patch16_clip_quickgelu_224", **TINY)
    tensors = {}
    for name, tensor in fill(made).state_dict().items():
        for theirs, openai in (
            (r"^patch_embed\.proj", "conv1"), (r"^cls_token", "class_embedding"),
            (r"^pos_embed", "positional_embedding"),
            (r"^norm_pre", "ln_pre"), (r"^norm", "ln_post"), (r"^blocks\.(\d+)\.norm", r"transformer.resblocks.\1.ln_"),
            (r"^blocks\.", "transformer.resblocks."), (r"qkv\.", "in_proj_"), (r"attn\.proj", "attn.out_proj"),
            (r"fc1", "c_fc"), (r"mlp\.fc2", "mlp.c_proj"),
        ):  # fmt: skip
            name = re.sub(theirs, openai, name)
        shapes = {"class_embedding": (-1,), "positional_embedding": (-1, 64)}
        tensors[f"visual.{name}"] = tensor.reshape(shapes[name]) if name in shapes else tensor
    tensors["visual.proj"] = tensors.pop("visual.head.weight").t()
    del tensors["visual.head.bias"]
    text = {"token_embedding.weight": torch.zeros(3, 4), "transformer.resblocks.0.ln_1.weight": torch.zeros(4)}
    timm_model = timm.create_model("vit_base_patch16_clip_quickgelu_224", **TINY).eval()
    timm_model.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(dict(tensors), timm_model))
    checkpoint = lone(tmp_path, tensors | text, "clip.safetensors")
    assert checkpoint.config.eps == 1e-5 and checkpoint.config.activation == "quick_gelu"
    assert not checkpoint.labels and set(checkpoint.assumed) == {"activation", "heads", "labels", "preprocess"}
    expected, result = ask_timm(timm_model, pictures()), checkpoint.model(pictures(), output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    assert all((a - b).abs().max() <= TOLERANCE for a, b in zip(result.attentions, expected.attentions, strict=True))


@torch.inference_mode()
@pytest.mark.parametrize("registers", [0, 4])
def test_metas_dinov2_equals_timms(tmp_path: Path, pictures: Any, registers: int) -> None:
    """timm reads Meta's names except for grouped blocks, so the same file opens in both."""
    name = "vit_giant_patch14_reg4_dinov2" if registers else "vit_small_patch14_dinov2"
    arguments = TINY | {"num_classes": 0, "mlp_ratio": 4}
    tensors = dict(fill(timm.create_model(name, **arguments)).state_dict())
    if registers:
        tensors["register_tokens"] = tensors.pop("reg_token")
        tensors["pos_embed"] = torch.cat([torch.randn(1, 1, 64), tensors["pos_embed"]], 1)
        tensors = {key.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): t for key, t in tensors.items()}
    tensors["mask_token"] = torch.zeros(1, 64)
    timm_model = timm.create_model(name, **arguments).eval()
    timm_model.load_state_dict(timm.models.vision_transformer.checkpoint_filter_fn(dict(tensors), timm_model))
    grouped = {re.sub(r"^blocks\.(\d+)", r"blocks.0.\1", key): t for key, t in tensors.items()}
    checkpoint = lone(tmp_path, grouped, "dinov2.safetensors")
    resize = "bicubic_antialias" if registers else "bicubic_offset"
    assert checkpoint.config.position_resize == resize and set(checkpoint.assumed) == {"heads", "preprocess"}
    expected, result = ask_timm(timm_model, pictures()), checkpoint.model(pictures(), output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    assert all((a - b).abs().max() <= TOLERANCE for a, b in zip(result.attentions, expected.attentions, strict=True))


@pytest.mark.parametrize(("grid", "to"), [((4, 4), (6, 5)), ((37, 37), (16, 16))])
def test_metas_dinov2_resizes_by_scale_and_not_by_size(grid: tuple[int, int], to: tuple[int, int]) -> None:
    """The definition: samples at (i + 1/2) / scale - 1/2 with a scale of (rows + 0.1) / old rows."""
    positions = torch.randn(1, math.prod(grid), 3, generator=torch.Generator().manual_seed(0))
    maps = positions.unflatten(1, grid).permute(0, 3, 1, 2)
    scale = [(new + 0.1) / old for new, old in zip(to, grid, strict=True)]
    expected = nn.functional.interpolate(maps, scale_factor=scale, mode="bicubic").flatten(2).transpose(1, 2)
    result = resize_positions(positions, grid, to, "bicubic_offset")
    assert result.shape == (1, math.prod(to), 3)
    assert torch.equal(result, expected)
    plain = resize_positions(positions, grid, to, "bicubic")
    assert (plain - result).abs().max() > 1e-3  # negative control


class Tutorial(nn.Module):
    """tintn's model, as its repository describes it: one Linear per head, tanh GELU, no final LayerNorm."""

    def __init__(self, per_head: bool):
        super().__init__()
        self.per_head = per_head
        tensors = {
            "embedding.cls_token": (1, 1, 48),
            "embedding.position_embeddings": (1, 17, 48),
            "classifier": (5, 48),
        }
        tensors["embedding.patch_embeddings.projection"] = (48, 3, 8, 8)
        for i in range(2):
            at = f"encoder.blocks.{i}"
            if per_head:
                for h in range(4):
                    tensors |= {f"{at}.attention.heads.{h}.{part}": (12, 48) for part in ("query", "key", "value")}
            else:
                tensors[f"{at}.attention.qkv_projection"] = (144, 48)
            tensors |= {f"{at}.attention.output_projection": (48, 48), f"{at}.mlp.dense_1": (96, 48)}
            tensors |= {f"{at}.mlp.dense_2": (48, 96), f"{at}.layernorm_1": (48,), f"{at}.layernorm_2": (48,)}
        generator = torch.Generator().manual_seed(3)
        self.tensors: dict[str, Tensor] = {}
        for name, shape in tensors.items():
            plain = name.startswith("embedding.c") or name.startswith("embedding.pos")
            noise = torch.randn(shape, generator=generator)
            self.tensors[name if plain else f"{name}.weight"] = noise * (0.2 if len(shape) > 1 else 1)
            if not plain:
                self.tensors[f"{name}.bias"] = torch.randn(shape[0], generator=generator) * 0.3

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, x: Tensor, name: str) -> Tensor:
        scaled = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def heads(self, x: Tensor, at: str) -> list[list[Tensor]]:
        if self.per_head:
            parts = ("query", "key", "value")
            return [[self.linear(x, f"{at}.heads.{h}.{part}") for part in parts] for h in range(4)]
        every = self.linear(x, f"{at}.qkv_projection").chunk(3, -1)
        return [[part[..., 12 * h : 12 * (h + 1)] for part in every] for h in range(4)]

    def forward(self, images: Tensor) -> Answer:
        t = self.tensors
        at = "embedding.patch_embeddings.projection"
        x = nn.functional.conv2d(images, t[f"{at}.weight"], t[f"{at}.bias"], stride=8).flatten(2).transpose(1, 2)
        x = torch.cat([t["embedding.cls_token"].expand(len(x), -1, -1), x], 1) + t["embedding.position_embeddings"]
        attentions = []
        for i in range(2):
            at = f"encoder.blocks.{i}"
            result = [
                ((q @ k.transpose(1, 2) / 12**0.5).softmax(-1), v)
                for q, k, v in self.heads(self.norm(x, f"{at}.layernorm_1"), f"{at}.attention")
            ]
            attentions.append(torch.stack([weights for weights, _ in result], 1))
            mixed = torch.cat([weights @ v for weights, v in result], -1)
            x = x + self.linear(mixed, f"{at}.attention.output_projection")
            y = self.linear(self.norm(x, f"{at}.layernorm_2"), f"{at}.mlp.dense_1")
            y = 0.5 * y * (1 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3)))
            x = x + self.linear(y, f"{at}.mlp.dense_2")
        return Answer(self.linear(x[:, 0], "classifier"), attentions)


@torch.inference_mode()
@pytest.mark.parametrize("per_head", [True, False])
def test_tutorials_file_gives_the_tutorials_numbers(tmp_path: Path, pictures: Any, per_head: bool) -> None:
    tutorial = Tutorial(per_head)
    path = tmp_path / "model_final.pt"
    torch.save(tutorial.tensors, path)
    checkpoint = load_checkpoint(path, None if per_head else 4)  # one Linear per head can be counted
    assert checkpoint.config.heads == 4 and checkpoint.config.eps == 1e-5
    assert (checkpoint.config.norm, checkpoint.config.activation) == ("none", "gelu_tanh")
    images = pictures()
    expected, result = tutorial(images), checkpoint.model(images, output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    assert all((a - b).abs().max() <= TOLERANCE for a, b in zip(result.attentions, expected.attentions, strict=True))


@pytest.mark.parametrize("shape", [(), (12,), (12, 47)])
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_inconsistent_heads_are_refused(device: str, shape: tuple[int, ...]) -> None:
    tensors = {name: tensor.to(device) for name, tensor in Tutorial(per_head=True).tensors.items()}
    tensors["encoder.blocks.0.attention.heads.1.query.weight"] = torch.zeros(shape, device=device)
    with pytest.raises(InvalidCheckpoint, match="do not go together"):
        read(tensors)


def test_mixed_precisions_are_fused_alike_on_the_meta_device() -> None:
    tensors = Tutorial(per_head=True).tensors
    tensors["encoder.blocks.0.attention.heads.0.query.weight"] = torch.zeros(12, 48, dtype=torch.float16)
    name = "blocks.0.attn.qkv.weight"
    promised = read({name: tensor.to("meta") for name, tensor in tensors.items()}).tensors[name]
    loaded = read(dict(tensors)).tensors[name]
    assert (promised.shape, promised.dtype) == (loaded.shape, loaded.dtype)
