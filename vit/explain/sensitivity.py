"""Is a map true? The same random parts of the picture are masked for every map, and what a map gives to a mask's
patches should say how far the class's score drops without them.

One pass per mask gives its drop, once for a picture and a class. Any number of maps are judged by these afterwards,
without another pass: a map's figure is the correlation of its sums over the masks with their drops. Beside it stand the
map's own copies, shifted and mirrored, which have its values and its smoothness but not its place, and the removal map,
the most faithful one that sums over patches can give.

Letters: P patches, M masks.

Sources: faithfulness correlation, Bhatt et al. 2020, arXiv 2005.00631, definition in section 3; sensitivity-n, Ancona
et al. 2018, arXiv 1711.06104, section 5. The copies are ours.
"""

import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vit.explain.cost import Progress, Size, images_per_batch, size_of
from vit.explain.occlusion import Baseline, hidden
from vit.explain.timing import Kind, doing, expected, products
from vit.model.attention import Hook, explicitly_mixed
from vit.model.cpu import exact_on_cpu, has_bfloat16, onednn
from vit.model.transformer import VisionTransformer, rounded

MASKED_SHARE = 0.3  # of the patches, by each mask
SIGNIFICANCE = 0.05  # share of a map's copies that may reach it, where it is called better than chance
REMOVAL_MASKS = 256  # that the method `removal` takes
HELD_OUT = 1  # seed of the masks that judge what was fitted to the others
_MIN_DROP = 0.01  # of a log-probability, that some mask must change
_ROUNDED_PRODUCTS = 5e9  # of a pass, from which it is worth rounding
_COMPARED = 8  # drops, with those of rounded passes
_AGREEMENT = 0.999  # correlation of these
_LEAST_ROUNDED = 0.1  # the largest drop; rounding would show in smaller ones
_BATCHES = 8  # that go through a block before the next one
_KIND = "masks"  # of work, see `vit.explain.timing`
_BLOCK = 64  # masks that are drawn together: more of them begin with the same ones
_COPIES = 1024  # of a map, judged together
_FOLDS = 8  # of the held-out correlation
_agreeing = WeakKeyDictionary[nn.Module, bool]()  # blocks of models, with what was found out of them
_STRENGTHS = torch.logspace(-3, 4, 29, dtype=torch.float64)  # of the ridge regression

Word = Literal["better than chance", "cannot be decided yet", "no better than chance"]


