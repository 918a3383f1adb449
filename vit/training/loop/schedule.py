"""The learning rate schedule: warm-up, then cosine decay or a constant rate."""

import math

from vit.training.loop.config import TrainConfig


def learning_rate_factor(step: int, total: int, per_epoch: int, config: TrainConfig) -> float:
    """Return the factor of the peak learning rate at a step: linear warm-up, then half a cosine to 0, or constant.

    The warm-up takes at most half of the run.
    """
    warmup = min(config.warmup_epochs * per_epoch, total / 2)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))
