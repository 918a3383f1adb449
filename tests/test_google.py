"""Google's .npz files: we read the same as timm."""

import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from google_files import TINY, Arrays, timms, written
from subprocesses import output_of
from test_large import PEAK
from test_parity import Answer, ask_timm
from tiny import difference
from torch import nn

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.families import google, torchvision
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.recognition import read
from vit.errors import InvalidCheckpoint
from vit.model.config import ViTConfig

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

TOLERANCE = 1e-5


class Case:
    """A timm model, and the format it is written in."""

    def __init__(self, model: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **how: Any):
        self.model, self.config, self.how = model or {}, config or {}, how


GAP = dict(class_token=False, global_pool="avg", fc_norm=False)
MAP = dict(class_token=False, global_pool="map")
CASES = {
    "original": Case(config=dict(prefix=("cls",), pool="cls")),
    "optimiser": Case(start="opt/target/"),
    "big_vision": Case(dict(no_embed_class=True), dict(prefix=("cls",)), big_vision=True),
    "big_vision, params": Case(dict(no_embed_class=True), start="params/", big_vision=True),
    "all blocks in one": Case(dict(no_embed_class=True), big_vision=True, together=True),
    "mean of patches": Case(GAP, dict(pool="mean", prefix=()), big_vision=True),
    "SigLIP": Case(MAP, dict(pool="map"), big_vision=True, start="params/img/"),
    "SigLIP without head": Case(MAP | dict(num_classes=0), dict(num_classes=0), big_vision=True, start="params/img/"),
    "grey": Case(dict(in_chans=1), dict(channels=1)),
}


@pytest.fixture(params=CASES)
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Case, nn.Module, Checkpoint]:
    """A case, timm's model loaded from the file, and our checkpoint."""
    case = CASES[request.param]
    file = tmp_path / "theirs.npz"
    np.savez(file, **written(timms(**case.model), **case.how))
    fresh = timm.models.VisionTransformer(**TINY | case.model).eval()
    fresh.load_pretrained(str(file))
    return case, fresh, load_checkpoint(file)


