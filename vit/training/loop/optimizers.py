"""Optimizers and weight averaging."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from vit.model.cpu import has_bfloat16
from vit.model.transformer import VisionTransformer
from vit.training.loop.adaptation import rate_share
from vit.training.loop.config import TrainConfig


def make_optimizers(model: VisionTransformer, config: TrainConfig, device: torch.device) -> list[Optimizer]:
    """Create AdamW for all trained parameters, or Muon for the blocks' matrices and AdamW for the rest.

    Weight decay applies to matrices, but not to biases, scales, position embeddings, prefix tokens and adapters.

    Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    _avoid_compiler_import()
    decayed, plain, matrices = _Groups(config.lr), _Groups(config.lr), _Groups(config.muon_lr)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        share = rate_share(name, len(model.blocks), config.layer_decay)
        adapter = ".parametrizations." in name
        if parameter.ndim == 1 or adapter or name.endswith(("pos_embed", "prefix_tokens", "position_bias")):
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
        optimizers.append(Muon(muon, lr=config.muon_lr, weight_decay=config.weight_decay))
    return optimizers


class Muon(Optimizer):
    """Momentum with orthogonalised updates: `torch.optim.Muon` with all matrices of a shape in one batch.

    `torch.optim.Muon` loops over the matrices and launches 23 kernels for each, which dominates the time of a small
    model on a GPU. The update is bit-identical to it on a CPU with bfloat16 units; the state dict has the same keys.

    Args:
        params: matrices, or groups of them.
        lr: learning rate; multiplied by the square root of rows over columns for matrices with more rows.
        weight_decay: per step, multiplied by the learning rate.
        momentum: decay of the gradient's moving average; with Nesterov's look-ahead.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """

    def __init__(self, params: Any, lr: float, weight_decay: float = 0.0, momentum: float = 0.95):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay, momentum=momentum))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for shape, matrices in shapes.items():
                self._update(matrices, shape, group["lr"], group["weight_decay"], group["momentum"])

    def _update(
        self, matrices: list[Tensor], shape: torch.Size, lr: float, weight_decay: float, momentum: float
    ) -> None:
        gradients: list[Tensor] = [matrix.grad for matrix in matrices if matrix.grad is not None]
        for matrix in matrices:
            if not self.state[matrix]:
                self.state[matrix]["momentum_buffer"] = torch.zeros_like(matrix)
        averages = [self.state[matrix]["momentum_buffer"] for matrix in matrices]
        torch._foreach_lerp_(averages, gradients, 1 - momentum)
        directions = orthogonalised(torch.stack(torch._foreach_lerp(gradients, averages, momentum)))
        torch._foreach_mul_(matrices, 1 - lr * weight_decay)
        rate = lr * max(1, shape[0] / shape[1]) ** 0.5
        torch._foreach_add_(matrices, list(directions.to(matrices[0].dtype).unbind()), alpha=-rate)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Move all singular values of each matrix towards 1, with five Newton-Schulz iterations.

    Products are computed in bfloat16 if the hardware supports it: a CPU without bfloat16 units takes ten times as long
    in bfloat16 as in float32.

    Args:
        matrices: (n, rows, cols).

    Returns:
        (n, rows, cols), bfloat16 or float32.

    Source: Jordan et al. 2024, kellerjordan.github.io/posts/muon, with its coefficients.
    """
    # With x = U S V', an iteration computes a x + b (x x') x + c (x x')^2 x = U (a S + b S^3 + c S^5) V': the
    # polynomial acts on the singular values and leaves U and V alone. Dividing by the norm brings all of them below 1;
    # five rounds move all but the smallest to between about 0.7 and 1.2, without a decomposition.
    x = matrices if matrices.is_cpu and not has_bfloat16() else matrices.bfloat16()
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x  # so that the Gram matrix has the size of the shorter side
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=-4.775, alpha=2.0315), x, beta=3.4445)
    return x.mT if tall else x


class _Groups(dict[float, list[nn.Parameter]]):
    """Parameters grouped by their share of a learning rate."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def add(self, share: float, parameter: nn.Parameter) -> None:
        self.setdefault(share, []).append(parameter)

    def listed(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return parameter groups for an optimizer."""
        return [
            {"params": parameters, "lr": self.rate * share, "weight_decay": weight_decay}
            for share, parameters in self.items()
        ]


def step_(optimizer: Optimizer, *closure: Callable[[], Tensor]) -> None:
    """Do one step without the import of torch's compiler in `optimizer.step()`, which takes 2 of a run's first 6 s."""
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer, *closure)


def _avoid_compiler_import() -> None:
    """Keep optimizers from importing torch's compiler, which they need only to exclude their methods from compilation.

    In a version of torch without this attribute, they import it as before.
    """
    for method in (Optimizer.add_param_group, Optimizer.zero_grad, Optimizer.state_dict, Optimizer.load_state_dict):
        plain = inspect.unwrap(method)
        setattr(plain, "__dynamo_disable", plain)


def average_(averaged: VisionTransformer, model: VisionTransformer, step: int, most: float) -> None:
    """Update the exponential moving average of the trained weights, in place.

    Args:
        step: number of previous updates.
        most: decay per step in the long run. In the first steps it is (1 + step) / (10 + step), so that the average of
            a short run does not keep its random initialisation.

    Source: TensorFlow's `tf.train.ExponentialMovingAverage`, argument `num_updates`.
    """
    decay = min(most, (1 + step) / (10 + step))
    pairs = zip(averaged.parameters(), model.parameters(), strict=True)
    averages, learning = zip(*((one, own) for one, own in pairs if own.requires_grad), strict=True)
    get_ema_multi_avg_fn(decay)(averages, learning, step)
