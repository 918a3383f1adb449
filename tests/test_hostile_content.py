"""Whatever a checkpoint's files hold: it opens, or is refused in one sentence, for work in proportion to its size."""

import copy
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from hostile_tensors import changed, in_file, shapes_of
from safetensors.torch import save_file
from tiny import fill

from vit.checkpoints import load, recognition
from vit.checkpoints.families import FAMILIES
from vit.checkpoints.families.family import Family
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.formats import weight_files
from vit.checkpoints.formats.pickle_interpreter import Opaque, interpret
from vit.checkpoints.load import list_checkpoints, load_checkpoint, summarise
from vit.errors import InvalidCheckpoint, UserError
from vit.untrusted import TooMuchWork, limit_work

pytestmark = pytest.mark.usefixtures("short_refusals")

START = b"\x80\x02"  # protocol 2
TENSOR = (  # a float32 tensor of one number in storage 0
    b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000"
    b"X\x03\x00\x00\x00cpuK\x01tQK\x00K\x01\x85K\x01\x85\x89)tR"
)


def text(content: str) -> bytes:
    """Return the operation that pushes a text."""
    return b"X" + struct.pack("<I", len(content.encode())) + content.encode()


def dict_of(count: int, value: bytes = b"K\x01") -> bytes:
    """Return the operations that push a dict of many items."""
    return b"}(" + b"".join(text(f"k{i}") + value for i in range(count)) + b"u"


def torch_zip(operations: bytes) -> bytes:
    """Return a file of torch.save with this pickle, and one storage of one number."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("x/data.pkl", START + operations)
        archive.writestr("x/byteorder", b"little")
        archive.writestr("x/data/0", bytes(4))
    return buffer.getvalue()


def model() -> Any:
    """Return timm's smallest model that needs no question."""
    arguments: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 1, "num_heads": 3}
    return fill(timm.models.VisionTransformer(**arguments, num_classes=5))


@pytest.fixture(scope="module")
def state() -> Tensors:
    return dict(model().state_dict())


def reason(path: Path) -> str:
    """Return why a checkpoint is refused, "" if it opens; also check the sentence, and that listing works."""
    info = summarise(path)
    try:
        load_checkpoint(path)
    except UserError as error:
        assert 0 < len(str(error)) <= 250 and "\n" not in str(error)
        return str(error)
    assert not info.problem
    return ""


# --- Pickles: few bytes, much work --------------------------------------------------------------------------------

