"""The ladder on page Train: accuracy of ways to adapt a checkpoint to other classes, the cheapest first."""

import html
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import streamlit as st

from pages.links import navigation, session
from pages.links.page_links import ExploreLink, RunsLink, best_of_run
from pages.server import access, background
from pages.shared import datasets
from pages.shared.escape import with_code
from pages.training import run_records
from pages.training.state import Train
from pages.training.train_form import compute_target
from pages.training.train_form.compute_target import ComputeTarget
from vit import confidence
from vit.errors import UserError
from vit.training.engines.contract import HERE
from vit.training.loop import dry_run
from vit.training.loop.config import TrainConfig
from vit.training.loop.ladder import RUNGS, RungResult, recommended, rung_config
from vit.training.loop.metrics import best_epoch
from vit.training.loop.presets import checkpoint_name
from vit.training.runs.registry import Run
from vit.view.chart_colours import GREY, STRONG

_IN_A_SENTENCE = {
    "neighbours": "nearest neighbours",
    "probe": "the linear probe",
    "lora": "LoRA",
    "last": "the last two blocks",
    "all": "everything",
}
PAUSE = 2.0  # interval between updates [s]
LOOKING = "Looking at every picture once…"
# Settings in which a run may differ and still belong to the same rung.
_ELSEWHERE = {"device", "data_root", "workers", "compile", "precision", "seed", "track"}


class Row(NamedTuple):
    """A rung on the page.

    Attributes:
        result: validation accuracy; None before the first result.
        run: newest run of this rung, if any.
    """

    name: str
    result: RungResult | None
    run: Run | None


def show(config: TrainConfig, target: ComputeTarget) -> None:
    """Draw every rung with its accuracy, and the possible next steps."""
    st.header("Ladder", anchor=False, help=_HELP)
    state = session.of(Train)
    pictures = config.data, datasets.digest(config.data), config.limit, config.image_size
    key = "without training", config.init_from, *pictures
    if state.ladder != key and (other := background.find(state.ladder)) and not other.done:
        background.forget(state.ladder)  # the form has changed
    # A job, not a part of this script run: a click on *Start* would end that, and begin it again before the button.
    job = background.find(key)
    running = job is not None and not job.done
    alive = any(row.run and row.run.alive for row in rows_of(config, {}))

    # Only this fragment is updated when runs end. A rerun of the page could change heights above it, and buttons would
    # move away from the pointer.
    @st.fragment(run_every=PAUSE if alive or running else None)
    def draw() -> None:
        results = _offer_looking(config, target, key)
        rows = rows_of(config, results)
        known = {row.name: row.result for row in rows if row.result}
        best = recommended(known.items()) if known else ""
        st.html(_STYLE + "".join(_row(row, row.name == best) for row in rows))
        # Buttons come above text of varying length, so that they do not move away from the pointer.
        _offer(config, target, rows)
        if best:
            with st.container(key="ladder_sentence"):
                under_way = [row.name for row in rows if row.run and row.run.alive]
                complete = not under_way and all(row.result or row.run for row in rows)
                st.markdown(sentence(known, best, under_way, complete))

    draw()


def _offer_looking(config: TrainConfig, target: ComputeTarget, key: Hashable) -> Mapping[str, RungResult]:
    """Draw the button, the progress or the error of the rungs without training, and return their results."""
    job = background.find(key)
    if job and job.done:
        try:
            return job.result()
        except UserError as error:  # stays until the next attempt, while the fragment is updated
            st.error(with_code(str(error)))
        except Exception:
            background.forget(key)
            raise
    elif job:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.progress(job.share, LOOKING)
            st.button("Stop", key="ladder_stop", on_click=background.forget, args=(key,))
        return {}
    wanted = st.button(
        "Try without training",
        key="ladder_look",
        help="Nearest neighbours and a linear probe, with one forward pass for every picture.",
    )
    if wanted and access.may_train():  # fragments run without the page's own check
        session.of(Train).ladder = key
        background.forget(key)  # the attempt that failed
        background.start(key, lambda tick: _without_training(config, target, tick))
        st.rerun()  # the whole page, so that the fragment is updated until the job ends
    return {}


