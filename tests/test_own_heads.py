"""Checkpoints made from a library's model: custom heads, wrappers, losses, several models."""

import argparse
import io
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
import transformers
from safetensors.torch import save_file
from tiny import difference, fill
from torch import Tensor, nn

import vit
from vit.checkpoints import manage
from vit.checkpoints.load import load_checkpoint, summarise
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.checkpoints.modules.live_module import convert, copied, find_vit, matches_module, own_logits
from vit.errors import InvalidCheckpoint

TIMM = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3}
IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))


def of_timm(classes: int = 5, seed: int = 0, **changes: Any) -> Any:
    return fill(timm.models.VisionTransformer(**TIMM | {"num_classes": classes} | changes), seed)


def of_torchvision() -> Any:
    return torchvision.models.VisionTransformer(32, 8, 2, 3, 192, 384, num_classes=7)


def of_transformers() -> Any:
    sizes = dict(hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=384)
    config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
    return transformers.ViTModel(config, add_pooling_layer=False)


def replaced(model: Any, name: str, head: nn.Module) -> Any:
    setattr(model, name, head)
    return fill(model)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(192, 64), nn.GELU(), nn.Linear(64, 5))


class Net(nn.Module):
    """A custom module around a library's model."""

    def __init__(self, model: nn.Module, head: nn.Module, name: str = "fc"):
        super().__init__()
        self.backbone = model
        self.register_buffer("mean", torch.zeros(1, 3, 1, 1))
        self.criterion = nn.CrossEntropyLoss(weight=torch.ones(5))
        self.add_module(name, head)
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        features = getattr(features, "last_hidden_state", features)
        return self.get_submodule(self.name)(features[:, 0] if features.ndim == 3 else features)


def keep(tensors: Any, folder: Path, name: str = "own.pth") -> Path:
    torch.save(tensors, folder / name)
    return folder / name


LINEAR: dict[str, Callable[[], nn.Module]] = {
    "torchvision, heads": lambda: replaced(of_torchvision(), "heads", nn.Linear(192, 5)),
    "torchvision, heads in a row": lambda: replaced(
        of_torchvision(), "heads", nn.Sequential(nn.Dropout(), nn.Linear(192, 5))
    ),
    "torchvision, inner head": lambda: replaced(
        of_torchvision(), "heads", nn.Sequential(nn.Sequential(nn.Linear(192, 5)))
    ),
    "timm, dropout": lambda: replaced(of_timm(), "head", nn.Sequential(nn.Dropout(), nn.Linear(192, 5))),
    "timm, no bias": lambda: replaced(of_timm(), "head", nn.Sequential(nn.Linear(192, 5, bias=False))),
    "timm, fc": lambda: fill(Net(of_timm(0), nn.Linear(192, 5))),
    "timm, classifier in a row": lambda: fill(Net(of_timm(0), nn.Sequential(nn.Linear(192, 5)), "classifier")),
    "timm, mean of the patches": lambda: fill(Net(of_timm(0, global_pool="avg"), nn.Linear(192, 5), "cls_layer")),
    "torchvision, fc": lambda: fill(Net(replaced(of_torchvision(), "heads", nn.Identity()), nn.Linear(192, 5))),
    "transformers, classifier": lambda: fill(Net(of_transformers(), nn.Linear(192, 5), "classifier")),
    "transformers, out": lambda: fill(Net(of_transformers(), nn.Sequential(nn.Dropout(), nn.Linear(192, 5)), "out")),
}


@torch.inference_mode()
@pytest.mark.parametrize("name", LINEAR)
def test_single_linear_layer_is_the_head_under_any_name(name: str, tmp_path: Path) -> None:
    module = LINEAR[name]().eval()
    expected = module(IMAGE)
    here = checkpoint_from_module(module)
    assert here.config.num_classes == len(here.labels) == 5 and "heads" not in here.assumed
    assert difference(here.model(IMAGE).logits, expected) < 1e-5
    live = find_vit(module)
    assert matches_module(convert(live, copied(live.module)), IMAGE, own_logits(live, IMAGE))
    file = keep({"state_dict": {f"net.{k}": v for k, v in module.state_dict().items()}}, tmp_path)
    there = load_checkpoint(file)
    assert there.config.num_classes == 5
    if here.config == there.config:  # except what files leave open, such as eps and pool
        assert torch.equal(here.model(IMAGE).logits, there.model(IMAGE).logits)
    assert any("criterion" in why for why in there.assumed.values()) == isinstance(module, Net)


