"""The device `pretend`: computes on the CPU, and refuses to mix its tensors with the CPU's, as a GPU does.

It shows on every machine what would fail on a GPU: operations on tensors of two devices, generators of the wrong one,
and points where the host has to wait for the device. It uses torch's experimental support for backends written in
Python. Import it in a process of its own, since torch then has another accelerator.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

DEVICE = torch.device("cpu")  # replaced by `set_up`
_aten = torch.ops.aten
_TAKES_CPU_INDICES = {_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default}
# The device has to finish before the host knows the number of elements of a result, or a value.
_WAITS = {_aten._local_scalar_dense.default, _aten.nonzero.default, _aten.masked_select.default, _aten.equal.default}
_waits: Counter[str] = Counter()


class PretendTensor(torch.Tensor):
    """A tensor of the device; its values are in `values`, on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> "PretendTensor":
        tensor: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )
        tensor.values = values
        return tensor

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})

    def tolist(self) -> Any:
        return self.cpu().tolist()


class Generator(torch.Generator):
    """A generator for one of both devices, in place of torch's own."""

    def __new__(cls, device: Any = "cpu") -> "Generator":
        ours = _is_ours(device)
        generator = super().__new__(cls, "cpu" if ours else device)
        if ours:
            _generators[generator._cdata] = generator  # type: ignore[attr-defined]
        return generator

    @property
    def device(self) -> torch.device:
        return DEVICE if self._cdata in _generators else super().device  # type: ignore[attr-defined]


_generators: dict[int, Generator] = {}  # of the device, by address: functions receive another Python object


class _Everywhere(TorchDispatchMode):
    """Also handles functions that create a tensor of the device, or move one there."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(function, args, kwargs or {})


@contextmanager
def set_up() -> Iterator[None]:
    """Make the device available, for the rest of the process."""
    # Not at the top: without this function, a lower version of torch can still list the checks.
    from torch.utils.backend_registration import (
        _DummyBackendModule,
        _setup_privateuseone_for_python_backend,
    )

    global DEVICE
    backend = _DummyBackendModule()
    backend.get_amp_supported_dtype = lambda: [torch.bfloat16]  # type: ignore[attr-defined]
    _setup_privateuseone_for_python_backend("pretend", backend_module=backend)
    DEVICE = torch.device("pretend:0")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch.Generator = Generator  # type: ignore[misc]
    # A tensor subclass of Python cannot be an inference tensor.
    torch.inference_mode = lambda mode=True: torch.no_grad() if mode else torch.enable_grad()  # type: ignore
    library = torch.library.Library("aten", "IMPL")
    for name in ("empty_strided", "empty.memory_format", "_copy_from", "fill_.Scalar"):
        library.impl(name, _from_cpp(name), "PrivateUse1")
    torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` then moves its result by a function that we see
    with _Everywhere():
        yield


def _from_cpp(name: str) -> Callable[..., Any]:
    """Return a kernel for what torch calls without its hooks for Python, such as to convert a list of indices."""
    packet, _, overload = name.partition(".")
    function = getattr(getattr(_aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if packet == "_copy_from":
            source, target = args[:2]
            return _compute(_aten.copy_.default, (target, source), {})
        return _compute(function, args, kwargs)

    return kernel


@contextmanager
def count_waits() -> Iterator[Counter[str]]:
    """Count how often the host waits for the device, by function."""
    _waits.clear()
    yield _waits


@contextmanager
def no_waits() -> Iterator[None]:
    """Check that the host does not wait for the device; a real device is not counted."""
    with count_waits() as waits:
        yield
        assert not waits, waits


def _is_ours(device: Any) -> bool:
    return device is not None and torch.device(device).type == "pretend"


def _compute(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    ours: dict[int, PretendTensor] = {}  # by the identity of their values, as some functions return an argument
    foreign: list[torch.Tensor] = []

    def values_of(one: Any) -> Any:
        if isinstance(one, PretendTensor):
            ours[id(one.values)] = one
            return one.values
        if isinstance(one, torch.Tensor):
            foreign.append(one)
        return one

    def on_the_device(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return ours[id(one)] if id(one) in ours else PretendTensor(one)

    args, kwargs = tree_map(values_of, (args, kwargs))
    target = kwargs.get("device")
    here = bool(ours) if target is None else _is_ours(target)
    if target is not None and here:
        kwargs["device"] = torch.device("cpu")
    _check(function, args, kwargs, bool(ours), foreign, here)
    if function is _aten._fused_sdp_choice.default and ours:
        return 0  # in plain operations, since the fused kernels belong to CUDA
    if ours and kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    result = function(*args, **kwargs)
    if function is _aten.copy_.default:
        return ours.get(id(args[0]), result)
    return tree_map(on_the_device, result) if here else result


def _check(
    function: Callable[..., Any], args: Any, kwargs: dict[str, Any], ours: bool, foreign: list[torch.Tensor], here: bool
) -> None:
    """Raise where a GPU would, and count where the host waits."""
    moves = function in (_aten._to_copy.default, _aten.copy_.default)
    if ours and not moves and function not in _TAKES_CPU_INDICES and any(tensor.dim() for tensor in foreign):
        raise RuntimeError(f"Expected all tensors to be on the same device, in {function}")
    generator = kwargs.get("generator")
    if generator is not None and (generator._cdata in _generators) != here:
        raise RuntimeError(f"Expected a generator of the device that is filled, in {function}")
    if not ours:
        return
    from_device = function is _aten._to_copy.default and not here
    to_host = function is _aten.copy_.default and any(tensor is args[0] for tensor in foreign)
    by_mask = function in _TAKES_CPU_INDICES and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    if function in _WAITS or ((from_device or to_host) and not kwargs.get("non_blocking")) or by_mask:
        _waits[str(function)] += 1
