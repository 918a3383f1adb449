"""Ablate attention heads through hooks.

Models are not modified, so that several threads can share one.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from vit.model.attention import HeadInputs, Hook
from vit.model.cost import CACHED_NUMBERS, Progress, pass_seconds
from vit.model.cpu import onednn
from vit.model.transformer import Step, VisionTransformer

Head = tuple[int, int]  # block, head
_HELD_NUMBERS = 1 << 25  # residual stream elements kept between blocks; 128 MB


@torch.inference_mode()
def head_means(model: VisionTransformer, pictures: Tensor) -> Tensor:
    """Compute the mean output of each head over a reference batch.

    Args:
        pictures: (B, channels, height, width).

    Returns:
        (L, H, S + 1, K): one mean per prefix token, and one for all patches, so that they apply to any input size.
    """
    first, means = len(model.config.prefix), []

    def keep(block: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.output()
        patches = heads[:, :, first:].mean((0, 2))[:, None]
        means.append(torch.cat([heads[:, :, :first].mean(0), patches], 1))
        return heads

    model(pictures, hook=keep)
    return torch.stack(means)


def ablation_hook(off: Collection[Head], means: Tensor | None = None) -> Hook:
    """Return a hook for `record` and `VisionTransformer.forward` that ablates heads.

    Args:
        off: heads whose outputs are replaced.
        means: replacements, from `head_means`; None for zeros, which overstate the effect of a head.

    Source: Michel et al. 2019, arXiv 1905.10650; mean against zero ablation: arXiv 2604.14433.
    """

    def ablate(block: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.output()
        off_here = [head for b, head in off if b == block]
        if not off_here:
            return heads
        heads = heads.clone()
        heads[:, off_here] = (
            0.0 if means is None else _over_tokens(means[block, off_here], heads.shape[2]).to(heads.dtype)
        )
        return heads

    return ablate


def _over_tokens(means: Tensor, tokens: int) -> Tensor:
    """Expand means (..., S + 1, K) to all tokens (..., N, K)."""
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
    """Compute how far the class's logit falls when each single head is ablated.

    One pass with a growing batch: each block appends one variant per head to the variants of the blocks before, since
    variants share all blocks before the ablated head.

    Args:
        pixels: (1, channels, height, width).
        target: index of the class.
        means: from `head_means`; None for zeros.
        progress: called with the fraction that is done.

    Returns:
        (L, H), in logits; negative if the logit rises.
    """
    x, steps = model.walk(pixels)
    logits, moving = [], x[:0]  # logits of finished variants, and tokens of variants in progress (M, N, D)
    with onednn():
        for index, step in enumerate(steps):
            if len(moving) and moving.numel() > _HELD_NUMBERS:
                logits.append(_logits_from(model, steps[index:], moving)[:, target])
                moving = x[:0]
            variants = _ablate_each_head(step, x, model.config.heads, None if means is None else means[index])
            moving = torch.cat([_run_block(step, moving), variants[1:]])
            x = variants[:1]
            progress(((index + 1) / len(steps)) ** 2)
        logits.append(model.classify(moving)[:, target])
        unchanged = model.classify(x)[0, target]
    return unchanged - torch.cat(logits).view(len(steps), -1)


def importance_seconds(model: VisionTransformer, size: tuple[int, int]) -> float:
    """Estimate the duration of `importance` for an input (height, width) [px] in seconds."""
    passes = model.config.depth * model.config.heads / 2  # on average, a variant runs half of the blocks
    return pass_seconds(model, size, passes)


def _ablate_each_head(step: Step, x: Tensor, heads: int, means: Tensor | None) -> Tensor:
    """Run a block unchanged, and with each of its heads ablated: (1, N, D) to (1 + H, Q, D).

    Args:
        means: (H, S + 1, K); None for zeros.
    """
    outputs = []
    for ablated in torch.arange(heads).split(_variants_per_batch(x)):

        def ablate(block: int, inputs: HeadInputs, ablated: Tensor = ablated) -> Tensor:
            """Return head outputs, unchanged and with each of n heads ablated: (1 + n, H, Q, K)."""
            variants = inputs.output().expand(1 + len(ablated), -1, -1, -1).clone()
            replacement = 0.0 if means is None else _over_tokens(means[ablated], x.shape[1])[:, step.route.rows]
            variants[1 + torch.arange(len(ablated)), ablated] = replacement
            return variants

        outputs.append(step(x, ablate))
    return torch.cat([outputs[0][:1], *(output[1:] for output in outputs)])


def _run_block(step: Step, x: Tensor) -> Tensor:
    """Run a block on tokens (M, N, D), in batches, to (M, Q, D)."""
    return torch.cat([step(batch) for batch in x.split(_variants_per_batch(x[:1]) if len(x) else 1)])


def _logits_from(model: VisionTransformer, steps: Sequence[Step], x: Tensor) -> Tensor:
    """Run the remaining blocks and the head on tokens (M, N, D) to logits (M, C)."""
    for step in steps:
        x = _run_block(step, x)
    return model.classify(x)


def _variants_per_batch(x: Tensor) -> int:
    """Return the batch size for tokens of this shape (1, N, D)."""
    return max(1, CACHED_NUMBERS // x.numel())
