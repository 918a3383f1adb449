"""Compute target of a run: devices of this machine, or machines of a configured cluster."""

from collections.abc import Sequence
from typing import NamedTuple

import streamlit as st

from pages.links import link_controls
from pages.server import access
from pages.shared.escape import plain, with_code
from pages.training import run_records
from pages.training.gate import limits
from pages.training.train_form import cost_preview, form_state
from vit.data import catalog
from vit.training.engines import clusters, watch
from vit.training.engines.contract import HERE, Capacity, Handle, Request
from vit.training.engines.slurm_script import batch_script
from vit.training.loop.config import TrainConfig
from vit.training.runs.control import NewRun, launch_all
from vit.training.runs.registry import ANY_GPU, Run, list_runs


class ComputeTarget(NamedTuple):
    """Resources of a run.

    Attributes:
        on: this machine, or the name of a cluster.
        devices: one per process of a machine; empty while the selection is invalid.
        share: do not wait for other runs on these devices.
        nodes: number of machines.
        minutes: time limit of an attempt on a cluster; None for the cluster's own limit.
    """

    on: str
    devices: tuple[str, ...]
    share: bool = False
    nodes: int = 1
    minutes: int | None = None

    @property
    def processes(self) -> int:
        """Number of processes that share every batch."""
        return self.nodes * len(self.devices)


def launch_runs(
    target: ComputeTarget, runs: Sequence[tuple[str, TrainConfig]], *, search: str = "", nonce: str = ""
) -> list[Run]:
    """Start the visitor's runs, given as name and config; each waits until its device is free.

    Args:
        search: name that they share on page Runs; "" for a single run.
        nonce: of the submitted form; submitting it twice starts the runs once.

    Raises:
        UserError: they cannot be started; see `vit.training.runs.control.launch_all`.
    """
    for _, config in runs:
        catalog.check_spec(config.data)
    started = launch_all(
        [NewRun(config, name, nonce=nonce and f"{nonce}-{i}") for i, (name, config) in enumerate(runs)],
        on=target.on,
        devices=target.devices,
        nodes=target.nodes,
        minutes=target.minutes,
        share=target.share,
        owner=access.visitor(),
        search=search,
        limits=limits(),
    )
    run_records.forget()  # or page Runs, opened at once, would not find the runs
    return started


def pick() -> ComputeTarget:
    """Draw the controls for the compute target."""
    configured = clusters.read_clusters()
    for name, problem in configured.problems.items():
        st.warning(with_code(f"The cluster {name} cannot be used: {problem} It is set up in the app's secrets file."))
    if not configured.usable:
        return pick_here()
    places = [HERE, *configured.usable]
    on = st.radio(
        "Where",
        places,
        format_func=lambda name: "This machine" if name == HERE else plain(name),
        key="on",
        label_visibility="collapsed",
        persist_state="session",
    )
    show_free(list(configured.usable))
    return pick_here() if on == HERE else pick_there(configured.usable[on])


def has_clusters() -> bool:
    """Whether a cluster is configured in addition to this machine."""
    return bool(clusters.read_clusters().usable)


def free_text(name: str) -> str:
    """Describe the free capacity of a cluster from a cached answer a few seconds old; does not block."""
    capacity, problem = watch.capacity(name)
    if capacity is None:
        return problem or "Waiting for its free capacity."
    if not capacity.nodes:
        return "no machine is up"
    kinds = [("GPUs", capacity.gpus), ("processors", capacity.cpus)]
    free = " and ".join(f"{one.free:,} of {one.total:,} {kind}" for kind, one in kinds if one.total)
    machines = f"{capacity.nodes:,} machine{'' if capacity.nodes == 1 else 's'}"
    return f"{free or 'nothing'} free on {machines}"


@st.fragment(run_every=5)
def show_free(names: Sequence[str]) -> None:
    """Show the free capacity of each cluster, updated while the form is open."""
    st.caption("  \n".join(f"**{plain(name)}**: {plain(free_text(name))}" for name in names))


def script(target: ComputeTarget) -> str | None:
    """Return the batch script that would be submitted to Slurm; None for other engines."""
    cluster = clusters.read_clusters().usable.get(target.on)
    if cluster is None or cluster.kind != "slurm":
        return None
    request = Request(target.devices, nodes=target.nodes, minutes=target.minutes)
    return batch_script(cluster, Handle(cluster.runs / "RUN", target.on, "RUN.1", 0.0), request)


