"""Files of other libraries: the same logits and attention as that library, or a clear refusal."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from tiny import difference, fill
from torch import nn
from transformers import BertConfig, BertModel, ViTForImageClassification, ViTModel
from transformers import ViTConfig as TheirConfig

from vit.checkpoints.families import huggingface
from vit.checkpoints.families.tensor_shapes import default_heads
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.recognition import read
from vit.errors import InvalidCheckpoint
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

TOLERANCE = 1e-5


def ours(tensors: dict[str, torch.Tensor], document: dict[str, Any] | None = None, **kwargs: Any) -> VisionTransformer:
    """Build the model that our reader makes of these tensors."""
    reading = read(tensors, document, **kwargs)
    model = VisionTransformer(reading.config)
    model.load_state_dict(reading.tensors)
    return model.eval()


# --- torchvision ----------------------------------------------------------------------------------------------


@torch.inference_mode()
def torchvision_pass(model: nn.Module, images: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return torchvision's logits and its attention, which it computes only if weights per head are requested."""
    collected: list[torch.Tensor] = []

    def ask(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return args, kwargs | {"need_weights": True, "average_attn_weights": False}

    handles = []
    for module in model.modules():
        if isinstance(module, nn.MultiheadAttention):
            handles.append(module.register_forward_pre_hook(ask, with_kwargs=True))
            handles.append(module.register_forward_hook(lambda module, args, output: collected.append(output[1])))
    logits = model(images)
    for handle in handles:
        handle.remove()
    return logits, collected


SMALL: dict[str, Any] = dict(patch_size=16, num_layers=3, num_heads=3, hidden_dim=192, mlp_dim=384)


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """A small torchvision model with random parameters, a picture, and its logits."""
    model = fill(torchvision.models.VisionTransformer(image_size=64, **SMALL), seed=1)
    image = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    return model, image, torchvision_pass(model, image)[0]


@pytest.mark.exhaustive
@pytest.mark.slow
@torch.inference_mode()
def test_torchvision_vit_b_16_gives_the_same_logits_and_attention() -> None:
    theirs = fill(torchvision.models.vit_b_16(), seed=1)
    image = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(2))
    logits, attentions = torchvision_pass(theirs, image)
    reading = read(theirs.state_dict())
    assert reading.config == ViTConfig.preset("B/16", position_resize="bicubic_corners")  # eps and GELU included
    assert reading.config.eps == theirs.encoder.ln.eps
    assert set(reading.assumed) == {"heads"}
    model = VisionTransformer(reading.config).eval()
    model.load_state_dict(reading.tensors)
    output = model(image, output_attentions=True)
    assert difference(output.logits, logits) <= TOLERANCE
    assert len(attentions) == 12
    for mine, their in zip(output.attentions, attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE


@torch.inference_mode()
@pytest.mark.parametrize(
    "wrong",
    [{"heads": 16}, {"activation": "gelu_tanh"}, {"eps": 1e-3}, {"norm": "none"}],
    ids=lambda w: next(iter(w)),
)
def test_torchvision_parity_would_notice_a_wrong_config(small: Any, wrong: dict[str, Any]) -> None:
    theirs, image, logits = small
    reading = read(theirs.state_dict())
    model = VisionTransformer(ViTConfig.from_dict(reading.config.to_dict() | wrong)).eval()
    model.load_state_dict(reading.tensors, strict="norm" not in wrong)
    assert difference(model(image).logits, logits) > TOLERANCE


@torch.inference_mode()
def test_torchvision_parity_would_notice_swapped_queries_and_keys(small: Any) -> None:
    theirs, image, logits = small
    model = ours(theirs.state_dict())
    for block in model.blocks:
        q, k, v = block.attn.qkv.weight.chunk(3)
        block.attn.qkv.weight.copy_(torch.cat([k, q, v]))
    assert difference(model(image).logits, logits) > 1e-3


@torch.inference_mode()
def test_torchvision_positions_are_resized_as_torchvision_does(small: Any) -> None:
    theirs, _, _ = small
    resized = torchvision.models.vision_transformer.interpolate_embeddings(96, 16, theirs.state_dict())
    target = torchvision.models.VisionTransformer(image_size=96, **SMALL).eval()
    target.load_state_dict(resized)
    image = torch.randn(1, 3, 96, 96, generator=torch.Generator().manual_seed(5))
    assert difference(ours(theirs.state_dict())(image).logits, target(image)) <= TOLERANCE


def test_torchvisions_old_names_are_read(small: Any) -> None:
    state = small[0].state_dict()
    old = {name.replace("mlp.0", "mlp.linear_1").replace("mlp.3", "mlp.linear_2"): t for name, t in state.items()}
    old = {f"module.{name.replace('heads.head', 'heads.0')}": t for name, t in old.items()}
    one, other = read(old), read(state)
    assert one.config == other.config
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in other.tensors)


