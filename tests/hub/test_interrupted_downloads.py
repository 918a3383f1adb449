"""Progress of downloads, and interrupted ones, which leave no checkpoint that is incomplete."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hub_server import HubServer
from tiny_repository import REPOSITORY

from vit.checkpoints.hub import models as hub
from vit.paths import hub_cache


def test_progress_tells_the_size_first_and_grows_to_it(
    server: HubServer, published: str, files: dict[str, bytes]
) -> None:
    reports: list[tuple[int, int | None]] = []
    hub.fetch(REPOSITORY, lambda *step: reports.append(step))
    size = len(files["model.safetensors"])
    assert reports[0] == (0, size) and reports == sorted(reports) and reports[-1] == (size, size)
    assert {total for _, total in reports} == {size} and len(reports) > 3


@pytest.mark.parametrize("ranges", [True, False])
def test_dropped_connection_is_resumed(
    server: HubServer, published: str, files: dict[str, bytes], ranges: bool
) -> None:
    server.drops, server.ranges = [100_000, 50_000], ranges
    folder = hub.fetch(REPOSITORY).folder
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_stopped_download_leaves_no_checkpoint(server: HubServer, published: str, files: dict[str, bytes]) -> None:
    def stop(done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.fetch(REPOSITORY, stop)
    assert hub.cached() == [] and hub.find(REPOSITORY) is None
    assert not list(hub_cache().rglob("*.incomplete"))
    assert (hub.fetch(REPOSITORY).folder / "model.safetensors").read_bytes() == files["model.safetensors"]


def test_concurrent_requests_download_once(server: HubServer, published: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        result = list(pool.map(lambda _: hub.fetch(REPOSITORY).folder, range(4)))
    assert len(set(result)) == 1
    assert len(server.requests_of("/blobs/")) == 1
