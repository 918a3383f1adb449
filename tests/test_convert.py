"""Conversion: the output of `convert` opens in the other library with the same numbers, or nothing is written.

Every parameter is random. Logits and every attention matrix agree within 1e-5 with those of the library that opens
the files; a changed number of heads or activation in them must be noticed.
"""

import io
import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import onnxruntime
import pytest
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors.torch import load_file
from test_parity import CASES, Answer, ask_timm, ask_transformers, opened
from tiny import LABELS, TINY, difference, fill
from torch import Tensor, nn

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.convert import SUFFIXES, convert, how_to_open, obstacle
from vit.checkpoints.families.timm import _crop_pct
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.errors import UserError
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow

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


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Return `made(name, preprocess=None)`: one of `MODELS`, random, saved by us and loaded."""

    def make(name: str, preprocess: Preprocess | None = None) -> Checkpoint:
        config = ViTConfig(**TINY | MODELS[name].changes)
        model = fill(VisionTransformer(config))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if re.search(MODELS[name].zero, parameter_name):
                    parameter.zero_()
        half = (0.5,) * config.channels
        square = config.image_size[0] == config.image_size[1]
        preprocess = preprocess or Preprocess(
            config.image_size, "shortest" if square else "squash", mean=half, std=half
        )
        folder = tmp_path / "ours" / "tiny"
        save_checkpoint(folder, model, LABELS[: config.num_classes], preprocess, facts={"accuracy": 0.9})
        return load_checkpoint(folder)

    return make


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


class AttentionWithWeights(nn.Module):
    """torchvision's attention with weights returned, which the library's own call discards."""

    def __init__(self, attention: nn.MultiheadAttention, seen: list[Tensor]):
        super().__init__()
        self.attention, self.seen = attention, seen

    def forward(self, *args: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
        out, weights = self.attention(*args, need_weights=True, average_attn_weights=False)
        self.seen.append(weights)
        return out, weights


def ask_torchvision(model: nn.Module, images: Tensor) -> Answer:
    collected: list[Tensor] = []
    for block in model.encoder.layers:
        block.self_attention = AttentionWithWeights(block.self_attention, collected)
    return Answer(model(images), collected)


# --- Equal in the other library -------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("name", OPENS)
def test_transformers_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    model = open_transformers(convert(checkpoint, tmp_path / "theirs"))
    assert type(model).__name__ == MODELS[name].transformers
    assert_same(checkpoint, ask(model, noise(checkpoint)))


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.timm])
def test_timm_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    model = open_timm(convert(checkpoint, tmp_path / "theirs", "timm"))
    assert_same(checkpoint, ask_timm(model, noise(checkpoint)))


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.torchvision])
def test_torchvision_opens_it_and_computes_the_same(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.pth", "torchvision")
    named: dict[str, Any] = {}
    exec("\n".join(how_to_open(checkpoint, path, "torchvision")).replace('"theirs.pth"', repr(str(path))), named)
    assert_same(checkpoint, ask_torchvision(named["model"].eval(), noise(checkpoint)))


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["plain", "registers and LayerScale", "mean, registers, norm after", "SigLIP with classes"]
)
def test_transformers_opens_what_timm_opens(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs", "timm")
    model = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    assert difference(model(noise(checkpoint)).logits, checkpoint.model(noise(checkpoint)).logits) <= TOLERANCE
    assert tuple(model.config.id2label.values()) == checkpoint.labels


CHANGED = {
    "heads": ("plain", "transformers", {"num_attention_heads": 4}),
    "activation": ("plain", "transformers", {"hidden_act": "quick_gelu"}),
    "eps": ("registers", "transformers", {"layer_norm_eps": 1e-2}),
    "timm's heads": ("registers", "timm", {"num_heads": 4}),
    "timm's activation": ("plain", "timm", {"act_layer": "gelu_tanh"}),
    "timm's pool": ("plain", "timm", {"global_pool": "avg", "fc_norm": False}),
}


@torch.inference_mode()
@pytest.mark.parametrize("what", CHANGED)
def test_comparison_would_notice_a_wrong_file(made: Any, tmp_path: Path, what: str) -> None:
    name, to, changes = CHANGED[what]
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs", to)
    document = json.loads((folder / "config.json").read_text())
    (document if to == "transformers" else document["model_args"]).update(changes)
    (folder / "config.json").write_text(json.dumps(document))
    model = (open_timm if to == "timm" else open_transformers)(folder)
    with pytest.raises(AssertionError):
        assert_same(checkpoint, (ask_timm if to == "timm" else ask)(model, noise(checkpoint)))


# --- Refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_formats_that_cannot_express_a_model_refuse_it(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint, ours = made(name), MODELS[name]
    expected = {"transformers": bool(ours.transformers), "timm": ours.timm, "torchvision": ours.torchvision}
    assert {to: not obstacle(checkpoint, to) for to in expected} == expected
    for to in (to for to, can in expected.items() if not can):
        path = tmp_path / f"theirs{SUFFIXES.get(to, ('',))[0]}"
        with pytest.raises(
            UserError, match=r"^\w+ has no class that computes exactly what 'tiny' does\. The nearest is"
        ):
            convert(checkpoint, path, to)
        assert not path.exists()


@pytest.mark.parametrize(
    ("changes", "to", "why"),
    [
        ({"eps": 1e-12}, "timm", "the eps of its LayerNorms is 1e-12. Choose transformers or onnx instead."),
        ({"activation": "silu"}, "torchvision", "its activation is silu."),
        ({"norm": "none"}, "transformers", "it has no final LayerNorm."),
        ({"pre_logits": 48}, "transformers", "it has a layer before the head."),
        ({**REGISTERS, "mlp_dim": 100}, "transformers", "its MLP is 100 wide, which is no whole multiple of its width"),
        ({**REGISTERS, "image_size": (32, 48)}, "transformers", "its pictures of 32 x 48 px are no square."),
        ({"prefix": ("reg1", "cls")}, "timm", "its prefix tokens are reg1, cls."),
        ({"norm_pre": True}, "timm", "timm has either a LayerNorm before the first block or a bias"),
        ({"channels": 1}, "torchvision", "its pictures have 1 channel."),
    ],
)  # fmt: skip
def test_refusal_gives_the_reason(tmp_path: Path, changes: dict[str, Any], to: Any, why: str) -> None:
    config = ViTConfig(**TINY | changes)
    half = (0.5,) * config.channels
    size = config.image_size
    preprocess = Preprocess(size, "squash", mean=half, std=half)
    save_checkpoint(tmp_path / "tiny", fill(VisionTransformer(config)), LABELS[: config.num_classes], preprocess)
    assert why in obstacle(load_checkpoint(tmp_path / "tiny"), to)


def test_rotary_with_learnt_positions_is_refused(made: Any) -> None:
    checkpoint = made("DINOv3")
    assert not obstacle(checkpoint, "transformers")
    with torch.no_grad():
        checkpoint.model.pos_embed += 1
    assert "its positions are rotary and learnt at once" in obstacle(checkpoint, "transformers")


# --- Round trips ----------------------------------------------------------------------------------------------


def comparable_config(config: ViTConfig) -> dict[str, Any]:
    """Remove fields that other libraries' files lack and that do not affect answers at the training's size."""
    single = config.norm == "after_pool" and config.pool == "cls"
    return config.to_dict() | {
        "layer_scale": config.layer_scale is not None,
        "position_resize": "",
        "norm": "before_pool" if single else config.norm,
    }


def assert_equal_bits(checkpoint: Checkpoint, again: Checkpoint) -> None:
    state = again.model.state_dict()
    assert set(state) == set(checkpoint.model.state_dict())
    for key, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    assert comparable_config(again.config) == comparable_config(checkpoint.config)


@pytest.mark.parametrize("name", [name for name in OPENS if not MODELS[name].read])
def test_round_trip_through_transformers_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs"))
    assert_equal_bits(checkpoint, again)
    assert (again.labels, again.preprocess) == (checkpoint.labels, checkpoint.preprocess)
    assert again.facts["accuracy"] == 0.9


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name in OPENS if MODELS[name].read])
def test_parameters_added_for_transformers_are_zeros_and_ones(made: Any, tmp_path: Path, name: str) -> None:
    """LayerScale of ones, and a head with zeros for the mean or for the class token."""
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs"))
    assert comparable_config(again.config) == comparable_config(replace(checkpoint.config, **MODELS[name].read))
    state, before = again.model.state_dict(), checkpoint.model.state_dict()
    for key, tensor in state.items():
        if key == "head.weight" and tensor.shape != before[key].shape:
            halves = tensor.chunk(2, 1)
            kept, added = halves if checkpoint.config.pool == "cls" else halves[::-1]
            assert torch.equal(kept, before[key]) and not added.any()
        elif key not in before:
            assert re.search(r"\.scale[12]$", key) and torch.equal(tensor, torch.ones_like(tensor))
        else:
            assert torch.equal(tensor, before[key]), key
    assert difference(again.model(noise(checkpoint)).logits, checkpoint.model(noise(checkpoint)).logits) <= 2e-6


@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.timm])
def test_round_trip_through_timm_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs", "timm"))
    assert_equal_bits(checkpoint, again)
    assert (again.labels, again.preprocess) == (checkpoint.labels, checkpoint.preprocess)
    assert again.facts["accuracy"] == 0.9


@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.torchvision])
def test_round_trip_through_torchvision_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.pth", "torchvision")
    assert_equal_bits(checkpoint, load_checkpoint(path, heads=checkpoint.config.heads))


def unfolded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Normalise what a round trip changes: two constants that are only ever added, and unused tensors."""
    tensors_left = {k: v for k, v in tensors.items() if not re.search(r"mask_token|pooler\.|decoder|position_ids", k)}
    tokens = [
        k for k in tensors_left if re.search(r"(cls_token|class_embedding|class_token|dist(illation)?_token)$", k)
    ]
    places = next(
        (k for k in tensors_left if re.search(r"(pos_embed|position_embeddings|position_embedding\.weight)$", k)), None
    )
    if places is None:
        return tensors_left
    rows = tensors_left[places].reshape(-1, tensors_left[places].shape[-1])
    own = rows.shape[0] - math.isqrt(rows.shape[0]) ** 2
    for row, token in enumerate(sorted(tokens)[:own]):  # cls before dist
        tensors_left[token] = tensors_left[token].flatten() + rows[row]
    tensors_left[places] = rows[own:]
    return {k: v.flatten() if k in tokens else v for k, v in tensors_left.items()}