OTHER: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "timm, MLP": (lambda: replaced(of_timm(), "head", mlp()), "`head`"),
    "timm, norm and linear": (
        lambda: replaced(of_timm(), "head", nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 5))), "`head`"
    ),
    "timm, batch norm": (
        lambda: replaced(of_timm(), "head", nn.Sequential(nn.BatchNorm1d(192, affine=False), nn.Linear(192, 5))),
        "`head`",
    ),
    "torchvision, MLP": (lambda: replaced(of_torchvision(), "heads", mlp()), "`heads`"),
    "after 1000 classes": (lambda: fill(Net(of_timm(8), nn.Linear(8, 5))), "`fc`"),
    "two heads": (lambda: fill(Net(of_timm(0), nn.ModuleList([nn.Linear(192, 5), nn.Linear(192, 3)]))), "`fc`"),
    "transformers, MLP": (lambda: fill(Net(of_transformers(), mlp(), "classifier")), "`classifier`"),
}  # fmt: skip


@torch.inference_mode()
@pytest.mark.parametrize("name", OTHER)
def test_model_with_another_head_is_opened_without_it(name: str, tmp_path: Path) -> None:
    make, said = OTHER[name]
    module = make().eval()
    checkpoint = load_checkpoint(keep(module.state_dict(), tmp_path))
    assert checkpoint.config.num_classes == 0 and checkpoint.labels == ()
    assert said in checkpoint.assumed["left_out"]
    state = {k.removeprefix("backbone."): v for k, v in module.state_dict().items()}
    alone = {k: v for k, v in state.items() if not k.startswith(("head", "fc", "classifier", "mean", "criterion"))}
    expected = load_checkpoint(keep(alone, tmp_path, "alone.pth")).model(IMAGE, output_attentions=True)
    output = checkpoint.model(IMAGE, output_attentions=True)
    assert all(map(torch.equal, output.attentions, expected.attentions))
    assert torch.equal(output.logits, expected.logits)
    assert checkpoint_from_module(module).config.num_classes == 0
    assert find_vit(module).config.num_classes == (8 if "1000" in name else 0)  # the inner model has its own head


def test_layers_that_may_change_the_attention_are_refused(tmp_path: Path) -> None:
    state = of_timm().state_dict()
    for name, tensor in {
        "prompts": torch.zeros(1, 4, 192),
        "blocks.0.adapter.down.weight": torch.zeros(8, 192),
        "extra_token": torch.zeros(1, 1, 192),
        "stem.0.weight": torch.zeros(3, 3, 3, 3),
    }.items():
        with pytest.raises(InvalidCheckpoint, match="a plain Vision Transformer does not have"):
            load_checkpoint(keep(state | {name: tensor}, tmp_path))
    merged = {name.replace("qkv.", "qkv.base_layer."): tensor for name, tensor in state.items()}
    merged["blocks.0.attn.qkv.lora_A.default.weight"] = torch.zeros(2, 192)
    with pytest.raises(InvalidCheckpoint, match="merge_and_unload"):
        load_checkpoint(keep(merged, tmp_path))


# --- Wrappers -----------------------------------------------------------------------------------------------------

