"""Refused downloads: other models, incomplete and closed repositories, errors of the Hub, and hostile servers."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from hub_server import HubServer, refusal
from tiny_repository import REPOSITORY, without

import vit
from vit.checkpoints.hub import models as hub
from vit.errors import Unavailable

# --- Refusals -----------------------------------------------------------------------------------------------------

TOWERS = {"model_type": "blip", "vision_config": {"hidden_size": 64}}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "Swin": ({"model_type": "swin"}, 'a "swin" model of transformers'),
    "BERT": ({"model_type": "bert"}, "reads plain Vision Transformers"),
    "two towers": (TOWERS, "reads plain Vision Transformers"),
    "timm's ResNet": ({"architecture": "resnet50"}, "timm's resnet50"),
    "timm's Swin": ({"architecture": "swin_tiny_patch4_window7_224"}, "timm's swin_tiny"),
    "relative": ({"architecture": "vit_relpos_base_patch16_224"}, "its positions are relative"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_non_vit_is_refused_before_its_weights_are_requested(
    server: HubServer, files: dict[str, bytes], name: str
) -> None:
    config, why = REFUSED[name]
    server.publish("ada/other", files | {"config.json": json.dumps(config).encode()})
    output = refusal("ada/other")
    assert why in output and "ada/other" in output
    assert not any("model.safetensors" in one.path or one.host == "store" for one in server.requests)


def test_repository_that_lacks_required_files_says_so(server: HubServer, files: dict[str, bytes]) -> None:
    server.publish("ada/no-config", without(files, "config.json"))
    server.publish("ada/no-weights", without(files, "model.safetensors"))
    server.publish("ada/broken", files | {"config.json": b"{"})
    assert "has no config.json" in refusal("ada/no-config")
    assert "holds neither model.safetensors nor pytorch_model.bin" in refusal("ada/no-weights")
    assert "config.json is not valid JSON" in refusal("ada/broken")


def test_unknown_names_are_refused(server: HubServer, published: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "has no repository 'ada/nothing', or it is private: then set HF_TOKEN." in refusal("ada/nothing")
    assert "has no revision 'v9'" in refusal(f"{REPOSITORY}@v9")
    assert "has no revision" in refusal(f"{REPOSITORY}@{'0' * 40}")
    monkeypatch.setenv("HF_TOKEN", server.token)
    assert "has no repository 'ada/nothing', or it is closed to the token" in refusal("ada/nothing")


@pytest.mark.parametrize(("closed", "said"), [("private", "set HF_TOKEN"), ("gated", "Accept them at")])
def test_gated_repository_opens_with_the_token_which_is_sent_only_to_the_hub(
    server: HubServer, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, closed: str, said: str
) -> None:
    server.publish("ada/closed", files, closed=closed)
    assert said in refusal("ada/closed")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not accept the token" in refusal("ada/closed")
    monkeypatch.setenv("HF_TOKEN", server.token)
    server.requests.clear()
    fetched = hub.fetch("ada/closed")
    assert server.token not in "".join(path.read_text("latin-1") for path in fetched.folder.iterdir())
    held = {
        host: {"authorization" in one.headers for one in server.requests if one.host == host}
        for host in ("hub", "store")
    }
    assert held == {"hub": {True}, "store": {False}}


def test_message_without_network_lists_downloaded_checkpoints(
    server: HubServer, published: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    output = refusal("ada/other")
    assert "127.0.0.1:9 cannot be reached" in output and "Nothing was fetched before." in output
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    hub.fetch(REPOSITORY)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=f"cannot be reached .* On this disk: {REPOSITORY}@{published}"):
        vit.load_checkpoint("ada/other")
    assert vit.load_checkpoint(REPOSITORY).labels
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(Unavailable, match=f"HF_HUB_OFFLINE is set.* On this disk: {REPOSITORY}@{published}"):
        hub.fetch("ada/other")


@pytest.mark.parametrize(("status", "said"), [(500, "answered 500"), (429, "asked too often"), (403, "answered 403")])
def test_errors_of_the_hub_are_reported(server: HubServer, published: str, status: int, said: str) -> None:
    server.status = status
    assert said in refusal(REPOSITORY)


def test_too_large_a_checkpoint_is_refused_before_download(server: HubServer, published: str) -> None:
    server.headers["model.safetensors"] = {"X-Linked-Size": str(16 << 30)}
    assert "have 17,180 MB; at most 12,885 MB" in refusal(REPOSITORY)
    server.headers.clear()
    assert "MB stay free" in refusal(REPOSITORY, keep_free=1 << 60)
    assert server.requests_of("/blobs/") == []


# --- Hostile servers ----------------------------------------------------------------------------------------------

LIES: dict[str, tuple[str, dict[str, str], str]] = {
    "commit as a path": ("config.json", {"X-Repo-Commit": "../../../evil"}, "names no commit"),
    "no commit": ("config.json", {"X-Repo-Commit": ""}, "names no commit"),
    "file of ours": ("model.safetensors", {"Location": "file:///etc/passwd"}, "cannot be reached"),
    "ftp": ("model.safetensors", {"Location": "ftp://127.0.0.1/x"}, "cannot be reached"),
    "data": ("model.safetensors", {"Location": "data:,x"}, "cannot be reached"),
    "no address": ("model.safetensors", {"Location": "http://[::1"}, "Invalid IPv6 URL"),
    "other size": ("model.safetensors", {"X-Linked-Size": "5"}, "5 that were announced"),
    "other hash": ("model.safetensors", {"X-Linked-Etag": f'"{"0" * 64}"'}, "its hash or size differs"),
}


@pytest.mark.parametrize(
    "lie",
    [pytest.param(lie, marks=[pytest.mark.exhaustive] * (lie in ("data", "no address"))) for lie in LIES],
)
def test_lying_server_is_refused(server: HubServer, published: str, tmp_path: Path, lie: str) -> None:
    file, headers, said = LIES[lie]
    server.headers[file] = headers
    assert said in refusal(REPOSITORY)
    assert not (tmp_path / "evil").exists() and "model.safetensors" not in {path.name for path in tmp_path.rglob("*")}


STRANGE = (
    b"<title>Please log in</title>", b"[]", b"{}", b'{"id": 1}', b'{"id": "a/b", "sha": 1}',
    b'{"id": "a/b", "siblings": [1]}', b'{"id": "a/b", "siblings": [{"rfilename": 1}]}',
)  # fmt: skip


@pytest.mark.parametrize("page", STRANGE)
def test_html_page_in_place_of_the_hub_is_detected(server: HubServer, published: str, page: bytes) -> None:
    server.page = page
    assert "does not answer as the Hugging Face Hub does" in refusal(REPOSITORY)


def test_error_names_the_store_if_it_lacks_the_file(server: HubServer, published: str) -> None:
    server.headers["model.safetensors"] = {"Location": f"{server.store}/blobs/none"}
    assert f"{server.store.removeprefix('http://')} answered 404" in refusal(REPOSITORY)


def test_content_other_than_published_is_refused(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    weights = files["model.safetensors"]
    server.sent["model.safetensors"] = weights[:-1] + bytes([weights[-1] ^ 1])
    assert "its hash or size differs" in refusal(REPOSITORY)
