"""What changes the weights, and how fast at which step."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vit.model.transformer import VisionTransformer
from vit.training.adaptation import rate_share
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
    """AdamW for everything that learns, or Muon for the blocks' matrices and AdamW for the rest.

    Weights of products decay; biases, scales, positions, prefix tokens and adapters do not.

    Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    _do_without_compiler()
    decayed, plain, matrices = _Groups(config.lr), _Groups(config.lr), _Groups(config.muon_lr)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        share = rate_share(name, len(model.blocks), config.layer_decay)
        adapter = ".parametrizations." in name
        if parameter.ndim == 1 or adapter or name in ("pos_embed", "prefix_tokens"):
            plain.add(share, parameter)
        elif config.optimizer == "muon" and name.startswith("blocks."):
            matrices.add(share, parameter)
        else:
            decayed.add(share, parameter)
    groups = decayed.listed(config.weight_decay) + plain.listed(0.0)
    fused = device.type in ("cuda", "cpu")
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.99), fused=fused)]
    if matrices:
        muon = matrices.listed(config.weight_decay)
        optimizers.append(torch.optim.Muon(muon, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95))
    return optimizers


class _Groups(dict[float, list[nn.Parameter]]):
    """Parameters by their share of a learning rate."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def add(self, share: float, parameter: nn.Parameter) -> None:
        self.setdefault(share, []).append(parameter)

    def listed(self, weight_decay: float) -> list[dict[str, Any]]:
        """As optimisers take them."""
        return [
            {"params": parameters, "lr": self.rate * share, "weight_decay": weight_decay}
            for share, parameters in self.items()
        ]


def step_(optimizer: Optimizer, *closure: Callable[[], Tensor]) -> None:
    """Do one step without what `optimizer.step()` imports, torch's compiler: 2 s of the 6 that a run needs to begin."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer, *closure)


def _do_without_compiler() -> None:
    """Keep optimisers from importing torch's compiler, which they do to keep their methods out of what is compiled.

    A torch that knows no such mark goes on importing it.
    """
    for method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict, Optimizer.load_state_dict):
        plain = inspect.unwrap(method)
        setattr(plain, "__dynamo_disable", plain)


def average_(averaged: VisionTransformer, model: VisionTransformer, step: int, most: float) -> None:
    """Move the exponential average of the weights that learn on by one step, in place.

    Args:
        step: averaged before this one.
        most: decay per step in the long run. At first it is (1 + step) / (10 + step), so that a short run is not left
            with its random start.

    Source: TensorFlow's `tf.train.ExponentialMovingAverage`, argument `num_updates`.
    """
    decay = min(most, (1 + step) / (10 + step))
    pairs = zip(averaged.parameters(), model.parameters(), strict=True)
    averages, learning = zip(*((one, own) for one, own in pairs if own.requires_grad), strict=True)
    get_ema_multi_avg_fn(decay)(averages, learning, step)
