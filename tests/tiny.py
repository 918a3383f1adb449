"""A tiny model with random parameters, and the difference between two outputs."""

from typing import Any

import torch

TINY: dict[str, Any] = {
    "image_size": (32, 32),
    "patch_size": 8,
    "num_classes": 5,
    "dim": 64,
    "depth": 2,
    "heads": 2,
    "mlp_dim": 128,
}
LABELS = ("apple", "bus", "cat", "dog", "éléphant")


def fill(model: Any, seed: int = 0) -> Any:
    """Set every parameter to random values of a scale that makes attention uneven.

    The usual initial values, zero heads and LayerScale of 1e-5, would hide almost any mistake.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2 and parameter.shape[0] > 1:
                parameter.copy_(noise * 1.5 * parameter[0].numel() ** -0.5)
            elif name.endswith("weight") or "scale" in name:  # LayerNorm, LayerScale
                parameter.copy_(1 + 0.3 * noise)
            else:
                parameter.copy_(0.3 * noise)
    return model.eval()


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference relative to the largest value."""
    return float(((one - other).abs().max() / other.abs().max()).detach())
