"""Runs: they outlive whoever started them, wait for their turn, and say how they are and how they ended."""

import fcntl
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import vit
from vit import files, runs, supervise
from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidRun
from vit.journal import Journal
from vit.metrics import MetricsReader, read_metrics
from vit.place import Place
from vit.recipes import TrainConfig, train_config
from vit.train import train

PATIENCE = 300  # [s] for a process to do what it should, on a busy machine
TRAINS = ("running", "testing")  # of a run whose process is at work


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder for runs; nothing in it is alive when the test is over."""
    root = tmp_path / "runs"
    root.mkdir()
    monkeypatch.setenv("VIT_RUNS", str(root))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    yield root
    for run in runs.list_runs():
        if run.alive:
            runs.kill(run.id)


def tiny(**settings: Any) -> TrainConfig:
    """A run of seconds: 40 steps an epoch."""
    few = dict(data="shapes", image_size=8, patch_size=4, dim=16, depth=1, heads=2, mlp_dim=16, limit=80, batch_size=2)
    return train_config(**few | {"epochs": 2} | settings)


def endless(**settings: Any) -> TrainConfig:
    return tiny(epochs=10000, **settings)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something to become true."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.05)
    raise AssertionError(f"It never came: {what}. {[(r.id, r.status, r.reason) for r in runs.list_runs()]}")


def status(run: runs.Run) -> str:
    return runs.find_run(run.id).status


def steps(run: runs.Run) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "step"]


def ended(run: runs.Run) -> runs.Run:
    until(lambda: not runs.find_run(run.id).alive, "the end")
    return runs.find_run(run.id)


def begun(run: runs.Run) -> runs.Run:
    until(lambda: steps(run), "the first steps")
    return runs.find_run(run.id)


def saved(run: runs.Run) -> runs.Run:
    until(lambda: (run.folder / "checkpoints" / "last").exists(), "a saved epoch")
    return runs.find_run(run.id)


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "last" / "model.safetensors").read_bytes()


def dead(root: Path, name: str = "20261121-000000-dead-0000", **about: Any) -> Path:
    """The folder of a run that has no process."""
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(tiny().model_dump_json())
    (folder / "about.json").write_text(json.dumps({"name": "dead", "created": 1.0, "devices": ["cpu"]} | about))
    return folder


# --- From start to end --------------------------------------------------------------------------------------------


def test_a_run_trains_and_leaves_all_that_it_promises(folder: Path) -> None:
    run = ended(runs.launch(tiny(), name="My first run!", notes="a note"))
    assert (run.status, run.reason) == ("finished", "")
    assert re.fullmatch(r"\d{8}-\d{6}-my-first-run-[0-9a-f]{4}", run.id)
    assert (run.name, run.notes) == ("My first run!", "a note")
    assert run.config["dim"] == 16
    assert {path.name for path in run.folder.iterdir()} >= {
        "config.json", "about.json", "metrics.jsonl", "events", "log.txt", "environment.json", "checkpoints", "probes",
    }  # fmt: skip
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["seed"] == 0 and environment["hardware"]
    assert run.best is not None
    assert vit.load_checkpoint(run.best).labels == ("circle", "square", "triangle", "cross")
    assert "Epoch 2 of 2" in (run.folder / "log.txt").read_text()
    assert not (run.folder / "reserve").exists()


def test_stop_finishes_the_step_saves_and_resume_ends_with_the_same_bits(folder: Path) -> None:
    config = tiny(epochs=30, device="cpu")
    run = begun(runs.launch(config))
    runs.stop(run.id)
    told: list[str] = []
    until(lambda: told.append(status(run)) or told[-1] == "stopped", "the end")
    assert list(dict.fromkeys(told)) == ["stopping", "stopped"]  # from the click to the end of its process
    stopped = runs.find_run(run.id)
    assert "Resume continues there" in stopped.reason
    done = steps(run)[-1]["step"]
    assert 0 < done < 30 * 40
    resumed = runs.resume(run.id)
    assert resumed.id == run.id
    assert ended(run).status == "finished"
    assert [r["step"] for r in read_metrics(run.folder / "metrics.jsonl") if r["kind"] == "start"][1:] == [done]
    assert weights(run.folder) == weights(ended(runs.launch(config)).folder)


def test_a_trainer_killed_at_a_random_step_is_resumed_to_the_same_bits(folder: Path) -> None:
    config = tiny(epochs=30, device="cpu", seed=3)
    run = saved(runs.launch(config))
    (trainer,) = trainers(run)
    os.kill(trainer, signal.SIGKILL)
    failed = ended(run)
    assert failed.status == "failed" and "The system killed it" in failed.reason
    runs.resume(run.id)
    assert ended(run).status == "finished"
    assert weights(run.folder) == weights(ended(runs.launch(config)).folder)


def trainers(run: runs.Run) -> list[int]:
    """Processes of the run but its supervisor."""
    return [pid for pid in runs._holders(run.folder) if "vit.supervise" not in Path(f"/proc/{pid}/cmdline").read_text()]


def supervisor(run: runs.Run) -> int:
    return next(pid for pid in runs._holders(run.folder) if "vit.supervise" in Path(f"/proc/{pid}/cmdline").read_text())


def test_a_run_goes_on_when_the_server_that_started_it_is_killed(folder: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, endless().model_dump_json()], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout
    run = runs.find_run(server.stdout.readline().strip())
    begun(run)
    server.kill()
    server.wait()
    before = steps(run)[-1]["step"]
    until(lambda: steps(run)[-1]["step"] > before + 40, "more steps")
    assert status(run) in TRAINS


SERVER = """
import sys, time
from vit import runs
from vit.recipes import TrainConfig
print(runs.launch(TrainConfig.model_validate_json(sys.argv[1])).id, flush=True)
time.sleep(1000)
"""


def test_a_killed_supervisor_leaves_a_run_that_trains_and_can_be_stopped(folder: Path) -> None:
    run = begun(runs.launch(endless()))
    os.kill(supervisor(run), signal.SIGKILL)
    before = steps(run)[-1]["step"]
    until(lambda: steps(run)[-1]["step"] > before + 40, "more steps")
    assert status(run) in TRAINS
    runs.stop(run.id)
    assert ended(run).status == "stopped"


def test_kill_ends_a_run_even_without_its_supervisor(folder: Path) -> None:
    run = begun(runs.launch(endless()))
    os.kill(supervisor(run), signal.SIGKILL)
    runs.kill(run.id, patience=0.5)
    assert ended(run).status == "stopped"
    assert runs._holders(run.folder) == []


def test_kill_keeps_the_last_state(folder: Path) -> None:
    run = saved(runs.launch(endless()))
    runs.kill(run.id)
    assert (status(run), runs.find_run(run.id).reason) == ("stopped", supervise.KILLED)
    runs.resume(run.id)
    assert begun(run).alive


def test_two_processes_train_one_run_and_stop_together(folder: Path) -> None:
    run = begun(runs.launch(endless(), devices=("cpu", "cpu")))
    assert json.loads((run.folder / "environment.json").read_text())["devices"] == 2
    runs.stop(run.id)
    assert ended(run).status == "stopped"


def test_no_rank_survives_the_kill_of_torchrun(folder: Path) -> None:
    run = begun(runs.launch(endless(), devices=("cpu", "cpu")))
    agent = next(p for p in trainers(run) if "torch.distributed.run" in Path(f"/proc/{p}/cmdline").read_text())
    os.kill(agent, signal.SIGKILL)
    assert ended(run).status == "failed"
    assert runs._holders(run.folder) == []


def test_what_a_person_did_wrong_is_the_reason_of_the_failure(folder: Path, tmp_path: Path) -> None:
    run = ended(runs.launch(tiny(data=f"folder:{tmp_path / 'nowhere'}")))
    assert run.status == "failed"
    assert run.reason.startswith("There is no folder") and "Traceback" not in run.reason


def test_a_loss_that_is_no_number_is_the_reason_with_its_step(folder: Path) -> None:
    wild = dict(lr=10, weight_decay=10, warmup_epochs=0, schedule="constant", grad_clip=0)
    run = ended(runs.launch(endless(**wild, precision="float32")))
    assert run.status == "failed"
    assert re.search(r"The loss became (nan|inf) by step \d+", run.reason)


def test_early_stopping_ends_a_run_that_gets_no_better(folder: Path) -> None:
    run = ended(runs.launch(tiny(epochs=500, lr=1e-8, patience=2)))
    assert run.status == "finished" and "not better in 2 epochs" in run.reason
    epochs = [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "validation"]
    assert 3 <= len(epochs) < 500


# --- A full disk --------------------------------------------------------------------------------------------------

FULL = """
import os, sys, time
from pathlib import Path
from vit import runs
from vit.recipes import TrainConfig
root = Path(sys.argv[1])
os.environ["VIT_RUNS"] = str(root)
run = runs.launch(TrainConfig.model_validate_json(sys.argv[2]), limits=runs.Limits(free_bytes=0))
state = run.folder / "checkpoints" / "state.previous.pt"  # beside the state after the first epoch
while not state.exists():
    time.sleep(0.02)
