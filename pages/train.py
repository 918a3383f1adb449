"""Describe a training run and start it: data, recipe, device, and what it will cost before it costs anything."""

import itertools
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.links import link_controls, navigation, session
from pages.links.page_links import RunsLink
from pages.looking import loading
from pages.server import access
from pages.shared import datasets, setting_names, training_gate
from pages.shared.escape import plain
from pages.train_form import cluster_dry_run, compute_target, cost_preview, data_picker, form_state, ladder, search
from pages.train_form import settings as fields
from pages.train_form.form import LONGEST, TrainForm
from vit import checkpoints
from vit.data import catalog
from vit.errors import UserError
from vit.model.config import ViTConfig
from vit.runs.command_line import command_line
from vit.runs.control import launch
from vit.runs.engines.contract import HERE
from vit.runs.registry import list_runs
from vit.training import fine_tuning
from vit.training.config import FROM_CHECKPOINT, TrainConfig
from vit.training.presets import PRESETS, run_name, train_config
from vit.training.run_folder import learnt, resumable
from vit.view.captions import about

training_gate.require_trainer()
navigation.start_page("train", remember=False)

MOST_RUNS = 32  # that one sweep starts
SMALL_SIDE = 64  # side of pictures that the recipes for CIFAR suit [px]
FEW_PICTURES = 2000  # pictures, too few to begin from scratch


def recommended(data: str, start: str = "") -> list[str]:
    """Presets, those made for this data, this start and this machine first."""
    kind = data
    if data.startswith("folder:"):
        pictures, side = data_picker.size(data, datasets.root_of(data))
        kind = "cifar10" if pictures > FEW_PICTURES and 0 < side <= SMALL_SIDE else "folder:PATH"
        start = start or (loading.SHIPPED if pictures <= FEW_PICTURES else "")
    has_gpu = len(compute_target.list_devices()) > 1

    def rank(name: str) -> tuple[bool, ...]:
        settings = PRESETS[name].settings
        return bool(settings.get("init_from")) != bool(start), settings["data"] != kind, has_gpu and "-cpu" in name

    return sorted(PRESETS, key=rank)


def as_preset(form: TrainForm) -> TrainForm:
    """Take all settings from the chosen preset; one for fine-tuning needs something to start from."""
    settings = PRESETS[form.preset].settings
    form = replace(form, settings=fields.complete(settings))
    if settings.get("init_from") and not form.init_from:
        with suppress(UserError):
            checkpoints.find_checkpoint(loading.SHIPPED)
            form = replace(form, init_from=loading.SHIPPED)
    return form


def propose(form: TrainForm) -> TrainForm:
    """Choose the recipe made for the form's data and start, unless somebody has changed settings already."""
    names, settings = recommended(form.data, form.init_from), PRESETS[form.preset].settings
    first = PRESETS[names[0]].settings
    other = any(settings.get(name) != first.get(name) for name in ("data", "init_from"))
    return as_preset(replace(form, preset=names[0])) if other and not fields.changed(form.settings, settings) else form


def propose_for_data(form: TrainForm) -> TrainForm:
    """Propose a recipe for other data; what an earlier proposal started from goes."""
    if PRESETS[form.preset].settings.get("init_from") and form.init_from == loading.SHIPPED:
        form = replace(form, init_from="")
    return propose(form)


def choose_preset() -> None:
    """From a control: take the preset's settings."""
    form_state.change(as_preset)


def choose_data(spec: str) -> None:
    """Take other data, and propose a recipe for it."""
    form_state.change(lambda form: propose_for_data(replace(form, data=spec)))


def follow_data() -> None:
    """From the control of the data."""
    form_state.change(propose_for_data)


def follow_start() -> None:
    """From the control of the start: propose a recipe for it."""
    form_state.change(propose)


def pick_recipe(form: TrainForm) -> None:
    """A preset, with what to expect of it."""
    st.selectbox(
        "Recipe",
        recommended(form.data, form.init_from),
        format_func=lambda name: PRESETS[name].title,
        **form_state.handler("preset", choose_preset),
        label_visibility="collapsed",
        persist_state="session",
    )
    st.caption(plain(PRESETS[form.preset].expect))


def pick_settings(form: TrainForm, config: TrainConfig | None, problems: Mapping[str, str]) -> None:
    """All settings, in groups that are folded.

    Args:
        config: what the form describes; None where it does not fit yet.
    """
    fields.show_problem(problems, "")
    disabled = unused(form)
    base = PRESETS[form.preset].settings
    empty = placeholders(form.settings["size"], config)
    for group in setting_names.GROUPS:
        fields.show_group(group, form.settings, base, empty, problems, form_state.key, disabled)
    if fields.changed(form.settings, base):
        st.button("Back to the preset's values", key="reset", on_click=choose_preset)


def unused(form: TrainForm) -> tuple[str, ...]:
    """Settings that count for nothing: what a checkpoint decides where there is one, else what is for those alone."""
    return FROM_CHECKPOINT if form.init_from else setting_names.GROUPS["From a checkpoint"]


