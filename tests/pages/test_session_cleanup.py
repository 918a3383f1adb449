"""Memory that a server frees after its last visitor has left."""

import asyncio
import logging
import sys
from pathlib import Path

import pytest
from coroutines import complete
from patience import PATIENCE, until
from streamlit import runtime
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

from pages.server import session_cleanup

sys.path.append(str(Path(__file__).parents[1] / "browser"))

from serving import streamlit

PAGE = Path(__file__).with_name("remembering_page.py")


def run(socket: ClientConnection, message: BackMsg) -> str:
    """Run the page; return Streamlit's id of its segmented control."""
    control = ""
    socket.send(message.SerializeToString())
    while (answer := ForwardMsg.FromString(socket.recv(PATIENCE))).WhichOneof("type") != "script_finished":
        control = answer.delta.new_element.button_group.id or control
    return control


def visit(address: str, forgotten: Path, hostile: bool = False) -> None:
    """Open the page, and close it once it is drawn.

    Args:
        hostile: also send a value of the wrong type for its control.
    """
    message = BackMsg()
    message.rerun_script.query_string = ""
    with connect(f"{address.replace('http', 'ws')}/_stcore/stream", subprotocols=["streamlit"]) as socket:
        control = run(socket, message)
        if hostile:
            message.rerun_script.widget_states.widgets.add(id=control, int_value=1)
            run(socket, message)
        assert not forgotten.exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize("hostile", [False, True])
def test_caches_are_freed_after_the_last_visitor(tmp_path: Path, hostile: bool) -> None:
    forgotten = tmp_path / "forgotten"
    environment = {"FORGOTTEN": str(forgotten), "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": "8"}
    with streamlit(PAGE, **environment) as address:
        for _ in range(2):  # the next visitor starts with empty caches
            visit(address, forgotten, hostile)
            until(forgotten.exists, "that the page's memory is cleared")
            forgotten.unlink()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return times of consecutive checks on a server without sessions."""
    monkeypatch.setattr(session_cleanup, "CHECK_INTERVAL", 0.0)
    monkeypatch.setattr(runtime, "exists", lambda: True)
    monkeypatch.setattr(session_cleanup, "close_lost", lambda lost: set())


@pytest.mark.parametrize("failure", [ValueError("a look"), asyncio.CancelledError()])
@pytest.mark.usefixtures("looks")
def test_failing_check_is_logged_and_the_next_one_follows(
    failure: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        done, failures = asyncio.Event(), [failure]

        def stay(visits: set[str]) -> None:
            if failures:
                raise failures.pop()
            done.set()

        async with session_cleanup.running(stay):
            await asyncio.wait_for(done.wait(), PATIENCE)

    complete(serve())
    assert [record.levelno for record in caplog.records if record.name == session_cleanup.__name__] == [logging.ERROR]


@pytest.mark.usefixtures("looks")
def test_thread_ends_with_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def serve() -> None:
        before = asyncio.all_tasks()
        async with session_cleanup.running():
            pass
        while asyncio.all_tasks() != before:
            await asyncio.sleep(0)

    complete(asyncio.wait_for(serve(), PATIENCE))
    assert not caplog.records
