"""Google's .npz files: we read the same as timm, and refuse other files before reading their arrays."""

import hashlib
import io
import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from subprocesses import output_of
from test_large import PEAK
from test_parity import Answer, ask_timm
from tiny import difference, fill
from torch import nn

from vit.checkpoints import manage
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.families import google, torchvision
from vit.checkpoints.load import list_checkpoints, load_checkpoint, summarise
from vit.checkpoints.recognition import read
from vit.errors import InvalidCheckpoint
from vit.model.config import ViTConfig

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

TINY: dict[str, Any] = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)
TOLERANCE = 1e-5
Arrays = dict[str, np.ndarray]


def timms(**changes: Any) -> nn.Module:
    """A tiny timm model, every parameter random."""
    return fill(timm.models.VisionTransformer(**TINY | changes))


def written(model: Any, start: str = "", big_vision: bool = False, together: bool = False) -> Arrays:
    """Return a timm model's tensors under Google's names: the inverse of timm's `_load_weights`.

    Args:
        start: prefix of all names.
        big_vision: use big_vision's names for layers.
        together: stack the tensors of all blocks into one array.
    """
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads = model.blocks[0].attn.num_heads
    arrays: Arrays = {}

    def norm(ours: str, theirs: str) -> None:
        arrays[f"{theirs}/scale"], arrays[f"{theirs}/bias"] = state[f"{ours}.weight"], state[f"{ours}.bias"]

    def dense(weight: np.ndarray, bias: np.ndarray, theirs: str) -> None:
        arrays[f"{theirs}/kernel"], arrays[f"{theirs}/bias"] = weight.T, bias

    def attention(parts: dict[str, tuple[np.ndarray, np.ndarray]], ours: str, theirs: str) -> None:
        for part, (weight, bias) in parts.items():
            dense(weight, bias, f"{theirs}/{part}")
            arrays[f"{theirs}/{part}/kernel"] = weight.T.reshape(weight.shape[1], heads, -1)
            arrays[f"{theirs}/{part}/bias"] = bias.reshape(heads, -1)
        dense(state[f"{ours}.proj.weight"], state[f"{ours}.proj.bias"], f"{theirs}/out")
        arrays[f"{theirs}/out/kernel"] = arrays[f"{theirs}/out/kernel"].reshape(
            heads, -1, len(state[f"{ours}.proj.bias"])
        )

    def split(ours: str, names: tuple[str, ...]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        both = (np.split(state[f"{ours}.{end}"], len(names)) for end in ("weight", "bias"))
        return dict(zip(names, zip(*both, strict=True), strict=True))

    def mlp(ours: str, theirs: str) -> None:
        for i in (0, 1):
            dense(state[f"{ours}.fc{i + 1}.weight"], state[f"{ours}.fc{i + 1}.bias"], f"{theirs}/Dense_{i}")

    arrays["embedding/kernel"] = state["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    arrays["embedding/bias"] = state["patch_embed.proj.bias"]
    if "cls_token" in state:
        arrays["cls"] = state["cls_token"]
    arrays["pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"] = state["pos_embed"]
    first, last, third = (0, 1, 0) if big_vision else (1, 2, 3)
    for i in range(len(model.blocks)):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        parts = split(f"{ours}.attn.qkv", ("query", "key", "value"))
        attention(parts, f"{ours}.attn", f"{theirs}/MultiHeadDotProductAttention_{first}")
        norm(f"{ours}.norm2", f"{theirs}/LayerNorm_{last}")
        mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_{third}")
    norm("norm", "Transformer/encoder_norm")
    if "attn_pool.latent" in state:
        arrays["MAPHead_0/probe"] = state["attn_pool.latent"]
        parts = {"query": (state["attn_pool.q.weight"], state["attn_pool.q.bias"])}
        parts |= split("attn_pool.kv", ("key", "value"))
        attention(parts, "attn_pool", "MAPHead_0/MultiHeadDotProductAttention_0")
        norm("attn_pool.norm", "MAPHead_0/LayerNorm_0")
        mlp("attn_pool.mlp", "MAPHead_0/MlpBlock_0")
    if "head.weight" in state:
        dense(state["head.weight"], state["head.bias"], "head")
    if together:
        block = re.compile(r"(Transformer/encoderblock)_\d+/(.*)")
        stacked: dict[str, list[np.ndarray]] = {}
        for name in [name for name in arrays if block.match(name)]:
            stacked.setdefault(block.sub(r"\1/\2", name), []).append(arrays.pop(name))
        arrays |= {name: np.stack(parts) for name, parts in stacked.items()}
    return {start + name: array for name, array in arrays.items()}


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
    with pytest.raises(InvalidCheckpoint, match="have 8 attention heads, you said 4"):
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


def test_file_is_stored_and_listed(tmp_path: Path) -> None:
    np.savez(tmp_path / "B_16.npz", **written(timms()))
    root = tmp_path / "shelf"
    folder = manage.add({"B_16.npz": io.BytesIO((tmp_path / "B_16.npz").read_bytes())}, "mine", root)
    (info,) = list_checkpoints(root)
    assert (info.family, info.labels, info.problem) == ("Google", 5, "")
    assert info.params == sum(p.numel() for p in load_checkpoint(folder).model.parameters())


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


# --- Refusals -------------------------------------------------------------------------------------------------

OUT = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"
QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel"


def change(**changes: Any) -> Callable[[Arrays], Arrays]:
    """Write the same arrays with some of them changed; None removes one."""

    def changed(arrays: Arrays) -> Arrays:
        made = {name.replace("__", "/"): value for name, value in changes.items()}
        return {name: array for name, array in (arrays | made).items() if array is not None}

    return changed


def reshaped(name: str, *shape: int) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: arrays[name].reshape(shape)}


ONE = np.ones(1, "f4")
WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "hybrid": (change(conv_root__kernel=ONE), r"a checkpoint of a hybrid of a ResNet and a ViT \(`conv_root/kernel`\)"),
    "hybrid, blocks": (change(block1__unit1__conv1__kernel=ONE), "hybrid of a ResNet"),
    "Mixer": (lambda arrays: {"MixerBlock_0/token_mixing/Dense_0/kernel": ONE}, "checkpoint of an MLP-Mixer"),
    "another model": (lambda arrays: {"layer/kernel": ONE}, "not a Vision Transformer that this app supports"),
    "extra": (change(adapter__kernel=ONE), "a tensor that a plain Vision Transformer does not have"),
    "no positions": (change(Transformer__posembed_input__pos_embedding=None), "no position embeddings"),
    "no class token": (change(cls=None), "do not fit a square"),
    "no norm": (change(Transformer__encoder_norm__scale=None), "do not fit the config"),
    "a missing kernel": (lambda arrays: {k: v for k, v in arrays.items() if k != OUT}, "1 tensor missing"),
    "heads differ": (reshaped(QUERY, 64, 8, 8), "differ in their number of attention heads"),
    "flat queries": (reshaped(QUERY, 64, 64), "wrong shape"),
    "flat patches": (reshaped("embedding/kernel", 192, 64), "wrong shape"),
    "narrow": (lambda arrays: arrays | {OUT: arrays[OUT][:, :, :8]}, "another shape"),
    "NaN": (lambda arrays: arrays | {OUT: arrays[OUT] * np.float32("nan")}, "NaN or infinite"),
    "whole numbers": (lambda arrays: arrays | {OUT: arrays[OUT].astype("i4")}, "stored as int32"),
    "objects": (lambda arrays: arrays | {"head/bias": np.array([{}], object)}, r"stored as \|O"),
    "words": (lambda arrays: arrays | {"head/bias": np.array(["a", "b"])}, "stored as <U1"),
    "complex": (lambda arrays: arrays | {"head/bias": np.ones(5, "c8")}, "stored as <c8"),
    "big-endian": (lambda arrays: arrays | {"head/bias": np.ones(5, ">f4")}, "stored as >f4"),
    "records": (lambda arrays: arrays | {"head/bias": np.ones(5, "f4,f4")}, "not an archive of arrays"),
    "empty array": (lambda arrays: arrays | {"head/bias": np.ones(0, "f4")}, "not an archive of arrays"),
}