COPY = 20_000  # items of an object that a few bytes copy
AGAIN = 400
AMPLIFIED: dict[str, bytes] = {
    "state set again": dict_of(COPY) + b"q\x010cm\nC\n)R" + b"h\x01b" * AGAIN,
    "one state of many objects": dict_of(COPY) + b"q\x010(" + b"cm\nC\n)Rh\x01b" * AGAIN + b"l",
    "dict of one list": b"](" + b"X\x01\x00\x00\x00aK\x01\x86" * COPY + b"eq\x010("
    + b"cbuiltins\ndict\nh\x01\x85R" * AGAIN + b"l",
    "ordered dict of one list": b"](" + b"X\x01\x00\x00\x00aK\x01\x86" * COPY + b"eq\x010("
    + b"ccollections\nOrderedDict\nh\x01\x85R" * AGAIN + b"l",
    "set of one list": b"](" + b"K\x01" * COPY + b"eq\x010(" + b"cbuiltins\nset\nh\x01\x85R" * AGAIN + b"l",
    "under many names": dict_of(COPY) + b"q\x010" + dict_of(AGAIN, b"h\x01"),
    "object under many names": b"cm\nC\n)R" + dict_of(COPY) + b"bq\x010" + dict_of(AGAIN, b"h\x01"),
    "module of one dict": b"cm\nC\n)R}" + text("_modules") + dict_of(COPY // 4)
    + b"q\x02s" + text("_parameters") + b"h\x02s" + text("_buffers") + b"h\x02sbq\x010" + dict_of(AGAIN, b"h\x01"),
    "names of names": text("a" * 900) * 1 + b"q\x010("+ b"h\x01h\x01\x93" * 2 + b"l",
    "class of texts in texts": b")" + b"q\x01h\x01\x86" * 60 + b"q\x02h\x02\x93",
    "shape of many sides": b"(" + b"K\x00" * COPY + b"tq\x010" + TENSOR.replace(b"K\x01\x85K\x01\x85", b"h\x01h\x01"),
    "storage of a negative size": TENSOR.replace(b"cpuK\x01t", b"cpuJ\xff\xff\xff\xfft"),
    "tensors of one storage": b"}(" + text("w") + TENSOR + b"q\x01"
    + b"".join(text(f"w{i}") + b"h\x01" for i in range(20_001)) + b"u",
    "path of a million letters": b"".join(b"}" + text(letter * 900) for letter in "abc")
    + b"}" + text("w") + TENSOR + b"ssss",
}  # fmt: skip


@pytest.mark.parametrize("name", AMPLIFIED)
def test_pickle_that_copies_its_objects_again_and_again_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(torch_zip(AMPLIFIED[name] + b"."))
    assert "damaged or not a file that torch.save wrote" in reason(tmp_path / "x.pt")


def test_keys_that_could_collide_or_take_long_to_hash_are_not_kept() -> None:
    """2 ** 61 - 1 is the modulus of the hash of integers, so its multiples are all in one place of a dict."""
    collide = b"".join(b"\x8a\x0a" + (i * ((1 << 61) - 1)).to_bytes(10, "little") + b"K\x01" for i in range(1, 9))
    for kept, operations in (
        ([], b"}(" + collide + b"u"),
        ([], b"}(" + text("a" * 2000) + b"K\x01u"),
        ([], b"}(K\x01K\x02\x86K\x01u"),
        (["a", 7, -1], b"}(" + text("a") + b"K\x01K\x07K\x01J\xff\xff\xff\xffK\x01u"),
    ):
        content = interpret(io.BytesIO(START + operations + b"."))
        assert [key for key in content if type(key) is not object] == kept


def test_state_of_an_object_and_keys_of_text_are_kept() -> None:
    content = interpret(io.BytesIO(START + b"cm\nC\n)R}" + text("a") + b"K\x05sb."))
    assert isinstance(content, Opaque) and content.state == {"a": 5}


def test_keys_of_a_legacy_file_are_texts(tmp_path: Path) -> None:
    parts: tuple[Any, ...] = (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {})
    nested = START + b"])" + b"q\x01h\x01\x86" * 60 + b"a."
    (tmp_path / "x.pt").write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + nested)
    assert "damaged" in reason(tmp_path / "x.pt")


