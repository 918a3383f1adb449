"""Which run gets which device, and when."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vit.devices import list_devices
from vit.runs.queue_file import Queue, open_queue
from vit.runs.registry import ANY_GPU, read_guarded, read_run
from vit.training.run_folder import is_alive


def gpu_names() -> list[str]:
    """This machine's GPUs as devices are named."""
    return [device.name for device in list_devices() if device.name.startswith("cuda")]


def assign_devices(folder: Path, gpus: Callable[[], Sequence[str]]) -> tuple[str, ...] | None:
    """Give the run its devices if they are free and nobody before it waits for one of them; called by its supervisor.

    Args:
        gpus: names of this machine's GPUs, asked for only where a run takes any of them.

    Returns:
        the devices, resolved; None while the run has to wait.
    """
    root = folder.parent
    run = read_run(folder, ())
    if run.share:
        return _resolved(run.devices, {}, gpus)
    with open_queue(root) as line:
        return grant(root, line, run.id, run.devices, gpus)


def grant(
    root: Path, line: Queue, run_id: str, requested: Sequence[str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Enter in the queue that a run has its devices, or else that it waits for them."""
    waiting = [name for name in line["waiting"] if name == run_id or is_alive(root / name)]
    if run_id not in waiting:  # what was granted at the launch, a supervisor asks for again
        waiting.insert(0 if run_id in line["held"].values() else len(waiting), run_id)
    held = {device: holder for device, holder in line["held"].items() if holder != run_id and is_alive(root / holder)}
    taken = dict(held)
    for name in waiting[: waiting.index(run_id)]:  # those before it keep what they wait for
        theirs = read_guarded(root / name, ()).devices
        for device in _resolved(theirs, taken, gpus) or theirs:
            taken[device] = name
    devices = _resolved(requested, taken, gpus)
    if devices is not None:
        waiting.remove(run_id)
        held |= dict.fromkeys(devices, run_id)
    line["waiting"], line["held"] = waiting, held
    return devices


def leave_queue(folder: Path) -> None:
    """Give up the run's place and its devices."""
    with open_queue(folder.parent) as line:
        line["waiting"] = [name for name in line["waiting"] if name != folder.name]
        line["held"] = {device: holder for device, holder in line["held"].items() if holder != folder.name}


def _resolved(
    requested: Sequence[str], taken: dict[str, str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Real devices for those wanted, none of them taken; None if there are not enough."""
    devices: list[str] = []
    for device in requested:
        if device == ANY_GPU:
            free = (gpu for gpu in gpus() if gpu not in taken and gpu not in devices)
            device = next(free, "")
        if not device or device in taken:
            return None
        devices.append(device)
    return tuple(devices)
