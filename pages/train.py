"""Page Train: describe a run, estimate its cost, and start it."""

import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import streamlit as st

from pages.links import link_controls, navigation, session
from pages.links.page_links import RunsLink
from pages.looking import checkpoint_list, loading
from pages.shared import datasets
from pages.shared.escape import plain, with_code
from pages.training import gate, run_records, setting_names
from pages.training.state import Train
from pages.training.train_form import (
    compute_target,
    cost_preview,
    data_picker,
    form_state,
    ladder,
    search,
)
from pages.training.train_form import settings as fields
from pages.training.train_form.form import TrainForm
from vit import checkpoints
from vit.data import catalog
from vit.errors import UserError
from vit.model.config import ViTConfig
from vit.training.engines.contract import HERE
from vit.training.loop import fine_tuning
from vit.training.loop.config import FROM_CHECKPOINT, TrainConfig
from vit.training.loop.presets import PRESETS, run_name
from vit.training.loop.run_folder import latest_checkpoint, resumable
from vit.training.runs.command_line import command_line
from vit.training.runs.registry import list_runs

gate.require_trainer()
navigation.start_page("train", remember=False)

SMALL_SIDE = 64  # maximum side of pictures for the CIFAR recipes [px]
FEW_PICTURES = 2000  # with at most so many pictures, start from a checkpoint


def recommended(data: str, start: str = "") -> list[str]:
    """Return presets, those for this data, initial checkpoint and machine first."""
    kind = data
    if data.startswith("folder:"):
        pictures, side = data_picker.size(data, datasets.root_of(data))
        kind = "cifar10" if pictures > FEW_PICTURES and 0 < side <= SMALL_SIDE else "folder:PATH"
        start = start or (checkpoint_list.SHIPPED if pictures <= FEW_PICTURES else "")
    has_gpu = len(run_records.devices()) > 1

    def rank(name: str) -> tuple[bool, ...]:
        settings = PRESETS[name].settings
        return bool(settings.get("init_from")) != bool(start), settings["data"] != kind, has_gpu and "-cpu" in name

    return sorted(PRESETS, key=rank)


def as_preset(form: TrainForm) -> TrainForm:
    """Reset all settings to the selected preset; one for fine-tuning also selects an initial checkpoint."""
    settings = PRESETS[form.preset].settings
    form = replace(form, settings=fields.complete(settings))
    if settings.get("init_from") and not form.init_from:
        with suppress(UserError):
            checkpoints.find_checkpoint(checkpoint_list.SHIPPED)
            form = replace(form, init_from=checkpoint_list.SHIPPED)
    return form


def propose(form: TrainForm) -> TrainForm:
    """Select the preset for the form's data and initial checkpoint, unless settings were already changed."""
    names, settings = recommended(form.data, form.init_from), PRESETS[form.preset].settings
    first = PRESETS[names[0]].settings
    other = any(settings.get(name) != first.get(name) for name in ("data", "init_from"))
    return as_preset(replace(form, preset=names[0])) if other and not fields.changed(form.settings, settings) else form


def propose_for_data(form: TrainForm) -> TrainForm:
    """Select the preset for other data, dropping the initial checkpoint of an earlier proposal."""
    if PRESETS[form.preset].settings.get("init_from") and form.init_from == checkpoint_list.SHIPPED:
        form = replace(form, init_from="")
    return propose(form)


def choose_preset() -> None:
    """Reset settings to the preset; a control's callback."""
    form_state.change(as_preset)


def choose_data(spec: str) -> None:
    """Select a dataset, and a preset for it."""
    form_state.change(lambda form: propose_for_data(replace(form, data=spec)))


def balance() -> None:
    """Balance classes of unequal size; a button's callback."""
    form_state.change(lambda form: replace(form, settings={**form.settings, "balance": "auto"}))


def follow_data() -> None:
    """Select a preset for the dataset; the callback of its control."""
    form_state.change(propose_for_data)


def follow_start() -> None:
    """Select a preset for the initial checkpoint; the callback of its control."""
    form_state.change(propose)


