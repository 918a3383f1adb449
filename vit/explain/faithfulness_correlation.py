"""Faithfulness correlation: whether a map predicts how far the class's score drops when patches are masked.

Random masks are drawn once for a picture and a class, and one forward pass per mask measures its drop. Any number of
maps can then be judged without further passes: a map's score is the correlation between its sums over the masks and the
drops. It is compared with the scores of shifted and mirrored copies of the map, which have the same values and
smoothness in other places, and with the removal map, the most faithful additive map.

Letters: P patches, M masks.

Sources: faithfulness correlation, Bhatt et al. 2020, arXiv 2005.00631, definition in section 3; sensitivity-n, Ancona
et al. 2018, arXiv 1711.06104, section 5. The comparison with copies is our own.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.explain.occlusion import hide_patches
from vit.model.attention import Hook, explicit_attention
from vit.model.cost import Progress, Size, images_per_batch, pass_seconds, products, size_of
from vit.model.cpu import exact_on_cpu, has_bfloat16, onednn
from vit.model.transformer import VisionTransformer, rounded

MASKED_SHARE = 0.3  # share of patches that each mask covers
SIGNIFICANCE = 0.05  # significance level for "better than chance"
REMOVAL_MASKS = 256  # masks for the method `removal`
FITTED = -1  # seed of the masks that maps are fitted to; those that judge maps have seeds from 0 on
HELD_OUT = 1  # seed of the masks that judge maps of several pictures
_MIN_DROP = 0.01  # minimum change of the log-probability by some mask for a verdict
_ROUNDING = 1e-4  # minimum change of a number without a known unit, relative to it; a hundred times float32's errors
_ROUNDED_PRODUCTS = 5e9  # multiply-adds of a pass from which bfloat16 is worthwhile
_COMPARED = 8  # drops that are compared between float32 and bfloat16
# Minimum correlation r of these drops for bfloat16. Rounding is noise that is independent of the map: it raises the
# standard error of a map's correlation by a factor of 1 / r, here by at most 2%.
_AGREEMENT = 0.98
_LEAST_ROUNDED = 0.1  # minimum largest drop for bfloat16; smaller drops would show rounding errors
_BATCHES = 8  # batches that pass through a block together, so that its weights are rounded once for all of them
_BLOCK = 64  # masks per random seed, so that the first masks do not depend on the count
_COPIES = 1024  # copies of a map that are judged in one batch
_FOLDS = 8  # folds of the cross-validated correlation
_agreeing = WeakKeyDictionary[nn.Module, bool]()  # by a model's blocks: whether bfloat16 agrees with float32
_STRENGTHS = torch.logspace(-3, 4, 29, dtype=torch.float64)  # regularisation strengths of the ridge regression

Word = Literal["better than chance", "cannot be decided yet", "no better than chance"]


def random_masks(patches: int, count: int, seed: int = 0) -> Tensor:
    """Draw random masks that each cover 30% of the patches: bool (count, patches), True for covered patches.

    The first n masks are the same for every count.
    """
    blocks = []
    for block in range(-(-count // _BLOCK)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)  # different for every seed and block
        order = torch.rand(_BLOCK, patches, generator=generator).argsort(1)
        blocks.append(torch.zeros(_BLOCK, patches, dtype=torch.bool).scatter_(1, order[:, : _size(patches)], True))
    return torch.cat(blocks)[:count] if blocks else torch.zeros(0, patches, dtype=torch.bool)


def _size(patches: int) -> int:
    return max(1, round(MASKED_SHARE * patches))


@torch.inference_mode()
def score_drops(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    masks: Tensor,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """Measure how far the class's log-probability, or a number without probabilities, drops under each mask.

    Large models run in bfloat16 if the processor supports it and eight drops correlate with those in float32 by 0.98.
    For the shipped checkpoint this changes a map's correlation by at most 0.01, while 256 masks estimate it with an
    error of 0.06.

    Args:
        pixels: (1, channels, height, width), normalised.
        target: index of the class.
        masks: bool (M, P), on any device, see `random_masks`; covered patches get their mean colour.
        hook: replaces head outputs, see `VisionTransformer.forward`.
        progress: called with the fraction that is done, after every block; it may raise to cancel.

    Returns:
        float64 (M,), on the CPU.
    """
    if not len(masks):
        return torch.zeros(0, dtype=torch.float64)
    masks = masks.to(pixels.device)
    with onednn():
        if hook is None and model.activation != "none" and _agrees_in_bfloat16(model, pixels, target):
            drops = _drops(model, pixels, target, masks, None, progress, bfloat16=True)
            if drops.abs().max() >= _LEAST_ROUNDED:
                return drops
        return _drops(model, pixels, target, masks, hook, progress)


def _drops(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    masks: Tensor,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
    bfloat16: bool = False,
) -> Tensor:
    """Implement `score_drops` in float32 or bfloat16."""
    side = model.config.patch_size
    rows, cols = pixels.shape[2] // side, pixels.shape[3] // side
    covered = hide_patches(pixels, range(rows * cols), side)
    per_batch, scores = images_per_batch(model.config, size_of(pixels)), list[Tensor]()
    if bfloat16:  # twice as many numbers fit into the caches
        per_batch *= 2
    attend = explicit_attention if bfloat16 else None  # torch's fused attention is slower in bfloat16 on a CPU
    with torch.autocast("cpu", torch.bfloat16) if bfloat16 else nullcontext():
        unmasked = _log_probability(model, model(pixels, hook=hook).logits, target)
        # Masks cover whole patches, so tokens of masked pictures are tokens of these two: embed only two pictures.
        both, steps = model.walk(torch.cat([pixels, covered]), attend=attend, hook=hook, every=hook is not None)
        for chunk in masks.split(_BATCHES * per_batch):
            done = sum(map(len, scores))
            masked = F.pad(chunk, (len(model.config.prefix), 0))[..., None].split(per_batch)
            batches = [torch.where(mask, both[1], both[0]) for mask in masked]
            for number, step in enumerate(steps, 1):
                step = replace(step, block=rounded(step.block)) if bfloat16 else step
                batches = [step(x) for x in batches]
                progress((done + len(chunk) * number / len(steps)) / len(masks))
            for x in batches:
                logits = model.classify(x if hook is None else x[:, model.read])
                scores.append(_log_probability(model, logits, target))
    return (unmasked - torch.cat(scores)).cpu()


def _agrees_in_bfloat16(model: VisionTransformer, pixels: Tensor, target: int) -> bool:
    """Whether bfloat16 is faster on this processor, and accurate enough for this model.

    The accuracy is measured once per model and cached by its blocks, which models with other heads share.
    """
    large = products(model.config, size_of(pixels)) >= _ROUNDED_PRODUCTS
    if not (large and exact_on_cpu(pixels) and has_bfloat16()):
        return False
    if model.blocks not in _agreeing:
        masks = random_masks(pixels[0, 0].numel() // model.config.patch_size**2, _COMPARED)
        exact, approximate = (_drops(model, pixels, target, masks, bfloat16=b) for b in (False, True))
        correlation = float(torch.corrcoef(torch.stack([exact, approximate]))[0, 1])
        if math.isnan(correlation):  # all drops are equal: do not cache a result, the next picture may allow one
            return False
        _agreeing[model.blocks] = correlation >= _AGREEMENT
    return _agreeing[model.blocks]


def seconds(model: VisionTransformer, size: Size, count: int) -> float:
    """Estimate the duration of `score_drops` with `count` masks for an input (height, width) [px]: seconds."""
    return pass_seconds(model, size, 1 + count)


def masks_are_informative(drops: Tensor, output: float | None = None) -> bool:
    """Whether the masks change the class's score, or a number's unmasked value `output`, enough to judge maps."""
    least = _MIN_DROP if output is None else max(_ROUNDING * abs(output), 1e-30)
    return bool(len(drops) and drops.abs().max() >= least)


def _log_probability(model: VisionTransformer, logits: Tensor, target: int) -> Tensor:
    return model.log_scores(logits.double())[:, target]


def correlations(maps: Tensor, masks: Tensor, drops: Tensor) -> Tensor:
    """Correlate each map's sums over the masks with the drops, -1 to 1; 0 for a constant map.

    Args:
        maps: (..., P).
        masks: bool (M, P).
        drops: (M,), see `score_drops`.

    Returns:
        float64 (...).
    """
    maps = maps.to(drops.device)
    sums = maps.double() @ masks.to(drops.device).double().T
    sums, drops = sums - sums.mean(-1, keepdim=True), drops.double() - drops.double().mean()
    products = sums.norm(dim=-1) * drops.norm()
    # The sums of a constant map differ only by rounding errors.
    constant = sums.norm(dim=-1) <= 1e-9 * maps.double().norm(dim=-1) * masks.shape[1] ** 0.5
    return torch.where(constant | (products == 0), 0.0, (sums @ drops) / products.clamp_min(1e-300))


def copies(heatmap: Tensor) -> Tensor:
    """Return all cyclic shifts of the map and of its mirror image, except the map itself.

    Args:
        heatmap: (rows, cols).

    Returns:
        (2 P - 1, rows, cols).
    """
    rows, cols = heatmap.shape
    down, right = torch.arange(rows), torch.arange(cols)
    shifted = (down[:, None] + down) % rows, (right[:, None] + right) % cols  # (shift, position) each
    every = [
        source[shifted[0][:, None, :, None], shifted[1][None, :, None, :]].reshape(-1, rows, cols)
        for source in (heatmap, heatmap.flip(1))
    ]
    return torch.cat(every)[1:]  # the first is the map itself


class Verdict(NamedTuple):
    """Faithfulness of a map to a picture and a class.

    Attributes:
        correlation: between its sums over the masks and the drops.
        reach: 95% quantile of the correlations of its copies.
        p: p-value, the share of copies with at least this correlation, the map itself included.
        error: standard error of the correlation, due to the number of masks.
    """

    correlation: float
    reach: float
    p: float
    error: float

    @property
    def label(self) -> Word:
        """The verdict in words."""
        if self.p <= SIGNIFICANCE:
            return "better than chance"
        near = self.correlation + 2 * self.error > self.reach
        return "cannot be decided yet" if near else "no better than chance"


def faithfulness_verdict(heatmap: Tensor, masks: Tensor, drops: Tensor) -> Verdict:
    """Compare a map's faithfulness correlation with that of its copies.

    Args:
        heatmap: (rows, cols).
        masks, drops: see `correlations`; three masks at least.
    """
    value = float(correlations(heatmap.flatten(), masks, drops))
    batches = copies(heatmap).flatten(1).split(_COPIES)
    others = torch.cat([correlations(maps, masks, drops) for maps in batches])
    reached = int((others >= value - 1e-12).sum())  # with a tolerance for rounding: equal copies count
    reach = float(others.quantile(1 - SIGNIFICANCE)) if len(others) else 0.0
    error = (1 - value**2) / (len(drops) - 1) ** 0.5
    return Verdict(value, reach, (1 + reached) / (1 + len(others)), error)


class Removal(NamedTuple):
    """Result of the ridge regression of drops on masks.

    Attributes:
        weights: float64 (P,), contribution of each patch to the drop.
        ceiling: cross-validated correlation with the drops; the maximum that an additive map can reach.
    """

    weights: Tensor
    ceiling: float


def removal(masks: Tensor, drops: Tensor) -> Removal:
    """Fit the most faithful additive map, by ridge regression of the drops on the masks.

    Args:
        masks: bool (M, P).
        drops: (M,), see `score_drops`; eight at least.

    Sources: Hoerl and Kennard 1970, Technometrics 12, 55; the strength by generalised cross-validation, Golub et al.
    1979, Technometrics 21, 215.
    """
    guesses, true = torch.empty(len(drops), dtype=torch.float64), torch.empty(len(drops), dtype=torch.float64)
    fold = torch.arange(len(drops)) % _FOLDS
    for number in range(_FOLDS):
        out = fold == number
        guess, held_out = masks[out].double() @ _ridge(masks[~out], drops[~out]), drops[out].double()
        # Centre each fold by its own mean. The mean of the training folds is anticorrelated with that of the held-out
        # fold, which would bias the correlation.
        guesses[out], true[out] = guess - guess.mean(), held_out - held_out.mean()
    both = guesses.norm() * true.norm()
    return Removal(_ridge(masks, drops), float(guesses @ true / both) if both > 0 else 0.0)


def removal_map(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """Fit `removal` to `REMOVAL_MASKS` masks and return its weight for every token: (N,), 0 for prefix tokens.

    Patches without which the class gains have negative weights.

    Args:
        pixels: (1, channels, height, width), normalised.
        target: index of the class.
        hook: replaces head outputs, see `VisionTransformer.forward`.
        progress: called with the fraction that is done.
    """
    side = model.config.patch_size
    masks = random_masks((pixels.shape[2] // side) * (pixels.shape[3] // side), REMOVAL_MASKS, FITTED)
    weights = removal(masks, score_drops(model, pixels, target, masks, hook=hook, progress=progress)).weights
    return F.pad(weights.float(), (len(model.config.prefix), 0))


def _ridge(masks: Tensor, drops: Tensor) -> Tensor:
    """Return the weights of a ridge regression, its strength chosen by generalised cross-validation."""
    z, y = masks.double(), drops.double()
    z, y = z - z.mean(0), y - y.mean()
    u, s, vh = torch.linalg.svd(z, full_matrices=False)
    projected = u.T @ y
    shrink = s**2 / (s**2 + _STRENGTHS[:, None])  # (strengths, rank)
    residual = y.square().sum() - projected.square().sum() + ((1 - shrink) * projected).square().sum(1)
    freedom = (len(y) - 1 - shrink.sum(1)).clamp_min(1e-9)
    best = int((residual / freedom.square()).argmin())
    factor = s / (s**2 + _STRENGTHS[best])
    return vh.T @ (factor * projected)
