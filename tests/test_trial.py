"""A trial uses the training loop's own steps, in a process of its own, and leaves nothing behind."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit.errors import InvalidConfig
from vit.model import VisionTransformer
from vit.place import choose_place
from vit.recipes import TrainConfig, train_config
from vit.train import Training
from vit.trial import overfit, preview, sample, time_steps


@pytest.fixture
def config() -> TrainConfig:
    return train_config("shapes", limit=200, device="cpu")


def test_trial_measures_the_model_that_would_be_trained(config: TrainConfig) -> None:
    trial = time_steps(config)
    model = VisionTransformer(config.vit_config(4))
    assert trial.params == sum(parameter.numel() for parameter in model.parameters())
    assert (trial.tokens, trial.classes, trial.train_pictures, trial.parts) == (65, 4, 200, 1)
    assert trial.seconds_per_step > 0 and trial.memory > 200 * 3 * 32 * 32
    assert trial.seconds_per_epoch > trial.seconds_per_step * 4  # 4 steps of 50, and the evaluation


def test_a_sound_model_learns_one_batch_by_heart(config: TrainConfig) -> None:
    points = list(overfit(config))
    assert points[0].loss > 1 and points[0].accuracy < 0.6
    assert points[-1].accuracy == 1 and points[-1].loss < 0.1


def test_what_cannot_be_done_is_one_sentence(config: TrainConfig, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="no folder"):
        time_steps(config.model_copy(update={"data": f"folder:{tmp_path / 'none'}", "limit": None}))


def test_a_second_trial_is_refused_while_one_is_under_way(config: TrainConfig) -> None:
    first = overfit(config)
    next(first)
    try:
        with pytest.raises(InvalidConfig, match="Another trial"):
            time_steps(config)
    finally:
        first.close()


def test_sample_is_the_same_for_the_same_seed(config: TrainConfig) -> None:
    once, again = sample(config, 6), sample(config, 6)
    assert torch.equal(once.images, again.images) and once.images.shape == (6, 3, 32, 32)
    assert (once.train_pictures, once.test_pictures) == (200, 1000)


@pytest.mark.parametrize("limit", [None, 7])
def test_a_limit_counts_for_a_folder_as_it_does_in_the_run(tmp_path: Path, limit: int | None) -> None:
    for label in ("bus", "car"):
        for i in range(20):
            (tmp_path / label).mkdir(exist_ok=True)
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / label / f"{i}.png")
    config = train_config(
        "shapes", data=f"folder:{tmp_path}", image_size=8, limit=limit, device="cpu", batch_size=4, epochs=1
    )
    found = sample(config, 3)
    run = Training(config, tmp_path / "run", choose_place(config))
    assert (found.train_pictures, found.test_pictures) == (len(run.train_set.labels), len(run.test_set.labels))


def rows(sheet: np.ndarray, count: int) -> list[np.ndarray]:
    """The preview's rows, without what lies between them."""
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
