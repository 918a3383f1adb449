"""What a button changes."""

import pytest
from streamlit.testing.v1 import AppTest


def page() -> None:
    import streamlit as st

    from pages.shared import feedback

    def click(done: str) -> None:
        for _ in range(2):
            feedback.attempt("things", done, st.session_state.made.append, "thing")

    st.session_state.setdefault("made", [])
    st.button("Make", on_click=click, args=("It is made.",))
    st.button("Move", on_click=click, args=("",))
    feedback.tell()


@pytest.mark.parametrize(("button", "times"), [(0, 1), (1, 2)])
def test_a_double_click_changes_once_unless_nothing_is_said(button: int, times: int) -> None:
    app = AppTest.from_function(page).run()
    app.button[button].click().run()
    assert not app.exception and app.session_state.made == ["thing"] * times
