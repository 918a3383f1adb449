"""Run page Runs without a browser, and read what it shows."""

import json
from typing import Any

from streamlit.testing.v1 import AppTest

from pages.training import run_records
from tests.pages.controls import app_page


def show(*wanted: str, **link: str) -> AppTest:
    """Run the page with a link to some runs."""
    run_records.forget()
    return app_page("runs", **{"run": list(wanted)} if wanted else {}, **link)


def option(page: AppTest, key: str) -> dict[str, Any]:
    """Return the options that a chart is drawn from."""
    return json.loads(page.get_by_key(key).proto.spec)
