"""Memory of passes and training steps on large inputs: usage, limits, and messages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from short_runs import command_of
from subprocesses import output_of

from vit import devices, out_of_memory
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.errors import InvalidConfig
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.loop import dry_run
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import base_of, model_config, resolve
from vit.training.loop.memory import _count_step, _count_weights, parts_that_fit
from vit.training.loop.presets import train_config
from vit.training.loop.train import train

LARGE = dict(image_size=(518, 518), patch_size=14, num_classes=3, dim=48, depth=2, heads=6, mlp_dim=96)

# For 1,370 tokens, one picture's matrices take 45 MB in a block; those of all pictures would take 5 GB.
PEAK = """
import sys, torch
from pathlib import Path
from vit.data.pictures import InMemoryPictures
from vit.images.preprocess import Normalise, Preprocess
from vit.checkpoints.load import load_checkpoint
from vit.training.runs import error_search
from vit.training.loop import evaluation, probe
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.dry_run_process import _make_trainer
from vit.training.loop.picture_sample import Sample

door, folder, count = sys.argv[1], sys.argv[2], 160
checkpoint = load_checkpoint(folder)
cpu, normalise = torch.device("cpu"), Normalise(checkpoint.preprocess, torch.device("cpu"))
images = torch.randint(0, 256, (count, 3, 518, 518), dtype=torch.uint8)
pictures = InMemoryPictures(images, torch.arange(count) % 3)
config = TrainConfig(data="folder:-", init_from=folder, batch_size=4, device="cpu", precision="float32")
made = _make_trainer(config, Sample(images[:4], torch.arange(4) % 3, checkpoint.labels, 4, 1), images[:1])

def now(field):
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024

def do(number):
    order = torch.arange(number)
    if door == "probe":
        probe._compute_features(made.update.model, pictures, normalise, order, cpu, print)
    elif door == "evaluation":
        evaluation.evaluate(made.update.model, InMemoryPictures(images[:number], order % 3), normalise, device=cpu)
    elif door == "evaluate":
        evaluation.test_pictures = lambda *_, **__: (InMemoryPictures(images[:number], order % 3), "")
        evaluation.evaluate_checkpoint(checkpoint, "x")
    elif door == "mistakes":
        evaluation.test_pictures = lambda *_, **__: (InMemoryPictures(images[:number], order % 3), "")
        error_search.write(checkpoint, "x", file=Path(folder) / "report.npz")
    elif door == "statistics":
        from vit.training.loop.pictures import mean_and_std
        mean_and_std(InMemoryPictures(images[:number], order % 3), cpu)
    elif door == "training":
        made.update.train_step(0, images[:min(number, 8)], order[:8] % 3, print)

