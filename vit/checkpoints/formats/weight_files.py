"""Read untrusted weight files: headers are checked before memory is allocated, and nothing is executed."""

import hashlib
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Iterable
from io import BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.formats.file_entries import MAX_TENSORS, Entry, open_zip, rewound, unsupported_dtype
from vit.checkpoints.formats.json_documents import read_json
from vit.checkpoints.formats.numpy_archives import first_entry, read_archive
from vit.checkpoints.formats.pickle_interpreter import UnsafePickle
from vit.checkpoints.formats.pickles import OtherPickle, Pickled, read_legacy, read_zip
from vit.errors import InvalidCheckpoint, UserError
from vit.untrusted import brief, spend

MAX_TEXT = 32 << 20  # [bytes]; a header with 21,000 class names has 1 MB
MAX_SHARDS = 200
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".ckpt", ".tar")  # PyTorch's examples write .pth.tar
# Training state that transformers, Accelerate, Lightning and DeepSpeed save beside the weights.
_STATE = re.compile(
    r"((optimizer|scheduler|scaler|rng_state|random_states?|training_args|trainer_state|sampler|dl_state_dict|optim)"
    r"([_.-].*)?|.*_optim_states)\.(pt|pth|bin|tar)"
)
# safetensors dtype -> torch dtype; integers and 8-bit floats are not supported as weights.
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_SIDE_DTYPES = {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}


def weights_among(names: Iterable[str]) -> list[str]:
    """Return the weights files among the files of a folder.

    Training state is left out, and so is the pickle of a model that is also there as safetensors.

    >>> weights_among(["last.ckpt", "optimizer.pt", "rng_state_0.pth", "training_args.bin", "config.json"])
    ['last.ckpt']
    >>> weights_among(["open_clip_model.safetensors", "open_clip_pytorch_model.bin"])
    ['open_clip_model.safetensors']
    """
    files = [name for name in names if name.endswith(SUFFIXES) and not _STATE.fullmatch(name)]
    safe = [name for name in files if name.endswith(".safetensors")]
    same = len({name.replace("pytorch_", "").rpartition(".")[0] for name in files}) == 1
    return safe if safe and same else files


class Span(NamedTuple):
    """Range of a tensor's data in the file [bytes], and the checksums of an `Entry`."""

    begin: int
    end: int
    crc: tuple[int, int] | None = None


class Header(NamedTuple):
    """What a file states about its tensors.

    Attributes:
        tensors: on the meta device.
        metadata: of the file.
        spans: where the tensors' data are.
        beside: class names in a pickle under "classes", and timm's settings under "document", see `Pickled`.
    """

    tensors: Tensors
    metadata: dict[str, str]
    spans: dict[str, Span]
    beside: dict[str, Any]


def read_header(file: BufferedReader, name: str) -> Header:
    """Read a file's header.

    Raises:
        InvalidCheckpoint: not a weights file, or the header announces more than the file contains.
    """
    size = os.fstat(file.fileno()).st_size
    try:
        start = rewound(file).read(512)
    except OSError as error:  # a disk error, or a file that is not seekable
        raise InvalidCheckpoint(f"{brief(name)} cannot be read: {error.strerror}.") from error
    if start.startswith(b"version https://git-lfs"):
        raise InvalidCheckpoint(f"{brief(name)} is a placeholder of Git LFS. Fetch the file itself with: git lfs pull.")
    first = first_entry(file)
    if first == "metadata.json":  # Keras writes it first
        raise InvalidCheckpoint(f"{brief(name)} is a model of Keras{_OTHER_LIBRARYS}")
    if first.endswith((*SUFFIXES, ".onnx", ".json")):
        raise InvalidCheckpoint(f"{brief(name)} is {_ARCHIVE}")
    if "/data/weights/" in first:
        raise InvalidCheckpoint(f"{brief(name)} is a program of torch.export. Save the model's tensors: {SAVE}.")
    if first.endswith(".npy"):
        return _header_of_entries(read_archive(file, name, size), {})
    if start.startswith(_PICKLES):
        return _header_of_pickle(file, name, size)
    if len(start) > 8 and start[8:9] == b"{":
        return _header_of_entries(*_read_safetensors(file, name, size))
    if what := next((what for pattern, what in _OTHERS if re.match(pattern, start, re.DOTALL)), None):
        raise InvalidCheckpoint(f"{brief(name)} is {what}")
    raise InvalidCheckpoint(
        f"{brief(name)} is neither a safetensors file nor one that torch.save or numpy.savez wrote."
    )


