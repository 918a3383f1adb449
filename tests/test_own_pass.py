"""A module in memory is run: its checkpoint computes what the module does, or the difference is stated."""

from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
import transformers
from PIL import Image
from test_in_memory import check_refusal
from test_own_heads import TIMM, of_timm
from tiny import difference, fill
from torch import Tensor, nn
from torchvision.transforms import Normalize
from torchvision.transforms.functional import to_tensor

import vit
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.errors import InvalidCheckpoint, UserError

NOISE = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))
HIDDEN: dict[str, Any] = dict(
    hidden_size=192, num_hidden_layers=2, num_attention_heads=3, intermediate_size=384, image_size=32, patch_size=8
)


class Net(nn.Module):
    """A linear layer on what `read` takes from a backbone."""

    def __init__(
        self, backbone: nn.Module, read: Callable[[Any, Tensor], Any], change: Callable[[Tensor], Any] = lambda x: x
    ):
        super().__init__()
        self.backbone, self.fc, self.read, self.change = backbone, nn.Linear(192, 7), read, change

    def forward(self, images: Tensor) -> Any:
        return self.change(self.fc(self.read(self.backbone, images)))


class Written(nn.Module):
    """Somebody's own class, with timm's names and without its settings."""

    def __init__(self, activation: nn.Module, **changes: Any):
        super().__init__()
        model = fill(timm.models.VisionTransformer(**TIMM | {"num_classes": 5} | changes))
        self.patch_embed, self.blocks, self.norm, self.head = model.patch_embed, model.blocks, model.norm, model.head
        self.cls_token, self.pos_embed = model.cls_token, model.pos_embed
        for block in model.blocks:
            block.mlp.act = activation

    def forward(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)[:, 0])


def on_tokens(pool: Callable[[Tensor], Tensor], change: Callable[[Tensor], Any] = lambda x: x) -> nn.Module:
    return fill(Net(of_timm(0), lambda backbone, images: pool(backbone.forward_features(images)), change))


def on_class_token(change: Callable[[Tensor], Any]) -> nn.Module:
    return on_tokens(lambda tokens: tokens[:, 0], change)


def with_pooler() -> nn.Module:
    vit_model = transformers.ViTModel(transformers.ViTConfig(**HIDDEN))
    return fill(Net(vit_model, lambda backbone, images: backbone(images).pooler_output))


EQUAL: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "mean of the patches": (lambda: on_tokens(lambda tokens: tokens[:, 1:].mean(1)), {"pool": "mean"}),
    "mean of all tokens": (lambda: on_tokens(lambda tokens: tokens.mean(1)), {"pool": "all"}),
    "pooler": (with_pooler, {"pre_logits": 192}),
    "tuple": (lambda: on_class_token(lambda logits: (logits.new_ones(3, 3, 3), logits)), {"pool": "cls"}),
    "nested": (lambda: on_class_token(lambda logits: {"out": {"scores": logits[..., None]}}), {"pool": "cls"}),
    "dict": (lambda: on_class_token(lambda logits: {"loss": None, "scores": logits}), {"pool": "cls"}),
    "heads": (lambda: Written(nn.GELU(), num_heads=12), {"heads": 12}),
    "heads of an unusual width": (lambda: Written(nn.GELU(), embed_dim=48, num_heads=4), {"heads": 4}),
    "activation": (lambda: Written(nn.GELU("tanh")), {"activation": "gelu_tanh", "heads": 3}),
    "eps": (lambda: Written(nn.GELU(), norm_layer=nn.LayerNorm), {"eps": 1e-5}),
    "half": (lambda: of_timm().bfloat16(), {}),
}  # fmt: skip


def logits_of(module: nn.Module, images: Tensor) -> Tensor:
    weight = next(module.parameters())
    with torch.no_grad():
        output = module.eval()(images.to(weight.dtype))
    values = output.values() if isinstance(output, dict) else output if isinstance(output, tuple) else [output]
    nested = [one for value in values for one in (value.values() if isinstance(value, dict) else [value])]
    logits = (value.squeeze(-1) for value in nested if isinstance(value, Tensor))
    return next(value for value in logits if value.ndim == 2).float()


