"""A Hugging Face Hub in this process, for tests: repositories with commits, and a server for large files.

It answers as the Hub does. Downloads: HEAD and GET of /<repository>/resolve/<revision>/<file> with X-Repo-Commit and
ETag, a redirect to another host for large files (with X-Linked-Size and X-Linked-Etag), X-Error-Code with errors,
ranges, /api/models with a revision's commit and each file's size and hash. Pushes: POST of /api/repos/create,
/api/validate-yaml, /api/models/<repository>/preupload and /commit (lines of JSON), /<repository>.git/info/lfs, and PUT
to the other host. `huggingface_hub` itself downloads from it and pushes to it.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from huggingface_hub import constants

from vit.checkpoints.hub import models as hub
from vit.errors import UserError

LARGE = (".safetensors", ".bin", ".pth")


@dataclass
class Repository:
    """One repository: files by commit, and the commit of each branch."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    closed: str = ""  # "private" or "gated": requests without the right token get an error
    messages: list[str] = field(default_factory=list)  # of the pushed commits


@dataclass
class Request:
    """One served request."""

    method: str
    path: str
    headers: dict[str, str]
    host: str  # "hub" or "store"


class HubServer:
    """The Hub at `url`, and its store of large files at another address.

    Attributes:
        requests: all requests, in order.
        drops: the connection ends after so many bytes of a large file, once per entry.
        ranges: whether the store honours Range.
        sent: large file -> content that is sent instead.
        headers: replace the Hub's headers for these files, such as {"Location": "file:///etc/passwd"}; size, hash and
            commit in them appear in the listing, too.
        status: status of every response, if not 0.
        page: body of every response, if not empty.
        moved: old name of a repository -> new name.
        plain: errors have no X-Error-Code, as from a mirror.
        gate: while it is cleared, the second half of a large file waits.
        owners: namespaces that the token may write to.
        taken: names used by other kinds of repositories, such as datasets.
        before_commit: called before each commit, to simulate a concurrent one.
    """

    token = "hf_right"

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.files: dict[str, bytes] = {}  # torchvision's, at /models/
        self.requests: list[Request] = []
        self.drops: list[int] = []
        self.ranges = True
        self.sent: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.status = 0
        self.page = b""
        self.moved: dict[str, str] = {}
        self.plain = False
        self.gate = Event()
        self.gate.set()
        self.blobs: dict[str, bytes] = {}
        self.owners = ["ada"]
        self.taken: list[str] = []
        self.before_commit: Callable[[], object] = lambda: None

    def publish(self, name: str, folder: Path | dict[str, bytes], branch: str = "main", closed: str = "") -> str:
        """Commit a folder's files, and return the commit."""
        if isinstance(folder, Path):
            folder = {path.name: path.read_bytes() for path in folder.iterdir()}
        repository = self.repositories.setdefault(name, Repository(closed=closed))
        commit = hashlib.sha1(repr((name, sorted(folder.items()))).encode()).hexdigest()
        repository.commits[commit] = folder
        repository.branches[branch] = commit
        return commit

    def requests_of(self, part: str) -> list[Request]:
        """Return the GET requests with `part` in their path."""
        return [one for one in self.requests if part in one.path and one.method == "GET"]

    @contextmanager
    def running(self) -> Iterator["HubServer"]:
        """Serve until the block ends."""
        servers = []
        for host in ("hub", "store"):
            server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (_Handler,), {"hub": self, "host": host}))
            server.daemon_threads = True
            Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            servers.append(server)
        self.url = f"http://127.0.0.1:{servers[0].server_port}"
        self.store = f"http://localhost:{servers[1].server_port}"
        try:
            yield self
        finally:
            for server in servers:
                server.shutdown()
                server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer
    host: str
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append(Request(self.command, self.path, headers, self.host))
        if self.host == "store":
            self.serve_store(unquote(self.path).rpartition("/")[2])
        elif self.hub.status:
            self.answer(self.hub.status, {})
        elif self.hub.page:
            self.answer(200, {"Content-Type": "text/html"}, self.hub.page)
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            name, revision, file = map(unquote, match.groups())
            if not self.is_elsewhere(name):
                self.serve_file(name, revision, file)
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/?]+))?(?:\?.*)?", self.path):
            if not self.is_elsewhere(match[1]):
                self.serve_listing(match[1], unquote(match[2] or "main"))
        else:
            self.answer(404, {})

    # --- Pushes ---------------------------------------------------------------------------------------------------

    def do_PUT(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.hub.requests.append(Request(self.command, self.path, headers, self.host))
        body = self.read_body()
        if self.host == "store":
            name = self.path.rpartition("/")[2]
            fits = hashlib.sha256(body).hexdigest() == name
            self.hub.blobs |= {name: body} if fits else {}
            self.answer(200 if fits else 400, {})
        elif self.hub.status:
            self.answer(self.hub.status, {})
        elif self.path == "/api/validate-yaml":
            self.validate_card(json.loads(body)["content"])
        elif headers.get("authorization") != f"Bearer {self.hub.token}":
            self.answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif self.path == "/api/repos/create":
            self.create(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", self.path):
            if match[1].partition("/")[0] not in self.hub.owners:
                self.answer(403, {"X-Error-Message": "You have no right to write"})
            elif match[2] == "preupload":
                files = [{"path": file["path"], "shouldIgnore": False} for file in json.loads(body)["files"]]
                modes = [file | {"uploadMode": "lfs" if file["path"].endswith(LARGE) else "regular"} for file in files]
                self.answer_json({"files": modes})
            else:
                self.commit(match[1], [json.loads(line) for line in body.splitlines()])
        elif re.fullmatch(r"/[^/]+/[^/]+\.git/info/lfs/objects/batch", self.path):
            self.answer_json({"transfer": "basic", "objects": [self.lfs(one) for one in json.loads(body)["objects"]]})
        else:
            self.answer(404, {})

    def read_body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        content = b""
        while size := int(self.rfile.readline(), 16):  # chunked, as for a body read from a file
            content += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return content

    def lfs(self, large: dict[str, Any]) -> dict[str, Any]:
        """Return the upload address of a large file, or none if the file is stored already."""
        there = large["oid"] in self.hub.blobs
        return large | ({} if there else {"actions": {"upload": {"href": f"{self.hub.store}/upload/{large['oid']}"}}})

    def validate_card(self, card: str) -> None:
        metadata = yaml.safe_load(card.split("---")[1])
        fits = metadata["pipeline_tag"] == "image-classification" and metadata.get("license") != "none-such"
        if fits:
            self.answer_json({})
        else:
            self.answer_json({"errors": [{"message": '"license" must be one of many'}]}, 400)

    def create(self, wish: dict[str, Any]) -> None:
        name = f"{wish['organization']}/{wish['name']}"
        if wish["organization"] not in self.hub.owners:
            self.answer(403, {"X-Error-Message": "You have no right to create a model there"})
        elif name in self.hub.repositories or name in self.hub.taken:
            self.answer(409, {"X-Error-Message": "You already created this repo"})
        else:
            closed = "private" if wish["visibility"] == "private" else ""
            self.hub.publish(name, {".gitattributes": b"*.safetensors filter=lfs"}, closed=closed)
            self.answer_json({"url": f"{self.hub.url}/{name}", "name": name})

    def commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        self.hub.before_commit()
        repository, header = self.hub.repositories[name], lines[0]["value"]
        head = repository.branches["main"]
        if header.get("parentCommit", head) != head:
            self.answer(412, {"X-Error-Message": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(repository.commits[head])
        for line in lines[1:]:
            value = line["value"]
            large = line["key"] == "lfsFile"
            files[value["path"]] = self.hub.blobs[value["oid"]] if large else base64.b64decode(value["content"])
        repository.messages.append(header["summary"])
        commit = self.hub.publish(name, files)
        self.answer_json({"commitUrl": f"{self.hub.url}/{name}/commit/{commit}", "commitOid": commit})

    def answer_json(self, document: dict[str, Any], status: int = 200) -> None:
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(document).encode())

    # --- Downloads ------------------------------------------------------------------------------------------------

    def is_elsewhere(self, name: str) -> bool:
        """Redirect a request for a moved repository."""
        if new := self.hub.moved.get(name):
            self.answer(307, {"Location": self.path.replace(name, new, 1)})
        return bool(new)

    def find(self, name: str, revision: str, listed: bool = False) -> tuple[str, dict[str, bytes]] | None:
        """Return the commit and its files; send the Hub's error and return None if there are none.

        Args:
            listed: the request is for the listing, which the Hub serves for gated repositories, too.
        """
        repository = self.hub.repositories.get(name)
        given = self.headers.get("Authorization", "")
        right = given == f"Bearer {self.hub.token}"
        if given and not right:
            self.answer(401, {"X-Error-Message": "Invalid credentials in Authorization header"})
        elif repository is None or (repository.closed == "private" and not right):
            self.answer(404 if given else 401, {"X-Error-Code": "RepoNotFound"})
        elif repository.closed == "gated" and not right and not listed:
            self.answer(401, {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to this model is restricted."})
        elif (commit := repository.branches.get(revision, revision)) not in repository.commits:
            self.answer(404, {"X-Error-Code": "RevisionNotFound"})
        else:
            return commit, repository.commits[commit]
        return None

    def serve_file(self, name: str, revision: str, file: str) -> None:
        if not (result := self.find(name, revision)):
            return
        commit, files = result
        if file not in files:
            self.answer(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
            return
        content = files[file]
        headers, changed = {"X-Repo-Commit": commit, "Accept-Ranges": "bytes"}, self.hub.headers.get(file, {})
        if file.endswith(LARGE):
            sha256 = hashlib.sha256(content).hexdigest()
            self.hub.blobs[sha256] = self.hub.sent.get(file, content)
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{sha256}"'}
            headers |= {"Location": f"{self.hub.store}/blobs/{sha256}", "ETag": f'"{sha256}"'}
            self.answer(302, headers | changed)
        else:
            blob = b"blob %d\0" % len(content) + content
            self.answer(200, headers | {"ETag": f'"{hashlib.sha1(blob).hexdigest()}"'} | changed, content)

    def serve_listing(self, name: str, revision: str) -> None:
        if result := self.find(name, revision, listed=True):
            commit, files = result
            said = self.hub.headers.get("config.json", {}).get("X-Repo-Commit", commit)
            siblings = [self.listed(file, content) for file, content in files.items()]
            private = self.hub.repositories[name].closed == "private"
            self.answer_json({"id": name, "modelId": name, "sha": said, "siblings": siblings, "private": private})

    def listed(self, file: str, content: bytes) -> dict[str, Any]:
        """Return a file's entry in a listing."""
        changed = self.hub.headers.get(file, {})
        size = int(changed.get("X-Linked-Size", len(content)))
        if not file.endswith(LARGE):
            return {"rfilename": file, "size": size}
        sha256 = changed.get("X-Linked-Etag", hashlib.sha256(content).hexdigest()).strip('"')
        return {"rfilename": file, "size": size, "lfs": {"size": size, "sha256": sha256, "pointerSize": 130}}

    def serve_store(self, name: str) -> None:
        content = self.hub.blobs.get(name, self.hub.files.get(name))
        if content is None:
            self.answer(404, {})
            return
        start, status, headers = 0, 200, {}
        span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if span and self.hub.ranges:
            start = int(span[1])
            if start >= len(content):
                self.answer(416, {"Content-Range": f"bytes */{len(content)}"})
                return
            status, headers = 206, {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        drop = self.hub.drops.pop(0) if self.hub.drops and self.command == "GET" else None
        self.answer(status, headers, content[start:], drop)

    def answer(self, status: int, headers: dict[str, str], content: bytes = b"", drop: int | None = None) -> None:
        self.send_response(status)
        if self.hub.plain:
            headers = {name: value for name, value in headers.items() if name != "X-Error-Code"}
        for name, value in ({"Content-Length": str(len(content)), "Connection": "close"} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        if self.command != "HEAD":
            half = len(content) // 2 if self.host == "store" and not self.hub.gate.is_set() else 0
            if half:
                self.wfile.write(content[:half])
                self.hub.gate.wait()
            self.wfile.write(content[half:drop])


@contextmanager
def empty_hub(root: Path) -> Iterator[HubServer]:
    """Run an empty Hub, with empty download folders."""
    with pytest.MonkeyPatch.context() as patch, HubServer().running() as server:
        patch.setenv("VIT_DOWNLOADS", str(root / "downloads"))
        patch.setenv("HF_HUB_CACHE", str(root / "hub"))
        patch.setenv("VIT_CHECKPOINTS", str(root / "checkpoints"))
        patch.delenv("HF_TOKEN", raising=False)
        patch.setattr(constants, "HF_HUB_OFFLINE", False)
        patch.setattr(constants, "HF_TOKEN_PATH", str(root / "no-token"))
        patch.setenv("HF_ENDPOINT", server.url)
        yield server


def refusal(name: str, **how: Any) -> str:
    """Return the message with which a name is refused; check that nothing was stored."""
    with pytest.raises(UserError) as caught:
        hub.fetch(name, **how)
    message = str(caught.value)
    assert message.count("\n") == 0 and message.endswith(".") and len(message) < 400, message
    assert hub.cached() == []
    return message