_OTHER_LIBRARYS = ", which is not read here. Open the model's safetensors or PyTorch file."
# A name of at least three letters in MessagePack: its length, then the letters.
_PACKED_NAME = b"|".join(b"%c[A-Za-z0-9_]{%d}" % (0xA0 + length, length) for length in range(3, 32))
_ARCHIVE = "an archive. Unpack it, and open the file of weights in it."
# Start of files that people mistake for weights, and a description of them.
_OTHERS = (
    (
        rb"\s*<([!?]?[A-Za-z]+[\s>]|!--)",
        "a web page or an error's text, and no weights: the download failed. Download it again, logged in.",
    ),
    (rb"GGUF", f"a GGUF file{_OTHER_LIBRARYS}"),
    (rb"\x89HDF", f"an HDF5 file of Keras or TensorFlow{_OTHER_LIBRARYS}"),
    (rb"\x08\x01\x12", f"a SavedModel of TensorFlow{_OTHER_LIBRARYS}"),
    (rb"\x08[\x02-\x1f]\x12", f"an ONNX program{_OTHER_LIBRARYS}"),
    (rb".{4}TFL3", f"a TensorFlow Lite program{_OTHER_LIBRARYS}"),
    (rb"([\x81-\x8f]|\xde..)(%b)" % _PACKED_NAME, f"a file of Flax{_OTHER_LIBRARYS}"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|7z\xbc\xaf|Rar!|.{257}ustar", _ARCHIVE),
)


def _meta_tensor(entry: Entry) -> Tensor:
    """Return an entry as a tensor on the meta device."""
    if entry.columns:
        empty = torch.empty(entry.shape[::-1], dtype=entry.dtype, device="meta")
        return empty.permute(*reversed(range(empty.ndim)))
    return torch.empty(entry.shape, dtype=entry.dtype, device="meta")


def _header_of_entries(entries: dict[str, Entry], metadata: dict[str, str]) -> Header:
    tensors = {key: _meta_tensor(entry) for key, entry in entries.items()}
    spans = {key: Span(each.begin, each.end, each.crc) for key, each in entries.items()}
    return Header(tensors, metadata, spans, {})


def _read_safetensors(file: BufferedReader, name: str, size: int) -> tuple[dict[str, Entry], dict[str, str]]:
    """Read entries and metadata of a safetensors file. Source of the format: safetensors' README, section Format."""
    damaged = InvalidCheckpoint(f"{brief(name)} is not a valid safetensors file. Download or save it again.")
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
    entries: dict[str, Entry] = {}
    for key, entry in header.items():
        spend()
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
                pass
            case _:
                raise damaged
        kind = (_DTYPES | _SIDE_DTYPES).get(dtype)
        if kind is None:
            raise unsupported_dtype(dtype)
        if len(shape) > 8 or not all(type(side) is int and 0 <= side < 1 << 40 for side in shape):
            raise damaged
        if begin < 0 or end - begin != math.prod(shape) * kind.itemsize:
            raise damaged
        entries[key] = Entry(8 + length + begin, 8 + length + end, shape, kind)
    spans = sorted((entry.begin, entry.end) for entry in entries.values())
    starts, ends = [begin for begin, _ in spans], [end for _, end in spans]
    if starts != [8 + length, *ends[:-1]] or ends[-1] != size:
        raise damaged
    return entries, metadata


class Weights(NamedTuple):
    """Tensors read from a file.

    Attributes:
        tensors: the selected ones, by their names in the file.
        hash: SHA-256 of the whole file and those before it, 64 hexadecimal digits.
    """

    tensors: Tensors
    hash: str


def read_tensors(
    file: BufferedReader,
    name: str,
    header: Header,
    selected: set[str],
    half: bool,
    digest: "hashlib._Hash | None" = None,
) -> Weights:
    """Read tensors, each into its own memory, in a single pass that also hashes the file.

    The file is not memory-mapped: later changes to the file would change the model, truncation would crash the process,
    and the hash might not match the bytes in use.

    Args:
        header: of this file.
        selected: names of the tensors to read; the others are skipped.
        half: keep 16-bit floats as they are. Other floats become float32.
        digest: hash of the files before this one, to be continued.

    Raises:
        InvalidCheckpoint: the file is damaged, or contains less than its header announces.
    """

    def stays(tensor: Tensor) -> bool:
        return tensor.dtype is torch.float32 or not tensor.is_floating_point() or (half and tensor.itemsize == 2)

    size, stream, promised = os.fstat(file.fileno()).st_size, _Stream(file, digest or hashlib.sha256()), header.tensors
    try:
        wanted = {key: promised[key] for key in selected}
        if sum(tensor.numel() * tensor.itemsize for tensor in wanted.values()) > size:  # tensors share no memory
            raise InvalidCheckpoint(f"{brief(name)} declares more numbers than it contains.")
        together: dict[Span, list[str]] = {}
        for key in wanted:
            together.setdefault(header.spans[key], []).append(key)
        tensors = {}
        rewound(file)
        for span, keys in sorted(together.items()):
            if not stream.at <= span.begin <= span.end <= size:
                raise ValueError("Two tensors overlap.")
            stream.skip(span.begin)
            raw = stream.read(span.end, scratch=not any(stays(promised[key]) for key in keys))
            if span.crc and zlib.crc32(raw.numpy().data, span.crc[0]) != span.crc[1]:
                raise ValueError("A bit has flipped.")
            for key in keys:
                meta = promised[key]
                part = raw.view(meta.dtype).as_strided(meta.shape, meta.stride(), meta.storage_offset())
                tensors[key] = part if stays(part) else part.float()
        stream.skip(size)
        return Weights(tensors, stream.digest.hexdigest())
    except UserError:
        raise
    except Exception as error:  # any exception of a parser on hostile bytes means the same
        raise InvalidCheckpoint(f"{brief(name)} is damaged. Download or save it again.") from error


class _Stream:
    """Reads a file once from start to end and hashes it; the file must be at its start."""

    def __init__(self, file: BufferedReader, digest: "hashlib._Hash"):
        self.file = file
        self.at = 0
        self.digest = digest
        self.scratch = torch.empty(1 << 20, dtype=torch.uint8)

    def read(self, end: int, scratch: bool) -> Tensor:
        """Read the bytes up to `end`; with `scratch` into a shared buffer that the next call overwrites."""
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
        """Hash the bytes up to `end` and discard them."""
        while self.at < end:
            spend()
            self.read(min(end, self.at + (1 << 20)), scratch=True)


# Start of a zip file, or of a bare pickle of protocol 2 to 5.
_PICKLES = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
SAVE = 'torch.save(model.state_dict(), "weights.pth")'


def _header_of_pickle(file: BufferedReader, name: str, size: int) -> Header:
    content = _read_pickle(file, name, size)
    tensors = {key: stored.tensor for key, stored in content.tensors.items()}
    if not tensors:
        raise InvalidCheckpoint(f"{brief(name)} holds no tensors by name. Save them with: {SAVE}.")
    if not any(tensor.numel() for tensor in tensors.values()):
        raise InvalidCheckpoint(
            f"{brief(name)} holds names and no numbers, which DeepSpeed's ZeRO 3 keeps in parts. Put them together "
            "first: python zero_to_fp32.py FOLDER weights."
        )
    _check_size(tensors, name, size)
    spans = {key: Span(stored.begin, stored.end) for key, stored in content.tensors.items()}
    beside = {"classes": content.classes, "document": content.document}
    return Header(tensors, {}, spans, {key: value for key, value in beside.items() if value})


def _check_size(tensors: Tensors, name: str, size: int) -> None:
    """Raise an error if the tensors are larger than the file; tied tensors count once."""
    views = {(t.untyped_storage()._cdata, t.storage_offset(), t.shape, t.stride()): t for t in tensors.values()}
    if sum(tensor.numel() * tensor.itemsize for tensor in views.values()) > size:
        raise InvalidCheckpoint(f"{brief(name)} declares more numbers than it contains.")


def _read_pickle(file: BufferedReader, name: str, size: int) -> Pickled:
    """Read a file that torch.save wrote."""
    try:
        if rewound(file).read(2) != b"PK":
            return read_legacy(rewound(file))
        with open_zip(file, size) as archive:
            return read_zip(archive, file, _find_pickle(archive, name, size))
    except UserError:
        raise
    except OtherPickle as error:
        raise InvalidCheckpoint(
            f"{brief(name)} is a pickle that torch.save did not write, as pickle.dump writes it. Load it where it was "
            f"written, and save it with: {SAVE}."
        ) from error
    except UnsafePickle as error:
        suffix = Path(name).suffix if name.endswith(SUFFIXES) else "PyTorch"
        raise InvalidCheckpoint(
            f"This {suffix} file holds code (`{brief(error.symbol)}`), which no model needs. Only plain tensors are "
            "opened."
        ) from error
    except Exception as error:
        raise InvalidCheckpoint(
            f"{brief(name)} is damaged or not a file that torch.save wrote. Download it again, or save it with: {SAVE}."
        ) from error


def _find_pickle(archive: zipfile.ZipFile, name: str, size: int) -> str:
    """Return the name of the entry with the pickle, in a zip file of torch.save; raise ValueError for any other."""
    entries = archive.infolist()
    if any(entry.filename.endswith("/constants.pkl") for entry in entries):
        raise InvalidCheckpoint(
            f"{brief(name)} is a TorchScript program. Save its tensors: "
            'torch.save(torch.jit.load("program.pt").state_dict(), "weights.pth").'
        )
    pickles = [entry for entry in entries if entry.filename.endswith("/data.pkl")]
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries) or len(pickles) != 1:
        raise ValueError("An entry is compressed, or there is not one pickle.")
    if sum(entry.file_size for entry in entries) > size or pickles[0].file_size > MAX_TEXT:
        raise ValueError("It says that it holds more than it can.")
    return pickles[0].filename


