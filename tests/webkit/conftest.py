"""One WebKit in front of one server, for all journeys."""

from collections.abc import Iterator

import pytest

from tests.browser.serving import ROOT, streamlit

from .window import Window, webkit


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Window]:
    """The window, as the test before left it."""
    folder = tmp_path_factory.mktemp("webkit")
    with streamlit(ROOT / "app.py", VIT_RUNS=str(folder / "runs")) as url, webkit(url, folder) as window:
        yield window


@pytest.fixture
def window(running: Window) -> Iterator[Window]:
    """The window; no page may have told its console of an error."""
    running.errors()
    yield running
    assert running.errors() == []