filler = (root / "filler").open("wb")
try:
    while filler.write(bytes(4096)):
        filler.flush()
except OSError:
    pass
while runs.find_run(run.id).alive:
    time.sleep(0.1)
found = runs.find_run(run.id)
import vit
vit.load_checkpoint(found.folder / "checkpoints" / "last")
print(found.status, found.reason, sep="|", flush=True)
runs.resume(run.id)  # the disk is still full
while runs.find_run(run.id).alive:
    time.sleep(0.1)
print(runs.find_run(run.id).status, runs.find_run(run.id).reason, sep="|", flush=True)
filler.close()
(root / "filler").unlink()
runs.resume(run.id)
before = os.path.getsize(found.folder / "metrics.jsonl")
while os.path.getsize(found.folder / "metrics.jsonl") < before + 2000 and runs.find_run(run.id).alive:
    time.sleep(0.1)
again = runs.find_run(run.id)
print(again.status, again.reason)
runs.kill(run.id)
"""


def test_a_full_disk_ends_a_run_with_its_last_state_sound(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=32m tmpfs '{small}' && exec \"$@\""
    inside = ["unshare", *(["--map-root-user"] if os.getuid() else []), "--mount", "sh", "-c", mount, "sh"]
    program = [sys.executable, "-c", FULL, str(small), endless().model_dump_json()]
    done = subprocess.run([*inside, *program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    ending, still, again = done.stdout.splitlines()
    assert ending == "failed|The disk is full. Free some space and resume: the last complete state is kept."
    assert still == ending
    assert again.rstrip() in TRAINS


def test_no_run_starts_on_a_disk_that_is_nearly_full(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"are kept free\. Delete old runs first"):
        runs.launch(tiny(), limits=runs.Limits(free_bytes=1 << 60))
    assert runs.list_runs() == []


# --- Alive or dead ------------------------------------------------------------------------------------------------


def test_a_lock_that_nobody_holds_is_a_dead_run(folder: Path) -> None:
    stale = dead(folder)
    (stale / "alive.lock").write_text("")
    run = runs.find_run(stale.name)
    assert run.status == "interrupted" and not run.alive
    assert "Resume it" in run.reason


def test_a_process_id_that_is_in_use_again_does_not_make_a_run_alive(folder: Path) -> None:
    stale = dead(folder)
    for name in ("alive.lock", "pid", "heartbeat"):
        (stale / name).write_text(str(os.getpid()))
    assert runs.find_run(stale.name).status == "interrupted"
    assert runs._holders(stale) == []
    with pytest.raises(InvalidRun, match="ended already"):
        runs.kill(stale.name)


def test_asking_whether_a_run_lives_does_not_make_it_alive(folder: Path) -> None:
    stale = dead(folder)
    with (stale / "alive.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert runs.is_alive(stale)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert not any(runs.is_alive(stale) for _ in range(100))


def test_a_run_that_says_nothing_for_long_is_stalled(folder: Path) -> None:
    silent = dead(folder)
    with runs.living(silent):
        assert runs.find_run(silent.name).status == "starting"
        (silent / "heartbeat").touch()
        assert runs.find_run(silent.name).status == "running"
        os.utime(silent / "heartbeat", (0, 0))
        assert runs.find_run(silent.name).status == "stalled"


@pytest.mark.parametrize("moved", [-86_400, 86_400])
def test_a_clock_that_was_set_neither_hides_nor_invents_silence(folder: Path, moved: int) -> None:
    run = dead(folder)
    heartbeat = run / "heartbeat"
    with runs.living(run):
        files.beat(heartbeat)
        os.utime(heartbeat, (time.time() + moved,) * 2)
        assert runs.find_run(run.name).status == "running"
        pulse = json.loads(heartbeat.read_text())
        heartbeat.write_text(json.dumps(pulse | {"at": pulse["at"] - runs.STALLED - 60}))
        os.utime(heartbeat, (time.time() + moved,) * 2)
        assert runs.find_run(run.name).status == "stalled"


def test_a_heartbeat_of_another_machine_counts_by_its_files_time(folder: Path) -> None:
    heartbeat = dead(folder) / "heartbeat"
    heartbeat.write_text('{"boot": "another", "at": 1.0}')
    assert files.silence(heartbeat) < 60
    os.utime(heartbeat, (time.time() - 500,) * 2)
    assert files.silence(heartbeat) > 400


def test_stopping_holds_until_the_process_is_gone(folder: Path) -> None:
    run = dead(folder)
    with runs.living(run):
        (run / "heartbeat").touch()
        runs.stop(run.name)
        runs.last_word(run, "stopped", "Stopped after 2 epochs.")
        assert runs.find_run(run.name).status == "stopping"
    assert runs.find_run(run.name).status == "stopped"
    with runs.living(run):  # another attempt
        assert runs.find_run(run.name).status == "starting"


def test_a_run_that_has_said_its_last_word_is_ending(folder: Path) -> None:
    run = dead(folder)
    with runs.living(run):
        (run / "heartbeat").touch()
        runs.last_word(run, "finished")
        found = runs.find_run(run.name)
        assert (found.status, found.alive) == ("ending", True)
    assert runs.find_run(run.name).status == "finished"


def test_testing_is_told_with_its_share_until_the_training_goes_on(folder: Path) -> None:
    run = dead(folder)
    facts = {"total_steps": 80, "steps_per_epoch": 40, "batch_size": 2, "epochs": 2, "lr": 1e-3}
    with runs.living(run), Journal(run, 0, Place(torch.device("cpu"), False), 0, facts) as journal:
        assert status_of(run) == ("running", None, 0)
        journal.at = 40
        journal.testing(0.25)
        assert status_of(run) == ("testing", 0.25, 40)
        runs.stop(run.name)
        assert status_of(run) == ("stopping", 0.25, 40) and "testing" in runs.find_run(run.name).reason
        (run / "stop").unlink()
        journal.beat()
        assert status_of(run) == ("running", None, 40)


def status_of(folder: Path) -> tuple[str, float | None, int]:
    run = runs.find_run(folder.name)
    return run.status, run.tested, run.step


def test_a_run_whose_device_is_free_never_waits(folder: Path) -> None:
    first = runs.launch(endless())
    assert (first.status, first.place, runs.queue()) == ("starting", 0, [])
    second = runs.launch(endless())
    assert (second.status, second.place) == ("waiting", 1)
    runs.kill(first.id)
    until(lambda: status(second) == "starting", "its turn")
    runs.kill(second.id)


def test_a_run_from_the_command_line_is_one_like_the_others(folder: Path) -> None:
    train(tiny(epochs=1), folder / "20261121-000000-terminal")
    (run,) = runs.list_runs()
    assert (run.id, run.status) == ("20261121-000000-terminal", "finished")


def test_a_folder_is_trained_by_one_process_only(folder: Path, tmp_path: Path) -> None:
    run = begun(runs.launch(endless()))
    with pytest.raises(InvalidRun, match="Another process trains"):
        train(endless(), run.folder, resume=True)
    with pytest.raises(InvalidRun, match="going on already"):
        runs.resume(run.id)
    assert status(run) in TRAINS


# --- The queue ----------------------------------------------------------------------------------------------------


def test_runs_wait_for_their_device_in_order_and_start_by_themselves(folder: Path) -> None:
    first = runs.launch(endless(), name="first")
    second, third, fourth = (runs.launch(tiny(epochs=1), name=name) for name in ("second", "third", "fourth"))
    begun(first)
    until(lambda: [run.id for run in runs.queue()] == [second.id, third.id, fourth.id], "three in a row")
    assert runs.find_run(third.id).place == 2
    runs.move(fourth.id, 0)
    assert [run.name for run in runs.queue()] == ["fourth", "second", "third"]
    runs.stop(third.id)
    cancelled = ended(third)
    assert (cancelled.status, cancelled.reason) == ("stopped", "Cancelled while it waited for its turn.")
    os.kill(supervisor(second), signal.SIGKILL)  # a dead one holds nobody up
    runs.stop(first.id)
    assert ended(fourth).status == "finished"
    assert status(second) == "interrupted"
    runs.resume(second.id)
    assert ended(second).status == "finished"


def test_two_servers_that_launch_at_once_never_share_a_device(folder: Path) -> None:
    config = tiny(epochs=2).model_dump_json()
    servers = [
        subprocess.Popen([sys.executable, "-c", BOTH, config], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    for server in servers:
        assert server.wait(PATIENCE) == 0
    every = runs.list_runs()
    assert len(every) == 4
    spans = []
    for run in every:
        assert ended(run).status == "finished"
        records = read_metrics(run.folder / "metrics.jsonl")
        spans.append((min(r["t"] for r in records), max(r["t"] for r in records)))
    spans.sort()
    assert all(earlier[1] <= later[0] for earlier, later in itertools.pairwise(spans))


BOTH = """
import sys
from vit import runs
from vit.recipes import TrainConfig
for _ in range(2):
    runs.launch(TrainConfig.model_validate_json(sys.argv[1]))
