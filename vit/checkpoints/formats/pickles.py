"""Read files of `torch.save` as data: tensors by name, and class names and settings beside them.

`vit.checkpoints.formats.pickle_interpreter` interprets the pickles; here tensors become positions in the file.

Source of the formats: torch 2.15, `torch/serialization.py`, `_save` and `_legacy_save`.
"""

import io
import struct
from collections.abc import Iterator, Mapping, Set
from io import BufferedReader
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import torch
from torch import Tensor

from vit.checkpoints.families.timm_preprocess import ARGUMENTS
from vit.checkpoints.formats.file_entries import MAX_NAME, MAX_TENSORS
from vit.checkpoints.formats.pickle_interpreter import Opaque, Storage, View, interpret
from vit.untrusted import is_whole, spend

_MAX_VISITS = 1_000_000  # limit on items to visit; a dict or module counts as 30, of which a ViT-22B has about 1,500
_MAX_TEXT = 4 << 20  # [characters] of class names; 21,000 have half a million
_MAX_NUMBERS = 16  # in a setting; a mean has three
_MAX_DEPTH = 60  # modules are nested about ten levels deep, and each level counts twice


class OtherPickle(ValueError):
    """A pickle that torch.save did not write."""


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
        document: what timm's training script states beside the tensors, see `_timm_config`; {} without.
    """

    tensors: dict[str, StoredTensor]
    classes: tuple[str, ...]
    document: dict[str, Any]


def read_zip(archive: ZipFile, file: BufferedReader, pickle: str) -> Pickled:
    """Read a zip file that torch.save wrote.

    Args:
        archive: with uncompressed entries only.
        pickle: name of the entry that describes the tensors.

    Raises:
        UnsafePickle: it refers to a function that no checkpoint needs.
        Exception: any error that a damaged file causes.
    """
    root = _numbered(interpret(io.BytesIO(archive.read(pickle))))
    folder = pickle.removesuffix("data.pkl")
    if f"{folder}byteorder" in archive.namelist() and archive.read(f"{folder}byteorder") != b"little":
        raise ValueError("The numbers are big-endian.")
    places: dict[str, tuple[int, int]] = {}

    def locate(storage: Storage) -> tuple[int, int]:
        if storage.key not in places:
            entry = archive.getinfo(f"{folder}data/{storage.key}")
            with archive.open(entry):  # checks that directory and entry agree
                pass
            # A local header has 30 bytes, the last 4 of which are the lengths of the name and the extra field after it.
            file.seek(entry.header_offset + 26)
            begin = entry.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
            places[storage.key] = begin, begin + entry.file_size
        return places[storage.key]

    return Pickled(_place(root, locate), _class_names(root), _timm_config(root))


def read_legacy(file: IO[bytes]) -> Pickled:
    """Read a file in the format of torch.save before 1.6: five pickles, then the storages.

    Raises:
        UnsafePickle: it refers to a function that no checkpoint needs.
        OtherPickle: torch.save did not write it.
        Exception: any error that a damaged file causes.
    """
    start = io.BytesIO(file.read(32 << 20))
    if interpret(start) != 0x1950A86A20F9469CFC6C:
        raise OtherPickle
    # Protocol version, platform, content, and keys of the storages in the order of the file.
    _, system, root, keys = (interpret(start) for _ in range(4))
    if system.get("little_endian") is not True or not isinstance(keys, list):
        raise ValueError("The numbers are big-endian, or the keys are missing.")
    at, storages = start.tell(), {storage.key: storage for storage in _storages(root)}
    places = {}
    for key in keys:
        spend()
        storage = storages[key if isinstance(key, str) else ""]  # the hash of nested tuples can take years
        file.seek(at)
        (count,) = struct.unpack("<q", file.read(8))
        if count != storage.count:
            raise ValueError("A storage has another size than it says.")
        places[key] = at + 8, at + 8 + count * storage.dtype.itemsize
        at = places[key][1]
    root = _numbered(root)
    return Pickled(_place(root, lambda storage: places[storage.key]), _class_names(root), _timm_config(root))


# --- Tensors by name ----------------------------------------------------------------------------------------------


def _place(root: Any, locate: Any) -> dict[str, StoredTensor]:
    """Return the tensors of an object by name, with their positions."""
    bases: dict[str, Tensor] = {}
    stored: dict[str, StoredTensor] = {}
    for name, view in _walk(root, "", [_MAX_VISITS], frozenset()):
        spend()
        if len(stored) == MAX_TENSORS:
            raise ValueError("There are too many tensors.")
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
    content = _content(root)
    for values in (content, *(_content(content.get(key)) for key in _SETTINGS)):
        for key in (*_NAMED_CLASSES, *_NUMBERED_CLASSES):
            names = values.get(key)
            if isinstance(names, Mapping | Opaque):
                pairs = list(_content(names).items())
                if key in _NUMBERED_CLASSES:
                    pairs = [(index, name) for name, index in pairs]
                # Other objects may be nested such that their text fills the memory, and so may the digits of a number.
                plain = (pair for pair in pairs if isinstance(pair[0], str) or is_whole(pair[0]))
                by_index = {str(index): name for index, name in plain}
                names = [by_index.get(str(index)) for index in range(len(by_index))]
            if isinstance(names, list | tuple) and names and all(isinstance(name, str) for name in names):
                few = sum(map(len, names)) <= _MAX_TEXT
                return tuple(name.encode(errors="replace").decode() for name in names) if few else ()
    return ()


# Arguments of timm's training script that state the preprocessing.
_OF_PREPROCESSING = ("mean", "std", "interpolation", "crop_pct", "crop_mode", "input_size")


def _timm_config(root: Any) -> dict[str, Any]:
    """Return what timm's training script states beside the tensors, in the form of its config.json; {} without.

    Source: timm 1.0.31, `timm/utils/checkpoint_saver.py`, and `train.py` of its repository.
    """
    beside = _content(root)
    if not isinstance(architecture := beside.get("arch"), str):
        return {}
    args = _content(beside.get("args"))
    model, preprocessing = _plain(_content(args.get("model_kwargs"))), _plain(args)
    if preprocessing.get("gp"):
        model["global_pool"] = preprocessing["gp"]
    if type(side := preprocessing.get("img_size")) is int and not preprocessing.get("input_size"):
        preprocessing["input_size"] = [3, side, side]
    return {
        "architecture": architecture.rpartition("/")[2],
        "model_args": model,
        ARGUMENTS: {name: preprocessing[name] for name in _OF_PREPROCESSING if name in preprocessing},
    }


def _plain(values: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the items that are short text, numbers, or short lists of numbers."""

    def number(value: Any) -> bool:
        return isinstance(value, int | float) and -1e9 < value < 1e9

    def numbers(value: Any) -> bool:
        return isinstance(value, list | tuple) and len(value) <= _MAX_NUMBERS and all(map(number, value))

    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in values.items()
        if isinstance(name, str)
        and ((isinstance(value, str) and len(value) <= MAX_NAME) or number(value) or numbers(value))
    }


