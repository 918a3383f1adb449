"""Tests of the limit on the work of reading untrusted files."""

import threading

import pytest

from vit.untrusted import TooMuchWork, limit_work, spend


def read_endlessly() -> None:
    while True:
        spend()


def test_endless_reading_ends_with_a_sentence_that_names_the_file():
    sentence = r"^Reading cats\.zip takes more than 0 s, so it was stopped\.$"
    with pytest.raises(TooMuchWork, match=sentence), limit_work("cats.zip", 0.05):
        read_endlessly()


def test_report_stops_reading_with_its_own_exception():
    class VisitorLeft(Exception):
        pass

    def report() -> None:
        raise VisitorLeft

    with pytest.raises(VisitorLeft), limit_work("cats.zip", 60, report):
        read_endlessly()


def test_limit_is_of_one_thread_and_ends_with_its_body():
    with pytest.raises(TooMuchWork), limit_work("outer", 0.01), limit_work("inner", 0):
        read_endlessly()
    with limit_work("this thread", 0):
        other = threading.Thread(target=spend)
        other.start()
        other.join()
    spend()  # no limit any more
