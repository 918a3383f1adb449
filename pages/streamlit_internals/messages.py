"""What browser and server send each other through the web socket, as far as the guard reads it."""

from typing import NamedTuple

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg


class FromBrowser(NamedTuple):
    """A message of a browser.

    Attributes:
        kind: its field in Streamlit's protocol; "" for none.
        request: the id of a request for addresses to upload files to.
        files: their names.
    """

    kind: str
    request: str = ""
    files: tuple[str, ...] = ()


def from_browser(content: bytes) -> FromBrowser | None:
    """Read a message of a browser; None where it cannot be read, for which Streamlit closes the socket."""
    message = BackMsg()
    try:
        message.ParseFromString(content)
    except Exception:  # google.protobuf raises one of several kinds
        return None
    kind = message.WhichOneof("type") or ""
    if kind != "file_urls_request":
        return FromBrowser(kind)
    request = message.file_urls_request
    return FromBrowser(kind, request.request_id, tuple(request.file_names))


def upload_addresses(content: bytes) -> tuple[str, list[str]] | None:
    """The id of a request for addresses, and the addresses; None for a message of the server that says none."""
    message = ForwardMsg()
    message.ParseFromString(content)
    if message.WhichOneof("type") != "file_urls_response":
        return None
    response = message.file_urls_response
    return response.response_id, [urls.upload_url for urls in response.file_urls]
