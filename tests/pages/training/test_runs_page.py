"""Page Runs without a browser: empty, normal and error state, and its buttons."""

import csv
import hashlib
import io
import json
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.parse import parse_qsl

import numpy as np
import pandas as pd
import pytest
from patience import PATIENCE
from PIL import Image
from starlette.applications import Starlette
from starlette.testclient import TestClient
from written_runs import EPOCHS, STEPS

from pages.server import access, uploaded_pictures
from pages.shared import zip_downloads
from pages.training import models, run_records
from pages.training.run_views import results
from pages.training.train_form import settings as fields
from tests.pages.controls import ROOT, address, control, texts
from tests.pages.offered import payload_of
from tests.pages.runs_page import option, show
from vit.data.shapes import SHAPES
from vit.errors import InvalidRun
from vit.training.loop.run_folder import hold_run
from vit.training.runs import control as runs
from vit.training.runs import error_report, registry


@pytest.fixture
def alive(folder: Path) -> Iterator[Callable[[str], None]]:
    """Return `alive(run)`, which holds the run's lock as its process would."""

    @contextmanager
    def held(run: str) -> Iterator[None]:
        with hold_run(folder / run):
            (folder / run / "heartbeat").touch()
            yield

    with ExitStack() as stack:
        yield lambda run: stack.enter_context(held(run))


def test_page_without_runs_says_how_to_start_one(folder: Path) -> None:
    page = show()
    assert "python -m vit train" in page.info[0].value


def test_all_runs_are_in_the_table(write: Callable[..., str], alive: Callable[[str], None]) -> None:
    write("First")
    write("Broken", outcome="failed", reason="The disk is full.")
    alive(write("Going", outcome="", done=2))
    page = show()
    assert not page.error
    table = page.dataframe[0].value
    assert set(zip(table["Run"], table["Status"], strict=True)) == {
        ("First", "Finished"), ("Broken", "Failed"), ("Going", "Running"),
    }  # fmt: skip
    going = table.set_index("Run").loc["Going"]
    assert going["Validation"] == pytest.approx(70) and going["Progress"] == pytest.approx(50)
    assert pd.isna(going["Test"])
    done = table.set_index("Run").loc["First"]
    assert (done["Validation"], done["Test"]) == (pytest.approx(90), pytest.approx(87.5))


def test_name_status_and_accuracy_fit_on_a_phone(write: Callable[..., str]) -> None:
    """A table is as wide as the page, which leaves 358 px on a phone of 390 px; its checkboxes take 33."""
    write("First")
    table = show().dataframe[0]
    widths = {name: column.get("width") for name, column in json.loads(table.proto.columns).items()}
    assert list(table.value.columns)[:3] == ["Run", "Status", "Validation"]
    assert sum(widths[name] for name in ("Run", "Status", "Validation")) <= 358 - 33


def test_run_without_an_accuracy_says_when_its_first_one_is_expected(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path
) -> None:
    new, young = (write(name, outcome="", done=0) for name in ("New", "Young"))
    step = {"kind": "step", "step": 10, "loss": 1.0, "lr": 1e-3, "attempt": 0, "t": time.time() - 80}
    with (folder / young / "metrics.jsonl").open("a") as metrics:  # 10 of the 50 steps of an epoch took 20 s
        metrics.write(json.dumps(step) + "\n")
    alive(new)
    alive(young)
    assert "Its first accuracy comes after the first epoch." in texts(show(new))
    assert "Curves come with its first steps." in texts(show(new))
    assert "comes after the first epoch, in about a minute" in texts(show(young))


def test_waiting_run_has_its_queue_position_in_the_table(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path
) -> None:
    both = [write(name, outcome="", done=0) for name in ("One", "Two")]
    for run in both:
        alive(run)
    (folder / ".queue").mkdir()
    (folder / ".queue" / "queue.json").write_text(json.dumps({"waiting": both[::-1]}))
    table = show().dataframe[0].value.set_index("Run")
    assert (table.loc["Two", "Status"], table.loc["One", "Status"]) == ("Waiting · 1", "Waiting · 2")


def test_several_runs_are_stopped_together(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path
) -> None:
    both = [write(name, outcome="", done=2) for name in ("One", "Two")]
    for run in both:
        alive(run)
    page = show(*both)
    page.button(key="stop all").click().run()
    assert not page.exception and all((folder / run / "stop").exists() for run in both)
    assert not [button for button in page.button if button.key == "stop all"]


