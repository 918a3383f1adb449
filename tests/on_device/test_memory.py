"""Running out of a GPU's memory."""

from collections.abc import Callable
from pathlib import Path

import torch
from small_runs import first_batch, small_config, trainer_of


def test_batch_that_does_not_fit_is_computed_in_parts_with_the_gradient_of_the_whole(
    device: str, tmp_path: Path, assert_close: Callable[..., None]
) -> None:
    size = dict(batch_size=1024, limit=1100, dim=256, depth=6, heads=4, mlp_dim=1024, ema=0.0)
    plenty, scarce = (trainer_of(small_config(device=device, **size), tmp_path) for _ in range(2))
    images, labels = first_batch(plenty, 1024)
    inputs = plenty.data.normalise(images)
    plenty.update.gradients(inputs, labels)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_reserved()
    scarce.update.gradients(inputs, labels)
    most = torch.cuda.max_memory_reserved() - before  # about 2 GB
    for parameter in scarce.update.model.parameters():
        parameter.grad = None
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 0.7 * most) / total)
    notes: list[str] = []
    scarce.update.train_step(scarce.progress.step, images, labels, notes.append)
    torch.cuda.set_per_process_memory_fraction(1.0)
    plenty.update.train_step(plenty.progress.step, images, labels, notes.append)
    assert scarce.update.parts > 1 and len(notes) == scarce.update.parts.bit_length() - 1
    assert_close(list(scarce.update.model.parameters()), list(plenty.update.model.parameters()), 1e-2)
