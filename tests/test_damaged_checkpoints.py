"""Damaged, foreign or hostile files are refused in one sentence, and no code in them runs."""

import io
import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from saved_checkpoints import edit

from vit.checkpoints.fingerprint import fingerprint
from vit.checkpoints.load import list_checkpoints, load_checkpoint
from vit.errors import InvalidCheckpoint

pytestmark = pytest.mark.usefixtures("short_refusals")


def raw_safetensors(header: Any, body: bytes = b"") -> bytes:
    """Write a safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


# --- Bad files ------------------------------------------------------------------------------------------------


def vit_field(**changes: Any) -> Any:
    """Return a function that changes fields of our config in the folder's config.json."""

    def change(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        edit(folder / "config.json", vit=document["vit"] | changes)

    return change


def weights(**changes: Any) -> Any:
    """Return a function that changes tensors by name; a value is a function of the old tensor, or None to remove it."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        for name, function in changes.items():
            name = name.replace("__", ".")
            tensors[name] = function(tensors.get(name)).contiguous()
        save_file({name: tensor for name, tensor in tensors.items() if tensor.numel()}, path, metadata)

    return change


def write(name: str, content: bytes | str) -> Any:
    """Return a function that replaces a file's content."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def replace_by(name: str, make: Any) -> Any:
    """Return a function that replaces a file by a link, a pipe or a folder."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        make(folder / name)

    return change


def truncate(folder: Path) -> None:
    """Return a function that cuts the weights in half."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


GONE = torch.zeros(0)
GARBAGE = np.random.default_rng(0).bytes(5000)
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD: dict[str, tuple[Any, str]] = {
    "garbage": (write("model.safetensors", GARBAGE), "neither a safetensors"),
    "garbage that begins like a page": (write("model.safetensors", b"<\xd7" + GARBAGE), "neither a safetensors"),
    "garbage that begins like Flax": (write("model.safetensors", b"\x85\xb4k" + GARBAGE), "neither a safetensors"),
    "empty": (write("model.safetensors", b""), "neither a safetensors"),
    "truncated": (truncate, "not a valid safetensors"),
    "lfs": (write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
    "header too long": (write("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}" * 50), "not a valid"),
    "offsets overlap": (
        write("model.safetensors", raw_safetensors({"a": TENSOR, "b": TENSOR}, b"\0" * 8)), "not a valid"
    ),
    "hole": (write("model.safetensors", raw_safetensors({"a": TENSOR}, b"\0" * 12)), "not a valid"),
    "shape lies": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"shape": [10**6, 10**6]}}, b"\0" * 8)), "not a valid"
    ),
    "huge side": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"shape": [10**30, 0], "data_offsets": [0, 0]}})),
        "not a valid",
    ),
    "names twice": (
        write("model.safetensors", raw_safetensors(b'{"a":' + json.dumps(TENSOR).encode() + b',"a":[]}', b"\0" * 8)),
        "not a valid",
    ),
    "eight-bit": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"dtype": "F8_E4M3"}}, b"\0" * 8)),
        "stored as F8_E4M3",
    ),
    "deep header": (write("model.safetensors", raw_safetensors(b'{"a":' + b"[" * 200_000, b"")), "not a valid"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    "index of another name": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model.fp16.safetensors.index.json"), "split"
    ),
    "link": (
        replace_by("model.safetensors", lambda path: path.symlink_to(path.parent.parent / "elsewhere")), "is a link"
    ),
    "config link": (replace_by("config.json", lambda path: path.symlink_to("/etc/passwd")), "is a link"),
    "pipe": (replace_by("model.safetensors", os.mkfifo), "not a regular file"),
    "folder": (replace_by("model.safetensors", os.mkdir), "not a regular file"),
    "device": (replace_by("config.json", lambda path: path.symlink_to("/dev/zero")), "is a link"),
    "NaN": (weights(classifier__bias=lambda t: t * float("nan")), "NaN"),
    "infinite": (weights(vit__layernorm__weight=lambda t: t / 0), "NaN or infinite"),
    "overflow": (weights(classifier__bias=lambda t: t.double() * 1e300), "NaN or infinite"),
    "whole numbers": (weights(classifier__bias=lambda t: t.long()), "stored as int64"),
    "missing": (weights(vit__layernorm__weight=lambda t: GONE), "1 tensor missing"),
    "extra": (weights(vit__extra=lambda t: torch.zeros(3)), "extra"),
    "wrong shape": (weights(classifier__weight=lambda t: t[:, :-1]), "another shape"),
    "scalar": (weights(vit__embeddings__position_embeddings=lambda t: torch.zeros(())), "wrong shape"),
    "config garbage": (write("config.json", b"\xff\xfe"), "config.json is not valid JSON"),
    "config list": (write("config.json", "[]"), "config.json is not a JSON object"),
    "config deep": (write("config.json", "[" * 100_000), "not valid JSON"),
    "config without ours": (lambda folder: edit(folder / "config.json", vit=None), 'lacks the field "vit"'),
    "config huge": (vit_field(dim=10**9), "dim must be at most 8,192"),
    "config long number": (vit_field(dim=int("9" * 4000)), "dim must be at most"),
    "config deep model": (vit_field(depth=10**6), "depth must be at most 100"),
    "config text": (vit_field(depth="2"), "depth must be a whole number"),
    "config true": (vit_field(depth=True), "depth must be a whole number"),
    "config NaN": (vit_field(eps=float("nan")), "eps must be a number"),
    "config unknown": (vit_field(colour=1), "colour"),
    "config channels": (vit_field(channels=2), "channels must be 1 or 3"),
    "config prefix": (vit_field(prefix=["cls", "<b>"]), r"prefix\.1 must match"),
    "config nested": (vit_field(activation=["gelu"]), "activation must be 'gelu'"),
    "many patches": (vit_field(image_size=[4096, 4096], patch_size=8), "the limit is 4096"),
    "heads do not divide": (vit_field(heads=5), "heads 5 does not divide dim 64"),
    "other depth": (vit_field(depth=3), "missing"),
    "other classes": (vit_field(num_classes=6), "5 classes and its head has 6|another shape"),
    "other heads": (vit_field(heads=4), "output differs from the one recorded when"),
    "other activation": (vit_field(activation="quick_gelu"), "output differs from the one recorded when"),
    "other eps": (vit_field(eps=1e-2), "output differs from the one recorded when"),
    "changed weight": (weights(classifier__bias=lambda t: t + 1), "output differs from the one recorded when"),
    "bad probe": (lambda folder: edit(folder / "config.json", vit_probe=["x"]), "output differs"),
    "few labels": (lambda folder: edit(folder / "config.json", id2label={"0": "a"}), "names 1 classes"),
    "labels misnumbered": (
        lambda folder: edit(folder / "config.json", id2label={str(i + 1): "x" for i in range(5)}), "numbered 0 to 4"
    ),
    "label not text": (
        lambda folder: edit(folder / "config.json", id2label={str(i): [i] for i in range(5)}), "Class names"
    ),
    "label half a character": (
        lambda folder: edit(folder / "config.json", id2label={str(i): "\ud800" for i in range(5)}), "not valid JSON"
    ),
    "labels a list": (lambda folder: edit(folder / "config.json", id2label=["a"]), "id2label must map"),
    "preprocess": (lambda folder: edit(folder / "preprocessor_config.json", size=-1, crop_size=-1), "size"),
    "preprocess patches": (
        lambda folder: edit(folder / "preprocessor_config.json", crop_size={"height": 30, "width": 30}), "do not fill"
    ),
    "preprocess channels": (
        lambda folder: edit(folder / "preprocessor_config.json", image_mean=[0.5], image_std=[0.5]), "channels"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_one_clear_sentence(saved: Path, case: str) -> None:
    spoil, sentence = BAD[case]
    spoil(saved)
    with pytest.raises(InvalidCheckpoint, match=sentence) as caught:
        load_checkpoint(saved)
    message = str(caught.value)
    assert len(message) < 300 and "\n" not in message and str(saved.parent) not in message
    list_checkpoints(saved.parent)  # one bad checkpoint does not hide the others


@pytest.mark.parametrize(
    "path", ["", "nowhere", "a\0b", "x" * 5000, "/dev/zero", "/dev/null", "/proc/self/mem", "\ud800"]
)
def test_invalid_paths_are_refused(path: str) -> None:
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(path)
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(Path(path) if path else Path("nowhere"))


# --- Pickles --------------------------------------------------------------------------------------------------


@pytest.fixture
def pickled(tmp_path: Path, saved: Path) -> Any:
    """Return `pickled(content, zipped)`: a folder with a transformers config and this content as pytorch_model.bin."""

    def make(content: Any, zipped: bool = True) -> Path:
        folder = tmp_path / "pickled"
        folder.mkdir(exist_ok=True)
        shutil.copy(saved / "config.json", folder)
        if isinstance(content, bytes):
            (folder / "pytorch_model.bin").write_bytes(content)
        else:
            torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return folder

    return make


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "epoch": 3, "args": Namespace(lr=0.1)},
        lambda state: {
            "state_dict": {f"module.{name}": tensor for name, tensor in state.items()},
            "optimizer": {},
        },
        lambda state: {"model": {f"_orig_mod.module.{k}": torch.nn.Parameter(v) for k, v in state.items()}},
    ],
    ids=["bare", "model", "state_dict and module", "compiled"],
)
def test_pickles_with_the_usual_wrappings_are_read(saved: Path, pickled: Any, wrap: Any, zipped: bool) -> None:
    state = load_file(saved / "model.safetensors")
    checkpoint = load_checkpoint(pickled(wrap(state), zipped))
    assert torch.equal(checkpoint.model.pos_embed, load_checkpoint(saved).model.pos_embed)