@torch.inference_mode()
def test_logits_and_attention_equal_timms(both: Any, pictures: Any) -> None:
    case, theirs, checkpoint = both
    images = pictures(channels=checkpoint.config.channels)
    expected: Answer = ask_timm(theirs, images)
    result = checkpoint.model(images, output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    assert len(result.attentions) == len(expected.attentions) == 2
    for mine, their in zip(result.attentions, expected.attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE
    stated = checkpoint.config.to_dict()
    wanted_config = case.config | dict(heads=4, eps=1e-6, activation="gelu", norm="before_pool")
    assert {name: stated[name] for name in wanted_config} == {
        name: list(value) if isinstance(value, tuple) else value for name, value in wanted_config.items()
    }
    assert theirs.norm.eps == checkpoint.config.eps
    assert set(checkpoint.assumed) == {"activation", "preprocess"} | ({"labels"} if checkpoint.labels else set())


def swapped(arrays: Arrays) -> None:
    block = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1"
    query, key = f"{block}/query/kernel", f"{block}/key/kernel"
    arrays[query], arrays[key] = arrays[key], arrays[query]


def other_heads(arrays: Arrays) -> None:
    for name in [name for name in arrays if re.search("(query|key|value)/", name)]:
        *rest, _, _ = shape = arrays[name].shape
        arrays[name] = arrays[name].reshape(*rest, 2, -1) if shape else arrays[name]
    for name in [name for name in arrays if name.endswith("out/kernel")]:
        arrays[name] = arrays[name].reshape(2, -1, 64)


def not_turned(arrays: Arrays) -> None:
    name = "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/out/kernel"
    arrays[name] = arrays[name].reshape(64, 64).T.reshape(4, 16, 64)


@torch.inference_mode()
@pytest.mark.parametrize("wrong", [swapped, other_heads, not_turned])
def test_comparison_would_notice_an_error(tmp_path: Path, pictures: Any, wrong: Callable[[Arrays], None]) -> None:
    model = timms()
    arrays = written(model)
    wrong(arrays)
    np.savez(tmp_path / "wrong.npz", **arrays)
    result = load_checkpoint(tmp_path / "wrong.npz").model(pictures())
    assert difference(result.logits, ask_timm(model, pictures()).logits) > 1e-3


@torch.inference_mode()
def test_positions_are_resized_as_timm_does_on_loading(tmp_path: Path, pictures: Any) -> None:
    np.savez(tmp_path / "theirs.npz", **written(timms()))
    larger = timm.models.VisionTransformer(**TINY | dict(img_size=(48, 64))).eval()
    larger.load_pretrained(str(tmp_path / "theirs.npz"))
    result = load_checkpoint(tmp_path / "theirs.npz").model(pictures(48, 64))
    assert difference(result.logits, larger(pictures(48, 64))) <= TOLERANCE


@torch.inference_mode()
def test_layer_before_the_head_ends_in_tanh(tmp_path: Path, pictures: Any) -> None:
    """timm drops this layer, so the reference is Google's own code."""
    model, generator = timms(), np.random.default_rng(0)
    kernel, bias = generator.normal(size=(64, 48)).astype("f4"), generator.normal(size=48).astype("f4")
    head = generator.normal(size=(48, 5)).astype("f4")
    arrays = written(model) | {"pre_logits/kernel": kernel, "pre_logits/bias": bias, "head/kernel": head}
    np.savez(tmp_path / "old.npz", **arrays)
    checkpoint = load_checkpoint(tmp_path / "old.npz")
    token: Any = model.forward_features(pictures())[:, 0].numpy()  # type: ignore[operator]
    expected = np.tanh(token @ kernel + bias) @ head + arrays["head/bias"]
    assert checkpoint.config.pre_logits == 48
    assert difference(checkpoint.model(pictures()).logits, torch.from_numpy(expected)) <= TOLERANCE


@torch.inference_mode()
def test_other_training_state_is_ignored(tmp_path: Path, pictures: Any) -> None:
    arrays = written(timms(), "opt/target/")
    np.savez(tmp_path / "plain.npz", **arrays)
    state = {name.replace("opt/target/", "opt/state/grad_ema/"): array for name, array in arrays.items()}
    np.savez(tmp_path / "whole.npz", **state, **{"opt/state/step": np.int32(3), "opt/a": np.ones(2, "u1")}, **arrays)
    one, other = (load_checkpoint(tmp_path / name).model(pictures()).logits for name in ("plain.npz", "whole.npz"))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", ["f2", "f4", "f8", "bfloat16", "columns"])
def test_every_number_type_and_byte_order_is_read(tmp_path: Path, kind: str) -> None:
    arrays = written(timms())
    if kind == "bfloat16":
        kept: dict[str, Any] = {name: torch.tensor(array).bfloat16() for name, array in arrays.items()}
        reference = {name: tensor.float() for name, tensor in kept.items()}
        stored: Arrays = {name: tensor.view(torch.int16).numpy().view("V2") for name, tensor in kept.items()}
    elif kind == "columns":
        stored = {name: np.asfortranarray(array) for name, array in arrays.items()}
        reference = {name: torch.tensor(array) for name, array in arrays.items()}
    else:
        stored = {name: array.astype(kind) for name, array in arrays.items()}
        reference = {name: torch.tensor(array.astype("f4")) for name, array in stored.items()}
    np.savez(tmp_path / "kind.npz", **stored)
    result = load_checkpoint(tmp_path / "kind.npz")
    expected = read(reference)
    assert all(torch.equal(tensor, expected.tensors[name]) for name, tensor in result.model.state_dict().items())
    assert result.hash == hashlib.sha256((tmp_path / "kind.npz").read_bytes()).hexdigest()[:16]


def test_number_of_heads_is_read_and_cannot_be_overridden(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **written(timms(num_heads=8)))
    assert load_checkpoint(tmp_path / "x.npz").config.heads == 8
    assert load_checkpoint(tmp_path / "x.npz", heads=8).assumed.keys() == {"activation", "preprocess", "labels"}
    with pytest.raises(InvalidCheckpoint, match="have 8 attention heads, not 4"):
        load_checkpoint(tmp_path / "x.npz", heads=4)


@pytest.mark.parametrize("classes", [1000, 21843])
def test_thousand_classes_are_imagenets_and_more_have_no_names(tmp_path: Path, classes: int) -> None:
    np.savez(tmp_path / "x.npz", **written(timms(num_classes=classes)))
    labels = load_checkpoint(tmp_path / "x.npz").labels
    assert labels == (torchvision.imagenet_labels() if classes == 1000 else tuple(f"class {i}" for i in range(classes)))


def test_preprocessing_equals_timms_for_these_files(tmp_path: Path) -> None:
    theirs = timm.get_pretrained_cfg("vit_base_patch16_224.augreg_in21k_ft_in1k")
    assert theirs is not None
    preprocess, why = google.FAMILY.preprocess(ViTConfig.preset("B/16"), "B_16-i21k-300ep.npz")
    assert preprocess.resize_to == int(224 / theirs.crop_pct) and preprocess.resize == "shortest"
    assert (preprocess.interpolation, preprocess.mean, preprocess.std) == (
        theirs.interpolation, theirs.mean, theirs.std
    )  # fmt: skip
    assert "248 px" in why


def test_huge_block_index_costs_nothing() -> None:
    tensors = {"embedding/kernel": torch.empty(1, 1, 3, 4, device="meta")}
    tensors["pos_embedding"] = torch.empty(1, 4, 4, device="meta")
    tensors["Transformer/encoderblock/LayerNorm_0/scale"] = torch.empty(10**9, device="meta")
    with pytest.raises(InvalidCheckpoint, match="wrong shape"):
        read(tensors)


@pytest.mark.slow
def test_loading_holds_the_weights_once(tmp_path: Path) -> None:
    """Tensors are converted one by one; beside the model there is at most one fused matrix and its parts."""
    np.savez(tmp_path / "small.npz", **written(timms()))
    model = timm.models.VisionTransformer(depth=4, num_classes=10)
    np.savez(tmp_path / "large.npz", **{name: np.ascontiguousarray(a) for name, a in written(model).items()})
    peak, parameters = map(int, output_of(PEAK, tmp_path / "small.npz", tmp_path / "large.npz").split())
    assert parameters == pytest.approx(sum(p.nbytes for p in model.parameters()), rel=0.01)
    assert peak < 1.6 * parameters
