"""Buttons that change something."""

import pytest
from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.testing.v1 import AppTest

from pages.streamlit_internals import uninterrupted_callbacks


def page() -> None:
    import streamlit as st

    from pages.shared import button_actions

    def click(done: str) -> None:
        for _ in range(2):
            button_actions.attempt("things", done, st.session_state.made.append, "thing")

    st.session_state.setdefault("made", [])
    st.button("Make", on_click=click, args=("It is made.",))
    st.button("Move", on_click=click, args=("",))
    button_actions.show_outcome()


@pytest.mark.parametrize(("button", "times"), [(0, 1), (1, 2)])
def test_double_click_acts_once_unless_disabled(button: int, times: int) -> None:
    app = AppTest.from_function(page).run()
    app.button[button].click().run()
    assert not app.exception and app.session_state.made == ["thing"] * times


def impatient() -> None:
    import streamlit as st
    from streamlit.runtime.scriptrunner import RerunData, get_script_run_ctx

    def click() -> None:
        get_script_run_ctx().script_requests.request_rerun(RerunData())  # simulates a concurrent click
        st.session_state["done"] = True

    st.button("Change", on_click=click)


def test_click_takes_effect_although_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ScriptRunner, "_maybe_handle_execution_control_request", ScriptRunner._maybe_handle_execution_control_request
    )
    uninterrupted_callbacks.patch()
    app = AppTest.from_function(impatient).run()
    app.button[0].click().run()
    assert not app.exception and "done" in app.session_state
