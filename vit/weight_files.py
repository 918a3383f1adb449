"""Untrusted weight files to tensors: looked into before anything is allocated, never executed."""

import hashlib
import json
import math
import os
import re
import struct
import zipfile
from argparse import Namespace
from io import BufferedReader
from pathlib import Path
from pickletools import genops
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.families.family import Tensors, shown

MAX_TEXT = 32 << 20  # [bytes]; a header with 21,000 class names has 1 MB
MAX_TENSORS = 20_000
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
# dtype of a safetensors header -> ours; whole numbers and 8-bit floats are no weights that can be explained.
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SIDE_DTYPES = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def look(file: BufferedReader, name: str) -> tuple[Tensors, dict[str, str]]:
    """The tensors of a file on the meta device, and its metadata: what it promises, at no cost in memory.

    Raises:
        InvalidCheckpoint: not a file of weights, or one that promises more than it holds.
    """
    size = os.fstat(file.fileno()).st_size
    start = rewound(file).read(64)
    if start.startswith(b"version https://git-lfs"):
        raise InvalidCheckpoint(f"{shown(name)} is a placeholder of Git LFS. Fetch the file itself with: git lfs pull.")
    if start.startswith(_PICKLES):
        return _look_pickle(file, name, size), {}
    if len(start) > 8 and start[8:9] == b"{":
        return _look_safetensors(file, name, size)
    raise InvalidCheckpoint(f"{shown(name)} is neither a safetensors file nor one that torch.save wrote.")


class _Entry(NamedTuple):
    """Where a tensor lies in its file [bytes from the start], and what it is."""

    begin: int
    end: int
    shape: list[int]
    dtype: torch.dtype


def _look_safetensors(file: BufferedReader, name: str, size: int) -> tuple[Tensors, dict[str, str]]:
    entries, metadata = _read_header(file, name, size)
    return {key: torch.empty(entry.shape, dtype=entry.dtype, device="meta") for key, entry in entries.items()}, metadata


def _read_header(file: BufferedReader, name: str, size: int) -> tuple[dict[str, _Entry], dict[str, str]]:
    """Entries and metadata of a safetensors file. Source of the format: safetensors' README, section Format."""
    damaged = InvalidCheckpoint(f"{shown(name)} is not a valid safetensors file. Download or save it again.")
    (length,) = struct.unpack("<Q", rewound(file).read(8))
    if not 2 <= length <= min(size - 8, MAX_TEXT):
        raise damaged
    try:
        header = read_json(file.read(length), name)
    except InvalidCheckpoint as error:
        raise damaged from error
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise damaged
    if not 1 <= len(header) <= MAX_TENSORS:
        raise damaged
    entries: dict[str, _Entry] = {}
    for key, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise damaged
        kind = (_DTYPES | _SIDE_DTYPES).get(dtype)
        if kind is None:
            raise InvalidCheckpoint(
                f"The weights are stored as {shown(dtype)}; this app reads 16, 32 and 64-bit floats."
            )
        if len(shape) > 8 or not all(type(side) is int and 0 < side < 1 << 40 for side in shape):
            raise damaged
        if begin < 0 or end - begin != math.prod(shape) * kind.itemsize:
            raise damaged
        entries[key] = _Entry(8 + length + begin, 8 + length + end, shape, kind)
    spans = sorted((entry.begin, entry.end) for entry in entries.values())
    starts, ends = [begin for begin, _ in spans], [end for _, end in spans]
    if starts != [8 + length, *ends[:-1]] or ends[-1] != size:
        raise damaged
    return entries, metadata


class Weights(NamedTuple):
    """What was read of a file.

    Attributes:
        tensors: those wanted, by the file's names.
        hash: SHA-256 of the whole file, 64 hexadecimal digits.
    """

    tensors: Tensors
    hash: str


