"""A module in a foreign training loop converts to our model: equal answers, and the module unchanged."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import transformers
from lightning.pytorch import LightningModule
from tiny import difference, fill
from torch import nn
from torchvision.models import VisionTransformer as TorchvisionViT

from vit.checkpoints.modules.live_module import convert, copied, find_vit, matches_module, own_logits
from vit.errors import InvalidCheckpoint

SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
SMALL |= {"image_size": 32, "patch_size": 8, "num_labels": 5}


def timm_vit(**changes: Any) -> nn.Module:
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 4, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **arguments | changes)


def unnamed_vit(**changes: Any) -> nn.Module:
    """Build timm's class directly, without the name of an architecture."""
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 64, "depth": 2, "num_heads": 8, "num_classes": 5}
    return timm.models.VisionTransformer(**arguments | changes)


MODULES: dict[str, Callable[[], nn.Module]] = {
    "timm": timm_vit,
    "timm, mean of the patches": lambda: timm_vit(global_pool="avg", class_token=False),
    "timm, learnt query": lambda: timm_vit(global_pool="map", class_token=False),
    "timm, registers and LayerScale": lambda: timm_vit(reg_tokens=3, init_values=0.1, no_embed_class=True),
    "timm, not square": lambda: timm_vit(img_size=(32, 48)),
    "timm, grey": lambda: timm_vit(in_chans=1),
    "timm, without a head": lambda: timm_vit(num_classes=0),
    "timm without a name": unnamed_vit,
    "timm without a name, other parts": lambda: unnamed_vit(
        act_layer="gelu_tanh", norm_layer=lambda dim, **more: nn.LayerNorm(dim, eps=1e-3, **more), global_pool="avg"
    ),
    "torchvision": lambda: TorchvisionViT(32, 8, 2, 4, 64, 128, num_classes=5),
    "transformers ViT": lambda: transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)),
    "transformers DeiT": lambda: transformers.DeiTForImageClassificationWithTeacher(transformers.DeiTConfig(**SMALL)),
    "transformers DINOv2": lambda: transformers.Dinov2Model(
        transformers.Dinov2Config(**{k: v for k, v in SMALL.items() if k != "intermediate_size"}, mlp_ratio=2)
    ),
}


class Wrapped(LightningModule):
    """A module with a metric and a loss beside the model."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.network, self.criterion = model, nn.CrossEntropyLoss()


def image(module: nn.Module) -> torch.Tensor:
    config = find_vit(module).config
    return torch.randn(2, config.channels, *config.image_size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("make", MODULES.values(), ids=MODULES)
def test_converted_model_answers_like_the_module(make: Callable[[], nn.Module]) -> None:
    module = fill(make()).train()
    live, pixels = find_vit(module), image(module)
    expected = own_logits(live, pixels)
    assert expected is not None
    model = convert(live, copied(live.module))
    with torch.no_grad():
        assert difference(model(pixels).logits, expected) < 1e-5
    assert matches_module(model, pixels, expected)
    assert not live.assumed


def test_model_with_different_answers_is_detected() -> None:
    module = fill(timm_vit())
    live, pixels = find_vit(module), image(module)
    wrong = live._replace(facts=live.facts._replace(known=live.facts.known | {"heads": 8}))
    assert not matches_module(convert(wrong, copied(live.module)), pixels, own_logits(live, pixels))


@pytest.fixture
def one_process(tmp_path: Any) -> Any:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "DDP": nn.parallel.DistributedDataParallel,
    "torch.compile": torch.compile,
    "compiled in DDP": lambda module: nn.parallel.DistributedDataParallel(torch.compile(module)),
    "an average": lambda module: torch.optim.swa_utils.AveragedModel(module),
    "timm's average": lambda module: timm.utils.ModelEmaV3(module),
    "LightningModule": Wrapped,
    "with another network beside it": lambda module: nn.ModuleDict({"vit": module, "head": nn.Linear(3, 3)}),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_training_wrappers_are_removed(wrap: Callable[[nn.Module], nn.Module], one_process: None) -> None:
    module = fill(timm_vit())
    live = find_vit(wrap(module))
    expected = convert(find_vit(module), copied(find_vit(module).module)).state_dict()
    tensors = convert(live, copied(live.module)).state_dict()
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def test_ambiguous_models_are_refused() -> None:
    pair = nn.ModuleDict({"student": timm_vit(), "teacher": timm_vit()})
    with pytest.raises(InvalidCheckpoint, match="several Vision Transformers: `teacher`, `student`"):
        find_vit(pair)


def test_other_network_is_named() -> None:
    with pytest.raises(InvalidCheckpoint, match="resnet10t"):
        find_vit(timm.create_model("resnet10t", num_classes=5))


def test_copy_shares_no_memory_with_the_module() -> None:
    module = timm_vit()
    live = find_vit(module)
    theirs = {tensor.data_ptr() for tensor in module.state_dict().values()}
    model = convert(live, copied(live.module))
    assert theirs.isdisjoint(tensor.data_ptr() for tensor in model.state_dict().values())


def test_forward_pass_preserves_modes_and_random_state() -> None:
    module = fill(timm_vit(drop_rate=0.5, drop_path_rate=0.5)).train()
    module.blocks[0].eval()  # frozen
    modes = [part.training for part in module.modules()]
    torch.manual_seed(3)
    state = torch.get_rng_state()
    one, other = (own_logits(find_vit(module), image(module)) for _ in range(2))
    assert torch.equal(one, other) and not one.requires_grad
    assert [part.training for part in module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_half_precision_module_is_converted() -> None:
    module = fill(timm_vit()).to(torch.bfloat16)
    live, pixels = find_vit(module), image(module)
    assert matches_module(convert(live, copied(live.module)), pixels, own_logits(live, pixels))