def pick_recipe(form: TrainForm) -> None:
    """Draw the control for the preset, with the results to expect."""
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
    """Draw all settings in groups.

    Args:
        config: config of the form; None if it is invalid.
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
    """Return settings without effect: those fixed by the initial checkpoint, or those for fine-tuning without one."""
    return FROM_CHECKPOINT if form.init_from else setting_names.GROUPS["From a checkpoint"]


def placeholders(size: str, config: TrainConfig | None) -> dict[str, str]:
    """Return texts for empty model settings: the value that the size preset or the checkpoint supplies."""
    values = ViTConfig.preset(size).to_dict()
    values["image_size"] = values["image_size"][0]
    names = ("image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "pool", "norm", "activation")
    texts = {name: f"{values[name]}, by size" for name in names}
    if config and config.init_from:
        with suppress(UserError):  # reported at the control of the checkpoint
            height, width = fine_tuning.model_config(config.model_copy(update={"image_size": None}), 1).image_size
            texts["image_size"] = f"{height if height == width else f'{height} x {width}'}, by the checkpoint"
    return texts


def _day(moment: float) -> str:
    return time.strftime("%d %B, %H:%M UTC", time.gmtime(moment)).lstrip("0")


def starts() -> dict[str, str]:
    """Return titles of possible initial weights by checkpoint name or path, "" for random weights."""
    every = (checkpoint_list.summarise(folder) for folder in checkpoints.catalog.list_folders())
    own = {info.name: info.name for info in every if not info.problem}
    runs = {str(run.best): f"{run.name} (run of {_day(run.created)})" for run in list_runs() if run.best}
    cut_off = [run for run in list_runs() if not run.alive and (run.status == "failed" or not resumable(run.folder))]
    last = {str(path): f"{run.name}, last weights" for run in cut_off if (path := latest_checkpoint(run.folder))}
    return {"": "Random weights"} | own | last | runs


def pick_start(titles: Mapping[str, str]) -> None:
    """Draw the control for the initial weights."""
    labels = dict(zip(titles, link_controls.distinct(list(titles.values())), strict=True))
    st.selectbox(
        "Start from",
        list(titles),
        format_func=lambda name: labels.get(name, name),  # an earlier selection may no longer exist
        **form_state.handler("init_from", follow_start),
        label_visibility="collapsed",
        help="From a checkpoint, the model keeps its size; only the last layer is reinitialised if the classes differ.",
        persist_state="session",
    )


def start(config: TrainConfig, name: str, target: compute_target.ComputeTarget) -> None:
    """Start a run and switch to page Runs; submitting the same form twice starts it once.

    Args:
        name: "" for a name derived from the config.
    """
    state = session.of(Train)
    state.started = True
    try:
        (run,) = compute_target.launch_runs(target, [(name or run_name(config), config)], nonce=state.nonce)
    except UserError as error:
        st.error(with_code(str(error)))
        return
    st.switch_page("pages/runs.py", query_params=RunsLink(runs=(run.id,)).to_query())


def show_command(config: TrainConfig, preset: str, target: compute_target.ComputeTarget, name: str) -> None:
    """Show the equivalent command line."""
    line = command_line(config, preset, target.devices, target.on, target.nodes, target.minutes, name)
    st.code(line, language="bash", wrap_lines=True)
    if script := compute_target.script(target):
        st.caption("The batch script, where RUN is the run's folder:")
        st.code(script, language="bash", wrap_lines=True)


st.title("Train", anchor=False)
left, right = st.columns([3, 2], gap="large")
with left:
    st.header("Data", anchor=False)
    data_place = st.container(key="data_block")
    settings_place = st.container(key="settings")  # on a phone below the other column, see appearance.css
with right:
    st.header("Recipe", anchor=False)
    recipe_place = st.container()
    start_place = st.container()
    device_place = st.container()
    go_place = st.container(key="go")  # high on the page, visible together with the data
loading.start_torch()

known_starts = starts()
refused = form_state.load_from_url(known_starts) if form_state.url_has_priority() else ()

with data_place:
    if refused:
        st.warning(with_code(f"These values of the link are not possible here and were ignored: {', '.join(refused)}."))
    select_place = st.container()
    with st.expander("Upload an archive of pictures", key="upload_group"):
        data_picker.upload(catalog.uploads_folder(), form_state.read().data, choose_data)
    specs = data_picker.options(form_state.read().data)
    form_state.restrict("data", specs)
    with select_place:
        data_picker.pick(specs, form_state.handler("data", follow_data))
with start_place:
    st.header("Start from", anchor=False)
    form_state.restrict("init_from", known_starts)
    pick_start(known_starts)
form = form_state.read()
# Update the URL before anything visible reacts to a selection, so that a reload keeps it.
form_state.remember(form)
with data_place:
    data_root = datasets.root_of(form.data)
    data_picker.show(form.data, data_root, choose_data, balance if form.settings["balance"] == "none" else None)
with device_place:
    st.header("Device" if not compute_target.has_clusters() else "Where", anchor=False)
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
    st.header("Before the start", anchor=False)
    measured, sound, searching = None, False, False
    if config is not None:
        pictures = cost_preview.show_preview(config)
        sound = pictures is not None or data_picker.can_come(form.data, data_root)  # a run downloads missing data
        here = devices if target.on == HERE else ()
        if here and (problem := cost_preview.problem(config, here, pictures)):
            st.error(with_code(problem))
            sound = False
        sound = sound and (pictures is None or pictures.validation_pictures > 0)  # else `data_picker.show` warns
        measured = cost_preview.show_costs(config, here, pictures) if devices else None
        if form.init_from and pictures is not None and pictures.validation_pictures:
            ladder.show(config, target)
        searching = search.show(form, config, target, measured, ready=bool(sound and devices))
    command_place = st.container()
with go_place:
    usual = run_name(config) if config else ""
    name = st.text_input("Name", key=form_state.key("name"), placeholder=usual, max_chars=60, persist_state="session")
    ready = bool(sound and devices)
    clicked = st.button(
        "Start a single run" if searching else "Start",  # distinguishes it from the search's button
        type="secondary" if searching else "primary",
        width="stretch",
        disabled=not ready,
        key="start",
    )
    if config is None:
        st.info(f"This does not fit yet: {', '.join(plain(setting_names.title(name)) for name in problems)}.")
    if clicked and ready and config:
        start(config, name.strip(), target)
    elif (state := session.of(Train)).started:
        state.started, state.nonce = False, secrets.token_hex(8)  # the next click starts another run
if config is not None and devices:
    with command_place, st.expander("The same on the command line", key="command_group"):
        show_command(config, form.preset, target, name.strip())
