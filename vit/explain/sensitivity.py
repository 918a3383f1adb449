"""Is a map true? The same random parts of the picture are taken away for every map, and what the map gives to a part
should say what it costs to lose it.

One pass per part gives its cost, once for a picture and a class. Any number of maps are judged by these afterwards,
without another pass: a map's figure is the correlation of its sums over the parts with their costs. Beside it stand the
map's own copies, shifted and mirrored, which have its values and its smoothness but not its place, and the removal map,
the most faithful one that sums over patches can give.

Letters: P patches, M parts.

Source: sensitivity-n, Ancona et al. 2018, arXiv 1711.06104, definition in section 5; the copies are ours.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.explain.cost import Progress, images_per_batch, size_of
from vit.explain.occlusion import Baseline, hidden
from vit.model.attention import Hook
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer

PART = 0.3  # of the patches, in each part
LEVEL = 0.05  # share of a map's copies that may reach it, where it is called better than chance
_BLOCK = 64  # parts that are drawn together: more parts begin with the same ones
_FOLDS = 8  # of the held-out correlation
_STRENGTHS = torch.logspace(-3, 4, 29, dtype=torch.float64)  # of the ridge regression

Word = Literal["better than chance", "cannot be decided yet", "no better than chance"]


def random_parts(patches: int, count: int, seed: int = 0) -> Tensor:
    """Random parts of a picture, each with three tenths of the patches: bool (count, patches).

    The first ones are the same for every count.
    """
    blocks = []
    for block in range(-(-count // _BLOCK)):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
        order = torch.rand(_BLOCK, patches, generator=generator).argsort(1)
        blocks.append(torch.zeros(_BLOCK, patches, dtype=torch.bool).scatter_(1, order[:, : _size(patches)], True))
    return torch.cat(blocks)[:count] if blocks else torch.zeros(0, patches, dtype=torch.bool)


def _size(patches: int) -> int:
    return max(1, round(PART * patches))


@torch.inference_mode()
def costs(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    parts: Tensor,
    baseline: Baseline = "mean",
    hook: Hook | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """What it costs to lose each part: how far the class's log-probability falls.

    Args:
        pixels: (1, channels, height, width), normalised.
        parts: bool (M, P), see `random_parts`.
        baseline: what takes the place of a part, see `vit.explain.occlusion.hidden`.
        hook: on what the heads compute with, see `VisionTransformer.forward`.
        progress: called with the share that is done.

    Returns:
        float64 (M,).
    """
    if not len(parts):
        return torch.zeros(0, dtype=torch.float64)
    side = model.config.patch_size
    rows, cols = pixels.shape[2] // side, pixels.shape[3] // side
    other = hidden(pixels, range(rows * cols), side, baseline)
    per_batch, scores = images_per_batch(model.config, size_of(pixels)), []
    with onednn():
        whole = _log_probability(model, model(pixels, hook=hook).logits, target)
        for some in parts.split(per_batch):
            mask = some.view(-1, 1, rows, cols).repeat_interleave(side, 2).repeat_interleave(side, 3)
            scores.append(_log_probability(model, model(torch.where(mask, other, pixels), hook=hook).logits, target))
            progress(sum(map(len, scores)) / len(parts))
    return whole - torch.cat(scores)


def _log_probability(model: VisionTransformer, logits: Tensor, target: int) -> Tensor:
    log = F.logsigmoid if model.independent else F.log_softmax
    options = {} if model.independent else {"dim": -1}
    return log(logits.double(), **options)[:, target]


def correlations(maps: Tensor, parts: Tensor, lost: Tensor) -> Tensor:
    """How well each map's sums over the parts say what they cost, -1 to 1; 0 for a map that is the same everywhere.

    Args:
        maps: (..., P).
        parts: bool (M, P).
        lost: (M,), see `costs`.

    Returns:
        float64 (...).
    """
    sums = maps.double() @ parts.double().T
    sums, lost = sums - sums.mean(-1, keepdim=True), lost.double() - lost.double().mean()
    products = sums.norm(dim=-1) * lost.norm()
    # Rounding leaves a uniform map's sums a little apart.
    nothing = sums.norm(dim=-1) <= 1e-9 * maps.double().norm(dim=-1) * parts.shape[1] ** 0.5
    return torch.where(nothing | (products == 0), 0.0, (sums @ lost) / products.clamp_min(1e-300))


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
        correlation: of its sums over the parts with their costs.
        reach: what the best twentieth of its copies reach.
        p: share of the copies that reach it, itself among them.
        error: standard error of the correlation, of so many parts.
    """

    correlation: float
    reach: float
    p: float
    error: float

    @property
    def word(self) -> Word:
        """In words."""
        if self.p <= LEVEL:
            return "better than chance"
        near = self.correlation + 2 * self.error > self.reach
        return "cannot be decided yet" if near else "no better than chance"


def judge(heatmap: Tensor, parts: Tensor, lost: Tensor) -> Verdict:
    """Judge a map by what its parts cost.

    Args:
        heatmap: (rows, cols).
        parts, lost: see `correlations`; three parts at least.
    """
    value = float(correlations(heatmap.flatten(), parts, lost))
    others = correlations(copies(heatmap).flatten(1), parts, lost)
    reached = int((others >= value - 1e-12).sum())
    reach = float(others.quantile(1 - LEVEL)) if len(others) else 0.0
    error = (1 - value**2) / (len(lost) - 1) ** 0.5
    return Verdict(value, reach, (1 + reached) / (1 + len(others)), error)


class Removal(NamedTuple):
    """What taking parts away says of every patch.

    Attributes:
        weights: float64 (P,): how much of the cost a patch stands for.
        errors: float64 (P,): standard errors of these.
        ceiling: correlation with costs that the map was not fitted to, as high as a map of sums can come.
    """

    weights: Tensor
    errors: Tensor
    ceiling: float


def removal(parts: Tensor, lost: Tensor) -> Removal:
    """The most faithful map that sums over patches can give: ridge regression of the costs on the parts.

    Args:
        parts: bool (M, P).
        lost: (M,), see `costs`; eight at least.

    Sources: Hoerl and Kennard 1970, Technometrics 12, 55; the strength by generalised cross-validation, Golub et al.
    1979, Technometrics 21, 215.
    """
    guesses, true = torch.empty(len(lost), dtype=torch.float64), torch.empty(len(lost), dtype=torch.float64)
    fold = torch.arange(len(lost)) % _FOLDS
    for number in range(_FOLDS):
        out = fold == number
        guess, held_out = parts[out].double() @ _ridge(parts[~out], lost[~out])[0], lost[out].double()
        # Each fold from its own mean: that of the others is low where this one's is high, which is no foresight.
        guesses[out], true[out] = guess - guess.mean(), held_out - held_out.mean()
    both = guesses.norm() * true.norm()
    return Removal(*_ridge(parts, lost), float(guesses @ true / both) if both > 0 else 0.0)


def _ridge(parts: Tensor, lost: Tensor) -> tuple[Tensor, Tensor]:
    """Weights and their standard errors."""
    z, y = parts.double(), lost.double()
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