_PART = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.(safetensors|bin)$", re.ASCII)


def is_shard(name: str) -> bool:
    """Whether a file name is that of one shard of several.

    >>> is_shard("model-00001-of-00003.safetensors"), is_shard("model-00001-of-00001.safetensors")
    (True, False)
    """
    return bool(_PART.search(name))


_SHARD = re.compile(r"\w[\w.-]{0,199}\.(safetensors|bin)", re.ASCII)


def read_index(text: bytes, name: str) -> dict[str, str]:
    """Read the index of weights in several files: tensor name -> file name.

    Raises:
        InvalidCheckpoint: there is no map, or it lists something other than a weights file in the same folder.
    """
    places = read_json(text, name).get("weight_map")
    if not isinstance(places, dict) or not 1 <= len(places) <= MAX_TENSORS:
        raise InvalidCheckpoint(f"{name} has no weight_map that tells where the tensors are.")
    for shard in places.values():
        if not isinstance(shard, str) or not _SHARD.fullmatch(shard):
            raise InvalidCheckpoint(f"{name} names {brief(shard)}, which is not a file of weights beside it.")
    if len(set(places.values())) > MAX_SHARDS:
        raise InvalidCheckpoint(f"{name} names {len(set(places.values()))} files; at most {MAX_SHARDS} are opened.")
    return places
