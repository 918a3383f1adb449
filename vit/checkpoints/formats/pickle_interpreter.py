"""Interpret pickles as data. A pickle is a program; nothing in it is executed and nothing is imported.

Dicts, lists, numbers and text are rebuilt, tensors become `View`s of numbered storages, and an object of any other
class becomes an `Opaque` with its items and attributes.

Source of the format: Python's `pickletools`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pickletools import opcodes
from typing import IO, Any, NamedTuple

import torch

from vit.checkpoints.formats.file_entries import MAX_NAME
from vit.untrusted import spend

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
# A table, as `getattr(torch, name)` imports parts of torch that are loaded on first use.
_DTYPES_BY_NAME = {f"torch {name}": dtype for name, dtype in vars(torch).items() if isinstance(dtype, torch.dtype)}


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


@dataclass(eq=False, slots=True)
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


class _Budget:
    """Limits the items that are copied: few bytes can copy a large object again; honest pickles copy each item once."""

    def __init__(self) -> None:
        self.left = MAX_OPERATIONS

    def take(self, count: int) -> None:
        """Call this before `count` items are copied."""
        spend()
        self.left -= count
        if self.left < 0:
            raise ValueError("The pickle copies its objects too often.")


def interpret(pickle: IO[bytes]) -> Any:
    """Interpret a pickle, with `View` for tensors and `Opaque` for other objects; reading stops behind it."""
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[Any, Any] = {}
    budget = _Budget()
    for count in range(MAX_OPERATIONS):
        if count % 1024 == 0:
            spend()
        name, read_argument = _OPERATIONS[pickle.read(1)]
        argument = read_argument(pickle) if read_argument else None
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
            _ON_STACK[name](stack, budget)
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"{name} is no part of a checkpoint.")
    raise ValueError("The pickle is too long.")


def _global(name: str) -> Global:
    if len(name) > MAX_NAME:
        raise ValueError("A class has too long a name.")
    if _ATTACKS.fullmatch(name):
        raise UnsafePickle(name.replace(" ", ".").replace("__builtin__", "builtins"))  # Python 2 used the old name
    return Global(name)


def _call(function: Any, arguments: Any, budget: _Budget) -> Any:
    """Emulate the few functions that make tensors and dicts; return an opaque object for any other."""
    kind = function.name if isinstance(function, Global) else ""
    match kind, arguments:
        case "torch._utils _rebuild_tensor_v2" | "torch._utils _rebuild_tensor", (storage, offset, shape, stride, *_):
            return _view(storage, offset, shape, stride)
        case "torch._utils _rebuild_tensor_v3", (storage, offset, shape, stride, _, _, Global(name=dtype), *_):
            return _view(storage, offset, shape, stride, _DTYPES_BY_NAME[dtype])
        case "torch._utils _rebuild_parameter" | "torch._utils _rebuild_parameter_with_state", (tensor, *_):
            return tensor
        case "torch.nn.parameter Parameter", (tensor, *_):
            return tensor
        case "torch._tensor _rebuild_from_type_v2", (rebuild, _, tuple(inner), *_):
            budget.take(1)
            return _call(rebuild, inner, budget)
        case "torch._dynamo.eval_frame OptimizedModule", (Opaque() as module, *_):  # wrapper of torch.compile
            return module
        case "torch Size", (tuple(shape),):
            return shape
        case "collections OrderedDict" | "builtins dict" | "__builtin__ dict", (list(pairs),):
            budget.take(len(pairs))
            return _dict([key for key, _ in pairs], [value for _, value in pairs])
        case "builtins set" | "__builtin__ set", (list(members),):
            budget.take(len(members))
            return _set(members)
        case "collections OrderedDict" | "collections defaultdict" | "builtins dict" | "__builtin__ dict", _:
            return {}
    return Opaque(kind)


def _view(storage: Any, offset: Any, shape: Any, stride: Any, dtype: Any = None) -> View | Opaque:
    if not isinstance(storage, Storage):  # an unsupported kind of storage, as pickle.dump writes
        return Opaque("torch Tensor")
    dtype = dtype or storage.dtype
    if len(shape) > 8 or len(shape) != len(stride):
        raise ValueError("A tensor has too many dimensions.")
    if not all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in (*shape, *stride, offset)):
        raise ValueError("A tensor has an impossible shape.")
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * dtype.itemsize > storage.count * storage.dtype.itemsize:
        raise ValueError("A tensor is larger than its storage.")
    return View(storage, dtype, offset, tuple(shape), tuple(stride))


def _persistent(identity: Any) -> Any:
    match identity:
        case ("storage", Global(name=name), str(key), _, int(count), *_) if len(key) <= MAX_NAME:
            kind = re.fullmatch(r"torch(?:\.cuda|\.storage)? (\w+)Storage", name)
            if kind is None or kind[1] not in _DTYPES or identity[5:6] not in ((), (None,)):  # the last: views
                return Opaque(name)
            if not 0 <= count < _MAX_ELEMENTS:
                raise ValueError("A storage has an impossible size.")
            return Storage(key, _DTYPES[kind[1]], count)
        case ("module", Global() as kind, *_):  # a pickled module, whose source code is stored, too
            return kind
    raise ValueError("This is no storage.")


def _key(value: Any) -> Any:
    """Return a value as a dict key; a placeholder for all but short texts and small integers.

    Hashing a few bytes of nested tuples can take years, a file can choose tuples and large integers with equal hashes,
    and long equal texts are compared again and again.
    """
    short = isinstance(value, str) and len(value) <= MAX_NAME
    return value if short or (type(value) is int and -(1 << 60) < value < 1 << 60) else object()


def _dict(keys: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
    return dict(zip(map(_key, keys), values, strict=True))


def _set(members: list[Any]) -> dict[Any, None]:
    """Return a set as a dict without values; a million empty ones are smaller than an `Opaque` each."""
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


def _build(stack: list[Any], budget: _Budget) -> None:
    states = stack.pop()
    pair = isinstance(states, tuple) and len(states) == 2  # attributes, and those in slots
    for state in states if pair else (states,):
        if isinstance(target := stack[-1], Opaque) and isinstance(state, dict):
            budget.take(len(state))
            target.state.update(state)


def _reduce(stack: list[Any], budget: _Budget) -> None:
    arguments = stack.pop()
    stack.append(_call(stack.pop(), arguments, budget))


def _new_with_names(stack: list[Any], budget: _Budget) -> None:
    del stack[-1]
    _reduce(stack, budget)


def _named_by_stack(stack: list[Any], _: Any) -> None:
    name, module = stack.pop(), stack.pop()
    if not all(isinstance(part, str) and len(part) <= MAX_NAME for part in (name, module)):
        raise ValueError("A class has no name.")
    stack.append(_global(f"{module} {name}"))


def _tuple(count: int) -> Any:
    def replace(stack: list[Any], _: Any) -> None:
        stack[len(stack) - count :] = [tuple(stack[len(stack) - count :])]

    return replace


# Byte of an operation -> its name, and the function that reads its argument if it has one.
_OPERATIONS = {code.code.encode("latin-1"): (code.name, code.arg and code.arg.reader) for code in opcodes}
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
    "EMPTY_SET": lambda _: {},
    "GLOBAL": _global,
}
_GETS, _PUTS = ("GET", "BINGET", "LONG_BINGET"), ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE")
_ON_MARK: dict[str, Any] = {
    "LIST": lambda stack, items: stack.append(items),
    "TUPLE": lambda stack, items: stack.append(tuple(items)),
    "DICT": lambda stack, items: stack.append(_dict(items[::2], items[1::2])),
    "FROZENSET": lambda stack, items: stack.append(_set(items)),
    "APPENDS": lambda stack, items: _append(stack[-1], items),
    "ADDITEMS": lambda stack, items: stack[-1].update(_set(items)),
    "SETITEMS": lambda stack, items: _set_items(stack[-1], items),
    "POP_MARK": lambda stack, items: None,
    "OBJ": lambda stack, items: stack.append(Opaque(items[0].name)),
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
