"""Error messages of download buttons."""

import logging
from collections.abc import Callable

import pytest
from coroutines import complete
from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse
from streamlit.runtime.backend_operation_handler import DeferredFileHandler
from streamlit.runtime.media_file_manager import MediaFileManager
from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage

from pages.streamlit_internals import download_errors
from vit.errors import UserError


@pytest.fixture
def click(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], bytes]], BackendOperationResponse]:
    """Return `click(make)`: the response to a click on a download button whose file `make` creates."""
    monkeypatch.setattr(DeferredFileHandler, "handle", DeferredFileHandler.handle)
    download_errors.patch()

    def answer(make: Callable[[], bytes]) -> BackendOperationResponse:
        files = MediaFileManager(MemoryMediaFileStorage("/media"))
        request = BackendOperationRequest(request_id="one")
        request.deferred_file.file_id = files.add_deferred(make, "text/plain", "0")
        return complete(DeferredFileHandler(lambda: files).handle(request, "session"))

    return answer


def failing(error: Exception) -> Callable[[], bytes]:
    def make() -> bytes:
        raise error

    return make


def logged(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == download_errors.__name__]


def test_created_file_has_an_address(click: Callable) -> None:
    answer = click(lambda: b"content")
    assert answer.request_id == "one" and answer.deferred_file.url.startswith("/media/") and not answer.error_msg


def test_user_error_is_shown_and_not_logged(click: Callable, caplog: pytest.LogCaptureFixture) -> None:
    answer = click(failing(UserError("'cifar10' was not written: No space left on device.")))
    assert answer.error_msg == "'cifar10' was not written: No space left on device." and not logged(caplog)


def test_any_other_failure_is_logged(click: Callable, caplog: pytest.LogCaptureFixture) -> None:
    answer = click(failing(ValueError("secret")))
    assert "log" in answer.error_msg and "secret" not in answer.error_msg
    (record,) = logged(caplog)
    assert record.levelno == logging.ERROR and record.exc_info