def test_class_names_and_arguments_that_fill_the_memory_are_left_out(state: Tensors, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    label, number, numbers = "a" * 30_000, 10**4000, [1.0] * 5000
    beside = {
        "classes": [label] * 5, "class_to_idx": {f"c{i}": number for i in range(5)}, "arch": "vit_tiny",
        "args": {"model_kwargs": {f"x{i}": numbers for i in range(50)}, "crop_pct": number, "mean": numbers},
    }  # fmt: skip
    torch.save({"state_dict": state, **beside}, buffer)
    (tmp_path / "x.pt").write_bytes(buffer.getvalue())
    header = load.read_header((tmp_path / "x.pt").open("rb"), "x.pt")
    assert len(str(header.beside)) < 200_000
    assert reason(tmp_path / "x.pt") == ""
    many = torch_zip(
        b"}(" + text("w") + TENSOR + text("classes") + b"](" + text(label) + b"q\x01" + b"h\x01" * COPY + b"eu."
    )
    (tmp_path / "x.pt").write_bytes(many)
    assert load.read_header((tmp_path / "x.pt").open("rb"), "x.pt").beside == {}


def test_dtype_is_looked_up_and_imports_nothing(tmp_path: Path) -> None:
    v3 = TENSOR.replace(b"tensor_v2", b"tensor_v3").replace(b"\x89)t", b"\x89)ctorch\n%s\nt")
    for dtype in ("_dynamo", "_inductor", "compiler", "float31", "load"):
        (tmp_path / f"{dtype}.pt").write_bytes(torch_zip(b"}" + text("w") + v3.replace(b"%s", dtype.encode()) + b"s."))
    code = (
        "import sys; from pathlib import Path; from vit.checkpoints.load import summarise; before = set(sys.modules);"
        f"print([summarise(path).problem for path in Path({str(tmp_path)!r}).iterdir()], set(sys.modules) - before)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.count("damaged or not a file") == 5 and "torch._" not in printed.partition("]")[2]


def test_large_honest_pickle_opens(state: Tensors, tmp_path: Path) -> None:
    """Optimizer state of 10,000 parameters, 21,000 class names and 1,500 modules."""
    module = torch.nn.Module()
    for i in range(1500):
        module.add_module(f"m{i}", torch.nn.Linear(1, 1))
    steps = {
        i: {"step": torch.tensor(1.0), "exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)} for i in range(5000)
    }
    names = {f"class number {i}": i for i in range(21_000)}
    torch.save(
        {"state_dict": state, "optimizer_states": [{"state": steps}], "class_to_idx": names, "decoder": module},
        tmp_path / "x.ckpt",
    )
    with limit_work("x", 120):
        assert reason(tmp_path / "x.ckpt") == ""


# --- Archives and headers -----------------------------------------------------------------------------------------


def safetensors_file(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + body


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HEADERS: dict[str, bytes] = {
    "objects without end": b'{"a":[' + b"{}," * 600_000 + b"{}]}",
    "lists without end": b'{"a":[' + b"[]," * 600_000 + b"{}]}",
    "numbers without end": b'{"a":[' + b"1," * 1_100_000 + b"1]}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_of_values_without_end_is_not_parsed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json, "loads", None)
    (tmp_path / "x.safetensors").write_bytes(safetensors_file(HEADERS[name]))
    assert "not a valid safetensors file" in summarise(tmp_path / "x.safetensors").problem


def test_long_names_of_tensors_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(safetensors_file(json.dumps({"a." * 600: ONE}).encode(), bytes(4)))
    assert "names that are too long" in reason(tmp_path / "x.safetensors")


def test_large_directory_of_zip64_is_not_read(tmp_path: Path) -> None:
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", *[0] * 16) + b"a"
    local = b"PK\x03\x04" + bytes(22) + struct.pack("<2H", 5, 0) + b"0.npy"
    directory = entry * 100_000
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 10**5, 10**5, len(directory), len(local))
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, len(local) + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 47, len(local), 0)
    (tmp_path / "x.npz").write_bytes(local + directory + record + locator + end)
    with pytest.raises(InvalidCheckpoint) as caught:
        load_checkpoint(tmp_path / "x.npz")
    assert "directory is too large" in str(caught.value.__cause__)


def test_header_is_parsed_once(state: Tensors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    torch.save(state, tmp_path / "x.pt")

    def counted(*arguments: Any) -> Any:
        parsed.append("pickle")
        return original(*arguments)

    original = weight_files.read_zip
    monkeypatch.setattr(weight_files, "read_zip", counted)
    load_checkpoint(tmp_path / "x.pt")
    assert parsed == ["pickle"]


@pytest.mark.parametrize("suffix", ["pt", "safetensors", "npz"])
def test_limit_of_work_is_no_damage(suffix: str, state: Tensors, tmp_path: Path) -> None:
    path = tmp_path / f"x.{suffix}"
    if suffix == "pt":
        torch.save(state, path)
    elif suffix == "safetensors":
        save_file(state, path)
    else:
        np.savez(path, **{name: tensor.numpy() for name, tensor in state.items()})
    with limit_work("x", -1.0), pytest.raises(TooMuchWork):
        load_checkpoint(path)
    with limit_work("x", -1.0):
        assert "so it was stopped" in summarise(path).problem


# --- Tensors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_missing_patch_embedding_is_a_row_with_a_sentence(suffix: str, state: Tensors, tmp_path: Path) -> None:
    for folder in ("bad", "good"):
        (tmp_path / folder).mkdir()
        tensors = {name: one for name, one in state.items() if folder == "good" or name != "patch_embed.proj.weight"}
        path = tmp_path / folder / f"model.{suffix}"
        torch.save(tensors, path) if suffix == "pt" else save_file(tensors, path)
    bad, good = list_checkpoints(tmp_path)
    assert "The weights are incomplete: `patch_embed.weight` is missing." in bad.problem and not good.problem
    with pytest.raises(InvalidCheckpoint, match="incomplete"):
        load_checkpoint(tmp_path / "bad")


def test_many_models_in_one_file_are_refused() -> None:
    names = [f"m{i}.{name}" for i in range(60) for name in ("patch_embed.proj.weight", "blocks.0.norm1.weight")]
    with pytest.raises(InvalidCheckpoint, match="holds 60 models, more than 50"):
        recognition.parts_of({name: torch.empty(4, 3, 2, 2, device="meta") for name in names})


def test_models_in_models_are_refused() -> None:
    start = "a." * 400
    names = {f"{start[: 2 * i]}patch_embed.proj.weight": None for i in range(400)}
    names |= {f"{start}w{i}": None for i in range(1000)}
    with pytest.raises(InvalidCheckpoint, match="models in models"):
        recognition.parts_of(dict.fromkeys(names, torch.empty(4, 3, 2, 2, device="meta")))


def opened(tensors: Tensors, document: dict[str, Any] | None = None, name: str = "x", ours: bool = False) -> None:
    """Do what listing and opening do with shapes; raise InvalidCheckpoint of one short sentence."""
    try:
        recognition.parts_of(tensors)
        reading = recognition.read(dict(tensors), document, ours, name=name)
        recognition.used(tensors, ours)
        load.empty_model(reading)
        load.read_labels(document, reading)
        load.read_preprocess(None, document, reading, name)
    except InvalidCheckpoint as error:
        assert 0 < len(str(error)) <= 250
        raise


def cases(family: Family) -> Iterator[tuple[str, Tensors]]:
    for variant, shapes in shapes_of(family):
        tensors = in_file(family, shapes)
        for name in tensors:
            if not any(start in name for start in ("blocks.1.", "layer.1.", "layers.1.", "layer_1.", "block_1/")):
                for what, others in changed(tensors, name):
                    yield f"{family.name}, {variant}: {name} {what}", others


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_read_from_its_shapes(family: Family) -> None:
    opened(in_file(family, dict(shapes_of(family))["plain"]))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.complex64, torch.int64])
def test_numbers_that_no_weights_are_made_of_are_named(dtype: torch.dtype) -> None:
    tintn = next(family for family in FAMILIES if family.name == "tintn")
    tensors = in_file(tintn, dict(shapes_of(tintn))["layers of heads"])
    name = "encoder.blocks.0.attention.heads.1.query.bias"
    with pytest.raises(InvalidCheckpoint, match="is stored as"):
        opened(tensors | {name: torch.empty(64, dtype=dtype, device="meta")})


VISION = {"vision": {"width": 192, "layers": 2, "image_size": 32, "patch_size": 8}}


@pytest.mark.parametrize(
    "stated", ["x", 1, [], {"vision": 1}, VISION | {"picture": []}, VISION | {"picture": {"mean": 1}}]
)
def test_config_that_imitates_ours_of_open_clip_is_checked(stated: Any) -> None:
    clip = next(family for family in FAMILIES if family.name == "OpenAI CLIP")
    with pytest.raises(InvalidCheckpoint, match=r"of open_clip_config\.json"):
        opened(in_file(clip, dict(shapes_of(clip))["plain"]), {"open_clip": stated})


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_any_changed_tensor_gives_a_sentence_or_opens(family: Family) -> None:
    every = list(cases(family))
    for what, tensors in random.Random(0).sample(every, min(300, len(every))):
        try:
            opened(tensors)
        except InvalidCheckpoint:
            pass
        except Exception as error:
            raise AssertionError(what) from error


# --- config.json --------------------------------------------------------------------------------------------------

TIMM = {
    "architecture": "vit_tiny_patch16_224", "num_classes": 5, "num_features": 192, "global_pool": "token",
    "label_names": list("abcde"), "label_descriptions": {letter: letter for letter in "abcde"},
    "model_args": {
        "img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 2, "num_heads": 3, "act_layer": "gelu",
        "global_pool": "token", "pool_include_prefix": False, "rope_temperature": None, "ref_feat_shape": None,
    },
    "pretrained_cfg": {
        "input_size": [3, 32, 32], "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
        "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "label_names": list("abcde"), "num_classes": 5,
    },
    "timm_arguments": {"mean": [0.5], "std": [0.5], "crop_pct": 0.9, "input_size": [3, 32, 32]},
    "training": {"accuracy": 0.5}, "problem_type": None,
}  # fmt: skip
THEIRS = {
    "hidden_size": 192, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 384,
    "hidden_act": "gelu", "layer_norm_eps": 1e-6,
    "image_size": 32, "patch_size": 8, "num_channels": 3, "qkv_bias": True, "mlp_ratio": 2,
    "id2label": {str(i): letter for i, letter in enumerate("abcde")}, "label2id": {}, "problem_type": None,
    "rope_theta": 100.0, "use_swiglu_ffn": False,
}  # fmt: skip
OPEN_CLIP = {
    "open_clip": {
        "quick_gelu": False,
        "picture": {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "x"},
        "vision": {"width": 192, "layers": 2, "patch_size": 8, "image_size": 32, "head_width": 64, "pool_type": "tok",
                   "norm_kwargs": {"eps": 1e-5}},
    }
}  # fmt: skip
KINDS = {
    "transformers": "vit", "transformers BEiT": "beit", "transformers DINOv2": "dinov2", "DINOv3": "dinov3_vit",
    "DINOv2 with registers": "dinov2_with_registers", "CLIP": "clip_vision_model", "SigLIP": "siglip_vision_model",
}  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, "", "gelu", "x" * 10_000, [], [1], ["gelu"], [[]], {}, {"a": 1}, {"0": []}, 0, 1, -1, 3, 10**30,
    -(10**30), 0.5, -0.0, 1e300, float("inf"), float("nan"), [0, 0], [1, 2, 3], [-1, 10**9], [3, 32, "32"], [None] * 3,
    [0.0] * 3, [float("nan")] * 3, [1e-320] * 3, "\ud800", "\x00", {"0": "a", "1": [], "x": None}, [{}] * 5, [10**400],
)  # fmt: skip


