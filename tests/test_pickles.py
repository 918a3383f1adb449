"""Files of torch.save with objects beside the tensors: read as data, nothing is called, sizes are limited."""

import datetime
import enum
import io
import pickle
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque
from functools import partial
from pathlib import Path, PosixPath
from typing import Any, ClassVar

import numpy as np
import pytest
import timm
import torch
from tiny import fill
from torch import nn

from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

FORMATS: tuple[dict[str, Any], ...] = (
    {},
    {"pickle_protocol": 4},
    {"pickle_protocol": 5, "_use_new_zipfile_serialization": False},
)


class Phase(enum.Enum):
    """Progress of a training."""

    WARM = 1


class Settings(dict):  # type: ignore[type-arg]
    """A custom subclass of dict."""


class Recorded:
    """Records that it was called, unpickled or given a state."""

    calls: ClassVar[list[str]] = []

    def __init__(self) -> None:
        self.calls.append("made")

    def __setstate__(self, state: Any) -> None:
        self.calls.append("state")

    def __reduce__(self) -> Any:
        return Recorded, (), {"a": 1}


class Fields:
    """An object with slots and attributes."""

    __slots__ = ("__dict__", "a")

    def __init__(self) -> None:
        self.a, self.b = 1, [2]


def model() -> Any:
    arguments: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 1, "num_heads": 3}
    return fill(timm.models.VisionTransformer(**arguments, num_classes=5))


def saved(content: Any, folder: Path, **how: Any) -> Path:
    torch.save(content, folder / "x.pth", **how)
    return folder / "x.pth"


def test_objects_beside_the_tensors_are_skipped_and_never_called(tmp_path: Path) -> None:
    beside = {
        "best": np.float64(0.9), "scores": np.arange(3.0), "path": PosixPath("/data"), "log": defaultdict(list, a=[1]),
        "args": Namespace(lr=0.1), "phase": Phase.WARM, "when": datetime.datetime(2026, 1, 1), "count": Counter("aab"),
        "settings": Settings(a=Settings(b=1)), "last": deque([1.0], 5), "seen": {1, 2}, "fixed": frozenset("ab"),
        "make": partial(nn.LayerNorm, eps=1e-6), "type": nn.GELU, "z": 1j, "bytes": b"abc", "fields": Fields(),
        "size": torch.Size([2]), "device": torch.device("cpu"), "dtype": torch.bfloat16, "long": 1 << 200,
        "recorded": Recorded(), "again": Recorded, "random": torch.get_rng_state(), "none": None,
    }  # fmt: skip
    Recorded.calls.clear()
    state = model().state_dict()
    for how in FORMATS:
        checkpoint = load_checkpoint(saved({"epoch": 3, **beside, "model": OrderedDict(state)}, tmp_path, **how))
        assert torch.equal(checkpoint.model.head.weight, state["head.weight"])
        assert "left_out" not in checkpoint.assumed
    assert Recorded.calls == []


def test_whole_module_is_read_as_its_state_dict(tmp_path: Path) -> None:
    module = model()
    module.register_buffer("scratch", torch.zeros(1, 192), persistent=False)
    for content in (module, {"model": module, "optimizer": torch.optim.AdamW(module.parameters())}):
        for how in FORMATS:
            checkpoint = load_checkpoint(saved(content, tmp_path, **how))
            assert torch.equal(checkpoint.model.head.weight, module.head.weight)
            assert torch.equal(checkpoint.model.blocks[0].mlp.fc1.weight, module.blocks[0].mlp.fc1.weight)


def test_every_number_type_and_byte_order_is_read(tmp_path: Path) -> None:
    state = model().state_dict()
    state["head.weight"] = state["head.weight"].double()
    state["norm.weight"] = state["norm.weight"].bfloat16()
    state["head.bias"] = nn.Parameter(state["head.bias"].half())
    wide = torch.randn(192, 400)
    state["blocks.0.attn.proj.weight"] = wide[:, 7:391:2].T
    for how in FORMATS:
        read = load_checkpoint(saved(state, tmp_path, **how)).model.state_dict()
        for name in ("head.weight", "norm.weight", "head.bias", "blocks.0.attn.proj.weight"):
            assert torch.equal(read[name], state[name].float()), name


GOOD = b"\x80\x02}q\x00"
HOSTILE: dict[str, bytes] = {
    "a memo of four billion": GOOD + b"r\xff\xff\xff\xff.",
    "text of four gigabytes": GOOD + b"X\xff\xff\xff\xffabc.",
    "bytes of an exabyte": GOOD + b"\x8e" + b"\xff" * 8 + b"abc.",
    "an endless program": GOOD + b"(" * 2_000_000 + b".",
    "an extension": GOOD + b"\x82\x01.",
    "nothing to pop": GOOD + b"000.",
    "an item of no dict": GOOD + b"K\x01K\x02K\x03s.",
    "no end": GOOD,
    "a key of nested tuples": GOOD + b")" + b"q\x01h\x01\x86" * 60 + b"K\x01s.",
    "a dict built at once of nested tuples": GOOD + b"(" + b")" + b"q\x01h\x01\x86" * 60 + b"K\x01d.",
    "items added to a set of nested tuples": GOOD + b"\x8f(" + b")" + b"q\x01h\x01\x86" * 60 + b"\x90.",
    "a set of nested tuples": GOOD + b"(" + b")" + b"q\x01h\x01\x86" * 60 + b"\x91.",
    "dicts in dicts": GOOD + b"X\x01\x00\x00\x00a" * 50 + b"}" + b"}s" * 50 + b".",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pickles_without_a_checkpoint_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.pth").write_bytes(HOSTILE[name])
    with pytest.raises(InvalidCheckpoint, match=r"torch\.save\(model\.state_dict\(\)"):
        load_checkpoint(tmp_path / "x.pth")


def test_exponentially_shared_objects_are_refused(tmp_path: Path) -> None:
    """A hundred dicts, each twice in the next: 2 to the 100 paths to one tensor."""
    inner: Any = {"a": torch.zeros(2)}
    for _ in range(50):
        inner = {"a": inner, "b": inner}
    loop: dict[str, Any] = {"x": torch.zeros(2)}
    loop["loop"] = loop
    for content in (inner, loop):
        with pytest.raises(InvalidCheckpoint):
            load_checkpoint(saved(content, tmp_path))


def test_one_tensor_for_all_blocks_takes_no_more_memory_than_the_file(tmp_path: Path) -> None:
    state = model().state_dict()
    for i in range(1, 90):
        state |= {k.replace("blocks.0", f"blocks.{i}"): v for k, v in state.items() if k.startswith("blocks.0.")}
    with pytest.raises(InvalidCheckpoint, match="declares more numbers than it contains"):
        load_checkpoint(saved(state, tmp_path))


def test_refusal_says_what_to_write(tmp_path: Path) -> None:
    content = {"weights": {name: tensor.numpy() for name, tensor in model().state_dict().items()}}
    with pytest.raises(InvalidCheckpoint, match=r"no tensors by name.*torch\.save\(model\.state_dict\(\), "):
        load_checkpoint(saved(content, tmp_path))
    (tmp_path / "x.pth").write_bytes(pickle.dumps(io.BytesIO(b"abc"))[:-1])
    with pytest.raises(InvalidCheckpoint, match=r"Download it again, or save it with: torch\.save"):
        load_checkpoint(tmp_path / "x.pth")
