"""Read files of `torch.save` as data. A pickle is a program; nothing in it is executed.

Pickles are interpreted, not loaded: dicts, lists, numbers and text are rebuilt, tensors become positions in the file,
and an object of any other class becomes an `Opaque` with its items and attributes. Nothing is imported.

Source of the formats: Python's `pickletools`; torch 2.15, `torch/serialization.py`, `_save` and `_legacy_save`.
"""

import io
import re
import struct
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from io import BufferedReader
from pickletools import genops
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import torch
from torch import Tensor

MAX_OPERATIONS = 1_000_000
_MAX_VISITS = 30_000  # limit on dicts and modules to search; a ViT-22B has about 1,500, and 1 million take 12 s
_MAX_DEPTH = 60  # modules are nested about ten levels deep, and each level counts twice
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


class StoredTensor(NamedTuple):
    """A tensor of a file on the meta device, and the range of its storage in the file [bytes from the start]."""

    tensor: Tensor
    begin: int
    end: int


class Pickled(NamedTuple):
    """Content of a file of torch.save.

    Attributes:
        tensors: by name.
        classes: class names that stand beside the tensors, in the order of the outputs; () if there are none.
    """

    tensors: dict[str, StoredTensor]
    classes: tuple[str, ...]


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
class _Storage:
    """A storage that tensors are views of, identified by its key; its position in the file is determined later."""

    key: str
    dtype: torch.dtype
    count: int


@dataclass(frozen=True, eq=False)
class _View:
    """A tensor as described by the pickle."""

    storage: _Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


def read_zip(archive: ZipFile, file: BufferedReader, pickle: str) -> Pickled:
    """Read a zip file that torch.save wrote.

    Args:
        archive: with uncompressed entries only.
        pickle: name of the entry that describes the tensors.

    Raises:
        UnsafePickle: it refers to a function that no checkpoint needs.
        Exception: any error that a damaged file causes.
    """
    with archive.open(pickle) as content:
        root = _numbered(_interpret(content))
    folder = pickle.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
        raise ValueError("The numbers are big-endian.")
    places: dict[str, tuple[int, int]] = {}

    def locate(storage: _Storage) -> tuple[int, int]:
        if storage.key not in places:
            entry = archive.getinfo(f"{folder}data/{storage.key}")
            with archive.open(entry):  # checks that directory and entry agree
                pass
            # A local header has 30 bytes, the last 4 of which are the lengths of the name and the extra field after it.
            file.seek(entry.header_offset + 26)
            begin = entry.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
            places[storage.key] = begin, begin + entry.file_size
        return places[storage.key]

    return Pickled(_place(root, locate), _class_names(root))


def read_legacy(file: IO[bytes]) -> Pickled:
    """Read a file in the format of torch.save before 1.6: five pickles, then the storages.

    Raises:
        UnsafePickle: it refers to a function that no checkpoint needs.
        Exception: any error that a damaged file causes.
    """
    start = io.BytesIO(file.read(32 << 20))
    # Magic number, protocol version, platform, content, and keys of the storages in the order of the file.
    magic, _, system, root, keys = (_interpret(start) for _ in range(5))
    if magic != 0x1950A86A20F9469CFC6C or system.get("little_endian") is not True or not isinstance(keys, list):
        raise ValueError("It is not a file of torch.save.")
    at, storages = start.tell(), {storage.key: storage for storage in _storages(root)}
    places = {}
    for key in keys:
        storage = storages[key]
        file.seek(at)
        (count,) = struct.unpack("<q", file.read(8))
        if count != storage.count:
            raise ValueError("A storage has another size than it says.")
        places[key] = at + 8, at + 8 + count * storage.dtype.itemsize
        at = places[key][1]
    root = _numbered(root)
    return Pickled(_place(root, lambda storage: places[storage.key]), _class_names(root))


# --- Interpreting -------------------------------------------------------------------------------------------------