@pytest.mark.parametrize("name", ["vit_b_16", "vit_b_32", "vit_l_16", "vit_l_32", "vit_h_14"])
def test_every_torchvision_vit_is_recognised(name: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    size, _, patch = name.removeprefix("vit_").partition("_")
    reading = read(model.state_dict())
    assert reading.config == ViTConfig.preset(f"{size.upper()}/{patch}", position_resize="bicubic_corners")


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vit_b_16-c867db91.pth", "From the name"),
        ("torchvision/vit_b_16@3f2a/vit_b_16_swag.pth", "From the name"),
        ("revit_b_16.pth", "usually have 12"),
        ("mine", "usually have 12"),
    ],
)
def test_torchvisions_file_name_gives_the_number_of_heads(name: str, why: str) -> None:
    with torch.device("meta"):
        model = torchvision.models.vit_b_16()
    reading = read(model.state_dict(), name=name)
    assert reading.config.heads == 12 and why in reading.assumed["heads"]


def test_published_torchvision_file_is_recognised_by_its_name() -> None:
    from vit.checkpoints.families.torchvision import FAMILY

    config = ViTConfig.preset("L/16")
    preprocess, why = FAMILY.preprocess(config, "vit_l_16-852ce7e3.pth")
    assert (preprocess.size, preprocess.resize_to, preprocess.interpolation) == ((224, 224), 242, "bilinear")
    assert "vit_l_16-852ce7e3.pth" in why
    preprocess, _ = FAMILY.preprocess(ViTConfig.preset("B/16", image_size=384), "vit_b_16_swag-9ac1b537.pth")
    assert (preprocess.size, preprocess.resize_to, preprocess.interpolation) == ((384, 384), 384, "bicubic")


# --- transformers ---------------------------------------------------------------------------------------------


def their_model(seed: int = 0, **changes: Any) -> ViTForImageClassification:
    """Build a tiny random model of transformers."""
    values: dict[str, Any] = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
        "image_size": 32, "patch_size": 8, "num_labels": 5, "attn_implementation": "eager",
    }  # fmt: skip
    return fill(ViTForImageClassification(TheirConfig(**values | changes)), seed)


CHANGES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tanh gelu, large eps": {"hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-2},
    "quick gelu, no bias": {"hidden_act": "quick_gelu", "qkv_bias": False},
    "grey, not square": {"num_channels": 1, "image_size": [24, 40]},
}


@torch.inference_mode()
@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_transformers_folder_gives_the_same_logits_and_attention(
    tmp_path: Path, pictures: Any, changes: dict[str, Any]
) -> None:
    theirs = their_model(**changes)
    theirs.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    config = checkpoint.config
    assert config.heads == 4
    assert config.eps == theirs.config.layer_norm_eps
    assert set(checkpoint.assumed) == {"labels", "preprocess"}
    images = pictures(*config.image_size, channels=config.channels)
    expected = theirs(images, output_attentions=True)
    output = checkpoint.model(images, output_attentions=True)
    assert difference(output.logits, expected.logits) <= TOLERANCE
    assert len(expected.attentions) == 2
    for mine, their in zip(output.attentions, expected.attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE


@torch.inference_mode()
def test_both_naming_schemes_of_transformers_are_equal(tmp_path: Path) -> None:
    theirs = their_model()
    theirs.save_pretrained(tmp_path)
    from safetensors.torch import load_file

    document = theirs.config.to_dict()
    on_disk, in_memory = load_file(tmp_path / "model.safetensors"), theirs.state_dict()
    assert set(on_disk) != set(in_memory)  # else this test shows nothing
    one, other = read(on_disk, document), read(in_memory, document)
    assert one.config == other.config
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in other.tensors)


@torch.inference_mode()
@pytest.mark.parametrize("size", [(64, 64), (40, 24)])
def test_transformers_positions_are_resized_equally(pictures: Any, size: tuple[int, int]) -> None:
    theirs = their_model()
    model, images = ours(theirs.state_dict(), theirs.config.to_dict()), pictures(*size)
    expected = theirs(images, interpolate_pos_encoding=True).logits
    assert difference(model(images).logits, expected) <= TOLERANCE
    model.config = ViTConfig.from_dict(model.config.to_dict() | {"position_resize": "bicubic_antialias"})
    assert difference(model(images).logits, expected) > 1e-4  # negative control


