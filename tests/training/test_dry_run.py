"""A dry run takes the training loop's own steps in a separate process, and leaves no files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from subprocesses import output_of

from vit.errors import InvalidConfig, InvalidDataset
from vit.training.loop import dry_run
from vit.training.loop.augmentation_preview import preview
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.dry_run import DryRun, overfit, too_large, try_steps
from vit.training.loop.memory import MEMORY_FACTOR
from vit.training.loop.picture_sample import Sample, sample
from vit.training.loop.presets import train_config
from vit.training.loop.trainer import Trainer

PATIENCE = 600  # timeout [s], for a busy machine


@pytest.fixture
def config() -> TrainConfig:
    return train_config("shapes", limit=200, device="cpu")


def sample_of(config: TrainConfig, pictures: int = 9469, classes: int = 10) -> Sample:
    """Return a sample of a dataset without opening it."""
    model = config.vit_config(classes)
    images = torch.zeros(1, model.channels, *model.image_size, dtype=torch.uint8)
    return Sample(images, torch.zeros(1, dtype=torch.int64), tuple(map(str, range(classes))), pictures, 1000, 500, 0.01)


def test_several_devices_share_an_epoch_and_its_validation(config: TrainConfig) -> None:
    reference = Sample(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.zeros(1), ("a", "b"), 4000, 1000, 50_000)
    config = config.model_copy(update={"batch_size": 50})
    facts: dict[str, Any] = {"seconds": 0.5, "forward": 0.1, "memory": 1, "budget": 1 << 40, "parts": 1}
    one, two = (dry_run._estimate(config, ["cpu"] * count, reference, **facts).seconds_per_epoch for count in (1, 2))
    assert one == pytest.approx(80 * 0.5 + 1000 * 0.1) and two == pytest.approx(one / 2)


@pytest.mark.slow
def test_dry_run_measures_the_model_that_would_be_trained(config: TrainConfig) -> None:
    *updates, result = try_steps(config, limit=PATIENCE)
    assert isinstance(result, DryRun)
    assert (result.parts, result.streamed) == (1, False)
    assert result.memory > 100_000_000, "the process holds PyTorch"
    assert result.seconds_per_epoch > 200 / result.pictures_per_second  # 4 steps of 50, and the evaluation
    assert sorted(set(updates)) == [0, 1, 2, 3] and updates == sorted(updates)


def test_dry_run_without_a_step_in_time_says_what_to_do(config: TrainConfig) -> None:
    with pytest.raises(InvalidConfig, match="Choose a smaller model or batch"):
        list(try_steps(config, limit=0.0))


PEAK = """
import sys, torch
from pathlib import Path
from vit.training.loop import dry_run_process, memory, picture_sample
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process

config, batch = TrainConfig.model_validate_json(sys.argv[1]), int(sys.argv[2])

def now(field):
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) * 1024

def run(config, count):
    model = config.vit_config(10)
    noise = torch.randint(0, 256, (count, model.channels, *model.image_size), dtype=torch.uint8)
    known = picture_sample.Sample(noise, torch.arange(count) % 10, tuple("0123456789"), count, 1)
    made = dry_run_process._make_trainer(config, known, noise[:1])
    for _ in range(3):
        made.update.train_step(0, made.data.train.images, made.data.train.labels, print)

