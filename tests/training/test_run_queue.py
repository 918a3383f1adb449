"""The queue: which runs wait for a device, in which order, and that no two runs share one."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from short_runs import (
    endless,
    status,
    supervisor_of,
    temporary_runs_folder,
    until,
    wait_for_first_steps,
    wait_until_ended,
    write_dead_run,
)

from vit.training.loop import run_folder
from vit.training.loop.metrics import read_metrics
from vit.training.runs import control, registry, scheduler, supervisor


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with temporary_runs_folder(tmp_path / "runs") as root:
        yield root


def test_run_with_a_free_device_never_waits(folder: Path) -> None:
    first = control.launch(endless())
    assert (first.status, first.queue_position, registry.queue()) == ("starting", 0, [])
    second = control.launch(endless())
    assert (second.status, second.queue_position) == ("waiting", 1)
    control.kill(first.id)
    until(lambda: status(second) == "starting", "its turn")
    control.kill(second.id)


SERVER = """
import sys
from vit.training.runs import control
from vit.training.loop.config import TrainConfig
for name in "one", "two":
    control.launch(TrainConfig.model_validate_json(sys.argv[1]), name=name)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
def test_runs_of_two_servers_share_no_device_and_start_in_order(folder: Path) -> None:
    command = [sys.executable, "-c", SERVER, endless().model_dump_json()]
    servers = [subprocess.Popen(command) for _ in range(2)]
    for server in servers:
        assert server.wait(PATIENCE) == 0
    second, third, fourth = registry.queue()
    (first,) = (run for run in registry.list_runs() if run.status != "waiting")
    wait_for_first_steps(first)
    assert [run.queue_position for run in registry.queue()] == [1, 2, 3]
    control.move(fourth.id, 0)
    assert [run.id for run in registry.queue()] == [fourth.id, second.id, third.id]
    control.stop(third.id)
    cancelled = wait_until_ended(third)
    assert (cancelled.status, cancelled.reason) == ("stopped", "Cancelled while it waited for its turn.")
    os.kill(supervisor_of(second), signal.SIGKILL)  # a dead run does not block the queue
    control.stop(first.id)
    wait_for_first_steps(fourth)
    assert status(first) == "stopped"
    assert status(second) == "interrupted"
    control.resume(second.id)
    until(lambda: status(second) == "waiting", "its place in the queue")
    control.stop(fourth.id)
    wait_for_first_steps(second)
    assert status(fourth) == "stopped"
    control.stop(second.id)
    wait_until_ended(second)
    spans = []
    for run in (first, second, fourth):
        times = [record["t"] for record in read_metrics(run.folder / "metrics.jsonl")]
        spans.append((min(times), max(times)))
    spans.sort()
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


def allocate(root: Path, queue: dict[str, Any], run: str, *gpus: str) -> tuple[str, ...] | None:
    (root / ".queue").mkdir(exist_ok=True)
    (root / ".queue" / "queue.json").write_text(json.dumps(queue))
    return scheduler.assign_devices(root / run, lambda: gpus)


def test_run_for_two_gpus_is_not_overtaken_forever(folder: Path) -> None:
    pair = write_dead_run(folder, "pair", devices=["gpu", "gpu"])
    single = write_dead_run(folder, "single", devices=["gpu"])
    holder = write_dead_run(folder, "holder", devices=["cuda:0"])
    queue = {"waiting": ["pair", "single"], "held": {"cuda:0": "holder"}}
    with run_folder.hold_run(pair), run_folder.hold_run(single):
        with run_folder.hold_run(holder):
            assert allocate(folder, queue, "pair", "cuda:0", "cuda:1") is None
        assert allocate(folder, queue, "single", "cuda:0", "cuda:1") is None  # the run for two is ahead
        assert allocate(folder, queue, "pair", "cuda:0", "cuda:1") == ("cuda:0", "cuda:1")


def test_run_overtakes_those_that_wait_for_other_devices(folder: Path) -> None:
    ahead, behind = (
        write_dead_run(folder, "ahead", devices=["cuda:0"]),
        write_dead_run(folder, "behind", devices=["cuda:1"]),
    )
    holder = write_dead_run(folder, "holder")
    with run_folder.hold_run(ahead), run_folder.hold_run(behind), run_folder.hold_run(holder):
        queue = {"waiting": ["ahead", "behind"], "held": {"cuda:0": "holder"}}
        assert allocate(folder, queue, "behind") == ("cuda:1",)


def test_runs_enter_the_queue_before_the_trials_of_searches(folder: Path) -> None:
    first, second = (write_dead_run(folder, f"trial-{n}", search="s", nonce=f"s-{n}") for n in range(2))
    run, holder = write_dead_run(folder, "run"), write_dead_run(folder, "holder")
    queue: dict[str, Any] = {"waiting": ["trial-0"], "held": {"cpu": "holder"}}
    with run_folder.hold_run(first), run_folder.hold_run(second), run_folder.hold_run(run), run_folder.hold_run(holder):
        for name, expected in (("run", ["run", "trial-0"]), ("trial-1", ["run", "trial-0", "trial-1"])):
            assert allocate(folder, queue, name) is None
            queue = json.loads((folder / ".queue" / "queue.json").read_text())
            assert queue["waiting"] == expected


def test_damaged_queue_is_replaced(folder: Path) -> None:
    run = write_dead_run(folder, "run")
    with run_folder.hold_run(run):
        (folder / ".queue").mkdir()
        (folder / ".queue" / "queue.json").write_text('{"waiting": [1, {}], "held": "x')
        assert scheduler.assign_devices(run, lambda: []) == ("cpu",)
        assert json.loads((folder / ".queue" / "queue.json").read_text()) == {"waiting": [], "held": {"cpu": "run"}}


def test_each_gpu_run_sees_only_its_own_devices() -> None:
    assert supervisor.environment(["cuda:2", "cuda:0"])["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert "--nproc-per-node=2" in supervisor.command(Path("run"), ["cuda:2", "cuda:0"])
    assert "torch.distributed.run" not in supervisor.command(Path("run"), ["cuda:2"])
