"""What a server gives back when its last visitor has left."""

import sys
from pathlib import Path

from patience import until
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect

sys.path.append(str(Path(__file__).parents[1] / "browser"))

from serving import streamlit

WAIT = 120  # [s] on a busy machine


def visit(address: str, forgotten: Path) -> None:
    """Open the page, and close it once it is drawn."""
    message = BackMsg()
    message.rerun_script.query_string = ""
    with connect(f"{address.replace('http', 'ws')}/_stcore/stream", subprotocols=["streamlit"]) as socket:
        socket.send(message.SerializeToString())
        while ForwardMsg.FromString(socket.recv(WAIT)).WhichOneof("type") != "script_finished":
            pass
        assert not forgotten.exists()


def test_what_was_remembered_goes_with_the_last_visitor(tmp_path: Path) -> None:
    forgotten = tmp_path / "forgotten"
    environment = {"FORGOTTEN": str(forgotten), "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": "8"}
    with streamlit(Path(__file__).with_name("remembering_page.py"), **environment) as address:
        visit(address, forgotten)
        until(forgotten.exists, "that the page's memory is cleared")
        forgotten.unlink()
        visit(address, forgotten)  # and the next one finds everything anew
