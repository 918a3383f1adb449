"""Clusters on the pages: selected on page Train with their free capacity, and monitored on page Runs."""

import platform
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_cluster import Fake, set_up
from short_runs import endless, tiny, until, wait_for_first_steps
from streamlit.testing.v1 import AppTest

from pages.looking import run_records
from tests.pages.controls import app_page as opened
from tests.pages.controls import control
from vit.errors import InvalidRun
from vit.runs import cluster_dry_run, registry
from vit.runs import control as runs
from vit.runs.engines import contract, watch
from vit.training import dry_run
from vit.training.run_folder import write_json


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


def test_dry_run_on_the_cluster_precedes_the_start(lab: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    page = opened("train", preset="shapes", limit="80", epochs="3", batch_size="8")
    choose(page, "lab")
    assert "not tried" in page.get("html")[0].value
    page.button(key="try_there").click().run()
    assert not page.exception and page.button(key="try_there").disabled
    (folder,) = (lab.jobs.parent / ".trials").iterdir()
    until(lambda: cluster_dry_run.read(folder), "the result")
    page.run()
    facts = "".join(str(one.value) for one in page.get("html"))
    assert "Pictures per second" in facts and "All epochs" in facts
    assert f"Tried on {platform.node()}." in text(page)
    until(lambda: not list((lab.jobs.parent / ".trials").iterdir()), "its end")
    assert registry.list_runs() == []
    control(page.number_input, "set_epochs").set_value(4).run()  # another config without a dry run
    assert "Tried on" not in text(page)


def test_failed_dry_run_is_reported_before_the_start(lab: Fake, tmp_path: Path) -> None:
    folder = runs.start_dry_run(tiny(data=f"folder:{tmp_path / 'nowhere'}"), on="lab", devices=["cpu"])
    handle = contract.read_handle(folder)
    assert handle
    until(lambda: lab.status(handle).state == "gone", "its end")
    assert cluster_dry_run.failure(folder, lab.status(handle)).startswith("There is no folder")
    runs.end_dry_run(folder)
    assert not folder.exists()


def test_another_version_on_the_cluster_is_reported(lab: Fake, tmp_path: Path) -> None:
    here = cluster_dry_run.software_versions()
    folder = tmp_path / "trial"
    folder.mkdir()
    write_json(folder / cluster_dry_run.REQUEST, {"here": here})
    facts = dict.fromkeys(dry_run.DryRun._fields, 1) | {"device": "cpu"}
    for changes, words in (
        ({}, []),
        ({"python": "3.9"}, ["Python is 3.9 there"]),
        ({"torch": "2.0", "code": "another"}, ["torch is 2.0 there", "another version of this program"]),
    ):
        write_json(folder / cluster_dry_run.RESULT, {"host": "n1", "there": here | changes, "trial": facts})
        found = cluster_dry_run.read(folder)
        assert found and len(found.doubts) == len(words)
        assert all(word in doubt for word, doubt in zip(words, found.doubts, strict=True))
    for result in (
        {"host": "n1", "there": here, "trial": facts | {"of_another_version": 1}},
        {"host": "n1", "there": here, "trial": {}},
        {"host": "n1", "there": {"python": "3.9"}, "trial": facts},
        {"host": "n1"},
    ):
        write_json(folder / cluster_dry_run.RESULT, result)
        with pytest.raises(InvalidRun, match="another version of this program"):
            cluster_dry_run.read(folder)


def test_dry_run_whose_folder_was_deleted_has_ended(tmp_path: Path) -> None:
    assert "was removed" in cluster_dry_run.failure(tmp_path / "gone", contract.JobStatus("gone"))


@pytest.mark.exhaustive
def test_waiting_dry_run_can_be_cancelled(lab: Fake) -> None:
    wait_for_first_steps(runs.launch(endless(), on="lab"))
    page = opened("train", preset="shapes", limit="80", epochs="3", batch_size="8")
    choose(page, "lab")
    page.button(key="try_there").click().run()
    until(lambda: "The slot is taken." in text(page.run()), "why it waits")
    control(page.number_input, "set_epochs").set_value(4).run()  # another config, while the dry run is still waiting
    page.button(key="cancel_there").click().run()
    until(lambda: not list((lab.jobs.parent / ".trials").iterdir()), "its end")
    assert not page.button(key="try_there").disabled


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
