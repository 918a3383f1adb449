"""Pages that do not break: what the browser and the server must agree on."""

from pathlib import Path

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime.forward_msg_cache import populate_hash_if_needed
from streamlit.testing.v1 import AppTest

ROOT = Path(__file__).parents[2]
WAIT = 120  # [s] on a busy machine


def test_the_server_never_refers_to_a_message_that_the_browser_may_have_forgotten() -> None:
    message = ForwardMsg()
    message.delta.new_element.markdown.body = "x" * 1_000_000
    populate_hash_if_needed(message)
    assert message.hash and not message.metadata.cacheable


def test_attention_travels_beside_the_messages_of_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path))
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=WAIT).run()
    assert not page.exception
    assert page.get_by_key("feeder").proto.ByteSize() < 10_000