@torch.inference_mode()
@pytest.mark.parametrize("field", ["num_attention_heads", "layer_norm_eps", "hidden_act"])
def test_transformers_parity_would_notice_a_wrong_config(pictures: Any, field: str) -> None:
    theirs = their_model()
    wrong = {"num_attention_heads": 2, "layer_norm_eps": 1e-3, "hidden_act": "gelu_new"}[field]
    model = ours(theirs.state_dict(), theirs.config.to_dict() | {field: wrong})
    assert difference(model(pictures()).logits, theirs(pictures()).logits) > TOLERANCE


@torch.inference_mode()
def test_model_without_head_gives_the_features_of_the_class_token(pictures: Any) -> None:
    theirs = fill(ViTModel(their_model().config))
    document = theirs.config.to_dict()
    model = ours(theirs.state_dict(), document)
    assert model.config.num_classes == 0
    assert difference(model(pictures()).logits, theirs(pictures()).last_hidden_state[:, 0]) <= TOLERANCE


def test_weights_alone_leave_their_assumptions_visible(tmp_path: Path) -> None:
    theirs = their_model(hidden_size=192, num_attention_heads=6, layer_norm_eps=1e-2)
    save_file(
        {name: tensor.contiguous() for name, tensor in theirs.state_dict().items()},
        tmp_path / "lone.safetensors",
    )
    checkpoint = load_checkpoint(tmp_path / "lone.safetensors")
    assert set(checkpoint.assumed) == {"heads", "eps", "activation", "labels", "preprocess"}
    assert checkpoint.config.heads == 3  # the usual number, wrong here: the reason to show assumptions
    assert load_checkpoint(tmp_path / "lone.safetensors", heads=6).config.heads == 6


def test_heads_are_asked_for_if_no_convention_determines_them(tmp_path: Path) -> None:
    save_file(
        {name: t.contiguous() for name, t in their_model().state_dict().items()},
        tmp_path / "lone.safetensors",
    )
    with pytest.raises(InvalidCheckpoint, match="how many attention heads"):
        load_checkpoint(tmp_path / "lone.safetensors")
    assert load_checkpoint(tmp_path / "lone.safetensors", heads=4).config.heads == 4
    for heads in (0, 3, 10**9):
        with pytest.raises(InvalidCheckpoint, match="heads"):
            load_checkpoint(tmp_path / "lone.safetensors", heads=heads)


@pytest.mark.parametrize(
    ("dim", "heads"), [(192, 3), (384, 6), (768, 12), (1024, 16), (1280, 16), (1152, 16), (48, None)]
)
def test_usual_number_of_heads(dim: int, heads: int | None) -> None:
    assert default_heads(dim) == heads


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 128}, "hidden_size"),
        ({"hidden_size": 10**9}, "hidden_size must be at most 8,192"),
        ({"num_hidden_layers": 3}, "num_hidden_layers"),
        ({"num_attention_heads": 3}, "heads"),
        ({"num_attention_heads": "4"}, "num_attention_heads"),
        ({"hidden_act": "relu"}, "hidden_act"),
        ({"image_size": 40}, "image_size"),
        ({"image_size": [32, 32, 32]}, "image_size"),
        ({"layer_norm_eps": "1e-6"}, "layer_norm_eps"),
        ({"model_type": "swin"}, "swin"),
        ({"id2label": {"0": "a"}}, "1 classes"),
    ],
)
def test_config_that_contradicts_the_weights_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    import json

    their_model().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(InvalidCheckpoint, match=words):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("kind", ["ViT", "Beit", "Dinov2", "DINOv3ViT", "CLIPVision"])
def test_config_of_a_training_script_states_only_what_it_has(kind: str) -> None:
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=192, num_hidden_layers=1, num_attention_heads=3, image_size=32, patch_size=8, use_mask_token=True,
        use_absolute_position_embeddings=True,
    )  # fmt: skip
    tensors = getattr(transformers, f"{kind}Model")(config).state_dict()
    alone = read(dict(tensors))
    for own in ({"model_name": "google/vit", "lr": 1e-4}, {"num_labels": 5, "batch_size": 32}):
        found = read(dict(tensors), own)
        assert (found.config, found.assumed) == (alone.config, alone.assumed)
    stated = read(dict(tensors), {"lr": 1e-4, "num_attention_heads": 6, "layer_norm_eps": 1e-3})
    assert (stated.config.heads, stated.config.eps) == (6, 1e-3)
    assert stated.assumed == {field: why for field, why in alone.assumed.items() if field not in ("heads", "eps")}