@torch.inference_mode()
@pytest.mark.parametrize("name", EQUAL)
def test_module_and_checkpoint_give_equal_logits(name: str) -> None:
    build, fields = EQUAL[name]
    module = build()
    checkpoint = checkpoint_from_module(module)
    assert difference(checkpoint.model(NOISE).logits, logits_of(module, NOISE)) < (0.02 if name == "half" else 1e-5)
    assert {field: getattr(checkpoint.config, field) for field in fields} == fields
    assert not {"heads", "activation", "eps", "pooler", "head", "forward"} & checkpoint.assumed.keys()


@pytest.mark.parametrize("link", [nn.Sigmoid(), nn.Softmax(-1), nn.LogSoftmax(-1)])
def test_probabilities_of_a_module_are_those_of_its_checkpoint(link: nn.Module) -> None:
    module = nn.Sequential(of_timm(), link)
    checkpoint = checkpoint_from_module(module)
    expected = logits_of(module, NOISE)
    expected = expected.exp() if isinstance(link, nn.LogSoftmax) else expected
    with torch.inference_mode():
        ours = checkpoint.model.probabilities(checkpoint.model(NOISE).logits)
    assert difference(ours, expected) < 1e-5 and "outputs" in checkpoint.assumed


@pytest.mark.parametrize("white", [1, 255])
@pytest.mark.parametrize("known", [None, vit.Preprocess((32, 32), mean=(0.2, 0.3, 0.4))])
def test_module_that_normalises_gets_pictures_as_its_own_pass_does(white: int, known: Any) -> None:
    mean, std = (tuple(white * value for value in values) for values in ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6)))
    module = nn.Sequential(Normalize(mean, std), of_timm())
    checkpoint = checkpoint_from_module(module, preprocess=known)
    picture = Image.effect_noise((32, 32), 90).convert("RGB")
    pixels = to_tensor(checkpoint.preprocess.input_image(picture))[None]
    inputs = known(picture) if known else white * pixels
    with torch.inference_mode():
        assert difference(checkpoint.model(checkpoint.preprocess(picture)).logits, module(inputs)) < 1e-4


def overlapping() -> nn.Module:
    model = of_timm(dynamic_img_size=True)
    model.patch_embed.proj.stride = (4, 4)
    return model


def quantised() -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(of_timm(), {nn.Linear}, dtype=torch.qint8)


DIFFERENT: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "overlapping patches": (overlapping, r"makes 50 tokens of a picture, and the model read from its weights 17"),
    "overlapping patches, no head": (lambda: nn.Sequential(overlapping(), nn.Tanh()), "makes 50 tokens"),
    "largest of the patches": (lambda: on_tokens(lambda tokens: tokens.amax(1)), r"differ by [\d.]+% .*`backbone`"),
    "scaled logits": (lambda: on_class_token(lambda logits: 3 * logits), r"outputs .* differ by [\d.]+%"),
    "another activation": (lambda: Written(nn.ReLU()), r"tokens after the last block .* differ by [\d.]+%"),
    "colours in another order": (
        lambda: nn.Sequential(nn.ChannelShuffle(3), nn.Conv2d(3, 3, 1, groups=3), of_timm()), "changes pictures"
    ),
    "another size": (
        lambda: nn.Sequential(nn.Upsample((48, 64)), of_timm(dynamic_img_size=True)), "from 32 x 32 to 64 x 48"
    ),
    "quantised": (quantised, "quantised or sharded"),
    "no values": (lambda: of_timm().to("meta"), "meta device"),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENT)
def test_module_that_computes_something_else_is_refused_with_the_difference(name: str) -> None:
    check_refusal(*DIFFERENT[name])


def test_module_whose_pass_needs_more_is_opened_and_says_that_it_was_not_compared() -> None:
    class Questioned(Net):
        def forward(self, images: Tensor, question: str) -> Tensor:
            return super().forward(images)

    checkpoint = checkpoint_from_module(fill(Questioned(of_timm(0), lambda backbone, images: backbone(images))))
    assert "TypeError" in checkpoint.assumed["forward"] and "head" in checkpoint.assumed


