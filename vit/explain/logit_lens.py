"""Logit lens: the model's prediction after every block."""

from typing import NamedTuple

import torch
from torch import Tensor

from vit.model.cost import CACHED_NUMBERS
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer


class Lens(NamedTuple):
    """Predictions of the final norm and head applied after each of the L blocks.

    Attributes:
        answers: (L, C), class probabilities of the whole picture.
        targets: (L, N), probability of the target class for each single token.
        lengths: (L, N), norms of the tokens.
    """

    answers: Tensor
    targets: Tensor
    lengths: Tensor

    @property
    def decided(self) -> int:
        """The first block from which on the predicted class stays that of the last block."""
        best = self.answers.argmax(-1)
        other = (best != best[-1]).nonzero()
        return int(other[-1]) + 1 if len(other) else 0


@torch.inference_mode()
def logit_lens(model: VisionTransformer, pixels: Tensor, target: int) -> Lens:
    """Apply the final norm and the head after every block.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.

    Source: nostalgebraist 2020, "interpreting GPT: the logit lens"; for Vision Transformers as in ViT-Prisma.
    """
    x, steps = model.walk(pixels, every=True)
    copies = len(model.config.prefix) + 1
    blocks = []
    with onednn():
        for step in steps:
            x = step(x)
            answer = model.probabilities(model.classify(x[:, model.read])[0])
            parts = []
            for part in x[0].split(max(1, CACHED_NUMBERS // (copies * x.shape[2] + model.config.num_classes))):
                parts.append(model.probabilities(model.classify(model.single_token_inputs(part)))[:, target])
            blocks.append((answer, torch.cat(parts), x[0].norm(dim=-1)))
    return Lens(*(torch.stack(part) for part in zip(*blocks, strict=True)))
