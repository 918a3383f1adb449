"""Google's .npz files that are damaged, hostile or of another model are refused before their arrays are read."""

import re
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google_files import Arrays, timms, written

from vit.checkpoints.load import load_checkpoint, summarise
from vit.errors import InvalidCheckpoint

pytestmark = pytest.mark.usefixtures("claimed_by_one_family")

OUT = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel"
QUERY = "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel"


def change(**changes: Any) -> Callable[[Arrays], Arrays]:
    """Write the same arrays with some of them changed; None removes one."""

    def changed(arrays: Arrays) -> Arrays:
        made = {name.replace("__", "/"): value for name, value in changes.items()}
        return {name: array for name, array in (arrays | made).items() if array is not None}

    return changed


def reshaped(name: str, *shape: int) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: arrays[name].reshape(shape)}


ONE = np.ones(1, "f4")
WRONG: dict[str, tuple[Callable[[Arrays], Arrays], str]] = {
    "hybrid": (change(conv_root__kernel=ONE), r"a checkpoint of a hybrid of a ResNet and a ViT \(`conv_root/kernel`\)"),
    "hybrid, blocks": (change(block1__unit1__conv1__kernel=ONE), "hybrid of a ResNet"),
    "Mixer": (lambda arrays: {"MixerBlock_0/token_mixing/Dense_0/kernel": ONE}, "checkpoint of an MLP-Mixer"),
    "another model": (lambda arrays: {"layer/kernel": ONE}, "not a Vision Transformer that this app supports"),
    "extra": (change(adapter__kernel=ONE), "a tensor that a plain Vision Transformer does not have"),
    "no positions": (change(Transformer__posembed_input__pos_embedding=None), "no position embeddings"),
    "no class token": (change(cls=None), "do not fit a square"),
    "no norm": (change(Transformer__encoder_norm__scale=None), "do not fit the config"),
    "a missing kernel": (lambda arrays: {k: v for k, v in arrays.items() if k != OUT}, "1 tensor missing"),
    "heads differ": (reshaped(QUERY, 64, 8, 8), "differ in their number of attention heads"),
    "flat queries": (reshaped(QUERY, 64, 64), "wrong shape"),
    "flat patches": (reshaped("embedding/kernel", 192, 64), "wrong shape"),
    "narrow": (lambda arrays: arrays | {OUT: arrays[OUT][:, :, :8]}, "another shape"),
    "NaN": (lambda arrays: arrays | {OUT: arrays[OUT] * np.float32("nan")}, "NaN or infinite"),
    "whole numbers": (lambda arrays: arrays | {OUT: arrays[OUT].astype("i4")}, "stored as int32"),
    "objects": (lambda arrays: arrays | {"head/bias": np.array([{}], object)}, r"stored as \|O"),
    "words": (lambda arrays: arrays | {"head/bias": np.array(["a", "b"])}, "stored as <U1"),
    "complex": (lambda arrays: arrays | {"head/bias": np.ones(5, "c8")}, "stored as <c8"),
    "big-endian": (lambda arrays: arrays | {"head/bias": np.ones(5, ">f4")}, "stored as >f4"),
    "records": (lambda arrays: arrays | {"head/bias": np.ones(5, "f4,f4")}, "not an archive of arrays"),
    "empty array": (lambda arrays: arrays | {"head/bias": np.ones(0, "f4")}, "not an archive of arrays"),
}


def refused(file: Path) -> str:
    """Return the one-sentence message with which a file is refused."""
    with pytest.raises(InvalidCheckpoint) as caught:
        load_checkpoint(file)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 500, message
    return message


@pytest.mark.parametrize("name", WRONG)
def test_other_models_than_plain_vits_are_refused(tmp_path: Path, name: str) -> None:
    changed, why = WRONG[name]
    np.savez(tmp_path / "x.npz", **changed(written(timms())))
    assert re.search(why, refused(tmp_path / "x.npz"))


def test_header_alone_causes_no_allocation_or_execution(tmp_path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': %s, }\n"
    shapes = [b"(1000000, 1000000)", b"(__import__('os').mkdir('evil'),)", b"(-1,)", b"(1.5,)", b"(" * 500, b"(1_0,)"]
    for shape in shapes:
        text = header % shape
        array = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(40)
        with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
            archive.writestr("embedding/kernel.npy", array)
        assert "not an archive of arrays" in refused(tmp_path / "x.npz")


def bomb(file: Path, plain: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", bytes(10_000_000))


def flipped(file: Path, plain: bytes) -> None:
    at = plain.index(b"MlpBlock_3/Dense_0/kernel.npy") + 2000
    file.write_bytes(plain[:at] + bytes([plain[at] ^ 1]) + plain[at + 1 :])


def overlapping(file: Path, plain: bytes) -> None:
    """Point two entries of the directory at one array."""
    directory = plain.rindex(b"PK\x05\x06")
    (start,) = struct.unpack_from("<I", plain, directory + 16)
    entry = plain.index(b"PK\x01\x02", start + 4)
    plain = bytearray(plain)  # type: ignore[assignment]
    plain[entry + 42 : entry + 46] = plain[start + 42 : start + 46]  # type: ignore[index]
    file.write_bytes(plain)


def twice(file: Path, plain: bytes) -> None:
    file.write_bytes(plain)
    with zipfile.ZipFile(file, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("cls.npy", archive.read("cls.npy"))


def with_more(name: str, content: bytes) -> Callable[[Path, bytes], None]:
    def more(file: Path, plain: bytes) -> None:
        file.write_bytes(plain)
        with zipfile.ZipFile(file, "a") as archive:
            archive.writestr(name, content)

    return more


DAMAGED: dict[str, tuple[Callable[[Path, bytes], Any], str]] = {
    "cut": (lambda file, plain: file.write_bytes(plain[: len(plain) // 2]), "damaged"),
    "cut at the end": (lambda file, plain: file.write_bytes(plain[:-1]), "damaged"),
    "a bit flipped": (flipped, "damaged"),
    "compressed": (bomb, "compressed"),
    "overlapping": (overlapping, "damaged"),
    "one name twice": (twice, "damaged"),
    "another file in it": (with_more("run.py", b"print()"), "damaged"),
    "a pickle in it": (with_more("a.npy", b"\x80\x04."), "damaged"),
    "a short array": (
        with_more("a.npy", b"\x93NUMPY\x01\x00\x36\x00{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }\n    "),
        "damaged",
    ),
    "two directories": (lambda file, plain: file.write_bytes(plain + plain), "damaged"),
    "one array": (lambda file, plain: np.save(file.open("wb"), ONE), "neither a safetensors file nor one that"),
    "empty": (lambda file, plain: zipfile.ZipFile(file, "w").close(), "neither a safetensors file nor one that"),
    "no zip": (lambda file, plain: file.write_bytes(plain[:60]), "damaged"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_or_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    damage, why = DAMAGED[name]
    np.savez(tmp_path / "plain.npz", **written(timms()))
    damage(tmp_path / "x.npz", (tmp_path / "plain.npz").read_bytes())
    assert why in refused(tmp_path / "x.npz")


def test_listing_reads_no_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **written(timms()))
    flipped(tmp_path / "x.npz", (tmp_path / "plain.npz").read_bytes())
    (tmp_path / "plain.npz").unlink()
    assert summarise(tmp_path).problem == ""