EXTRA = {"n_averaged": torch.tensor(3), "criterion.weight": torch.ones(5), "metric.total": torch.zeros(())}
BESIDE: dict[str, Callable[[dict[str, Tensor]], Any]] = {
    "numbers of training": lambda state: state | EXTRA,
    "an average": lambda state: {"n_averaged": torch.tensor(3)} | {f"module.{k}": v for k, v in state.items()},
    "mask": lambda state: state | {"masked_embed": torch.zeros(1, 192), "mean": torch.zeros(1, 3, 1, 1)},
    "compiled within": lambda state: {k.replace("blocks.0.", "blocks.0._orig_mod."): v for k, v in state.items()},
    "unknown wrapper": lambda state: {f"lit.net_7.encoder.{k}": v for k, v in state.items()},
    "chunks": lambda state: {k.replace("blocks.", "m.blocks.") if "blocks" in k else k: v for k, v in state.items()},
    "nested": lambda state: {"a": {"b": {"c": state, "epoch": 3}, "log": {"loss": torch.zeros(3)}}},
    "optimiser": lambda state: {"net": state, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}},
    "twice": lambda state: {f"{at}.{k}": v for at in ("backbone", "model.0") for k, v in state.items()},
    **{
        key: lambda state, key=key: {key: {f"module.{k}": v for k, v in state.items()}, "epoch": 1}  # type: ignore[misc]
        for key in ("state_dict_ema", "student", "target_encoder", "ema", "module", "weights", "best_model")
    },
}


@pytest.mark.parametrize("name", BESIDE)
def test_model_is_found_within_any_wrapper(name: str, tmp_path: Path) -> None:
    state = of_timm().state_dict()
    plain = load_checkpoint(keep(state, tmp_path, "plain.pth"))
    checkpoint = load_checkpoint(keep(BESIDE[name](state), tmp_path))
    assert checkpoint.config == plain.config and checkpoint.labels == plain.labels
    assert torch.equal(checkpoint.model(IMAGE).logits, plain.model(IMAGE).logits)
    said = checkpoint.assumed.keys() - plain.assumed.keys()
    assert said == ({"left_out"} if name in ("numbers of training", "an average", "mask") else set())


SEVERAL: dict[str, Callable[[Any, Any], Any]] = {
    "model model_ema": lambda one, other: {"model": one, "model_ema": other},
    "state_dict state_dict_ema": lambda one, other: {"state_dict": one, "state_dict_ema": other, "epoch": 2},
    "student teacher": lambda one, other: {"student": {f"module.{k}": v for k, v in one.items()}, "teacher": other},
    "encoder target_encoder": lambda one, other: {"encoder": one, "target_encoder": other, "opt": {}},
    "student.backbone teacher.backbone": lambda one, other: {
        **{f"student.backbone.{k}": v for k, v in one.items()},
        **{f"teacher.backbone.{k}": v for k, v in other.items()},
        "dino_loss.center": torch.zeros(1, 8),
    },
}


@pytest.mark.parametrize("name", SEVERAL)
def test_first_of_several_models_is_opened_and_the_others_by_name(name: str, tmp_path: Path) -> None:
    one, other = of_timm(seed=1).state_dict(), of_timm(seed=2).state_dict()
    file = keep(SEVERAL[name](one, other), tmp_path, "several.pth")
    first = name.split()[0]
    opened = load_checkpoint(file)
    assert torch.equal(opened.model.head.weight, other["head.weight"])
    called = first.removesuffix(".backbone")
    assert f"#{called}" in opened.assumed["model"] and summarise(file).others == (called,)
    asked = vit.load_checkpoint(f"{file}#{called}")
    assert torch.equal(asked.model.head.weight, one["head.weight"])
    assert asked.name == f"several#{called}" and asked.identity != opened.identity and asked.hash != opened.hash
    assert load_checkpoint(asked.path).identity == asked.identity
    with pytest.raises(InvalidCheckpoint, match="holds no model that is called 'nobody'"):
        load_checkpoint(f"{file}#nobody")


@pytest.mark.parametrize("names", ["model teacher_model", "student teacher", "model ema teacher"])
@pytest.mark.parametrize("larger", [{"depth": 3}, {"embed_dim": 384}])
def test_frozen_teacher_of_another_size_is_not_the_first_model(
    names: str, larger: dict[str, int], tmp_path: Path
) -> None:
    own = {name: of_timm(seed=seed).state_dict() for seed, name in enumerate(names.split()[:-1])}
    teacher = of_timm(7, **larger).state_dict()
    state = own | {names.split()[-1]: teacher}
    opened = load_checkpoint(keep({f"{k}.{name}": t for k, v in state.items() for name, t in v.items()}, tmp_path))
    assert torch.equal(opened.model.head.weight, [*own.values()][-1]["head.weight"])