class Attack:
    """Runs a command when unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_pickle_is_named_and_never_run(
    pickled: Any, zipped: bool, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pickled({"a": torch.zeros(2)})
    torch.save(
        {"a": torch.zeros(2), "b": Attack()}, folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped, pickle_protocol=protocol,
    )  # fmt: skip
    with pytest.raises(InvalidCheckpoint, match=r"holds code.*Only plain tensors") as caught:
        load_checkpoint(folder)
    assert protocol > 2 or "posix.system" in str(caught.value)
    assert not (tmp_path / "pwned").exists()


def test_a_bare_pickle_with_code_is_refused(pickled: Any) -> None:
    for protocol in range(6):
        with pytest.raises(InvalidCheckpoint):
            load_checkpoint(pickled(pickle.dumps({"a": Attack()}, protocol)))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("shape", [(10**6,), (10**6, 10**6)], ids=["a million", "a trillion"])
def test_small_file_that_claims_many_numbers_is_refused(pickled: Any, zipped: bool, shape: tuple[int, ...]) -> None:
    """Numbers from one stored number, with a stride of 0."""
    folder = pickled({"classifier.weight": torch.zeros(1).expand(shape)}, zipped)
    assert (folder / "pytorch_model.bin").stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidCheckpoint, match="declares more"):
        load_checkpoint(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # [KB]


def test_zip_that_unpacks_to_more_than_its_size_is_refused(pickled: Any) -> None:
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save({"classifier.weight": torch.zeros(10**6)}, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(InvalidCheckpoint, match=r"damaged or not a file that torch.save wrote"):
        load_checkpoint(pickled(packed.getvalue()))


@pytest.mark.parametrize(
    "content",
    [
        {"a": np.float64(1)}, [torch.zeros(2)], {}, {"a": 1}, torch.zeros(3), {1: torch.zeros(2)},
        {"a": torch.zeros(3).to_sparse()}, {"model": {"model": {"model": {"model": {}}}}}, {"a": bytearray(9)},
    ],
    ids=lambda content: str(content)[:30],
)  # fmt: skip
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickles_of_other_things_are_refused(pickled: Any, content: Any, zipped: bool) -> None:
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(pickled(content, zipped))


# torch advises against TorchScript; such files exist.
@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")
def test_programs_and_other_archives_are_refused(pickled: Any) -> None:
    program = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), program)
    with pytest.raises(InvalidCheckpoint, match="TorchScript"):
        load_checkpoint(pickled(program.getvalue()))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("data.txt", "x")
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(pickled(archive.getvalue()))


def test_fingerprint_is_the_same_on_every_machine(build: Any) -> None:
    """The picture comes from integer arithmetic; these are its first numbers, worked out by hand."""
    from vit.checkpoints.fingerprint import _noise_picture

    def expected(i: int) -> float:
        for factor, shift in ((2654435761, 15), (2246822519, 13)):
            i = i * factor % 2**32
            i ^= i >> shift
        return i / 2**31 - 1

    picture = _noise_picture(build().config).flatten()
    assert picture[:50].tolist() == pytest.approx([expected(i) for i in range(1, 51)], abs=1e-6)
    assert -1 <= picture.min() < -0.99 and 0.99 < picture.max() <= 1 and abs(picture.mean()) < 0.05
    assert fingerprint(build(seed=0)) != fingerprint(build(seed=1))
