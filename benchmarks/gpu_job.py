"""What all steps of `gpu.py` share: their arguments, a model with random parameters, comparisons with the CPU."""

from pathlib import Path
from typing import Any, NamedTuple


class Job(NamedTuple):
    """The arguments of a step.

    Attributes:
        device: "cuda:0", or "cpu" in a dry run.
        dry: use tiny sizes, only to check that the step runs.
        out: folder of the results; a step may create a folder of its own there.
        data: dataset of step `cifar`.
        photos: dataset of step `photos`.
        seconds: time limit of this process [s].
    """

    device: str
    dry: bool
    out: Path
    data: str
    seconds: float
    photos: str = ""


Result = dict[str, Any]


def tiny(**changes: Any) -> Any:
    """Return a model with every parameter random, because the zeros of the initialisation would hide errors."""
    import torch

    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

    sizes = dict(image_size=(32, 32), patch_size=8, num_classes=5, dim=64, depth=3, heads=2, mlp_dim=128)
    model = VisionTransformer(ViTConfig(**sizes | changes))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            scale = 1.5 * parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 0.3
            parameter.copy_(noise * scale + (parameter.ndim == 1))
    return model.eval()


def relative_difference(one: Any, other: Any) -> float:
    """Return the largest difference between two tensors, relative to the largest value of the second."""
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-12))


def within(figures: dict[str, float], most: float) -> Result:
    """Return the figures if none exceeds the tolerance; raise AssertionError otherwise."""
    worse = {name: value for name, value in figures.items() if not value <= most}
    if worse:
        raise AssertionError(f"More than {most:g} apart from the CPU: {worse}")
    return {"relative difference": figures, "allowed": most}


def wait_for(device: str) -> None:
    """Wait until the device has finished all queued work."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def picture(side: int = 32, count: int = 1) -> Any:
    """Return normalised noise (count, 3, side, side), the same on every call."""
    import torch

    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))
