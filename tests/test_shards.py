"""Sharded weights with an index, as transformers writes large models: all is validated before weights are read."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from subprocesses import output_of
from test_large import PEAK
from test_parity import ask_transformers
from tiny import difference, fill
from torch import nn

from vit.checkpoints import folder as files
from vit.checkpoints import load, manage
from vit.checkpoints.load import load_checkpoint, summarise
from vit.errors import InvalidCheckpoint

SMALL: dict[str, Any] = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
    id2label={0: "apple", 1: "bus", 2: "cat"},
)  # fmt: skip
INDEX = "model.safetensors.index.json"
TOLERANCE = 1e-5


def model(**changes: Any) -> nn.Module:
    """A tiny transformers model, every parameter random."""
    config = transformers.ViTConfig(**SMALL | changes)
    config._attn_implementation = "eager"
    return fill(transformers.ViTForImageClassification(config))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Its files as transformers writes them, in at least three shards."""
    model().save_pretrained(tmp_path / "split", max_shard_size="100KB")  # type: ignore[operator]
    assert len(shards(tmp_path / "split")) >= 3 and not (tmp_path / "split" / "model.safetensors").exists()
    return tmp_path / "split"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("*-of-*"))


def to_pytorch(folder: Path) -> None:
    """Convert to the format of older versions of transformers."""
    index = json.loads((folder / INDEX).read_text())
    for path in shards(folder):
        torch.save(load_file(path), folder / path.name.replace("model", "pytorch_model").replace("safetensors", "bin"))
        path.unlink()
    index_naming = {
        k: v.replace("model", "pytorch_model").replace("safetensors", "bin") for k, v in index["weight_map"].items()
    }
    (folder / INDEX).unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index | {"weight_map": index_naming}))


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_logits_and_attention_equal_transformers(folder: Path, pictures: Any, kind: str) -> None:
    if kind == "bin":
        to_pytorch(folder)
    theirs = transformers.ViTForImageClassification.from_pretrained(folder, attn_implementation="eager")
    expected, checkpoint = ask_transformers(theirs, pictures()), load_checkpoint(folder)
    result = checkpoint.model(pictures(), output_attentions=True)
    assert difference(result.logits, expected.logits) <= TOLERANCE
    for mine, their in zip(result.attentions, expected.attentions, strict=True):
        assert (mine - their).abs().max() <= TOLERANCE
    assert (checkpoint.name, checkpoint.labels) == ("split", ("apple", "bus", "cat"))


@torch.inference_mode()
def test_comparison_would_notice_a_tensor_of_another_file(folder: Path, pictures: Any) -> None:
    path = shards(folder)[1]
    tensors = load_file(path)
    one, other = [name for name, tensor in tensors.items() if tensor.shape == (64, 64)][:2]
    tensors[one], tensors[other] = tensors[other], tensors[one]
    save_file(tensors, path)
    result = load_checkpoint(folder).model(pictures()).logits
    assert difference(result, ask_transformers(model(), pictures()).logits) > 1e-3


def test_hash_covers_all_files_in_the_order_of_their_names(folder: Path) -> None:
    before = load_checkpoint(folder).hash
    assert before == hashlib.sha256(b"".join(path.read_bytes() for path in shards(folder))).hexdigest()[:16]
    to_pytorch(folder)
    expected = hashlib.sha256(b"".join(path.read_bytes() for path in shards(folder))).hexdigest()[:16]
    assert load_checkpoint(folder).hash == expected != before


def test_index_opens_like_its_folder_and_a_single_file_has_priority(folder: Path) -> None:
    assert load_checkpoint(folder / INDEX).name == "split"
    assert load_checkpoint(folder / INDEX).hash == load_checkpoint(folder).hash
    other = fill(model(), 3)
    other.save_pretrained(folder.parent / "whole")  # type: ignore[operator]
    (folder.parent / "whole" / "model.safetensors").rename(folder / "model.safetensors")
    whole = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()[:16]
    assert load_checkpoint(folder).hash == whole  # as transformers does


def test_listing_shows_the_total_size(folder: Path) -> None:
    info = summarise(folder)
    assert info.size == sum(path.stat().st_size for path in shards(folder))
    assert (info.labels, info.problem) == (3, "")
    assert info.params == sum(p.numel() for p in load_checkpoint(folder).model.parameters())