def pick_there(cluster: clusters.Cluster) -> ComputeTarget:
    """Draw the controls for processes and machines of a cluster, within its limits."""
    limits = cluster.limits
    capacity, _ = watch.capacity(cluster.name)
    kind = st.segmented_control(
        "Each process computes on",
        [ANY_GPU, "cpu"],
        default="cpu" if capacity and not capacity.gpus.total else ANY_GPU,
        format_func={ANY_GPU: "a GPU", "cpu": "processors"}.__getitem__,
        key="cluster_kind",
        persist_state="session",
    )
    left, right = st.columns(2)
    nodes = left.number_input("Machines", 1, limits.nodes, 1, key=f"nodes {cluster.name}", persist_state="session")
    each = right.number_input(
        "Processes on each",
        1,
        limits.processes,
        1,
        key=f"processes {cluster.name}",
        help="Ray distributes the processes by free capacity; some machines may get more of them than others."
        if cluster.kind == "ray"
        else None,
        persist_state="session",
    )
    minutes = None
    if cluster.kind == "slurm":
        minutes = st.number_input(
            "Minutes at a time",
            1,
            limits.minutes or 10**6,
            None,
            placeholder="the cluster's own limit",
            key=f"minutes {cluster.name}",
            help="Near Slurm's limit the run saves its state and is requeued, until it is done. With a short limit, it "
            "may start sooner.",
            persist_state="session",
        )
    target = ComputeTarget(cluster.name, (kind,) * each if kind else (), nodes=nodes, minutes=minutes)
    if capacity and (lacking := _lacking(target, capacity, cluster.cpus)):
        st.warning(with_code(f"{cluster.name} {lacking}: the run would wait until it has more."))
    return target


def _lacking(target: ComputeTarget, capacity: Capacity, cpus: int) -> str:
    """Return which resource a cluster has too little of, even when idle; "" if a run fits."""
    needs = [
        ("GPU", target.processes if ANY_GPU in target.devices else 0, capacity.gpus.total),
        ("processor", target.processes * cpus, capacity.cpus.total),
        ("machine", target.nodes, capacity.nodes),
    ]
    for kind, needed, total in needs:
        if needed > total:
            return f"has {total or 'no'} {kind}{'' if total == 1 else 's'}, and {needed} would be needed"
    return ""


def pick_here() -> ComputeTarget:
    """Draw the controls for devices of this machine, and for sharing them with other runs."""
    devices = run_records.devices().values()
    used_by = {name: run for run in list_runs() if run.alive and run.on == HERE for name in run.devices}
    titles = {device.name: "CPU" if device.name == "cpu" else device.title for device in devices}
    captions = []
    for device in devices:
        facts = [device.title] if device.name == "cpu" else [device.name]
        if device.free_memory:
            facts.append(
                f"{cost_preview.memory(device.free_memory)} of {cost_preview.memory(device.total_memory)} free"
            )
        if device.use is not None:
            facts.append(f"{device.use:.0%} busy")
        captions.append(plain(" · ".join(facts)))
    gpus = [device.name for device in devices if device.name != "cpu"]
    if len(gpus) > 1:
        titles["several"] = "Several GPUs"
        captions.append("One process on each; they share every batch.")
    # Reserve the height until the browser has loaded the control, so that buttons below do not move away from the
    # pointer. The CPU's caption has two lines, a GPU's one.
    st.html(f"<style>.st-key-device {{ min-height: {1.4 + 2.8 * len(titles)}rem; }}</style>")
    names = list(titles)
    labels = dict(zip(names, link_controls.distinct([plain(title) for title in titles.values()]), strict=True))
    chosen = st.radio(
        "Device",
        names,
        index=names.index(gpus[0] if gpus else "cpu"),
        format_func=labels.__getitem__,
        captions=captions,
        key="device",
        label_visibility="collapsed",
        persist_state="session",
    )
    selected: tuple[str, ...] = (chosen,)
    if chosen == "several":
        selected = tuple(st.multiselect("GPUs", gpus, default=gpus, key="gpus", persist_state="session"))
        if not selected:
            st.error("Choose at least one GPU.")
    share = form_state.shares()
    busy = [used_by[name] for name in selected if name in used_by]
    if busy or share:
        share = st.toggle(
            "Share it with the runs that use it",
            key="share",
            help="Both then take longer, and may run out of memory.",
            persist_state="session",
        )
    if busy and not share:
        st.caption(f"{plain(busy[0].name)} uses it: this run waits in the queue and starts automatically.")
    return ComputeTarget(HERE, selected, share)
