"""What a Ray cluster without a shared folder answers, by a server that says what it is told to; no Ray is needed."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from short_runs import until

from vit.runs.engines import ray
from vit.runs.engines.clusters import Cluster
from vit.runs.engines.contract import Handle, Refused, Request, Unreachable, claim_job, read_handle, write_handle
from vit.runs.mirror import Mirror

RUN = "20261124-000000-a-0000"


class Head:
    """The head of a cluster.

    Attributes:
        status: of every job; None for one that is unknown.
        refuses: what it is asked to start.
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
def far(head: Head, tmp_path: Path) -> ray.Ray:
    (tmp_path / "token").write_text("0" * 64)
    (tmp_path / "runs" / RUN).mkdir(parents=True)
    address = f"http://127.0.0.1:{head.server.server_port}"
    facts = {"name": "far", "kind": "ray", "address": address, "token_file": tmp_path / "token"}
    mirror = f"file://{tmp_path / 'storage'}"
    return ray.Ray(Cluster.model_validate(facts | {"runs": tmp_path / "runs", "mirror": mirror}))


@pytest.fixture
def there(far: ray.Ray, tmp_path: Path) -> Mirror:
    """The side of a machine that has trained, and has stored it all."""
    folder = tmp_path / "machine" / RUN
    for name in ("checkpoints/state.pt", "probes/epoch-00001.zip", "outcome.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(name.encode() * (1000 if "." in name and "outcome" not in name else 1))
    there = Mirror(far.cluster.mirror, folder)
    there.push()
    return there


def handle_of(far: ray.Ray) -> Handle:
    handle = Handle(far.cluster.runs / RUN, "far", f"{RUN}.1", 0.0)
    write_handle(handle, Request())
    return handle


def test_an_ended_run_is_over_once_its_weights_have_come(far: ray.Ray, head: Head, there: Mirror) -> None:
    handle, head.status = handle_of(far), "SUCCEEDED"
    until(lambda: far.look(handle).word == "gone", "its weights")
    assert (handle.folder / "checkpoints" / "state.pt").exists()


def test_weights_that_cannot_be_brought_are_told_and_asked_for_again(
    far: ray.Ray, head: Head, there: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle, head.status = handle_of(far), "SUCCEEDED"
    pieces = list((tmp_path / "storage" / RUN / "pieces").iterdir())
    contents = [piece.read_bytes() for piece in pieces]
    for piece in pieces:
        piece.write_bytes(b"damaged")

    def problem() -> str:
        try:
            far.look(handle)
        except Unreachable as error:
            return str(error)
        return ""

    assert "is damaged" in until(problem, "what is wrong")
    for piece, content in zip(pieces, contents, strict=True):
        piece.write_bytes(content)
    assert "is damaged" in problem()  # for a while nothing is tried
    monkeypatch.setattr(ray, "_RETRY_SECONDS", 0.0)
    until(lambda: not problem() and far.look(handle).word == "gone", "its weights")


def test_a_command_does_not_wait_for_weights_at_its_end(far: ray.Ray, there: Mirror) -> None:
    far.look(handle_of(far))
    threads = [thread for thread in threading.enumerate() if thread.name == "pulls far"]
    assert threads and all(thread.daemon for thread in threads)


def test_a_killed_run_s_weights_come_all_the_same(far: ray.Ray, head: Head, there: Mirror) -> None:
    handle = handle_of(far)
    far.look(handle)  # what it had until here is on its way
    head.status = None
    far.kill(handle)
    until((handle.folder / "checkpoints" / "state.pt").exists, "its state")


def test_the_driver_of_a_job_that_was_ended_while_it_was_pending_trains_nothing(
    far: ray.Ray, head: Head, there: Mirror
) -> None:
    """Ray calls such a job stopped, and starts its driver all the same; it sees this server's folder, or the image."""
    handle, head.status = handle_of(far), "STOPPED"
    Mirror(far.cluster.mirror, handle.folder).publish()
    far.kill(handle)
    there.pull_all()
    assert read_handle(there.folder) == handle._replace(folder=there.folder)
    assert claim_job(there.folder, handle.job) is None and claim_job(handle.folder, handle.job) is None
    (handle.folder / "over.json").unlink()  # a moment before it is noted
    assert claim_job(handle.folder, handle.job) is None


def test_what_was_not_taken_is_not_given(far: ray.Ray, head: Head, tmp_path: Path) -> None:
    """A job that began although nobody answered finds no settings, and trains nothing."""
    head.refuses = True
    folder = far.cluster.runs / RUN
    (folder / "config.json").write_text("{}")
    with pytest.raises(Refused):
        far.submit(folder, Request())
    assert not (tmp_path / "storage" / RUN / "given.json").exists() and read_handle(folder) is None


def test_a_mirror_that_cannot_be_is_told_in_a_sentence(far: ray.Ray) -> None:
    wrong = ray.Ray(far.cluster.model_copy(update={"mirror": "nowhere://a/b"}))
    with pytest.raises(Unreachable, match="mirror of far cannot be used"):
        wrong.look(handle_of(far))