def rows_of(config: TrainConfig, without_training: Mapping[str, RungResult]) -> list[Row]:
    """Return all rungs with their results.

    Args:
        config: config of the form; settings that rungs define are ignored.
        without_training: results of rungs without training.
    """
    planned = {
        name: _settings_of(rung_config(config, name)) for name, rung in RUNGS.items() if rung.settings is not None
    }
    newest: dict[str, Run] = {}
    for run in run_records.every_run():  # newest first
        if run.config.get("init_from"):
            values = _distinguishing(run.config)
            for name, settings in planned.items():
                if values == settings:
                    newest.setdefault(name, run)
    return [Row(name, _reached_by(newest.get(name)) or without_training.get(name), newest.get(name)) for name in RUNGS]


def _reached_by(run: Run | None) -> RungResult | None:
    """Return the best validation result of a run so far; None before its first evaluation."""
    if run is None:
        return None
    records = run_records.figures(run).records
    accuracy, start, best = run_records.best_accuracy(run), records.get("start"), best_epoch(records)
    pictures = start[-1].get("validation_pictures") if start else None
    if accuracy is None or best is None or not isinstance(pictures, int) or not pictures:
        return None
    return RungResult(accuracy, pictures, best.get("loss"))


def _settings_of(config: TrainConfig) -> tuple[tuple[str, object], ...]:
    return _distinguishing(config.model_dump())


def _distinguishing(values: Mapping[str, object]) -> tuple[tuple[str, object], ...]:
    """Return all settings that distinguish runs, in order; missing ones have their defaults."""
    fields = TrainConfig.model_fields
    return tuple((name, values.get(name, fields[name].default)) for name in fields if name not in _ELSEWHERE)


def _without_training(
    config: TrainConfig, target: ComputeTarget, tick: Callable[[float], object]
) -> dict[str, RungResult]:
    device = target.devices[0] if target.on == HERE and target.devices else "cpu"
    with closing(dry_run.without_training(config, device)) as updates:
        for update in updates:
            if isinstance(update, dict):
                return update
            tick(update)
    raise AssertionError("The last update is the result.")


def sentence(known: Mapping[str, RungResult], best: str, under_way: Sequence[str] = (), complete: bool = True) -> str:
    """Return a sentence that recommends a rung.

    Args:
        known: results of rungs so far.
        best: the recommended rung.
        under_way: rungs with unfinished runs.
        complete: every rung was tried, and none is under way.

    >>> sentence({"probe": RungResult(0.9, 200), "lora": RungResult(0.94, 200)}, "lora")[14:]
    '188 of 200 validation pictures right (90 to 97 %), 4 points above the linear probe. They also chose its epoch.'
    >>> sentence({"lora": RungResult(0.494, 500, 1.42), "all": RungResult(0.49, 500, 1.4)}, "all")[71:]
    'So few pictures cannot tell it apart from LoRA, whose loss is higher. They also chose its epoch.'
    >>> sentence({"probe": RungResult(0.9, 200)}, "probe", ["lora"], complete=False)
    '**Best so far: the linear probe**, 180 of 200 validation pictures right (85 to 93 %). Still under way: LoRA.'
    """
    result = known[best]
    title = _IN_A_SENTENCE[best]
    text = f"**Best so far: {title}**, " if not complete else f"**Use {title}**: "
    text += confidence.figure(result.accuracy, result.pictures, "validation pictures right")
    cheaper = [name for name in RUNGS if name in known and list(RUNGS).index(name) < list(RUNGS).index(best)]
    higher = [RUNGS[name].title for name, one in known.items() if one.correct > result.correct]
    if "probe" in known and result.correct > known["probe"].correct and best != "neighbours":
        gain = 100 * (result.accuracy - known["probe"].accuracy)
        text += f", {gain:.{confidence.decimals(result.pictures)}f} points above the linear probe"
    elif not higher and len(known) > len(cheaper) + 1 and complete:
        text += ". Training more parameters does not improve on it"
    if higher:
        text += f". So few pictures cannot tell it apart from {' and '.join(higher)}, whose loss is higher"
    if best not in ("neighbours", "probe"):
        text += ". They also chose its epoch"
    if not under_way:
        return f"{text}."
    return f"{text}. Still under way: {', '.join(_IN_A_SENTENCE[name] for name in under_way)}."


