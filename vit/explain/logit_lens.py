"""The answer, read after every block."""

from typing import NamedTuple

import torch
from torch import Tensor

from vit.explain.cost import CACHED_NUMBERS
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer


class Lens(NamedTuple):
    """What the model would answer if it ended after a block, L of them.

    Attributes:
        answers: (L, C) probabilities, of the tokens that the head reads.
        classes: (L, N), the most probable class of each token by itself.
        certainty: (L, N), its probability.
        targets: (L, N), the probability of the class asked about.
        lengths: (L, N), of the tokens.
    """

    answers: Tensor
    classes: Tensor
    certainty: Tensor
    targets: Tensor
    lengths: Tensor

    @property
    def decided(self) -> int:
        """The block from which on the answer is the last one's."""
        best = self.answers.argmax(-1)
        other = (best != best[-1]).nonzero()
        return int(other[-1]) + 1 if len(other) else 0


@torch.inference_mode()
def logit_lens(model: VisionTransformer, pixels: Tensor, target: int) -> Lens:
    """Read the answer after every block: the last norm and the head, applied to what is there.

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
            every = []
            for some in x[0].split(max(1, CACHED_NUMBERS // (copies * x.shape[2] + model.config.num_classes))):
                every.append(model.probabilities(model.classify(model.read_alone(some))))
            each = torch.cat(every)  # (N, C)
            best = each.max(-1)
            blocks.append((answer, best.indices, best.values, each[:, target], x[0].norm(dim=-1)))
    return Lens(*(torch.stack(part) for part in zip(*blocks, strict=True)))
