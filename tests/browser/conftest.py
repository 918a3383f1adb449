"""A real browser in front of a real server."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from .serving import BROWSER_ARGUMENTS, chromium, streamlit

PATIENCE = 180_000  # [ms] on a busy machine

expect.set_options(timeout=PATIENCE)
collect_ignore = ["viewer_page.py", "watchdog_page.py"]  # pages, run by Streamlit


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Of pytest-playwright, with a browser that is there."""
    arguments = [*browser_type_launch_args.get("args", []), *BROWSER_ARGUMENTS]
    return {**browser_type_launch_args, **chromium(), "args": arguments}


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """`serve(page, **environment)` runs a Streamlit page, once per session, and returns its address."""
    running: dict[Any, str] = {}
    with ExitStack() as stack:

        def start(page: Path, **environment: str) -> str:
            wanted = (Path(page).resolve(), *sorted(environment.items()))
            if wanted not in running:
                running[wanted] = stack.enter_context(streamlit(wanted[0], **environment))
            return running[wanted]

        yield start