def test_several_models_in_memory_are_named_and_one_registered_twice_is_one() -> None:
    pair = nn.ModuleDict({"student": of_timm(seed=1), "teacher": of_timm(seed=2)})
    with pytest.raises(InvalidCheckpoint, match="several Vision Transformers: `teacher`, `student`"):
        checkpoint_from_module(pair)
    model = of_timm()
    both = nn.ModuleDict({"backbone": model, "model": nn.Sequential(model)})
    assert torch.equal(checkpoint_from_module(both).model.head.weight, model.head.weight)
    live = find_vit(both)
    assert torch.equal(convert(live, copied(live.module)).head.weight, model.head.weight)


def test_other_networks_are_named_in_any_dict(tmp_path: Path) -> None:
    for make, name in ((torchvision.models.swin_t, "Swin"), (torchvision.models.resnet18, "ResNet")):
        with torch.device("meta"):
            names = list(make().state_dict())
        state = {f"module.{name}": torch.zeros(1) for name in names}
        with pytest.raises(InvalidCheckpoint, match=f"This is a {name} checkpoint"):
            load_checkpoint(keep({"model": state, "epoch": 1}, tmp_path))
    state = of_timm().state_dict() | {"blocks.0.attn.q_norm.weight": torch.ones(8)}
    with pytest.raises(InvalidCheckpoint, match="This is a checkpoint of a ViT that normalises queries and keys"):
        load_checkpoint(keep(state, tmp_path))


# --- CLIP ---------------------------------------------------------------------------------------------------------


def test_fine_tuned_timm_clip_model_has_classes(tmp_path: Path) -> None:
    checkpoint = load_checkpoint(keep(of_timm(5, pre_norm=True).state_dict(), tmp_path))
    assert checkpoint.labels == tuple(f"class {i}" for i in range(5))
    projection = load_checkpoint(keep(of_timm(512, pre_norm=True).state_dict(), tmp_path))
    assert projection.labels == () and "projection" in projection.assumed["labels"]


# --- Files in the folder ------------------------------------------------------------------------------------------

SIZES: dict[str, Any] = dict(hidden_size=192, num_hidden_layers=1, num_attention_heads=6, intermediate_size=96)


def trained(folder: Path, **changes: Any) -> transformers.ViTForImageClassification:
    """A folder as transformers' Trainer leaves it."""
    config = transformers.ViTConfig(**SIZES, image_size=32, patch_size=8, num_labels=4, **changes)
    model = fill(transformers.ViTForImageClassification(config))
    model.save_pretrained(folder)
    for name in ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth", "rng_state_1.pth", "training_args.bin"):
        torch.save({"state": {0: torch.zeros(3)}}, folder / name)
    (folder / "trainer_state.json").write_text("{}")
    return model