def read_tensors(file: BufferedReader, name: str, promised: Tensors, wanted: set[str], half: bool) -> Weights:
    """Read tensors, each into memory of its own and nothing twice, and hash the file on the way.

    The file is read and not mapped: a mapped file that changes later would change the model with it, one that is cut
    short would end the whole process, and the hash would be that of other bytes than those in use.

    Args:
        promised: what `look` found.
        wanted: names of the tensors to read; of the others nothing is kept.
        half: keep 16-bit numbers as they are. All other numbers, and else these too, become float32.
    """

    def stays(tensor: Tensor) -> bool:
        return tensor.dtype is torch.float32 or not tensor.is_floating_point() or (half and tensor.itemsize == 2)

    size = os.fstat(file.fileno()).st_size
    try:
        places = _places(file, name, size, {key: promised[key] for key in wanted})
        if places is None:
            whole = _state_dict(_unpickled(file, "cpu"), name)
            tensors = {key: part if stays(part := whole.pop(key)) else part.float() for key in wanted}
            return Weights(tensors, hashlib.file_digest(rewound(file), "sha256").hexdigest())
        together: dict[tuple[int, int], list[str]] = {}
        for key, place in places.items():
            together.setdefault(place, []).append(key)
        tensors, stream = {}, _Stream(file)
        for (begin, end), keys in sorted(together.items()):
            if not stream.at <= begin < end <= size:
                raise ValueError("Two tensors overlap.")
            stream.skip(begin)
            raw = stream.read(end, scratch=not any(stays(promised[key]) for key in keys))
            for key in keys:
                meta = promised[key]
                part = raw.view(meta.dtype).as_strided(meta.shape, meta.stride(), meta.storage_offset())
                tensors[key] = part if stays(part) else part.float()
        stream.skip(size)
        return Weights(tensors, stream.digest.hexdigest())
    except InvalidCheckpoint:
        raise
    except Exception as error:  # foreign parsers, hostile bytes: whatever they raise means the same
        raise InvalidCheckpoint(f"{shown(name)} is damaged. Download or save it again.") from error


def _places(file: BufferedReader, name: str, size: int, tensors: Tensors) -> dict[str, tuple[int, int]] | None:
    """From where to where the numbers of each tensor lie in the file [bytes]; None if that cannot be known."""
    if not rewound(file).read(9).startswith(_PICKLES):
        entries, _ = _read_header(file, name, size)
        return {key: (entries[key].begin, entries[key].end) for key in tensors}
    places = {}
    for key, tensor in tensors.items():
        storage = tensor.untyped_storage()  # torch notes the place when it loads a zip, which packs nothing, to "meta"
        begin = getattr(storage, "_checkpoint_offset", None)
        if begin is None:
            return None
        places[key] = (begin, begin + storage.nbytes())
    return places


class _Stream:
    """A file on its way through a hash, once from the beginning to the end."""

    def __init__(self, file: BufferedReader):
        self.file = rewound(file)
        self.at = 0
        self.digest = hashlib.sha256()
        self.scratch = torch.empty(1 << 20, dtype=torch.uint8)

    def read(self, end: int, scratch: bool) -> Tensor:
        """The bytes up to `end`; in `scratch` they last until the next call and take no memory of their own."""
        count = end - self.at
        if scratch and len(self.scratch) < count:
            self.scratch = torch.empty(count, dtype=torch.uint8)
        raw = self.scratch[:count] if scratch else torch.empty(count, dtype=torch.uint8)
        if self.file.readinto(raw.numpy().data) != count:
            raise ValueError("The file ends early.")
        self.digest.update(raw.numpy().data)
        self.at = end
        return raw

    def skip(self, end: int) -> None:
        """Go to `end`."""
        while self.at < end:
            self.read(min(end, self.at + (1 << 20)), scratch=True)


def rewound(file: BufferedReader) -> BufferedReader:
    """The file, to be read from its beginning."""
    file.seek(0)
    return file


# A zip, or a bare pickle of protocol 2 to 5.
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
_CONTAINERS = ("state_dict", "model", "model_state_dict", "model_ema", "teacher", "net")
_SAFE_GLOBALS = re.compile(
    r"collections (OrderedDict|Counter)|argparse Namespace|torch (Size|device|[A-Za-z0-9]+Storage|b?float\d+|int\d+)"
    r"|torch\._utils _rebuild_(tensor_v2|parameter)|torch\.nn\.parameter Parameter|torch\.storage UntypedStorage"
    r"|_codecs encode|(builtins|__builtin__) set"
)


def _look_pickle(file: BufferedReader, name: str, size: int) -> Tensors:
    if rewound(file).read(2) == b"PK":
        _check_zip(file, name, size)
    else:
        _check_globals(rewound(file), name, pickles=5)  # magic number, version, system, content, storages
    try:
        content = _unpickled(file, "meta")
    except Exception as error:  # as in `_tensors`
        raise InvalidCheckpoint(
            f"{shown(name)} is damaged or holds more than tensors. Save only `model.state_dict()`, best as safetensors."
        ) from error
    tensors = _state_dict(content, name)
    plain = all(t.layout is torch.strided and not t.is_quantized and not t.is_nested for t in tensors.values())
    if not plain or sum(t.numel() * t.itemsize for t in tensors.values()) > size:
        raise InvalidCheckpoint(f"{shown(name)} promises more numbers than it holds.")
    return tensors


