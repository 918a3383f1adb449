"""What changes the weights, and how fast at which step."""

import inspect
import math

import torch
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vit.model.transformer import VisionTransformer
from vit.training.config import TrainConfig


def learning_rate_share(step: int, total: int, per_epoch: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a half cosine to 0 or a constant.

    The warm-up takes at most half of the run.
    """
    warmup = min(config.warmup_epochs * per_epoch, total / 2)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def make_optimizers(model: VisionTransformer, config: TrainConfig, device: torch.device) -> list[Optimizer]:
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest.

    Weights of products decay; biases, scales, positions and prefix tokens do not.

    Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    _do_without_compiler()
    decayed, plain, matrices = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or name in ("pos_embed", "prefix_tokens"):
            plain.append(parameter)
        elif config.optimizer == "muon" and name.startswith("blocks."):
            matrices.append(parameter)
        else:
            decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    fused = device.type in ("cuda", "cpu")
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.99), fused=fused)]
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)
        )
    return optimizers


def step_(optimizer: Optimizer) -> None:
    """Do one step without what `optimizer.step()` imports, torch's compiler: 2 s of the 6 that a run needs to begin."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)


def _do_without_compiler() -> None:
    """Keep optimisers from importing torch's compiler, which they do to keep their methods out of what is compiled.

    A torch that knows no such mark goes on importing it.
    """
    for method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict, Optimizer.load_state_dict):
        plain = inspect.unwrap(method)
        setattr(plain, "__dynamo_disable", plain)


def average_(averaged: VisionTransformer, model: VisionTransformer, step: int, most: float) -> None:
    """Move the exponential average of the weights on by one step, in place.

    Args:
        step: averaged before this one.
        most: decay per step in the long run. At first it is (1 + step) / (10 + step), so that a short run is not left
            with its random start.

    Source: TensorFlow's `tf.train.ExponentialMovingAverage`, argument `num_updates`.
    """
    decay = min(most, (1 + step) / (10 + step))
    get_ema_multi_avg_fn(decay)(list(averaged.parameters()), list(model.parameters()), step)
