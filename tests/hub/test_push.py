"""Pushing to the Hub: the pushed checkpoint loads equally, nothing else is uploaded, refusals are one sentence."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import yaml
from commands import Command, check_mistake
from hub_server import HubServer, empty_hub
from tiny import LABELS
from written_runs import write_run

import vit
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.convert import convert
from vit.checkpoints.hub import download
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.hub_card import public_facts, write_hub_card
from vit.checkpoints.hub.push import plan_push, push
from vit.checkpoints.save import save_checkpoint
from vit.errors import UserError

REPOSITORY = "ada/tiny"
FILES = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md"}
# Files that a run leaves in its checkpoint's folder, and a user's notes.
FACTS = {
    "accuracy": 0.75,
    "accuracy_on": "100 test pictures, evaluated once",
    "data": "cifar10",
    "recipe": {"epochs": 2},
    "note": "evaluated with folder:/home/ada/secret/pets, kept in /srv/ada/models/tiny",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub, and its token in the environment."""
    with empty_hub(tmp_path) as server:
        monkeypatch.setenv("HF_TOKEN", server.token)
        yield server


@pytest.fixture
def folder(checkpoint: Checkpoint, tmp_path: Path) -> Path:
    """A checkpoint with all files of a run, and other files beside it."""
    folder = tmp_path / "checkpoints" / "tiny"
    save_checkpoint(folder, checkpoint.model, LABELS, checkpoint.preprocess, FACTS)
    (folder / "first_view.zip").write_bytes(b"of the explorer")
    (folder / "log.txt").write_text("/home/ada")
    return folder


def refusal(folder: Path, repository: str = REPOSITORY, **how: Any) -> str:
    """Return the one-sentence message with which a push is refused."""
    with pytest.raises(UserError) as caught:
        push(plan_push(folder, repository, **how))
    message = str(caught.value)
    assert "\n" not in message and message.endswith(".") and len(message) < 300, message
    assert HubServer.token not in message
    return message


def pushed_files(server: HubServer, repository: str = REPOSITORY) -> dict[str, bytes]:
    there = server.repositories[repository]
    return there.commits[there.branches["main"]]