"""


def test_a_shared_device_is_not_waited_for(folder: Path) -> None:
    begun(runs.launch(endless()))
    begun(runs.launch(endless(), share=True))
    assert all(run.status in TRAINS for run in runs.list_runs()) and len(runs.list_runs()) == 2


def take(root: Path, line: dict[str, Any], run: str, *gpus: str) -> tuple[str, ...] | None:
    (root / ".queue").mkdir(exist_ok=True)
    (root / ".queue" / "queue.json").write_text(json.dumps(line))
    return runs.take_devices(root / run, lambda: gpus)


def test_a_run_for_two_gpus_is_not_overtaken_for_ever(folder: Path) -> None:
    pair = dead(folder, "pair", devices=["gpu", "gpu"])
    single = dead(folder, "single", devices=["gpu"])
    holder = dead(folder, "holder", devices=["cuda:0"])
    line = {"waiting": ["pair", "single"], "held": {"cuda:0": "holder"}}
    with runs.living(pair), runs.living(single):
        with runs.living(holder):
            assert take(folder, line, "pair", "cuda:0", "cuda:1") is None
        assert take(folder, line, "single", "cuda:0", "cuda:1") is None  # the pair is before it
        assert take(folder, line, "pair", "cuda:0", "cuda:1") == ("cuda:0", "cuda:1")


def test_a_run_overtakes_those_that_wait_for_other_devices(folder: Path) -> None:
    ahead, behind = dead(folder, "ahead", devices=["cuda:0"]), dead(folder, "behind", devices=["cuda:1"])
    holder = dead(folder, "holder")
    with runs.living(ahead), runs.living(behind), runs.living(holder):
        line = {"waiting": ["ahead", "behind"], "held": {"cuda:0": "holder"}}
        assert take(folder, line, "behind") == ("cuda:1",)


def test_a_damaged_queue_is_begun_anew(folder: Path) -> None:
    run = dead(folder, "run")
    with runs.living(run):
        (folder / ".queue").mkdir()
        (folder / ".queue" / "queue.json").write_text('{"waiting": [1, {}], "held": "x')
        assert runs.take_devices(run, lambda: []) == ("cpu",)
        assert json.loads((folder / ".queue" / "queue.json").read_text()) == {"waiting": [], "held": {"cpu": "run"}}


def test_each_gpu_run_sees_its_own_devices_only() -> None:
    assert supervise.environment(["cuda:2", "cuda:0"])["CUDA_VISIBLE_DEVICES"] == "2,0"
    assert "--nproc-per-node=2" in supervise.command(Path("run"), ["cuda:2", "cuda:0"])
    assert "torch.distributed.run" not in supervise.command(Path("run"), ["cuda:2"])


# --- What a person may ask for ------------------------------------------------------------------------------------


def test_a_form_sent_twice_starts_one_run(folder: Path) -> None:
    first, second = (runs.launch(endless(), nonce="form 1") for _ in range(2))
    assert first.id == second.id
    assert len(runs.list_runs()) == 1


def test_each_person_may_have_so_many_runs(folder: Path) -> None:
    limits = runs.Limits(runs_per_person=1, free_bytes=0)
    runs.launch(endless(), owner="ann@example.org", limits=limits)
    with pytest.raises(InvalidConfig, match="You have 1 runs waiting or running, and 1 are allowed"):
        runs.launch(endless(), owner="ann@example.org", limits=limits)
    assert runs.launch(endless(), owner="bob@example.org", limits=limits).alive


@pytest.mark.parametrize("devices", [(), ("cpu", "cuda:0"), ("cpu; rm",), ("tpu",)])
def test_devices_that_make_no_sense_are_refused(folder: Path, devices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig, match="devices"):
        runs.launch(tiny(), devices=devices)


@pytest.mark.parametrize("run_id", ["", "..", ".queue", "../runs", "/etc", "a/b", "Ä", "none", "x" * 200, "a\0b", None])
def test_an_id_is_looked_up_and_never_joined(folder: Path, run_id: Any) -> None:
    with pytest.raises(InvalidRun, match="no such run"):
        runs.find_run(run_id)


def test_a_link_is_no_run(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (folder / "link").symlink_to(outside)
    assert runs.list_runs() == []
    with pytest.raises(InvalidRun):
        runs.find_run("link")


def test_names_and_notes_change_and_the_folder_stays(folder: Path) -> None:
    run = dead(folder)
    runs.rename(run.name, "  New\n name " + "x" * 100)
    runs.annotate(run.name, "why")
    found = runs.find_run(run.name)
    assert found.name.startswith("New name xxx") and len(found.name) == 60
    assert (found.notes, found.devices) == ("why", ("cpu",))
    with pytest.raises(InvalidRun, match="needs a name"):
        runs.rename(run.name, " ")


def test_a_deleted_run_is_gone_and_a_living_one_stays(folder: Path) -> None:
    run = dead(folder)
    with runs.living(run), pytest.raises(InvalidRun, match="Stop it first"):
        runs.delete(run.name)
    runs.delete(run.name)
    assert runs.list_runs() == [] and not any(path.name.startswith(".2") for path in folder.iterdir())


def test_a_finished_run_continues_only_with_more_epochs(folder: Path) -> None:
    run = ended(runs.launch(tiny(epochs=1)))
    with pytest.raises(InvalidRun, match="Give it more epochs"):
        runs.resume(run.id)
    runs.resume(run.id, epochs=2)
    assert ended(run).status == "finished"
    assert run.folder.joinpath("metrics.jsonl").read_text().count('"kind": "validation"') == 2


def test_a_run_is_kept_as_a_checkpoint_under_a_free_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    (tmp_path / "checkpoints").mkdir()
    train(tiny(epochs=1), folder / "run")
    runs.keep("run", "kept")
    assert vit.load_checkpoint("kept").config.dim == 16
    with pytest.raises(InvalidCheckpoint, match="already"):
        runs.keep("run", "kept")
    for name in ("", "../x", ".hidden", "Big"):
        with pytest.raises(InvalidCheckpoint, match="name"):
            runs.keep("run", name)
    with pytest.raises(InvalidRun, match="no checkpoint yet"):
        runs.keep(dead(folder).name, "none")


def test_files_of_a_run_that_hold_nonsense_do_not_break_the_list(folder: Path) -> None:
    for number, text in enumerate(("", "[]", '{"name": 3, "created": "x", "devices": 5, "owner": null}', "\xff")):
        run = dead(folder, f"run-{number}")
        (run / "about.json").write_text(text, encoding="latin-1")
        (run / "outcome.json").write_text(text, encoding="latin-1")
        (run / "config.json").write_text(text, encoding="latin-1")
    assert [run.status for run in runs.list_runs() if run.id == "run-2"] == ["interrupted"]
    unreadable = {run.id: run.reason for run in runs.list_runs() if run.status == "unreadable"}
    assert unreadable == {
        "run-0": "config.json cannot be read: it is damaged (not JSON at line 1).",
        "run-1": "config.json cannot be read: it holds no JSON object.",
        "run-3": "config.json cannot be read: it is damaged (not UTF-8).",
    }


def test_a_reader_follows_a_run_while_it_is_written(folder: Path) -> None:
    run = begun(runs.launch(endless()))
    reader = MetricsReader(run.folder / "metrics.jsonl")
    seen = 0
    while seen < 200:
        if reader.update():
            assert [r["step"] for r in reader.records["step"]] == sorted({r["step"] for r in reader.records["step"]})
            seen = reader.records["step"][-1]["step"]