def document_of(family: Family) -> dict[str, Any]:
    if family.name == "OpenAI CLIP":
        return OPEN_CLIP
    return THEIRS | {"model_type": KINDS[family.name]} if family.name in KINDS else TIMM | THEIRS


def mutated(value: Any, rng: random.Random) -> Any:
    """Return a JSON value with one part replaced, left out or wrapped."""
    value = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []
    todo = [value]
    while todo:
        node = todo.pop()
        keys = node if isinstance(node, dict) else range(len(node))
        places += [(node, key) for key in keys]
        todo += [node[key] for key in keys if isinstance(node[key], dict | list)]
    node, key = rng.choice(places)
    match rng.randrange(6):
        case 0 if isinstance(node, dict):
            del node[key]
        case 1:
            node[key] = [node[key]]
        case 2:
            node[key] = {"a": node[key]}
        case 3 if isinstance(node[key], int | float | str):
            node[key] = node[key] * rng.choice((-1, 0, 2, 1000))
        case _:
            node[key] = copy.deepcopy(rng.choice(VALUES))
    return value


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_any_config_gives_a_sentence_or_opens(family: Family) -> None:
    rng, tensors = random.Random(1), in_file(family, dict(shapes_of(family))["plain"])
    for _ in range(200):
        document = mutated(document_of(family), rng)
        for _ in range(rng.randrange(2)):
            document = mutated(document, rng) if document else document
        try:
            opened(tensors, document)
        except InvalidCheckpoint:
            pass
        except Exception as error:
            raise AssertionError(repr(document)[:3000]) from error