@torch.inference_mode()
def test_folder_of_a_training_opens_and_can_be_added(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-500"
    model = trained(folder, id2label={i: i * 10 for i in range(4)})
    with ExitStack() as stack:
        files = {path.name: stack.enter_context(path.open("rb")) for path in folder.iterdir()}
        brought = manage.add(files, "brought", tmp_path)
    assert sorted(path.name for path in brought.iterdir()) == ["config.json", "model.safetensors"]
    for here in (folder, brought):
        checkpoint = load_checkpoint(here)
        assert checkpoint.labels == ("0", "10", "20", "30") and checkpoint.config.heads == 6
        assert difference(checkpoint.model(IMAGE).logits, model(IMAGE).logits) < 1e-5
    (folder / "model.safetensors").rename(folder / "last.ckpt")
    assert load_checkpoint(folder).labels == checkpoint.labels


@pytest.mark.parametrize("name", ["last.ckpt", "model_best.pth.tar", "epoch_3.pt.tar", "checkpoint.tar"])
def test_files_of_training_are_added_under_any_usual_name(name: str, tmp_path: Path) -> None:
    state = of_timm().state_dict()
    file = keep({"state_dict": state}, tmp_path, name)
    with file.open("rb") as content:
        folder = manage.add({name: content}, "mine", tmp_path)
    assert torch.equal(load_checkpoint(folder).model.head.weight, state["head.weight"])
    assert load_checkpoint(file).labels == load_checkpoint(folder).labels


NAMES = ["ant", "bee", "cow", "dog", "wolf"]
NAMES_BESIDE = {
    "classes": {"model": ..., "classes": NAMES},
    "class_to_idx": {"model_state": ..., "class_to_idx": {name: i for i, name in reversed(list(enumerate(NAMES)))}},
    "hyper_parameters": {"state_dict": ..., "hyper_parameters": {"lr": 1e-3, "class_names": tuple(NAMES)}},
    "arguments": {"model": ..., "args": argparse.Namespace(lr=1e-3, idx_to_class=dict(enumerate(NAMES)))},
}


@pytest.mark.parametrize("where", NAMES_BESIDE)
def test_class_names_beside_the_weights_are_read(where: str, tmp_path: Path) -> None:
    state = of_timm().state_dict()
    torch.save(
        {key: state if value is ... else value for key, value in NAMES_BESIDE[where].items()}, tmp_path / "best.pth"
    )
    checkpoint = load_checkpoint(tmp_path / "best.pth")
    assert list(checkpoint.labels) == NAMES and "labels" not in checkpoint.assumed
    assert summarise(tmp_path).labels == 5


def test_grey_timm_model_takes_the_average_of_three_stated_means(tmp_path: Path) -> None:
    keep(of_timm(in_chans=1).state_dict(), tmp_path, "pytorch_model.bin")
    stated = {"input_size": [3, 32, 32], "mean": [0.3, 0.4, 0.5], "std": [0.1, 0.2, 0.6], "crop_pct": 1.0}
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3, "in_chans": 1}
    config = {"architecture": "vit_tiny_patch16_224", "num_classes": 5, "model_args": arguments}
    (tmp_path / "config.json").write_text(json.dumps(config | {"pretrained_cfg": stated}))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.preprocess.mean == pytest.approx((0.4,)) and checkpoint.preprocess.std == pytest.approx((0.3,))
    assert "averages" in checkpoint.assumed["preprocess"]


def test_activation_of_an_unknown_gated_model_is_an_assumption(tmp_path: Path) -> None:
    model = of_timm(mlp_layer=timm.layers.SwiGLUPacked)
    checkpoint = load_checkpoint(keep(model.state_dict(), tmp_path))
    assert checkpoint.config.activation == "silu" and "SiLU" in checkpoint.assumed["activation"]


@pytest.mark.parametrize("names", [NAMES[:4], [*NAMES, "yak"], [1, 2, 3, 4, 5], ["x" * 501] * 5])
def test_other_lists_beside_the_weights_are_no_class_names(names: list[Any], tmp_path: Path) -> None:
    torch.save({"model": of_timm().state_dict(), "classes": names}, tmp_path / "best.pth")
    checkpoint = load_checkpoint(tmp_path / "best.pth")
    assert checkpoint.labels[0] == "class 0" and "numbered" in checkpoint.assumed["labels"]


def test_class_name_of_a_folder_that_is_not_utf8_is_read_with_a_question_mark(tmp_path: Path) -> None:
    names = [*NAMES[:4], os.fsdecode(b"\xe9t\xe9")]
    torch.save({"model": of_timm().state_dict(), "classes": names}, tmp_path / "best.pth")
    assert load_checkpoint(tmp_path / "best.pth").labels == (*NAMES[:4], "?t?")


def test_indices_of_class_names_that_are_huge_as_text_are_ignored(tmp_path: Path) -> None:
    pair: tuple[Any, ...] = ()
    for _ in range(40):  # a few bytes in a file, terabytes as text
        pair = pair, pair
    torch.save({"model": of_timm().state_dict(), "class_to_idx": dict.fromkeys(NAMES, pair)}, tmp_path / "best.pth")
    assert load_checkpoint(tmp_path / "best.pth").labels[0] == "class 0"


