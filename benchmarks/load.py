"""Measure how long script runs take with many concurrent visitors, and what they cost the server.

    python benchmarks/load.py [--sessions 20] [--think 2] [--seconds 60] [--page ""] [--public] [--other PATH]

A visitor is a web socket that sends what a browser sends. It opens the page, requests a script run that changes
nothing, as any click does, pauses (--think seconds on average, uniform between 0.5 and 1.5 times that), and repeats.
The visitors' CPU time loads the same machine.

Meanwhile new visitors open page Explore one after the other. The script measures how long each waits for a first useful
view, from the first byte of the page until the viewer and the bytes of its map have arrived, and then for the map of a
different 12-megapixel photo, which it uploads. This excludes drawing in the browser, and Streamlit's static files,
which a browser caches. --public starts the server as a public demo (docs/host.md).

--page is the page's path with its query: "", "runs", "?panel=heads". --other names another working copy of this
project, which is measured alternately with this one: on a machine with other load only the ratios are meaningful, and
the server's CPU time per run more so than durations.
"""

import argparse
import asyncio
import contextlib
import io
import itertools
import math
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from websockets.asyncio.client import connect

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from serving import streamlit
from visitor import Visitor

PHOTOS, PHOTO = 12, (4000, 3000)  # number of different photos; their size [px]


class Load(NamedTuple):
    """Waiting times of the visitors, and the server's CPU time and memory.

    Attributes:
        opened: durations of the first runs of visitors who arrived at once [s].
        runs: durations of later runs [s].
        views, pictures: for new visitors, times until a first useful view and until the map of an uploaded photo [s].
        cpu: the server's CPU time per run [s].
        memory: the server's memory before and after the measurement [bytes].
    """

    opened: list[float]
    runs: list[float]
    views: list[float]
    pictures: list[float]
    cpu: float
    memory: tuple[int, int]

    def __str__(self) -> str:
        (p50, p95), first, views, pictures = map(quantiles, (self.runs, self.opened, self.views, self.pictures))
        before, after = (size / 1e6 for size in self.memory)
        return (
            f"run p50 {p50:.2f} s, p95 {p95:.2f} s; first run p50 {first[0]:.2f} s, p95 {first[1]:.2f} s; "
            f"of {len(self.views)} newcomers: useful view p50 {views[0]:.2f} s, p95 {views[1]:.2f} s, "
            f"new picture p50 {pictures[0]:.2f} s, p95 {pictures[1]:.2f} s; "
            f"{1000 * self.cpu:.0f} ms of the server's CPU a run; {len(self.runs)} runs; "
            f"memory {before:,.0f} MB before, {after:,.0f} MB after"
        )


def quantiles(values: list[float]) -> tuple[float, float]:
    """Return p50 and p95; NaN for an empty list."""
    if not values:
        return math.nan, math.nan
    cuts = statistics.quantiles(values, n=20, method="inclusive") if len(values) > 1 else [*values * 19]
    return cuts[9], cuts[18]


def photos() -> list[bytes]:
    """Return different JPEG files as cameras write them."""
    result = []
    for number in range(PHOTOS):
        out = io.BytesIO()
        coarse = Image.effect_noise((40, 30), 20 + 5 * number).convert("RGB").resize(PHOTO, Image.Resampling.BICUBIC)
        coarse.save(out, "JPEG", quality=92)
        result.append(out.getvalue())
    return result


async def newcomers(address: str, views: list[float], pictures: list[float], think: float) -> None:
    """Open page Explore, upload a photo, leave; repeat until cancelled."""
    files = await asyncio.to_thread(photos)
    for number, photo in enumerate(itertools.cycle(files)):
        one = Visitor(address, "", random.Random(number))
        async with connect(one.address, subprotocols=["streamlit"], max_size=None) as socket:
            views.append(await one.first_view(socket))
            if one.timer:
                await one.run(socket, one.timer)
            await asyncio.sleep(think / 4)
            pictures.append(await one.new_picture(socket, f"{number}.jpg", photo))
            await asyncio.sleep(think / 4)


async def measure(address: str, server: int, options: argparse.Namespace) -> Load:
    """Start all visitors at once, then measure for `seconds`."""
    opened: list[float] = []
    runs: list[float] = []
    views: list[float] = []
    pictures: list[float] = []
    started = asyncio.Event()
    visitors = [Visitor(address, options.page, random.Random(seed)) for seed in range(options.sessions)]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.visit(options.think, opened, runs, started)) for one in visitors]
        while len(opened) < len(tasks):
            await asyncio.sleep(0.1)
        started.set()
        await asyncio.sleep(options.think)  # until the visitors have spread out
        tasks.append(group.create_task(newcomers(address, views, pictures, options.think)))
        runs.clear()
        begun, before = cpu_time(server), resident(server)
        await asyncio.sleep(options.seconds)
        spent, count, after = cpu_time(server) - begun, len(runs), resident(server)
        for task in tasks:
            task.cancel()
    if not count:
        raise RuntimeError("No run ended in time. Take more --seconds or fewer --sessions.")
    return Load(opened, runs[:count], views, pictures, spent / count, (before, after))


def resident(pid: int) -> int:
    """Return the memory of a process [bytes]."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve_and_measure(project: Path, options: argparse.Namespace) -> Load:
    """Start a server of a working copy, warm it up with one visitor, and measure it under load."""
    with (
        tempfile.TemporaryDirectory() as folder,
        streamlit(
            project / "app.py",
            cwd=project,
            VIT_RUNS=folder,
            VIT_PICTURES=f"{folder}/pictures",
            VIT_PUBLIC=str(int(options.public)),
            PYTHONPATH=str(project),
        ) as address,
    ):
        port = address.rpartition(":")[2]
        (server,) = (pid for pid in every_pid() if f"--server.port={port}".encode() in command_line(pid))
        asyncio.run(measure(address, server, argparse.Namespace(**vars(options) | {"sessions": 1, "seconds": 8})))
        return asyncio.run(measure(address, server, options))


def cpu_time(pid: int) -> float:
    """Return the CPU time that a process has used so far, over all threads [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def every_pid() -> list[int]:
    """Return the ids of all processes."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--think", type=float, default=2, help="mean pause between two runs [s]")
    parser.add_argument("--seconds", type=float, default=60, help="duration of the measurement [s]")
    parser.add_argument("--page", default="")
    parser.add_argument("--public", action="store_true", help="run the server as a public demo")
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
        useful = {name: statistics.median(quantiles(load.views)[1] for load in loads) for name, loads in result.items()}
        maps = {
            name: statistics.median(quantiles(load.pictures)[1] for load in loads) for name, loads in result.items()
        }
        cpu = {name: statistics.median(load.cpu for load in loads) for name, loads in result.items()}
        p95 = {name: statistics.median(quantiles(load.runs)[1] for load in loads) for name, loads in result.items()}
        ratios = {"CPU a run": cpu, "p95 of a run": p95, "of a first view": useful, "of a new picture": maps}
        print(
            "This to the other:", ", ".join(f"{name} {one['this'] / one['other']:.2f}" for name, one in ratios.items())
        )


if __name__ == "__main__":
    main()
