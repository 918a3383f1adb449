"""A search on page Train, and its trials on page Runs, without a browser."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from short_runs import tiny, write_dead_run
from streamlit.testing.v1 import AppTest
from written_searches import write_search, write_trial

from pages.server import access
from pages.shared.escape import plain
from pages.training import run_records, setting_names
from pages.training.train_form.search import forecast
from tests.pages.controls import control, name_of, texts, train_page
from tests.pages.runs_page import option, show
from vit.cli.parser import parser
from vit.training.loop.dry_run import DryRun
from vit.training.loop.presets import PRESETS
from vit.training.loop.run_folder import hold_run
from vit.training.runs import control as runs
from vit.training.runs import registry
from vit.training.search import control as searches
from vit.training.search import space
from vit.training.search.plan import SearchPlan


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A separate folder for runs; those started there are killed at the end."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    for name in ("runs", "data"):
        (tmp_path / name).mkdir()
    run_records.forget()
    yield tmp_path / "runs"
    for run in registry.list_runs():
        if run.alive:
            runs.kill(run.id)


def drawn_from(page: AppTest, name: str) -> tuple[str, ...]:
    """Return the controls of a setting: from, to and scale, or values."""
    scale = [one.value for one in page.selectbox if name_of(one) == f"space_{name}_scale"]
    if scale in ([], ["values"]):
        return tuple(control(page.multiselect, f"space_{name}_values").value)
    return (*(control(page.text_input, f"space_{name}_{end}").value for end in ("low", "high")), *scale)


def planned(page: AppTest) -> Any:
    """Return the command line on the page."""
    line = next(code.value for code in page.code if "vit search" in code.value)
    words = shlex.split(line)
    return parser().parse_args(words[words.index("vit") + 1 :])


# --- Page Train ---------------------------------------------------------------------------------------------------


def test_page_offers_ranges_for_the_settings_in_use(root: Path) -> None:
    page = train_page(preset="shapes")
    assert drawn_from(page, "lr") == ("0.0002", "0.02", "log")
    assert drawn_from(page, "muon_lr")
    assert planned(page).space[0] == "lr=0.0002:0.02:log"
    control(page.selectbox, "preset").set_value("mnist").run()
    assert drawn_from(page, "lr") == ("5e-05", "0.005", "log")
    assert "muon_lr" not in control(page.multiselect, "space_names").value


def test_changed_space_is_in_the_address_and_restored(root: Path) -> None:
    page = train_page(preset="shapes")
    control(page.multiselect, "space_names").set_value(["lr", "dropout"]).run()
    control(page.text_input, "space_lr_low").set_value("1e-3").run()
    control(page.selectbox, "space_lr_scale").set_value("linear").run()
    control(page.number_input, "trials").set_value(7).run()
    query = {name: "".join(text) for name, text in page.query_params.items()}
    assert query["space"] == "lr=1e-3:0.02 dropout=0:0.3" and query["trials"] == "7"
    again = train_page(**query)
    assert [drawn_from(again, name) for name in ("lr", "dropout")] == [
        ("1e-3", "0.02", "linear"),
        ("0", "0.3", "linear"),
    ]
    assert (planned(again).space, planned(again).trials) == (["lr=1e-3:0.02", "dropout=0:0.3"], 7)


def test_settings_without_a_range_are_chosen_from_a_list(root: Path) -> None:
    page = train_page(preset="shapes")
    control(page.multiselect, "space_names").set_value(["heads", "optimizer", "flip", "norm"]).run()
    assert drawn_from(page, "optimizer") == ("adamw", "muon") and drawn_from(page, "flip") == ("false", "true")
    control(page.multiselect, "space_norm_values").unselect("none").run()
    control(page.multiselect, "space_heads_values").set_value(["1", "3"]).run()
    assert not page.error
    assert planned(page).space[0] == "heads=1,3" and "none" not in planned(page).space[3]


def test_range_becomes_values_and_values_a_range(root: Path) -> None:
    page = train_page(preset="shapes", space="lr=1e-4:1e-2:log")
    control(page.selectbox, "space_lr_scale").set_value("values").run()
    assert drawn_from(page, "lr") == ("1e-4", "0.002", "1e-2")  # the recipe's own value lies between the ends
    control(page.multiselect, "space_lr_values").set_value(["1e-3", "1e-2"]).run()
    control(page.selectbox, "space_lr_scale").set_value("log").run()
    assert planned(page).space == ["lr=1e-3:1e-2:log"]


def test_every_combination_is_a_trial(root: Path) -> None:
    page = train_page(preset="shapes", grid="true", space="heads=1,2,3 depth=1,2")
    assert plain("6 trials of up to 8 epochs. None ends early.") in texts(page)
    assert page.button(key="start_search").label == "Start 6 trials"
    assert (planned(page).grid, planned(page).trials) == (True, None)
    control(page.multiselect, "space_heads_values").set_value(["3", "5"]).run()
    assert "heads 5 does not divide" in page.error[0].value
    assert page.button(key="start_search").disabled and not page.button(key="start").disabled


def test_ranges_become_values_for_every_combination_and_come_back(root: Path) -> None:
    page = train_page(preset="shapes", space="lr=1e-4:1e-2:log")
    control(page.radio, "grid").set_value(True).run()
    assert drawn_from(page, "lr") == ("1e-4", "0.002", "1e-2")
    control(page.radio, "grid").set_value(False).run()
    assert drawn_from(page, "lr") == ("1e-4", "1e-2", "log")
    control(page.number_input, "trials").set_value(7).run()
    control(page.radio, "grid").set_value(True).run()
    control(page.radio, "grid").set_value(False).run()
    assert planned(page).trials == 7


def test_grid_without_a_chosen_space_varies_one_setting(root: Path) -> None:
    page = train_page(preset="shapes", grid="true")
    assert control(page.multiselect, "space_names").value == ["lr"] and not page.error
    assert page.button(key="start_search").label == "Start 3 trials"


@pytest.mark.parametrize("name", space.searchable_settings(PRESETS["cifar"].settings))
def test_every_setting_has_controls_and_a_sentence_for_mistakes(root: Path, name: str) -> None:
    page = train_page(preset="cifar", space=f"{name}=")
    assert page.error[0].value.startswith(plain(setting_names.title(name)))


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("lr=1:x", "'x' is not one"),
        ("lr=:0.1", "one of them is empty"),
        ("depth=2:4.5", "two whole numbers"),
        ("lr=0.1:0.01", "Type the lower number first"),
        ("dropout=0:0.1:log", "begins above 0"),
        ("dropout=0:2", "2 is not possible"),
        ("depth=1:" + "9" * 400, "'9999"),
        ("optimizer=adamw", "at least two values"),
        ("optimizer=adamw,sgd", "'sgd' is not possible"),
        ("depth=[1],[2]", "is not possible"),
        ("depth=" + "[" * 1900, "at least two values"),
    ],
)
def test_invalid_space_is_reported_and_its_start_button_does_nothing(root: Path, written: str, words: str) -> None:
    page = train_page(preset="shapes", space=written, trials="3")
    (error,) = page.error
    assert words in error.value and setting_names.title(written.partition("=")[0]) in error.value
    assert page.button(key="start_search").label == "Start 3 trials"
    assert page.button(key="start_search").disabled
    assert page.button(key="start").label == "Start a single run"  # not taken for the search
    assert not page.button(key="start").disabled


def test_start_of_an_open_search_is_the_pages_primary_button(root: Path) -> None:
    page = train_page(preset="shapes")
    assert (page.button(key="start").label, page.button(key="start").proto.type) == ("Start", "primary")
    page.session_state["search_group"] = True
    page.run()
    assert [page.button(key=key).proto.type for key in ("start_search", "start")] == ["primary", "secondary"]


def test_epochs_of_the_trials_are_those_of_the_recipe(root: Path) -> None:
    page = train_page(preset="shapes")
    assert control(page.number_input, "search_epochs").value == 8
    control(page.number_input, "search_epochs").set_value(30).run()
    assert control(page.number_input, "set_epochs").value == 30
    assert "20 trials of up to 30 epochs" in texts(page)
    control(page.number_input, "set_epochs").set_value(5).run()
    assert control(page.number_input, "search_epochs").value == 5
    assert "epochs=5" in planned(page).set


@pytest.mark.parametrize("link", [{"trials": "0"}, {"trials": "x"}, {"reduction_factor": "1"}, {"space": "a" * 3000}])
def test_invalid_search_settings_of_a_link_are_dropped(root: Path, link: dict[str, str]) -> None:
    page = train_page(preset="shapes", **link)
    assert "not possible here" in page.warning[0].value
    assert planned(page).trials == 20


def test_cost_limit_follows_from_the_dry_run() -> None:
    values = dict(name="", config=tiny(epochs=8), space={"lr": "1e-4:1e-2:log"}, trials=10, min_epochs=1)
    plan = SearchPlan(**values)
    assert " ".join(forecast(plan, None)) == (
        "10 trials of up to 8 epochs. After epoch 1 and 3, only the best third of the trials that reached it continue; "
        "the others end early."
    )
    hour = DryRun(False, 1, 3600.0, 1.0, 1, "cpu")
    text = " ".join(forecast(plan, hour))
    assert "At most about 3 days" in text and "at least about 10 hours" in text


def test_start_launches_one_search_and_leads_to_it(root: Path) -> None:
    page = train_page(preset="shapes", epochs="1", limit="50", space="lr=1e-4:1e-2:log", trials="1")
    page.button(key="start_search").click().run()
    assert not page.exception and not page.error
    (search,) = searches.list_searches()
    assert "".join(page.query_params["search"]) == search.id
    assert (search.plan.space, search.plan.trials) == ({"lr": "1e-4:1e-2:log"}, 1)


# --- Page Runs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def search(root: Path) -> Path:
    """Four trials: two complete, one ended early, one interrupted."""
    folder = write_search(root)
    write_trial(folder, 0, [0.5, 0.6, 0.6, 0.6, 0.7, 0.7, 0.7, 0.7], lr=0.001, weight_decay=0.01)
    write_trial(folder, 1, [0.5, 0.6, 0.7, 0.8, 0.8, 0.9, 0.9, 0.9], lr=0.003, weight_decay=0.02)
    early = write_trial(folder, 2, [0.2, 0.3], outcome="stopped", lr=0.0001, weight_decay=0.03)
    (early / "pruned.json").write_text('{"reason": "Ended early by its search."}')
    write_trial(folder, 3, [0.4], outcome="", lr=0.009, weight_decay=0.04)
    return folder


def test_trials_are_listed_best_first_with_their_drawn_settings(search: Path) -> None:
    write_dead_run(search.parents[1])
    table = show(search=search.name).dataframe[0].value
    assert list(table["Run"]) == [f"Shapes, trial {number}" for number in (2, 1, 4, 3)]
    assert list(table["Status"]) == ["Finished", "Finished", "Interrupted", "Ended early"]
    assert list(table["Validation"]) == pytest.approx([90, 70, 40, 30])
    assert list(table[setting_names.title("lr")]) == [0.003, 0.001, 0.009, 0.0001]
    assert setting_names.title("lr") not in show().dataframe[0].value and len(show().dataframe[0].value) == 5


def test_trials_are_compared(search: Path) -> None:
    page = show(search=search.name)
    assert "4 random trials" in texts(page) and "1 ended early, 2 finished, 1 interrupted" in texts(page)
    labels = [line["name"] for line in option(page, "compared accuracy")["series"]]
    assert labels == [
        "lr 0.003, weight_decay 0.02",
        "lr 0.001, weight_decay 0.01",
        "lr 0.009, weight_decay 0.04",
        "lr 0.0001, weight_decay 0.03",
    ]


def test_only_the_best_of_many_trials_have_curves(root: Path) -> None:
    search = write_search(root, trials=20)
    for number in range(20):
        write_trial(search, number, [number / 20], lr=(number + 1) / 1000)
    page = show(search=search.name)
    curves = option(page, "compared accuracy")["series"]
    assert (len(curves), curves[0]["name"], len(page.dataframe[0].value)) == (16, "lr 0.02", 20)
    assert "Curves of the first 16 of 20 runs" in texts(page)


def test_values_of_several_types_are_one_column(root: Path) -> None:
    search = write_search(root, space={"patience": "1,null"}, grid=True)
    for number, patience in enumerate((1, None)):
        write_trial(search, number, [0.5], patience=patience)
    assert not show(search=search.name).exception


def test_form_of_another_search_has_its_own_number(root: Path) -> None:
    first = write_search(root, trials=30)
    second = write_search(root, "20261121-000000-other-0000", trials=5)
    page = show(search=first.name)
    page.query_params["search"] = second.name
    page.run()
    (box,) = (one for one in page.number_input if one.label == "Total trials")
    assert (box.min, box.value) == (5, 5)


def test_search_of_an_earlier_version_with_more_trials_than_are_started_now_is_continued(root: Path) -> None:
    search = write_search(root)
    plan = json.loads((search / "search.json").read_text())
    (search / "search.json").write_text(json.dumps(plan | {"trials": 500}))
    write_trial(search, 0, [0.5], "stopped")
    page = show(search=search.name)
    assert not page.exception and page.number_input(key=f"search trials {search.name}").value == 500


def test_run_leads_to_all_trials_of_its_search(search: Path) -> None:
    page = show(searches.find_search(search.name).trials()[1].id)
    page.button(key="family").click().run()
    assert "".join(page.query_params["search"]) == search.name and len(page.dataframe[0].value) == 4


def test_active_search_is_stopped_and_offers_more_trials(root: Path) -> None:
    folder = write_search(root, trials=3)
    trials = [write_trial(folder, number, [0.5], outcome="") for number in range(3)]
    with hold_run(trials[0]), hold_run(trials[1]), hold_run(trials[2]):
        page = show(search=folder.name)
        assert "More trials" in [popover.proto.popover.label for popover in page.get("popover")]
        assert not [button for button in page.button if button.key == "delete search"]
        page.button(key="stop all").click().run()
        assert all((trial / "stop").exists() for trial in trials)
    page = show(search=folder.name)
    assert "Resume search" in [popover.proto.popover.label for popover in page.get("popover")]


def test_deleted_search_leaves_its_runs(search: Path) -> None:
    page = show(search=search.name)
    page.button(key="delete search").click().run()
    assert not page.exception and not page.query_params
    assert searches.list_searches() == [] and len(registry.list_runs()) == 4
    page = show(search=search.name)
    assert len(page.dataframe[0].value) == 4 and "Runs that were started together" in texts(page)


def test_searches_are_opened_from_a_list(search: Path) -> None:
    page = show()
    assert "Shapes, 4 trials" in "".join(page.selectbox[0].options)
    page.selectbox[0].set_value(search.name).run()
    assert len(page.dataframe[0].value) == 4 and "4 random trials" in texts(page)


def test_users_who_may_not_train_can_only_view(search: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "may_train", lambda: False)
    page = show(search=search.name)
    assert "4 random trials" in texts(page)
    assert not {"stop all", "resume search", "delete search"} & {button.key for button in page.button}


@pytest.mark.parametrize("name", ["nowhere", "../..", "<b>"])
def test_missing_search_is_one_sentence(search: Path, name: str) -> None:
    assert "no such search" in texts(show(search=name))
