"""Downloads of weights in several files."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from hub_server import HubServer, refusal
from tiny_repository import images, without
from torch import nn

import vit
from vit.checkpoints.hub import download
from vit.checkpoints.hub import models as hub

INDEX = "model.safetensors.index.json"


@pytest.fixture
def shards(server: HubServer, theirs: nn.Module, tmp_path: Path) -> dict[str, bytes]:
    """Publish the tiny model's weights in several files, as transformers writes them, as ada/split."""
    theirs.save_pretrained(tmp_path / "split", max_shard_size="100KB")  # type: ignore[operator]
    files = {path.name: path.read_bytes() for path in (tmp_path / "split").iterdir()}
    server.publish("ada/split", files)
    result = {name: files[name] for name in sorted(files) if name.endswith(".safetensors")}
    assert len(result) >= 3
    return result


def test_sharded_weights_load_equal_to_transformers(
    server: HubServer, shards: dict[str, bytes], theirs: nn.Module
) -> None:
    reports: list[tuple[int, int | None]] = []
    folder = hub.fetch("ada/split", lambda *step: reports.append(step)).folder
    assert {name: (folder / name).read_bytes() for name in shards} == shards
    size = sum(map(len, shards.values()))
    assert reports == sorted(reports) and reports[-1] == (size, size) and {total for _, total in reports} == {size}
    with torch.inference_mode():
        logits = vit.load_checkpoint("ada/split").model(images()).logits
        assert torch.allclose(logits, theirs(images()).logits, rtol=1e-5, atol=1e-5)


def test_shards_that_arrived_whole_are_kept(server: HubServer, shards: dict[str, bytes]) -> None:
    first = len(next(iter(shards.values())))

    def stop(done: int, total: int | None) -> None:
        if done > first:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch("ada/split", stop)
    assert hub.cached() == []
    server.requests.clear()
    hub.fetch("ada/split")
    hashes = [hashlib.sha256(content).hexdigest() for content in shards.values()]
    assert [request.path.rpartition("/")[2] for request in server.requests_of("/blobs/")] == hashes[1:]


def test_shard_missing_on_the_hub_is_named_before_any_is_fetched(server: HubServer, shards: dict[str, bytes]) -> None:
    _, commit = server.repositories["ada/split"].branches.popitem()
    files = server.repositories["ada/split"].commits[commit]
    last = list(shards)[-1]
    server.publish("ada/split", without(files, last))
    assert f"lacks {last}, one of the files that {INDEX} names" in refusal("ada/split")
    for name in (
        "../x.safetensors",
        "/etc/x.bin",
        "a/b.safetensors",
        ".x.safetensors",
        "config.json",
        "x.safetensors?",
    ):
        index = json.dumps({"weight_map": {"a": name}}).encode()
        server.publish("ada/split", files | {INDEX: index})
        assert "which is not a file of weights beside it" in refusal("ada/split")
    server.publish("ada/split", files | {INDEX: b"{}"})
    assert "has no weight_map" in refusal("ada/split")
    assert server.requests_of("/blobs/") == []


def test_disk_must_have_room_for_all_shards(
    server: HubServer, shards: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in shards:
        server.headers[name] = {"X-Linked-Size": str(5 << 30)}
    assert f"have {len(shards) * (5 << 30) / 1e6:,.0f} MB; at most 12,885 MB" in refusal("ada/split")
    server.headers.clear()
    size = sum(map(len, shards.values()))
    usage = type("Usage", (), {"free": size + 500})
    monkeypatch.setattr(download.shutil, "disk_usage", lambda path: usage)
    assert "MB stay free" in refusal("ada/split", keep_free=501)
    assert server.requests_of("/blobs/") == []
    hub.fetch("ada/split", keep_free=500)