def test_run_states_its_base_and_the_name_of_its_data(write: Callable[..., str], folder: Path) -> None:
    first = write("Parent")
    upload = "folder:/data/uploads/my-zoo-0123abcd"
    second = write("Child", data=upload, init_from=str(folder / first / "checkpoints" / "best"))
    said = texts(show(second))
    assert "from Parent" in said and "my\\-zoo ·" in said
    kept = folder.parent / "checkpoints" / "mine"
    kept.parent.mkdir()
    shutil.copytree(folder / first / "checkpoints" / "best", kept)
    assert "from mine" in texts(show(write("Tuned", init_from="mine")))


def test_filter_searches_names_and_status(write: Callable[..., str]) -> None:
    write("Alpha")
    write("Beta", outcome="stopped")
    page = show()
    page.text_input(key="filter").set_value("stopped bet").run()
    assert list(page.dataframe[0].value["Run"]) == ["Beta"]


def test_headings_skip_no_level(write: Callable[..., str]) -> None:
    page = show(write("First"))
    assert [title.value for title in page.title] == ["Runs"]
    assert [header.value for header in page.header] == ["First"]
    assert not page.subheader


@pytest.mark.parametrize("count", [1, 2])
def test_returning_from_another_page_restores_the_runs_shown(write: Callable[..., str], count: int) -> None:
    some = [write(f"Run {number}") for number in range(count)]
    page = show(*some)
    page.session_state["Visit"].entered = "explore"  # the link of Open in Explore; the browser's Back names no run
    del page.query_params["run"]
    page.run()
    asked = page.query_params["run"]
    assert ([asked] if isinstance(asked, str) else asked) == some
    assert not page.exception and not page.error


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "nobody"])
def test_missing_run_is_one_sentence(write: Callable[..., str], name: str) -> None:
    write("First")
    page = show(name)
    assert page.error[0].value == "There is no such run. It may have been deleted."


def test_failed_run_states_the_reason_and_can_be_resumed(write: Callable[..., str]) -> None:
    page = show(write("Broken", outcome="failed", reason="The disk is full. *Free* some space.", done=2))
    assert page.error[0].value == "The disk is full\\. \\*Free\\* some space\\."
    assert page.button(key="resume") and page.button(key="delete")


@pytest.mark.parametrize("lost", [True, False])
def test_run_without_its_state_offers_a_new_one_instead_of_resuming(
    write: Callable[..., str], folder: Path, lost: bool
) -> None:
    run = write("Lost", outcome="stopped", done=2)
    if lost:
        (folder / run / "checkpoints" / "state.pt").unlink()
    page = show(run)
    offered = {button.key for button in page.button} | {link.proto.label for link in page.get("page_link")}
    assert ("resume" not in offered, "Begin anew" in offered) == (lost, lost)
    assert ("cannot be continued" in texts(page)) == lost
    if lost:
        with pytest.raises(InvalidRun, match="Begin anew"):
            runs.resume(run)


