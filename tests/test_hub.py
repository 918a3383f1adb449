"""Downloads of checkpoints: the Hub's protocol, interrupted downloads, refusals, and hostile servers."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
import transformers
from hub_server import HubServer, empty_hub, refusal
from PIL import Image
from text_models import clip
from tiny import fill
from torch import Tensor, nn

import vit
from vit.checkpoints import download, hub
from vit.checkpoints.hub import Name
from vit.cli.main import main
from vit.errors import InvalidCheckpoint, Unavailable
from vit.paths import downloads_folder

ROOT = Path(vit.__file__).parent.parent
REPOSITORY = "ada/tiny-vit"
SMALL = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
    id2label={0: "apple", 1: "bus", 2: "cat"},
)  # fmt: skip
TIMM = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)


@pytest.fixture(scope="session")
def theirs() -> nn.Module:
    """A tiny transformers model."""
    return fill(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)))


@pytest.fixture(scope="session")
def files(theirs: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files that transformers writes for it, and other files as in a repository."""
    folder = tmp_path_factory.mktemp("transformers")
    theirs.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    (folder / "README.md").write_text("# A tiny model")
    (folder / "open_clip_model.safetensors").write_bytes(b"other weights")
    (folder / "modeling_tiny.py").write_text("print('code')")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    with empty_hub(tmp_path) as server:
        yield server


@pytest.fixture
def published(server: HubServer, files: dict[str, bytes]) -> str:
    """Publish the tiny model, and return the commit."""
    return server.publish(REPOSITORY, files)


def environment(**changes: str) -> dict[str, str]:
    """Environment of a separate process with network access."""
    return {k: v for k, v in os.environ.items() if "OFFLINE" not in k} | changes


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


# --- The server of these tests ------------------------------------------------------------------------------------


