"""A visitor without a browser: a websocket client that behaves like Streamlit's frontend, for load tests."""

import asyncio
import random
import re
import time
import urllib.request

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.Common_pb2 import FileURLs
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

PATIENCE = 120  # timeout [s] of one run
CACHE_AGE = 2  # runs for which a browser caches a message; the server's default


class Visitor:
    """One open page, as the server sees it.

    Args:
        address: of the server.
        page: its path with the query.
        chance: random numbers for the pauses.
    """

    def __init__(self, address: str, page: str, chance: random.Random):
        self.server = address
        self.address = address.replace("http", "ws", 1) + "/_stcore/stream"
        self.name, _, self.query = page.partition("?")
        self.chance = chance
        self.page_hash = self.timer = ""  # the fragment's timer, as requested by the page
        self.known: dict[str, int] = {}  # hashes of cached messages -> the run of their last use
        self.age, self.runs = CACHE_AGE, 0
        self.payload = ""  # latest address of the viewer's bytes
        self.uploader = ""  # the page's uploader for pictures, by Streamlit's id
        self.uploaded: list[FileURLs] = []
        self.viewed = asyncio.Event()  # whether the viewer and the address of its bytes arrived in this run

    async def visit(self, think: float, opened: list[float], runs: list[float], started: asyncio.Event) -> None:
        """Open the page, wait for the first view, then rerun it again and again, until cancelled.

        Args:
            think: mean pause between two runs [s].
            opened, runs: receive the duration of the first run and of each later one [s].
        """
        async with connect(self.address, subprotocols=["streamlit"], max_size=None) as socket:
            seconds = await self.run(socket)
            if self.timer:  # a cold server's first view: once it is drawn, a browser requests the rest
                await self.run(socket, self.timer)
            opened.append(seconds)
            await started.wait()
            while True:
                await asyncio.sleep(think * self.chance.uniform(0.5, 1.5))
                runs.append(await self.run(socket))

    async def first_view(self, socket: ClientConnection) -> float:
        """Open the page as a new visitor; return the time until picture and map can be drawn [s]."""
        began = time.perf_counter()
        await asyncio.to_thread(self.fetch, f"/{self.name}")
        view = asyncio.create_task(self.view(began))
        await self.run(socket)
        return await view

    async def new_picture(self, socket: ClientConnection, name: str, content: bytes) -> float:
        """Upload a picture; return the time until it and its map can be drawn [s]."""
        began, before = time.perf_counter(), self.payload
        await self.upload(socket, name, content)
        view = asyncio.create_task(self.view(began, before))
        await self.run(socket)
        return await view

    async def view(self, began: float, before: str = "") -> float:
        """Wait for the viewer with other bytes than before, and fetch them; return the time since the start [s]."""
        async with asyncio.timeout(PATIENCE):
            while not self.payload or self.payload == before:
                self.viewed.clear()
                await self.viewed.wait()
        await asyncio.to_thread(self.fetch, self.payload)
        return time.perf_counter() - began

    async def upload(self, socket: ClientConnection, name: str, content: bytes) -> None:
        """Send a file as the page's uploader does; the next run receives it.

        Raises:
            urllib.error.HTTPError: the server refused it.
        """
        message = BackMsg()
        message.file_urls_request.request_id = f"{self.runs} {name}"
        message.file_urls_request.file_names.append(name)
        await socket.send(message.SerializeToString())
        while (answer := ForwardMsg.FromString(await socket.recv(decode=False))).WhichOneof("type") != (
            "file_urls_response"
        ):
            self.receive(answer)
        (urls,) = answer.file_urls_response.file_urls
        await asyncio.to_thread(self.put, urls.upload_url, name, content)
        self.uploaded = [urls]
        self.sizes = {urls.file_id: (name, len(content))}

    def fetch(self, path: str) -> bytes:
        """Fetch a path from the server; bytes with the headers that the viewer sends."""
        request = urllib.request.Request(self.server + path, headers={"Range": "bytes=0-"} if "media" in path else {})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read()

    def put(self, path: str, name: str, content: bytes) -> None:
        """Upload a file to a path."""
        with urllib.request.urlopen(f"{self.server}/_stcore/health", timeout=PATIENCE) as answer:
            token = answer.headers["Set-Cookie"].partition(";")[0].partition("=")[2]
        disposition = f'Content-Disposition: form-data; name="file"; filename="{name}"'
        body = f"--edge\r\n{disposition}\r\n\r\n".encode() + content + b"\r\n--edge--\r\n"
        headers = {
            "Content-Type": "multipart/form-data; boundary=edge",
            "Cookie": f"_streamlit_xsrf={token}",
            "X-Xsrftoken": token,
        }
        request = urllib.request.Request(self.server + path, body, headers, method="PUT")
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    async def run(self, socket: ClientConnection, fragment: str = "") -> float:
        """Request one run and receive its output; return its duration [s]."""
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_script_hash = self.query, self.page_hash
        state.page_name = "" if self.page_hash else self.name
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
        state.cached_message_hashes.extend(self.known)
        if self.uploaded:
            widget = state.widget_states.widgets.add(id=self.uploader)
            for urls in self.uploaded:
                name, size = self.sizes[urls.file_id]
                widget.file_uploader_state_value.uploaded_file_info.add(
                    file_id=urls.file_id, name=name, size=size, file_urls=urls
                )
            self.uploaded = []
        state.context_info.timezone, state.context_info.locale = "UTC", "en"
        began = time.perf_counter()
        await socket.send(message.SerializeToString())
        async with asyncio.timeout(PATIENCE):
            while not self.receive(ForwardMsg.FromString(await socket.recv(decode=False))):
                pass
        return time.perf_counter() - began

    def receive(self, message: ForwardMsg) -> bool:
        """Process a message as a browser does, except for drawing; return whether it ends the run."""
        kind = message.WhichOneof("type")
        if message.metadata.cacheable or kind == "ref_hash":
            self.known[message.ref_hash or message.hash] = self.runs
        if kind == "new_session":
            self.page_hash, self.timer = message.new_session.page_script_hash, ""
            self.age = message.new_session.config.max_cached_message_age or CACHE_AGE
        elif kind == "auto_rerun":
            self.timer = message.auto_rerun.fragment_id
        elif kind == "delta" and message.delta.new_element.WhichOneof("type") == "exception":
            raise RuntimeError(f"The page shows an error: {message.delta.new_element.exception.message}")
        elif kind == "delta":
            self.look(message)
        elif kind == "page_not_found":
            raise RuntimeError(f"There is no page {self.name!r}.")
        if kind != "script_finished" or message.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            return False
        self.runs += 1
        self.known = {key: used for key, used in self.known.items() if self.runs - used <= self.age}
        return True

    def look(self, message: ForwardMsg) -> None:
        """Store the addresses of the viewer's bytes and of the uploader."""
        element = message.delta.new_element
        if element.WhichOneof("type") == "file_uploader" and not element.file_uploader.disabled:
            self.uploader = element.file_uploader.id
        elif element.WhichOneof("type") == "bidi_component":
            component = element.bidi_component
            if component.component_name == "vit_feeder" and component.id.endswith("-feeder"):
                (self.payload,) = re.findall(r"/media/[\w.]+", str(component)) or [self.payload]
            self.viewed.set()