# Their models that are written as another class of theirs, because our config does not distinguish the two.
OTHER_CLASS = (
    "transformers · ViT without head", "transformers · SigLIP classifier", "transformers · MSN", "transformers · MAE",
    "timm · EVA giant",
)  # fmt: skip
SAME_CLASS = sorted(set(CASES) - {*OTHER_CLASS, "timm · DINOv3"})  # timm's DINOv3 is refused


@torch.inference_mode()
@pytest.mark.parametrize("name", SAME_CLASS)
def test_round_trip_of_transformers_and_timm_files_is_bit_identical(tmp_path: Path, name: str) -> None:
    case, model, checkpoint = opened(name)
    library = name.split(" ")[0]
    before = load_file(case.save(model, tmp_path / "before") / "model.safetensors")
    folder = convert(checkpoint, tmp_path / "after", library)
    one, other = unfolded(before), unfolded(load_file(folder / "model.safetensors"))
    if "CLIP classifier" in name:  # it writes an unused LayerNorm
        one, other = ({k: v for k, v in each.items() if "post_layernorm" not in k} for each in (one, other))
    if re.search("teacher|distilled", name):  # of two biases only the mean is known
        heads = [[each.pop(k) for k in sorted(each) if re.search(r"(classifier|head|head_dist)\.bias$", k)]
                 for each in (one, other)]  # fmt: skip
        assert torch.equal(*(sum(pair) for pair in heads))
    assert set(one) == set(other)
    for key in one:
        assert torch.equal(one[key], other[key].reshape(one[key].shape)), key
    again = open_timm(folder) if library == "timm" else open_transformers(folder)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    expected, result = case.ask(model, images), (ask_timm if library == "timm" else ask)(again, images)
    assert difference(result.logits, expected.logits) <= 1e-6