@pytest.mark.parametrize(
    ("field", "value"),
    [("act_layer", ["gelu"]), ("act_layer", {}), ("global_pool", {"a": 1}), ("num_heads", "3"), ("img_size", [])],
)
def test_arguments_of_odd_types_are_refused_in_a_sentence(
    field: str, value: Any, state: Tensors, tmp_path: Path
) -> None:
    save_file(state, tmp_path / "model.safetensors")
    document = {"architecture": "vit_tiny_patch16_224", "model_args": {field: value}}
    (tmp_path / "config.json").write_text(json.dumps(document))
    assert "config" in (words := reason(tmp_path)).lower() or "pools by" in words


def test_architecture_of_a_megabyte_is_no_work(state: Tensors, tmp_path: Path) -> None:
    """Matching takes the square of its length."""
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "vit_a_" * 200_000}))
    reason(tmp_path)


def test_hostile_config_of_ours_computes_nothing_large(saved: Path) -> None:
    document = json.loads((saved / "config.json").read_text())
    for changes in (
        {"image_size": [4096, 4096], "patch_size": 512},
        {"image_size": [512, 512], "heads": 64, "depth": 100},
    ):
        (saved / "config.json").write_text(json.dumps(document | {"vit": document["vit"] | changes}))
        assert "than are computed here" in reason(saved)


