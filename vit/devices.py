"""List compute devices: the CPU, and each GPU with its name, free memory and utilization.

GPUs are queried through NVML, which is fast and needs no torch. GPUs are numbered by PCI address, which matches torch
under CUDA_DEVICE_ORDER=PCI_BUS_ID.
"""

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

try:
    import resource
except ImportError:  # not on Windows
    resource = None  # type: ignore[assignment]


@dataclass(frozen=True)
class Device:
    """A compute device.

    Attributes:
        name: "cpu", "cuda:0", ...
        title: human-readable description.
        total_memory, free_memory: [bytes]; 0 if unknown.
        use: recent utilization, 0 to 1; None if unknown.
        cuda_id: its entry in CUDA_VISIBLE_DEVICES: the number of a GPU, or the UUID of a slice of one (MIG).
    """

    name: str
    title: str
    total_memory: int
    free_memory: int
    use: float | None
    cuda_id: str = ""


@contextmanager
def restored_device(model: Any) -> Iterator[None]:
    """Move a model back to its original device when the context exits."""
    before = next(model.parameters()).device
    try:
        yield
    finally:
        model.to(before)


def list_devices() -> list[Device]:
    """Return the CPU, then the GPUs that CUDA_VISIBLE_DEVICES allows; no GPUs without a driver."""
    return [_cpu(), *_nvidia_gpus()]


def visibility(names: Sequence[str]) -> dict[str, str]:
    """Return environment variables that show CUDA only these devices, in this order; {} if there is no GPU among them.

    Args:
        names: such as "cuda:0" and "cpu".
    """
    gpus = [name for name in names if name.startswith("cuda:")]
    if not gpus:
        return {}
    ids = {device.name: device.cuda_id for device in list_devices()}
    entries = [ids.get(name) or name.removeprefix("cuda:") for name in gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(entries)}


def _cpu() -> Device:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    use = min(os.getloadavg()[0] / (os.cpu_count() or 1), 1.0) if hasattr(os, "getloadavg") else None
    title = f"{count} {'core' if count == 1 else 'cores'}, {_processor()}"
    return Device("cpu", title, *memory(), use)


def memory() -> tuple[int, int]:
    """Return the total and the available memory of this process [bytes]; 0 if unknown.

    The tightest limit applies: physical memory, control groups, or `ulimit -v`.
    """
    try:
        import psutil  # noqa: PLC0415 # optional: training needs no psutil
    except ImportError:
        return 0, 0
    ram = psutil.virtual_memory()
    most = [(ram.total, ram.available), *_limits(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))]
    if resource is not None and (limit := resource.getrlimit(resource.RLIMIT_AS)[0]) != resource.RLIM_INFINITY:
        most.append((limit, limit - psutil.Process().memory_info().vms))
    return min(total for total, _ in most), max(min(free for _, free in most), 1)


def peak_memory() -> int:
    """Return the largest size of this process so far [bytes]; 0 if unknown."""
    if resource is None:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _limits(groups: Path, root: Path) -> Iterator[tuple[int, int]]:
    """Yield the memory limit and the remaining memory of each control group of this process [bytes].

    Containers and schedulers such as Slurm set these limits.

    Args:
        groups: file that lists the groups of this process.
        root: mount point of cgroup v2; v1 controllers are mounted below it.
    """
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            number, kinds, place = line.split(":", 2)
            if number != "0" and "memory" not in kinds.split(","):
                continue
            top, limit, used, cache = (
                (root, "memory.max", "memory.current", "inactive_file")
                if number == "0"
                else (root / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            )
            own = top / place.lstrip("/")
            # Limits are hierarchical: a parent group may be tighter than the process's own.
            for group in (own, *own.parents[: len(own.parts) - len(top.parts)]):
                with suppress(OSError, ValueError, KeyError):
                    most = int((group / limit).read_text())  # "max" means no limit and raises ValueError
                    statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                    # Inactive page cache counts as used, but the kernel reclaims it on demand.
                    yield most, most - int((group / used).read_text()) + int(statistics[cache])


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _nvidia_gpus() -> list[Device]:
    try:
        import pynvml as nvml  # noqa: PLC0415 # optional

        nvml.nvmlInit()
    except Exception:  # no library, no driver, or a version mismatch
        return []
    try:
        found = []
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError):  # a GPU that fell off the bus; the others still work
                gpu = nvml.nvmlDeviceGetHandleByIndex(index)
                found.append((_text(nvml.nvmlDeviceGetPciInfo(gpu).busId), gpu))
        parts = [part for _, gpu in sorted(found, key=itemgetter(0)) for part in _parts(nvml, gpu)]
        identities = [_text(nvml.nvmlDeviceGetUUID(part)) for part in parts]
        devices = []
        for index in visible(os.environ.get("CUDA_VISIBLE_DEVICES"), identities):
            with suppress(nvml.NVMLError):
                devices.append(_nvidia_gpu(nvml, parts[index], index, identities[index]))
        return devices
    except nvml.NVMLError:
        return []
    finally:
        nvml.nvmlShutdown()


def _parts(nvml: Any, gpu: Any) -> list[Any]:
    """Return the slices of a GPU in MIG mode, which CUDA then uses in its place; else the GPU."""
    slices = []
    with suppress(nvml.NVMLError):  # GPUs without MIG
        if not nvml.nvmlDeviceGetMigMode(gpu)[0]:
            return [gpu]
        for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
            with suppress(nvml.NVMLError):  # a place without a slice
                slices.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index))
        return slices
    return [gpu]


def _nvidia_gpu(nvml: Any, handle: Any, index: int, identity: str) -> Device:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    use = None
    with suppress(nvml.NVMLError):  # MIG slices do not report utilization
        use = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    cuda_id = identity if identity.startswith("MIG") else str(index)
    return Device(f"cuda:{index}", _text(nvml.nvmlDeviceGetName(handle)), memory.total, memory.free, use, cuda_id)


def visible(setting: str | None, identities: list[str]) -> list[int]:
    """Return the indices of the GPUs that CUDA_VISIBLE_DEVICES allows.

    Parsing stops at the first invalid entry, as in CUDA.

    >>> visible(None, ["GPU-a", "GPU-b"]), visible("1,7,0", ["GPU-a", "GPU-b"]), visible("GPU-b", ["GPU-a", "GPU-b"])
    ([0, 1], [1], [1])
    """
    if setting is None:
        return list(range(len(identities)))
    chosen: list[int] = []
    for entry in map(str.strip, setting.split(",")):
        matches = [i for i, name in enumerate(identities) if entry and name.startswith(entry)]
        if entry.isdecimal():
            matches = [int(entry)] if int(entry) < len(identities) else []
        if len(matches) != 1 or matches[0] in chosen:
            break
        chosen += matches
    return sorted(chosen)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
