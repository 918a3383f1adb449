"""Heads for classes that a checkpoint was not trained on: cosine similarity, and votes of nearest neighbours.

Letters as in `vit.model`; E is the width of the shared embedding space, n the number of known pictures.
"""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.model.layers import linear

# Logits to probabilities: of exclusive classes, of independent ones, of similarities, and none of other numbers.
Activation = Literal["softmax", "sigmoid", "cosine", "none"]
SMALLEST = 1e-12  # lower bound of a vote, so that its logarithm is finite


class CosineHead(nn.Module):
    """Scaled cosine similarity of a picture to one direction per class, as CLIP and SigLIP compare pictures with texts.

    logits = scale * normalise(projection(features)) @ directions^T + bias

    Sources: Radford et al. 2021, arXiv 2103.00020, figure 3; Zhai et al. 2023, arXiv 2303.15343, algorithm 1.
    """

    directions: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, projection: nn.Module, directions: Tensor, scale: float = 1.0, bias: float = 0.0):
        """Args:
        projection: maps pooled features (B, D) to the embedding space (B, E); shared with the checkpoint.
        directions: (C, E), nonzero.
        """
        super().__init__()
        self.projection = projection
        self.register_buffer("directions", F.normalize(directions.float(), dim=-1))
        self.register_buffer("scale", torch.tensor(float(scale)))
        self.register_buffer("bias", torch.tensor(float(bias)))

    def forward(self, features: Tensor) -> Tensor:
        """Map pooled features (B, D) to logits (B, C)."""
        compared = F.normalize(self.projection(features), dim=-1)
        return self.scale * linear(compared, self.directions, None) + self.bias


class LikenessHead(nn.Module):
    """Cosine similarity of a picture's features with one direction; gradients treat the features' norm as constant.

    The gradient of the true cosine vanishes when both vectors are parallel. With a constant norm it does not.
    """

    direction: Tensor

    def __init__(self, direction: Tensor):
        """Args:
        direction: (D,), nonzero.
        """
        super().__init__()
        self.register_buffer("direction", F.normalize(direction.float()[None], dim=-1))

    def forward(self, features: Tensor) -> Tensor:
        """Map pooled features (B, D) to cosine similarities (B, 1)."""
        length = features.detach().norm(dim=-1, keepdim=True).clamp_min(SMALLEST)
        return linear(features / length, self.direction, None)


class DifferenceHead(nn.Module):
    """The logit of one class minus that of another."""

    def __init__(self, head: nn.Module, target: int, against: int):
        """Args:
        head: maps pooled features (B, D) to logits (B, C); shared with the model.
        target, against: indices of the two classes.
        """
        super().__init__()
        self.head, self.target, self.against = head, target, against

    def forward(self, features: Tensor) -> Tensor:
        """Map pooled features (B, D) to differences (B, 1)."""
        logits = self.head(features)
        return logits[:, [self.target]] - logits[:, [self.against]]


class NeighbourHead(nn.Module):
    """Weighted k-nearest-neighbour classifier; a vote weighs exp(cosine / temperature), logits are log sums of votes.

    Sums of votes are at least 1e-12. Ties go to the picture with the lower index.

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
        """Map pooled features (B, D) to logits (B, C), whose softmax is each class's share of the votes."""
        return self.vote(self.similar(features))

    def similar(self, features: Tensor) -> Tensor:
        """Compute cosine similarities (B, n) of pooled features (B, D) with the known pictures."""
        return linear(F.normalize(features, dim=-1), self.known, None)

    def vote(self, similar: Tensor) -> Tensor:
        """Map similarities (B, n) to logits (B, C); a similarity of -inf excludes a picture from the vote."""
        ranked = similar.sort(dim=-1, descending=True, stable=True)
        nearest, indices = ranked.values[:, : self.k], ranked.indices[:, : self.k]
        # Normalise so that the nearest picture's vote is 1: shares stay the same, and exp cannot overflow.
        votes = ((nearest - nearest[:, :1].detach()) / self.temperature).exp()
        return torch.einsum("bk,bkc->bc", votes, self.classes[indices].to(votes.dtype)).clamp_min(SMALLEST).log()