@pytest.mark.parametrize(("changes", "words"), [({"depth": 3}, "depth = 3"), ({"embed_dim": 128}, "embed_dim = 128")])
def test_contradiction_is_stated_in_the_terms_of_the_files_library(changes: dict[str, Any], words: str) -> None:
    tensors = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2).state_dict()
    document = {"architecture": "vit_tiny_patch16_224", "model_args": {"img_size": 32, "depth": 2} | changes}
    with pytest.raises(InvalidCheckpoint, match=f"config.json says {words}, the weights say"):
        read(tensors, document)


def test_key_table_is_its_own_inverse(build: Any) -> None:
    for changes in (
        {},
        {"prefix": ("cls", "reg1"), "layer_scale": 0.1, "pool": "mean"},
        {"prefix": (), "pool": "mean"},
    ):
        model = build(**changes)
        written = huggingface.write_tensors(model.config, model.state_dict())
        again = read(written, {"vit": model.config.to_dict()}, ours=True)
        state = model.state_dict()
        assert again.config == model.config and set(again.tensors) == set(state)
        assert all(torch.equal(again.tensors[name], state[name]) for name in state)


# --- Refusals -------------------------------------------------------------------------------------------------


OTHERS = {
    "Swin": lambda: torchvision.models.swin_t(),
    "ResNet": lambda: torchvision.models.resnet18(),
    "ConvNeXt": lambda: torchvision.models.convnext_tiny(),
    "Mixer": lambda: timm.create_model("mixer_s16_224"),
    "Swin ": lambda: timm.create_model("swin_tiny_patch4_window7_224"),
    "CaiT": lambda: timm.create_model("cait_xxs24_224"),
    "XCiT": lambda: timm.create_model("xcit_nano_12_p16_224"),
    "LeViT": lambda: timm.create_model("levit_128s"),
    "hybrid": lambda: timm.create_model("vit_tiny_r_s16_p8_224"),
    "parallel": lambda: timm.create_model("vit_small_patch16_18x2_224"),
    "differential": lambda: timm.create_model("vit_dwee_patch16_reg1_gap_256"),
    "convolutional": lambda: torchvision.models.efficientnet_b0(),
    "MaxViT": lambda: timm.create_model("maxvit_pico_rw_256"),
    "PVT": lambda: timm.create_model("pvt_v2_b0"),
    "Twins": lambda: timm.create_model("twins_svt_small"),
    "relative positions": lambda: timm.create_model("vit_relpos_small_patch16_224"),
    "language": lambda: BertModel(BertConfig(num_hidden_layers=1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_networks_are_refused_by_name(name: str) -> None:
    with torch.device("meta"):
        model = OTHERS[name]()
    with pytest.raises(InvalidCheckpoint, match=f"{name.strip()}.*plain Vision Transformers: ViT, "):
        read(model.state_dict())


def test_unknown_tensors_are_refused_by_name() -> None:
    theirs = their_model()
    tensors = theirs.state_dict() | {"vit.layers.0.gate.weight": torch.zeros(3)}
    with pytest.raises(InvalidCheckpoint, match=r"layers\.0\.gate\.weight"):
        read(tensors, theirs.config.to_dict())
    with pytest.raises(InvalidCheckpoint, match=r"not a Vision Transformer.*`x`"):
        read({"x": torch.zeros(3)})


def test_missing_tensor_is_named() -> None:
    theirs = their_model()
    for name in theirs.state_dict().keys() - {"classifier.bias"}:  # a missing head is an assumption
        tensors = theirs.state_dict()
        del tensors[name]
        with pytest.raises(InvalidCheckpoint):
            ours_checked(tensors, theirs.config.to_dict())


def ours_checked(tensors: dict[str, torch.Tensor], document: dict[str, Any]) -> None:
    """Do what `load_checkpoint` does between reading names and reading weights."""
    from vit.checkpoints.load import empty_model

    empty_model(read(tensors, document))


def test_duplicate_names_within_a_model_are_refused() -> None:
    theirs = their_model()
    state = theirs.state_dict()
    key = "vit.layers.0.mlp.fc1.weight"
    with pytest.raises(InvalidCheckpoint, match="twice"):
        read(state | {"vit.encoder.layer.0.intermediate.dense.weight": state[key]}, theirs.config.to_dict())
