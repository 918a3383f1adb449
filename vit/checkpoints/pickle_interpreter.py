"""Interpret pickles as data. A pickle is a program; nothing in it is executed and nothing is imported.

Dicts, lists, numbers and text are rebuilt, tensors become `View`s of numbered storages, and an object of any other
class becomes an `Opaque` with its items and attributes.

Source of the format: Python's `pickletools`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pickletools import genops
from typing import IO, Any, NamedTuple

import torch

MAX_OPERATIONS = 1_000_000
_MAX_ELEMENTS = 1 << 40

# Names that only an attack imports. Nothing here calls them, but the user should be warned about such a file.
_ATTACKS = re.compile(
    r"(os|posix|nt|sys|subprocess|pty|runpy|importlib|socket|shutil|ctypes|webbrowser|code|timeit|_?pickle)(\.\w+)* .*"
    r"|(builtins|__builtin__) (eval|exec|execfile|compile|open|input|breakpoint|__import__|exit|quit|globals|vars)"
)
_DTYPES = {
    "Double": torch.float64, "Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16,
    "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Char": torch.int8, "Byte": torch.uint8,
    "Bool": torch.bool, "Untyped": torch.uint8,
}  # fmt: skip


class UnsafePickle(ValueError):
    """A pickle refers to a function that no checkpoint needs.

    Attributes:
        symbol: its name.
    """

    def __init__(self, symbol: str):
        super().__init__(symbol)
        self.symbol = symbol


class Global(NamedTuple):
    """The name of a class or function in a pickle: "module name"."""

    name: str


@dataclass
class Opaque:
    """An object of a class that is not imported.

    Attributes:
        kind: "module name" of its class.
        items: its items, if it is a dict.
        state: its attributes.
    """

    kind: str
    items: dict[Any, Any] = field(default_factory=dict)
    state: dict[Any, Any] = field(default_factory=dict)
    __hash__ = object.__hash__  # it may be a dict key


@dataclass(frozen=True, eq=False)
class Storage:
    """A storage that tensors are views of, identified by its key; its position in the file is determined later."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True, eq=False)