@torch.inference_mode()
@pytest.mark.parametrize("name", OTHER_CLASS)
def test_converted_to_another_class_gives_the_same_answers(tmp_path: Path, name: str) -> None:
    case, model, checkpoint = opened(name)
    library = name.split(" ")[0]
    folder = convert(checkpoint, tmp_path / "after", library)
    again, asked = (open_timm(folder), ask_timm) if library == "timm" else (open_transformers(folder), ask)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    assert difference(asked(again, images).logits, case.ask(model, images).logits) <= 1e-6


@pytest.mark.parametrize(("name", "to"), [("plain", "transformers"), ("registers", "timm"), ("plain", "torchvision")])
def test_half_precision_weights_are_written_in_full_precision(made: Any, tmp_path: Path, name: str, to: Any) -> None:
    checkpoint = made(name)
    half = VisionTransformer(checkpoint.config).eval()
    half.load_state_dict({key: tensor.half() for key, tensor in checkpoint.model.state_dict().items()}, assign=True)
    path = convert(replace(checkpoint, model=half), tmp_path / f"theirs{SUFFIXES.get(to, ('',))[0]}", to)
    again = load_checkpoint(path, heads=2 if to == "torchvision" else None)
    for key, tensor in half.state_dict().items():
        assert torch.equal(again.model.state_dict()[key].float(), tensor.float()), key
    if path.is_dir():
        assert {tensor.dtype for tensor in load_file(path / "model.safetensors").values()} == {torch.float32}