def random_masks(patches: int, count: int, seed: int = 0) -> Tensor:
    """Random masks, each over three tenths of the patches: bool (count, patches), True where a patch is taken away.

    The first ones are the same for every count.
    """
    blocks = []
    for block in range(-(-count // _BLOCK)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
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
    baseline: Baseline = "mean",
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """How far the class's log-probability drops behind each mask.

    Args:
        pixels: (1, channels, height, width), normalised.
        masks: bool (M, P), on any device, see `random_masks`.
        baseline: what takes a patch's place, see `vit.explain.occlusion.hidden`.
        hook: on what the heads compute with, see `VisionTransformer.forward`.
        progress: called with the share that is done, after every block; what it raises ends the work.

    Returns:
        float64 (M,), on the CPU, where maps are compared with them.

    A large model on a processor that multiplies bfloat16 faster rounds to it, once eight of its drops correlate with
    those in float32 by 0.999: a map's figure moves by 0.01 at most, and is known to 0.06 from 256 masks.
    """
    if not len(masks):
        return torch.zeros(0, dtype=torch.float64)
    masks = masks.to(pixels.device)
    with onednn(), doing(model, Kind(_KIND, size_of(pixels)), 1 + len(masks)):
        if hook is None and _agrees_in_bfloat16(model, pixels, target, baseline):
            drops = _drops(model, pixels, target, masks, baseline, None, progress, bfloat16=True)
            if drops.abs().max() >= _LEAST_ROUNDED:
                return drops
        return _drops(model, pixels, target, masks, baseline, hook, progress)


def _drops(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    masks: Tensor,
    baseline: Baseline,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
    bfloat16: bool = False,
) -> Tensor:
    """See `score_drops`."""
    side = model.config.patch_size
    rows, cols = pixels.shape[2] // side, pixels.shape[3] // side
    other = hidden(pixels, range(rows * cols), side, baseline)
    per_batch, scores = images_per_batch(model.config, size_of(pixels)), list[Tensor]()
    if bfloat16:  # of half as many bytes
        per_batch *= 2
    mix = explicitly_mixed if bfloat16 else None  # torch's fused attention is slower in it
    with torch.autocast("cpu", torch.bfloat16) if bfloat16 else nullcontext():
        whole = _log_probability(model, model(pixels, hook=hook).logits, target)
        both, steps = model.walk(torch.cat([pixels, other]), mix=mix, hook=hook, every=hook is not None)
        for some in masks.split(_BATCHES * per_batch):
            done = sum(map(len, scores))
            masked = F.pad(some, (len(model.config.prefix), 0))[..., None].split(per_batch)
            batches = [torch.where(mask, both[1], both[0]) for mask in masked]
            for number, step in enumerate(steps, 1):
                step = replace(step, block=rounded(step.block)) if bfloat16 else step
                batches = [step(x) for x in batches]
                progress((done + len(some) * number / len(steps)) / len(masks))
            for x in batches:
                logits = model.classify(x if hook is None else x[:, model.read])
                scores.append(_log_probability(model, logits, target))
    return (whole - torch.cat(scores)).cpu()


def _agrees_in_bfloat16(model: VisionTransformer, pixels: Tensor, target: int, baseline: Baseline) -> bool:
    """Whether passes are faster in bfloat16 here, and a few drops so alike in it that no map's figure shows it.

    That is found out once for a model, whatever head reads it.
    """
    large = products(model.config, size_of(pixels)) >= _ROUNDED_PRODUCTS
    if not (large and exact_on_cpu(pixels) and has_bfloat16()):
        return False
    if model.blocks not in _agreeing:
        masks = random_masks(pixels[0, 0].numel() // model.config.patch_size**2, _COMPARED)
        exact, other = (_drops(model, pixels, target, masks, baseline, bfloat16=b) for b in (False, True))
        alike = float(torch.corrcoef(torch.stack([exact, other]))[0, 1])
        if math.isnan(alike):  # drops that are all equal say nothing of the model: another picture will
            return False
        _agreeing[model.blocks] = alike >= _AGREEMENT
    return _agreeing[model.blocks]


def seconds(model: VisionTransformer, size: Size, count: int) -> float:
    """How long `score_drops` of so many masks will take for an input (height, width) [px], see `vit.explain.timing`."""
    return expected(model, Kind(_KIND, size), 1 + count, per_batch=images_per_batch(model.config, size))


def decidable(drops: Tensor) -> bool:
    """Whether the masks change the class enough for any map to be right or wrong."""
    return bool(len(drops) and drops.abs().max() >= _MIN_DROP)


def _log_probability(model: VisionTransformer, logits: Tensor, target: int) -> Tensor:
    return model.log_scores(logits.double())[:, target]


def correlations(maps: Tensor, masks: Tensor, drops: Tensor) -> Tensor:
    """How well each map's sums over the masks say their drops, -1 to 1; 0 for a map that is the same everywhere.

    Args:
        maps: (..., P).
        masks: bool (M, P).
        drops: (M,), see `score_drops`.

    Returns:
        float64 (...).
    """
    sums = maps.double() @ masks.double().T
    sums, drops = sums - sums.mean(-1, keepdim=True), drops.double() - drops.double().mean()
    products = sums.norm(dim=-1) * drops.norm()
    # Rounding leaves a uniform map's sums a little apart.
    nothing = sums.norm(dim=-1) <= 1e-9 * maps.double().norm(dim=-1) * masks.shape[1] ** 0.5
    return torch.where(nothing | (products == 0), 0.0, (sums @ drops) / products.clamp_min(1e-300))


def copies(heatmap: Tensor) -> Tensor:
    """The map and its mirror image, shifted by every number of rows and columns around the edges, without itself.

    Args:
        heatmap: (rows, cols).

    Returns:
        (2 P - 1, rows, cols).
    """
    rows, cols = heatmap.shape
    down, right = torch.arange(rows), torch.arange(cols)
    shifted = (down[:, None] + down) % rows, (right[:, None] + right) % cols  # by shift, then by place
    every = [
        one[shifted[0][:, None, :, None], shifted[1][None, :, None, :]].reshape(-1, rows, cols)
        for one in (heatmap, heatmap.flip(1))
    ]
    return torch.cat(every)[1:]


class Verdict(NamedTuple):
    """Whether a map is true of a picture and a class.

    Attributes:
        correlation: of its sums over the masks with their drops.
        reach: what the best twentieth of its copies reach.
        p: share of the copies that reach it, itself among them.
        error: standard error of the correlation, from so many masks.
    """

    correlation: float
    reach: float
    p: float
    error: float

    @property
    def word(self) -> Word:
        """In words."""
        if self.p <= SIGNIFICANCE:
            return "better than chance"
        near = self.correlation + 2 * self.error > self.reach
        return "cannot be decided yet" if near else "no better than chance"


def judge(heatmap: Tensor, masks: Tensor, drops: Tensor) -> Verdict:
    """Judge a map by what masks cost the class.

    Args:
        heatmap: (rows, cols).
        masks, drops: see `correlations`; three masks at least.
    """
    value = float(correlations(heatmap.flatten(), masks, drops))
    some = copies(heatmap).flatten(1).split(_COPIES)
    others = torch.cat([correlations(maps, masks, drops) for maps in some])
    reached = int((others >= value - 1e-12).sum())
    reach = float(others.quantile(1 - SIGNIFICANCE)) if len(others) else 0.0
    error = (1 - value**2) / (len(drops) - 1) ** 0.5
    return Verdict(value, reach, (1 + reached) / (1 + len(others)), error)


class Removal(NamedTuple):
    """What masks say of every patch.

    Attributes:
        weights: float64 (P,): how much of the drop a patch stands for.
        errors: float64 (P,): standard errors of these.
        ceiling: correlation with drops that the map was not fitted to, as high as a map of sums can come.
    """

    weights: Tensor
    errors: Tensor
    ceiling: float


def removal(masks: Tensor, drops: Tensor) -> Removal:
    """The most faithful map that sums over patches can give: ridge regression of the drops on the masks.

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
        guess, held_out = masks[out].double() @ _ridge(masks[~out], drops[~out])[0], drops[out].double()
        # Each fold from its own mean: that of the others is low where this one's is high, which is no foresight.
        guesses[out], true[out] = guess - guess.mean(), held_out - held_out.mean()
    both = guesses.norm() * true.norm()
    return Removal(*_ridge(masks, drops), float(guesses @ true / both) if both > 0 else 0.0)


def removal_map(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """The map that `removal` fits to `REMOVAL_MASKS` masks, for every token: (N,), 0 for prefix tokens.

    Patches that speak against the class have 0, as in other maps of a class.

    Args:
        pixels: (1, channels, height, width), normalised.
        target: index of the class.
        hook: on what the heads compute with, see `VisionTransformer.forward`.
        progress: called with the share that is done.
    """
    side = model.config.patch_size
    masks = random_masks((pixels.shape[2] // side) * (pixels.shape[3] // side), REMOVAL_MASKS)
    weights = removal(masks, score_drops(model, pixels, target, masks, hook=hook, progress=progress)).weights
    return F.pad(weights.clamp_min(0).float(), (len(model.config.prefix), 0))


def _ridge(masks: Tensor, drops: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and their standard errors."""
    z, y = masks.double(), drops.double()
    z, y = z - z.mean(0), y - y.mean()
    u, s, vh = torch.linalg.svd(z, full_matrices=False)
    projected = u.T @ y
    shrink = s**2 / (s**2 + _STRENGTHS[:, None])  # (strengths, rank)
    residual = y.square().sum() - projected.square().sum() + ((1 - shrink) * projected).square().sum(1)
    freedom = (len(y) - 1 - shrink.sum(1)).clamp_min(1e-9)
    best = int((residual / freedom.square()).argmin())
    factor = s / (s**2 + _STRENGTHS[best])
    weights = vh.T @ (factor * projected)
    variance = residual[best].clamp_min(0) / freedom[best]
    errors = (variance * (vh.T.square() @ factor.square())).sqrt()
    return weights, errors