class View:
    """A tensor as described by the pickle."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def interpret(pickle: IO[bytes]) -> Any:
    """Interpret a pickle, with `View` for tensors and `Opaque` for other objects."""
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    for count, (operation, argument, _) in enumerate(genops(pickle)):
        if count > MAX_OPERATIONS:
            raise ValueError("The pickle is too long.")
        name = operation.name
        if name == "STOP":
            return stack.pop()
        if name in _VALUES:
            stack.append(_VALUES[name](argument))
        elif name == "MARK":
            marks.append(stack)
            stack = []
        elif name in _GETS:
            stack.append(memo[argument])
        elif name in _PUTS:
            memo[argument if name != "MEMOIZE" else len(memo)] = stack[-1]
        elif name in _ON_MARK:
            items, stack = stack, marks.pop()
            _ON_MARK[name](stack, items)
        elif name in _ON_STACK:
            _ON_STACK[name](stack, argument)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"{name} is no part of a checkpoint.")
    raise ValueError("The pickle does not end.")


def _global(name: str) -> Global:
    if _ATTACKS.fullmatch(name):
        raise UnsafePickle(name.replace(" ", ".").replace("__builtin__", "builtins"))  # Python 2 used the old name
    return Global(name)


def _call(function: Any, arguments: Any) -> Any:
    """Emulate the few functions that make tensors and dicts; return an opaque object for any other."""
    kind = function.name if isinstance(function, Global) else ""
    match kind, arguments:
        case "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor", (storage, offset, shape, stride, *_):
            return _view(storage, offset, shape, stride)
        case "torch._utils _rebuild_tensor_v3", (storage, offset, shape, stride, _, _, Global(name=dtype), *_):
            return _view(storage, offset, shape, stride, getattr(torch, dtype.removeprefix("torch ")))
        case "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state", (tensor, *_):
            return tensor
        case "torch.nn.parameter Parameter", (tensor, *_):
            return tensor
        case "torch._tensor _rebuild_from_type_v2", (rebuild, _, tuple(inner), *_):
            return _call(rebuild, inner)
        case "torch._dynamo.eval_frame OptimizedModule", (Opaque() as module, *_):  # wrapper of torch.compile
            return module
        case "torch Size", (tuple(shape),):
            return shape
        case "collections OrderedDict" | "builtins dict" | "__builtin__ dict", (list(pairs),):
            return _dict([key for key, _ in pairs], [value for _, value in pairs])
        case "builtins set" | "__builtin__ set", (list(members),):
            return Opaque(_SET, _set(members))
        case "collections OrderedDict" | "collections defaultdict" | "builtins dict" | "__builtin__ dict", _:
            return {}
    return Opaque(kind)


def _view(storage: Any, offset: Any, shape: Any, stride: Any, dtype: Any = None) -> View | Opaque:
    if not isinstance(storage, Storage):  # an unsupported kind of storage, as pickle.dump writes
        return Opaque("torch Tensor")
    dtype = dtype or storage.dtype
    sides = (*shape, *stride, offset)
    if len(shape) > 8 or len(shape) != len(stride) or not all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in sides):
        raise ValueError("A tensor has an impossible shape.")
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * dtype.itemsize > storage.count * storage.dtype.itemsize:
        raise ValueError("A tensor is larger than its storage.")
    return View(storage, dtype, offset, tuple(shape), tuple(stride))


def _persistent(identity: Any) -> Any:
    match identity:
        case ("storage", Global(name=name), str(key), _, int(count), *views):
            kind = re.fullmatch(r"torch(?:\.cuda|\.storage)? (\w+)Storage", name)
            if kind is None or kind[1] not in _DTYPES or any(view is not None for view in views):
                return Opaque(name)
            return Storage(key, _DTYPES[kind[1]], count)
        case ("module", Global() as kind, *_):  # a pickled module, whose source code is stored, too
            return kind
    raise ValueError("This is no storage.")


def _dict(keys: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
    """Build a dict. Nested tuples are replaced by opaque keys, as hashing a few bytes of them can take years."""

    def hashable(key: Any) -> Any:
        nested = isinstance(key, tuple) and any(isinstance(part, tuple) for part in key)
        return Opaque("builtins tuple") if nested else key

    return dict(zip(map(hashable, keys), values, strict=True))


def _set(members: list[Any]) -> dict[Any, None]:
    return _dict(members, [None] * len(members))


def _set_items(target: Any, items: list[Any]) -> None:
    into = target.items if isinstance(target, Opaque) else target
    if not isinstance(into, dict):
        raise TypeError("Only dicts have items.")
    into.update(_dict(items[::2], items[1::2]))


def _append(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)
    elif not isinstance(target, Opaque):
        raise TypeError("Only lists are appended to.")


def _build(stack: list[Any], _: Any) -> None:
    states = stack.pop()
    if isinstance(target := stack[-1], Opaque):
        for state in states if isinstance(states, tuple) else (states,):  # attributes, and those in slots
            target.state |= state if isinstance(state, dict) else {}


def _reduce(stack: list[Any], _: Any) -> None:
    arguments = stack.pop()
    stack.append(_call(stack.pop(), arguments))


def _new_with_names(stack: list[Any], _: Any) -> None:
    del stack[-1]
    _reduce(stack, _)


def _named_by_stack(stack: list[Any], _: Any) -> None:
    name = stack.pop()
    stack.append(_global(f"{stack.pop()} {name}"))


def _tuple(count: int) -> Any:
    def replace(stack: list[Any], _: Any) -> None:
        stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]

    return replace


_SET = "builtins set"
_NUMBERS = ("INT", "LONG", "LONG1", "LONG4", "BININT", "BININT1", "BININT2", "FLOAT", "BINFLOAT")
_TEXTS = ("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_BYTES = ("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8")
_VALUES: dict[str, Any] = {
    **dict.fromkeys((*_NUMBERS, *_TEXTS, *_BYTES), lambda value: value),
    "NONE": lambda _: None,
    "NEWTRUE": lambda _: True,
    "NEWFALSE": lambda _: False,
    "EMPTY_LIST": lambda _: [],
    "EMPTY_TUPLE": lambda _: (),
    "EMPTY_DICT": lambda _: {},
    "EMPTY_SET": lambda _: Opaque(_SET),
    "GLOBAL": _global,
}
_GETS, _PUTS = ("GET", "BINGET", "LONG_BINGET"), ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_ON_MARK: dict[str, Any] = {
    "LIST": lambda stack, items: stack.append(items),
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "DICT": lambda stack, items: stack.append(_dict(items[::2], items[1::2])),
    "FROZENSET": lambda stack, items: stack.append(Opaque(_SET, _set(items))),
    "APPENDS": lambda stack, items: _append(stack[-1], items),
    "ADDITEMS": lambda stack, items: stack[-1].items.update(_set(items)),
    "SETITEMS": lambda stack, items: _set_items(stack[-1], items),
    "POP_MARK": lambda stack, items: None,
    "OBJ": lambda stack, items: stack.append(_call(items[0], tuple(items[1:]))),
}
_ON_STACK: dict[str, Any] = {
    "APPEND": lambda stack, _: _append(stack[-2], [stack.pop()]),
    "SETITEM": lambda stack, _: _set_items(stack[-3], [stack.pop(-2), stack.pop()]),
    "POP": lambda stack, _: stack.pop(),
    "DUP": lambda stack, _: stack.append(stack[-1]),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "STACK_GLOBAL": _named_by_stack,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "NEWOBJ_EX": _new_with_names,
    "BUILD": _build,
    "BINPERSID": lambda stack, _: stack.append(_persistent(stack.pop())),
}