def _row(row: Row, best: bool) -> str:
    rung, result = RUNGS[row.name], row.result
    value, whisker, width = "", "", 0.0
    if result:
        low, high = result.interval
        value, width = confidence.share(result.accuracy, result.pictures), 100 * result.accuracy
        whisker = f'<u style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></u>'
        right = confidence.figure(result.accuracy, result.pictures, "validation pictures right")
        tip = f"{right}, with 95% confidence"
    else:
        tip = rung.sentence
    state = _state(row)
    return (
        f'<div class="rung{" best" * best}" title="{html.escape(tip)}"><span>{html.escape(rung.title)}'
        f"<small>{html.escape(rung.sentence)}</small></span>"
        f'<i><b style="width:{width:.1f}%"></b>{whisker}</i><em>{value}<small>{html.escape(state)}</small></em></div>'
    )


def _state(row: Row) -> str:
    """Return the status of a rung's run in a word or two."""
    if row.run is None:
        return ""
    if row.run.status in ("running", "validating", "testing"):
        return f"{run_records.share_done(row.run):.0%} done"
    return "" if row.run.status == "finished" else run_records.STATUS[row.run.status].lower()


def _offer(config: TrainConfig, target: ComputeTarget, rows: Sequence[Row]) -> None:
    """Draw links to the ladder's runs and to the best checkpoint, and a button that starts missing rungs."""
    missing = [row.name for row in rows if row.run is None and row.name in ("lora", "last", "all")]
    with st.container(horizontal=True, vertical_alignment="center"):
        if own := [row.run.id for row in rows if row.run]:  # first, so that it does not move
            navigation.link("Its runs", "runs", RunsLink(runs=tuple(own)).to_query(), icon=False)
        best = _best_offered(rows, bool(target.devices))
        if best and best.run:
            navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=best_of_run(best.run.id)).to_query())
        elif best and st.button(
            "Keep the linear probe", key="ladder_probe", help="A run of one epoch, tested at its end."
        ):
            _launch(config, target, ["probe"])
        if missing and target.devices:
            title = "Train the other three" if len(missing) == 3 else f"Train {len(missing)} more"
            if st.button(
                title,
                key="ladder_train",
                help="As runs of this form, one after the other: "
                + ", ".join(RUNGS[name].title for name in missing)
                + ". Each begins with the probe's head and is tested once, at its end.",
            ):
                _launch(config, target, missing)


def _best_offered(rows: Sequence[Row], can_train: bool) -> Row | None:
    """Return the best rung so far that has a checkpoint, or that is the probe, which a run can still save."""
    offered = {}
    for row in rows:
        available = row.run.best if row.run else row.name == "probe" and can_train
        if row.result and available:
            offered[row.name] = row
    if not offered:
        return None
    return offered[recommended((name, row.result) for name, row in offered.items() if row.result)]


def _launch(config: TrainConfig, target: ComputeTarget, rungs: Sequence[str]) -> None:
    names = [f"{checkpoint_name(config.init_from)}, {RUNGS[name].title}" for name in rungs]
    configs = [rung_config(config, name) for name in rungs]
    search_id = f"ladder-{int(time.time())}" if len(rungs) > 1 else ""
    try:
        compute_target.launch_runs(target, list(zip(names, configs, strict=True)), search=search_id)
    except UserError as error:
        st.error(with_code(str(error)))
        return
    st.rerun()


_HELP = (
    "Ways to adapt the checkpoint to these classes, the cheapest first. Nearest neighbours and the linear probe need "
    "no training; the others begin with the probe's head, so none ends below it. They are compared on validation "
    "pictures."
)
_STYLE = f"""<style>
.rung {{ display: grid; grid-template-columns: 9.5rem 1fr 4.2rem; gap: 0.7rem; align-items: center; padding: 0.28rem 0;
  font-size: 0.875rem; line-height: 1.3; }}
.rung small {{ display: block; opacity: 0.65; font-size: 0.72rem; }}
.rung i {{ position: relative; height: 0.9rem; background: {GREY}26; border-radius: 2px; }}
.rung b {{ position: absolute; inset: 0 auto 0 0; background: {GREY}; opacity: 0.6; border-radius: 2px; }}
.rung u {{ position: absolute; top: 50%; height: 2px; margin-top: -1px; background: currentColor; }}
.rung.best b {{ background: {STRONG}; opacity: 1; }}
.rung.best span {{ font-weight: 600; }}
.rung.best span small {{ font-weight: 400; }}
.rung em {{ font-style: normal; text-align: right; font-variant-numeric: tabular-nums; }}
</style>"""
