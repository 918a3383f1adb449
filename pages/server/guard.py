"""ASGI middleware that protects Streamlit: it checks origins, message types, uploads and the number of visitors.

`app.py` puts it in front of every request. Streamlit alone accepts requests from web pages on any port of this machine,
development messages from everybody, and uploads that no page requested, and it can be embedded in frames.
"""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import streamlit as st
from starlette.datastructures import FormData, Headers, MutableHeaders, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pages.server import public, result_cache, session_cleanup, session_pictures
from pages.server.page_paths import PATHS
from pages.server.uploads import UPLOADS, TemporaryUpload, UploadRejected, is_picture
from pages.streamlit_internals import files, messages, server, sessions

_POLICY = "frame-ancestors {}; object-src 'none'; base-uri 'self'; form-action 'self'"
HEADERS = {
    "Content-Security-Policy": _POLICY.format("'none'"),
    "X-Frame-Options": "DENY",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Messages that a page in a browser sends. All others are for development, or clear caches that all visitors share.
MESSAGES = {"rerun_script", "stop_script", "app_heartbeat", "file_urls_request", "backend_operation_request"}
SMALL_MESSAGE = 1 << 20  # messages with upload URLs are smaller [bytes]
FULL = "This demonstration has as many visitors as it can serve. Please try again in a few minutes."
_SITE = re.compile(r"https://[\w*.-]+(:\d+)?")
_UPLOAD = re.compile(r".*/_stcore/upload_file/([^/]+)/([^/]+)")


class Guard:
    """ASGI middleware that rejects forbidden requests and messages.

    Attributes:
        app: the ASGI application behind it.
        pages: number of open pages.
    """

    def __init__(self, app: ASGIApp):
        self.app, self.pages = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to forbidden requests and to uploads, and pass on all others."""
        if scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))
        elif scope["type"] == "websocket":
            self.pages += 1
            try:
                await self._connect(scope, receive, send)
            finally:
                self.pages -= 1
        else:
            await self.app(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer: ASGIApp = self.app
        if public.is_public() and self.pages >= public.MAX_OPEN_PAGES and _is_page(scope):
            answer = PlainTextResponse(FULL, 503, {"Retry-After": "60"})
        elif scope["method"] not in ("GET", "HEAD", "OPTIONS") and is_foreign(Headers(scope=scope)):
            answer = PlainTextResponse("This request came from a page that is not the app's.", 403)
        elif scope["method"] == "PUT" and (match := _UPLOAD.fullmatch(scope["path"])):
            answer = await _receive_upload(Request(scope, receive), *match.groups())
        await answer(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        full = public.is_public() and self.pages > public.MAX_OPEN_PAGES
        if full or is_foreign(Headers(scope=scope)):
            await send({"type": "websocket.close", "code": 1013 if full else 1008})
            return
        requested: dict[str, list[str]] = {}  # file names by the id of the request for their upload URLs

        async def receive_allowed() -> Message:
            while True:
                message = await receive()
                kind = _kind(message, requested)
                if kind is None or kind in MESSAGES:
                    return message

        async def send_and_inspect(message: Message) -> None:
            if requested and message["type"] == "websocket.send" and len(message.get("bytes") or b"") < SMALL_MESSAGE:
                _register_uploads(message["bytes"], requested)
            await send(message)

        await self.app(scope, receive_allowed, send_and_inspect)


def is_foreign(headers: Headers) -> bool:
    """Whether a request comes from a web page of another origin that the settings do not allow.

    Another port of this machine is another origin. Clients other than browsers send no origin and are accepted.
    """
    origin = headers.get("origin")
    if origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower():
        return False
    if not st.get_option("server.enableCORS") or origin in st.get_option("server.corsAllowedOrigins"):
        return False
    named = st.get_option("browser.serverAddress") if server.is_set("browser.serverAddress") else None
    return named is None or urlsplit(origin).hostname != named.lower()


def _is_page(scope: Scope) -> bool:
    """Whether a request opens a page, rather than loads one of its resources."""
    return scope["method"] == "GET" and scope["path"].rpartition("/")[2] in PATHS


def _headers() -> dict[str, str]:
    """Return `HEADERS`. On a public server, VIT_FRAMED_BY lists sites that may frame it, separated by spaces."""
    sites = os.environ.get("VIT_FRAMED_BY", "").split()
    if not public.is_public() or not sites or not all(map(_SITE.fullmatch, sites)):
        return HEADERS
    return {name: value for name, value in HEADERS.items() if name != "X-Frame-Options"} | {
        "Content-Security-Policy": _POLICY.format(" ".join(sites))
    }


def _with_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_headers())
        await send(message)

    return send_with_headers


def _kind(message: Message, requested: dict[str, list[str]]) -> str | None:
    """Return a browser message's type, None for one that Streamlit rejects; store announced uploads in `requested`."""
    if message["type"] != "websocket.receive" or not message.get("bytes"):
        return None
    parsed = messages.from_browser(message["bytes"])
    if parsed is None:
        return None
    if parsed.kind == "file_urls_request":
        requested[parsed.request] = list(parsed.files)
    return parsed.kind


def _register_uploads(content: bytes, requested: dict[str, list[str]]) -> None:
    """Register the uploads for which Streamlit's response contains URLs."""
    answer = messages.upload_addresses(content)
    if answer is None:
        return
    request, addresses = answer
    for name, address in zip(requested.pop(request, []), addresses, strict=False):
        session, file = address.rsplit("/", 2)[1:]
        UPLOADS.expect(session, file, name)


async def _receive_upload(request: Request, session: str, file: str) -> Response:
    """Store an upload that a page requested."""
    if server.is_forged(request.headers.get("X-Xsrftoken"), request.cookies.get(server.XSRF_COOKIE_NAME)):
        return PlainTextResponse("XSRF token missing or invalid", 403)
    name = UPLOADS.name(session, file)
    if name is None or not sessions.is_active(session):
        return PlainTextResponse("No page asked for this file.", 404)
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        return PlainTextResponse("The upload has no Content-Length.", 411)
    try:
        with UPLOADS.room(session, name, int(length), files.stored()):
            uploads = [value for value in (await _form(request, name)).values() if isinstance(value, UploadFile)]
            if len(uploads) != 1:
                return PlainTextResponse(f"Expected 1 file, but got {len(uploads)}", 400)
            data = await uploads[0].read() if is_picture(name) else await asyncio.to_thread(_on_disk, uploads[0])
            kind = uploads[0].content_type or "application/octet-stream"
            files.store(session, file, name, kind, data)
    except UploadRejected as error:
        return PlainTextResponse(str(error), 413)
    except (HTTPException, ClientDisconnect):
        return PlainTextResponse("The file did not arrive as a whole.", 400)
    UPLOADS.arrived(session, file)
    return Response(status_code=204)


async def _form(request: Request, name: str) -> FormData:
    """Parse the form. Pictures and videos stay in memory; Starlette would write files above 1 MB to disk."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return FormData()
    parser = MultiPartParser(request.headers, request.stream(), max_files=1)
    if is_picture(name):
        parser.spool_max_size = sys.maxsize
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error


def _on_disk(upload: UploadFile) -> TemporaryUpload:
    """Return an upload as the unnamed temporary file that Starlette received it into."""
    file: Any = upload.file
    file.rollover()
    return TemporaryUpload(file, file.seek(0, 2))


def _retain(visits: set[str]) -> None:
    """Delete uploads and cached results that belong to none of these visits."""
    session_pictures.PICTURES.retain(visits)
    result_cache.retain(visits)


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[None]:
    """Open the browser, as `streamlit run` does for a script, and run housekeeping while the server runs."""
    if not st.get_option("server.headless"):
        server.open_browser()
    public.restrict()
    async with session_cleanup.running(_retain) if public.is_public() else session_cleanup.running():
        yield


MIDDLEWARE = [Middleware(Guard)]
