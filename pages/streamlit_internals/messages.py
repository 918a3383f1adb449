"""The part of Streamlit's WebSocket protocol that the guard reads."""

from typing import NamedTuple

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg


class FromBrowser(NamedTuple):
    """A message from a browser.

    Attributes:
        kind: name of its field in Streamlit's protocol; "" for none.
        request: id of a request for upload URLs.
        files: names of the files to upload.
    """

    kind: str
    request: str = ""
    files: tuple[str, ...] = ()


def from_browser(content: bytes) -> FromBrowser | None:
    """Parse a message from a browser; None if it is invalid, in which case Streamlit closes the socket."""
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
    """Return the request id and the upload URLs of a message from the server; None for other messages."""
    message = ForwardMsg()
    message.ParseFromString(content)
    if message.WhichOneof("type") != "file_urls_response":
        return None
    response = message.file_urls_response
    return response.response_id, [urls.upload_url for urls in response.file_urls]