@torch.inference_mode()
def test_round_trip_of_torchvision_files_is_bit_identical(tmp_path: Path) -> None:
    arguments = dict(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=96, num_classes=5)
    model = fill(torchvision.models.VisionTransformer(**arguments))
    torch.save(model.state_dict(), tmp_path / "before.pth")
    path = convert(load_checkpoint(tmp_path / "before.pth", 4), tmp_path / "after.pth", "torchvision")
    before, after = model.state_dict(), torch.load(path)
    assert list(before) != [] and set(before) == set(after)
    again = torchvision.models.VisionTransformer(**arguments)
    again.load_state_dict(after, strict=True)
    for key in set(before) - {"class_token", "encoder.pos_embedding"}:
        assert torch.equal(before[key], after[key]), key
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))  # the class token and its position are added beforehand


# --- Labels, preprocessing, sizes -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.open(io.BytesIO(samples.read("cat"))).convert("RGB")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["plain", "registers and LayerScale", "distilled", "mean", "CLIP classifier"])
def test_pipeline_of_transformers_gives_our_labels(made: Any, tmp_path: Path, photo: Image.Image, name: str) -> None:
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(photo, return_tensors="pt")["pixel_values"]
    assert (pixels - checkpoint.preprocess(photo)).abs().max() <= 2.001 / 255  # of -1 to 1: one grey level
    pipeline = transformers.pipeline("image-classification", model=str(folder), image_processor=processor)
    result = {each["label"]: each["score"] for each in pipeline(photo, top_k=5)}
    expected = checkpoint.model(checkpoint.preprocess(photo)).logits[0].softmax(0)
    assert set(result) == set(LABELS)
    assert all(abs(result[label] - float(expected[i])) < 0.02 for i, label in enumerate(LABELS))


@torch.inference_mode()
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess((32, 32)),
        Preprocess((32, 32), resize_to=37, interpolation="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
        Preprocess((32, 32), "squash", interpolation="bilinear"),
        Preprocess((32, 32), "squash", 36, "lanczos"),
    ],
)
def test_timm_preprocesses_a_photo_equally(
    made: Any, tmp_path: Path, photo: Image.Image, preprocess: Preprocess
) -> None:
    checkpoint = made("plain", preprocess)
    folder = convert(checkpoint, tmp_path / "theirs", "timm")
    settings = timm.data.resolve_model_data_config(open_timm(folder))
    theirs = timm.data.create_transform(**settings, is_training=False)(photo)
    std = torch.tensor(preprocess.std)[:, None, None]
    assert ((theirs - preprocess(photo)[0]) * std * 255).abs().max() <= 1.001
    assert load_checkpoint(folder).preprocess == preprocess
    wrapped = transformers.AutoImageProcessor.from_pretrained(folder)(photo)["pixel_values"][0]
    assert torch.equal(wrapped, theirs)


def test_timms_crop_ratio_recovers_every_size() -> None:
    for size in (28, 32, 196, 224, 384, 518):
        for shorter in range(size, 3 * size):
            crop = _crop_pct(Preprocess((size, size), resize_to=shorter))
            assert crop is not None and math.floor(size / crop) == shorter == int(size / crop)


def test_preprocessing_unsupported_by_timm_is_refused(made: Any) -> None:
    checkpoint = made("not square", Preprocess((32, 48)))
    assert "timm does not resize pictures to 32 x 48 px as it does" in obstacle(checkpoint, "timm")


