"""Many visitors at once: how long a run of a page takes them, and what it costs the server.

    python benchmarks/load.py [--sessions 20] [--think 2] [--seconds 60] [--page ""] [--other PATH]

A visitor here is a websocket that says what a browser says: it opens the page, then asks for a run of it that changes
nothing, as a click on any control does, thinks (for --think seconds on average, evenly spread from half to one and a
half of it), and asks again. The visitors' own CPU time is the machine's as well here.

--page is the page's name in addresses, with what follows: "", "runs", "?panel=heads". --other names another working
copy of this project, which is measured in turns with this one: only ratios say anything on a machine where other
programs run. The server's CPU time per run says more than times there.
"""

import argparse
import asyncio
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from serving import streamlit
from watchers import command_line, cpu_time, every_pid

PATIENCE = 300  # [s] for one run
CACHE_AGE = 2  # runs for which a browser keeps a message, as the server tells it unless it is set otherwise


class Visitor:
    """One open page, as the server sees it."""

    def __init__(self, address: str, page: str, chance: random.Random):
        self.address = address.replace("http", "ws", 1) + "/_stcore/stream"
        self.name, _, self.query = page.partition("?")
        self.chance = chance
        self.page_hash = self.timer = ""  # the timer is that of a fragment, as the page asked for it
        self.known: dict[str, int] = {}  # hashes of messages that need not be sent again: the run of their last use
        self.age, self.runs = CACHE_AGE, 0

    async def visit(self, think: float, opened: list[float], runs: list[float], started: asyncio.Event) -> None:
        """Open the page, wait for the start, then run it again and again, until cancelled.

        Args:
            think: mean pause between two runs [s].
            opened, runs: get how long the first run and each later one took [s].
        """
        async with connect(self.address, subprotocols=["streamlit"], max_size=None) as socket:
            seconds = await self.run(socket)
            if self.timer:  # a cold server's first view: once it is drawn, a browser asks for the rest
                await self.run(socket, self.timer)
            opened.append(seconds)
            await started.wait()
            while True:
                await asyncio.sleep(think * self.chance.uniform(0.5, 1.5))
                runs.append(await self.run(socket))

    async def run(self, socket: ClientConnection, fragment: str = "") -> float:
        """Ask for one run and take what it draws; how long it took [s]."""
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_script_hash = self.query, self.page_hash
        state.page_name = "" if self.page_hash else self.name
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
        state.cached_message_hashes.extend(self.known)
        state.context_info.timezone, state.context_info.locale = "UTC", "en"
        began = time.perf_counter()
        await socket.send(message.SerializeToString())
        async with asyncio.timeout(PATIENCE):
            while not self.take(ForwardMsg.FromString(await socket.recv(decode=False))):
                pass
        return time.perf_counter() - began

    def take(self, message: ForwardMsg) -> bool:
        """Do what a browser does with a message, short of drawing it; whether it ends the run."""
        kind = message.WhichOneof("type")
        if message.metadata.cacheable or kind == "ref_hash":
            self.known[message.ref_hash or message.hash] = self.runs
        if kind == "new_session":
            self.page_hash, self.timer = message.new_session.page_script_hash, ""
            self.age = message.new_session.config.max_cached_message_age or CACHE_AGE
        elif kind == "auto_rerun":
            self.timer = message.auto_rerun.fragment_id
        elif kind == "delta" and message.delta.new_element.WhichOneof("type") == "exception":
            raise RuntimeError(f"The page shows an error: {message.delta.new_element.exception.message}")
        elif kind == "page_not_found":
            raise RuntimeError(f"There is no page {self.name!r}.")
        if kind != "script_finished" or message.script_finished == ForwardMsg.FINISHED_EARLY_FOR_RERUN:
            return False
        self.runs += 1
        self.known = {key: used for key, used in self.known.items() if self.runs - used <= self.age}
        return True


class Load(NamedTuple):
    """What visitors waited and the server did.

    Attributes:
        opened: first runs [s].
        runs: later ones [s].
        cpu: of the server for each of these [s].
        memory: of the server before these and after [bytes].
    """

    opened: list[float]
    runs: list[float]
    cpu: float
    memory: tuple[int, int]

    def __str__(self) -> str:
        (p50, p95), first = quantiles(self.runs), quantiles(self.opened)
        before, after = (size / 1e6 for size in self.memory)
        return (
            f"run p50 {p50:.2f} s, p95 {p95:.2f} s; first run p50 {first[0]:.2f} s, p95 {first[1]:.2f} s; "
            f"{1000 * self.cpu:.0f} ms of the server's CPU a run; {len(self.runs)} runs; "
            f"memory {before:,.0f} MB before, {after:,.0f} MB after"
        )


def quantiles(values: list[float]) -> tuple[float, float]:
    """p50 and p95."""
    cuts = statistics.quantiles(values, n=20, method="inclusive") if len(values) > 1 else [*values * 19]
    return cuts[9], cuts[18]


async def measure(address: str, server: int, options: argparse.Namespace) -> Load:
    """Let all visitors come, then watch for a while."""
    opened: list[float] = []
    runs: list[float] = []
    started = asyncio.Event()
    visitors = [Visitor(address, options.page, random.Random(seed)) for seed in range(options.sessions)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.visit(options.think, opened, runs, started)) for one in visitors]
        while len(opened) < len(tasks):
            await asyncio.sleep(0.1)
        started.set()
        await asyncio.sleep(options.think)  # until they are spread
        runs.clear()
        begun, before = cpu_time(server), resident(server)
        await asyncio.sleep(options.seconds)
        spent, count, after = cpu_time(server) - begun, len(runs), resident(server)
        for task in tasks:
            task.cancel()
    if not count:
        raise RuntimeError("No run ended in time. Take more --seconds or fewer --sessions.")
    return Load(opened, runs[:count], spent / count, (before, after))


def resident(pid: int) -> int:
    """Memory of a process [bytes]."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve_and_measure(project: Path, options: argparse.Namespace) -> Load:
    """A fresh server of a working copy, warmed by one visitor, under load."""
    with (
        tempfile.TemporaryDirectory() as folder,
        streamlit(project / "app.py", cwd=project, VIT_RUNS=folder, PYTHONPATH=str(project)) as address,
    ):
        port = address.rpartition(":")[2]
        (server,) = (pid for pid in every_pid() if f"--server.port={port}".encode() in command_line(pid))
        asyncio.run(measure(address, server, argparse.Namespace(**vars(options) | {"sessions": 1, "seconds": 8})))
        return asyncio.run(measure(address, server, options))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--think", type=float, default=2, help="mean pause between two runs [s]")
    parser.add_argument("--seconds", type=float, default=60, help="how long to watch")
    parser.add_argument("--page", default="")
    parser.add_argument("--other", type=Path, help="another working copy, to compare with")
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    projects = {"this": ROOT} | ({"other": options.other.resolve()} if options.other else {})
    result: dict[str, list[Load]] = {name: [] for name in projects}
    for _ in range(options.turns):
        for name, project in projects.items():
            result[name].append(serve_and_measure(project, options))
            print(f"{name}: {result[name][-1]}", flush=True)
    if options.other:
        cpu = {name: statistics.median(load.cpu for load in loads) for name, loads in result.items()}
        p95 = {name: statistics.median(quantiles(load.runs)[1] for load in loads) for name, loads in result.items()}
        print(f"This to the other: CPU a run {cpu['this'] / cpu['other']:.2f}, p95 {p95['this'] / p95['other']:.2f}")


if __name__ == "__main__":
    main()
