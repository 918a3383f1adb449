"""What a training on the CPU loses while pages watch it.

    python benchmarks/watchers.py [--watchers 5] [--pairs 8] [--seconds 20]

Trains the `tintn` size for real and lets watchers look at /runs?run=... of a Streamlit server on the same machine.
Their browsers run elsewhere in reality, so a watcher here is a websocket that says what a browser says: it loads the
page, then asks for every fragment as often as the fragment wants. Windows with and without watchers take turns, the
order swapped in every other pair, and the throughput is read from the run's own records, evaluations left out. The run
carries the records of a long one from the start, since the curves grow with them. The watchers' own CPU time is the
machine's as well here, so the loss is a little overstated. A pair does not count if other programs took more than
--noise of the machine meanwhile; another one takes its place, up to three times --pairs in all.

How far the result can be trusted, a control tells: as many pairs in which nobody watches either time, in turn with the
others. Only what differs from the control by more than chance is due to the watchers.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.asyncio.client import ClientConnection, connect

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from serving import streamlit

from vit.data.shapes import SHAPES, shapes
from vit.runs import control, registry
from vit.training.metrics import MetricsReader, MetricsWriter
from vit.training.presets import train_config

PICTURES, COPIES = 1024, 20  # an epoch of many steps from few files
SETTLE = 4  # [s] between the page loads, or the end of the watching, and the window
CORES = os.cpu_count() or 1
PATIENCE = 90  # [s] for a page to load
KNOWN = 14  # runs for which a browser keeps a message: two rounds of three fragments
STARTED = 300  # [s] for the training to begin
RESAMPLES = 10_000
FRAGMENT_DONE = ForwardMsg.FINISHED_FRAGMENT_RUN_SUCCESSFULLY


class Watcher:
    """One open page, as the server sees it."""

    def __init__(self, address: str, run_id: str):
        self.address, self.query = address.replace("http", "ws", 1) + "/_stcore/stream", f"run={run_id}"
        self.loaded = asyncio.Event()
        self.seen: Counter[str] = Counter()  # ticks asked for and done, messages, bytes
        self.intervals: dict[str, float] = {}  # [s] by fragment
        self.timers: dict[str, asyncio.Task[None]] = {}
        self.errors: list[str] = []
        self.page, self.runs = "", 0
        self.known: dict[str, tuple[int, str]] = {}  # by hash, what need not be sent again: when used, its fragment
        self.drawn: set[str] = set()  # fragments, since the last run has ended: the server joins what is due together

    async def watch(self) -> None:
        """Load the page and keep it up to date, until cancelled."""
        async with connect(self.address, subprotocols=["streamlit"], max_size=None) as socket:
            try:
                await self.ask(socket)
                async for data in socket:
                    self.take(socket, data)
            finally:
                for timer in self.timers.values():
                    timer.cancel()
        raise RuntimeError("The server closed the connection.")

    async def ask(self, socket: ClientConnection, fragment: str = "") -> None:
        message = BackMsg()
        state = message.rerun_script
        state.query_string, state.page_script_hash, state.page_name = self.query, self.page, "" if self.page else "runs"
        state.fragment_id, state.is_auto_rerun = fragment, bool(fragment)
        state.cached_message_hashes.extend(self.known)
        state.context_info.timezone, state.context_info.locale = "UTC", "en"
        await socket.send(message.SerializeToString())

    async def tick(self, socket: ClientConnection, fragment: str, interval: float) -> None:
        due = time.monotonic()
        while True:
            due += interval
            await asyncio.sleep(due - time.monotonic())
            self.seen["asked"] += 1
            await self.ask(socket, fragment)

    def take(self, socket: ClientConnection, data: str | bytes) -> None:
        """Do what a browser does with a message, short of drawing it."""
        assert isinstance(data, bytes)
        message = ForwardMsg.FromString(data)
        self.seen.update(messages=1, bytes=len(data))
        kind = message.WhichOneof("type")
        fragment = self.known[message.ref_hash][1] if kind == "ref_hash" else message.delta.fragment_id
        self.drawn.add(fragment)
        if message.metadata.cacheable or kind == "ref_hash":
            self.known[message.ref_hash or message.hash] = self.runs, fragment
        if kind == "new_session":
            self.page = message.new_session.page_script_hash
        elif kind == "auto_rerun":
            self.stop(message.auto_rerun.fragment_id)
            fragment, interval = message.auto_rerun.fragment_id, message.auto_rerun.interval
            self.intervals[fragment] = interval
            self.timers[fragment] = asyncio.create_task(self.tick(socket, fragment, interval))
        elif kind == "stop_auto_rerun":
            for fragment in list(self.timers):
                self.stop(fragment)
        elif kind == "delta" and message.delta.new_element.WhichOneof("type") == "exception":
            self.errors.append(message.delta.new_element.exception.message)
        elif kind == "page_not_found":
            self.errors.append("There is no page /runs.")
        elif kind == "script_finished":
            self.runs += 1
            self.known = {key: used for key, used in self.known.items() if self.runs - used[0] <= KNOWN}
            if message.script_finished == FRAGMENT_DONE:
                self.seen["done"] += len(self.drawn & self.timers.keys())
            elif message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY:
                self.seen["pages"] += 1
                self.loaded.set()
            self.drawn.clear()

    def stop(self, fragment: str) -> None:
        self.intervals.pop(fragment, None)
        if timer := self.timers.pop(fragment, None):
            timer.cancel()


class Window(NamedTuple):
    """What happened between two moments.

    Attributes:
        speed: of the training [pictures/s].
        server, watching: CPU time of the server, and of this process as all watchers [s of one core per s].
        others: CPU time of everything else on this machine, as a share of all its cores.
        seen: by all watchers together.
        rate: of the ticks that the page wants for them [1/s].
    """

    speed: float
    server: float
    watching: float
    others: float
    seen: Counter[str]
    rate: float


class Pair(NamedTuple):
    """Two windows, one soon after the other; nobody looks on in the first, and in a control in neither."""

    alone: Window
    watched: Window

    @property
    def ratio(self) -> float:
        """Of the training's speed; 0 where the records tell too little."""
        return self.watched.speed / self.alone.speed if self.alone.speed else 0.0

    @property
    def others(self) -> float:
        """CPU time of everything else, in the louder of the windows."""
        return max(self.alone.others, self.watched.others)

    def __str__(self) -> str:
        alone, watched = self
        ticks = watched.seen["done"]
        return (
            f"{alone.speed:7,.0f} {watched.speed:7,.0f} {self.ratio:6.3f}"
            f" {alone.server:7.1%} {watched.server:6.1%} {watched.watching:6.1%} {self.others:6.1%}"
            f"   {ticks} ticks of {watched.seen['bytes'] / max(ticks, 1) / 1000:.0f} kB"
        )