@torch.inference_mode()
@pytest.mark.parametrize(("name", "to"), [("plain", "transformers"), ("plain", "timm"), ("SigLIP", "transformers")])
def test_positions_are_interpolated_to_the_input_size(made: Any, tmp_path: Path, name: str, to: Any) -> None:
    checkpoint = made(name, Preprocess((48, 48)))
    folder = convert(checkpoint, tmp_path / "theirs", to)
    model = open_timm(folder) if to == "timm" else open_transformers(folder)
    result = ask_timm(model, noise(checkpoint)) if to == "timm" else ask_sized(model, noise(checkpoint))
    assert_same(checkpoint, result)
    card = (folder / "README.md").read_text()
    assert "interpolated from 4 x 4 to 6 x 6 patches" in card
    assert checkpoint.hash in card and f"identity {checkpoint.identity}" in card


def ask_sized(model: nn.Module, images: Tensor) -> Answer:
    result = model(images, output_attentions=True)
    return Answer(result.logits if "logits" in result else result.pooler_output, list(result.attentions))


@torch.inference_mode()
@pytest.mark.parametrize(("to", "resize"), [("transformers", "bicubic_antialias"), ("timm", "bicubic_antialias")])
def test_positions_stay_if_the_library_interpolates_them_equally(
    made: Any, tmp_path: Path, to: Any, resize: Any
) -> None:
    checkpoint = made("registers", Preprocess((48, 48)))
    config = replace(checkpoint.config, position_resize=resize)
    model = VisionTransformer(config).eval()
    model.load_state_dict(checkpoint.model.state_dict())
    checkpoint = replace(checkpoint, config=config, model=model)
    folder = convert(checkpoint, tmp_path / "theirs", to)
    theirs = open_timm(folder) if to == "timm" else open_transformers(folder)
    assert_same(checkpoint, (ask_timm if to == "timm" else ask_sized)(theirs, noise(checkpoint)))
    assert torch.equal(load_checkpoint(folder).model.pos_embed, checkpoint.model.pos_embed)


# --- ONNX -----------------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize(
    "name", ["registers and LayerScale", pytest.param("SigLIP with classes", marks=pytest.mark.exhaustive)]
)
def test_onnx_gives_logits_and_attention_for_any_batch_size(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.onnx", "onnx")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert names[:3] == ["logits", "attention_0", "attention_1"]
    largest = 0.0
    for count in (1, 5):
        images = torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(count))
        result = dict(zip(names, session.run(None, {"images": images.numpy()}), strict=True))
        reference = checkpoint.model(images, output_attentions=True)
        expected = {"logits": reference.logits} | {
            f"attention_{i}": each for i, each in enumerate(reference.attentions)
        }
        if reference.pool_attention is not None:
            expected["pool_attention"] = reference.pool_attention
        assert set(expected) == set(result)
        for key, tensor in expected.items():
            assert result[key].shape == tensor.shape
            largest = max(largest, float(np.abs(result[key] - tensor.numpy()).max()))
    print(f"ONNX, {name}: largest difference {largest:.1e}")
    assert largest <= 1e-4
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["labels"]) == list(LABELS)
    assert (metadata["converted_from"].split()[-1], metadata["converted_from_identity"]) == (
        checkpoint.hash, checkpoint.identity,
    )  # fmt: skip
    assert Preprocess.from_config(json.loads(metadata["preprocess"])) == checkpoint.preprocess
    assert ViTConfig.from_dict(json.loads(metadata["vit.config"])) == checkpoint.config
    other = fill(VisionTransformer(replace(checkpoint.config, heads=4)))  # negative control
    other.load_state_dict(checkpoint.model.state_dict())
    assert np.abs(result["logits"] - other(images).logits.numpy()).max() > 1e-2