# --- Listing ------------------------------------------------------------------------------------------------------


def test_listing_answers_for_whatever_lies_in_the_folder(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = saved.parent
    bad = {name: root / name for name in ("broken-link", "loop", "pipe", "names", "deep", "locked", "socket")}
    for folder in bad.values():
        folder.mkdir()
    (bad["broken-link"] / "model.safetensors").symlink_to("nowhere")
    (bad["loop"] / "model.safetensors").symlink_to("model.safetensors")
    os.mkfifo(bad["pipe"] / "model.safetensors")
    (bad["names"] / os.fsdecode(b"\xff\xfe.pt")).write_bytes(b"\xff")
    (bad["deep"] / "model.safetensors").mkdir()
    os.mkfifo(bad["socket"] / "config.json")
    (bad["socket"] / "model.safetensors").write_bytes(b"x")
    bad["locked"].chmod(0)
    (root / "file").write_bytes(b"x")
    (root / "dangling").symlink_to("nowhere")
    (root / os.fsdecode(b"\xff")).mkdir()
    rows = {info.name: info.problem for info in list_checkpoints(root)}
    bad["locked"].chmod(0o700)
    assert rows.pop(saved.name) == "" and rows.keys() == bad.keys() and all(rows.values())
    for problem in rows.values():
        problem.encode()  # no surrogates


def test_unexpected_error_is_a_sentence_and_is_logged(
    saved: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*arguments: Any, **more: Any) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(recognition, "read", broken)
    assert "cannot be read" in summarise(saved).problem and "a fault of ours" in caplog.text
    with pytest.raises(InvalidCheckpoint, match="cannot be read"):
        load_checkpoint(saved)


# --- Fuzzers of the readers ---------------------------------------------------------------------------------------


def flipped(data: bytes, rng: random.Random, span: int) -> bytes:
    """Return data with up to five changes in its first bytes, or in its last ones."""
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(min(span, len(changed)))
        at = at if rng.random() < 0.7 else len(changed) - 1 - at
        match rng.randrange(4):
            case 0:
                changed[at] = rng.randrange(256)
            case 1:
                changed[at] ^= 1 << rng.randrange(8)
            case 2:
                del changed[at : at + rng.randrange(1, 20)]
            case _:
                changed[at:at] = rng.choice((b"\xff" * 8, bytes(8), changed[at : at + 40], b"2" * 20, b"h\x00s", b"PK"))
    return bytes(changed)


def refused_or_opened(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with limit_work(path.name, 20):
        summarise(path)
        try:
            load_checkpoint(path)
        except InvalidCheckpoint as error:
            assert "unlike all known" not in str(error), str(error)


Write = Callable[[Tensors, Path], Any]
WRITERS: dict[str, tuple[str, Write]] = {
    "pickle": ("x.pt", lambda state, path: torch.save({"state_dict": state, "args": {"a": 1}, "arch": "vit_x"}, path)),
    "legacy pickle": ("x.pth", lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False)),
    "safetensors": ("x.safetensors", save_file),
    "npz": ("x.npz", lambda state, path: np.savez(path, **{name: one.numpy() for name, one in state.items()})),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", WRITERS)
def test_any_damage_gives_a_sentence_or_opens(kind: str, state: Tensors, tmp_path: Path) -> None:
    name, write = WRITERS[kind]
    write(state, tmp_path / name)
    data, rng = (tmp_path / name).read_bytes(), random.Random(2)
    for _ in range(200):
        refused_or_opened(tmp_path / name, flipped(data, rng, 3000))


@pytest.mark.exhaustive
def test_any_operations_of_a_pickle_give_a_sentence(tmp_path: Path) -> None:
    pieces = [bytes([code]) for code in b"()]}012Ntldeusab\x88\x8fR\x81\x85\x86\x87Q\x90\x91\x92\x93\x94o"] + [
        b"K\x01", b"J\xff\xff\xff\xff", b"q\x01", b"h\x01", b"q\x02", b"h\x02", b"cm\nC\n", b"cbuiltins\nset\n",
        b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n", TENSOR, text("classes"), dict_of(9),
        b"ctorch._tensor\n_rebuild_from_type_v2\n", text("_modules"), text("state_dict"), text("args"),
        b"\x8a\x0a" + b"\x01" * 10, b"\x8b\xff\xff\xff\x7f", b"\x8d" + b"\xff" * 8, b"\x95" + b"\xff" * 8,
        b"G" + bytes(8), b"I" + b"1" * 9 + b"\n", b"Va\n", b"S'a'\n", b"F1e9\n",
    ]  # fmt: skip
    rng = random.Random(3)
    for _ in range(1000):
        operations = b"".join(rng.choice(pieces) * rng.choice((1, 1, 1, 40)) for _ in range(rng.randrange(60)))
        refused_or_opened(tmp_path / "x.pt", torch_zip(operations + b"."))


@pytest.mark.exhaustive
def test_any_header_of_safetensors_gives_a_sentence(state: Tensors, tmp_path: Path) -> None:
    save_file(state, tmp_path / "x.safetensors", {"format": "pt", "labels": '["a"]'})
    data = (tmp_path / "x.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, rng = json.loads(data[8 : 8 + length]), random.Random(4)
    for _ in range(200):
        try:
            raw = json.dumps(mutated(header, rng)).encode()
        except UnicodeEncodeError:
            continue
        refused_or_opened(tmp_path / "x.safetensors", safetensors_file(raw, data[8 + length :]))