class Bench:
    """A training run, a server, and who looks on."""

    def __init__(self, address: str, server: int, run: registry.Run, seconds: float):
        self.address, self.server, self.run, self.seconds = address, server, run, seconds
        self.reader = MetricsReader(run.folder / "metrics.jsonl")
        self.run_pids = [pid for pid in every_pid() if run.id.encode() in command_line(pid)]
        assert self.run_pids

    def clocks(self) -> list[float]:
        """CPU time so far of the server, of this process, of the run, and of the whole machine [s]."""
        run = sum(cpu_time(pid) for pid in self.run_pids)
        return [cpu_time(self.server), cpu_time(os.getpid()), run, machine_time()]

    async def window(self, watchers: int) -> Window:
        """Let so many look on, and measure."""
        crowd = [Watcher(self.address, self.run.id) for _ in range(watchers)]
        tasks = []
        try:
            for watcher in crowd:
                tasks.append(asyncio.create_task(watcher.watch()))
                await first(watcher.loaded.wait(), tasks)
                await asyncio.sleep(0.4)  # people do not come all at once
            await asyncio.sleep(SETTLE)
            for watcher in crowd:
                watcher.seen.clear()
            begun, before = time.time(), self.clocks()
            await asyncio.sleep(self.seconds)
            ended, after = time.time(), self.clocks()
            server, watching, run, machine = ((b - a) / (ended - begun) for a, b in zip(before, after, strict=True))
            others = (machine - server - watching - run) / CORES
            seen = sum((watcher.seen for watcher in crowd), Counter())
            rate = sum(1 / interval for watcher in crowd for interval in watcher.intervals.values())
            for watcher, task in zip(crowd, tasks, strict=True):
                assert not task.done(), f"A watcher left: {task}"
                assert not watcher.errors, watcher.errors
                assert watcher.intervals, "The page does not update itself."
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        found = registry.find_run(self.run.id)
        assert found.status == "running", f"The run is {found.status}. {found.reason}"
        due = rate * (ended - begun) - sum(len(watcher.intervals) for watcher in crowd)  # one may fall outside
        assert seen["done"] >= 0.9 * due, f"Only {seen['done']} of {due:.0f} ticks were done."
        assert not seen["pages"], "The whole page was run again."
        return Window(self.speed(begun, ended), server, watching, others, seen, rate)

    def speed(self, begun: float, ended: float) -> float:
        """Of the records that lie inside these moments [pictures/s]; 0 where they tell too little."""
        self.reader.update()
        batch = self.reader.records["start"][-1]["batch_size"]
        pictures = seconds = 0.0
        last = 0
        for record in self.reader.records["step"]:
            if record["step"] < 1:
                continue  # of the long run
            count, last = (record["step"] - last) * batch, record["step"]
            spent = count / record["pictures_per_second"]
            if record["t"] - spent >= begun and record["t"] <= ended:
                pictures, seconds = pictures + count, seconds + spent
        return pictures / seconds if seconds > (ended - begun) / 4 else 0.0


