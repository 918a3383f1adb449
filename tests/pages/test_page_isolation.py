"""Pages run by tests leave no state behind for later tests."""

from streamlit.testing.v1 import AppTest
from subprocesses import output_of


def words() -> None:
    """A page of one text."""
    import streamlit as st

    st.text("words")


def test_page_is_run() -> None:
    assert AppTest.from_function(words).run().text[0].value == "words"


def test_processes_of_the_next_test_do_not_run_the_page() -> None:
    assert output_of("print(__name__)").strip() == "__main__"