def refused(file: Path) -> str:
    """Return the one-sentence message with which a file is refused."""
    with pytest.raises(InvalidCheckpoint) as caught:
        load_checkpoint(file)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 500, message
    return message


@pytest.mark.parametrize("name", WRONG)
def test_other_models_than_plain_vits_are_refused(tmp_path: Path, name: str) -> None:
    changed, why = WRONG[name]
    np.savez(tmp_path / "x.npz", **changed(written(timms())))
    assert re.search(why, refused(tmp_path / "x.npz"))


def test_header_alone_causes_no_allocation_or_execution(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n"
    shapes = [b"(1000000, 1000000)", b"(__import__('os').mkdir('evil'),)", b"(-1,)", b"(1.5,)", b"(" * 500, b"(1_0,)"]
    for shape in shapes:
        text = header % shape
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(40)
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("embedding/kernel.npy", array)
        assert "not an archive of arrays" in refused(tmp_path / "x.npz")


def bomb(file: Path, plain: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", bytes(10_000_000))


def flipped(file: Path, plain: bytes) -> None:
    at = plain.index(b"MlpBlock_3/Dense_0/kernel.npy") + 2000
    file.write_bytes(plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :])


def overlapping(file: Path, plain: bytes) -> None:
    """Point two entries of the directory at one array."""
    directory = plain.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<I", plain, directory + 16)
    entry = plain.index(b"PK\x01\x02", start + 4)
    plain = bytearray(plain)  # type: ignore[assignment]
    plain[entry + 42 : entry + 46] = plain[start + 42 : start + 46]  # type: ignore[index]
    file.write_bytes(plain)


def twice(file: Path, plain: bytes) -> None:
    file.write_bytes(plain)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cls.npy", archive.read("cls.npy"))


def with_more(name: str, content: bytes) -> Callable[[Path, bytes], None]:
    def more(file: Path, plain: bytes) -> None:
        file.write_bytes(plain)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(name, content)

    return more


DAMAGED: dict[str, tuple[Callable[[Path, bytes], Any], str]] = {
    "cut": (lambda file, plain: file.write_bytes(plain[: len(plain) // 2]), "damaged"),
    "cut at the end": (lambda file, plain: file.write_bytes(plain[:-1]), "damaged"),
    "a bit flipped": (flipped, "damaged"),
    "compressed": (bomb, "compressed"),
    "overlapping": (overlapping, "damaged"),
    "one name twice": (twice, "damaged"),
    "another file in it": (with_more("run.py", b"print()"), "damaged"),
    "a pickle in it": (with_more("a.npy", b"\x80\x04."), "damaged"),
    "a short array": (
        with_more("a.npy", b"\x93NUMPY\x01\x00\x36\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }\n    "),
        "damaged",
    ),
    "two directories": (lambda file, plain: file.write_bytes(plain + plain), "damaged"),
    "one array": (lambda file, plain: np.save(file.open("wb"), ONE), "neither a safetensors file nor one that"),
    "empty": (lambda file, plain: zipfile.ZipFile(file, "w").close(), "neither a safetensors file nor one that"),
    "no zip": (lambda file, plain: file.write_bytes(plain[:60]), "damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_or_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    damage, why = DAMAGED[name]
    np.savez(tmp_path / "plain.npz", **written(timms()))
    damage(tmp_path / "x.npz", (tmp_path / "plain.npz").read_bytes())
    assert why in refused(tmp_path / "x.npz")


def test_random_damage_is_refused_or_harmless(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **written(timms(depth=1)))
    plain = (tmp_path / "plain.npz").read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(plain)
        near_the_end = generator.random() < 0.5
        for at in generator.integers(len(plain) - 3000 if near_the_end else 0, len(plain), 3):
            damaged[at] = generator.integers(256)
        (tmp_path / "x.npz").write_bytes(damaged)
        try:
            load_checkpoint(tmp_path / "x.npz")
        except InvalidCheckpoint as error:
            assert "\n" not in str(error)


def test_listing_reads_no_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **written(timms()))
    flipped(tmp_path / "x.npz", (tmp_path / "plain.npz").read_bytes())
    (tmp_path / "plain.npz").unlink()
    assert summarise(tmp_path).problem == ""