def test_starting_over_fills_the_form_of_page_train(
    write: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write("Lost", outcome="stopped", done=2, lr=0.005, registers=0, batch_size=17, optimizer="adamw")
    (folder / run / "checkpoints" / "state.pt").unlink()
    app = show(run)
    (way,) = (link for link in app.get("page_link") if link.proto.label == "Begin anew")
    app.switch_page("pages/train.py")
    app.query_params.clear()
    app.query_params.update(dict(parse_qsl(way.proto.query_string)))
    app.run()
    assert not app.exception and not app.error and not app.warning
    assert control(app.selectbox, "init_from").value == str(folder / run / "checkpoints" / "best")
    numbers = {name: control(app.number_input, fields.first_key(name)).value for name in ("lr", "batch_size", "epochs")}
    values = numbers | {"optimizer": control(app.selectbox, fields.first_key("optimizer")).value}
    assert values == {"lr": 0.005, "batch_size": 17, "epochs": EPOCHS, "optimizer": "adamw"}


def test_run_that_failed_before_its_first_step_shows_no_bar(write: Callable[..., str], folder: Path) -> None:
    run = write("Broken", outcome="failed", reason="There is no folder.", done=0)
    (folder / run / "metrics.jsonl").write_text("")
    page = show(run)
    assert page.error and not page.get("progress")


def test_resumed_run_cannot_end_before_its_current_epoch(write: Callable[..., str]) -> None:
    run = write("Halfway", outcome="stopped", done=2)
    box = show(run).number_input(key=f"resume epochs {run}")
    assert (box.min, box.value) == (2, EPOCHS)


def test_interrupted_run_says_so(write: Callable[..., str]) -> None:
    page = show(write("Cut off", outcome="", done=2))
    assert "Resume it" in page.warning[0].value


@pytest.mark.parametrize(("accuracy", "warned"), [(0.26, 1), (0.6, 0)])
def test_run_that_learnt_nothing_says_so(write: Callable[..., str], folder: Path, accuracy: float, warned: int) -> None:
    run = write("Guessing", done=0)
    shared = {"t": 1.0, "attempt": 0}
    start = {"kind": "start", "step": 0, "total_steps": 9, "steps_per_epoch": 9, "epochs": 1, "classes": list("abcd")}
    epoch = {"kind": "validation", "step": 9, "epoch": 1, "accuracy": accuracy, "loss": 1.4}
    lines = "".join(json.dumps(record | shared) + "\n" for record in (start, epoch))
    (folder / run / "metrics.jsonl").write_text(lines)
    assert len([w for w in show(run).warning if "no better than guessing" in w.value]) == warned


def test_names_are_shown_unformatted(write: Callable[..., str]) -> None:
    page = show(write("![x](http://e) <b>"))
    assert page.header[0].value.startswith("\\!\\[x\\]")


def test_stop_button_requests_the_stop(write: Callable[..., str], alive: Callable[[str], None], folder: Path) -> None:
    run = write("Going", outcome="", done=2)
    alive(run)
    page = show(run)
    page.button(key="stop").click().run()
    assert (folder / run / "stop").exists()
    assert not page.exception and page.info[0].value.replace("\\", "") == "It ends after the current step."
    assert not page.toast, "the status says it, and nothing else does"


@pytest.mark.parametrize(
    ("doing", "status", "words"), [("testing", "Testing", "test"), ("validating", "Validating", "validation")]
)
def test_evaluating_run_states_the_split_and_the_progress(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path, doing: str, status: str, words: str
) -> None:
    run = write("Going", outcome="", done=2)
    alive(run)
    (folder / run / "heartbeat").write_text(json.dumps({"doing": doing, "share": 0.42, "step": 3 * STEPS}))
    page = show(run)
    assert page.dataframe[0].value["Status"].tolist() == [status]
    assert page.get("progress")[0].proto.text == f"Epoch 3.0 of 4 · {words}, 42%"
    assert page.get("progress")[0].proto.value == 75


def test_starting_run_says_so_and_can_be_stopped(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path
) -> None:
    run = write("Going", outcome="", done=0)
    alive(run)
    (folder / run / "heartbeat").unlink()
    page = show(run)
    assert page.dataframe[0].value["Status"].tolist() == ["Starting"]
    page.button(key="stop").click().run()
    assert page.dataframe[0].value["Status"].tolist() == ["Stopping"]
    assert not [button for button in page.button if button.key == "stop"]


def test_nothing_can_be_done_without_permission(
    write: Callable[..., str], alive: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write("Going", outcome="", done=2)
    alive(run)
    page = show(run)
    monkeypatch.setattr(access, "may_train", lambda: False)
    page.button(key="stop").click().run()  # the button was drawn before the permission was withdrawn
    assert not (folder / run / "stop").exists()
    assert "not change them" in page.error[0].value
    assert not [button for button in page.button if button.key in ("stop", "kill", "save", "delete")]


def test_users_who_may_not_train_see_no_owner_log_folder_or_pictures_of_others(
    write: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = write("Mine", "failed", "No /srv/secret/file", probes=True, data="folder:/srv/secret/birds-0123abcd")
    public = write("Open", probes=True, data="cifar10")
    for run in (private, public):
        about = json.loads((folder / run / "about.json").read_text())
        (folder / run / "about.json").write_text(json.dumps(about | {"owner": "ada@example.com"}))

    def everything(run: str, view: str) -> str:
        page = show(run, view=view)
        frames = " ".join(str(frame.value.to_dict()) for frame in page.dataframe)
        return (
            texts(page)
            + frames
            + " ".join(code.value for code in page.code)
            + " ".join(f"choose a {pill.label}" for pill in page.pills)
        )

    views = ("curves", "attention", "settings", "log")
    known = [everything(private, view) for view in views]
    assert (
        all("ada@example\\.com" in text for text in known)
        and "/srv/secret" in known[2]
        and "choose a Picture" in known[1]
    )
    assert "fine" in known[3]
    monkeypatch.setattr(access, "may_train", lambda: False)
    hidden = [everything(private, view) for view in views]
    told = " ".join(hidden)
    assert "@example" not in told and "secret" not in told and "fine" not in told and "birds" in hidden[2]
    assert "people who may train" in hidden[1] and "choose a Picture" not in hidden[1]
    assert "choose a Picture" in everything(public, "attention")


def test_run_is_renamed_and_annotated(write: Callable[..., str]) -> None:
    run = write("First")
    page = show(run)
    page.text_input(key=f"name {run}").set_value("Second")
    page.text_area(key=f"notes {run}").set_value("Better data.")
    page.button(key="save").click().run()
    assert not page.exception and not page.error
    assert (registry.find_run(run).name, registry.find_run(run).notes) == ("Second", "Better data.")
    assert "Better data." in texts(page)


def test_empty_name_is_refused_in_one_sentence(write: Callable[..., str]) -> None:
    run = write("First")
    page = show(run)
    page.text_input(key=f"name {run}").set_value(" ")
    page.button(key="save").click().run()
    assert len(page.error) == 1 and registry.find_run(run).name == "First"


def test_deletion_names_what_is_deleted(write: Callable[..., str], folder: Path) -> None:
    run = write("First")
    page = show(run)
    page.button(key="delete").click().run()
    said = texts(page)
    assert "First" in said and "MB" in said and "best" in said
    assert (folder / run).exists()
    page.button(key="really delete").click().run()
    assert not (folder / run).exists()


def test_attention_of_every_epoch_is_shown(write: Callable[..., str]) -> None:
    run = write("First", probes=True)
    page = show(run, view="attention")
    assert not page.error
    slider = page.select_slider(key="epoch")
    assert slider.value == 4
    newest = payload_of(page, "epochs feeder")
    slider.set_value(1).run()
    assert payload_of(page, "epochs feeder") != newest
    assert len(option(page, "epochs entropy")["series"]) == 2  # one per block


def test_no_attention_before_the_first_epoch(write: Callable[..., str]) -> None:
    page = show(write("First", outcome="stopped", done=0), view="attention")
    assert "after every epoch" in page.info[0].value


def test_log_and_settings_are_shown(write: Callable[..., str]) -> None:
    run = write("First", lr=3e-3)
    assert "<b>fine</b>" in show(run, view="log").code[0].value
    settings = show(run, view="settings").dataframe[1].value.set_index("Setting")["Value"]
    assert settings["Learning rate, AdamW"] == "0.003"
    assert settings["Blocks"] == "3"  # of the size "shapes"


def test_run_without_a_report_offers_one(write: Callable[..., str]) -> None:
    page = show(write("First"), view="results")
    assert page.button(key="evaluate").label == "Evaluate on the test pictures"


def test_figures_of_earlier_weights_are_named_as_such(write: Callable[..., str], folder: Path) -> None:
    run = write("First")
    weights = (folder / run / "checkpoints" / "best" / "model.safetensors").read_bytes()
    none = np.zeros(0, np.int64)
    report = error_report.Report(
        hashlib.sha256(weights).hexdigest()[:16], SHAPES, np.eye(4, dtype=np.int64), none,
        np.zeros((0, 1, 1, 3), np.uint8), np.zeros((0, 1, 1, 3), np.uint8), none, none, np.zeros(0, np.float32),
    )  # fmt: skip
    error_report.save(report, folder / run / error_report.FILE)
    assert "earlier weights" not in texts(show(run, view="results"))
    error_report.save(replace(report, checkpoint="0" * 16), folder / run / error_report.FILE)
    page = show(run, view="results")
    assert not page.exception and "earlier weights" in texts(page)


def test_wrong_prediction_opens_with_the_question_why(write: Callable[..., str], folder: Path) -> None:
    run, one = write("First"), np.array([0])
    picture = np.arange(3 * 16, dtype=np.uint8).reshape(1, 4, 4, 3)
    report = error_report.Report(
        "", SHAPES, np.eye(4, dtype=np.int64), one, picture, picture, one + 1, one + 2, np.array([0.9], np.float32)
    )
    error_report.save(report, folder / run / error_report.FILE)
    page = show(run, view="results")
    page.button(key="why 0").click().run()
    link = address(page)
    assert (link["target"], link["against"], link["view"]) == (SHAPES[2], SHAPES[1], "relevance")
    content = uploaded_pictures.find(link["picture"])
    assert content and np.array(Image.open(io.BytesIO(content))).tolist() == picture[0].tolist()


def test_wrong_predictions_are_named_as_text_and_listed_as_csv(write: Callable[..., str], folder: Path) -> None:
    run, own = write("First"), "bird/<b>x\u202e.png"
    picture = np.zeros((1, 4, 4, 3), np.uint8)
    report = error_report.Report(
        "", SHAPES, np.eye(4, dtype=np.int64), np.array([5, 2]), picture, picture, np.array([1, 0]), np.array([2, 3]),
        np.array([0.9, 0.5], np.float32), (own, "=cat/2.png"),
    )  # fmt: skip
    error_report.save(report, folder / run / error_report.FILE)
    page = show(run, view="results")
    (shown,) = [one.proto.body for one in page.get("html") if "<figcaption" in one.proto.body]
    assert "bird/&lt;b&gt;xU+202E.png" in shown and "<b>x" not in shown
    rows = [*csv.DictReader(io.StringIO(results._to_csv(error_report.read(folder / run / error_report.FILE)).decode()))]
    assert [(row["picture"], row["truth"], row["prediction"]) for row in rows] == [
        (own, SHAPES[1], SHAPES[2]),
        ("'=cat/2.png", SHAPES[0], SHAPES[3]),
    ]
    page.button(key="why 0").click().run()
    assert address(page)["upload"] == own


def test_checkpoint_is_saved_under_a_name(write: Callable[..., str], tmp_path: Path) -> None:
    run = write("First try")
    page = show(run, view="results")
    page.text_input(key=f"keep name {run}").set_value("mine")
    page.button(key="keep").click().run()
    assert not page.error
    assert (tmp_path / "checkpoints" / "mine" / "model.safetensors").exists()


@pytest.mark.parametrize(("name", "folder_name"), [("Zoo: lr 0.001", "zoo-lr-0-001"), ("../é", ""), ("Mon é", "mon")])
def test_zip_of_a_checkpoint_unpacks_to_a_folder_named_after_its_run(
    write: Callable[..., str], name: str, folder_name: str
) -> None:
    run = registry.find_run(write(name))
    models.register()
    client = TestClient(Starlette(routes=zip_downloads.routes()))
    answer = client.get("/download/checkpoint", params={"name": f"run-{run.id}"})
    assert answer.headers["Content-Disposition"].endswith(f"{folder_name or run.id}.zip")
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert {path.partition("/")[0] for path in archive.namelist()} == {folder_name or run.id}
        assert any(path.endswith("/model.safetensors") for path in archive.namelist())


def test_pauses_between_attempts_do_not_count() -> None:
    records = [{"kind": "step", "step": i, "t": t, "attempt": a} for i, t, a in ((1, 0, 0), (2, 60, 0), (3, 9000, 1))]
    assert run_records.Figures({"step": records}, None).seconds == 60


@pytest.mark.exhaustive
def test_monitoring_needs_no_torch(write: Callable[..., str]) -> None:
    import subprocess
    import sys

    run, other = write("First", probes=True), write("Second", size="tintn")
    views = [*((run, view) for view in ("curves", "attention", "results", "settings", "log")), ([run, other], "curves")]
    code = f"""
import sys
from streamlit.testing.v1 import AppTest
for run, view in {views!r}:
    page = AppTest.from_file({str(ROOT / "app.py")!r}, default_timeout={PATIENCE}).switch_page("pages/runs.py")
    page.query_params["run"], page.query_params["view"] = run, view
    page.run()
    assert not page.exception, page.exception
sys.exit("torch" in sys.modules)
"""
    assert (
        subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode
        == 0
    )


def test_results_say_their_pictures_and_interval(write: Callable[..., str], folder: Path) -> None:
    name = write("First", data="shapes")
    none, empty = np.zeros(0, np.int64), np.zeros((0, 1, 1, 3), np.uint8)
    confusion = np.array([[2, 1], [7, 23]])
    report = error_report.Report("", ("cat", "dog"), confusion, none, empty, empty, none, none, none.astype(np.float32))
    error_report.save(report, folder / name / error_report.FILE)
    page = show(name, view="results")
    assert not page.error
    assert "25 of 33 test pictures right (59 to 87 %), with 95% confidence; 72% in the mean" in texts(page)
    table = page.dataframe[1].value.set_index("Class")
    assert dict(table["Right"]) == {"cat": "2 of 3 (21 to 94 %)", "dog": "23 of 30 (59 to 88 %)"}
