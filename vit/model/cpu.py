"""CPU-specific behaviour of torch: exact float32 products by oneDNN, and bfloat16 support."""

import platform
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F


def exact_on_cpu(x: Tensor) -> bool:
    """Whether a tensor is float32 on the CPU, in a pass without gradients, tracing, compilation or autocast."""
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
    """Use oneDNN for float32 products on the CPU if it computes them exactly. On AMD it takes half of MKL's time.

    Wraps inference passes only: training has small products, which oneDNN computes more slowly.
    torch uses oneDNN for float32 only if rounding to bfloat16 is allowed. oneDNN rounds only on chips with bfloat16
    units; on all others it computes in float32. On chips where it rounds, this context has no effect.
    """
    global _active, _previous_precision
    matmul = cast(Any, torch.backends.mkldnn).matmul
    # The setting is global to the process, and several threads explain at once: the first to enter sets it, the last
    # to leave restores it.
    with _lock:
        exact = not _without_onednn.get() and _onednn_is_exact()
        if exact and not _active:
            _previous_precision, matmul.fp32_precision = matmul.fp32_precision, "bf16"
        _active += exact
    try:
        yield
    finally:
        with _lock:
            _active -= exact
            if exact and not _active:
                matmul.fp32_precision = _previous_precision


def onednn_for(x: Tensor) -> AbstractContextManager[None]:
    """Return `onednn` for a pass of this tensor if it is `exact_on_cpu` now, else a context without effect."""
    return onednn() if exact_on_cpu(x) else nullcontext()


@contextmanager
def without_onednn() -> Iterator[None]:
    """Disable `onednn` in this thread, because the setting would change the results of training in another thread."""
    token = _without_onednn.set(True)
    try:
        yield
    finally:
        _without_onednn.reset(token)


_without_onednn = ContextVar("without_onednn", default=False)
_lock = Lock()
_active, _previous_precision = 0, "none"  # _active is the number of open `onednn` contexts


def processor() -> dict[str, Any]:
    """Return the CPU's capabilities, such as "avx512_bf16": True; empty if torch cannot query them."""
    return getattr(torch.cpu, "get_capabilities", dict)()


def has_bfloat16() -> bool:
    """Whether the CPU has bfloat16 units. Without them a pass in bfloat16 is slower than in float32."""
    units = processor()
    return bool(units.get("avx512_bf16") or units.get("amx_bf16"))


@cache
def _onednn_is_exact() -> bool:
    """Whether oneDNN still multiplies in float32 when bfloat16 is allowed; checked by two products."""
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
        bool((actual - right).abs().max() < 1e-5 * right.abs().max())  # rounding to bfloat16 changes it by 2e-3
        for actual, right in (
            (product, F.linear(x.double(), weight.double())),
            (mixed, F.scaled_dot_product_attention(wide, wide, wide)),
        )
    )
