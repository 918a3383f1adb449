"""A model's output for a fixed input, saved to detect checkpoints that load but compute something else.

Some mistakes, such as a wrong number of heads, load without any error.
"""

import math

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

FINGERPRINT_LOGITS = 100
FINGERPRINT_TOLERANCE = 1e-3  # of the largest logit; machines differ by 1e-5, a wrong number of heads by 0.3


# --- The answer to one picture ---------------------------------------------------------------------------------------


def fingerprint(model: VisionTransformer) -> list[float]:
    """Return the first logits for a fixed picture, or features of a model without a head."""
    with torch.inference_mode():
        logits = model(_noise_picture(model.config)).logits
    return [float(f"{value:.7g}") for value in logits[0, :FINGERPRINT_LOGITS].tolist()]


def _noise_picture(config: ViTConfig) -> Tensor:
    """Return noise from -1 to 1 made with integer arithmetic, which is identical on every machine and version."""
    mask = (1 << 32) - 1
    shape = (1, config.channels, *config.image_size)
    noise, begin = torch.empty(math.prod(shape)), 1
    for part in noise.split(1 << 20):  # the integers take several times the memory of the picture
        x = torch.arange(begin, begin + len(part))
        # Mix the bits of each index with the first two primes of xxHash.
        for factor, shift in ((2654435761, 15), (2246822519, 13)):
            x = (x * factor) & mask
            x = x ^ (x >> shift)
        part.copy_(x.double() / 2**31 - 1)
        begin += len(part)
    return noise.reshape(shape)


def check_fingerprint(model: VisionTransformer, stored: object) -> None:
    """Compare a model's fingerprint with the one that was saved.

    Args:
        stored: untrusted value from the file, of any type; None if the file has none.

    Raises:
        InvalidCheckpoint: the results differ, or are NaN or infinite.
    """
    answer = torch.tensor(fingerprint(model))
    if not torch.isfinite(answer).all():
        raise InvalidCheckpoint("The model gives NaN or infinite results; its weights are damaged.")
    if stored is None:
        return
    numbers = isinstance(stored, list) and all(type(value) in (int, float) and abs(value) < 1e30 for value in stored)
    fits = numbers and len(stored) == len(answer)  # type: ignore[arg-type]
    expected = torch.tensor(stored if fits else [], dtype=torch.float32)
    if not fits or (answer - expected).abs().max() > FINGERPRINT_TOLERANCE * expected.abs().max() + 1e-6:
        raise InvalidCheckpoint(
            "The checkpoint's output differs from the one recorded when it was saved: weights or config were changed "
            "since. Save or download it again."
        )
