"""The first view before PyTorch is loaded: the stored view equals the computed one, which then replaces it."""

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from browser.serving import streamlit
from patience import PATIENCE
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.testing.v1 import AppTest
from websockets.sync.client import ClientConnection, connect

from pages.looking import loading
from pages.looking.controls import method_choice
from pages.looking.panels import welcome
from pages.looking.panels.checkpoint_picker import verified
from tests.pages.controls import query
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.explain.recorded_ranking import recommended
from vit.images import samples
from vit.view import first_view
from vit.view.payload import unpack

ROOT = Path(__file__).parents[2]
NAME = first_view.CHECKPOINT
SHIPPED = ROOT / "checkpoints" / NAME
STALE = f"checkpoints/{NAME}/{first_view.FILE} is stale. Make it anew: {first_view.COMMAND}"


@pytest.fixture
def small_checkpoint_first() -> None:
    """Replace the fixture of other tests: the app opens the shipped checkpoint first."""


def close(one: bytes, other: bytes) -> bool:
    """Whether two payloads are equal up to float32 rounding on another processor."""
    (header, sections), (header_, sections_) = unpack(one), unpack(other)
    same = {name: header[name] == header_[name] for name in header if name not in ("sections", "pool_top")}
    for name, values in sections.items():
        least = 1.0 if values.dtype in (np.uint8, np.int8) else 1e-3 * float(np.abs(values).max())
        differ = np.abs(values.astype(np.float64) - sections_[name].astype(np.float64)).max()
        same[name] = bool(differ <= least)
    return all(same.values())


def test_stored_view_equals_a_fresh_pass() -> None:
    stored = first_view.read(SHIPPED)
    assert stored is not None, STALE
    fresh = first_view.build(load_checkpoint(SHIPPED))
    assert stored.checkpoint == fresh.checkpoint, STALE
    assert (stored.size, stored.target) == (fresh.size, fresh.target), STALE
    assert stored.explanation.record == fresh.explanation.record, STALE
    assert np.array(stored.explanation.input_image).tolist() == np.array(fresh.explanation.input_image).tolist(), STALE
    labels, shares = zip(*stored.explanation.predictions, strict=True)
    labels_, shares_ = zip(*fresh.explanation.predictions, strict=True)
    assert set(labels) == set(labels_) and shares == pytest.approx(shares_, abs=1e-4), STALE
    assert stored.explanation.probabilities == pytest.approx(fresh.explanation.probabilities, abs=1e-4), STALE
    assert close(stored.explanation.payload, fresh.explanation.payload), STALE
    assert stored.weights == pytest.approx(fresh.weights, abs=1e-3 * max(map(abs, fresh.weights))), STALE
    assert recommended(fresh.checkpoint.facts) == first_view.METHOD
    assert stored.error < 1e-5 and fresh.error < 1e-5


def test_complete_page_needs_no_gradient_pass_for_the_first_view(
    forwards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = loading.open_checkpoint(NAME, str(SHIPPED), loading.stamp(SHIPPED), None)
    stored = first_view.read(SHIPPED)
    assert stored is not None
    explanation = loading.explained(checkpoint, samples.read(first_view.SAMPLE), checkpoint.preprocess.size)
    verified(checkpoint.identity, checkpoint)
    method_choice.remember_map(explanation, checkpoint, stored)
    forwards.clear()
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE).run()
    assert not page.exception
    assert len(forwards) <= 3 * checkpoint.config.depth, "more than the sample that estimates the duration of masks"


@pytest.mark.parametrize("name", ["README.md", "config.json", "model.safetensors", "preprocessor_config.json"])
def test_stored_view_is_not_used_for_another_checkpoint(tmp_path: Path, name: str) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / NAME)
    assert first_view.read(folder) is not None
    with (folder / name).open("ab") as file:
        file.write(b" ")
    assert first_view.read(folder) is None


def test_stored_view_is_not_used_for_other_weights_or_another_name(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / "renamed")
    assert first_view.read(folder) is None  # the payload has the old name
    folder = folder.rename(tmp_path / NAME)
    assert first_view.read(folder) is not None
    (folder / "weights.pt").write_bytes(b"other")
    assert first_view.read(folder) is None


def test_damaged_stored_view_is_ignored(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / NAME)
    content = (folder / first_view.FILE).read_bytes()
    for damaged in (b"", content[:1000], content.replace(b"view.json", b"wiev.json")):
        (folder / first_view.FILE).write_bytes(damaged)
        assert first_view.read(folder) is None


def test_resaved_checkpoint_loses_its_stored_view(tmp_path: Path) -> None:
    folder = shutil.copytree(SHIPPED, tmp_path / NAME)
    checkpoint = load_checkpoint(folder)
    save_checkpoint(folder, checkpoint.model, checkpoint.labels, checkpoint.preprocess, checkpoint.facts)
    assert not (folder / first_view.FILE).exists()


