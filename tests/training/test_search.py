"""Search: which settings the trials get, which trials end early, how searches are stopped and extended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Command, check_mistake
from short_runs import TRAINS, temporary_runs_folder, tiny, until
from written_searches import write_search, write_trial

from vit.errors import InvalidConfig, UserError
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, train_config
from vit.training.loop.run_folder import hold_run
from vit.training.loop.train import train
from vit.training.loop.trial_pruning import reason_to_end
from vit.training.runs import registry
from vit.training.runs.launch_checks import Limits, check_room
from vit.training.search import control, space
from vit.training.search.plan import make_plan
from vit.training.search.space import Choices, Range, default_dimension, default_space, draw, parse, searchable_settings

SPACE = {"lr": parse("lr", "1e-4:1e-2:log"), "depth": parse("depth", "1:4"), "flip": parse("flip", "true,false")}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("VIT_CLUSTERS", str(tmp_path / "none.toml"))
    with temporary_runs_folder(tmp_path / "runs") as folder:
        yield folder


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
    with pytest.raises(InvalidConfig, match="at most 200 trials, not 201"):
        make_plan(name="", config=tiny(), space={"lr": "1e-4:1e-2"}, trials=201)


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
        ({"seed": ",".join(map(str, range(1001)))}, "1,001 combinations; a search has at most 200"),
        ({"heads": "1,3"}, "heads 3 does not divide"),
    ],
)
def test_impossible_grid_is_refused_in_one_sentence(texts: dict[str, str], words: str) -> None:
    with pytest.raises(InvalidConfig, match=words):
        make_plan(name="", config=tiny(), space=texts, grid=True)


# --- Trials -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch", "before", "accuracy", "ends"),
    [
        (2, 1, 0.2, True),
        (2, 1, 0.65, False),
        (1, 0, 0.2, False),  # before the first comparison
        (3, 2, 0.2, False),  # between two comparisons
        (5, 3, 0.2, True),  # validated only after the epoch of comparison
        (4, 3, 0.9, False),
    ],
)
def test_trial_ends_itself_when_it_is_behind_at_a_comparison(
    root: Path, epoch: int, before: int, accuracy: float, ends: bool
) -> None:
    search = write_search(root)
    for number in range(3):
        write_trial(search, number, [0.5, 0.6 + number / 100, 0.7, 0.7, 0.8, 0.8, 0.8, 0.8])
    run = write_trial(search, 3, [0.1], outcome="")
    (root / "20261121-000009-other-aaaa").mkdir()
    reason = reason_to_end(run, epoch, before, accuracy, 40)
    assert bool(reason) == ends
    if epoch == 2 and ends:
        assert "8 of 40 (10 to 35 %) after 2 epochs is not among the best 1/2 of the trials" in reason
    about = json.loads((run / "about.json").read_text())
    for halving in (None, {"first": 2, "factor": 1}, {"first": "2"}, [2, 2]):
        (run / "about.json").write_text(json.dumps(about | {"halving": halving}))
        assert not reason_to_end(run, epoch, before, accuracy, 40)


def test_siblings_that_are_damaged_or_behind_do_not_count(root: Path) -> None:
    search = write_search(root)
    run = write_trial(search, 0, [0.1, 0.1], outcome="")
    write_trial(search, 1, [0.9], outcome="")
    (write_trial(search, 2, [0.9, 0.9]) / "metrics.jsonl").write_text("{}\nx")
    write_trial(write_search(root, "20261121-000001-other-0000"), 3, [0.9, 0.9])
    assert not reason_to_end(run, 2, 1, 0.1, 40)


@pytest.mark.slow
def test_trainer_ends_a_trial_that_is_behind_which_can_be_resumed(root: Path) -> None:
    search = write_search(root)
    write_trial(search, 0, [1.0, 1.0])
    run = write_trial(search, 1, [], outcome="")
    (run / "metrics.jsonl").unlink()
    train(tiny(epochs=3, limit=16), run, resume=True)
    assert registry.find_run(run.name).status == "pruned"
    assert "after 2 epochs is not among the best 1/2" in registry.find_run(run.name).reason
    train(tiny(epochs=3, limit=16), run, resume=True)  # compared at each epoch once
    assert registry.find_run(run.name).status == "finished"


# --- Searches -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["search", "sweep"])
def test_searches_of_earlier_versions_have_their_trials(root: Path, key: str) -> None:
    search = write_search(root)
    plan = json.loads((search / "search.json").read_text())
    plan |= {"at_once": 2, "share": True, "runs_per_person": 4, "free_bytes": 1}
    (search / "search.json").write_text(json.dumps(plan))
    (search / "study.jsonl").touch()
    about = write_trial(search, 0, [0.5]) / "about.json"
    about.write_text(about.read_text().replace('"search"', f'"{key}"'))
    assert list(control.find_search(search.name).trials()) == [0]


@pytest.mark.parametrize(
    ("numbers", "outcome", "expected"),
    [
        ([0, 1, 2, 3], "finished", False),
        ([0, 1, 3], "finished", False),  # trial 2 was deleted
        ([0, 1, 2], "finished", True),
        ([0, 1, 2, 3], "stopped", True),
        ([0, 1, 2, 3], "failed", True),
        ([0, 1, 2, 3], "", True),
        ([], "", True),
    ],
)
def test_search_has_unfinished_trials(root: Path, numbers: list[int], outcome: str, expected: bool) -> None:
    folder = write_search(root)
    for number in numbers:
        write_trial(folder, number, [0.5], outcome=outcome)
    search = control.find_search(folder.name)
    assert control.unfinished(search, search.trials().values()) == expected


@pytest.mark.parametrize(
    ("values", "trials", "words"),
    [
        ({"trials": 2}, None, "done or under way. Give it more of them"),
        ({"trials": 2}, 1, "has 2 trials, so it cannot have 1"),
        ({"space": {"depth": "1,2"}, "grid": True}, None, r"done or under way\.$"),
        ({"space": {"depth": "1,2"}, "grid": True}, 5, "trains all 2 combinations"),
        ({"space": {"depth": "1,2"}, "trials": 2}, 5, "hardly more than 2 combinations"),
    ],
)
def test_complete_search_is_resumed_with_more_trials_only(
    root: Path, values: dict[str, Any], trials: int | None, words: str
) -> None:
    search = write_search(root, **values)
    for number in range(2):
        write_trial(search, number, [0.5])
    with pytest.raises(UserError, match=words):
        control.resume(search.name, trials)
    assert len(registry.list_runs()) == 2


def test_search_is_deleted_without_its_runs_when_no_trial_is_alive(root: Path) -> None:
    search = write_search(root)
    run = write_trial(search, 0, [0.5], outcome="")
    with hold_run(run), pytest.raises(UserError, match="Stop it first"):
        control.delete(search.name)
    with pytest.raises(UserError, match="No trial of this search is waiting or running"):
        control.stop(search.name)
    control.delete(search.name)
    assert not control.list_searches() and [run.id for run in registry.list_runs()] == [run.name]


@pytest.mark.parametrize(("search", "refused"), [(None, True), ("", True), ("s", False)])
def test_trials_of_a_search_count_as_one_run_of_a_person(root: Path, search: str | None, refused: bool) -> None:
    folder = write_search(root, "s")
    runs = [write_trial(folder, number, [], outcome="") for number in range(2)]
    with hold_run(runs[0]), hold_run(runs[1]):
        for limit, full in ((1, refused), (3, False)):
            try:
                check_room(root, registry.list_runs(), "", Limits(limit, 0), search=search)
                assert not full
            except InvalidConfig:
                assert full
        with pytest.raises(InvalidConfig, match="fewer than these 3"):
            check_room(root, registry.list_runs(), "", Limits(3, 0), 3)


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


@pytest.mark.exhaustive
@pytest.mark.slow
def test_search_is_stopped_resumed_and_extended_without_repeating_a_trial(root: Path, command: Command) -> None:
    values = dict(config=tiny(epochs=3, limit=160), space={"lr": "1e-4:1e-2:log"}, trials=3, min_epochs=1)
    search = control.start(**values, nonce="form")
    assert control.start(**values, nonce="form").id == search.id and len(registry.list_runs()) == 3
    until(lambda: any(run.status in TRAINS for run in search.trials().values()), "a trial")
    assert command("search", "--stop", search.id).status == 0
    until(lambda: not any(run.alive for run in search.trials().values()), "its end")
    assert "stopped" in control.summary(search.trials().values())
    result = command("search", "--resume", search.id, "--trials", "4")
    assert result.status == 0, result.err
    trials = search.trials()
    assert list(trials) == [0, 1, 2, 3] and len(registry.list_runs()) == 4
    assert {run.status for run in trials.values()} <= {"finished", "pruned"}
    drawn = control.find_search(search.id).plan.draw()
    assert [run.config["lr"] for run in trials.values()] == [one["lr"] for one in drawn]
    assert all(f"{number}/4 " in result.out for number in trials if number) and "Best: trial" in result.out


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
        (["--resume", "nowhere", "--nodes", "4", "--set", "epochs=50"], "--set, --nodes: a search keeps"),
        (["--delete", "nowhere"], "no such search"),
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
    assert search.name in result.out and "1/4 trials: 1 finished" in result.out


def test_runs_ended_early_are_named(root: Path, command: Command) -> None:
    run = write_trial(write_search(root), 0, [0.5, 0.4], outcome="stopped")
    (run / "pruned.json").write_text('{"reason": "Ended early by its search."}')
    assert "pruned" in command("runs").out and "Ended early by its search." in command("runs").out


def test_text_of_a_trial_survives_parsing() -> None:
    drawn: dict[str, Any] = draw(SPACE, 0, 1)[0]
    words = dict(part.split(" ") for part in space.format_settings(drawn).split(", "))
    assert {name: json.loads(text) for name, text in words.items()} == drawn
