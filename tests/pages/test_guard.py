"""The server's guard: origins, kinds of messages, uploads, framing."""

import http.client
import os
import tempfile
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coroutines import complete
from patience import PATIENCE, until
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from pages.server import guard, uploads
from pages.server.uploads import MB, TemporaryUpload, UploadRejected, Uploads
from tests.browser.serving import streamlit

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Host and port of the app."""
    folder = tmp_path_factory.mktemp("server")
    names = {f"VIT_{name}": str(folder / name) for name in ("RUNS", "CHECKPOINTS", "DATA_ROOTS")}
    with streamlit(ROOT / "app.py", TMPDIR=str(folder), **names) as address:
        yield address.removeprefix("http://")


def visit(server: str, origin: str = "") -> ClientConnection:
    """Open a visitor's websocket."""
    return connect(
        f"ws://{server}/_stcore/stream",
        origin=origin or f"http://{server}",  # type: ignore[arg-type]
        subprotocols=["streamlit"],  # type: ignore[list-item]
        open_timeout=PATIENCE,
        max_size=None,
    )


def announce(socket: ClientConnection, *names: str) -> list[str]:
    """Return upload addresses for files of these names."""
    asks = BackMsg()
    asks.file_urls_request.request_id = uuid.uuid4().hex
    asks.file_urls_request.file_names.extend(names)
    socket.send(asks.SerializeToString())
    while True:
        told = ForwardMsg.FromString(socket.recv(timeout=PATIENCE))  # type: ignore[arg-type]
        if told.WhichOneof("type") == "file_urls_response":
            return [urls.upload_url for urls in told.file_urls_response.file_urls]


def send(server: str, path: str, content: bytes, name: str = "file", **headers: str) -> int:
    """Upload as the page does, and return the status."""
    with urllib.request.urlopen(f"http://{server}/_stcore/health", timeout=PATIENCE) as answer:
        token = answer.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
    body = (
        f'--edge\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n\r\n'.encode()
        + content
        + b"\r\n--edge--\r\n"
    )
    connection = http.client.HTTPConnection(server, timeout=PATIENCE)
    headers = {
        "Content-Type": "multipart/form-data; boundary=edge",
        "Cookie": f"_streamlit_xsrf={token}",
        "X-Xsrftoken": token,
    } | {key.replace("_", "-"): value for key, value in headers.items()}
    try:
        connection.request("PUT", path, body, headers)
        return connection.getresponse().status
    except (BrokenPipeError, ConnectionResetError):  # the response came before the whole body was sent
        return connection.getresponse().status
    finally:
        connection.close()


def test_upload_without_a_page_is_refused(server: str) -> None:
    with visit(server) as socket:
        [wanted] = announce(socket, "photo.png")
        session = wanted.split("/")[-2]
        for path in (f"/_stcore/upload_file/{session}/{uuid.uuid4()}", "/_stcore/upload_file/nobody/nothing"):
            assert send(server, path, b"anything") == 404
        assert send(server, wanted, b"anything", "photo.png") == 204
        assert send(server, wanted, b"once more", "photo.png") == 404


def test_disconnected_visitor_uploads_nothing(server: str) -> None:
    with visit(server) as socket:
        paths = announce(socket, *["photo.png"] * 200)
    until(lambda: send(server, paths.pop(), b"late") == 404, "that the server has noticed", pause=0.1)
    assert send(server, paths.pop(), b"later still") == 404


def test_visitor_who_may_not_train_has_a_small_quota(server: str) -> None:
    """No page has told the server that this visitor may train, so the quota is a stranger's."""
    with visit(server) as socket:
        large, *more = announce(socket, *["photo.png"] * 4)
        assert send(server, large, bytes(26 * MB)) == 413
        assert [send(server, path, bytes(24 * MB)) for path in more] == [204, 204, 413]


def test_uploads_need_the_token_and_the_apps_own_origin(server: str) -> None:
    with visit(server) as socket:
        [path] = announce(socket, "photo.png")
        assert send(server, path, b"x", X_Xsrftoken="") == 403
        assert send(server, path, b"x", Origin="http://127.0.0.1:9") == 403
        assert send(server, path, b"x", Origin=f"http://{server}") == 204


