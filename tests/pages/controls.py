"""Open pages in tests, and find their controls, whose keys begin with their names."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from patience import PATIENCE
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.links.grammar import PageLink

ROOT = Path(__file__).parents[2]


def name_of(one: Any) -> str:
    """Return a control's name, "" if it has none."""
    return (one.key or "").split(" ")[0]


def control(some: Iterable[Any], name: str) -> Any:
    """Return the control of this name, whatever the rest of its key."""
    return next(one for one in some if name_of(one) == name)


def query(link: PageLink) -> dict[str, str]:
    """Return the values of an address by name."""
    return {name: values[-1] for name, values in link.to_query().items()}


def address(page: AppTest) -> dict[str, str]:
    """Return the values of the page's address by name, the last one of each."""
    return {name: value if isinstance(value, str) else value[-1] for name, value in page.query_params.items()}


def new_page(name: str = "", /, **link: Any) -> AppTest:
    """Return a page of the app in a new session, not yet run; without a name, the page that the app opens first."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE)
    page.query_params.update(link)
    return page.switch_page(f"pages/{name}.py") if name else page


def run(page: AppTest, /, **link: Any) -> AppTest:
    """Run a page with these values in its link; it must raise nothing."""
    page.query_params.update(link)
    page.run()
    assert not page.exception
    return page


def app_page(name: str = "", /, **link: Any) -> AppTest:
    """Run a page of the app once, in a new session."""
    return run(new_page(name), **link)


def train_page(**link: Any) -> AppTest:
    """Run page Train."""
    return app_page("train", **link)


def button(page: AppTest, key: str) -> Any:
    """Return the button with this key, None if the page has none."""
    return next((one for one in page.button if one.key == key), None)


def press(page: AppTest, label: str) -> AppTest:
    """Press the button with this label."""
    next(button for button in page.button if button.label == label).click()
    return run(page)


def texts(page: AppTest, *kinds: str) -> str:
    """Return all text on the page, or that of these kinds of elements."""
    every = kinds or ("caption", "markdown", "header", "subheader", "text", "info", "warning", "error", "html")
    return " ".join(str(getattr(found, "value", "")) for kind in every for found in page.get(kind))


def open_to_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the app believe that it listens on all addresses."""
    real = st.get_option
    monkeypatch.setattr(st, "get_option", lambda name: "0.0.0.0" if name == "server.address" else real(name))


def pictures(path: Path, size: tuple[int, int] = (40, 30), classes: int = 2, count: int = 4) -> None:
    """Write `count` pictures of each class, one folder a class."""
    for label in range(classes):
        (path / f"class {label}").mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", size, (80 * label, i % 256, i // 256)).save(path / f"class {label}" / f"{i}.png")