def placeholders(size: str, config: TrainConfig | None) -> dict[str, str]:
    """What settings of the model are where they are left empty: by the named size, or by the checkpoint."""
    values = ViTConfig.preset(size).to_dict()
    values["image_size"] = values["image_size"][0]
    names = ("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "pool", "norm", "activation")
    found = {name: f"{values[name]}, by size" for name in names}
    if config and config.init_from:
        with suppress(UserError):  # what is wrong with it is said where it is chosen
            height, width = fine_tuning.model_config(config.model_copy(update={"image_size": None}), 1).image_size
            found["image_size"] = f"{height if height == width else f'{height} x {width}'}, by the checkpoint"
    return found


def _day(moment: float) -> str:
    return time.strftime("%d %B, %H:%M UTC", time.gmtime(moment)).lstrip("0")


def starts() -> dict[str, str]:
    """What a run can start from, a checkpoint's name or path or "" for none, with its name for people."""
    own = {info.name: info.name for info in checkpoints.list_checkpoints() if not info.problem}
    runs = {str(run.best): f"{run.name} (run of {_day(run.created)})" for run in list_runs() if run.best}
    cut_off = [run for run in list_runs() if not run.alive and (run.status == "failed" or not resumable(run.folder))]
    last = {str(path): f"{run.name}, last weights" for run in cut_off if (path := learnt(run.folder))}
    return {"": "Random weights"} | own | last | runs


def pick_start(titles: Mapping[str, str]) -> None:
    """From random weights, or from a checkpoint."""
    labels = dict(zip(titles, link_controls.distinct(list(titles.values())), strict=True))
    st.selectbox(
        "Start from",
        list(titles),
        format_func=lambda name: labels.get(name, name),  # a choice of before may be gone
        **form_state.handler("init_from", follow_start),
        label_visibility="collapsed",
        help="From a checkpoint, the model keeps its size; only the last layer begins anew where the classes differ.",
        persist_state="session",
    )


def pick_sweep(settings: Mapping[str, Any], first: str | None) -> list[dict[str, Any]]:
    """Settings of each run: one, or one per combination of the values to compare.

    Values that do not make a run are named, and no run is left then.

    Args:
        settings: of all runs.
        first: the setting that the first control has, which the second does not offer.
    """
    chosen: dict[str, list[Any]] = {}
    offered = setting_names.compared(settings)
    for part in ("sweep_1", "sweep_2"):
        form_state.restrict(part, [None, *offered])
    with st.expander("Compare several values", key="sweep_group"):
        for number in (1, 2):
            left, right = st.columns(2)
            taken = first if number == 2 else None
            name = left.selectbox(
                "Setting" if number == 1 else "And a second one",
                [name for name in offered if name != taken],
                index=None,
                format_func=setting_names.title,
                placeholder="none",
                key=form_state.key(f"sweep_{number}"),
                persist_state="session",
            )
            text = right.text_input(
                "Values",
                key=form_state.key(f"values_{number}"),
                max_chars=LONGEST,
                placeholder="2, 4, 8",
                help="Separated by commas.",
                persist_state="session",
            )
            if name and text.strip():
                try:
                    chosen[name] = fields.parse_values(name, text)
                except ValueError as error:
                    st.error(plain(str(error)))
                    return []
        runs = [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]
        if len(runs) > MOST_RUNS:
            st.error(f"These are {len(runs)} runs; one sweep has at most {MOST_RUNS}. Choose fewer values.")
            return []
        for run in runs if chosen else []:
            _, problems = fields.check({**settings, **run})
            if problems:
                what = ", ".join(f"{setting_names.title(name)} {value}" for name, value in run.items())
                st.error(plain(f"{what}: {next(iter(problems.values()))}"))
                return []
        if chosen:
            st.caption(f"{len(runs)} runs: one per combination. They wait for the device in turn.")
    return runs


def start(
    base: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], name: str, target: compute_target.ComputeTarget
) -> None:
    """Launch the runs and go to see them; the same form sent twice starts them once.

    Args:
        name: what they are called in place of what is trained, "" for none.
    """
    state = session.of(session.Train)
    state.started = True
    sweep = state.nonce if len(runs) > 1 else ""
    launched = []
    try:
        catalog.check_spec(base["data"])
        for number, changes in enumerate(runs):
            suffix = ", ".join(f"{field} {value}" for field, value in changes.items()) if sweep else ""
            config = train_config(None, **{**base, **changes})
            title = name or run_name(config)
            run = launch(
                config,
                name=f"{title}, {suffix}" if suffix else title,
                on=target.on,
                devices=target.devices,
                nodes=target.nodes,
                minutes=target.minutes,
                share=target.share,
                owner=access.visitor(),
                sweep=sweep,
                nonce=f"{state.nonce}-{number}",
                limits=access.limits(),
            )
            launched.append(run)
    except UserError as error:
        before = f"{len(launched)} of {len(runs)} runs were started. " if launched else ""
        st.error(plain(f"{before}{error}"))
        return
    st.switch_page("pages/runs.py", query_params=RunsLink(runs=tuple(run.id for run in launched)).to_query())