def metadata(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---")[1])


# --- Content ------------------------------------------------------------------------------------------------------


def test_pushed_checkpoint_opens_by_its_name_with_equal_logits(server: HubServer, folder: Path) -> None:
    name, url = push(plan_push(folder, REPOSITORY))
    assert str(name) == f"{REPOSITORY}@{server.repositories[REPOSITORY].branches['main']}"
    assert url == f"{server.url}/{REPOSITORY}/commit/{name.revision}"
    before, after = vit.load_checkpoint(folder), vit.load_checkpoint(str(name))
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.equal(after.model(images).logits, before.model(images).logits)
    assert after.identity == before.identity and after.labels == before.labels


def test_transformers_opens_the_pushed_checkpoint(server: HubServer, folder: Path) -> None:
    import transformers

    there = hub.fetch(push(plan_push(folder, REPOSITORY)).name).folder
    theirs, ours = transformers.ViTForImageClassification.from_pretrained(there).eval(), vit.load_checkpoint(folder)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(theirs(images).logits, ours.model(images).logits, rtol=1e-5, atol=1e-5)


def test_checkpoint_is_uploaded_and_nothing_else(server: HubServer, folder: Path) -> None:
    plan = plan_push(folder, REPOSITORY)
    push(plan, message="Two epochs")
    files = pushed_files(server)
    assert files.keys() - {".gitattributes"} == FILES == plan.sizes.keys()
    assert {name: len(content) for name, content in files.items() if name in FILES} == plan.sizes
    assert server.repositories[REPOSITORY].messages == ["Two epochs"]


def test_uploads_contain_no_local_paths(server: HubServer, folder: Path) -> None:
    push(plan_push(folder, REPOSITORY))
    files = pushed_files(server)
    for name in FILES:
        for secret in (b"/home", b"/srv", b"secret", str(folder.parent).encode(), server.token.encode()):
            assert secret not in files[name], name
    assert json.loads(files["config.json"])["training"]["note"] == "evaluated with folder:pets, kept in tiny"


def test_dry_run_changes_nothing_on_the_hub(server: HubServer, folder: Path) -> None:
    plan_push(folder, REPOSITORY)
    assert not server.repositories and {request.method for request in server.requests} <= {"GET", "HEAD"}


def test_token_is_sent_only_to_the_hub(server: HubServer, folder: Path) -> None:
    push(plan_push(folder, REPOSITORY))
    assert all("authorization" not in request.headers for request in server.requests if request.host == "store")


def test_progress_is_reported_until_all_weights_are_sent(server: HubServer, folder: Path) -> None:
    told: list[tuple[int, int | None]] = []
    push(plan_push(folder, REPOSITORY), progress=lambda done, total: told.append((done, total)))
    size = (folder / "model.safetensors").stat().st_size
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (size, size)


# --- The repository -----------------------------------------------------------------------------------------------


def test_private_repository_is_invisible_to_others(
    server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_push(folder, REPOSITORY, private=True)
    assert plan.private and not plan.parent
    push(plan)
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(huggingface_hub.errors.RepositoryNotFoundError):
        huggingface_hub.HfApi(server.url).model_info(REPOSITORY)


def test_second_push_replaces_the_files_and_announces_it(server: HubServer, folder: Path) -> None:
    first = push(plan_push(folder, REPOSITORY, private=True))
    plan = plan_push(folder, REPOSITORY, license="mit")
    assert set(plan.replaced) == FILES and plan.private and plan.parent == first.name.revision
    second = push(plan)
    assert second.name != first.name
    assert metadata(pushed_files(server)["README.md"].decode())["license"] == "mit"
    assert first.name.revision in server.repositories[REPOSITORY].commits


# --- Cards --------------------------------------------------------------------------------------------------------


def test_card_has_the_hubs_metadata(folder: Path) -> None:
    card = write_hub_card(vit.load_checkpoint(folder), REPOSITORY, "apache-2.0")
    known = huggingface_hub.ModelCard(card).data
    assert (known.license, known.library_name, known.pipeline_tag) == (
        "apache-2.0", "transformers", "image-classification",
    )  # fmt: skip
    assert known.datasets == ["uoft-cs/cifar10"] and known.metrics == ["accuracy"]
    [result] = known.eval_results
    assert (result.dataset_type, result.dataset_split, result.metric_value) == ("uoft-cs/cifar10", "test", 0.75)
    assert f'from_pretrained("{REPOSITORY}")' in card and "in the folder above" not in card


@pytest.mark.parametrize(
    "facts",
    [
        {"data": "cifar10", "validation_accuracy": 0.9},
        {"data": "cifar10", "accuracy": 0.9},  # the pictures are not stated
        {"data": "noise of ours", "accuracy": 0.9, "accuracy_on": "10 test pictures"},
    ],
)
def test_only_results_on_known_test_pictures_are_claimed(checkpoint: Checkpoint, facts: dict[str, Any]) -> None:
    known = metadata(write_hub_card(replace(checkpoint, facts=facts), REPOSITORY))
    assert "model-index" not in known and "license" not in known


def test_card_of_other_authors_is_unchanged(checkpoint: Checkpoint) -> None:
    theirs = "---\nlicense: mit\n---\n# Theirs\n"
    copied = replace(checkpoint, card=theirs, facts={"converted_from": "google/vit", "params": 10})
    assert write_hub_card(copied, REPOSITORY) == theirs
    with pytest.raises(UserError, match="its authors', and so is its licence"):
        write_hub_card(copied, REPOSITORY, "apache-2.0")


def test_relative_paths_and_urls_are_no_local_paths() -> None:
    note = "folder:data/pets, 3/4 of https://example.com/a/b/c, and/or"
    assert public_facts({"note": note, "more": [note]}) == {"note": note, "more": [note]}


# --- Refusals -----------------------------------------------------------------------------------------------------


def test_nothing_is_requested_without_a_token(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert not download.has_token()
    assert "HF_TOKEN" in refusal(folder) and not server.requests


def test_invalid_token_is_reported(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    assert "does not accept the token" in refusal(folder)


def test_missing_write_permission_is_reported(server: HubServer, folder: Path, files: dict[str, bytes]) -> None:
    assert "may not write to bob/tiny" in refusal(folder, "bob/tiny")  # to be created
    server.publish("bob/other", files)
    assert "may not write to bob/other" in refusal(folder, "bob/other")  # existing


def test_name_of_another_kind_of_repository_is_refused(
    server: HubServer, folder: Path, files: dict[str, bytes]
) -> None:
    server.taken.append(REPOSITORY)
    assert "exists and is not a model" in refusal(folder)
    server.publish("ada/other", files | {"pytorch_model.bin": b"weights"})
    assert "holds other weights (pytorch_model.bin)" in refusal(folder, "ada/other")


def test_public_repository_is_never_taken_for_a_private_one(
    server: HubServer, folder: Path, files: dict[str, bytes]
) -> None:
    server.publish(REPOSITORY, files)
    assert "exists and is public" in refusal(folder, private=True)
    assert pushed_files(server) == files


def test_offline_mode_is_reported(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refusal(folder)


def test_unresponsive_hub_is_reported(server: HubServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert "127.0.0.1:9 cannot be reached" in refusal(folder)


def test_concurrent_changes_are_not_overwritten(server: HubServer, folder: Path, files: dict[str, bytes]) -> None:
    server.publish(REPOSITORY, files)
    theirs = files | {"README.md": b"# Theirs"}
    server.before_commit = lambda: server.publish(REPOSITORY, theirs)
    assert "changed by somebody else" in refusal(folder)
    assert pushed_files(server) == theirs


def test_checkpoint_changed_after_the_preview_is_not_pushed(server: HubServer, folder: Path) -> None:
    plan = plan_push(folder, REPOSITORY)
    other = vit.load_checkpoint(folder)
    save_checkpoint(folder.parent / "other", other.model, LABELS, other.preprocess)
    (folder.parent / "other" / "model.safetensors").replace(plan.weights)
    with pytest.raises(UserError, match="has changed since"):
        push(plan)
    assert not server.repositories


def test_unknown_licence_is_refused_before_the_upload(server: HubServer, folder: Path) -> None:
    assert "license" in refusal(folder, license="none-such")
    assert not server.blobs
    assert "is not a licence" in refusal(folder, license="My own!")


@pytest.mark.parametrize("name", ["tiny", "ada/tiny/more", "torchvision/vit_b_16", "ada/tiny@main", "../tiny", ""])
def test_invalid_repository_name_is_refused(server: HubServer, folder: Path, name: str) -> None:
    assert "is not the name of a repository" in refusal(folder, name)


def test_weights_of_another_library_are_refused(server: HubServer, checkpoint: Checkpoint, tmp_path: Path) -> None:
    assert "was not saved by this app" in refusal(convert(checkpoint, tmp_path / "timm", "timm"))


# --- The command --------------------------------------------------------------------------------------------------


@pytest.fixture
def files() -> dict[str, bytes]:
    """Files that a repository may hold already."""
    return {"README.md": b"# Before"}


def test_command_prints_the_plan_and_ends_with_the_commit(server: HubServer, folder: Path, command: Command) -> None:
    result = command("push", "tiny", REPOSITORY, "--private", "--message", "First")
    revision = server.repositories[REPOSITORY].branches["main"]
    assert result.status == 0, result.err
    assert "a new private repository" in result.err and all(name in result.err for name in FILES)
    assert result.out.splitlines()[0] == f"{server.url}/{REPOSITORY}/commit/{revision}"
    assert f"{REPOSITORY}@{revision}" in result.out
    assert server.repositories[REPOSITORY].messages == ["First"]


def test_dry_run_only_prints_the_plan(server: HubServer, folder: Path, command: Command) -> None:
    result = command("push", folder, REPOSITORY, "--dry-run")
    assert result.status == 0 and "a new public repository" in result.err and not server.repositories


@pytest.mark.parametrize("by_path", [False, True])
def test_run_is_pushed_by_its_id_or_folder(
    server: HubServer, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_path: bool
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("VIT_RUNS", str(runs))
    run = write_run(runs, "Tiny")
    assert command("push", runs / run if by_path else run, REPOSITORY).status == 0
    best = (runs / run / "checkpoints" / "best" / "model.safetensors").read_bytes()
    assert pushed_files(server)["model.safetensors"] == best


def test_unknown_source_is_named(server: HubServer, command: Command) -> None:
    result = command("push", "nothing", REPOSITORY)
    check_mistake(result, "neither a checkpoint nor a run 'nothing'")
