"""A search on page Train: which settings its trials have, their number and length, expected cost, and start."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import session
from pages.links.page_links import RunsLink
from pages.server import access
from pages.shared.escape import plain, with_code
from pages.training.gate import limits
from pages.training.state import Train
from pages.training.train_form import form_state, search_space
from pages.training.train_form.compute_target import ComputeTarget
from pages.training.train_form.form import TrainForm
from vit.data import catalog
from vit.errors import InvalidConfig, UserError
from vit.training.engines.contract import HERE
from vit.training.loop.config import TrainConfig
from vit.training.runs.command_line import search_command_line
from vit.training.runs.registry import ANY_GPU, MOST_EPOCHS
from vit.training.search import control
from vit.training.search.plan import MOST_TRIALS, SearchPlan, best_part, make_plan, usual_min_epochs
from vit.untrusted import counted
from vit.view.captions import format_duration

if TYPE_CHECKING:
    from vit.training.loop.dry_run import DryRun

_EPOCHS = "search_epochs"  # key of a second control for the recipe's epochs


def show(form: TrainForm, config: TrainConfig, target: ComputeTarget, measured: "DryRun | None", ready: bool) -> bool:
    """Draw the expander of the search, with its own start button.

    Args:
        config: settings that all trials share.
        measured: result of a dry run, if any.
        ready: whether a run with this config could be started.

    Returns:
        Whether the expander is open. Then its start button is the primary one of the page.
    """
    texts = search_space.texts_of(form, config)
    problem = next(filter(None, itertools.starmap(search_space.problem, texts.items())), "")
    plan = None
    if not problem:
        try:
            plan = _plan(form, config, target, texts)
        except InvalidConfig as error:
            problem = str(error)
    group = st.expander(
        "Compare settings", bool(form.space), icon="⚠️" if problem else None, key="search_group", on_change="rerun"
    )
    with group:
        st.radio(
            "Trials",
            [False, True],
            format_func={False: "Random settings", True: "Every combination"}.__getitem__,
            key=form_state.key("grid"),
            horizontal=True,
            help="Each trial is a normal run on page Runs. Random trials that fall behind end early, which leaves more "
            "time for the best ones.",
            persist_state="session",
        )
        search_space.pick(config, texts, form.grid)
        _pick_numbers(form, config)
        if problem:
            st.error(with_code(problem))
        if plan:
            st.caption(plain(" ".join(forecast(plan, measured))))
        trials = plan.trials if plan else form.trials
        clicked = st.button(
            f"Start {trials} trials" if trials > 1 else "Start the trial",
            key="start_search",
            type="primary",
            width="stretch",
            disabled=not (ready and plan),
        )
        if plan and clicked:
            _start(plan, form.name.strip())
        if plan:
            st.code(search_command_line(plan, form.preset, form.name.strip()), language="bash", wrap_lines=True)
    return bool(group.open)


def _pick_numbers(form: TrainForm, config: TrainConfig) -> None:
    """Draw the controls for number and length of trials, and for their comparison."""

    def choose_epochs() -> None:
        epochs = form_state.control_value(_EPOCHS)
        form_state.change(lambda form: replace(form, settings={**form.settings, "epochs": epochs}))

    usual = "none" if form.grid else str(usual_min_epochs(config, form.reduction_factor))
    form_state.show(_EPOCHS, form.settings["epochs"])
    if not form.grid:
        left, right = st.columns(2)
        left.number_input("Number of trials", 1, MOST_TRIALS, key=form_state.key("trials"), persist_state="session")
        right.number_input(
            "Seed of the search",
            0,
            2**31 - 1,
            key=form_state.key("search_seed"),
            help="The same seed draws the same trials.",
            persist_state="session",
        )
    st.number_input(
        "Epochs, at most",
        1,
        MOST_EPOCHS,
        **form_state.handler(_EPOCHS, choose_epochs),
        help="The same setting as the recipe's epochs: a change here changes it there.",
    )
    left, right = st.columns(2)
    left.number_input(
        "Compare at epoch",
        1,
        None,
        None,
        key=form_state.key("min_epochs"),
        placeholder=usual,
        help="Epoch of the first comparison: no trial ends before it.",
        persist_state="session",
    )
    right.number_input(
        "Continue best 1 in",
        2,
        100,
        key=form_state.key("reduction_factor"),
        help="Successive halving: with n, the best 1/n of the trials that reach the first comparison continue, and the "
        "others end. The comparison is repeated each time the number of epochs has grown by a factor of n.",
        persist_state="session",
    )


def _plan(form: TrainForm, config: TrainConfig, target: ComputeTarget, texts: Mapping[str, str]) -> SearchPlan:
    """Return the plan of the search from the form; InvalidConfig if its trials are impossible.

    The settings of random trials are checked at the start.
    """
    # Trials take whatever GPU is free, so that they use all of them.
    apart = target.on == HERE and len(target.devices) == 1 and target.devices[0] not in ("cpu", "mps")
    return (make_plan if form.grid else SearchPlan)(
        name="",
        config=config,
        space=dict(texts),
        grid=form.grid,
        trials=form.trials,
        seed=form.search_seed,
        min_epochs=form.min_epochs,
        reduction_factor=form.reduction_factor,
        on=target.on,
        devices=(ANY_GPU,) if apart else target.devices or ("cpu",),
        nodes=target.nodes,
        minutes=target.minutes,
    )


def forecast(plan: SearchPlan, measured: "DryRun | None") -> Sequence[str]:
    """Return sentences about the amount of training, when trials end, and the expected duration."""
    rungs, epochs = plan.rungs(), plan.epochs
    many = f"{plan.trials} trials" if plan.trials > 1 else "One trial"
    sentences = [f"{many} of up to {counted(epochs, 'epoch')}."]
    if rungs and plan.trials > 1:
        after = " and ".join(filter(None, (", ".join(map(str, rungs[:-1])), str(rungs[-1]))))
        sentences.append(
            f"After epoch {after}, only {best_part(plan.reduction_factor)} of the trials that reached it continue; the "
            "others end early."
        )
    elif plan.trials > 1:
        sentences.append("None ends early.")
    if plan.on == HERE and plan.devices == (ANY_GPU,):
        sentences.append("Each trial takes the next free GPU.")
    if measured:
        low, high = (
            format_duration(measured.seconds_per_epoch * plan.trials * each)
            for each in (min(plan.first_comparison, epochs), epochs)
        )
        sentences.append(f"At most {high} of training in all, if an epoch takes as long as tried and none ends early;")
        sentences.append(f"at least {low}.")
    return sentences


def _start(plan: SearchPlan, name: str) -> None:
    """Start the search and switch to page Runs; submitting the same form twice starts it once."""
    state = session.of(Train)
    state.started = True
    try:
        catalog.check_spec(plan.config.data)
        own = {"name": name, "owner": access.visitor(), "nonce": f"search-{state.nonce}"}
        search = control.start(limits=limits(), **plan.model_dump() | own)
    except UserError as error:
        st.error(with_code(str(error)))
        return
    st.switch_page("pages/runs.py", query_params=RunsLink(search=search.id).to_query())
