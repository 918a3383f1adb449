"""A run's folder and its image at a URL: whole at every moment, whoever dies, and nothing from outside the folder."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from short_runs import until

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidRun
from vit.images.preprocess import Preprocess
from vit.runs import mirror
from vit.runs.mirror import Mirror

RUN = "20261123-000000-a-0000"


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Mirror, Mirror]:
    """That of a machine, which trains, and that of the server, which watches."""
    url = f"file://{tmp_path / 'storage'}"
    machine, server = (Mirror(url, tmp_path / side / RUN) for side in ("there", "here"))
    for side in (machine, server):
        side.folder.mkdir(parents=True)
    return machine, server


def pull(side: Mirror) -> None:
    for heavy in (False, True):
        side.pull(heavy)


def contents(folder: Path) -> dict[str, bytes]:
    """What of a folder is mirrored, read without the module under test."""
    files = (path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    return {name: content for name, content in named.items() if not any(p.startswith(".") for p in name.split("/"))}


def fill(folder: Path) -> None:
    for name, size in {
        "environment.json": 300,
        "probes/epoch-00001.zip": 50_000,
        "checkpoints/state.pt": 3 << 20,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(random.Random(name).randbytes(size))
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {i}}}\n' for i in range(5000)))
    (folder / "log.txt").write_bytes(b"")


def test_what_one_side_has_the_other_gets(sides: tuple[Mirror, Mirror], build: Any) -> None:
    machine, server = sides
    fill(machine.folder)
    save_checkpoint(machine.folder / "checkpoints" / "best", build(), list("abcde"), Preprocess((32, 32)))
    for own in ("alive.lock", "reserve", "stop", "over.json", ".fake", "metrics.jsonl.partial"):
        (machine.folder / own).write_text("of this side alone")
    machine.push()
    pull(server)
    expected = contents(machine.folder)
    for own in ("alive.lock", "reserve", "stop", "over.json", "metrics.jsonl.partial"):
        del expected[own]
    assert contents(server.folder) == expected
    load_checkpoint(server.folder / "checkpoints" / "best")


def test_what_grows_is_appended_and_what_is_gone_goes(sides: tuple[Mirror, Mirror]) -> None:
    machine, server = sides
    fill(machine.folder)
    (machine.folder / "driver.json").write_text("{}")
    machine.push()
    pull(server)
    inode = (server.folder / "metrics.jsonl").stat().st_ino
    for more in ("a\n", "b\n" * 60_000, "c\n"):
        with (machine.folder / "metrics.jsonl").open("a") as file:
            file.write(more)
        machine.push()
        pull(server)
        assert (server.folder / "metrics.jsonl").read_bytes() == (machine.folder / "metrics.jsonl").read_bytes()
    assert (server.folder / "metrics.jsonl").stat().st_ino == inode  # whoever follows it reads on
    (machine.folder / "driver.json").unlink()
    (machine.folder / "metrics.jsonl").write_text("another one\n")
    machine.push()
    pull(server)
    assert contents(server.folder) == contents(machine.folder)


def test_another_writer_goes_on_and_stores_nothing_twice(sides: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    machine, _ = sides
    fill(machine.folder)
    machine.push()
    pieces = {path.name: path.stat().st_ino for path in (tmp_path / "storage" / RUN / "pieces").iterdir()}
    (tmp_path / "storage" / RUN / "pieces" / ("0" * 64)).write_text("of a writer that died")
    third = Mirror(machine.url, tmp_path / "third" / RUN)
    third.pull_all()
    third.push()
    assert {path.name: path.stat().st_ino for path in (tmp_path / "storage" / RUN / "pieces").iterdir()} == pieces


def test_a_machine_begins_from_the_image_whatever_it_had(sides: tuple[Mirror, Mirror]) -> None:
    """What a process saved and did not push before it died is not what the other machines have."""
    machine, server = sides
    fill(machine.folder)
    machine.push()
    expected = contents(machine.folder)
    machine.pull_all()
    (machine.folder / "checkpoints" / "state.pt").write_bytes(b"newer")
    with (machine.folder / "metrics.jsonl").open("a") as file:
        file.write("newer\n")
    (machine.folder / "environment.json").unlink()
    (machine.folder / "stop").touch()
    (machine.folder / "checkpoints" / "state.previous.pt").write_bytes(b"saved, and never stored")
    machine.pull_all()
    assert contents(machine.folder) == expected
    server.request_stop()
    machine.pull_all()
    assert (machine.folder / "stop").exists()
    server.remove()
    machine.pull_all()  # nothing was ever stored: all begin anew
    assert not (machine.folder / "checkpoints" / "state.pt").exists()


def test_what_was_stored_stays_in_the_image_until_another_writer_has_stored_what_is_newer(
    sides: tuple[Mirror, Mirror], tmp_path: Path
) -> None:
    machine, server = sides
    fill(machine.folder)
    machine.push()
    expected = (machine.folder / "checkpoints" / "state.pt").read_bytes()
    again = Mirror(machine.url, machine.folder)
    (machine.folder / "checkpoints" / "state.pt").write_bytes(b"newer" * 10_000)
    for _ in range(3):
        again.push(large=False)
    pull(server)
    assert (server.folder / "checkpoints" / "state.pt").read_bytes() == expected
    again.push()
    pull(server)
    assert (server.folder / "checkpoints" / "state.pt").read_bytes() == b"newer" * 10_000


def test_a_writer_that_finds_no_storage_at_first_loses_nothing(
    sides: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, server = sides
    fill(machine.folder)
    machine.push()
    again, get = Mirror(machine.url, machine.folder), Mirror._get_file

    def gone(self: Mirror, name: str) -> bytes:
        raise OSError("nobody there")

    monkeypatch.setattr(Mirror, "_get_file", gone)
    with pytest.raises(OSError, match="nobody there"):
        again.push()
    monkeypatch.setattr(Mirror, "_get_file", get)
    again.push(large=False)
    pull(server)
    assert (server.folder / "checkpoints" / "state.pt").exists()


def test_states_are_left_where_they_are_while_the_run_goes_on(sides: tuple[Mirror, Mirror]) -> None:
    machine, server = sides
    fill(machine.folder)
    machine.push()
    server.pull(True, states=False)
    assert (server.folder / "probes" / "epoch-00001.zip").exists()
    assert not (server.folder / "checkpoints" / "state.pt").exists()
    server.pull(True)
    assert (server.folder / "checkpoints" / "state.pt").exists()
    server.pull(True, states=False)
    assert (server.folder / "checkpoints" / "state.pt").exists()


def test_an_attempt_that_was_taken_back_finds_nothing(sides: tuple[Mirror, Mirror]) -> None:
    machine, server = sides
    (server.folder / "handle.json").write_text("{}")
    server.publish()
    server.withdraw()
    server.withdraw()
    machine.pull_all()
    assert not (machine.folder / "handle.json").exists()


@pytest.mark.parametrize("name", ["about.json", "handle.json", "over.json", "stop", "start/toy/config.json", "job.sh"])
def test_what_belongs_to_the_server_is_not_taken_from_the_machines(
    sides: tuple[Mirror, Mirror], tmp_path: Path, name: str
) -> None:
    _, server = sides
    (tmp_path / "storage" / RUN).mkdir(parents=True)
    (tmp_path / "storage" / RUN / "folder.json").write_text(json.dumps({"files": {name: [[], "e30="]}}))
    with pytest.raises(InvalidRun, match="files of the other side"):
        server.pull(heavy=False)
    assert contents(server.folder) == {}


def test_what_a_dead_reader_left_is_removed(sides: tuple[Mirror, Mirror]) -> None:
    machine, server = sides
    fill(machine.folder)
    machine.push()
    (server.folder / ".bringing.0000").mkdir()
    pull(server)
    assert not list(server.folder.glob(".bringing.*"))


def test_old_pieces_go_while_readers_read(
    sides: tuple[Mirror, Mirror], tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader in a loop meets whole checkpoints, each of one moment."""
    monkeypatch.setattr(mirror, "_KEEP_SECONDS", 0.0)
    machine, server = sides
    done, errors, versions = threading.Event(), [], set()

    def read() -> None:
        while not done.is_set():
            try:
                pull(server)
                if (server.folder / "checkpoints" / "last").exists():
                    checkpoint = load_checkpoint(server.folder / "checkpoints" / "last")
                    assert checkpoint.labels == (str(checkpoint.facts["number"]), *"bcde")
                    versions.add(checkpoint.facts["number"])
            except Exception as error:
                errors.append(error)
                return

    reader = threading.Thread(target=read)
    reader.start()
    model = build()
    for number in range(30):
        save_checkpoint(
            machine.folder / "checkpoints" / "last",
            model,
            [str(number), *"bcde"],
            Preprocess((32, 32)),
            {"number": number},
        )
        (machine.folder / "checkpoints" / "state.pt").write_bytes(random.Random(number).randbytes(1 << 20))
        machine.push()
    until(lambda: errors or 29 in versions, "the last one")
    done.set()
    reader.join()
    assert not errors, errors
    assert len(list((tmp_path / "storage" / RUN / "pieces").iterdir())) <= 9  # three files of two indices and a new one


