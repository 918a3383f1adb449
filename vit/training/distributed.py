"""Where a training process computes, and which share of the work is its own."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group: its functions would hold on to it, past its end
from torch import Tensor

from vit.devices import memory
from vit.errors import InvalidConfig
from vit.model.cpu import has_bfloat16
from vit.training.config import TrainConfig
from vit.training.run_folder import ENGINE


@dataclass
class Process:
    """Where this process computes, and which share of the work is its own."""

    device: torch.device
    autocast: bool
    rank: int = 0
    world: int = 1
    opened: bool = False  # the process group is ours to close

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def arithmetic(self) -> torch.autocast:
        """The precision of forward passes in training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    def memory(self) -> int | None:
        """Memory in use for training [bytes]: the most since the last call on a GPU, the process's own on a CPU."""
        if self.device.type == "cuda":
            most = torch.cuda.max_memory_allocated(self.device)
            torch.cuda.reset_peak_memory_stats(self.device)
            return most
        try:
            return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # not Linux
            return None

    def any(self, local: bool) -> bool:
        """Whether `local` holds in any of the processes; all of them have to ask."""
        if self.world == 1:
            return local
        flag = torch.tensor(float(local), device=self.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def send(self, tensor: Tensor) -> None:
        """Give the leading process's tensor to all others, in place; all of them have to call it."""
        if self.world > 1:
            dist.broadcast(tensor, 0)

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The leading process does this before all others: a download happens once."""
        if not self.leads:
            dist.barrier()
        yield
        if self.leads and self.world > 1:
            dist.barrier()


def set_up_process(config: TrainConfig) -> Process:
    """Resolve "auto" device and precision; join the other processes when started by torchrun.

    Raises:
        InvalidConfig: the device asked for is not there.
    """
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig("device: there is no CUDA GPU that torch can use. Choose cpu or auto.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise InvalidConfig("device: there is no Apple GPU that torch can use. Choose cpu or auto.")
    if ENGINE in os.environ and torch.cuda.is_available():  # a cluster may show each process its own GPU only
        local %= torch.cuda.device_count()
    if name == "cuda" or (world > 1 and name.startswith("cuda")):
        name = f"cuda:{local if world > 1 else 0}"  # `set_device` takes no "cuda" without a number
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
    """Compute float32 products in float32: training lets a GPU round their factors to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def memory_budget(device: torch.device) -> int:
    """Bytes that pictures may take before they are streamed: half of what is free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    return memory()[1] // 2 or 4 << 30