small = config.model_copy(update=dict(size="shapes", image_size=32, patch_size=4, crop_padding=0))
run(small, 2)  # what is loaded and set up once
Path("/proc/self/clear_refs").write_text("5")
before = now("VmRSS")
run(config, batch)
process = set_up_process(config)
model, half = config.vit_config(10), process.autocast
counted = memory._count_weights(model, config, half) + memory._count_step(model, config, batch, half, 1)
print(now("VmHWM") - before, counted)
"""


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "batch"),
    [
        (dict(size="S/16", depth=3, crop_padding=0, ema=0.999), 12),  # attention and MLPs
        (dict(size="B/16", image_size=64, depth=3, crop_padding=0), 2),  # weights and moments
        (dict(size="S/16", image_size=448, depth=2, crop_padding=0), 4),  # no attention matrices
        (dict(size="cifar-small", image_size=64, patch_size=4, crop_padding=4, optimizer="muon"), 32),  # many tokens
    ],
)
def test_memory_estimate_is_near_the_peak_of_a_step(settings: dict[str, Any], batch: int) -> None:
    """Runs in separate processes, to measure their peak memory."""
    config = train_config("pictures", device="cpu", data="shapes", workers=0, **settings)
    taken, counted = map(int, output_of(PEAK, config.model_dump_json(), batch).split())
    assert taken / MEMORY_FACTOR < counted < taken * MEMORY_FACTOR


def test_step_that_exceeds_the_memory_is_refused_before_it_is_tried() -> None:
    config = train_config("pictures", device="cpu")
    assert "GB are free" in too_large(config, 10, 256, 2 * 10**8)
    assert not too_large(config, 10, 1, 2 * 10**9) and not too_large(config, 10, 256, 0)
    assert not too_large(train_config("shapes"), 4, 50, 2 * 10**9)


def processes() -> list[str]:
    """Return the running dry-run processes below this process."""
    result = []
    for path in Path("/proc/self/task").glob("*/children"):
        for child in path.read_text().split():
            if "vit.training.loop.dry_run_process" in (command := Path(f"/proc/{child}/cmdline")).read_text():
                result.append(str(command))
    return result


def heavy(size: str) -> TrainConfig:
    return train_config("pictures", size=size, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["steps", "overfit"])
def test_closing_a_dry_run_ends_its_process(config: TrainConfig, kind: str) -> None:
    if kind == "steps":
        config = heavy("S/16")  # its step takes seconds, but little memory: the machine may be busy
        going_on: Any = try_steps(config, sampled=sample_of(config), limit=PATIENCE)
    else:
        going_on = overfit(config)
    next(going_on)
    assert len(processes()) == 1
    going_on.close()
    assert not processes()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sound_model_overfits_one_batch(config: TrainConfig) -> None:
    points = [point for point in overfit(config, seconds=PATIENCE) if point]
    assert points[0].loss > 1 and points[0].accuracy < 0.6
    assert points[-1].accuracy == 1 and points[-1].loss < 0.1


def test_impossible_recipe_is_refused_in_one_sentence(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InvalidDataset, match="no folder"):
        next(try_steps(config.model_copy(update={"data": f"folder:{tmp_path / 'none'}", "limit": None})))


@pytest.mark.slow
def test_second_dry_run_is_refused_while_one_is_running(config: TrainConfig) -> None:
    first = overfit(config)
    next(first)
    try:
        with pytest.raises(InvalidConfig, match="Another trial"):
            next(try_steps(config))
    finally:
        first.close()


def test_sample_is_the_same_for_the_same_seed(config: TrainConfig) -> None:
    once, again = sample(config, 6), sample(config, 6)
    assert torch.equal(once.images, again.images) and once.images.shape == (6, 3, 32, 32)
    assert (once.train_pictures, once.validation_pictures, once.test_pictures) == (200, 1000, 1000)


@pytest.mark.parametrize("limit", [None, 7])
def test_limit_applies_to_a_folder_as_in_the_run(tmp_path: Path, limit: int | None) -> None:
    for label in ("bus", "car"):
        for i in range(20):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / label / f"{i}.png")
    config = train_config(
        "shapes", data=f"folder:{tmp_path}", image_size=8, limit=limit, device="cpu", batch_size=4, epochs=1
    )
    result = sample(config, 3)
    run = Trainer(config, tmp_path / "run", set_up_process(config))
    parts = (run.data.train, run.data.validation, run.data.test)
    counts = (result.train_pictures, result.validation_pictures, result.test_pictures)
    assert counts == tuple(len(part.labels) for part in parts)


def rows(sheet: np.ndarray, count: int) -> list[np.ndarray]:
    """Return the preview's rows, without the gaps between them."""
    filled = (sheet[..., 3] > 0).any(1)
    edges = np.flatnonzero(np.diff(np.concatenate([[0], filled.astype(int), [0]])))
    assert len(edges) == 2 * count
    return [sheet[a:b] for a, b in edges.reshape(-1, 2)]


def test_preview_without_augmentation_repeats_the_pictures() -> None:
    config = train_config("shapes", flip=False)
    first, *others = rows(np.asarray(preview(config, sample(config, 4).images)), 4)
    assert all(np.array_equal(first, row) for row in others)


def test_preview_shows_augmentation_below_the_originals() -> None:
    config = train_config("shapes", crop_padding=8, mixup=0.8)
    images = sample(config, 4).images
    first, *others = rows(np.asarray(preview(config, images)), 4)
    corner = first[:96:3, :96:3, :3]  # pictures of 32 px are shown three times as large
    assert np.array_equal(corner, images[0].permute(1, 2, 0).numpy())
    assert not any(np.array_equal(first, row) for row in others)
