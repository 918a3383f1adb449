"""Training on a real device: gradients, compiled steps, a resume, two processes."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as several
from small_runs import first_batch, gradients, noise_batch, small_config, trainer_of

from vit.training.loop.distributed import Process


class StopAfter(threading.Event):
    """A request to stop that is made after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def is_set(self) -> bool:
        self.left -= 1
        return self.left < 0


def test_gradients_of_a_batch_equal_those_of_the_cpu(
    device: str, tmp_path: Path, assert_close: Callable[..., None]
) -> None:
    here, there = (trainer_of(small_config(device=name), tmp_path) for name in ("cpu", device))
    assert_close(gradients(there, *noise_batch(there)), gradients(here, *noise_batch(here)))


def test_compiled_steps_lower_the_loss_and_a_graph_changes_nothing(
    device: str, tmp_path: Path, assert_close: Callable[..., None]
) -> None:
    traces = []
    for with_graph in (False, True):
        config = small_config(device=device, precision="auto", compile=device != "cpu", epochs=50)
        run = trainer_of(config, tmp_path)
        if not with_graph:
            run.update.graphed = None
        images, labels = first_batch(run, 64)
        trace = [run.update.train_step(step, images, labels, print)[0].item() for step in range(30)]
        assert trace[-1] < trace[0]
        traces.append(torch.tensor(trace))
    assert_close(traces[1], traces[0], 1e-2)


@pytest.mark.filterwarnings("ignore:.*deterministic")
def test_stopped_and_resumed_run_ends_with_the_same_weights(device: str, tmp_path: Path) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    config, ends = small_config(device=device, precision="auto", compile=False), []
    for name, stops in (("whole", [threading.Event()]), ("cut", [StopAfter(6), threading.Event()])):
        (tmp_path / name).mkdir()
        for attempt, stop in enumerate(stops):
            run = trainer_of(config, tmp_path / name)
            if attempt:
                run.load()
            _, ending = run.train(attempt, stop)
            assert ending[0] == ("stopped" if isinstance(stop, StopAfter) else "finished")
        ends.append({key: value.cpu() for key, value in run.update.model.state_dict().items()})
    torch.use_deterministic_algorithms(False)
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])


def test_two_processes_on_one_device_compute_the_gradients_of_one(
    device: str, tmp_path: Path, assert_close: Callable[..., None]
) -> None:
    several.spawn(save_half_batch, (device, tmp_path), nprocs=2)
    shared = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    run = trainer_of(small_config(device=device, optimizer="adamw", ema=0.0), tmp_path)
    alone = gradients(run, *noise_batch(run))
    assert_close(shared[1], shared[0])
    assert_close(shared[0], alone)


def save_half_batch(rank: int, device: str, folder: Path) -> None:
    """Compute half of a batch in its own process, and save the averaged gradient."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    if device.startswith("cuda"):
        torch.cuda.set_device(device)
    process = Process(torch.device(device), False, rank, 2)
    run: Any = trainer_of(small_config(device=device, optimizer="adamw", ema=0.0), folder, process)
    images, labels = (part[rank::2] for part in noise_batch(run))
    torch.save(gradients(run, images, labels), folder / f"{rank}.pt")
    process.any(False)  # wait until both are done
    # Drop the last reference to the process group first: its threads may abort the process otherwise.
    del run
    dist.destroy_process_group()
