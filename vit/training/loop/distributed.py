"""Set up a training process: device, precision and process group."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # import before the process group exists: its default arguments would keep it alive
from torch import Tensor

from vit.devices import memory
from vit.errors import InvalidConfig
from vit.model.cpu import has_bfloat16
from vit.training.loop.config import TrainConfig
from vit.training.loop.run_folder import ENGINE


@dataclass
class Process:
    """Device, precision and rank of this process."""

    device: torch.device
    autocast: bool
    rank: int = 0
    world: int = 1
    opened: bool = False  # whether `set_up_process` opened the process group, which then has to be closed

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process, of rank 0, writes files and prints."""
        return self.rank == 0

    def arithmetic(self) -> torch.autocast:
        """Return the autocast context for forward passes in training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def memory(self) -> int | None:
        """Return memory in use [bytes]: on a GPU the peak since the last call, on a CPU the resident set, if known."""
        if self.device.type == "cuda":
            most = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return most
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # not Linux
            return None

    def any(self, local: bool) -> bool:
        """Whether `local` is true in any process; a collective call."""
        if self.world == 1:
            return local
        flag = torch.tensor(float(local), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def send(self, tensor: Tensor) -> None:
        """Broadcast a tensor from rank 0, in place; a collective call."""
        if self.world > 1:
            dist.broadcast(tensor, 0)

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """Run the body on rank 0 before all other ranks, so that downloads happen once."""
        if not self.is_rank_zero:
            dist.barrier()
        yield
        if self.is_rank_zero and self.world > 1:
            dist.barrier()


def set_up_process(config: TrainConfig) -> Process:
    """Resolve "auto" device and precision, and join the process group when started by torchrun.

    Raises:
        InvalidConfig: the requested device is not available.
    """
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig("device: there is no CUDA GPU that torch can use. Choose cpu or auto.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise InvalidConfig("device: there is no Apple GPU that torch can use. Choose cpu or auto.")
    # A cluster may make a single GPU visible to each process, under index 0.
    if ENGINE in os.environ and torch.cuda.is_available():
        local %= torch.cuda.device_count()
    if name == "cuda" or (world > 1 and name.startswith("cuda")):
        name = f"cuda:{local if world > 1 else 0}"  # `set_device` requires an index
    device = torch.device(name)
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise InvalidConfig(f"device: there is no GPU {device.index}; torch sees {torch.cuda.device_count()}.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        fast = device.type == "cpu" and has_bfloat16()
    autocast = fast if config.precision == "auto" else config.precision == "bfloat16"
    opened = world > 1 and not dist.is_initialized()
    if opened:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Process(device, autocast, dist.get_rank() if world > 1 else 0, world, opened)


@contextmanager
def exact_products() -> Iterator[None]:
    """Compute float32 matrix products in full precision; training allows TF32 on GPUs."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def memory_budget(device: torch.device) -> int:
    """Return how many bytes the dataset may take before it is streamed: half of the device's free memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return memory()[1] // 2 or 4 << 30
