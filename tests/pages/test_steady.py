"""Pages that do not break: what the browser and the server must agree on."""

from pathlib import Path

import pytest
from patience import PATIENCE
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime import app_session
from streamlit.runtime.forward_msg_cache import populate_hash_if_needed
from streamlit.testing.v1 import AppTest

from pages.streamlit_internals import message_queue

ROOT = Path(__file__).parents[2]


def test_the_server_never_refers_to_a_message_that_the_browser_may_have_forgotten() -> None:
    message = ForwardMsg()
    message.delta.new_element.markdown.body = "x" * 1_000_000
    populate_hash_if_needed(message)
    assert message.hash and not message.metadata.cacheable


def test_attention_travels_beside_the_messages_of_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path))
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE).run()
    assert not page.exception
    assert page.get_by_key("feeder").proto.ByteSize() < 10_000


@pytest.mark.parametrize(
    ("finished", "next_run", "sent"),
    [
        # the browser takes away what a complete run of the page did not bring
        (ForwardMsg.FINISHED_SUCCESSFULLY, ["live"], ["page", "live", "other", "finished"]),
        (ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY, ["live"], ["page", "other", "finished"]),
        (ForwardMsg.FINISHED_SUCCESSFULLY, None, ["finished"]),  # the whole page is drawn anew
    ],
)
def test_what_belongs_to_a_complete_run_is_sent_though_a_fragment_runs_next(
    finished: int, next_run: list[str] | None, sent: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_session, "ForwardMsgQueue", app_session.ForwardMsgQueue)
    message_queue.patch()
    queue = app_session.ForwardMsgQueue()

    def draw(fragment: str, body: str) -> None:
        message = ForwardMsg()
        message.metadata.delta_path[:] = [0, ord(fragment[0])]
        message.delta.new_element.markdown.body = body
        message.delta.fragment_id = fragment.removeprefix("page")
        queue.enqueue(message)

    for fragment in ("page", "live", "other"):
        draw(fragment, fragment)
    queue.enqueue(ForwardMsg(script_finished=finished))
    queue.clear(retain_lifecycle_msgs=True, fragment_ids_this_run=next_run)
    draw("live", "drawn anew")  # not in the place of what waits: it belongs to the next run
    waiting = [
        "finished" if message.HasField("script_finished") else message.delta.new_element.markdown.body
        for message in queue.flush()
    ]
    assert waiting == [*sent, "drawn anew"]
