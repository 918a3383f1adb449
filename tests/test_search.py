"""Search: which settings the trials get, which trials end early, and how a driver continues another's search."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Command, check_mistake
from short_runs import tiny
from written_searches import end, write_search, write_trial

from vit.errors import InvalidConfig, UserError
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, train_config
from vit.training.loop.run_folder import forget_attempt, hold_run
from vit.training.runs import control as runs_control
from vit.training.runs import registry
from vit.training.search import control, space
from vit.training.search.driver import Driver
from vit.training.search.plan import default_name, make_plan
from vit.training.search.space import Choices, Range, default_dimension, default_space, draw, parse, searchable_settings

SPACE = {"lr": parse("lr", "1e-4:1e-2:log"), "depth": parse("depth", "1:4"), "flip": parse("flip", "true,false")}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_CLUSTERS", str(tmp_path / "none.toml"))
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


# --- The space ----------------------------------------------------------------------------------------------------


def test_same_seed_draws_the_same_trials_and_another_one_others() -> None:
    assert draw(SPACE, 3, 12) == draw(SPACE, 3, 12)
    assert draw(SPACE, 3, 12) != draw(SPACE, 4, 12)


def test_more_trials_leave_the_first_ones_unchanged() -> None:
    assert draw(SPACE, 3, 20)[:12] == draw(SPACE, 3, 12)


def test_draws_lie_in_their_range_without_duplicates() -> None:
    drawn = draw(SPACE, 0, 60)
    assert all(1e-4 <= one["lr"] <= 1e-2 and one["depth"] in (1, 2, 3, 4) for one in drawn)
    assert len({json.dumps(one) for one in drawn}) == 60
    below = sum(one["lr"] < 1e-3 for one in drawn)
    assert 15 < below < 45  # half of them on the logarithmic scale; else a tenth


def test_space_with_fewer_combinations_than_trials_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="hardly more than 2 combinations"):
        draw({"flip": parse("flip", "true,false")}, 0, 3)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("lr", "1e-2:1e-4", "the lower one first"),
        ("lr", "0:1:log", "begins above 0"),
        ("lr", "1e-4:1e-2:lin", "is no range"),
        ("depth", "1.5:3", "no range of whole numbers"),
        ("optimizer", "a:b", "has no range"),
        ("lr", "0.1", "nothing to search"),
        ("device", "cpu,cuda", "the same in all trials"),
        ("nonsense", "1,2", "no setting 'nonsense'"),
    ],
)
def test_invalid_range_is_refused_in_one_sentence(name: str, text: str, words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        parse(name, text)


@pytest.mark.parametrize("preset", PRESETS)
def test_proposed_space_survives_its_text_and_makes_runs(preset: str) -> None:
    config = train_config(preset, patch_size=None)
    for name in searchable_settings(config.model_dump()):
        if dimension := default_dimension(config, name):
            assert parse(name, str(dimension)) == dimension
    make_plan(name="all", config=config, space={name: str(one) for name, one in default_space(config).items()})


def test_settings_without_effect_are_neither_proposed_nor_accepted() -> None:
    adamw = train_config("mnist")
    assert "muon_lr" not in default_space(adamw) and "layer_decay" not in default_space(adamw)
    assert "muon_lr" in default_space(train_config("shapes"))
    with pytest.raises(InvalidConfig, match="muon_lr changes nothing"):
        make_plan(name="", config=adamw, space={"muon_lr": "0.01:0.1"})
    assert make_plan(name="", config=adamw, space={"muon_lr": "0.01:0.1", "optimizer": "adamw,muon"})


def test_search_from_a_checkpoint_uses_the_settings_of_adaptation() -> None:
    config = TrainConfig(data="shapes", init_from="cifar10", lora_rank=4)
    assert {"lr", "weight_decay", "layer_decay", "lora_rank"} <= set(default_space(config))
    assert "depth" not in searchable_settings(config.model_dump())


def test_trial_that_would_make_no_run_is_refused_before_any_starts() -> None:
    with pytest.raises(InvalidConfig, match="heads 3 does not divide"):
        make_plan(name="", config=tiny(), space={"heads": "2,3"}, trials=2)


def test_values_and_ranges_are_distinguished() -> None:
    assert parse("mixup", "0, 0.4") == Choices((0, 0.4))
    assert parse("freeze", "last:2,last:4") == Choices(("last:2", "last:4"))
    assert parse("dropout", "0:0.3") == Range(0.0, 0.3)


def test_no_trial_is_judged_during_warm_up() -> None:
    plan = make_plan(name="", config=tiny(epochs=20, warmup_epochs=5), space={"lr": "1e-4:1e-2:log"}, trials=2)
    assert plan.rungs() == [5, 15]


def test_grid_has_every_combination_trained_to_the_end() -> None:
    plan = make_plan(name="", config=tiny(epochs=8), space={"depth": "1,2", "lr": "1e-3,1e-2,0.1"}, grid=True)
    assert plan.trials == 6 and plan.rungs() == []
    assert {(one["depth"], one["lr"]) for one in plan.draw()} == {(d, lr) for d in (1, 2) for lr in (1e-3, 1e-2, 0.1)}
    assert make_plan(**plan.model_dump() | {"min_epochs": 2}).rungs() == [2, 6], "unless a comparison is asked for"


def test_trials_may_differ_in_length_and_seed() -> None:
    plan = make_plan(name="", config=tiny(epochs=2), space={"epochs": "3,9", "seed": "0,1"}, grid=True, min_epochs=1)
    assert [plan.trial_config(one).epochs for one in plan.draw()] == [3, 3, 9, 9]
    assert plan.epochs == 9 and plan.rungs() == [1, 3]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"lr": "1e-4:1e-2"}, "lr: a range has no combinations"),
        ({"seed": ",".join(map(str, range(1001)))}, "1,001 combinations; a search has at most 1,000"),
        ({"heads": "1,3"}, "heads 3 does not divide"),
    ],
)
def test_impossible_grid_is_refused_in_one_sentence(texts: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        make_plan(name="", config=tiny(), space=texts, grid=True)


# --- The driver ---------------------------------------------------------------------------------------------------


def status(run: Path) -> tuple[str, str]:
    found = registry.find_run(run.name)
    return found.status, found.reason


def ended(driver: Driver) -> dict[str, int]:
    return {how: driver.study.ended(how) for how in ("COMPLETE", "PRUNED", "FAIL")}


def test_worse_trials_are_ended_early_and_listed_so(root: Path) -> None:
    search = write_search(root)
    good = [write_trial(search, i, [0.5, 0.6 + i / 100, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8]) for i in range(3)]
    bad = write_trial(search, 3, [0.1, 0.2], outcome="")
    driver = Driver(search)
    with hold_run(bad):
        for _ in range(2):  # the first step starts them, the second compares
            assert driver.step()
        assert (bad / "stop").exists()
        assert status(bad)[0] == "stopping"
    end(bad, "stopped", "Stopped after 2 epochs.")
    assert status(bad)[0] == "pruned"
    assert "20.0% after 2 epochs is not among the best 1/2" in status(bad)[1]
    assert not driver.step()
    assert ended(driver) == {"COMPLETE": 3, "PRUNED": 1, "FAIL": 0}
    assert [status(run)[0] for run in good] == ["finished"] * 3
    forget_attempt(bad)  # cleared at the start of every attempt
    end(bad, "stopped", "Stopped after 3 epochs.")
    assert status(bad) == ("stopped", "Stopped after 3 epochs.")


def test_no_trial_ends_before_the_first_comparison(root: Path) -> None:
    search = write_search(root, trials=2)
    write_trial(search, 0, [0.9] * 8)
    bad = write_trial(search, 1, [0.1], outcome="")
    driver = Driver(search)
    with hold_run(bad):
        for _ in range(3):
            driver.step()
        assert not (bad / "stop").exists()


def test_trial_that_ends_before_a_comparison_is_complete(root: Path) -> None:
    search = write_search(root, trials=2)
    write_trial(search, 0, [0.9] * 8)
    bad = write_trial(search, 1, [0.1] * 8)
    driver = Driver(search)
    while driver.step():
        pass
    assert ended(driver)["COMPLETE"] == 2
    assert status(bad)[0] == "finished"


def test_trial_stopped_by_a_user_is_not_taken_for_one_ended_early(root: Path) -> None:
    search = write_search(root, trials=2)
    write_trial(search, 0, [0.9] * 8)
    run = write_trial(search, 1, [0.5], outcome="")
    driver = Driver(search)
    with hold_run(run):
        driver.step()
        driver.step()
    end(run, "stopped", "Stopped after 1 epochs.")
    while driver.step():
        pass
    assert status(run)[0] == "stopped"
    assert ended(driver) == {"COMPLETE": 1, "PRUNED": 0, "FAIL": 1}


def test_search_continues_after_a_trial_was_deleted(root: Path) -> None:
    search = write_search(root, trials=2)
    write_trial(search, 0, [0.9] * 8)
    gone = write_trial(search, 1, [0.5], outcome="")
    driver = Driver(search)
    with hold_run(gone):
        driver.step()
    gone.rename(root.parent / "elsewhere")
    while driver.step():
        pass
    assert ended(driver)["FAIL"] == 1


def test_search_whose_first_trials_all_fail_ends_with_the_reason(root: Path) -> None:
    search = write_search(root)
    for number in range(4):
        end(write_trial(search, number, [], outcome="failed"), "failed", "There is no folder x.")
    driver = Driver(search)
    with pytest.raises(UserError, match=r"trials failed, the last one so: There is no folder x"):
        while driver.step():
            pass


def test_another_driver_continues_after_a_kill_in_the_middle_of_a_line(root: Path) -> None:
    search = write_search(root, at_once=2)
    runs = [write_trial(search, number, [0.5, 0.5], outcome="") for number in range(4)]
    with hold_run(runs[0]), hold_run(runs[1]), hold_run(runs[2]), hold_run(runs[3]):
        first = Driver(search)
        first.step()
        first.step()
        with (search / "study.jsonl").open("a") as journal:
            journal.write('{"op_code":4,"trial_')
        end(runs[0], "finished")
        second = Driver(search)
        assert (second.study.begun, second.study.running) == (2, [0, 1])
        assert [second.study.run_of(number) for number in (0, 1)] == [runs[0].name, runs[1].name]
        second.step()
        assert second.study.begun == 2  # the first trial ends only when its processes are gone
    assert len(registry.list_runs()) == 4


def test_driver_killed_before_recording_a_launch_finds_the_run_and_starts_no_other(root: Path) -> None:
    search = write_search(root, trials=1)
    first = Driver(search)
    number = first.study.begin(first.drawn[0])
    run = write_trial(search, number, [0.5] * 8)
    second = Driver(search)
    while second.step():
        pass
    assert second.study.run_of(0) == run.name
    assert ended(second)["COMPLETE"] == 1
    assert [one.id for one in registry.list_runs()] == [run.name]


@pytest.mark.parametrize(("name", "expected"), [("", "ViT 2x16/8, 16 px, trial 2"), ("Sizes", "Sizes, trial 2")])
def test_trial_is_named_after_its_own_model(
    root: Path, name: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(depth=1, dim=16, heads=2, patch_size=8, image_size=16)
    search = write_search(root, name=name or default_name(config), config=config, space={"depth": "1,2"}, grid=True)
    runs = [write_trial(search, number, [0.5] * 8) for number in range(2)]
    names: list[str] = []

    def launch(*_: object, **launched: Any) -> registry.Run:
        names.append(launched["name"])
        return registry.find_run(runs[len(names) - 1].name)

    monkeypatch.setattr(runs_control, "launch", launch)
    Driver(search).step()
    assert names[1] == expected


@pytest.mark.parametrize("key", ["search", "sweep"])
def test_trials_of_earlier_versions_belong_to_their_search(root: Path, key: str) -> None:
    search = write_search(root)
    about = write_trial(search, 0, [0.5]) / "about.json"
    about.write_text(about.read_text().replace('"search"', f'"{key}"'))
    assert list(control.find_search(search.name).trials()) == [0]


# --- Folders ------------------------------------------------------------------------------------------------------


def test_lock_decides_whether_a_search_is_running(root: Path) -> None:
    search = write_search(root)
    assert control.find_search(search.name).status == "interrupted"
    with hold_run(search):
        assert control.find_search(search.name).status == "searching"
        control.stop(search.name)
        assert control.find_search(search.name).status == "stopping"
        with pytest.raises(UserError, match="already running"):
            control.resume(search.name)
    (search / "outcome.json").write_text('{"outcome": "finished", "reason": "Of 4 trials"}')
    assert control.find_search(search.name).status == "finished"
    with pytest.raises(UserError, match="Give it more of them"):
        control.resume(search.name)


def test_finished_grid_has_no_more_trials(root: Path) -> None:
    search = write_search(root, space={"depth": "1,2"}, grid=True)
    end(search, "finished")
    with pytest.raises(UserError, match=r"has done all its trials\.$"):
        control.resume(search.name)
    with pytest.raises(InvalidConfig, match="trains all 2 combinations"):
        control.resume(search.name, 5)


@pytest.mark.parametrize(
    "content", ["", "{}", "[1]", '{"name": 1}', '{"name": "a", "config": {}, "space": {"lr": "x"}}']
)
def test_damaged_search_is_reported_in_one_sentence_and_hides_no_other(root: Path, content: str) -> None:
    sound, damaged = write_search(root), write_search(root, "20261121-000001-shapes-0000")
    (damaged / "search.json").write_text(content)
    with pytest.raises(UserError, match="cannot be read"):
        control.find_search(damaged.name)
    assert [search.id for search in control.list_searches()] == [sound.name]


@pytest.mark.parametrize("search_id", ["", "..", "../x", "nowhere", "A B"])
def test_only_existing_searches_are_found(root: Path, search_id: str) -> None:
    write_search(root)
    with pytest.raises(UserError, match="no such search"):
        control.find_search(search_id)


# --- The command line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "Name a --preset"),
        (["--data", "shapes", "--space", "lr"], "--space takes KEY"),
        (["--data", "shapes", "--space", "lr=1:2:3"], "is no range"),
        (["--data", "shapes", "--space", "lr=1e-4:1e-2", "--trials", "0"], "trials must be at least "),
        (["--data", "shapes", "--space", "muon_lr=1e-4:1e-2"], "changes nothing"),
        (["--data", "shapes", "--reduction-factor", "0"], "reduction_factor must be at least 2"),
        (["--data", "shapes", "--min-epochs", "0"], "min_epochs must be at least 1"),
        (["--data", "shapes", "--grid"], "Name some: --space depth=2,4,8"),
        (["--data", "shapes", "--grid", "--space", "depth=2,4", "--trials", "3"], "Leave --trials out"),
        (["--data", "shapes", "--grid", "--space", "lr=1e-4:1e-2"], "a range has no combinations"),
        (["--resume", "nowhere", "--at-once", "4", "--set", "epochs=50"], "--set, --at-once: a search keeps"),
        (["--list", "--trials", "3"], "--trials: a search keeps"),
        (["--stop", "nowhere"], "no such search"),
        (["--resume", "nowhere"], "no such search"),
    ],
)
def test_mistake_is_one_line_and_starts_nothing(root: Path, command: Command, options: list[str], words: str) -> None:
    check_mistake(command("search", *options), words)
    assert list(root.iterdir()) == []


def test_searches_are_listed(root: Path, command: Command) -> None:
    search = write_search(root)
    write_trial(search, 0, [0.5] * 8)
    result = command("search", "--list")
    assert result.status == 0
    assert search.name in result.out and "interrupted" in result.out and "1/4 trials" in result.out


def test_runs_ended_early_are_named(root: Path, command: Command) -> None:
    run = write_trial(write_search(root), 0, [0.5, 0.4], outcome="stopped")
    (run / "pruned.json").write_text('{"reason": "Ended early by its search."}')
    assert "pruned" in command("runs").out and "Ended early by its search." in command("runs").out


def test_text_of_a_trial_survives_parsing() -> None:
    drawn: dict[str, Any] = draw(SPACE, 0, 1)[0]
    words = dict(part.split(" ") for part in space.format_settings(drawn).split(", "))
    assert {name: json.loads(text) for name, text in words.items()} == drawn
