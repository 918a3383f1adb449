"""Periodic clean-up: closes abandoned sessions, and clears all caches when no session is left.

Streamlit deletes a disconnected session only when another one disconnects, so the last one would never be freed.
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

CHECK_INTERVAL = 2.0  # interval between two checks [s]
_log = logging.getLogger(__name__)


@asynccontextmanager
async def running(retain: Callable[[set[str]], None] = lambda visits: None) -> AsyncIterator[None]:
    """Run housekeeping as a task on the event loop within the context; the task is restarted if it ends early.

    Args:
        retain: called with the ids of open sessions in every check.
    """
    task: asyncio.Task[None]
    stopped = False

    def start() -> None:
        nonlocal task
        task = asyncio.create_task(watch(retain))
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


async def watch(retain: Callable[[set[str]], None]) -> None:
    """Run checks until cancelled; an error in one check is logged, and the next check tries again."""
    lost: dict[str, float] = {}  # time when sessions were first seen disconnected
    before = set[str]()
    while True:
        await asyncio.sleep(CHECK_INTERVAL)
        if not sessions.server_runs():
            continue
        try:
            here = close_lost(lost)
            retain(here)
            if before - here:
                await asyncio.to_thread(release if here else release_memory)
            before = here
        except Exception:
            _log.exception("Housekeeping failed.")


def close_lost(lost: dict[str, float]) -> set[str]:
    """Close sessions that have been disconnected for too long, and return the ids of the remaining ones.

    Args:
        lost: time when each disconnected session was first seen so, by id; updated in place.
    """
    now = time.monotonic()
    # Streamlit stops listing sessions after the TTL, so close them earlier.
    patience = st.get_option("server.disconnectedSessionTTL") - 2 * CHECK_INTERVAL
    every = sessions.every_session()
    for gone in lost.keys() - set(every):
        del lost[gone]
    for name, session in every.items():
        if sessions.is_active(name):
            lost.pop(name, None)
        elif now - lost.setdefault(name, now) > patience:
            try:
                sessions.close(session)
            except Exception:  # continue with the other sessions
                _log.exception("A session could not be closed.")
    return set(sessions.every_session())


def release() -> None:
    """Return the memory of closed sessions to the operating system; takes milliseconds.

    Session objects form reference cycles, and freed large uploads remain in the C library's heap.
    """
    gc.collect()
    trim()


def release_memory() -> None:
    """Clear all caches, and return their memory to the operating system."""
    st.cache_resource.clear()
    st.cache_data.clear()
    server.drop_unused_media()  # callbacks of download buttons keep references to results
    gc.unfreeze()  # objects that were alive at the last freeze may be garbage now
    gc.collect()
    gc.freeze()
    trim()


def trim() -> None:
    """Return freed memory from the C library's heap to the operating system."""
    with suppress(AttributeError, OSError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)