def _interpret(pickle: IO[bytes]) -> Any:
    """Interpret a pickle, with `_View` for tensors and `Opaque` for other objects."""
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
            return _view(storage, storage.dtype, offset, shape, stride)
        case "torch._utils _rebuild_tensor_v3", (storage, offset, shape, stride, _, _, Global(name=dtype), *_):
            return _view(storage, getattr(torch, dtype.removeprefix("torch ")), offset, shape, stride)
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
            return {_key(key): value for key, value in pairs}
        case "builtins set" | "__builtin__ set", (list(members),):
            return Opaque(_SET, dict.fromkeys(map(_key, members)))
        case "collections OrderedDict" | "collections defaultdict" | "builtins dict" | "__builtin__ dict", _:
            return {}
    return Opaque(kind)


def _view(storage: Any, dtype: Any, offset: Any, shape: Any, stride: Any) -> _View | Opaque:
    if not isinstance(storage, _Storage):  # an unsupported kind of storage
        return Opaque("torch Tensor")
    sides = (*shape, *stride, offset)
    if len(shape) > 8 or len(shape) != len(stride) or not all(type(n) is int and 0 <= n < _MAX_ELEMENTS for n in sides):
        raise ValueError("A tensor has an impossible shape.")
    last = offset + sum((side - 1) * step for side, step in zip(shape, stride, strict=True))
    if 0 not in shape and (last + 1) * dtype.itemsize > storage.count * storage.dtype.itemsize:
        raise ValueError("A tensor is larger than its storage.")
    return _View(storage, dtype, offset, tuple(shape), tuple(stride))


def _persistent(identity: Any) -> Any:
    match identity:
        case ("storage", Global(name=name), str(key), _, int(count), *views):
            kind = re.fullmatch(r"torch(?:\.cuda|\.storage)? (\w+)Storage", name)
            if kind is None or kind[1] not in _DTYPES or any(view is not None for view in views):
                return Opaque(name)
            return _Storage(key, _DTYPES[kind[1]], count)
        case ("module", Global() as kind, *_):  # a pickled module, whose source code is stored, too
            return kind
    raise ValueError("This is no storage.")


def _key(key: Any) -> Any:
    """Return a dict's key; an opaque one for nested tuples, as hashing a few bytes of them can take years."""
    nested = isinstance(key, tuple) and any(isinstance(part, tuple) for part in key)
    return Opaque("builtins tuple") if nested else key


def _set_items(target: Any, items: list[Any]) -> None:
    into = target.items if isinstance(target, Opaque) else target
    if not isinstance(into, dict):
        raise TypeError("Only dicts have items.")
    into.update(zip(map(_key, items[::2]), items[1::2], strict=True))


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
    "DICT": lambda stack, items: stack.append(dict(zip(items[::2], items[1::2], strict=True))),
    "FROZENSET": lambda stack, items: stack.append(Opaque(_SET, dict.fromkeys(map(_key, items)))),
    "APPENDS": lambda stack, items: _append(stack[-1], items),
    "ADDITEMS": lambda stack, items: stack[-1].items.update(dict.fromkeys(items)),
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


# --- Tensors by name ----------------------------------------------------------------------------------------------


def _place(root: Any, locate: Any) -> dict[str, StoredTensor]:
    """Return the tensors of an object by name, with their positions."""
    bases: dict[str, Tensor] = {}
    stored = {}
    for name, view in _walk(root, "", [_MAX_VISITS], frozenset()):
        begin, end = locate(view.storage)
        size = view.storage.count * view.storage.dtype.itemsize
        if end - begin != size:
            raise ValueError("A storage has another size than it says.")
        if view.storage.key not in bases:
            bases[view.storage.key] = torch.empty(size, dtype=torch.uint8, device="meta")
        base = bases[view.storage.key]
        count = size // view.dtype.itemsize
        whole = base[: count * view.dtype.itemsize].view(view.dtype)
        stored[name] = StoredTensor(whole.as_strided(view.shape, view.stride, view.offset), begin, end)
    return stored