def test_running_a_module_changes_neither_its_mode_nor_random_numbers() -> None:
    module = of_timm().train()
    module.blocks[0].eval()
    before = [part.training for part in module.modules()], torch.random.get_rng_state()
    checkpoint_from_module(module)
    assert before[0] == [part.training for part in module.modules()]
    assert torch.equal(before[1], torch.random.get_rng_state())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


@pytest.mark.parametrize("attention", [(None, None), [], (torch.eye(5)[None], None)])
def test_missing_attention_says_how_to_get_it(attention: Any) -> None:
    with pytest.raises(UserError, match='attn_implementation="eager"'):
        vit.view(attention, Image.new("RGB", (32, 32)))


class Before(nn.Module):
    """Changes pictures by a function."""

    def __init__(self, change: Callable[[Tensor], Tensor]):
        super().__init__()
        self.change = change

    def forward(self, images: Tensor) -> Tensor:
        return self.change(images)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: (x - x.amin((1, 2, 3), True)) / (x.amax((1, 2, 3), True) - x.amin((1, 2, 3), True)),
        lambda x: (x - x.mean()) / x.std(),
        lambda x: x / x.amax(),
    ],
)
def test_module_that_normalises_by_the_pictures_own_values_is_refused(change: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(InvalidCheckpoint, match="changes pictures"):
        checkpoint_from_module(nn.Sequential(Before(change), of_timm()))


@pytest.mark.parametrize("change", [lambda x: x / 255, lambda x: x.sub_(0.5).div_(0.25)])
def test_module_that_scales_pictures_also_in_place_gets_them_as_its_own_pass_does(change: Any) -> None:
    module = nn.Sequential(Before(change), of_timm())
    checkpoint = checkpoint_from_module(module)
    white = 255 if checkpoint.preprocess.std[0] > 0.9 else 1
    picture = Image.effect_noise((32, 32), 90).convert("RGB")
    with torch.inference_mode():
        expected = module(white * to_tensor(checkpoint.preprocess.input_image(picture))[None])
        assert difference(checkpoint.model(checkpoint.preprocess(picture)).logits, expected) < 1e-4


@pytest.mark.parametrize("scale", [1e-5, 1e-4])
def test_number_of_heads_that_hardly_changes_the_tokens_stays_assumed_or_is_found(scale: float) -> None:
    module = Written(nn.GELU(), num_heads=6)
    for block in module.blocks:
        block.ls1, block.ls2 = (timm.models.vision_transformer.LayerScale(192, scale) for _ in range(2))
    checkpoint = checkpoint_from_module(module)
    assert checkpoint.config.heads == 6 or "heads" in checkpoint.assumed


def test_compiled_parts_of_a_module_are_found() -> None:
    module = nn.ModuleDict({"model": torch.compile(of_timm())})
    module.forward = lambda images: module["model"](images)
    checkpoint = checkpoint_from_module(module)
    with torch.inference_mode():
        assert difference(checkpoint.model(NOISE).logits, module["model"]._orig_mod(NOISE)) < 1e-5


def test_head_whose_outputs_hardly_differ_between_pictures_is_compared_by_their_changes() -> None:
    module = on_tokens(lambda tokens: tokens[:, 1:].mean(1))
    with torch.no_grad():
        module.fc.weight.mul_(1e-4)
        module.fc.bias.fill_(-4.6)
    assert checkpoint_from_module(module).config.pool == "mean"


def test_features_of_a_module_without_classes_are_pooled_as_its_own() -> None:
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = of_timm(0)

        def forward(self, images: Tensor) -> Tensor:
            return self.backbone.forward_features(images)[:, 1:].mean(1)

    module = Mean()
    checkpoint = checkpoint_from_module(module)
    with torch.inference_mode():
        pooled = checkpoint.model(NOISE, output_queries_keys=True).pooled
        assert difference(pooled, module(NOISE)) < 1e-5
