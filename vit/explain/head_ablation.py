"""What the model answers without some of its heads.

The model stays as it is, so that several people can do this with one model at once.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from vit.explain.cost import CACHED_NUMBERS, Progress, images_per_batch, size_of
from vit.explain.timing import Kind, doing, expected
from vit.model.attention import HeadInputs, Hook
from vit.model.cpu import onednn
from vit.model.transformer import Step, VisionTransformer

Head = tuple[int, int]  # block, head
_HELD_NUMBERS = 1 << 25  # numbers of a residual stream held between blocks; 128 MB
_KIND = "heads"  # of work, see `vit.explain.timing`


@torch.inference_mode()
def head_means(model: VisionTransformer, pictures: Tensor) -> Tensor:
    """What each head gives on average over a reference batch.

    Args:
        pictures: (B, channels, height, width).

    Returns:
        (L, H, S + 1, K): of each prefix token by itself, and of all patches together, so that they serve at any size.
    """
    first, means = len(model.config.prefix), []

    def keep(block: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.mixed()
        patches = heads[:, :, first:].mean((0, 2))[:, None]
        means.append(torch.cat([heads[:, :, :first].mean(0), patches], 1))
        return heads

    model(pictures, hook=keep)
    return torch.stack(means)


def without(off: Collection[Head], means: Tensor | None = None) -> Hook:
    """What `record` and `VisionTransformer.forward` take to knock heads out.

    Args:
        off: heads whose outputs are replaced.
        means: from `head_means`, to replace them by; zeros without it, which overstates what a head does.

    Source: Michel et al. 2019, arXiv 1905.10650; of means and zeros, arXiv 2604.14433.
    """

    def knock_out(block: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.mixed()
        off_here = [head for b, head in off if b == block]
        if not off_here:
            return heads
        heads = heads.clone()
        heads[:, off_here] = (
            0.0 if means is None else _over_tokens(means[block, off_here], heads.shape[2]).to(heads.dtype)
        )
        return heads

    return knock_out


def _over_tokens(means: Tensor, tokens: int) -> Tensor:
    """(..., S + 1, K) to (..., N, K)."""
    first = means.shape[-2] - 1
    patches = means[..., first:, :].expand(*means.shape[:-2], tokens - first, means.shape[-1])
    return torch.cat([means[..., :first, :], patches], -2)


@torch.inference_mode()
def importance(
    model: VisionTransformer,
    pixels: Tensor,
    target: int,
    means: Tensor | None = None,
    progress: Progress = lambda share: None,
) -> Tensor:
    """How far the class's logit falls when a head is knocked out, for every head by itself.

    One pass in which the batch grows: in every block, what is left without each of its heads joins what is left without
    those of the blocks before.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.
        means: from `head_means`; zeros without it.
        progress: called with the share that is done.

    Returns:
        (L, H), in logits; negative where the class gains.
    """
    x, steps = model.walk(pixels)
    logits, moving = [], x[:0]  # of pictures that have arrived, and those on their way (M, N, D)
    with onednn(), doing(model, Kind(_KIND, size_of(pixels)), _passes(model)):
        for index, step in enumerate(steps):
            if len(moving) and moving.numel() > _HELD_NUMBERS:
                logits.append(_logits_from(model, steps[index:], moving)[:, target])
                moving = x[:0]
            variants = _without_each(step, x, model.config.heads, None if means is None else means[index])
            moving = torch.cat([_through_block(step, moving), variants[1:]])
            x = variants[:1]
            progress(((index + 1) / len(steps)) ** 2)
        logits.append(model.classify(moving)[:, target])
        whole = model.classify(x)[0, target]
    return whole - torch.cat(logits).view(len(steps), -1)


def importance_seconds(model: VisionTransformer, size: tuple[int, int]) -> float:
    """How long `importance` will take for an input (height, width) [px], see `vit.explain.timing` [s]."""
    return expected(model, Kind(_KIND, size), _passes(model), per_batch=images_per_batch(model.config, size))


def _passes(model: VisionTransformer) -> float:
    """As which `importance` counts: each picture begins at its own block."""
    return model.config.depth * model.config.heads / 2


def _without_each(step: Step, x: Tensor, heads: int, means: Tensor | None) -> Tensor:
    """What leaves a block as it is, and without each of its heads: (1, N, D) to (1 + H, Q, D).

    Args:
        means: (H, S + 1, K), zeros without it.
    """
    left = []
    for some in torch.arange(heads).split(_variants_per_batch(x)):

        def knock_out(block: int, inputs: HeadInputs, some: Tensor = some) -> Tensor:
            """Heads of one picture, whole and without each of some: (1 + len(some), H, Q, K)."""
            every = inputs.mixed().expand(1 + len(some), -1, -1, -1).clone()
            own = 0.0 if means is None else _over_tokens(means[some], x.shape[1])[:, step.route.rows]
            every[1 + torch.arange(len(some)), some] = own
            return every

        left.append(step(x, knock_out))
    return torch.cat([left[0][:1], *(one[1:] for one in left)])


def _through_block(step: Step, x: Tensor) -> Tensor:
    """Pictures (M, N, D) through a block, to (M, Q, D)."""
    return torch.cat([step(some) for some in x.split(_variants_per_batch(x[:1]) if len(x) else 1)])


def _logits_from(model: VisionTransformer, steps: Sequence[Step], x: Tensor) -> Tensor:
    """Logits (M, C) of pictures that enter the first of the last blocks."""
    for step in steps:
        x = _through_block(step, x)
    return model.classify(x)


def _variants_per_batch(x: Tensor) -> int:
    """How many pictures like this one (1, N, D) go through a block together."""
    return max(1, CACHED_NUMBERS // x.numel())