def test_missing_onnx_is_one_sentence_with_the_install_command(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.checkpoints.onnx_export.find_spec", lambda name: None)
    expected = "To write ONNX files, onnx and onnxscript must be installed: pip install onnx onnxscript."
    assert obstacle(made("plain"), "onnx") == expected


# --- Destinations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["transformers", "timm", "torchvision", "onnx"])
def test_nothing_is_overwritten(made: Any, tmp_path: Path, to: Any) -> None:
    checkpoint = made("plain")
    path = tmp_path / f"taken{SUFFIXES.get(to, ('',))[0]}"
    path.write_text("precious")
    with pytest.raises(UserError, match="exists already and is left as it is"):
        convert(checkpoint, path, to)
    assert path.read_text() == "precious"
    folder = tmp_path / f"folder{SUFFIXES.get(to, ('',))[0]}"
    folder.mkdir()
    (folder / "config.json").write_text("precious")
    with pytest.raises(UserError, match="exists already and is left as it is"):
        convert(checkpoint, folder, to)
    assert (folder / "config.json").read_text() == "precious"


@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_checkpoint_is_not_converted_onto_itself(made: Any, to: Any) -> None:
    checkpoint = made("plain")
    with pytest.raises(UserError, match="exists already"):
        convert(checkpoint, checkpoint.path, to)
    assert load_checkpoint(checkpoint.path).hash == checkpoint.hash


@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_empty_folder_is_accepted(made: Any, tmp_path: Path, to: Any) -> None:
    (tmp_path / "empty").mkdir()
    convert(made("plain"), tmp_path / "empty", to)
    assert load_checkpoint(tmp_path / "empty").labels == LABELS


@pytest.mark.parametrize(
    ("to", "name"), [("torchvision", "x.bin"), ("onnx", "x"), ("timm", "x.pth"), ("transformers", "x.onnx")]
)
def test_name_must_suit_the_format(made: Any, tmp_path: Path, to: Any, name: str) -> None:
    with pytest.raises(UserError, match=rf"^For {to} (one file|a folder) is written"):
        convert(made("plain"), tmp_path / name, to)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize("name", ["plain", "registers"])
@pytest.mark.parametrize("to", ["transformers", "timm"])
def test_failed_conversion_leaves_nothing(
    made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, to: Any
) -> None:
    checkpoint = made(name)
    (tmp_path / "into").mkdir()

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"was not (saved|written): No space left on device"):
        convert(checkpoint, tmp_path / "into" / "theirs", to)
    assert not list((tmp_path / "into").iterdir())


def test_export_has_the_usual_permissions(made: Any, tmp_path: Path) -> None:
    (tmp_path / "usual").mkdir()
    folder = convert(made("plain"), tmp_path / "theirs", "timm")
    assert folder.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_same_checkpoint_gives_the_same_bytes(made: Any, tmp_path: Path) -> None:
    checkpoint = made("registers")
    one, other = (convert(checkpoint, tmp_path / part / "theirs", "timm") for part in ("one", "other"))
    assert all(path.read_bytes() == (other / path.name).read_bytes() for path in one.iterdir())


def test_code_of_the_card_opens_it(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = convert(made("registers"), tmp_path / "theirs", "timm")
    lines = re.findall(r"^    (.+)$", (folder / "README.md").read_text(), re.M)
    monkeypatch.chdir(tmp_path)
    named: dict[str, Any] = {}
    exec("\n".join(lines), named)
    assert named["model"].num_reg_tokens == 2 and callable(named["transform"])


def test_command_writes_and_prints_how_to_open_it(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = made("registers").path

    def run(*words: str) -> tuple[int, str, str]:
        return main(["convert", *words]), *capsys.readouterr()

    status, out, err = run(str(source), str(tmp_path / "theirs"), "--to", "timm")
    assert status == 0, err
    assert out.splitlines()[0] == str(tmp_path / "theirs")
    assert f"local-dir:{tmp_path}/theirs" in out
    status, _, err = run(str(source), str(tmp_path / "theirs.pth"), "--to", "torchvision")
    assert status == 2 and len(err.splitlines()) == 1
    assert "its prefix tokens are cls, reg1, reg2" in err


def test_assumptions_are_printed_and_written_to_the_card(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a guessed number of heads would look like a fact in the converted file."""
    source = made("registers")
    lone = convert(source, tmp_path / "timm", "timm") / "model.safetensors"
    lone = shutil.copy(lone, tmp_path / "lone.safetensors")
    capsys.readouterr()
    assert main(["convert", str(lone), str(tmp_path / "again"), "--to", "timm", "--heads", "2"]) == 0
    assert "Assumed: heads: You chose 2 attention heads." in capsys.readouterr().err
    assert "You chose 2 attention heads." in (tmp_path / "again" / "README.md").read_text()