def test_refused_adapter_says_how_to_merge_it(tmp_path: Path) -> None:
    names = ["base_model.model.vit.encoder.layer.0.attention.attention.query.lora_A.weight"]
    (tmp_path / "adapter_config.json").write_text("{}")
    save_file({name: torch.zeros(2, 192) for name in names}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(InvalidCheckpoint, match=r"PEFT adapter.*merge_and_unload\(\)"):
        load_checkpoint(tmp_path)
    files = {path.name: io.BytesIO(path.read_bytes()) for path in tmp_path.iterdir()}
    with pytest.raises(InvalidCheckpoint, match="PEFT adapter"):
        manage.add(files, "mine", tmp_path)


def test_open_clips_config_adds_what_weights_lack(tmp_path: Path) -> None:
    tower = of_openai()
    text = {"token_embedding.weight": torch.zeros(9, 8), "transformer.resblocks.0.ln_1.weight": torch.zeros(8)}
    state = {f"module.visual.{k}": v for k, v in tower.items()} | {f"module.{k}": v for k, v in text.items()}
    file = keep({"epoch": 1, "state_dict": state}, tmp_path, "open_clip_pytorch_model.bin")
    assert "activation" in load_checkpoint(file).assumed and load_checkpoint(file).config.heads == 3
    vision = {"width": 192, "layers": 1, "patch_size": 8, "image_size": 32, "head_width": 32}
    document = {"model_cfg": {"vision_cfg": vision}, "preprocess_cfg": {"mean": [0.1, 0.2, 0.3], "std": [1, 1, 1]}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(document))
    for path in (file, tmp_path):
        checkpoint = load_checkpoint(path)
        assert (checkpoint.config.heads, checkpoint.config.activation, checkpoint.labels) == (6, "gelu", ())
        assert checkpoint.preprocess.mean == (0.1, 0.2, 0.3) and checkpoint.assumed.keys() == {"labels"}


def of_openai() -> dict[str, Tensor]:
    """Build the tensors of OpenAI's vision tower."""
    block = {"ln_1": (192,), "ln_2": (192,), "attn.in_proj": (576, 192), "attn.out_proj": (192, 192)}
    block |= {"mlp.c_fc": (768, 192), "mlp.c_proj": (192, 768)}
    tower = {f"transformer.resblocks.0.{name}": shape for name, shape in block.items()} | {
        "ln_pre": (192,),
        "ln_post": (192,),
    }
    tensors = {}
    for name, shape in tower.items():
        mark = "_" if name.endswith("in_proj") else "."
        tensors |= {f"{name}{mark}weight": torch.randn(shape), f"{name}{mark}bias": torch.randn(shape[0])}
    tensors |= {"class_embedding": torch.randn(192), "positional_embedding": torch.randn(17, 192)}
    return tensors | {"conv1.weight": torch.randn(192, 3, 8, 8), "proj": torch.randn(192, 64)}


NAMED: dict[str, tuple[int, tuple[str, ...], str]] = {
    "projection": (128, (), "left_out"),
    "embedding": (64, (), "left_out"),
    "hash_head": (64, (), "left_out"),
    "to_latent": (64, (), "left_out"),
    "visual_projection": (64, (), "left_out"),
    "species": (5, (), "left_out"),
    "age_regressor": (1, ("output 0",), "labels"),
    "regression_head": (1, ("output 0",), "labels"),
    "reg_head": (1, ("output 0",), "labels"),
    "value_head": (1, ("output 0",), "labels"),
    "contrastive_head": (128, (), "left_out"),
    "net.bbox_head": (4, tuple(f"output {number}" for number in range(4)), "labels"),
    "cls_token_head": (2, (), "left_out"),
    "fc_out": (2, ("class 0", "class 1"), "head"),
    "1": (2, ("class 0", "class 1"), "head"),
}


@pytest.mark.parametrize("name", NAMED)
def test_name_of_a_lone_layer_tells_whether_its_outputs_are_classes(name: str, tmp_path: Path) -> None:
    outputs, labels, field = NAMED[name]
    layer = {f"{name}.weight": torch.randn(outputs, 192), f"{name}.bias": torch.zeros(outputs)}
    opened = load_checkpoint(
        keep({f"backbone.{key}": value for key, value in of_timm(0).state_dict().items()} | layer, tmp_path)
    )
    assert opened.labels == labels and f"`{name}`" in opened.assumed[field]
    assert (opened.config.num_classes == 0) is (field == "left_out") and "outputs" not in opened.assumed
    assert opened.estimates is (field == "labels")