def _content(node: Any) -> Mapping[Any, Any]:
    """Return the items of a dict, or of an object and its attributes."""
    if isinstance(node, Opaque):
        return node.state | node.items
    return node if isinstance(node, Mapping) else {}


def _numbered(root: Any) -> Any:
    """Give names to a list of models or a dict with integer keys; tensors in a list get none."""
    if isinstance(root, list | tuple):
        root = {i: one for i, one in enumerate(root) if isinstance(one, dict | Opaque)}
    if not isinstance(root, dict):
        return root
    return {str(key) if type(key) is int and not isinstance(one, View) else key: one for key, one in root.items()}


def _storages(root: Any) -> Iterator[Storage]:
    """Yield every storage in an object, including those of optimizers."""
    todo, seen = [root], set[int]()
    while todo:
        node = todo.pop()
        if len(todo) % 1024 == 0:
            spend()
        if id(node) in seen:
            continue
        seen.add(id(node))
        match node:
            case View(storage=storage):
                yield storage
            case Storage():
                yield node
            case dict():
                todo += node.values()
            case list() | tuple():
                todo += node
            case Opaque(items=items, state=state):
                todo += [items, state]


def _walk(node: Any, path: str, left: list[int], above: Set[int]) -> Iterator[tuple[str, View]]:
    """Yield the tensors in nested dicts and objects by name; the keys of nested dicts are joined by slashes.

    Args:
        left: remaining number of items to visit, in a list of one.
        above: ids of the ancestors, to detect cycles.
    """
    spend()
    content = _content(node)
    left[0] -= 30 + len(content)
    if left[0] < 0 or len(path) > MAX_NAME:
        raise ValueError("It holds too many objects, or they are nested too deeply.")
    if id(node) in above or len(above) > _MAX_DEPTH:
        return
    above = above | {id(node)}
    if isinstance(node, Opaque) and "_modules" in node.state:
        yield from _walk_module(node, path, left, above)
        return
    for key, value in content.items():
        if isinstance(key, str) and isinstance(value, View):
            yield path + key, value
        elif isinstance(key, str) and isinstance(value, dict | Opaque):
            yield from _walk(value, f"{path}{key}/", left, above)


def _walk_module(module: Opaque, path: str, left: list[int], above: Set[int]) -> Iterator[tuple[str, View]]:
    """Yield the tensors of a pickled `nn.Module` under their names in `state_dict()`."""
    unsaved = module.state.get("_non_persistent_buffers_set")
    left_out = unsaved if isinstance(unsaved, dict) else {}
    for kind in ("_parameters", "_buffers", "_modules"):
        held = module.state.get(kind)
        left[0] -= len(held) if isinstance(held, dict) else 0
        for key, value in held.items() if isinstance(held, dict) else ():
            if isinstance(key, str) and isinstance(value, View) and kind != "_modules" and key not in left_out:
                yield path + key, value
            elif isinstance(key, str) and kind == "_modules" and isinstance(value, Opaque):
                yield from _walk(value, f"{path}{key}.", left, above)
