"""Public mode: uploads are not stored, nothing can be changed, and total resources are limited."""

import asyncio
import os
import random
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from coroutines import complete
from patience import PATIENCE, until
from PIL import Image
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from pages.server import guard, public, uploaded_pictures
from pages.server.pass_queue import MemoryQueue
from pages.server.result_cache import ResultCache
from pages.server.session_pictures import VisitPictures
from tests.browser.serving import streamlit
from tests.browser.visitor import Visitor
from tests.pages.controls import app_page, new_page
from vit.images.encode import encode_image

ROOT = Path(__file__).parents[2]
MB = 1 << 20


def photo(brightness: int, size: tuple[int, int] = (60, 40), format: str = "PNG") -> bytes:
    return encode_image(Image.linear_gradient("L").resize(size).point(lambda value: (value + brightness) % 256), format)


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder where pictures would be stored."""
    monkeypatch.setenv("VIT_PUBLIC", "1")
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DOWNLOADS", str(tmp_path / "downloads"))
    return tmp_path / "pictures"


def test_upload_is_explained_for_its_session_and_never_written_to_disk(place: Path) -> None:
    page = app_page(sample="cat")
    page.file_uploader[0].upload("phone.png", photo(0), "image/png").run()
    link = {name: values[0] for name, values in page.query_params.items()}
    assert any(one.value == "phone\\.png" for one in page.caption)
    page.run()
    assert any(one.value == "phone\\.png" for one in page.caption)
    other = app_page(**link)
    assert any("deleted" in one.value for one in other.info)
    assert not place.exists()


def test_training_is_closed_and_no_login_is_offered(place: Path) -> None:
    page = new_page("train")
    page.secrets.update({"auth": {"provider": "any"}, "trainers": {"emails": ["ada@example.com"]}})
    page.user = {"is_logged_in": True, "email": "ada@example.com"}
    page.run()
    assert [one.value for one in page.title] == ["Training is closed here"]
    assert "public demo without training" in page.markdown[0].value
    assert not page.button


def test_large_inputs_are_not_offered(place: Path) -> None:
    sizes = next(one for one in app_page(sample="cat", size="256").selectbox if one.label == "Input size")
    tokens = [int(option.split(" · ")[1].split()[0].replace(",", "")) for option in sizes.options]
    assert tokens and max(tokens) <= public.TOKENS
    assert sizes.value == (32, 32)


def test_pictures_belong_to_sessions_and_the_least_recently_used_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    visit = ["ada"]
    monkeypatch.setattr("pages.server.session_pictures.current_id", lambda: visit[0])
    pictures = VisitPictures(most=100)
    assert pictures.keep("one", bytes(40)) and pictures.keep("two", bytes(40))
    assert pictures.find("one") == bytes(40)
    visit[0] = "bob"
    assert pictures.find("one") is None
    assert pictures.keep("one", bytes(50)) and not pictures.keep("large", bytes(101))
    visit[0] = "ada"
    assert pictures.find("two") is None and pictures.find("one") == bytes(40)
    pictures.retain({"bob"})
    assert pictures.find("one") is None


def test_results_are_dropped_with_the_last_session_that_needed_them(monkeypatch: pytest.MonkeyPatch) -> None:
    visit, made, memory = ["ada"], list[str](), ResultCache()
    monkeypatch.setattr("pages.server.result_cache.current_id", lambda: visit[0])

    def result(key: str) -> str:
        return memory.get(key, lambda: made.append(key) or key)

    result("map"), result("own")
    visit[0] = "bob"
    result("map")
    memory.retain({"bob"})
    result("map"), result("own")
    assert made == ["map", "own", "own"]


def test_number_of_concurrent_passes_is_limited() -> None:
    line, places = MemoryQueue(100, most=1), list[int]()
    enough, done = threading.Event(), threading.Event()

    def tell(place: int) -> None:
        places.append(place)
        enough.set()

    def second() -> None:
        with line.reserve(1, tell):
            done.set()

    with line.reserve(1):
        threading.Thread(target=second, daemon=True).start()
        assert enough.wait(60) and not done.is_set()
    assert done.wait(60) and set(places) == {1}


def test_keys_of_others_pictures_open_nothing(place: Path) -> None:
    assert uploaded_pictures.find("../../etc/passwd") is None and not uploaded_pictures.is_stored("0" * 64)


@pytest.mark.parametrize(
    ("sites", "ancestors"),
    [
        ("https://huggingface.co", "https://huggingface.co"),
        ("https://huggingface.co; script-src *", "'none'"),
        ("", "'none'"),
    ],
)
def test_only_listed_sites_may_frame_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, sites: str, ancestors: str
) -> None:
    monkeypatch.setenv("VIT_FRAMED_BY", sites)
    headers = guard._headers()
    assert headers["Content-Security-Policy"].startswith(f"frame-ancestors {ancestors};")
    assert ("X-Frame-Options" in headers) is (ancestors == "'none'")
    monkeypatch.delenv("VIT_PUBLIC")
    assert guard._headers() is guard.HEADERS


# --- A real server --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A public server, with its folder for temporary files and the folder for all others."""
    folder = tmp_path_factory.mktemp("public")
    names = {f"VIT_{name}": str(folder / name) for name in ("RUNS", "PICTURES", "DATA_ROOTS", "DOWNLOADS")}
    names |= {"TMPDIR": str(folder), "STREAMLIT_SERVER_DISCONNECTED_SESSION_TTL": "8"}
    with streamlit(ROOT / "app.py", VIT_PUBLIC="1", **names) as address:
        yield address, folder


