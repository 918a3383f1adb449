"""A damaged run folder is reported, and breaks neither a page nor the other runs."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damages import ODD, scrambled

from pages.training import run_records
from pages.training.run_views import compare_runs, curves
from tests.pages.controls import app_page, texts
from tests.pages.runs_page import show
from vit.checkpoints.save import save_checkpoint
from vit.errors import UserError
from vit.images.preprocess import Preprocess
from vit.training.loop.config import TrainConfig
from vit.training.loop.run_folder import hold_run
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.training.runs import error_report, registry
from vit.view import attention_snapshots
from vit.view.attention_snapshots import read_payload, read_snapshots

ROOT = Path(__file__).parents[3]
CASES = 150  # of the property test
GOOD, BAD = "20261121-000000-good-0000", "20261121-000001-bad-0001"


def lines(**changes: Any) -> str:
    """Return a run's records: a start, two steps and an epoch; `step_t="x"` changes `t` of the steps."""
    records: list[dict[str, Any]] = [
        {"kind": "start", "step": 0, "total_steps": 40, "steps_per_epoch": 20, "epochs": 2, "classes": list("abcde")},
        {"kind": "step", "step": 10, "loss": 2.0, "lr": 1e-3, "pictures_per_second": 500.0, "memory": 10**9},
        {"kind": "step", "step": 20, "loss": 1.0, "lr": 1e-3, "pictures_per_second": 500.0, "memory": 10**9},
        {"kind": "validation", "step": 20, "epoch": 1, "accuracy": 0.5, "loss": 1.0, "seconds": 2.0},
        {"kind": "note", "step": 20, "text": "fine"},
    ]
    for name, value in changes.items():
        kind, _, field = name.partition("_")
        for record in records:
            if record["kind"] == kind:
                record[field] = value
    return "".join(json.dumps({"t": 1e9 + i, "attempt": 0} | record) + "\n" for i, record in enumerate(records))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound run with every possible file."""
    from tests.conftest import LABELS, TINY, fill
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    run = tmp_path_factory.mktemp("template") / GOOD
    run.mkdir()
    (run / "config.json").write_text(TrainConfig(epochs=2).model_dump_json())
    about = {"name": "Good", "notes": "n", "owner": "", "search": "", "created": 1e9, "devices": ["cpu"]}
    (run / "about.json").write_text(json.dumps(about))
    (run / "environment.json").write_text(json.dumps({"attempt": 0, "torch": "2"}))
    (run / "metrics.jsonl").write_text(lines())
    (run / "heartbeat").write_text(json.dumps({"doing": "testing", "share": 0.5, "step": 20}))
    (run / "outcome.json").write_text(json.dumps({"outcome": "finished", "reason": ""}))
    (run / "log.txt").write_text("Epoch 1 of 2\n")
    (run / "alive.lock").touch()
    model = fill(VisionTransformer(ViTConfig(**TINY)))
    save_checkpoint(run / "checkpoints" / "best", model, LABELS, Preprocess((32, 32)), facts={"accuracy": 0.5})
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    SnapshotWriter(run / "probes", images, [0, 1], LABELS, Preprocess((32, 32))).store(1, model)
    pictures = np.zeros((1, 8, 8, 3), np.uint8)
    np.savez_compressed(
        run / "report.npz", meta=np.array(["hash", "shapes"]), classes=np.array(LABELS),
        confusion=np.eye(5, dtype=np.int64), indices=np.array([3]), pictures=pictures, overlays=pictures,
        true=np.array([0]), predicted=np.array([1]), probability=np.array([0.9], np.float32),
    )  # fmt: skip
    return run


@pytest.fixture
def folder(tmp_path: Path, template: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of runs: a sound one, and one to damage."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    for name in (GOOD, BAD):
        shutil.copytree(template, tmp_path / "runs" / name)
    about = json.loads((tmp_path / "runs" / BAD / "about.json").read_text())
    (tmp_path / "runs" / BAD / "about.json").write_text(json.dumps(about | {"name": "Bad", "created": 2e9}))
    run_records.forget()
    return tmp_path / "runs"


def changed(name: str, /, **values: Any) -> Callable[[Path], None]:
    """Return a function that changes values in a run's JSON file."""

    def damage(run: Path) -> None:
        (run / name).write_text(json.dumps(json.loads((run / name).read_text()) | values))

    return damage