def test_old_pieces_stay_for_whoever_is_slow(sides: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    machine, _ = sides
    for number in range(5):
        fill(machine.folder)
        (machine.folder / "checkpoints" / "state.pt").write_bytes(random.Random(number).randbytes(1 << 16))
        machine.push()
    states = [path for path in (tmp_path / "storage" / RUN / "pieces").iterdir() if path.stat().st_size == 1 << 16]
    assert len(states) == 5


WRITER = """
import random, sys
from pathlib import Path
from vit.runs.mirror import Mirror
side = Mirror(sys.argv[1], Path(sys.argv[2]))
side.pull_all()
number = int((side.folder / "environment.json").read_text()) if (side.folder / "environment.json").exists() else 0
while True:
    number += 1
    for name, size in (("checkpoints/state.pt", 200_000), ("probes/epoch-00001.zip", 9_000), ("environment.json", 0)):
        path = side.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".partial")
        new.write_text(f"{number:06}" * (size // 6) or str(number))
        new.rename(path)
    side.push()
    print(number, flush=True)
"""


@pytest.mark.slow
def test_a_writer_that_is_killed_at_any_moment_leaves_whole_files(sides: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    machine, server = sides
    chance, last = random.Random(0), 0
    for attempt in range(8):
        folder = tmp_path / f"machine {attempt}" / RUN
        command = [sys.executable, "-c", WRITER, machine.url, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1]) as writer:
            assert writer.stdout
            writer.stdout.readline()  # it has begun
            time.sleep(chance.uniform(0, 0.3))  # anywhere in what it does
            os.kill(writer.pid, signal.SIGKILL)
        pull(server)
        numbers = [(server.folder / name).read_text() for name in ("checkpoints/state.pt", "probes/epoch-00001.zip")]
        wholes = [set(text[i : i + 6] for i in range(0, len(text), 6)) for text in numbers]
        assert all(len(whole) == 1 for whole in wholes)  # of one version, from begin to end
        state, probe, small = (
            int(text) for text in (*wholes[0], *wholes[1], (server.folder / "environment.json").read_text())
        )
        assert state == probe == small > last
        last = state


def test_while_it_is_pushed_all_arrives_within_seconds_and_a_request_to_stop_too(
    sides: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, server = sides
    monkeypatch.setattr(mirror, "PAUSE_SECONDS", 0.05)
    with machine.pushing():
        fill(machine.folder)
        until(lambda: pull(server) or contents(server.folder) == contents(machine.folder), "the image")
        server.request_stop()
        until((machine.folder / "stop").exists, "the request")
        (machine.folder / "outcome.json").write_text("{}")
    pull(server)
    assert (server.folder / "outcome.json").exists()
    server.publish()
    again = Mirror(machine.url, machine.folder)
    (machine.folder / "stop").unlink()
    with again.pushing():
        for _ in range(3):
            again.push()
    assert not (machine.folder / "stop").exists()  # it was of the attempt before


def test_storage_that_is_gone_for_a_while_costs_nothing(
    sides: tuple[Mirror, Mirror], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine, server = sides
    monkeypatch.setattr(mirror, "PAUSE_SECONDS", 0.05)
    put, failed = Mirror._put_stream, []

    def gone(self: Mirror, path: str, chunks: Any) -> None:
        failed.append(path)
        raise OSError("nobody there")

    with machine.pushing():
        monkeypatch.setattr(Mirror, "_put_stream", gone)
        fill(machine.folder)
        until(lambda: len(failed) > 4, "attempts")
        monkeypatch.setattr(Mirror, "_put_stream", put)
    pull(server)
    assert contents(server.folder) == contents(machine.folder)


def test_an_attempt_gets_its_settings_and_the_checkpoint_that_it_starts_from(
    sides: tuple[Mirror, Mirror], build: Any
) -> None:
    machine, server = sides
    save_checkpoint(server.folder / "start" / "toy", build(), list("abcde"), Preprocess((32, 32)))
    for name in ("config.json", "handle.json", "metrics.jsonl"):
        (server.folder / name).write_text(json.dumps({"of": name}))
    server.publish()
    machine.pull_all()
    assert not (machine.folder / "metrics.jsonl").exists()  # it is of the machines
    assert {"config.json", "handle.json"} <= contents(machine.folder).keys()
    load_checkpoint(machine.folder / "start" / "toy")


@pytest.mark.parametrize(
    "index",
    [
        '{"files": {"../outside": [[], "YQ=="]}}',
        '{"files": {"/etc/outside": [[], "YQ=="]}}',
        '{"files": {".hidden": [[], "YQ=="]}}',
        '{"files": {"a": [[["../../secret", 3]], ""]}}',
        '{"files": {"a": 3}}',
        '{"files": 3}',
        '{"format": 2, "files": {}}',  # of a later version
        "[]",
        "",
        "[" * 100_000,
    ],
)
def test_an_index_that_is_none_is_refused_and_writes_nothing(
    sides: tuple[Mirror, Mirror], tmp_path: Path, index: str
) -> None:
    _, server = sides
    (tmp_path / "storage" / RUN).mkdir(parents=True)
    (tmp_path / "storage" / RUN / "folder.json").write_text(index)
    with pytest.raises(InvalidRun, match="cannot be read"):
        server.pull(heavy=False)
    assert contents(server.folder) == {} and not (tmp_path / "here" / "outside").exists()


def test_a_damaged_piece_is_not_taken(sides: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    machine, server = sides
    fill(machine.folder)
    machine.push()
    for piece in (tmp_path / "storage" / RUN / "pieces").iterdir():
        piece.write_bytes(b"x" + piece.read_bytes()[1:])
    with pytest.raises(InvalidRun, match="is damaged"):
        pull(server)
    assert not (server.folder / "checkpoints" / "state.pt").exists()


def test_without_an_image_there_is_nothing_to_bring(sides: tuple[Mirror, Mirror]) -> None:
    machine, server = sides
    pull(server)
    machine.push()
    server.remove()
    server.remove()
    assert contents(server.folder) == {}
