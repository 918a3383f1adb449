"""Run page Runs without a browser, and read what it shows."""

import json
from pathlib import Path
from typing import Any

from patience import PATIENCE
from streamlit.testing.v1 import AppTest

from pages.looking import run_records

ROOT = Path(__file__).parents[2]


def show(*wanted: str, **link: str) -> AppTest:
    """Run the page with a link to some runs."""
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE).switch_page("pages/runs.py")
    for name, value in {"run": list(wanted), **link}.items():
        if value:
            page.query_params[name] = value
    run_records.forget()
    return page.run()


def texts(page: AppTest) -> str:
    """Return all text on the page."""
    kinds = ("caption", "markdown", "header", "text", "info", "warning", "error", "html")
    return " ".join(str(getattr(found, "value", "")) for kind in kinds for found in page.get(kind))


def option(page: AppTest, key: str) -> dict[str, Any]:
    """Return the options that a chart is drawn from."""
    return json.loads(page.get_by_key(key).proto.spec)
