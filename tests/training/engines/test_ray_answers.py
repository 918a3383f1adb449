"""Responses of a Ray cluster, from a stub server: Ray itself is not needed."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from vit.training.engines import ray
from vit.training.engines.clusters import Cluster
from vit.training.engines.contract import (
    HANDLE,
    Handle,
    Request,
    RequestRejected,
    claim_job,
    read_handle,
    read_request,
    write_handle,
)
from vit.training.loop.run_folder import read_json, write_json

RUN = "20261124-000000-a-0000"


class Head:
    """The head of a cluster.

    Attributes:
        status: of every job; None for an unknown one.
        refuses: whether it refuses to start jobs.
    """

    def __init__(self) -> None:
        self.status: str | None = "RUNNING"
        self.refuses = False
        head = self

        class Answer(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                code = 404 if head.status is None else 200
                self.answer(code, {"status": head.status, "submission_id": self.path.rpartition("/")[2]})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                self.answer(500 if head.refuses else 200, {})

            def answer(self, code: int, value: Any) -> None:
                self.send_response(code)
                self.end_headers()
                self.wfile.write(json.dumps(value).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def head() -> Iterator[Head]:
    head = Head()
    yield head
    head.server.shutdown()
    head.server.server_close()


@pytest.fixture
def lab(head: Head, tmp_path: Path) -> ray.Ray:
    (tmp_path / "token").write_text("0" * 64)
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    address = f"http://127.0.0.1:{head.server.server_port}"
    facts = {"name": "lab", "kind": "ray", "address": address, "token_file": tmp_path / "token"}
    return ray.Ray(Cluster.model_validate(facts | {"runs": tmp_path / "runs"}))


def test_driver_of_a_job_ended_while_pending_trains_nothing(lab: ray.Ray, head: Head) -> None:
    """Ray calls such a job stopped, and starts its driver anyway."""
    handle, head.status = Handle(lab.cluster.runs / RUN, "lab", f"{RUN}.1", 0.0), "STOPPED"
    write_handle(handle, Request())
    lab.kill(handle)
    assert read_handle(handle.folder) == handle
    assert claim_job(handle.folder, handle.job) is None
    (handle.folder / "over.json").unlink()  # a moment before it is recorded
    assert claim_job(handle.folder, handle.job) is None


def test_job_that_waits_since_an_earlier_version_finds_its_request(tmp_path: Path) -> None:
    (folder := tmp_path / RUN).mkdir()
    handle, request = Handle(folder, "lab", f"{RUN}.1", 0.0), Request(("gpu",), nodes=2)
    write_handle(handle, request)
    document = read_json(folder / HANDLE)
    document["place"] = document.pop("engine")
    document["request"] |= {"workers": 0, "dry_run": False}
    write_json(folder / HANDLE, document)
    assert read_request(folder) == request and read_handle(folder) == handle


def test_refused_job_leaves_no_handle(lab: ray.Ray, head: Head) -> None:
    """A job that started although the request failed trains nothing."""
    head.refuses = True
    with pytest.raises(RequestRejected):
        lab.submit(lab.cluster.runs / RUN, Request())
    assert read_handle(lab.cluster.runs / RUN) is None