def run_without_torch(link: str) -> str:
    """Run the page in a process where torch was not imported; return its output."""
    program = f"""
import sys
from streamlit.testing.v1 import AppTest
page = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout={PATIENCE})
page.query_params.update({link})
page.run()
assert not page.exception, page.exception
told = " ".join(one.value for one in page.caption)
print(sorted({{"torch", "pandas"}} & sys.modules.keys()), "Loading PyTorch" in told, "Self-check" in told, end=" ")
print(any('class="bar' in one.proto.body for one in page.get("html")), "viewer" in str(page.get_by_key("viewer").proto))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "link",
    [{}, {"checkpoint": NAME, "sample": first_view.SAMPLE, "block": "2", "head": "1", "view": "attention"}],
)
def test_the_first_view_is_drawn_without_torch_and_pandas(link: dict[str, str]) -> None:
    assert run_without_torch(str(link)) == "[] True True True True"


def report_stored_view() -> None:
    """A page that reports whether the view of its link is stored."""
    import streamlit as st

    from pages.links.source import Source
    from pages.looking.panels import first_view
    from vit.images import samples

    sample = st.query_params["sample"]
    st.text(first_view.stored(Source(f"{sample}.jpg", samples.read(sample), sample)) is not None)


@pytest.mark.parametrize(
    ("link", "is_stored"),
    [
        ({}, True),
        ({"checkpoint": NAME, "block": "2", "head": "1", "view": "attention"}, True),
        ({"size": "224"}, True),
        ({"size": "112"}, False),
        ({"sample": "horse"}, False),
        ({"checkpoint": "other"}, False),
        ({"target": "1"}, False),
        ({"method": "legrad"}, False),
        ({"precision": "bfloat16"}, False),
        ({"upload": "mine.png"}, False),
    ],
)
def test_stored_view_is_used_for_exactly_its_link(
    link: dict[str, str | None], is_stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "LOADING", threading.Event())
    loading.LOADING.set()  # as if torch were being imported
    page = AppTest.from_function(report_stored_view, default_timeout=PATIENCE)
    page.query_params.update({name: value for name, value in (query(welcome.VIEW) | link).items() if value})
    assert page.run().text[0].value == str(is_stored)


def test_other_views_wait_for_torch() -> None:
    assert run_without_torch('{"sample": "horse"}') == "['torch'] False True True True"


class Drawn:
    """Messages to the browser in one run of the page."""

    def __init__(self, socket: ClientConnection, page: str = "", fragment: str = ""):
        message = BackMsg()
        state = message.rerun_script
        state.page_script_hash, state.fragment_id, state.is_auto_rerun = page, fragment, bool(fragment)
        state.context_info.timezone, state.context_info.locale = "UTC", "en"
        socket.send(message.SerializeToString())
        self.page, self.timer, self.text = page, "", ""
        self.popovers: dict[str, bool] = {}  # label -> whether it is disabled
        self.components: dict[str, tuple[list[int], str]] = {}  # id -> position and data
        while True:
            told = ForwardMsg.FromString(socket.recv(PATIENCE, decode=False))
            kind = told.WhichOneof("type")
            if kind == "new_session":
                self.page = told.new_session.page_script_hash
            elif kind == "auto_rerun":
                self.timer = told.auto_rerun.fragment_id
            elif kind == "delta":
                element, popover = told.delta.new_element, told.delta.add_block.popover
                self.popovers |= {popover.label: popover.disabled} if popover.label else {}
                if element.WhichOneof("type") == "bidi_component":
                    found = element.bidi_component
                    # Not the bytes: the last digits of a map depend on the machine.
                    self.components[found.id] = (
                        list(told.metadata.delta_path),
                        re.sub(r"-[0-9a-f]{32}\b", "", found.json),
                    )
                self.text += str(element)
            elif kind == "script_finished" and told.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                return


def test_remaining_elements_appear_without_changing_the_viewer() -> None:
    with streamlit(ROOT / "app.py") as address:
        url = address.replace("http", "ws", 1) + "/_stcore/stream"
        with connect(url, subprotocols=["streamlit"], max_size=None) as socket:
            first = Drawn(socket)
            assert "Loading PyTorch" in first.text and "All attention as NPZ" not in first.text and first.timer
            rest = Drawn(socket, first.page, first.timer)  # the browser's timer, once it has drawn
            assert "Loading PyTorch" not in rest.text and "All attention as NPZ" in rest.text
            assert (first.popovers["Share"], rest.popovers["Share"]) == (True, False) and "Picture as PNG" in rest.text
            kept = {name: told for name, told in first.components.items() if "viewer" in name or "gallery" in name}
            assert len(kept) == 2 and {name: rest.components[name] for name in kept} == kept
