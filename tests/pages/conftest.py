"""Shared by the tests of pages."""

import math

import pytest

from pages.parts import census, sheet, trust


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for a button on a busy machine; tests of the buttons set limits of their own."""
    for where, limit in ((trust, "LIVE"), (census, "LONG"), (sheet, "LONG")):
        monkeypatch.setattr(where, limit, math.inf)