async def first(wanted, tasks: list[asyncio.Task[None]]) -> None:
    """Wait for one thing, or raise what ended one of the tasks."""
    waiting = asyncio.ensure_future(wanted)
    await asyncio.wait([waiting, *tasks], timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        if task.done():
            waiting.cancel()
            task.result()
    if not waiting.done():
        waiting.cancel()
        raise TimeoutError("The page did not load.")


def cpu_time(pid: int) -> float:
    """That a process has used so far, all threads [s]."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_time() -> float:
    """That all processes have used so far [s]."""
    user, nice, system, _, _, interrupts, soft = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + interrupts + soft) / os.sysconf("SC_CLK_TCK")


def every_pid() -> list[int]:
    """Of all processes."""
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


def command_line(pid: int) -> bytes:
    """How a process was started; empty if it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def write_pictures(folder: Path) -> None:
    """A dataset of shapes as class folders, each file under several names."""
    for split, count, copies in (("train", PICTURES, COPIES), ("test", 64, 1)):
        pictures, _ = shapes(count, 32, seed=1)
        for i, (picture, label) in enumerate(zip(pictures.images, pictures.labels, strict=True)):
            path = folder / split / SHAPES[int(label)]
            path.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path / f"{i}.png")
            for copy in range(1, copies):
                os.link(path / f"{i}.png", path / f"{i}-{copy}.png")


def begin(run: registry.Run, records: int) -> None:
    """Wait until it trains, and give it the records of a long run: pages sort them before its own."""
    reader = MetricsReader(run.folder / "metrics.jsonl")
    until = time.monotonic() + STARTED
    while len(reader.records.get("step", [])) < 3:
        result = registry.find_run(run.id)
        log = (run.folder / "log.txt").read_text() if not result.alive else ""
        assert result.alive and time.monotonic() < until, f"The run is {result.status}. {result.reason}\n{log}"
        time.sleep(0.5)
        reader.update()
    writer = MetricsWriter(reader.path)
    for i in range(records):
        facts = {"step": (i + 1) / (records + 1), "t": time.time(), "attempt": 0}
        writer.write(
            kind="step", loss=2 - i / records, lr=1e-3, lr_share=0.5, pictures_per_second=2000.0, memory=None, **facts
        )
        if i % 10 == 0:
            writer.write(kind="validation", epoch=1, accuracy=0.3, loss=1.5, seconds=1.0, **facts)
    writer.close()


async def measure(bench: Bench, watchers: int, swapped: bool) -> Pair:
    """Nobody looks on, then so many do; or the other way round."""
    if swapped:
        watched, alone = await bench.window(watchers), await bench.window(0)
    else:
        alone, watched = await bench.window(0), await bench.window(watchers)
    return Pair(alone, watched)


