"""Heads for classes from outside a checkpoint: similarity to directions, to a picture, and votes of the nearest ones.

Letters as in `vit.model`; E is the width of what pictures are compared in, n the number of known pictures.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.layers import linear

# What makes probabilities of logits: one class is the answer, each is a question of its own, or they are similarities.
Activation = Literal["softmax", "sigmoid", "none"]
SMALLEST = 1e-12  # a vote that counts as none, so that its logarithm is finite


class CosineHead(nn.Module):
    """Cosine similarity of a picture to one direction per class, scaled: how CLIP and SigLIP compare with texts.

    logits = scale * normalise(projection(features)) @ directions^T + bias

    Sources: Radford et al. 2021, arXiv 2103.00020, figure 3; Zhai et al. 2023, arXiv 2303.15343, algorithm 1.
    """

    directions: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, projection: nn.Module, directions: Tensor, scale: float = 1.0, bias: float = 0.0):
        """Args:
        projection: from pooled features (B, D) to what is compared (B, E); shared with the checkpoint.
        directions: (C, E), of any length but zero.
        """
        super().__init__()
        self.projection = projection
        self.register_buffer("directions", F.normalize(directions.float(), dim=-1))
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.register_buffer("bias", torch.tensor(float(bias)))

    def forward(self, features: Tensor) -> Tensor:
        """Pooled features (B, D) to logits (B, C)."""
        compared = F.normalize(self.projection(features), dim=-1)
        return self.scale * linear(compared, self.directions, None) + self.bias


class LikenessHead(nn.Module):
    """Cosine of a picture's features with one direction, whose gradient takes the length of the features for given.

    The cosine of two equal vectors has no gradient; that of what they share in the direction does.
    """

    direction: Tensor

    def __init__(self, direction: Tensor):
        """Args:
        direction: (D,), of any length but zero.
        """
        super().__init__()
        self.register_buffer("direction", F.normalize(direction.float()[None], dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        """Pooled features (B, D) to their cosine (B, 1)."""
        length = features.detach().norm(dim=-1, keepdim=True).clamp_min(SMALLEST)
        return linear(features / length, self.direction, None)


class NeighbourHead(nn.Module):
    """Votes of the k most similar known pictures, each worth exp(cosine / temperature); their logarithms are logits.

    A class without a vote has the logit of a vote of 1e-12. Ties go to the picture that was known first.

    Source: Wu et al. 2018, arXiv 1805.01978, section 3.4; k = 20 and temperature 0.07 as in DINO, arXiv 2104.14294.
    """

    known: Tensor
    classes: Tensor

    def __init__(self, known: Tensor, labels: Tensor, classes: int, k: int = 20, temperature: float = 0.07):
        """Args:
        known: (n, D), pooled features of the known pictures.
        labels: (n,), their classes, from 0.
        classes: C.
        """
        super().__init__()
        self.k, self.temperature = min(k, len(known)), temperature
        self.register_buffer("known", F.normalize(known.float(), dim=-1))
        self.register_buffer("classes", F.one_hot(labels.long(), classes).float())

    def forward(self, features: Tensor) -> Tensor:
        """Pooled features (B, D) to logits (B, C), whose softmax is each class's share of the votes."""
        return self.vote(self.similar(features))

    def similar(self, features: Tensor) -> Tensor:
        """Cosine of pooled features (B, D) with those of the known pictures: (B, n)."""
        return linear(F.normalize(features, dim=-1), self.known, None)

    def vote(self, similar: Tensor) -> Tensor:
        """Similarities (B, n) to logits (B, C); -inf lets a picture have no vote."""
        ranked = similar.sort(dim=-1, descending=True, stable=True)
        nearest, who = ranked.values[:, : self.k], ranked.indices[:, : self.k]
        # The nearest one's vote is 1: a common factor changes no share, and nothing overflows.
        votes = ((nearest - nearest[:, :1].detach()) / self.temperature).exp()
        return torch.einsum("bk,bkc->bc", votes, self.classes[who].to(votes.dtype)).clamp_min(SMALLEST).log()