do(2)  # what is loaded and set up once
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
do(count)
sys.__stdout__.flush()
print(now("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a checkpoint with positions learnt at 518 px, like DINOv2's, which also reads that size."""
    folder = tmp_path_factory.mktemp("large") / "model"
    save_checkpoint(folder, VisionTransformer(ViTConfig(**LARGE)), ("a", "b", "c"), Preprocess((518, 518)))
    return folder


@pytest.fixture(scope="module")
def shrinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the same model with a preprocessing of 224 px."""
    folder = tmp_path_factory.mktemp("shrinking") / "model"
    save_checkpoint(folder, VisionTransformer(ViTConfig(**LARGE)), ("a", "b", "c"), Preprocess((224, 224)))
    return folder


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    "door",
    [
        *(
            pytest.param(door, marks=pytest.mark.exhaustive)
            for door in ("probe", "evaluation", "evaluate", "mistakes", "statistics")
        ),
        "training",
    ],
)
def test_many_pictures_of_1370_tokens_take_less_than_a_gigabyte(door: str, large: Path) -> None:
    assert int(output_of(PEAK, door, large).split()[-1]) < 1e9


# --- Sizes ----------------------------------------------------------------------------------------------------


def test_run_uses_the_size_of_the_preprocessing(shrinking: Path, tmp_path: Path) -> None:
    config = TrainConfig(init_from=str(shrinking))
    base = resolve(config).base
    assert base and base.model.image_size == (224, 224)
    assert model_config(config, 5).image_size == (224, 224)
    assert model_config(config.model_copy(update={"image_size": 518}), 5).image_size == (518, 518)
    assert base_of(config, tmp_path).model.image_size == (224, 224)  # type: ignore[union-attr]
    assert load_checkpoint(shrinking).config.image_size == (518, 518)  # positions stay as they were learnt


# --- Limits ---------------------------------------------------------------------------------------------------

CONFIG = train_config("pictures", device="cpu", data="shapes", precision="float32")
MODEL = ViTConfig(**LARGE | dict(dim=384, depth=12, mlp_dim=1536))


def count_memory(config: TrainConfig, parts: int = 1) -> int:
    return _count_weights(MODEL, config, half=False) + _count_step(MODEL, config, 64, half=False, parts=parts)


def test_frozen_backbone_keeps_no_activations() -> None:
    config = TrainConfig(init_from="x", freeze="backbone")
    assert count_memory(config) < count_memory(CONFIG) / 8


@pytest.mark.parametrize("free", [2e9, 4e9, 8e9, 16e9, 64e9])
def test_batch_is_split_into_parts_that_fit(free: float) -> None:
    parts = parts_that_fit(MODEL, CONFIG, 64, int(free))
    assert count_memory(CONFIG, parts) <= free or parts == 64
    assert parts == 1 or count_memory(CONFIG) > free / 2  # as few parts as possible


def test_batch_is_whole_if_the_memory_is_unknown() -> None:
    assert parts_that_fit(MODEL, CONFIG, 64, 0) == 1


@pytest.mark.parametrize(
    ("model", "batch", "free", "setting"),
    [(MODEL, 65536, 12e9, "batch_size"), (MODEL, 1, 4.5e8, "image_size")],
)
def test_too_large_input_is_refused_with_a_size_that_fits(
    model: ViTConfig, batch: int, free: float, setting: str
) -> None:
    with pytest.raises(InvalidConfig, match=f"GB are free. Set {setting} to [0-9]+, which fits") as refused:
        parts_that_fit(model, CONFIG, batch, int(free))
    value = int(str(refused.value).split(f"{setting} to ")[1].split(",")[0])
    if setting == "batch_size":
        batch = value
    else:
        model = ViTConfig(**model.to_dict() | dict(image_size=(value, value)))
    parts_that_fit(model, CONFIG, batch, int(free))


def test_run_that_does_not_fit_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vit.training.loop.trainer.memory", lambda: (10**9, 10**6))
    with pytest.raises(InvalidConfig, match="GB are free"):
        train(train_config("shapes", device="cpu", limit=100), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.exhaustive
def test_run_reports_its_number_of_parts_and_learns_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = train_config("shapes", device="cpu", limit=100, epochs=1, precision="float32", dropout=0.0, drop_path=0.0)
    train(config, tmp_path / "whole")
    monkeypatch.setattr("vit.training.loop.trainer.memory", lambda: (10**9, 30 * 10**6))
    train(config, tmp_path / "parts")
    assert "parts: 0.0 GB of memory are free" in (tmp_path / "parts" / "metrics.jsonl").read_text()
    one, other = (load_checkpoint(tmp_path / name / "checkpoints" / "last").model for name in ("whole", "parts"))
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-3)


# --- Free memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "place", "files"),
    [
        ("0::/job", "job", ("memory.max", "memory.current", "inactive_file")),
        ("4:memory:/job", "memory/job", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_free_memory_respects_the_containers_limit(
    group: str, place: str, files: tuple[str, str, str], tmp_path: Path
) -> None:
    (tmp_path / "groups").write_text(f"{group}\n1:cpu:/other\n")
    folder = tmp_path / "root" / place
    folder.mkdir(parents=True)
    limit, used, cache = files
    (folder / limit).write_text("8000000000\n")
    (folder / used).write_text("3000000000\n")
    (folder / "memory.stat").write_text(f"anon 1\n{cache} 1000000000\n")
    assert list(devices._limits(tmp_path / "groups", tmp_path / "root")) == [(8 * 10**9, 6 * 10**9)]
    (folder / limit).write_text("max\n")
    assert not list(devices._limits(tmp_path / "groups", tmp_path / "root"))


def test_free_memory_respects_the_processs_limit() -> None:
    program = """
import resource
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from vit.devices import memory
print(*memory())
"""
    total, free = map(int, subprocess.check_output([sys.executable, "-c", program], cwd=Path.cwd()).split())
    assert total == 1 << 30 and 0 < free < total


# --- Messages -------------------------------------------------------------------------------------------------


def test_failed_allocation_is_distinguished_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert out_of_memory.is_out_of_memory(refused.value)
    assert not out_of_memory.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    said = out_of_memory.describe_failure(refused.value, "This", "Choose a smaller input.")
    assert said.startswith("This ran out of memory: it needed another 1152921504.6 GB and ")
    assert said.endswith(" are free. Choose a smaller input.")


def test_killer_of_a_process_is_inferred_from_the_systems_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(out_of_memory, "kills", lambda: 4)
    assert out_of_memory.describe_exit(-signal.SIGKILL, 3) == "The system ended it: out of memory"
    assert "killed, most often by the system" in out_of_memory.describe_exit(-signal.SIGKILL, 4)
    assert not out_of_memory.describe_exit(1, 3) and not out_of_memory.describe_exit(-signal.SIGSEGV, 3)


def test_killed_command_is_reported_in_the_terminal(tmp_path: Path) -> None:
    program = "import os, signal, sys; from vit.cli.watched import watched; sys.exit(watched(lambda: {}))"
    kill = program.format("os.kill(os.getpid(), signal.SIGKILL)")
    done = subprocess.run([sys.executable, "-c", kill], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert "out of memory. Choose a smaller input, batch or model" in done.stderr
    fine = subprocess.run([sys.executable, "-c", program.format("3")], capture_output=True, text=True, check=False)
    assert fine.returncode == 3 and not fine.stderr


def test_command_gets_the_signals_of_its_parent() -> None:
    program = """
import signal, sys
from vit.cli.watched import watched
def work():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    print("ready", flush=True)
    signal.pause()
sys.exit(watched(work))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        process.terminate()
        assert process.wait(60) == 7


def test_killed_trial_is_reported_in_one_sentence(shrinking: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = train_config("shapes", device="cpu", limit=100)
    going_on = dry_run.without_training(config.model_copy(update={"init_from": str(shrinking)}))
    next(going_on)
    child = next(one for one in _children() if "dry_run_process" in command_of(one))
    assert Path(f"/proc/{child}/oom_score_adj").read_text().strip() == "1000"  # it is killed before the server
    os.kill(child, signal.SIGKILL)
    with pytest.raises(InvalidConfig, match="out of memory"):
        list(going_on)


def _children() -> list[int]:
    return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def test_command_out_of_memory_says_so_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def runs_out(options: object) -> None:
        torch.empty(1 << 60, dtype=torch.uint8)

    monkeypatch.setattr("vit.cli.runs.run_runs", runs_out)
    assert main(["runs"]) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("vit runs ran out of memory: it needed another") and "Choose a smaller input" in said
    assert "\n" not in said
