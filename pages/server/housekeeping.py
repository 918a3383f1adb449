"""What the server gives back: sessions that nobody came back to, and all that was remembered once nobody is there.

Streamlit forgets a session that lost its page when the next one loses its own; of the last one everything would stay.
"""

import asyncio
import ctypes
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import streamlit as st

from pages.streamlit_internals import server, sessions

LOOK = 2.0  # [s] between two looks
_log = logging.getLogger(__name__)


@asynccontextmanager
async def running(stay: Callable[[set[str]], None] = lambda visits: None) -> AsyncIterator[None]:
    """Look after the server meanwhile, on its event loop; starts again if something ends that.

    Args:
        stay: called with the sessions that are still here, with every look.
    """
    task: asyncio.Task[None]
    stopped = False

    def start() -> None:
        nonlocal task
        task = asyncio.create_task(watch(stay))
        task.add_done_callback(restart)

    def restart(ended: asyncio.Task[None]) -> None:
        if not stopped:
            reason = None if ended.cancelled() else ended.exception()
            _log.error("Housekeeping ended and is started again.", exc_info=reason)
            start()

    start()
    try:
        yield
    finally:
        stopped = True
        task.cancel()


async def watch(stay: Callable[[set[str]], None]) -> None:
    """Look after the server until cancelled; what fails in one look is tried again in the next."""
    lost: dict[str, float] = {}  # when sessions were first seen without a page
    before = set[str]()
    while True:
        await asyncio.sleep(LOOK)
        if not sessions.server_runs():
            continue
        try:
            here = close_lost(lost)
            stay(here)
            if before - here:
                await asyncio.to_thread(release if here else give_back)
            before = here
        except Exception:
            _log.exception("Housekeeping failed.")


def close_lost(lost: dict[str, float]) -> set[str]:
    """Close sessions that have been without a page for too long to be taken up again; which are left.

    Args:
        lost: since when each has been, by its id; kept up to date.
    """
    now = time.monotonic()
    patience = st.get_option("server.disconnectedSessionTTL") - 2 * LOOK  # later, Streamlit does not list them any more
    every = sessions.every_session()
    for gone in lost.keys() - set(every):
        del lost[gone]
    for name, session in every.items():
        if sessions.is_active(name):
            lost.pop(name, None)
        elif now - lost.setdefault(name, now) > patience:
            try:
                sessions.close(session)
            except Exception:  # the other sessions do not wait for this one
                _log.exception("A session could not be closed.")
    return set(sessions.every_session())


def release() -> None:
    """Let the operating system have what sessions held that have been closed; milliseconds.

    They hold each other in cycles, and a large upload that was freed stays in the C library's heap.
    """
    gc.collect()
    trim()


def give_back() -> None:
    """Forget everything that can be computed again, and let the operating system have its memory."""
    st.cache_resource.clear()
    st.cache_data.clear()
    server.drop_unused_media()  # downloads that nobody clicked hold what they need
    gc.unfreeze()  # what was alive at the last freeze may be garbage now
    gc.collect()
    gc.freeze()
    trim()


def trim() -> None:
    """Return freed memory to the operating system, which the C library keeps for later."""
    with suppress(AttributeError, OSError):  # glibc alone has this
        ctypes.CDLL(None).malloc_trim(0)
