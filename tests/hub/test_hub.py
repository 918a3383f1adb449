"""Checkpoints on the Hub: its protocol, names and revisions, and the list of downloads."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from hub_server import HubServer, refusal
from PIL import Image
from text_models import clip
from tiny import fill
from tiny_repository import REPOSITORY, ROOT, environment, images, without
from torch import nn

import vit
from vit.checkpoints import manage
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.models import Name
from vit.cli.main import main
from vit.errors import InvalidCheckpoint, Unavailable
from vit.paths import hub_cache

TIMM = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)


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


@pytest.mark.exhaustive
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


def test_only_the_files_of_a_checkpoint_are_fetched(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    folder = hub.fetch(REPOSITORY).folder
    expected = {"config.json", "preprocessor_config.json", "README.md", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == expected
    assert {name: (folder / name).read_bytes() for name in expected} == {name: files[name] for name in expected}
    assert not any("open_clip" in one.path or ".py" in one.path for one in server.requests)


def test_tokenizer_is_fetched_with_a_text_tower(server: HubServer, tmp_path: Path, files: dict[str, bytes]) -> None:
    clip(tmp_path / "clip")
    server.publish("someone/clip", tmp_path / "clip")
    checkpoint = vit.load_checkpoint("someone/clip")
    assert vit.classes_from_text(checkpoint, ["a cat", "a dog"]).names == ("a cat", "a dog")
    server.publish("someone/plain", files | {"tokenizer.json": b"{}"})
    assert not (hub.fetch("someone/plain").folder / "tokenizer.json").exists()


def test_processor_config_is_fetched(server: HubServer, files: dict[str, bytes]) -> None:
    stated = b'{"image_processor": {"image_mean": [0.1, 0.2, 0.3], "size": {"height": 32, "width": 32}}}'
    server.publish("someone/new", files | {"processor_config.json": stated})
    assert vit.load_checkpoint("someone/new").preprocess.mean == (0.1, 0.2, 0.3)


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


# --- The Hub's cache ----------------------------------------------------------------------------------------------


def test_model_that_another_program_downloaded_opens_without_a_request(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    theirs = huggingface_hub.HfApi(server.url)
    for file in files:
        theirs.hf_hub_download(REPOSITORY, file, cache_dir=hub_cache())
    server.requests.clear()
    checkpoint = vit.load_checkpoint(REPOSITORY)
    assert checkpoint.name == f"{REPOSITORY}@{published}" and checkpoint.labels == ("apple", "bus", "cat")
    (fetched,) = hub.cached()
    assert fetched == hub.find(REPOSITORY) and fetched.size == sum(map(len, files.values()))
    assert server.requests == []
    with zipfile.ZipFile(io.BytesIO(b"".join(manage.zip_chunks(fetched.folder, "tiny")))) as archive:
        assert archive.read("tiny/model.safetensors") == files["model.safetensors"]


def test_what_another_program_left_out_is_fetched_without_the_weights(server: HubServer, published: str) -> None:
    theirs = huggingface_hub.HfApi(server.url)
    for file in ("config.json", "model.safetensors"):
        theirs.hf_hub_download(REPOSITORY, file, cache_dir=hub_cache())
    assert hub.cached() == [] and hub.find(REPOSITORY) is None
    server.requests.clear()
    assert "preprocess" not in vit.load_checkpoint(REPOSITORY).assumed
    assert server.requests_of("/blobs/") == []


def test_other_models_in_the_cache_are_not_listed(server: HubServer, files: dict[str, bytes]) -> None:
    server.publish("ada/words", files | {"config.json": b'{"model_type": "bert"}'})
    server.publish("ada/broken", files | {"config.json": b"{"})
    for repository in ("ada/words", "ada/broken"):
        for file in files:
            huggingface_hub.HfApi(server.url).hf_hub_download(repository, file, cache_dir=hub_cache())
    assert hub.cached() == []


def test_link_out_of_the_cache_is_not_followed(server: HubServer, published: str, tmp_path: Path) -> None:
    folder = hub.fetch(REPOSITORY).folder
    weights = folder / "model.safetensors"
    foreign = tmp_path / "foreign.safetensors"
    foreign.write_bytes(weights.read_bytes())
    weights.unlink()
    weights.symlink_to(foreign)
    with pytest.raises(InvalidCheckpoint, match="is a link"):
        vit.load_checkpoint(folder)
    with zipfile.ZipFile(io.BytesIO(b"".join(manage.zip_chunks(folder, "tiny")))) as archive:
        assert "tiny/model.safetensors" not in archive.namelist()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "model.safetensors").symlink_to((folder / "config.json").resolve())
    with pytest.raises(InvalidCheckpoint, match="is a link"):  # nor into it
        vit.load_checkpoint(tmp_path / "outside")


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


# --- Downloaded checkpoints ---------------------------------------------------------------------------------------


def test_other_folders_are_not_taken_for_checkpoints(server: HubServer, published: str, tmp_path: Path) -> None:
    fetched = hub.fetch(REPOSITORY)
    for name in ("mine", "a--b", "a--b@main", f"a--b--c@{published}", f"a--b@{published}", "torchvision--vit_b_16"):
        (tmp_path / "downloads" / name).mkdir(parents=True)
    (tmp_path / "downloads" / f"a--d@{published}").symlink_to(fetched.folder)
    fetched.folder.with_name("main").symlink_to(fetched.folder)
    assert hub.cached() == [fetched]
    assert hub.pinned_name(tmp_path / f"ada--tiny-vit@{published}") is None


def test_downloaded_checkpoint_can_be_removed(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    first = hub.fetch(REPOSITORY)
    server.publish(REPOSITORY, files | {"README.md": b"# Another"})
    second = hub.fetch(REPOSITORY)
    with pytest.raises(Unavailable, match="is not among what was fetched"):
        hub.remove("../checkpoints")
    hub.remove(second.name)
    assert hub.cached() == [first]
    assert vit.load_checkpoint(first.folder).labels  # whose weights are the same
    hub.remove(first.name)
    assert hub.cached() == [] and not list(hub_cache().glob("models--*"))


def test_earlier_downloads_are_found_under_the_requested_names(
    server: HubServer, tmp_path: Path, files: dict[str, bytes]
) -> None:
    pinned = f"{REPOSITORY}@{'0' * 40}"
    folder = tmp_path / "downloads" / pinned.replace("/", "--")
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / "source.json").write_text('{"asked": [')
    assert hub.find(REPOSITORY) is None and vit.load_checkpoint(pinned).name == pinned
    (folder / "source.json").write_text('{"asked": {"": 1763300000.5, "v1": 1763300001.5}}')
    for name in (REPOSITORY, f"{REPOSITORY}@main", f"{REPOSITORY}@v1", pinned):
        assert vit.load_checkpoint(name).name == pinned
    assert hub.find(f"{REPOSITORY}@v2") is None
    hub.remove(pinned)
    assert not list((tmp_path / "downloads").iterdir())


@pytest.mark.slow
def test_network_libraries_are_imported_only_when_needed() -> None:
    script = (
        "import sys, vit; from vit.checkpoints.hub import models as hub\n"
        "vit.load_checkpoint('cifar10'); hub.cached(); hub.parse('a/b')\n"
        "assert not {'huggingface_hub.hf_api', 'httpx2', 'torchvision.models'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment(), check=True)


def test_records_and_cache_may_share_a_folder(
    server: HubServer, published: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As in the container, where both are the mounted folder."""
    for name in ("HF_HUB_CACHE", "VIT_DOWNLOADS"):
        monkeypatch.setenv(name, str(tmp_path / "models"))
    hub.fetch(REPOSITORY)
    assert hub.find(REPOSITORY) == hub.cached()[0] and vit.load_checkpoint(REPOSITORY).labels
    hub.remove(hub.cached()[0].name)
    assert hub.cached() == [] and not list((tmp_path / "models").glob("*ada*"))


def test_model_of_another_program_opens_offline(
    server: HubServer, published: str, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in files:
        huggingface_hub.HfApi(server.url).hf_hub_download(REPOSITORY, file, cache_dir=hub_cache())
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert str(hub.fetch(REPOSITORY).name) == f"{REPOSITORY}@{published}"
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE is set"):
        hub.fetch("ada/nothing")