def written(name: str, content: str | bytes) -> Callable[[Path], None]:
    """Return a function that replaces a run's file."""
    return lambda run: (run / name).write_bytes(content if isinstance(content, bytes) else content.encode()) and None


def made(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    """Return a function that puts a folder or a pipe in place of a run's file."""

    def damage(run: Path) -> None:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink()
        make(run / name)

    return damage


DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
DAMAGES: dict[str, Callable[[Path], None]] = {
    "a step's time as text": written("metrics.jsonl", lines(step_t="noon")),
    "an attempt as a list": written("metrics.jsonl", lines(step_attempt=[1], validation_attempt=[2])),
    "a step of 400 digits": written("metrics.jsonl", lines(step_step=10**400)),
    "deep nesting in the metrics": written("metrics.jsonl", DEEP + "\n" + lines()),
    "deep nesting in a record": written("metrics.jsonl", lines().replace("0.001", DEEP)),
    "the metrics as a folder": made("metrics.jsonl", Path.mkdir),
    "the metrics as a pipe": made("metrics.jsonl", os.mkfifo),
    "no steps in an epoch": written("metrics.jsonl", lines(start_steps_per_epoch=0)),
    "epoch 0": written("metrics.jsonl", lines(validation_epoch=0)),
    "epoch 0 without a start": written("metrics.jsonl", lines(start_epochs="", validation_epoch=0)),
    "text as speed": written("metrics.jsonl", lines(step_pictures_per_second="fast")),
    "no number": written("metrics.jsonl", lines(step_loss=float("nan"), validation_accuracy=float("inf"))),
    "a note that is no text": written("metrics.jsonl", lines(note_text={"a": 1})),
    "classes that are no texts": written("metrics.jsonl", lines(start_classes=[[1]])),
    "deep nesting in the config": written("config.json", DEEP),
    "the config as a folder": made("config.json", Path.mkdir),
    "a config that is a list": written("config.json", "[]"),
    "epochs as text": changed("config.json", epochs="many"),
    "epochs without end": changed("config.json", epochs=10**400),
    "no epochs": changed("config.json", epochs=0),
    "data as a list": changed("config.json", data=[1], init_from={"a": 1}),
    "a zero byte in a path": changed("config.json", data="folder:/\0", init_from="\0/best"),
    "created far ahead": changed("about.json", created=1e30),
    "created long ago": changed("about.json", created=-1e18),
    "half a character in the name": changed("about.json", name="a \ud800 b", notes="\udfff", owner="\ud800"),
    "a name without end": changed("about.json", name="x" * 10**6),
    "devices that are none": changed("about.json", devices=[["cpu"], 5, "\ud800"]),
    "half a character in the reason": changed("outcome.json", outcome="failed", reason="\ud800"),
    "a reason that is a list": changed("outcome.json", outcome=["failed"], reason=[[]]),
    "facts of another kind": lambda run: changed("checkpoints/best/config.json", vit=[1], training=[2])(run),
    "half a character in a label": lambda run: relabelled(run, "\ud800"),
    "a report that is none": written("report.npz", b"PK"),
    "probes that are none": written("probes/epoch-00001.zip", b"PK"),
    "an epoch without end": lambda run: (run / "probes" / f"epoch-{'9' * 200}.zip").touch(),
    "a log that is a folder": made("log.txt", Path.mkdir),
    "a handle of no cluster": written("handle.json", b'{"engine": [], "job": 5, "submitted": "now"}'),
    "a handle of a cluster that is gone": written(
        "handle.json", f'{{"engine": "x", "job": "{BAD}.1", "submitted": 1e9}}'.encode()
    ),
    "a handle with words for a shell": written("handle.json", b'{"place": "x", "job": "a.1; rm", "submitted": 1}'),
    "a heartbeat of 400 digits": changed("heartbeat", share=10**400, step=10**400),
}


def relabelled(run: Path, label: str) -> None:
    """Return a function that gives a checkpoint a class of this name."""
    path = run / "checkpoints" / "best" / "config.json"
    config = json.loads(path.read_text())
    config["id2label"] = {number: label for number in config["id2label"]}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_run_is_shown_beside_the_sound_one(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / BAD)
    page = show(BAD)
    assert not [error for error in page.error if "no such run" in error.value]
    table = page.dataframe[0].value
    assert len(table) == 2 and table.set_index("Run").loc["Good", "Status"] == "Finished"


@pytest.mark.parametrize("view", ["attention", "results", "settings", "log"])
def test_every_view_of_a_run_works_with_any_damage(folder: Path, view: str) -> None:
    for name in ("epochs as text", "a report that is none", "probes that are none", "a log that is a folder"):
        DAMAGES[name](folder / BAD)
    page = show(BAD, view=view)
    assert "epochs has a value that it cannot have" in texts(page)


def test_all_damaged_runs_together_can_be_compared_and_explored(folder: Path, template: Path) -> None:
    names = []
    for number, damage in enumerate(DAMAGES.values()):
        names.append(f"damaged-{number}")
        shutil.copytree(template, folder / names[-1])
        damage(folder / names[-1])
    page = show(*names)
    assert len(page.dataframe[0].value) == len(names) + 2
    explore = app_page("explore")
    (chooser,) = [box for box in explore.selectbox if any("Run: Good" in option for option in box.options)]
    assert len(chooser.options) >= len(names)


def test_unreadable_file_is_reported_with_its_reason(folder: Path) -> None:
    written("config.json", DEEP)(folder / BAD)
    (bad,) = [run for run in registry.list_runs() if run.id == BAD]
    assert (bad.status, bad.name) == ("unreadable", "Bad")
    assert bad.reason == "config.json cannot be read: it is damaged (it is nested too deeply)."
    page = show(BAD)
    assert page.dataframe[0].value.set_index("Run").loc["Bad", "Status"] == "Cannot be read"
    assert "nested too deeply" in texts(page)
    assert [button.key for button in page.button if button.key in ("stop", "resume", "save", "delete")] == ["delete"]


def test_unreadable_lines_are_counted_on_the_page(folder: Path) -> None:
    written("metrics.jsonl", lines(step_t="noon"))(folder / BAD)
    assert "2 lines of metrics\\.jsonl cannot be read, and left out\\." in texts(show(BAD))


# --- Another user's run ---------------------------------------------------------------------------------------------


@pytest.fixture
def open_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of runs that every user may enter; pytest's own folders are closed."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        shutil.copytree(folder, Path(place) / "runs")
        monkeypatch.setenv("VIT_RUNS", f"{place}/runs")
        yield Path(place) / "runs"


def as_nobody(code: str) -> list[str]:
    """Run code as a user without rights, and return its output."""
    drop = "if os.getuid() == 0:\n    os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
    imports = f"import os, sys\nsys.path[:0] = {[str(ROOT), *sys.path]!r}\n"
    imports += "from vit.errors import InvalidRun\nfrom vit.training.loop import presets\n"
    imports += "from vit.training.runs import control, registry\n"
    imports += "control.resume, presets.PRESETS\n"  # modules are imported beforehand: the user may not read them
    told = subprocess.run([sys.executable, "-c", imports + drop + code], capture_output=True, text=True, cwd="/")
    assert told.returncode == 0, told.stderr
    return told.stdout.splitlines()


def test_unreadable_run_is_reported_and_hides_no_other(open_folder: Path) -> None:
    (open_folder / BAD).chmod(0o700 if os.getuid() == 0 else 0)
    listed, reason, found, *refused = as_nobody(f"""
print(sorted((run.id, run.status) for run in registry.list_runs()))
print(registry.find_run({BAD!r}).reason)
print(registry.find_run({BAD!r}).status, registry.queue())
for act in (control.stop, control.resume, lambda run: control.rename(run, "x")):
    try:
        act({BAD!r})
    except InvalidRun as error:
        print(error)
""")
    (open_folder / BAD).chmod(0o700)
    assert listed == str([(GOOD, "finished"), (BAD, "unreadable")])
    assert reason == "Its folder cannot be read: Permission denied."
    assert found == "unreadable []"
    assert len(refused) == 3


def test_running_run_of_another_user_is_alive(open_folder: Path) -> None:
    heartbeat = (open_folder / GOOD / "heartbeat").read_text()
    (open_folder / GOOD / "alive.lock").chmod(0o444)
    with hold_run(open_folder / GOOD):
        (open_folder / GOOD / "heartbeat").write_text(heartbeat)  # a new attempt begins without one
        assert as_nobody(f"print(registry.find_run({GOOD!r}).status)") == ["testing"]


# --- Random damage --------------------------------------------------------------------------------------------------


def scramble(path: Path, dice: random.Random) -> None:
    """Replace a file by a similar or an arbitrary one."""
    content = path.read_bytes()
    way = dice.random()
    if way < 0.05:
        path.unlink()
        dice.choice([Path.mkdir, os.mkfifo])(path)
    elif way < 0.15:
        path.write_bytes(dice.randbytes(200))
    elif way < 0.25:
        cut = dice.randrange(len(content) + 1)
        path.write_bytes(content[:cut] + dice.randbytes(3) + content[cut + 3 :])
    elif path.suffix == ".jsonl":
        records = [json.loads(line) for line in content.splitlines()]
        for _ in range(3):
            place = dice.randrange(len(records))
            records[place] = scrambled(records[place], dice)
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    elif path.suffix == ".json" or path.name == "heartbeat":
        path.write_text(json.dumps(scrambled(json.loads(content), dice)))
    else:
        path.write_text(json.dumps(dice.choice(ODD)))


@pytest.fixture
def dice() -> Iterator[random.Random]:
    """Random numbers whose seed is printed on failure; VIT_SEED sets it."""
    seed = int(os.environ.get("VIT_SEED") or random.SystemRandom().randrange(10**6))
    print(f"VIT_SEED={seed}")
    yield random.Random(seed)


def look(run: registry.Run) -> None:
    """Compute everything that page Runs shows of a run."""
    figures = run_records.figures(run)
    for text in (
        run.name,
        run.notes,
        run.owner,
        run.reason,
        run.problem,
        run_records.last_lines(run),
        run_records.data_name(run),
    ):
        text.encode()
    json.dumps([figures.seconds, figures.steps_per_epoch, run_records.share_done(run)], allow_nan=False)
    (
        run_records.duration(figures.seconds),
        run_records.hardly_learns(run),
        run_records.start_name(run),
        run_records.best_accuracy(run),
    )
    points = [(record["step"] / figures.steps_per_epoch, record["loss"]) for record in figures.records.get("step", [])]
    option = curves.chart("Loss", [curves.line("x", curves.smooth(points, 0.6), "red")], view=curves.View(log=True))
    json.dumps(option, allow_nan=False)
    json.dumps(run.settings, allow_nan=False).encode()
    error_report.state(run.folder)
    for epoch in attention_snapshots.list_epochs(run.folder / "probes"):
        try:
            for number, _ in enumerate(read_snapshots(run.folder / "probes", epoch)):
                read_payload(run.folder / "probes", epoch, number)
        except UserError as error:
            str(error).encode()
    try:
        error_report.read(run.folder / error_report.FILE)
    except UserError as error:
        str(error).encode()


@pytest.mark.exhaustive
def test_any_content_of_a_runs_files_leaves_the_others_visible(
    folder: Path, template: Path, dice: random.Random
) -> None:
    names = sorted(str(path.relative_to(template)) for path in template.rglob("*") if path.is_file())
    (folder / ".queue").mkdir()
    line = {"waiting": [BAD], "held": {"cpu": BAD}}
    for _ in range(CASES):
        shutil.rmtree(folder / BAD)
        shutil.copytree(template, folder / BAD)
        for name in dice.sample(names, dice.randint(1, 3)):
            scramble(folder / BAD / name, dice)
        (folder / ".queue" / "queue.json").write_text(json.dumps(scrambled(line, dice)))
        run_records.forget()
        found = {run.id: run for run in run_records.every_run()}
        assert found[GOOD].status == "finished" and not found[GOOD].problem
        assert BAD in found and registry.find_run(BAD).id == BAD
        assert registry.queue() == []
        for run in found.values():
            look(run)
        table = compare_runs.table(list(found.values()))
        compare_runs.to_csv(table)
        assert len(table) == 2