def main() -> None:
    """Take turns, and print what each pair showed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--watchers", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20, help="length of a window")
    parser.add_argument("--noise", type=float, default=0.05, help="share of the machine that others may take")
    parser.add_argument("--records", type=int, default=700, help="of training steps that the run has already")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("Stopped."))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        os.environ["VIT_RUNS"] = str(folder / "runs")
        (folder / "runs").mkdir()
        write_pictures(folder / "pictures")
        source = f"folder:{folder / 'pictures'}"
        config = train_config("tintn", data=source, epochs=10_000, batch_size=64, compile=False)  # many records
        run = control.launch(config, name="watched")
        stack.callback(control.kill, run.id)
        address = stack.enter_context(streamlit(ROOT / "app.py"))
        begin(run, options.records)
        port = address.rpartition(":")[2]
        (server,) = (pid for pid in every_pid() if f"--server.port={port}".encode() in command_line(pid))
        bench = Bench(address, server, run, options.seconds)
        asyncio.run(bench.window(options.watchers))  # the server imports what it needs
        pairs: dict[int, list[Pair]] = {options.watchers: [], 0: []}
        print(
            "watchers; pictures/s alone, watched, ratio; CPU of the server alone, watched, of the watchers "
            "[% of a core]; others"
        )
        for i in range(3 * options.pairs):
            for watchers in pairs if i % 4 < 2 else reversed(pairs):
                if len(pairs[watchers]) < options.pairs:
                    pair = asyncio.run(measure(bench, watchers, swapped=i % 2 == 1))
                    quiet = pair.others <= options.noise and pair.ratio > 0
                    print(f"{watchers} {pair}{'' if quiet else '   (too noisy: left out)'}", flush=True)
                    pairs[watchers] += [pair] if quiet else []
    assert all(pairs.values()), "The machine was never quiet enough to tell."
    report_speed(pairs, options.watchers)
    report_cost(pairs[options.watchers])


def interval(values: Sequence[float], control: Sequence[float] = (1.0,)) -> tuple[float, float]:
    """Where the median of `values`, as a multiple of the control's, lies in 95 % of the sets drawn from those measured.

    Source: the percentile bootstrap, Efron 1979, Annals of Statistics 7(1).
    """
    chance = random.Random(0)

    def median(measured: Sequence[float]) -> float:
        return statistics.median(chance.choices(measured, k=len(measured)))

    result = sorted(median(values) / median(control) for _ in range(RESAMPLES))
    return result[round(0.025 * RESAMPLES)], result[round(0.975 * RESAMPLES) - 1]


def report_speed(pairs: dict[int, list[Pair]], watchers: int) -> None:
    """Print what the training lost, beside what pairs show where there is nothing to lose."""
    watched, control = (sorted(pair.ratio for pair in pairs[crowd]) for crowd in (watchers, 0))
    for words, result in ((f"{watchers} watchers", watched), ("Control, 0 watchers both times", control)):
        low, high = interval(result)
        print(
            f"{words}: {statistics.median(result):.3f} of the throughput without, median of {len(result)} pairs "
            f"({result[0]:.3f} to {result[-1]:.3f}); 95 % interval of the median {low:.3f} to {high:.3f}."
        )
    low, high = interval(watched, control)
    print(
        f"Against the control: {statistics.median(watched) / statistics.median(control):.3f}, 95 % interval "
        f"{low:.3f} to {high:.3f}. "
        + ("That may be chance." if low <= 1 <= high else "That is more than chance on this machine.")
    )


def report_cost(pairs: Sequence[Pair]) -> None:
    """Print what the server and the watchers took."""
    each = sum(watched.server - alone.server for alone, watched in pairs) / sum(w.rate for _, w in pairs)
    extra = statistics.median(watched.server - alone.server for alone, watched in pairs)
    print(
        f"For them the server takes {extra:.1%} of a core, {extra / CORES:.1%} of this machine's {CORES}; "
        f"the watchers themselves {statistics.median(w.watching for _, w in pairs) / CORES:.1%} of the machine."
    )
    ticks, asked = (sum(w.seen[name] for _, w in pairs) for name in ("done", "asked"))
    print(f"({ticks:,} ticks done of {asked:,} asked for; {each * 1000:.1f} ms of the server's CPU each.)")


if __name__ == "__main__":
    main()
