"""Assign devices to queued runs, in order."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vit.devices import list_devices
from vit.training.loop.run_folder import is_alive, read_json, search_of
from vit.training.runs.queue_file import Queue, open_queue
from vit.training.runs.registry import ANY_GPU, valid_devices


def gpu_names() -> list[str]:
    """Return the device names of this machine's GPUs."""
    return [device.name for device in list_devices() if device.name.startswith("cuda")]


def assign_devices(folder: Path, gpus: Callable[[], Sequence[str]]) -> tuple[str, ...] | None:
    """Assign a run its devices if they are free and no earlier run waits for one; called by the run's supervisor.

    Args:
        gpus: returns the names of this machine's GPUs; called only if a run accepts any GPU.

    Returns:
        the assigned devices, with "gpu" resolved; None while the run has to wait.
    """
    if read_json(folder / "about.json").get("share") is True:
        return _resolve_devices(_devices(folder), {}, gpus)
    with open_queue(folder.parent) as queue:
        return assign_or_queue(folder.parent, queue, folder.name, _devices(folder), gpus)


def assign_or_queue(
    root: Path, queue: Queue, run_id: str, requested: Sequence[str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Record in the queue that a run holds its devices, or that it waits for them."""
    waiting = queue["waiting"]
    if run_id not in waiting:
        waiting.insert(_place(root, queue, run_id), run_id)
    held = {device: holder for device, holder in queue["held"].items() if holder != run_id and is_alive(root / holder)}
    taken = dict(held)
    # Devices that earlier runs wait for are reserved for them, so that a small run cannot overtake a large one forever.
    for name in waiting[: waiting.index(run_id)]:
        if _resolve_devices(requested, taken, gpus) is None:  # hundreds may wait, and each check takes milliseconds
            break
        if not is_alive(root / name):
            waiting.remove(name)
            continue
        theirs = _devices(root / name)
        for device in _resolve_devices(theirs, taken, gpus) or theirs:
            taken[device] = name
    devices = _resolve_devices(requested, taken, gpus)
    if devices is not None:
        waiting.remove(run_id)
        held |= dict.fromkeys(devices, run_id)
    queue["held"] = held
    return devices


def _place(root: Path, queue: Queue, run_id: str) -> int:
    """Return the index of a run that enters the queue: other runs come before all trials of searches, which are many.

    A run that got its devices at launch is no longer in the queue when its supervisor asks again: it goes first.
    """
    if run_id in queue["held"].values():
        return 0
    trials = (i for i, name in enumerate(queue["waiting"]) if _is_trial(root / name))
    return len(queue["waiting"]) if _is_trial(root / run_id) else next(trials, len(queue["waiting"]))


def _devices(folder: Path) -> tuple[str, ...]:
    return valid_devices(read_json(folder / "about.json").get("devices"))


def _is_trial(folder: Path) -> bool:
    about = read_json(folder / "about.json")
    search = search_of(about)
    return bool(search) and str(about.get("nonce")).startswith(f"{search}-")


def leave_queue(folder: Path) -> None:
    """Remove a run from the queue and release its devices."""
    with open_queue(folder.parent) as queue:
        queue["waiting"] = [name for name in queue["waiting"] if name != folder.name]
        queue["held"] = {device: holder for device, holder in queue["held"].items() if holder != folder.name}


def _resolve_devices(
    requested: Sequence[str], taken: dict[str, str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Resolve the requested devices to free ones; None if there are not enough."""
    devices: list[str] = []
    for device in requested:
        if device == ANY_GPU:
            free = (gpu for gpu in gpus() if gpu not in taken and gpu not in devices)
            device = next(free, "")
        if not device or device in taken:
            return None
        devices.append(device)
    return tuple(devices)
