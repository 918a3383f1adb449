"""Assumptions shared by browser and server."""

from pathlib import Path

import pytest
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime import app_session
from streamlit.runtime.forward_msg_cache import populate_hash_if_needed

from pages.streamlit_internals import message_queue
from tests.pages.controls import app_page

ROOT = Path(__file__).parents[2]


def test_server_never_refers_to_a_message_that_the_browser_may_have_dropped() -> None:
    message = ForwardMsg()
    message.delta.new_element.markdown.body = "x" * 1_000_000
    populate_hash_if_needed(message)
    assert message.hash and not message.metadata.cacheable


def test_attention_is_sent_separately_from_the_pages_messages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path))
    assert app_page().get_by_key("feeder").proto.ByteSize() < 10_000


@pytest.mark.parametrize(
    ("finished", "next_run", "sent"),
    [
        # the browser removes elements that a complete run of the page did not send
        (ForwardMsg.FINISHED_SUCCESSFULLY, ["live"], ["page", "live", "other", "finished"]),
        (ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY, ["live"], ["page", "other", "finished"]),
        (ForwardMsg.FINISHED_SUCCESSFULLY, None, ["finished"]),  # the whole page is drawn again
    ],
)
def test_elements_of_a_complete_run_are_sent_although_a_fragment_runs_next(
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
    draw("live", "drawn anew")  # not appended to the pending messages: it belongs to the next run
    waiting = [
        "finished" if message.HasField("script_finished") else message.delta.new_element.markdown.body
        for message in queue.flush()
    ]
    assert waiting == [*sent, "drawn anew"]