def name_of(config: TrainConfig) -> str:
    """What a run is called unless somebody names it."""
    return run_name(config)


def show_command(config: TrainConfig, preset: str, target: compute_target.ComputeTarget, name: str) -> None:
    """The line that does the same in a terminal."""
    line = command_line(config, preset, target.devices, target.on, target.nodes, target.minutes, name)
    st.code(line, language="bash", wrap_lines=True)
    if script := compute_target.script(target):
        st.caption("The batch script, where RUN is the run's folder:")
        st.code(script, language="bash", wrap_lines=True)


st.title("Train", anchor=False)
left, right = st.columns([3, 2], gap="large")
with left:
    st.header("Data", anchor=False)
    data_place = st.container()
    settings_place = st.container(key="settings")  # on a phone after the other column, see appearance.css
with right:
    st.header("Recipe", anchor=False)
    recipe_place = st.container()
    start_place = st.container()
    device_place = st.container()
    go_place = st.container()  # in view together with the data
    st.header("Before the start", anchor=False)
loading.start_torch()

known_starts = starts()
refused = form_state.adopt(known_starts) if form_state.is_news() else ()

with data_place:
    if refused:
        st.warning(plain(f"The link asks for what is not possible here: {', '.join(refused)}. The rest was taken."))
    select_place = st.container()
    with st.expander("Upload an archive of pictures", key="upload_group"):
        data_picker.upload(catalog.uploads_folder(), form_state.read().data, choose_data)
    specs = data_picker.options()
    form_state.restrict("data", specs)
    with select_place:
        data_picker.pick(specs, form_state.handler("data", follow_data))
with start_place:
    st.header("Start from", anchor=False)
    form_state.restrict("init_from", known_starts)
    pick_start(known_starts)
form = form_state.read()
# Before anything tells that a choice has come through: who then reloads has it in the address.
form_state.remember(form)
with data_place:
    data_root = datasets.root_of(form.data)
    data_picker.show(form.data, data_root, choose_data)
with device_place:
    st.header("Device" if not compute_target.several() else "Where", anchor=False)
    target = compute_target.pick()
    devices = target.devices

settings = {**form.settings, "data": form.data, "data_root": data_root, "init_from": form.init_from}
settings["device"] = "cpu" if set(devices) == {"cpu"} else "cuda"
settings = {name: value for name, value in settings.items() if name not in unused(form)}
config, problems = fields.check(settings)
if config and devices and config.batch_size % target.processes:
    problems = {"batch_size": f"{config.batch_size} pictures do not divide among {target.processes} processes."}
    config = None
with recipe_place:
    pick_recipe(form)
with settings_place:
    st.header("Settings", anchor=False)
    pick_settings(form, config, {name: problem for name, problem in problems.items() if name not in fields.ELSEWHERE})
for container, name in (
    (start_place, "init_from"),
    (device_place, "device"),
    (data_place, "data"),
    (data_place, "data_root"),
):
    with container:
        fields.show_problem(problems, name)

with right:
    runs: list[dict[str, Any]] = []
    measured, sound, searching = None, False, False
    if config is not None:
        pictures = cost_preview.show_preview(config)
        sound = pictures is not None or data_picker.can_come(form.data, data_root)  # a run downloads what is not here
        here = devices if target.on == HERE else ()
        if here and (problem := cost_preview.problem(config, here, pictures)):
            st.error(plain(problem))
            sound = False
        elsewhere = target.on != HERE and bool(devices)
        there = cluster_dry_run.finished(config, target) if elsewhere else None
        measured = cost_preview.show_costs(config, here, pictures, there) if devices else None
        if elsewhere:
            cluster_dry_run.show(config, target)
        if form.init_from and pictures is not None:
            ladder.show(config, target, access.visitor())
        runs = pick_sweep(settings, form.sweep_1)
        searching = search.show(form, config, target, measured, ready=bool(sound and devices))
    command_place = st.container()
with go_place:
    usual = name_of(config) if config else ""
    name = st.text_input("Name", key=form_state.key("name"), placeholder=usual, max_chars=60, persist_state="session")
    ready = bool(sound and devices and runs)
    many = len(runs) > 1
    single = "Start a single run" if searching else "Start"  # beside the start of the search
    clicked = st.button(
        f"Start {len(runs)} runs" if many else single,
        type="secondary" if searching else "primary",
        width="stretch",
        disabled=not ready,
        key="start",
    )
    if config is None:
        st.info(f"This does not fit yet: {', '.join(plain(setting_names.title(name)) for name in problems)}.")
    if config and many and measured:
        together = measured.seconds_per_epoch * sum(run.get("epochs", config.epochs) for run in runs)
        st.caption(f"All of them: {about(together)}, if each epoch takes as long as this.")
    if clicked and ready:
        start(settings, runs, name.strip(), target)
    elif (state := session.of(session.Train)).started:
        state.started, state.nonce = False, secrets.token_hex(8)  # the next click is another run
if config is not None and devices:
    with command_place, st.expander("The same on the command line", key="command_group"):
        show_command(config, form.preset, target, name.strip())
