"""The command search: start, follow, stop and resume searches."""

import argparse
import time
from collections.abc import Sequence

from vit.cli.parser import parser
from vit.cli.training import merged_settings
from vit.confidence import CHOSE_EPOCH, figure
from vit.errors import InvalidConfig, UserError
from vit.training.engines.contract import HERE
from vit.training.loop.metrics import MetricsReader, Record, best_epoch, evaluations, final_test, pictures_of
from vit.training.loop.presets import PRESETS, train_config
from vit.training.runs.launch_checks import devices_of_setting
from vit.training.runs.registry import Run, list_runs
from vit.training.search import control, plan, space
from vit.training.search.control import Search
from vit.untrusted import counted

_POLL_SECONDS = 1.0  # [s]
_TRIALS = plan.SearchPlan.model_fields["trials"].default
_ENDS = {"finished": "finished", "pruned": "ended early", "failed": "failed", "stopped": "stopped"}


def run_search(options: argparse.Namespace) -> None:
    """Start, resume, stop, delete or list searches; a started search is followed until its trials end."""
    if options.again or options.stop or options.delete or options.list:
        _check_options(options)
    if options.list:
        every = list_runs()
        for search in control.list_searches():
            trials = search.trials(every).values()
            print(f"{search.id:<44} {len(trials)}/{search.plan.trials} trials: {control.summary(trials)}")
        return
    if options.stop:
        control.stop(options.stop)
        print(f"Stopping. {control.STOPPING}")
        return
    if options.delete:
        control.delete(options.delete)
        return
    search = control.resume(options.again, options.trials) if options.again else _start(options)
    size = f"{counted(search.plan.trials, 'trial')} of up to {counted(search.plan.epochs, 'epoch')}"
    print(f"{search.id}  {size}", flush=True)
    for name, text in search.plan.space.items():
        print(f"  {name}={text}", flush=True)
    if options.detach:
        print(f"Stop it with: python -m vit search --stop {search.id}")
        return
    _follow(search)


def _check_options(options: argparse.Namespace) -> None:
    """Refuse options that only a new search has, rather than ignore them."""
    usable = {"list", "stop", "delete", "again", *(("trials", "detach") if options.again else ())}
    defaults = vars(parser().parse_args(["search"]))
    ignored = [name for name, value in vars(options).items() if name not in usable and value != defaults.get(name)]
    if ignored:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in ignored)
        raise InvalidConfig(f"{names}: a search keeps the settings that it was started with. Leave that out.")


def _start(options: argparse.Namespace) -> Search:
    if not (options.preset or options.config or options.data):
        raise InvalidConfig(f"Name a --preset ({', '.join(PRESETS)}), a --config or at least --data.")
    if options.grid and not options.space:
        raise InvalidConfig("--grid trains every combination of the values in --space. Name some: --space depth=2,4,8")
    if options.grid and options.trials is not None:
        raise InvalidConfig("--grid trains every combination. Leave --trials out.")
    config = train_config(options.preset, **merged_settings(options))
    on = options.on or HERE
    return control.start(
        name=options.name or "",
        config=config,
        space=_space(options.space)
        or {name: str(dimension) for name, dimension in space.default_space(config).items()},
        grid=options.grid,
        trials=_TRIALS if options.trials is None else options.trials,
        seed=options.seed,
        min_epochs=options.min_epochs,
        reduction_factor=options.reduction_factor,
        on=on,
        devices=tuple(options.devices or devices_of_setting(config.device, on)),
        nodes=options.nodes,
        minutes=options.minutes,
    )


def _space(pairs: Sequence[str]) -> dict[str, str]:
    texts = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise InvalidConfig(f"--space takes KEY=LOW:HIGH, KEY=LOW:HIGH:log or KEY=VALUE,VALUE, not {pair!r}.")
        texts[name] = text
    return texts


def _follow(search: Search) -> None:
    """Print a line for each trial that ends, until all have; Ctrl-C stops the search, a second one detaches."""
    printed: set[int] = set()
    stopping, again = False, f"python -m vit search --resume {search.id}"
    while True:
        try:
            trials = search.trials()
            for number, run in trials.items():
                if run.status in _ENDS and number not in printed and not (stopping and run.status == "stopped"):
                    printed.add(number)
                    print(_line(search, number, run), flush=True)
            if not any(run.alive for run in trials.values()):
                break
            time.sleep(_POLL_SECONDS)
        except KeyboardInterrupt:
            if stopping:
                raise KeyboardInterrupt(f"The search is stopping. Continue it with: {again}") from None
            stopping = True
            control.stop(search.id)
            print(f"\nStopping. {control.STOPPING}", flush=True)
    print(f"Trials: {control.summary(trials.values())}.")
    _print_best(trials)
    if trials and all(run.status == "failed" for run in trials.values()):
        raise UserError(f"All trials failed, the first one so: {trials[min(trials)].reason}")
    if any(run.status in ("stopped", "interrupted") for run in trials.values()):
        raise KeyboardInterrupt(f"Not all trials have ended. Continue with: {again}")


def _line(search: Search, number: int, run: Run) -> str:
    records = _records(run)
    best, epochs = best_epoch(records), evaluations(records)
    accuracy = figure(best["accuracy"], pictures_of(records, "validation")) if best else "-"
    drawn = space.format_settings({name: run.config.get(name) for name in search.plan.space})
    width = len(str(search.plan.trials))
    last = epochs[-1]["epoch"] if epochs else 0
    trained = counted(last, "epoch")
    return f"{number + 1:>{width}}/{search.plan.trials} {accuracy:>22}  {_ENDS[run.status]:<11} {trained:>10}  {drawn}"


def _print_best(trials: dict[int, Run]) -> None:
    """Print the trial with the highest validation accuracy, and where its model and settings are."""
    reached = [(best["accuracy"], number) for number, run in trials.items() if (best := best_epoch(_records(run)))]
    if not reached:
        return
    accuracy, number = max(reached, key=lambda one: (one[0], -one[1]))
    run = trials[number]
    records = _records(run)
    right = figure(accuracy, pictures_of(records, "validation"), "validation pictures right")
    print(f"Best: trial {number + 1}, {right}, {CHOSE_EPOCH} and the trial.")
    if test := final_test(records):
        print(f"{figure(test['accuracy'], test.get('pictures'), 'test pictures right')}.")
    print(f"The model: {run.folder / 'checkpoints' / 'best'}")
    print(f"Its settings: python -m vit train --config {run.folder / 'config.json'}")


def _records(run: Run) -> dict[str, list[Record]]:
    reader = MetricsReader(run.folder / "metrics.jsonl")
    reader.update()
    return reader.records