def test_huggingface_hub_itself_downloads_from_the_test_server(
    server: HubServer, published: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    api = huggingface_hub.HfApi(server.url)
    assert api.model_info(REPOSITORY).sha == published
    assert {file.rfilename for file in api.model_info(REPOSITORY).siblings or ()} == files.keys()
    for file in ("config.json", "model.safetensors"):
        path = api.hf_hub_download(REPOSITORY, file, local_dir=tmp_path / "theirs")
        assert Path(path).read_bytes() == files[file]
    with pytest.raises(huggingface_hub.errors.RepositoryNotFoundError):
        api.hf_hub_download("ada/nothing", "config.json", local_dir=tmp_path)
    with pytest.raises(huggingface_hub.errors.RevisionNotFoundError):
        api.hf_hub_download(REPOSITORY, "config.json", revision="no", local_dir=tmp_path)


# --- Downloads ----------------------------------------------------------------------------------------------------


def test_name_on_the_hub_loads_equal_to_transformers(server: HubServer, published: str, theirs: nn.Module) -> None:
    checkpoint = vit.load_checkpoint(REPOSITORY)
    with torch.inference_mode():
        assert torch.allclose(checkpoint.model(images()).logits, theirs(images()).logits, rtol=1e-5, atol=1e-5)
    assert checkpoint.labels == ("apple", "bus", "cat")
    assert checkpoint.name == f"{REPOSITORY}@{published}"
    assert checkpoint.card == "# A tiny model"
    assert not {"labels", "preprocess", "heads", "eps"} & checkpoint.assumed.keys()


def test_timm_model_on_the_hub_loads_equal_to_timm(server: HubServer, tmp_path: Path) -> None:
    model = fill(timm.create_model("vit_base_patch16_224", **TIMM))
    timm.models.save_for_hf(model, tmp_path / "timm", model_config={"model_args": TIMM}, safe_serialization=True)
    server.publish("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k", tmp_path / "timm")
    checkpoint = vit.load_checkpoint("timm/vit_base_patch16_224.augreg2_in21k_ft_in1k")
    with torch.inference_mode():
        assert torch.allclose(checkpoint.model(images()).logits, model(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_command_line_takes_a_name_on_the_hub(
    server: HubServer, published: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.new("RGB", (40, 40), (200, 30, 30)).save(tmp_path / "photo.png")
    arguments = ["classify", str(tmp_path / "photo.png"), "--json", "--checkpoint"]
    command = [sys.executable, "-m", "vit", *arguments, REPOSITORY]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["checkpoint"] == f"{REPOSITORY}@{published}"
    assert done.stderr == ""
    agents = {request.headers["user-agent"] for request in server.requests}
    assert not any("torch/" in agent or "agent/" in agent for agent in agents)  # no telemetry
    requested = [one.path for one in server.requests if one.host == "hub"]
    assert requested[0] == f"/api/models/{REPOSITORY}?blobs=true"
    assert all(path.startswith(f"/{REPOSITORY}/resolve/{published}/") for path in requested[1:])

    assert main([*arguments, "ada/nothing"]) == 2
    error = capsys.readouterr().err
    assert "has no repository 'ada/nothing'" in error and error.count("\n") == 1


def test_only_the_files_of_a_checkpoint_are_fetched_as_regular_files(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    folder = hub.fetch(REPOSITORY).folder
    expected = {"config.json", "preprocessor_config.json", "README.md", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == expected | {"source.json"}
    assert all(path.is_file() and not path.is_symlink() for path in folder.iterdir())
    assert {name: (folder / name).read_bytes() for name in expected} == {name: files[name] for name in expected}
    assert not any("open_clip" in one.path or ".py" in one.path for one in server.requests)


def test_tokenizer_is_fetched_with_a_text_tower(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    clip(tmp_path / "clip")
    server.publish("someone/clip", tmp_path / "clip")
    checkpoint = vit.load_checkpoint("someone/clip")
    assert vit.answers_from_text(checkpoint, ["a cat", "a dog"]).names == ("a cat", "a dog")
    server.publish("someone/plain", files | {"tokenizer.json": b"{}"})
    assert not (hub.fetch("someone/plain").folder / "tokenizer.json").exists()


def test_pytorch_weights_are_used_if_there_are_no_others(
    server: HubServer, files: dict[str, bytes], theirs: nn.Module, tmp_path: Path
) -> None:
    torch.save(theirs.state_dict(), tmp_path / "weights")
    old = {"config.json": files["config.json"], "pytorch_model.bin": (tmp_path / "weights").read_bytes()}
    server.publish("ada/old", old)
    checkpoint = vit.load_checkpoint("ada/old")
    with torch.inference_mode():
        assert torch.allclose(checkpoint.model(images()).logits, theirs(images()).logits, rtol=1e-5, atol=1e-5)
    assert "preprocess" in checkpoint.assumed


def test_code_in_the_weights_of_a_repository_is_not_run(
    server: HubServer, files: dict[str, bytes], tmp_path: Path
) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "evil"),)

    torch.save({"weight": Evil()}, tmp_path / "weights")
    server.publish(
        "eve/evil", {"config.json": files["config.json"], "pytorch_model.bin": (tmp_path / "weights").read_bytes()}
    )
    with pytest.raises(InvalidCheckpoint, match="holds code"):
        vit.load_checkpoint("eve/evil")
    assert not (tmp_path / "evil").exists()


def test_moved_repository_is_found_under_its_old_name(server: HubServer, published: str) -> None:
    server.moved["bob/old-name"] = REPOSITORY
    assert hub.fetch("bob/old-name").name == Name("bob/old-name", published)
    assert vit.load_checkpoint("bob/old-name").labels == ("apple", "bus", "cat")


def test_mirror_that_answers_only_404_is_supported(server: HubServer, files: dict[str, bytes]) -> None:
    server.plain = True
    server.publish("ada/bare", without(files, "preprocessor_config.json", "README.md"))
    assert vit.load_checkpoint("ada/bare").labels == ("apple", "bus", "cat")
    hub.remove(hub.cached()[0].name)
    assert "has no repository 'ada/nothing'" in refusal("ada/nothing")


def test_downloaded_checkpoint_opens_without_a_request(server: HubServer, published: str) -> None:
    first = vit.load_checkpoint(REPOSITORY)
    server.requests.clear()
    for name in (REPOSITORY, f"{REPOSITORY}@main", f"{REPOSITORY}@{published}"):
        assert vit.load_checkpoint(name).hash == first.hash
    assert server.requests == []


def test_branch_is_resolved_again_and_a_commit_is_not(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    pinned = hub.fetch(REPOSITORY)
    other = server.publish(REPOSITORY, files | {"README.md": b"# Another"})
    assert hub.find(REPOSITORY) == pinned
    newer = hub.fetch(REPOSITORY)
    assert newer.name == Name(REPOSITORY, other)
    assert hub.find(REPOSITORY) == hub.find(f"{REPOSITORY}@main") == newer
    assert hub.fetch(f"{REPOSITORY}@{published}").folder == pinned.folder
    assert vit.load_checkpoint(f"{REPOSITORY}@{published}").card == "# A tiny model"
    server.publish(REPOSITORY, files)  # the branch is reset to an earlier commit
    assert hub.fetch(REPOSITORY).name.revision == hub.find(REPOSITORY).name.revision == published  # type: ignore[union-attr]


def test_revision_by_hash_gives_that_commit(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    server.publish(REPOSITORY, files | {"README.md": b"# Another"})
    assert hub.fetch(f"{REPOSITORY}@{published}").name.revision == published
    assert hub.find(REPOSITORY) is None  # the branch is not resolved
    branch = server.publish(REPOSITORY, files | {"README.md": b"# A third"}, branch="feature/x")
    server.repositories[REPOSITORY].branches["v1"] = published
    assert hub.fetch(f"{REPOSITORY}@v1").name.revision == published
    assert hub.find(f"{REPOSITORY}@v1") is not None
    assert hub.fetch(f"{REPOSITORY}@feature/x").name.revision == branch


def test_local_folder_of_that_name_has_priority(
    server: HubServer, published: str, saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "ada").mkdir(parents=True)
    saved.rename(tmp_path / "here" / REPOSITORY)
    monkeypatch.chdir(tmp_path / "here")
    assert vit.load_checkpoint(REPOSITORY).name == "tiny-vit"
    assert server.requests == []


def test_downloaded_checkpoint_states_its_source(server: HubServer, published: str) -> None:
    fetched = hub.fetch(REPOSITORY)
    source = json.loads((fetched.folder / "source.json").read_text())
    assert source["name"] == str(fetched.name) == f"{REPOSITORY}@{published}"
    assert source["from"] == server.url
    assert hub.pinned_name(fetched.folder) == fetched.name
    assert fetched.size == sum(path.stat().st_size for path in fetched.folder.iterdir())
    assert hub.cached() == [fetched]


# --- Names --------------------------------------------------------------------------------------------------------

NO_NAMES = (
    "cifar10", "", "/", "a/", "/b", "a/b/c", "../b", "a/..", "a/../../b", "./a", "~/a", "/etc/passwd", "a\\b", "a/b\n",
    "a/b@", "a/b@../c", "a/b@c/../d", "a/b@/c", "a//b", "a/b c", "a--b/c", "a/b--c", "a/b.git", "ä/b", "a/b?x=1",
    "a/b%2e%2e", "http://a/b", "https://huggingface.co/a/b", "a/model.safetensors", "a/model.pth", "file:a/b",
    "a:b/c", "torchvision/a/b", "torchvision/../b", "-a/b", ".a/b", "a/.b", "a/b-", f"{'a' * 97}/b", "a/b@" + "c" * 129,
    f"{'a' * 48}/{'b' * 48}",
)  # fmt: skip


@pytest.mark.parametrize("text", NO_NAMES)
def test_impossible_name_is_never_requested(server: HubServer, text: str) -> None:
    assert hub.parse(text) is None
    assert hub.find(text) is None
    assert "is not the name of a checkpoint" in refusal(text)
    with pytest.raises(InvalidCheckpoint):
        vit.load_checkpoint(text or "no")
    assert server.requests == []


def test_name_built_from_parts_is_validated(server: HubServer) -> None:
    for name in (Name("../../etc", "0" * 40), Name("a/b", "../c"), Name("torchvision/..", "x")):
        assert hub.find(name) is None
        with pytest.raises(Unavailable, match="is not the name of a checkpoint"):
            hub.fetch(name)
    assert server.requests == []


@pytest.mark.parametrize(
    "text",
    ["a/b", "google/vit-base-patch16-224", "a_b/c.d@v1.0", "a/b@refs/pr/1", "torchvision/vit_b_16.IMAGENET1K_V1"],
)
def test_name_is_printed_as_it_was_read(text: str) -> None:
    assert str(hub.parse(text)) == text


def test_path_is_never_a_name(server: HubServer, published: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="There is no checkpoint"):
        vit.load_checkpoint(Path(REPOSITORY))
    assert server.requests == []


# --- Sharded weights ------------------------------------------------------------------------------------------------

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


def test_interrupted_shards_resume(server: HubServer, shards: dict[str, bytes]) -> None:
    first = next(iter(shards))

    def stop(done: int, total: int | None) -> None:
        if done > len(shards[first]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch("ada/split", stop)
    assert hub.cached() == []
    server.requests.clear()
    server.drops = [10_000]
    reports: list[int] = []
    folder = hub.fetch("ada/split", lambda done, total: reports.append(done)).folder
    assert {name: (folder / name).read_bytes() for name in shards} == shards
    requested = [request.path.rpartition("/")[2] for request in server.requests_of("/blobs/")]
    hashes = [hashlib.sha256(content).hexdigest() for content in shards.values()]
    assert set(hashes[2:]) <= set(requested) <= set(hashes[1:])  # the second file may already be complete
    assert (
        reports[0] > len(shards[first]) and reports == sorted(reports) and reports[-1] == sum(map(len, shards.values()))
    )


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
    assert not list(downloads_folder().glob(".*.partial"))


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


# --- Interruptions ------------------------------------------------------------------------------------------------


def test_progress_grows_to_the_total(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    reports: list[tuple[int, int | None]] = []
    hub.fetch(REPOSITORY, lambda *step: reports.append(step))
    size = len(files["model.safetensors"])
    assert reports == sorted(reports) and reports[-1] == (size, size)
    assert {total for _, total in reports} == {size}


@pytest.mark.parametrize("ranges", [True, False])
def test_dropped_connection_is_resumed(
    server: HubServer, published: str, files: dict[str, bytes], ranges: bool
) -> None:
    server.drops, server.ranges = [100_000, 50_000], ranges
    folder = hub.fetch(REPOSITORY).folder
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    asked = [request.headers.get("range") for request in server.requests if "/blobs/" in request.path]
    assert asked == [None, "bytes=100000-", "bytes=150000-" if ranges else "bytes=50000-"]


@pytest.mark.slow
def test_unreachable_server_is_given_up_and_partial_files_are_kept(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    server.drops = [100_000, 0, 0, 0, 0, 0]
    assert "broke off after 0.1 of" in refusal(REPOSITORY)
    server.requests.clear()
    assert (hub.fetch(REPOSITORY).folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert [request.headers.get("range") for request in server.requests_of("/blobs/")] == ["bytes=100000-"]


def test_stopped_download_leaves_no_checkpoint_and_resumes(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch(REPOSITORY, stop)
    assert hub.cached() == [] and hub.find(REPOSITORY) is None
    assert (hub.fetch(REPOSITORY).folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert int(server.requests_of("/blobs/")[-1].headers["range"][len("bytes=") : -1]) > 0


@pytest.mark.slow
def test_killed_process_leaves_no_checkpoint_and_the_next_resumes(
    server: HubServer, published: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    wait = "lambda *_: (print('on', flush=True), time.sleep(60))"
    script = f"import sys, time; from vit.checkpoints import hub; hub.fetch(sys.argv[1], {wait})"
    with subprocess.Popen(
        [sys.executable, "-c", script, REPOSITORY], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout and process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGKILL)
    assert hub.cached() == []
    assert len(list((tmp_path / "downloads").glob(".*.partial/*.partial"))) == 1
    assert vit.load_checkpoint(REPOSITORY).labels == ("apple", "bus", "cat")
    assert [path.name for path in (tmp_path / "downloads").iterdir() if path.is_dir()] == [hub.cached()[0].folder.name]


def test_corrupt_partial_file_is_detected_and_deleted(
    server: HubServer, published: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    unfinished = tmp_path / "downloads" / f".ada--tiny-vit@{published}.partial"
    unfinished.mkdir(parents=True)
    (unfinished / "model.safetensors.partial").write_bytes(bytes(1000))
    assert "its hash differs" in refusal(REPOSITORY)
    assert (hub.fetch(REPOSITORY).folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_partial_files_of_an_older_commit_are_deleted(
    server: HubServer, published: str, files: dict[str, bytes], tmp_path: Path
) -> None:
    def stop(done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch(REPOSITORY, stop)
    assert len(list((tmp_path / "downloads").glob(".*.partial"))) == 1
    server.publish(REPOSITORY, files | {"README.md": b"# Another"})
    hub.fetch(REPOSITORY)
    assert not list((tmp_path / "downloads").glob(".*.partial"))


def test_concurrent_requests_download_once(server: HubServer, published: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda _: hub.fetch(REPOSITORY, lambda *_: time.sleep(0.05)).folder, range(4)))
    assert len(set(result)) == 1
    assert len(server.requests_of("/blobs/")) == 1


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
    assert not list(downloads_folder().glob(".*.partial"))


def without(files: dict[str, bytes], *names: str, **more: bytes) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


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
    "no address": ("model.safetensors", {"Location": "http://[::1"}, "cannot be reached"),
    "other size": ("model.safetensors", {"X-Linked-Size": "5"}, "5 that were announced"),
    "other hash": ("model.safetensors", {"X-Linked-Etag": f'"{"0" * 64}"'}, "its hash differs"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lying_server_is_refused(server: HubServer, published: str, tmp_path: Path, lie: str) -> None:
    file, headers, said = LIES[lie]
    server.headers[file] = headers
    assert said in refusal(REPOSITORY)
    names = {path.name for path in tmp_path.rglob("*")}
    assert names <= {"downloads", ".ada--tiny-vit.lock"}, names


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
    assert "its hash differs" in refusal(REPOSITORY)
    assert not list(downloads_folder().glob(".*.partial"))


# --- Downloaded checkpoints ---------------------------------------------------------------------------------------


def test_other_folders_are_not_taken_for_checkpoints(server: HubServer, published: str, tmp_path: Path) -> None:
    fetched = hub.fetch(REPOSITORY)
    for name in (
        "mine",
        "a--b",
        "a--b@main",
        f"a--b--c@{published}",
        f".a--b@{published}.partial",
        "torchvision--vit_b_16",
    ):
        (tmp_path / "downloads" / name).mkdir()
    (tmp_path / "downloads" / f"a--b@{published}").symlink_to(fetched.folder)
    assert hub.cached() == [fetched]
    assert hub.pinned_name(tmp_path / f"ada--tiny-vit@{published}") is None


def test_downloaded_checkpoint_can_be_removed(server: HubServer, published: str, tmp_path: Path) -> None:
    fetched = hub.fetch(REPOSITORY)
    with pytest.raises(Unavailable, match="is not among what was fetched"):
        hub.remove("../checkpoints")
    hub.remove(fetched.name)
    assert hub.cached() == []
    assert [path.name for path in (tmp_path / "downloads").iterdir()] == [".ada--tiny-vit.lock"]


def test_earlier_downloads_are_found_under_the_requested_names(server: HubServer, tmp_path: Path) -> None:
    pinned = f"{REPOSITORY}@{'0' * 40}"
    folder = tmp_path / "downloads" / pinned.replace("/", "--")
    folder.mkdir(parents=True)
    source = {"name": pinned, "from": "https://huggingface.co", "asked": {"": 1763300000.5, "v1": 1763300001.5}}
    (folder / "source.json").write_text(json.dumps(source, indent=2))
    for name in (REPOSITORY, f"{REPOSITORY}@main", f"{REPOSITORY}@v1", pinned):
        assert str(hub.find(name).name) == pinned  # type: ignore[union-attr]
    assert hub.find(f"{REPOSITORY}@v2") is None


def test_damaged_note_of_the_source_is_ignored(server: HubServer, published: str) -> None:
    fetched = hub.fetch(REPOSITORY)
    (fetched.folder / "source.json").write_text('{"asked": [')
    assert [one.name for one in hub.cached()] == [fetched.name]
    assert hub.find(REPOSITORY) is None
    assert hub.fetch(REPOSITORY) == hub.find(REPOSITORY)


@pytest.mark.slow
def test_network_libraries_are_imported_only_when_needed() -> None:
    script = (
        "import sys, vit; from vit.checkpoints import hub\n"
        "vit.load_checkpoint('cifar10'); hub.cached(); hub.parse('a/b')\n"
        "assert not {'huggingface_hub', 'httpx2', 'torchvision.models'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), check=True)
