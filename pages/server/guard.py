"""What stands between the network and Streamlit: who may talk to the app, how much, and about what.

`app.py` puts it in front of every request. Streamlit alone believes pages of any port of this machine, runs its own
messages of development for everybody, takes uploads that no page asked for, and lets itself be framed.
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

from pages.server import housekeeping, public, result_cache, visit_pictures
from pages.server.page_paths import PATHS
from pages.server.uploads import UPLOADS, OnDisk, Refused, is_picture
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
# What a page in a browser has to say; all else is for development, or empties what everybody shares.
MESSAGES = {"rerun_script", "stop_script", "app_heartbeat", "file_urls_request", "backend_operation_request"}
SMALL_MESSAGE = 1 << 20  # [bytes] of a message; addresses for uploads are never in a larger one
FULL = "As many people look at this as it has room for. Please try again in a few minutes."
_SITE = re.compile(r"https://[\w*.-]+(:\d+)?")
_UPLOAD = re.compile(r".*/_stcore/upload_file/([^/]+)/([^/]+)")


class Guard:
    """ASGI middleware; see the module."""

    def __init__(self, app: ASGIApp):
        self.app, self.pages = app, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is refused, and pass on everything else."""
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
        if public.is_public() and self.pages >= public.VISITORS and _is_page(scope):
            answer = PlainTextResponse(FULL, 503, {"Retry-After": "60"})
        elif scope["method"] not in ("GET", "HEAD", "OPTIONS") and is_foreign(Headers(scope=scope)):
            answer = PlainTextResponse("This request came from a page that is not the app's.", 403)
        elif scope["method"] == "PUT" and (match := _UPLOAD.fullmatch(scope["path"])):
            answer = await _take(Request(scope, receive), *match.groups())
        await answer(scope, receive, send)

    async def _connect(self, scope: Scope, receive: Receive, send: Send) -> None:
        full = public.is_public() and self.pages > public.VISITORS
        if full or is_foreign(Headers(scope=scope)):
            await send({"type": "websocket.close", "code": 1013 if full else 1008})
            return
        requested: dict[str, list[str]] = {}  # names of files by the request for their addresses

        async def hear() -> Message:
            while True:
                message = await receive()
                kind = _kind(message, requested)
                if kind is None or kind in MESSAGES:
                    return message

        async def tell(message: Message) -> None:
            if requested and message["type"] == "websocket.send" and len(message.get("bytes") or b"") < SMALL_MESSAGE:
                _expect(message["bytes"], requested)
            await send(message)

        await self.app(scope, hear, tell)


def is_foreign(headers: Headers) -> bool:
    """Whether a request comes from a web page that is neither the app's own nor one that its settings name.

    Another port is another page's, of this machine too. What is no browser sends no origin, and is let through.
    """
    origin = headers.get("origin")
    if origin is None or urlsplit(origin).netloc.lower() == headers.get("host", "").lower():
        return False
    if not st.get_option("server.enableCORS") or origin in st.get_option("server.corsAllowedOrigins"):
        return False
    named = st.get_option("browser.serverAddress") if server.is_set("browser.serverAddress") else None
    return named is None or urlsplit(origin).hostname != named.lower()


def _is_page(scope: Scope) -> bool:
    """Whether somebody opens a page, rather than something that belongs to one."""
    return scope["method"] == "GET" and scope["path"].rpartition("/")[2] in PATHS


def _headers() -> dict[str, str]:
    """`HEADERS`, for the sites that a public place may be shown in by a frame: VIT_FRAMED_BY, apart by spaces."""
    sites = os.environ.get("VIT_FRAMED_BY", "").split()
    if not public.is_public() or not sites or not all(map(_SITE.fullmatch, sites)):
        return HEADERS
    return {name: value for name, value in HEADERS.items() if name != "X-Frame-Options"} | {
        "Content-Security-Policy": _POLICY.format(" ".join(sites))
    }


def _with_headers(send: Send) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(_headers())
        await send(message)

    return tell


def _kind(message: Message, requested: dict[str, list[str]]) -> str | None:
    """What a browser says, None for what Streamlit itself refuses; remembers which uploads it announces."""
    if message["type"] != "websocket.receive" or not message.get("bytes"):
        return None
    read = messages.from_browser(message["bytes"])
    if read is None:
        return None
    if read.kind == "file_urls_request":
        requested[read.request] = list(read.files)
    return read.kind


def _expect(content: bytes, requested: dict[str, list[str]]) -> None:
    """Note which uploads Streamlit gave addresses for."""
    answer = messages.upload_addresses(content)
    if answer is None:
        return
    request, addresses = answer
    for name, address in zip(requested.pop(request, []), addresses, strict=False):
        session, file = address.rsplit("/", 2)[1:]
        UPLOADS.expect(session, file, name)


async def _take(request: Request, session: str, file: str) -> Response:
    """Keep an upload that a page asked for."""
    if server.is_forged(request.headers.get("X-Xsrftoken"), request.cookies.get(server.XSRF_COOKIE_NAME)):
        return PlainTextResponse("XSRF token missing or invalid", 403)
    name = UPLOADS.name(session, file)
    if name is None or not sessions.is_active(session):
        return PlainTextResponse("No page asked for this file.", 404)
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        return PlainTextResponse("A file has to say how long it is.", 411)
    try:
        with UPLOADS.room(session, name, int(length), files.stored()):
            uploads = [value for value in (await _form(request, name)).values() if isinstance(value, UploadFile)]
            if len(uploads) != 1:
                return PlainTextResponse(f"Expected 1 file, but got {len(uploads)}", 400)
            data = await uploads[0].read() if is_picture(name) else await asyncio.to_thread(_keep, uploads[0])
            kind = uploads[0].content_type or "application/octet-stream"
            files.store(session, file, name, kind, data)
    except Refused as error:
        return PlainTextResponse(str(error), 413)
    except (HTTPException, ClientDisconnect):
        return PlainTextResponse("The file did not arrive as a whole.", 400)
    UPLOADS.arrived(session, file)
    return Response(status_code=204)


async def _form(request: Request, name: str) -> FormData:
    """What was sent; pictures and videos never touch the disk on their way, as Starlette has it with all of 1 MB."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        return FormData()
    parser = MultiPartParser(request.headers, request.stream(), max_files=1)
    if is_picture(name):
        parser.spool_max_size = sys.maxsize
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from error


def _keep(upload: UploadFile) -> OnDisk:
    """The file that it was received into, which has no name."""
    file: Any = upload.file
    file.rollover()
    return OnDisk(file, file.seek(0, 2))


def _stay(visits: set[str]) -> None:
    """Forget what only others brought or needed than those visits that are still here."""
    visit_pictures.PICTURES.stay(visits)
    result_cache.stay(visits)


@asynccontextmanager
async def lifespan(_app: Any) -> AsyncIterator[None]:
    """Open the browser, as `streamlit run` does for a page by itself, and keep house while the server runs."""
    if not st.get_option("server.headless"):
        server.open_browser()
    public.restrict()
    async with housekeeping.running(_stay) if public.is_public() else housekeeping.running():
        yield


MIDDLEWARE = [Middleware(Guard)]