def memory_of(address: str) -> int:
    """Return a server's memory [bytes]."""
    argument = f"--server.port={address.rpartition(':')[2]}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            if argument in (process / "cmdline").read_bytes().split(b"\0"):
                return int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    raise LookupError(address)


async def upload_pictures(address: str, count: int, first: int = 0) -> None:
    """Let visitors in sequence upload 8 MB each and view it."""
    for number in range(first, first + count):
        visitor = Visitor(address, "?sample=cat", random.Random(number))
        async with connect(visitor.address, subprotocols=["streamlit"], max_size=None) as socket:
            await visitor.run(socket)
            content = photo(8 * number, (1200, 900), "JPEG") + bytes(8 * MB)
            await visitor.new_picture(socket, f"{number}.jpg", content)


@pytest.mark.exhaustive
def test_sequential_large_uploads_are_freed_during_other_sessions_and_never_reach_the_disk(
    server: tuple[str, Path],
) -> None:
    address, folder = server

    async def visits() -> None:
        looks = Visitor(address, "?sample=cat", random.Random(0))
        async with connect(looks.address, subprotocols=["streamlit"], max_size=None) as socket:  # all along
            await looks.run(socket)
            await upload_pictures(address, 4)
            before = memory_of(address)
            await upload_pictures(address, 16, first=4)
            given_back = lambda: memory_of(address) <= before + 4 * 8 * MB  # noqa: E731 # a quarter of what was brought
            await asyncio.to_thread(until, given_back, lambda: f"{(memory_of(address) - before) / MB:.0f} MB are kept")

    complete(visits())
    assert not [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.exhaustive
def test_upload_above_the_quota_is_refused(server: tuple[str, Path]) -> None:
    async def too_much(sizes: list[int]) -> int:
        visitor = Visitor(server[0], "?sample=cat", random.Random(0))
        async with connect(visitor.address, subprotocols=["streamlit"], max_size=None) as socket:
            await visitor.run(socket)
            for number, size in enumerate(sizes):
                try:
                    await visitor.upload(socket, f"{number}.png", bytes(size))
                except urllib.error.URLError as error:  # refused before the whole body was sent
                    assert getattr(error, "code", 413) == 413
                    return number
        return len(sizes)

    assert complete(too_much([(public.MAX_FILE_MB + 1) * MB])) == 0
    fits = public.MAX_SESSION_MB // public.MAX_FILE_MB
    assert complete(too_much([public.MAX_FILE_MB * MB] * (fits + 1))) == fits


def test_visitor_beyond_the_limit_is_told_that_it_is_full(tmp_path: Path) -> None:
    full = tmp_path / "full.py"
    full.write_text(
        "from pages.server import public\npublic.MAX_OPEN_PAGES = 1\n"
        "import streamlit as st\nfrom pages.server import guard\n"
        "if __name__ == '__main__':\n    st.write('here')\n"
        "else:\n    app = st.App(__file__, middleware=guard.MIDDLEWARE, lifespan=guard.lifespan)\n"
    )

    async def visits(address: str) -> None:
        one, two = (Visitor(address, "", random.Random(0)) for _ in range(2))
        async with connect(one.address, subprotocols=["streamlit"]) as socket:
            await one.run(socket)
            with pytest.raises(urllib.error.HTTPError) as refused:
                await asyncio.to_thread(urllib.request.urlopen, f"{address}/", timeout=PATIENCE)
            assert refused.value.code == 503 and b"try again" in refused.value.read()
            with pytest.raises((ConnectionClosed, InvalidStatus)):
                async with connect(two.address, subprotocols=["streamlit"]) as other:
                    await two.run(other)
        with await asyncio.to_thread(urllib.request.urlopen, f"{address}/", timeout=PATIENCE) as answer:
            assert answer.status == 200

    with streamlit(full, VIT_PUBLIC="1") as address:
        complete(visits(address))
