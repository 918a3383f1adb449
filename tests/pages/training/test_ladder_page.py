"""The ladder on page Train: rungs are filled in, existing results are reused, the best one is named."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from patience import until
from streamlit.testing.v1 import AppTest

from pages.server import access, background
from pages.shared.escape import plain
from tests.pages.controls import app_page, button, control, run
from tests.pages.controls import train_page as opened
from vit.errors import InvalidConfig
from vit.training.loop import dry_run
from vit.training.loop.ladder import RUNGS, rung_config
from vit.training.loop.presets import train_config
from vit.training.loop.run_folder import hold_run
from vit.training.loop.train import train
from vit.training.runs import registry

LINK = {"preset": "fine-tune", "data": "shapes", "init_from": "cifar10", "limit": "60", "epochs": "1"}


@pytest.fixture
def runs(folders: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(background, "_jobs", {})
    return folders / "runs"


def rungs(page: AppTest) -> dict[str, str]:
    """Return each rung's title with the text at the end of its row."""
    (drawn,) = [one.value for one in page.get("html") if 'class="rung' in one.value]
    rows = drawn.split('<div class="rung')[1:]
    return {row.split("<span>")[1].split("<")[0]: row.split("<em>")[1].split("<")[0] for row in rows}


def look(page: AppTest) -> AppTest:
    """Press *Try without training*, and run the page until its result is there."""
    page.button(key="ladder_look").click().run()
    until(lambda: run(page) and button(page, "ladder_stop") is None, "the rungs without training")
    return page


def test_no_ladder_from_random_weights(runs: Path) -> None:
    assert "Ladder" not in [one.value for one in opened().header]


def test_rungs_without_training_are_computed_on_a_click_and_once(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened(**LINK)
    assert "Ladder" in [one.value for one in page.header]
    assert rungs(page) == {rung.title: "" for rung in RUNGS.values()}
    look(page)
    assert not page.error
    first = rungs(page)
    assert first["Nearest neighbours"].endswith("%") and first["Linear probe"].endswith("%")
    assert first["LoRA"] == first["Everything"] == ""
    assert any(one.value.startswith("**Best so far: ") for one in page.markdown)
    assert button(page, "ladder_look") is None and button(page, "ladder_train") is not None

    def never(*_: object) -> Iterator[object]:
        raise AssertionError("looked again")

    monkeypatch.setattr(dry_run, "without_training", never)
    again = opened(**LINK | {"lr": "0.5"})  # another session, with another recipe for training
    assert rungs(again) == first


@pytest.mark.exhaustive
def test_run_of_a_rung_is_found_whoever_started_it(runs: Path) -> None:
    config = train_config("fine-tune", data="shapes", init_from="cifar10", limit=60, epochs=1, device="cpu")
    done = train(rung_config(config, "last"), runs / "20261125-000000-by-hand-0000")
    assert done.validation
    page = opened(**LINK)
    assert rungs(page)["Last two blocks"] == f"{done.validation.accuracy:.1%}"
    assert rungs(page)["Everything"] == ""
    assert rungs(opened(**LINK | {"limit": "61"}))["Last two blocks"] == ""  # other pictures
    (link,) = (one for one in page.get("page_link") if one.proto.label == "Open in Explore")
    explore = app_page(**dict(parse_qsl(link.proto.query_string)))
    assert not explore.info  # otherwise the page reports a missing checkpoint
    assert explore.selectbox(key="checkpoint").value == "run-20261125-000000-by-hand-0000"


@pytest.mark.parametrize(
    ("accuracy", "offer"),
    [(0.99, "Open in Explore"), pytest.param(0.01, "Keep the linear probe", marks=pytest.mark.exhaustive)],
)
def test_best_result_so_far_is_offered_during_the_computation(runs: Path, accuracy: float, offer: str) -> None:
    config = train_config("fine-tune", data="shapes", init_from="cifar10", limit=60, epochs=1, device="cpu")
    run = runs / "20261125-000000-by-hand-0000"
    train(rung_config(config, "all"), run)
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    changed = [one | {"accuracy": accuracy} if one["kind"] == "validation" else one for one in records]
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in changed))
    (run / "outcome.json").unlink()
    with hold_run(run):
        (run / "heartbeat").touch()
        page = opened(**LINK)
        look(page)
        links = [one.proto.label for one in page.get("page_link")]
        assert offer in links + [one.label for one in page.button]
        assert ("Open in Explore" in links) != (button(page, "ladder_probe") is not None)  # one of them
        (said,) = [one.value for one in page.markdown if one.value.startswith("**Best so far: ")]
        assert said.endswith("Still under way: everything.")


def test_other_rungs_are_started_as_runs(runs: Path) -> None:
    page = opened(**LINK)
    page.button(key="ladder_train").click().run()
    assert not page.exception and not page.error
    started = registry.list_runs()
    assert sorted(run.name for run in started) == ["cifar10, Everything", "cifar10, Last two blocks", "cifar10, LoRA"]
    assert len({run.search for run in started}) == 1
    assert button(page, "ladder_train") is None


def test_error_is_a_sentence_and_the_button_returns(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(*_: object) -> Iterator[object]:
        yield 0.0
        raise InvalidConfig("Another trial is under way.")

    monkeypatch.setattr(dry_run, "without_training", refuse)
    page = opened(**LINK | {"limit": "62"})
    page.button(key="ladder_look").click().run()
    until(lambda: page.error or not page.run(), "the error")
    for _ in range(2):
        assert [one.value for one in page.error] == [plain("Another trial is under way.")]
        assert button(page.run(), "ladder_look") is not None
    monkeypatch.setattr(dry_run, "without_training", lambda *_: (one for one in [{}]))
    look(page)
    assert not page.error and button(page, "ladder_look") is None, "the next attempt has ended well"


def test_click_after_permission_was_withdrawn_starts_nothing(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened(**LINK | {"limit": "65"})
    monkeypatch.setattr(access, "is_local", lambda: False)
    page.button(key="ladder_look").click().run()
    assert not page.exception and not any("without training" in key for key in background._jobs)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Looking at every picture takes until the end of the test; the event is set when it was stopped."""
    ended, stopped = threading.Event(), threading.Event()

    def look_for_long(*_: object) -> Iterator[float]:
        try:
            while not ended.wait(0.01):
                yield 0.4
        finally:
            stopped.set()

    monkeypatch.setattr(dry_run, "without_training", look_for_long)
    yield stopped
    ended.set()


def test_start_works_during_the_ladder(runs: Path, endless: threading.Event) -> None:
    page = opened(**LINK | {"limit": "63"})
    page.button(key="ladder_look").click().run()
    assert not page.exception and button(page, "ladder_stop") is not None
    page.button(key="start").click().run()
    assert not page.exception and [run.config["limit"] for run in registry.list_runs()] == [63]
    assert not endless.is_set(), "the ladder continues"


def test_ladder_is_stopped_by_its_button_and_by_another_form(runs: Path, endless: threading.Event) -> None:
    page = opened(**LINK | {"limit": "64"})
    page.button(key="ladder_look").click().run()
    page.button(key="ladder_stop").click().run()
    assert button(page, "ladder_look") is not None
    until(endless.is_set, "the stop")
    endless.clear()
    page.button(key="ladder_look").click().run()
    control(page.selectbox, "init_from").set_value("everyday").run()
    assert not page.exception and button(page, "ladder_look") is not None
    until(endless.is_set, "the stop")
