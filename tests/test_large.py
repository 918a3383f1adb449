"""Large models: nothing is held twice, half precision is kept, and fast matrix products are exact."""

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from subprocesses import output_of
from torch import nn

from vit.checkpoints import load
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint
from vit.explain.record import record
from vit.images.preprocess import Preprocess
from vit.model import attention, cpu, transformer
from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.layers import Linear
from vit.model.transformer import VisionTransformer, rounded

MATMUL: Any = torch.backends.mkldnn.matmul


@pytest.fixture
def halved(saved: Path) -> Path:
    """Return a checkpoint as other libraries save it, in float16."""
    file = saved / "model.safetensors"
    save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    return saved


def dtypes(model: VisionTransformer) -> dict[str, torch.dtype]:
    return {name: parameter.dtype for name, parameter in model.named_parameters()}


def test_small_model_in_half_precision_becomes_float32(halved: Path) -> None:
    assert set(dtypes(load_checkpoint(halved).model).values()) == {torch.float32}


def test_large_model_keeps_half_precision_and_gives_the_same_answer(
    halved: Path, monkeypatch: pytest.MonkeyPatch, pictures: Any
) -> None:
    wide = load_checkpoint(halved).model
    monkeypatch.setattr(load, "LARGE_MODEL_BYTES", 0)
    half = load_checkpoint(halved).model
    kept = {name for name, dtype in dtypes(half).items() if dtype is torch.float16}
    assert kept == {
        f"blocks.{i}.{part}.weight" for i in range(2) for part in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2")
    }
    with torch.inference_mode():
        # Rounded in the file, computed in float32: half precision would be 1e-3 away.
        assert (half(pictures()).logits - wide(pictures()).logits).abs().max() <= 1e-6
        ours, theirs = half(pictures(), output_attentions=True), wide(pictures(), output_attentions=True)
    assert all(torch.equal(a, b) for a, b in zip(ours.attentions, theirs.attentions, strict=True))


def test_model_that_exceeds_the_memory_is_refused_before_it_is_read(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "LARGE_MODEL_BYTES", 0)
    monkeypatch.setattr(load, "memory", lambda: (8_000_000_000, 1000))
    monkeypatch.setattr(load, "read_tensors", None)
    with pytest.raises(InvalidCheckpoint, match=r"GB of memory and 0\.0 GB are free"):
        load_checkpoint(saved)


PEAK = """
import sys
from pathlib import Path
from vit.checkpoints import load_checkpoint

def now(field):
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024

load_checkpoint(Path(sys.argv[1]))  # what libraries allocate once is not the model's
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
checkpoint = load_checkpoint(Path(sys.argv[2]))
print(now("VmHWM") - before, sum(p.nbytes for p in checkpoint.model.parameters()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["safetensors", "float16", "pth"])
def test_loading_holds_the_weights_once(tmp_path: Path, saved: Path, kind: str) -> None:
    config = ViTConfig(num_classes=10, dim=768, depth=3, heads=12, mlp_dim=3072)
    model = VisionTransformer(config)
    save_checkpoint(tmp_path / "large", model, [str(i) for i in range(10)], Preprocess(size=(224, 224)))
    file = tmp_path / "large" / "model.safetensors"
    size = file.stat().st_size
    if kind == "float16":
        save_file({name: tensor.half() for name, tensor in load_file(file).items()}, file)
    if kind == "pth":
        torch.save(load_file(file), tmp_path / "large" / "pytorch_model.bin")
        file.unlink()
    peak, parameters = map(int, output_of(PEAK, saved, tmp_path / "large").split())
    assert parameters == pytest.approx(size, rel=0.01)
    assert peak < 1.6 * parameters  # a fused matrix is assembled beside its parts


@pytest.mark.parametrize("legacy", [None, False, True], ids=["safetensors", "zip", "legacy"])
def test_hash_is_that_of_the_whole_file(saved: Path, legacy: bool | None) -> None:
    file = saved / "model.safetensors"
    if legacy is not None:
        tensors = load_file(file)
        file.unlink()
        file = saved / "pytorch_model.bin"
        torch.save(tensors, file, _use_new_zipfile_serialization=not legacy)
    assert load_checkpoint(saved).hash == hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def test_views_of_one_storage_are_read_as_separate_tensors(saved: Path) -> None:
    """In a pickle, tensors may share storage, be transposed, and start at any offset."""
    plain = load_checkpoint(saved)
    tensors = load_file(saved / "model.safetensors")
    q, k, v = (f"vit.encoder.layer.0.attention.attention.{part}.weight" for part in ("query", "key", "value"))
    tensors[q], tensors[k], tensors[v] = torch.stack([tensors[q].T, tensors[k].T, tensors[v].T]).transpose(1, 2)
    (saved / "model.safetensors").unlink()
    torch.save(tensors, saved / "pytorch_model.bin")
    result = load_checkpoint(saved)
    for (name, a), (_, b) in zip(result.model.named_parameters(), plain.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


# --- Products -------------------------------------------------------------------------------------------------


def test_fast_products_are_exact_and_restore_the_setting(build: Any, pictures: Any) -> None:
    model, before = build(), MATMUL.fp32_precision
    with torch.inference_mode():
        result = model(pictures())
    assert MATMUL.fp32_precision == before
    expected = model.double()(pictures().double())  # float64 is not accelerated
    scale = expected.logits.abs().max()
    assert (result.logits - expected.logits).abs().max() < 2e-6 * scale


def test_setting_is_restored_after_an_error_and_by_the_last_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "_onednn_is_exact", lambda: True)
    before = MATMUL.fp32_precision
    with pytest.raises(ZeroDivisionError), onednn():
        1 / 0  # noqa: B018
    assert MATMUL.fp32_precision == before
    first, second = onednn(), onednn()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert MATMUL.fp32_precision == "bf16"
    second.__exit__(None, None, None)
    assert MATMUL.fp32_precision == before


def test_fast_products_are_not_used_where_they_round(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu._onednn_is_exact.cache_clear()
    plain = nn.functional.linear

    def rounds(x: torch.Tensor) -> torch.Tensor:  # as oneDNN does on chips with AMX
        return x.bfloat16().float() if x.dtype is torch.float32 else x

    monkeypatch.setattr(cpu.F, "linear", lambda x, w: plain(rounds(x), w))
    try:
        assert not cpu._onednn_is_exact()
    finally:
        cpu._onednn_is_exact.cache_clear()


def test_gradients_use_the_default_products(build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (attention, transformer):
        monkeypatch.setattr(module, "onednn", None)
    build()(pictures()).logits.sum().backward()


def test_rounded_copy_does_not_change_its_model(build: Any, pictures: Any) -> None:
    model = build()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    small = rounded(model)
    assert all(m.weight.dtype is torch.bfloat16 for m in small.blocks.modules() if isinstance(m, Linear))
    apart = record(small, pictures(count=1), "bfloat16").logits - record(model, pictures(count=1)).logits
    assert 0 < apart.abs().max() < 0.1 * record(model, pictures(count=1)).logits.abs().max()
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