def _unpickled(file: BufferedReader, device: str) -> object:
    with torch.serialization.safe_globals([Namespace]):  # harmless, and in every file of DeiT, DINO and MAE
        return torch.load(rewound(file), map_location=device, weights_only=True)


def _state_dict(content: object, name: str) -> Tensors:
    """The tensors by name, from inside the usual containers."""
    for _ in range(3):
        if not isinstance(content, dict):
            break
        inner = next((content[key] for key in _CONTAINERS if isinstance(content.get(key), dict)), None)
        if inner is None:
            break
        content = inner
    tensors = content if isinstance(content, dict) else {}
    tensors = {
        key: value.detach() for key, value in tensors.items() if isinstance(key, str) and isinstance(value, Tensor)
    }
    if not 1 <= len(tensors) <= MAX_TENSORS:
        raise InvalidCheckpoint(f"{shown(name)} holds no tensors by name. Save `model.state_dict()`.")
    return tensors


def _check_zip(file: BufferedReader, name: str, size: int) -> None:
    """Refuse a zip that is not what torch.save writes: stored entries, as large in all as the file, one pickle."""
    damaged = InvalidCheckpoint(f"{shown(name)} is damaged or not a file that torch.save wrote.")
    file.seek(max(0, size - (1 << 16) - 22))
    tail = file.read()
    if sum(1 for _ in re.finditer(rb"PK\x05\x06", tail)) != 1:  # one directory, or readers may disagree which
        raise damaged
    directory = struct.unpack_from("<I", tail.ljust(22, b"\0") + b"\0" * 22, tail.index(b"PK\x05\x06") + 12)[0]
    if directory > MAX_TENSORS * 200:
        raise damaged
    try:
        with zipfile.ZipFile(rewound(file)) as archive:
            entries = archive.infolist()
            stored = all(entry.compress_type == zipfile.ZIP_STORED for entry in entries)
            if any(entry.filename.endswith("/constants.pkl") for entry in entries):
                raise InvalidCheckpoint(f"{shown(name)} is a TorchScript program. Save its `state_dict()` instead.")
            pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
            if not stored or len(pickles) != 1 or sum(entry.file_size for entry in entries) > size:
                raise damaged
            if pickles[0].file_size > MAX_TEXT:
                raise damaged
            with archive.open(pickles[0]) as pickle:
                _check_globals(pickle, name, pickles=1)
    except InvalidCheckpoint:
        raise
    except Exception as error:
        raise damaged from error


def _check_globals(pickle: IO[bytes], name: str, pickles: int) -> None:
    """Name the code that a pickle asks for, without running any of it; torch.load refuses once more."""
    suffix = Path(name).suffix if Path(name).suffix in SUFFIXES else "PyTorch"
    count = 0
    try:
        for _ in range(pickles):
            for operation, argument, _position in genops(pickle):
                count += 1
                if operation.name == "GLOBAL" and not _SAFE_GLOBALS.fullmatch(str(argument)):
                    found = shown(str(argument).replace(" ", "."))
                    raise InvalidCheckpoint(
                        f"This {suffix} file holds code (`{found}`). Only plain tensors are opened."
                    )
                if operation.name in ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4") or count > 1_000_000:
                    raise InvalidCheckpoint(f"This {suffix} file holds code. Only plain tensors are opened.")
    except InvalidCheckpoint:
        raise
    except Exception as error:
        raise InvalidCheckpoint(f"{shown(name)} is damaged. Download or save it again.") from error


def read_json(text: bytes | str, name: str, kind: type = dict) -> Any:
    """Parse a file's JSON, each name once.

    Raises:
        InvalidCheckpoint: it is not JSON, or not of this kind.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair could never be shown
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{name} is not valid JSON.") from error
    if not isinstance(value, kind):
        raise InvalidCheckpoint(f"{name} is not a JSON {'object' if kind is dict else 'list'}.")
    return value


def dump_json(value: object, indent: int | None = None) -> str:
    """The same text for the same value, on every machine."""
    return json.dumps(value, indent=indent, sort_keys=indent is not None, ensure_ascii=False, allow_nan=False) + (
        "\n" if indent else ""
    )
