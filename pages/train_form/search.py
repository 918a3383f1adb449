"""Random search on page Train: which settings are drawn from what, how many trials, and what that may cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from pages.shared import access, session, setting_names
from pages.shared.escape import plain
from pages.shared.page_links import RunsLink
from pages.train_form import form_state
from pages.train_form.compute_target import ComputeTarget
from pages.train_form.form import MOST_AT_ONCE, TrainForm
from vit.data import catalog
from vit.errors import InvalidConfig, UserError
from vit.runs.command_line import search_command_line
from vit.runs.engines.contract import HERE
from vit.runs.registry import ANY_GPU
from vit.runs.search import control, space
from vit.runs.search.plan import MOST_NAME, MOST_TRIALS, SearchPlan, usual_min_epochs
from vit.training.config import TrainConfig
from vit.view.captions import about

if TYPE_CHECKING:
    from vit.training.dry_run import DryRun

_SYNTAX = "low:high, or low:high:log for a logarithmic scale, or values separated by commas."
_NAMES = "space_names"  # the control's key


def show(form: TrainForm, config: TrainConfig, target: ComputeTarget, measured: "DryRun | None", ready: bool) -> None:
    """The folded group, with a start of its own.

    Args:
        config: what all trials have in common.
        measured: what an epoch of it costs; None where that was not tried.
        ready: whether a run of it could be started.
    """
    with st.expander("Random search", key="search_group"):
        st.caption("Draws settings at random and ends trials early that fall behind. Each is a run of its own.")
        texts = _texts(form.space) or {name: str(one) for name, one in space.usual(config).items()}
        texts = _pick_space(config, texts)
        _pick_numbers(form, config)
        try:
            plan = _plan(form, config, target, texts)
        except InvalidConfig as error:
            st.error(plain(str(error)))
            return
        st.caption(plain(" ".join(forecast(plan, measured))))
        if st.button(
            f"Start {plan.trials} trials" if plan.trials > 1 else "Start the trial",
            key="start_search",
            width="stretch",
            disabled=not ready,
        ):
            _start(plan, form.name.strip())
        st.code(search_command_line(plan, form.preset, form.name.strip()), language="bash", wrap_lines=True)


def _texts(written: str) -> dict[str, str]:
    """The space of a form, by setting; what no search varies is left out.

    >>> _texts("lr=1e-4:1e-2:log epochs=1,2 depth=2,4")
    {'lr': '1e-4:1e-2:log', 'depth': '2,4'}
    """
    pairs = (pair.partition("=") for pair in written.split())
    return {name: text for name, _, text in pairs if name in setting_names.NAMES and name not in space.NEVER}


def _write(texts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={''.join(text.split())}" for name, text in texts.items())


def _pick_space(config: TrainConfig, texts: dict[str, str]) -> dict[str, str]:
    """Which settings are drawn, and from what, which the form knows; returns those that the recipe uses."""
    offered = space.offered(config.model_dump(), _readable(texts))
    texts = {name: text for name, text in texts.items() if name in offered}

    def choose() -> None:
        chosen = {
            name: texts.get(name, str(space.proposed(config, name) or "")) for name in form_state.control_value(_NAMES)
        }
        form_state.change(lambda form: replace(form, space=_write(chosen)))

    def change(name: str) -> None:
        changed = texts | {name: form_state.control_value(f"space {name}")}
        form_state.change(lambda form: replace(form, space=_write(changed)))

    form_state.set_control(_NAMES, list(texts))
    st.multiselect(
        "Settings that are drawn",
        offered,
        format_func=setting_names.title,
        key=_NAMES,
        on_change=choose,
        placeholder="the usual ones",
    )
    columns = st.columns(2)
    for number, (name, text) in enumerate(texts.items()):
        form_state.set_control(f"space {name}", text)
        columns[number % 2].text_input(
            setting_names.title(name),
            key=f"space {name}",
            max_chars=100,
            on_change=change,
            args=(name,),
            help=f"{_SYNTAX[0].upper()}{_SYNTAX[1:]} `{name}`",
        )
    return texts


def _readable(texts: Mapping[str, str]) -> dict[str, space.Range | space.Choices]:
    """Of a space, what makes sense."""
    dimensions = {}
    for name, text in texts.items():
        try:
            dimensions[name] = space.parse(name, text)
        except InvalidConfig:
            continue
    return dimensions


def _pick_numbers(form: TrainForm, config: TrainConfig) -> None:
    """How many trials, and when they are judged."""
    usual = usual_min_epochs(config, form.reduction_factor)
    left, right = st.columns(2)
    left.number_input("Trials", 1, MOST_TRIALS, key=form_state.key("trials"), persist_state="session")
    right.number_input(
        "At once",
        1,
        MOST_AT_ONCE,
        key=form_state.key("at_once"),
        help="On several GPUs each trial takes one; on one device they share it.",
        persist_state="session",
    )
    left, right = st.columns(2)
    left.number_input(
        "First look [epochs]",
        1,
        None,
        None,
        key=form_state.key("min_epochs"),
        placeholder=str(usual),
        help="No trial ends before. The most that one trains is *Epochs* of the recipe.",
        persist_state="session",
    )
    right.number_input(
        "Goes on: one in",
        2,
        100,
        key=form_state.key("reduction_factor"),
        help="Successive halving: the best one in so many goes on at the first look, and again at each so many times "
        "as many epochs.",
        persist_state="session",
    )
    left, _ = st.columns(2)
    left.number_input(
        "Seed of the search",
        0,
        2**31 - 1,
        key=form_state.key("search_seed"),
        help="The same seed draws the same trials.",
        persist_state="session",
    )


def _plan(form: TrainForm, config: TrainConfig, target: ComputeTarget, texts: Mapping[str, str]) -> SearchPlan:
    """What is to be started, as far as it can be checked without drawing.

    Raises:
        InvalidConfig: a range makes no sense.
    """
    for name, text in texts.items():
        try:
            space.parse(name, text)
        except InvalidConfig as error:
            raise InvalidConfig(str(error).replace(name, setting_names.title(name), 1)) from error
    apart = target.on == HERE and form.at_once > 1 and target.devices[:1] not in ((), ("cpu",), ("mps",))
    return SearchPlan(
        name="",
        config=config,
        space=dict(texts),
        trials=form.trials,
        at_once=form.at_once,
        seed=form.search_seed,
        min_epochs=form.min_epochs or usual_min_epochs(config, form.reduction_factor),
        reduction_factor=form.reduction_factor,
        on=target.on,
        devices=(ANY_GPU,) if apart else target.devices or ("cpu",),
        nodes=target.nodes,
        minutes=target.minutes,
        share=target.share and not apart,
    )


def forecast(plan: SearchPlan, measured: "DryRun | None") -> Sequence[str]:
    """What it may cost, and when trials end."""
    rungs, epochs = plan.rungs(), plan.config.epochs
    sentences = []
    if rungs:
        after = " and ".join(filter(None, (", ".join(map(str, rungs[:-1])), str(rungs[-1]))))
        sentences.append(f"After {after} of {epochs} epochs one trial in {plan.reduction_factor} goes on.")
    else:
        sentences.append(f"No trial ends before its {epochs} epochs.")
    if measured:
        low, high = (
            about(measured.seconds_per_epoch * plan.trials * each) for each in (min(plan.min_epochs, epochs), epochs)
        )
        sentences.append(f"At most {high} of training in all, if an epoch takes as long as tried and none ends early;")
        sentences.append(f"at least {low}.")
    return sentences


def _start(plan: SearchPlan, name: str) -> None:
    """Start it and go to see it; the same form sent twice starts it once."""
    state = session.of(session.Train)
    state.started = True
    values = {field: getattr(plan, field) for field in _PLANNED}
    try:
        catalog.check_spec(plan.config.data)
        search = control.start(
            **values,
            name=name[:MOST_NAME],
            owner=access.visitor(),
            limits=access.limits(),
            nonce=f"search-{state.nonce}",
        )
    except UserError as error:
        st.error(plain(str(error)))
        return
    st.switch_page("pages/runs.py", query_params=RunsLink(search=search.id).to_query())


_PLANNED = (
    "config", "space", "trials", "at_once", "seed", "min_epochs", "reduction_factor", "on", "devices", "nodes",
    "minutes", "share",
)  # fmt: skip
