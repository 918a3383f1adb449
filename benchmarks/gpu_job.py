"""What every step of `gpu.py` is given and uses: the job, a model with random parameters, comparisons with the CPU."""

from pathlib import Path
from typing import Any, NamedTuple


class Job(NamedTuple):
    """What a step is told.

    Attributes:
        device: "cuda:0", or "cpu" where it is tried.
        dry: tiny sizes, to see that it runs.
        out: the folder of results; a step may have a folder of its own there.
        data: of the training of `cifar`.
        photos: of the training of `photos`.
        everyday, backbone: data of the training of `everyday`, and the checkpoint that it starts from.
        seconds: that this process may take.
    """

    device: str
    dry: bool
    out: Path
    data: str
    seconds: float
    photos: str = ""
    everyday: str = ""
    backbone: str = ""


Result = dict[str, Any]


def tiny(**changes: Any) -> Any:
    """A model with every parameter random: zeros, as it starts with, would hide errors."""
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


def apart(one: Any, other: Any) -> float:
    """The largest difference between two tensors, relative to the largest number of the second."""
    one, other = one.detach().float().cpu(), other.detach().float().cpu()
    return float((one - other).abs().max() / other.abs().max().clamp_min(1e-12))


def within(figures: dict[str, float], most: float) -> Result:
    """The figures, if none is above what is allowed."""
    worse = {name: value for name, value in figures.items() if not value <= most}
    if worse:
        raise AssertionError(f"More than {most:g} apart from the CPU: {worse}")
    return {"relative difference": figures, "allowed": most}


def wait_for(device: str) -> None:
    """Until the device has done what it was told."""
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def picture(side: int = 32, count: int = 1) -> Any:
    """Normalised noise (count, 3, side, side), the same each time."""
    import torch

    return torch.randn(count, 3, side, side, generator=torch.Generator().manual_seed(7))
