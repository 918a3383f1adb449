"""What torch does on this machine's processor: when float32 products are exact there, and which are faster."""

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F


def exact_on_cpu(x: Tensor) -> bool:
    """A float32 tensor on the CPU, of a pass that nothing learns from and nobody traces."""
    return (
        not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and x.dtype is torch.float32
        and x.is_cpu
        and not torch.is_autocast_enabled("cpu")
    )


@contextmanager
def onednn() -> Iterator[None]:
    """Let oneDNN compute float32 products on the CPU where it is exact: on AMD's processors it takes half MKL's time.

    Around passes that explain, not once for the process: training, with its small products, becomes slower by it.
    torch turns to oneDNN for float32 only once rounding to bfloat16 is allowed. oneDNN makes use of that on chips with
    units for it and computes in float32 on all others, so this has no effect but on those.
    """
    global _inside, _before
    matmul = cast(Any, torch.backends.mkldnn).matmul
    with _lock:  # the setting is the whole process's: the first one in sets it, the last one out puts it back
        exact = not _beside_training.get() and _onednn_is_exact()
        if exact and not _inside:
            _before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        _inside += exact
    try:
        yield
    finally:
        with _lock:
            _inside -= exact
            if exact and not _inside:
                matmul.fp32_precision = _before


@contextmanager
def beside_training() -> Iterator[None]:
    """Keep `onednn` off in this thread: another one trains, and would compute other bits while the setting is on."""
    token = _beside_training.set(True)
    try:
        yield
    finally:
        _beside_training.reset(token)


_beside_training = ContextVar("beside_training", default=False)
_lock = Lock()
_inside, _before = 0, "none"


def processor() -> dict[str, Any]:
    """What units the CPU has, like "avx512_bf16": True; empty where torch cannot say."""
    return getattr(torch.cpu, "get_capabilities", dict)()


def has_bfloat16() -> bool:
    """Whether this processor has units for bfloat16, so that a pass in it is faster and not slower."""
    units = processor()
    return bool(units.get("avx512_bf16") or units.get("amx_bf16"))


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN, allowed to round, does not."""
    chip = processor()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not x86 or not torch.backends.mkldnn.is_available() or any(chip[unit] for unit in chip if "amx" in unit):
        return False
    matmul = cast(Any, torch.backends.mkldnn).matmul
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(shape, generator=generator) for shape in ((2, 197, 384), (384, 384)))
    heads = x.unflatten(-1, (6, 64)).transpose(1, 2)
    before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
    try:
        product, mixed = F.linear(x, weight), F.scaled_dot_product_attention(heads, heads, heads)
    finally:
        matmul.fp32_precision = before
    wide = heads.double()
    return all(
        bool((actual - right).abs().max() < 1e-5 * right.abs().max())  # rounding moves it by 2e-3
        for actual, right in (
            (product, F.linear(x.double(), weight.double())),
            (mixed, F.scaled_dot_product_attention(wide, wide, wide)),
        )
    )