def test_added_checkpoint_may_be_sharded(folder: Path, tmp_path: Path) -> None:
    files = {path.name: io.BytesIO(path.read_bytes()) for path in folder.iterdir()}
    kept = manage.add(files, "mine", tmp_path / "shelf")
    assert load_checkpoint(kept).hash == load_checkpoint(folder).hash
    (folder / INDEX).unlink()
    files = {path.name: io.BytesIO(path.read_bytes()) for path in folder.iterdir()}
    with pytest.raises(InvalidCheckpoint, match="Upload exactly one file of weights"):
        manage.add(files, "other", tmp_path / "shelf")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_loading_holds_the_weights_once(folder: Path, tmp_path: Path) -> None:
    large = model(hidden_size=768, num_hidden_layers=4, num_attention_heads=12, intermediate_size=3072)
    large.save_pretrained(tmp_path / "large", max_shard_size="15MB")  # type: ignore[operator]
    assert len(shards(tmp_path / "large")) > 4
    peak, parameters = map(int, output_of(PEAK, folder, tmp_path / "large").split())
    assert parameters == pytest.approx(sum(p.nbytes for p in large.parameters()), rel=0.01)
    assert peak < 1.6 * parameters


# --- Refusals -------------------------------------------------------------------------------------------------


def mapped(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Change the index's map from tensors to files."""

    def changed(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_text())
        change(document["weight_map"])
        (folder / INDEX).write_text(json.dumps(document))

    return changed


def index_naming(name: Any) -> Callable[[Path], None]:
    return mapped(lambda places: places.update({"vit.layernorm.bias": name}))


def piped(folder: Path) -> None:
    path = shards(folder)[1]
    path.unlink()
    os.mkfifo(path)


def linked(folder: Path) -> None:
    path = shards(folder)[1]
    path.rename(folder.parent / "elsewhere.safetensors")
    path.symlink_to(folder.parent / "elsewhere.safetensors")


def repeated(folder: Path) -> None:
    """Store a tensor in two files."""
    first, second, *_ = shards(folder)
    tensors = load_file(first)
    save_file(load_file(second) | {name: tensors[name] for name in list(tensors)[:1]}, second)


def elsewhere(folder: Path) -> None:
    """Exchange the file of a tensor in the index."""
    index_naming(shards(folder)[-1].name)(folder)


def cut(folder: Path) -> None:
    path = shards(folder)[-1]
    path.write_bytes(path.read_bytes()[:-4])


OUTSIDE = "which is not a file of weights beside it"
BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a file is missing": (lambda folder: shards(folder)[1].unlink(), "model-00002-of-0000. *.safetensors is missing"),
    "a path": (index_naming("sub/model.safetensors"), OUTSIDE),
    "a way up": (index_naming("../elsewhere.safetensors"), OUTSIDE),
    "from the root": (index_naming("/etc/model.safetensors"), OUTSIDE),
    "hidden": (index_naming(".model.safetensors"), OUTSIDE),
    "another kind of file": (index_naming("config.json"), OUTSIDE),
    "a line": (index_naming("model\n.safetensors"), OUTSIDE),
    "a number": (index_naming(1), OUTSIDE),
    "a list": (index_naming(["model.safetensors"]), OUTSIDE),
    "many": (mapped(lambda m: m.update({str(i): f"{i}.bin" for i in range(500)})), "at most 200"),
    "a link": (linked, "is a link"),
    "a pipe": (piped, "not a regular file"),
    "index as a link": (
        lambda folder: ((folder / INDEX).rename(folder / "x"), (folder / INDEX).symlink_to("x")),
        "is a link",
    ),
    "a tensor twice": (repeated, "does not hold what model.safetensors.index.json says"),
    "a tensor elsewhere": (elsewhere, "does not hold what model.safetensors.index.json says"),
    "a tensor nowhere": (mapped(lambda places: places.update({"x": next(iter(places.values()))})), "such as `x`"),
    "a tensor too many": (mapped(lambda places: places.pop("vit.layernorm.bias")), "such as `vit.layernorm.bias`"),
    "no map": (lambda folder: (folder / INDEX).write_text("{}"), "has no weight_map"),
    "an empty map": (lambda folder: (folder / INDEX).write_text('{"weight_map": {}}'), "has no weight_map"),
    "a map that is a list": (lambda folder: (folder / INDEX).write_text('{"weight_map": [1]}'), "has no weight_map"),
    "no JSON": (lambda folder: (folder / INDEX).write_text("{"), "not valid JSON"),
    "one name twice": (lambda folder: (folder / INDEX).write_text('{"weight_map": {"a": "b", "a": "c"}}'), "not valid"),
    "a file cut short": (cut, "not a valid safetensors file"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_index_or_shard_is_refused_before_weights_are_read(
    folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil, sentence = BAD[case]
    spoil(folder)
    monkeypatch.setattr(load, "read_tensors", None)
    with pytest.raises(InvalidCheckpoint, match=sentence) as caught:
        load_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 400, message
    assert summarise(folder).problem == message


def test_shards_with_too_large_a_total_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    total = sum(path.stat().st_size for path in shards(folder))
    monkeypatch.setattr(files, "MAX_WEIGHTS", total - 1)
    with pytest.raises(InvalidCheckpoint, match="MB in total; the limit"):
        load_checkpoint(folder)
    monkeypatch.setattr(files, "MAX_WEIGHTS", total)
    load_checkpoint(folder)