# Where training scripts store class names: at the top, or among the settings that these keys hold.
_NAMED_CLASSES = ("classes", "class_names", "label_names", "labels", "idx_to_class", "id2label")
_NUMBERED_CLASSES = ("class_to_idx", "label2id")  # name -> index
_SETTINGS = ("hyper_parameters", "hparams", "args", "config", "cfg", "meta", "metadata", "datamodule_hyper_parameters")


def _class_names(root: Any) -> tuple[str, ...]:
    """Find class names beside the tensors; () if there are none."""
    for section in (root, *(_content(root).get(key) for key in _SETTINGS)):
        values = _content(section)
        for key in (*_NAMED_CLASSES, *_NUMBERED_CLASSES):
            names = values.get(key)
            if isinstance(names, Mapping | Opaque):
                pairs = list(_content(names).items())
                if key in _NUMBERED_CLASSES:
                    pairs = [(index, name) for name, index in pairs]
                # Other objects may be nested such that their text fills the memory.
                by_index = {str(index): name for index, name in pairs if isinstance(index, int | str)}
                names = [by_index.get(str(index)) for index in range(len(by_index))]
            if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
                return tuple(names)
    return ()


def _content(node: Any) -> Mapping[Any, Any]:
    """Return the items of a dict, or of an object and its attributes."""
    if isinstance(node, Opaque):
        return node.state | node.items
    return node if isinstance(node, Mapping) else {}


def _numbered(root: Any) -> Any:
    """Give names to a list of models or a dict with integer keys; tensors in a list get none."""
    if isinstance(root, list | tuple):
        root = dict(enumerate(root))
    if not isinstance(root, dict):
        return root
    return {str(key) if type(key) is int and not isinstance(one, _View) else key: one for key, one in root.items()}


def _storages(root: Any) -> Iterator[_Storage]:
    """Yield every storage in an object, including those of optimizers."""
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case _View(storage=storage):
                yield storage
            case _Storage():
                yield node
            case dict():
                todo += node.values()
            case list() | tuple():
                todo += node
            case Opaque(items=items, state=state):
                todo += [items, state]


def _walk(node: Any, path: str, left: list[int], above: Set[int]) -> Iterator[tuple[str, _View]]:
    """Yield the tensors in nested dicts and objects by name; the keys of nested dicts are joined by slashes.

    Args:
        left: remaining number of nodes to visit, in a list of one.
        above: ids of the ancestors, to detect cycles.
    """
    left[0] -= 1
    if left[0] < 0:
        raise ValueError("It holds too many objects.")
    if id(node) in above or len(above) > _MAX_DEPTH:
        return
    above = above | {id(node)}
    if isinstance(node, Opaque):
        if "_modules" in node.state:
            yield from _walk_module(node, path, left, above)
            return
        node = node.state | node.items
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(key, str) and isinstance(value, _View):
            yield path + key, value
        elif isinstance(key, str) and isinstance(value, dict | Opaque):
            yield from _walk(value, f"{path}{key}/", left, above)


def _walk_module(module: Opaque, path: str, left: list[int], above: Set[int]) -> Iterator[tuple[str, _View]]:
    """Yield the tensors of a pickled `nn.Module` under their names in `state_dict()`."""
    unsaved = module.state.get("_non_persistent_buffers_set")
    left_out = unsaved.items if isinstance(unsaved, Opaque) else {}
    for kind in ("_parameters", "_buffers", "_modules"):
        held = module.state.get(kind)
        for key, value in held.items() if isinstance(held, dict) else ():
            if isinstance(key, str) and isinstance(value, _View) and kind != "_modules" and key not in left_out:
                yield path + key, value
            elif isinstance(key, str) and kind == "_modules" and isinstance(value, Opaque):
                yield from _walk(value, f"{path}{key}.", left, above)
