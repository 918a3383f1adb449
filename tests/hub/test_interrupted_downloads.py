"""Interrupted downloads: they resume, and leave no checkpoint that is incomplete."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hub_server import HubServer, refusal
from tiny_repository import REPOSITORY, ROOT, environment

import vit
from vit.checkpoints.hub import models as hub


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
    requested = [request.headers.get("range") for request in server.requests if "/blobs/" in request.path]
    assert requested == [None, "bytes=100000-", "bytes=150000-" if ranges else "bytes=50000-"]


@pytest.mark.exhaustive
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
    script = f"import sys, time; from vit.checkpoints.hub import models as hub; hub.fetch(sys.argv[1], {wait})"
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
