"""Clusters on the pages: selected on page Train with their free capacity, and monitored on page Runs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cluster import Fake, set_up
from short_runs import endless, tiny, until, wait_for_first_steps
from streamlit.testing.v1 import AppTest

from pages.training import run_records
from tests.pages.controls import app_page as opened
from vit.training.engines import watch
from vit.training.runs import control as runs
from vit.training.runs import registry


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A cluster of one slot; its runs are killed at the end."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "runs").mkdir()
    (tmp_path / "data").mkdir()
    run_records.forget()
    yield set_up(tmp_path, monkeypatch, processes=2)
    for run in registry.list_runs(patience=5):
        if run.alive:
            runs.kill(run.id)


def text(page: AppTest) -> str:
    """Return all text of a page, without the backslashes that escape Markdown."""
    said = (str(one.value) for kind in ("caption", "info", "warning", "error") for one in page.get(kind))
    return "\n".join(said).replace("\\", "")


def choose(page: AppTest, place: str) -> None:
    page.radio(key="on").set_value(place).run()
    assert not page.exception


def test_no_choice_of_engine_without_a_cluster(lab: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_CLUSTERS", "/nowhere/clusters.toml")
    page = opened("train")
    assert "on" not in [radio.key for radio in page.radio]
    assert "Device" in [header.value for header in page.header]


def test_free_capacity_of_a_cluster_is_shown(lab: Fake) -> None:
    assert watch.capacity("lab", patience=5)[0]
    assert "**lab**: 1 of 1 processors free on 1 machine" in text(opened("train", preset="shapes"))


def test_run_is_submitted_and_monitored(lab: Fake) -> None:
    page = opened("train", preset="shapes", limit="80", epochs="1", batch_size="8")
    choose(page, "lab")
    assert "--on lab --devices cpu" in page.code[-1].value
    page.button(key="start").click().run()
    (run,) = registry.list_runs()
    assert (run.on, run.folder.parent, run.devices) == ("lab", lab.jobs.parent, ("cpu",))
    until(lambda: not registry.find_run(run.id, patience=5).alive, "the end")
    run_records.forget()
    page = opened("runs", run=run.id)
    assert registry.find_run(run.id).status == "finished"
    assert any("lab, 1 process" in caption.value for caption in page.caption)
    assert page.dataframe[0].value["Device"].tolist() == ["lab, 1 process"]


@pytest.mark.exhaustive
def test_waiting_run_states_the_reason_and_is_cancelled(lab: Fake) -> None:
    wait_for_first_steps(runs.launch(endless(), on="lab"))
    second = runs.launch(endless(), on="lab")
    assert registry.find_run(second.id, patience=5).status == "waiting"
    page = opened("runs", run=second.id)
    assert "The slot is taken." in text(page)
    assert {button.key for button in page.button} & {"queue first", "queue earlier", "queue later"} == set()
    page.button(key="cancel").click().run()
    assert registry.find_run(second.id).status == "stopped"


@pytest.mark.exhaustive
def test_unreachable_cluster_is_reported_and_unsafe_actions_are_not_offered(lab: Fake) -> None:
    run = wait_for_first_steps(runs.launch(endless(), on="lab"))
    with lab.unreachable():
        watch.forget()
        until(lambda: registry.find_run(run.id, patience=5).status == "unknown", "its silence")
        page = opened("runs", run=run.id)
        assert "lab does not answer. Its last heartbeat was" in text(page)
        assert {"delete", "resume"} & {button.key for button in page.button} == set()
        page = opened("train", preset="shapes")
        choose(page, "lab")
        page.button(key="start").click().run()
        assert "lab does not answer" in text(page)
        assert [one.id for one in registry.list_runs()] == [run.id]
        page = opened("runs", run=run.id)
        page.button(key="stop").click().run()  # through the stop file, which the trainer reads
        until(lambda: (run.folder / "outcome.json").exists(), "its end")
    until(lambda: registry.find_run(run.id, patience=5).status == "stopped", "its cluster's answer")


def test_settings_that_a_cluster_does_not_grant_are_not_offered(lab: Fake) -> None:
    page = opened("train", preset="shapes")
    choose(page, "lab")
    assert page.number_input(key="nodes lab").max == 1
    assert page.number_input(key="processes lab").max == 2


def test_misconfigured_cluster_is_named_with_its_mistake(lab: Fake, tmp_path: Path) -> None:
    with (tmp_path / "clusters.toml").open("a") as file:
        file.write('[clusters.far]\nkind = "ray"\nruns = "/shared"\n')
    assert "The cluster far cannot be used: a Ray cluster needs address" in text(opened("train", preset="shapes"))


def test_batch_script_for_slurm_is_shown_before_and_after_the_start(lab: Fake, tmp_path: Path) -> None:
    with (tmp_path / "clusters.toml").open("a") as file:
        file.write(f'[clusters.hpc]\nkind = "slurm"\nruns = "{tmp_path / "hpc"}"\npartition = "gpu"\n')
    page = opened("train", preset="shapes")
    choose(page, "hpc")
    assert "#SBATCH --partition=gpu" in page.code[-1].value
    run = runs.launch(tiny(epochs=1), on="lab")
    (run.folder / "job.sh").write_text("#SBATCH --nodes=1")
    assert "#SBATCH --nodes=1" in [code.value for code in opened("runs", run=run.id).code]


def test_cost_is_tried_on_this_machine_only(lab: Fake) -> None:
    page = opened("train", preset="shapes")
    assert "Try a few steps" in [button.label for button in page.button]
    choose(page, "lab")
    facts = "".join(str(one.value) for one in page.get("html"))
    assert "Parameters" in facts and "not tried" not in facts
    assert not any("Try" in button.label for button in page.button)


def test_insufficient_resources_are_reported_before_the_start(lab: Fake) -> None:
    assert watch.capacity("lab", patience=5)[0]
    page = opened("train", preset="shapes")
    choose(page, "lab")
    assert "would wait" not in text(page)
    page.segmented_control(key="cluster_kind").set_value("gpu").run()
    assert "lab has no GPUs, and 1 would be needed: the run would wait" in text(page)
    page.segmented_control(key="cluster_kind").set_value("cpu").run()
    page.number_input(key="processes lab").set_value(2).run()
    assert "lab has 1 processor, and 2 would be needed" in text(page)
