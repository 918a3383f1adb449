"""A map that becomes more faithful with every mask: AttnLRP, corrected by what the masks show.

A patch's part in the drop of the class is modelled as a share of its relevance by AttnLRP, plus an unknown remainder.
Before any mask is measured, the remainder of two patches correlates as much as the model's own features of them are
alike, and is larger where relevance is. The measured drops then give the most probable remainder, in closed form: a
Gaussian process, as in kriging. So few masks say something about many patches, and many masks outweigh AttnLRP.

Letters: P patches, M masks, D width.

Sources: AttnLRP, see `vit.explain.lrp`; Gaussian processes, Rasmussen & Williams 2006, eq. 2.38. Their combination and
its constants are our own, chosen on pictures of CIFAR-10 and tried on others, see docs/measuring.md.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.explain.components import token_features
from vit.explain.faithfulness_correlation import FITTED, MASKED_SHARE, random_masks, score_drops
from vit.explain.lrp import attnlrp
from vit.explain.settings import BEST_MAP_MASKS
from vit.model.attention import Hook
from vit.model.cost import Progress
from vit.model.transformer import VisionTransformer

_RELEVANCE = 0.6  # standard deviation of the drops that relevance explains, as a share of all
_ALIKE = 0.3  # 1 minus the cosine of two patches' features at which their remainders' correlation has fallen to 1 / e
_OWN = 0.1  # variance of a patch's remainder that it shares with no other, so that many masks can tell all apart
_NOISES = torch.logspace(-3, 1, 17, dtype=torch.float64)
_DRAWS = 3  # weight of the assumption that the noise is as large as the remainder, in drops
_GAIN = 0.01  # expected gain in correlation by all other masks below which they are not worthwhile
# Size of AttnLRP, relative to the fitted map, that is added to it before any mask, and masks after which half of it is
# left. By SaCo, which covers less at once, AttnLRP is above maps fitted to few masks, and the sum is not below.
_ADDED, _HALVED = 0.5, 400
_FLOOR = 0.3  # smallest share of the mean relevance that a patch's remainder is scaled by


class Fit(NamedTuple):
    """A best map, and what its masks tell about it.

    Attributes:
        weights: float64 (P,), the map: `fitted`, and a share of AttnLRP that shrinks with the masks.
        fitted: float64 (P,), the most probable part of each patch in the drop of the class.
        masks: number of masks that it is fitted to.
        correlation: faithfulness of `fitted`, estimated by predicting each drop from the others.
        ceiling: estimated maximum of any map, rather too high; the rest of the drops is not a sum over patches.
        complete: no mask is left, or the others are expected to raise the faithfulness by less than 0.01.
    """

    weights: Tensor
    fitted: Tensor
    masks: int
    correlation: float
    ceiling: float
    complete: bool


class BestMap:
    """What is known about a picture before and after masks are measured.

    Attributes:
        relevance: float64 (P,), AttnLRP's.
        alike: float64 (P, P), covariance of the remainders, in any unit.
    """

    def __init__(self, relevance: Tensor, features: Tensor):
        """Args:
        relevance: (P,), of AttnLRP, in any unit.
        features: (P, D), of the patches half-way through the model.
        """
        self.relevance = relevance.cpu().double()
        sizes = self.relevance.abs()
        scale = (sizes + _FLOOR * sizes.mean()).sqrt()
        directions = F.normalize(features.cpu().double(), dim=-1)
        shared = ((directions @ directions.T - 1) / _ALIKE).exp()
        self.alike = scale[:, None] * (shared + _OWN * torch.eye(len(scale), dtype=torch.float64)) * scale

    @classmethod
    def of(cls, model: VisionTransformer, pixels: Tensor, target: int, hook: Hook | None = None) -> "BestMap":
        """Run a picture (1, channels, height, width) through the model, forward and backward."""
        prefix = len(model.config.prefix)
        with torch.inference_mode():
            features = token_features(model, pixels, model.config.depth // 2, hook)
        return cls(attnlrp(model, pixels, target, hook=hook)[prefix:], features[prefix:])

    def fit(self, masks: Tensor, drops: Tensor) -> Fit:
        """Compute the most probable part of each patch in the drop of the class.

        Args:
            masks: bool (planned, P), see `random_masks`.
            drops: (M,), of the first masks, see `score_drops`; with fewer than two, the map is AttnLRP's.
        """
        count, patches = len(drops), len(self.relevance)
        deviation = drops.double().std() if count > 1 else torch.zeros(())
        if not deviation > 0:
            return Fit(self.relevance, self.relevance, count, 0.0, 0.0, count == len(masks))
        # A map's sums over masks have this variance, relative to the sum of squares of the map less its mean.
        share = MASKED_SHARE * (1 - MASKED_SHARE) * patches / (patches - 1)
        centred = self.relevance - self.relevance.mean()
        prior = _RELEVANCE * deviation * centred / (share**0.5 * centred.norm()).clamp_min(1e-30)
        size = self.alike.trace() - self.alike.sum() / patches
        alike = self.alike * deviation**2 / (share * size).clamp_min(1e-30)
        covered = masks[:count].double() - masks[:count].double().mean(0)
        centred_drops = drops.double() - drops.double().mean()
        rest = centred_drops - covered @ prior
        sizes, directions = torch.linalg.eigh(covered @ alike @ covered.T)
        sizes, along = sizes.clamp_min(0), directions.T @ rest
        noise = _most_probable_noise(sizes / deviation**2, (along / deviation).square()) * deviation**2
        fitted = prior + alike @ covered.T @ directions @ (along / (sizes + noise))
        # Leave-one-out, the mean of the drops included: the sum over a mask of the weights that are fitted without it.
        left_out = (directions / (sizes + noise)) @ directions.T - 1 / (count * noise)  # (M, M)
        predicted = centred_drops - (1 - 1 / count) * (left_out @ rest) / left_out.diag()
        # Variances of the drop of a fresh mask: what the map predicts, what it could with all masks, what none could.
        found = share * (fitted - fitted.mean()).square().sum()
        unknown = deviation**2 - share * _explained(covered, alike, noise)
        total = found + unknown + noise
        every = masks.double() - masks.double().mean(0)
        later = found + unknown - deviation**2 + share * _explained(every, alike, noise)
        correlation = float(torch.corrcoef(torch.stack([predicted, centred_drops]))[0, 1])
        ceiling = max(correlation, float((1 - noise / total).sqrt()))
        complete = count == len(masks) or bool((later / total).sqrt() - (found / total).sqrt() < _GAIN)
        added = _ADDED / (1 + count / _HALVED) * (fitted - fitted.mean()).norm() * F.normalize(centred, dim=0)
        return Fit(fitted + added, fitted, count, correlation, ceiling, complete)


def _explained(covered: Tensor, alike: Tensor, noise: Tensor) -> Tensor:
    """Return the variance of the remainder that masks explain, in units of the variance of a mask's sum.

    Source: Rasmussen & Williams 2006, eq. 2.26; it does not depend on the drops, so masks can be judged in advance.
    """
    covariance = covered @ alike  # (M, P)
    spread = covariance - covariance.mean(1, keepdim=True)
    identity = torch.eye(len(covered), dtype=torch.float64)
    return torch.linalg.solve(covariance @ covered.T + noise * identity, spread @ spread.T).trace()


def _most_probable_noise(sizes: Tensor, squares: Tensor) -> Tensor:
    """Return the variance of the noise by which the drops are most probable, relative to that of the remainder.

    Args:
        sizes: (M,), eigenvalues of the covariance of the drops without noise.
        squares: (M,), squares of the drops along its eigenvectors.

    Source: Rasmussen & Williams 2006, eq. 5.8; few drops cannot tell, so that the noise then stays near 1.
    """
    variances = sizes + _NOISES[:, None]  # (noises, M)
    scales = ((squares / variances).sum(1) + _DRAWS) / (len(sizes) - 1 + _DRAWS)
    evidence = (len(sizes) - 1) * scales.log() + variances.log().sum(1) + 2 * _DRAWS * _NOISES.log10().square()
    return _NOISES[evidence.argmin()]


def best_map(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    masks: int = BEST_MAP_MASKS,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """Measure masks and return the best map's weight for every token: (N,), 0 for prefix tokens, negative against it.

    Args:
        model: the model.
        pixels: (1, channels, height, width), normalised.
        target: index of the class.
        masks: number of masks, each a forward pass; AttnLRP takes about four.
        hook: replaces head outputs, see `VisionTransformer.forward`.
        progress: called with the fraction that is done.
    """
    known = BestMap.of(model, pixels, target, hook)
    drawn = random_masks(len(known.relevance), masks, FITTED)
    weights = known.fit(drawn, score_drops(model, pixels, target, drawn, hook, progress)).weights
    return F.pad(weights.float(), (len(model.config.prefix), 0))