@pytest.mark.parametrize("origin", ["http://127.0.0.1:9", "http://localhost:3000", "https://evil.example", "null"])
def test_pages_of_other_ports_and_hosts_get_no_socket(server: str, origin: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        visit(server, origin)
    assert refused.value.response.status_code == 403


def test_no_page_may_frame_the_app(server: str) -> None:
    with urllib.request.urlopen(f"http://{server}/", timeout=PATIENCE) as answer:
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("name", ["../checkpoints", "%2e%2e", "", "none", "/etc", "run-", "run-none", "run-.."])
def test_only_listed_checkpoints_are_sent(server: str, name: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server}/download/checkpoint?name={name}", timeout=PATIENCE)
    assert refused.value.code == 404


# --- Without a server -----------------------------------------------------------------------------------------


def forwarded(*messages: BackMsg) -> list[str]:
    """Return the kinds of messages that reach Streamlit."""
    coming = [{"type": "websocket.receive", "bytes": message.SerializeToString()} for message in messages]
    coming.append({"type": "websocket.disconnect"})
    heard: list[str] = []

    async def app(_scope: Any, receive: Any, _send: Any) -> None:
        while (message := await receive())["type"] != "websocket.disconnect":
            heard.append(BackMsg.FromString(message["bytes"]).WhichOneof("type"))

    async def receive() -> Any:
        return coming.pop(0)

    async def never(_message: Any) -> None:
        raise AssertionError("nothing is to be sent")

    complete(guard.Guard(app)({"type": "websocket", "headers": []}, receive, never))
    return heard


def test_only_required_messages_reach_streamlit() -> None:
    every = []
    for field in BackMsg.DESCRIPTOR.oneofs_by_name["type"].fields:
        message = BackMsg()
        if field.message_type:
            getattr(message, field.name).SetInParent()
        else:
            setattr(message, field.name, True)
        every.append(message)
    kept = {"rerun_script", "stop_script", "app_heartbeat", "file_urls_request", "backend_operation_request"}
    assert set(forwarded(*every)) == kept and len(every) > len(kept)


def test_configured_origin_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    headers = guard.Headers({"origin": "https://vit.example.com", "host": "10.0.0.7:8501"})
    assert guard.is_foreign(headers)
    real = guard.st.get_option
    origins = {"server.corsAllowedOrigins": ["https://vit.example.com"]}
    monkeypatch.setattr(guard.st, "get_option", lambda name: origins.get(name, real(name)))
    assert not guard.is_foreign(headers)


class Record:
    """A file as Streamlit stores it."""

    def __init__(self, data: bytes):
        self.data = data


def test_strangers_leave_room_for_those_who_may_train() -> None:
    quotas = Uploads()
    full = {f"session {i}": {"a": Record(bytes(50 * MB))} for i in range(12)}
    with pytest.raises(UploadRejected, match="its limit"), quotas.room("late", "a.png", MB, full):
        pass
    quotas.allow("owner", 400 * MB)
    with quotas.room("owner", "a.zip", 300 * MB, full):
        pass


def test_concurrent_files_count_together() -> None:
    quotas = Uploads()
    first, second, third = (quotas.room("one", name, 25 * MB, {}) for name in ("a.png", "b.png", "c.png"))
    with first, second, pytest.raises(UploadRejected), third:
        pass
    with quotas.room("one", "c.png", 25 * MB, {}):
        pass


def test_oldest_announcements_are_forgotten_beyond_the_limit() -> None:
    expected = Uploads()
    for number in range(uploads.PENDING_UPLOADS + 1):
        expected.expect("one", str(number), "a.png")
    assert [expected.name("one", str(number)) for number in (0, 1, uploads.PENDING_UPLOADS)] == [None, "a.png", "a.png"]
    for number in range(uploads.SESSIONS):
        expected.expect(f"session {number}", "file", "b.png")
    assert expected.name("one", "1") is None and expected.name("session 0", "file") == "b.png"


def test_files_for_the_disk_are_not_held_in_memory() -> None:
    spooled: Any = tempfile.SpooledTemporaryFile(max_size=10 * MB)  # noqa: SIM115  # whoever keeps it closes it
    spooled.write(b"short")
    file = guard._on_disk(guard.UploadFile(spooled))
    assert spooled._rolled and file == b"" and file.size == 5 and file.open().read() == b"short"


def test_several_readers_share_a_file_on_disk(tmp_path: Path) -> None:
    content = os.urandom(3 * MB)
    path = tmp_path / "file"
    path.write_bytes(content)
    upload = TemporaryUpload(path.open("rb"), len(content))
    assert len(upload) == 0 and upload.size == len(content)
    found: dict[int, bytes] = {}
    threads = [threading.Thread(target=lambda i=i: found.update({i: upload.open().read()})) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found[i] == content for i in range(4))
    reader = upload.open()
    assert reader.seek(0, 2) == len(content) and reader.seek(5) == 5 and reader.read(3) == content[5:8]


def test_archives_and_weights_are_no_pictures() -> None:
    assert not any(map(uploads.is_picture, ("a.zip", "model.safetensors", "png", "a.png.tar", "")))
