"""What the model answers without some of its heads.

The model stays as it is, so that several people can do this with one model at once.
"""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from vit.explain.cost import CACHED, Progress, images_at_once, size_of
from vit.explain.timing import Kind, doing, expected
from vit.model.attention import EVERY
from vit.model.cpu import onednn
from vit.model.transformer import Block, Change, VisionTransformer

Head = tuple[int, int]  # block, head
Turns = tuple[Tensor, Tensor] | None  # cosine and sine (N, K) of rotary positions

_HELD = 1 << 25  # numbers of a residual stream held between blocks; 128 MB
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

    def keep(block: int, heads: Tensor) -> Tensor:
        patches = heads[:, :, first:].mean((0, 2))[:, None]
        means.append(torch.cat([heads[:, :, :first].mean(0), patches], 1))
        return heads

    model(pictures, change=keep)
    return torch.stack(means)


def without(off: Collection[Head], means: Tensor | None = None) -> Change:
    """What `record` and `VisionTransformer.forward` take to knock heads out.

    Args:
        off: heads whose outputs are replaced.
        means: from `head_means`, to replace them by; zeros without it, which overstates what a head does.

    Source: Michel et al. 2019, arXiv 1905.10650; of means and zeros, arXiv 2604.14433.
    """

    def change(block: int, heads: Tensor) -> Tensor:
        here = [head for b, head in off if b == block]
        if not here:
            return heads
        heads = heads.clone()
        heads[:, here] = 0.0 if means is None else _spread(means[block, here], heads.shape[2]).to(heads.dtype)
        return heads

    return change


def _spread(means: Tensor, tokens: int) -> Tensor:
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
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    x, turns = model.enter(pixels)
    found, moving = [], x[:0]  # logits, and the pictures on their way (M, N, D)
    with onednn(), doing(model, Kind(_KIND, size_of(pixels)), _passes(model)):
        for index, block in enumerate(blocks):
            rows = model.read if index == len(blocks) - 1 else EVERY
            if len(moving) and moving.numel() > _HELD:
                found.append(_rest(model, blocks[index:], moving, turns)[:, target])
                moving = x[:0]
            instead = None if means is None else means[index]
            here = _without_each(block, x, rows, turns, model.config.heads, instead)
            moving = torch.cat([_through(block, moving, rows, turns), here[1:]])
            x = here[:1]
            progress(((index + 1) / len(blocks)) ** 2)
        found.append(model.head(model.gather(moving)[0])[:, target])
        whole = model.head(model.gather(x)[0])[0, target]
    return whole - torch.cat(found).view(len(blocks), -1)


def importance_seconds(model: VisionTransformer, size: tuple[int, int]) -> float:
    """How long `importance` will take for an input (height, width) [px], see `vit.explain.timing` [s]."""
    return expected(model, Kind(_KIND, size), _passes(model), at_once=images_at_once(model.config, size))


def _passes(model: VisionTransformer) -> float:
    """As which `importance` counts: each picture begins at its own block."""
    return model.config.depth * model.config.heads / 2


def _without_each(block: Block, x: Tensor, rows: slice, turns: Turns, heads: int, means: Tensor | None) -> Tensor:
    """What leaves a block as it is, and without each of its heads: (1, N, D) to (1 + H, Q, D) for the tokens in `rows`.

    Args:
        means: (H, S + 1, K), zeros without it.
    """
    left = []
    for some in torch.arange(heads).split(_at_once(x)):

        def change(every: Tensor, some: Tensor = some) -> Tensor:
            """(1, H, Q, K) to (1 + len(some), H, Q, K)."""
            every = every.expand(1 + len(some), -1, -1, -1).clone()
            own = 0.0 if means is None else _spread(means[some], x.shape[1])[:, rows]
            every[1 + torch.arange(len(some)), some] = own
            return every

        left.append(block(x, rows=rows, turns=turns, change=change)[0])
    return torch.cat([left[0][:1], *(one[1:] for one in left)])


def _through(block: Block, x: Tensor, rows: slice, turns: Turns) -> Tensor:
    """Pictures (M, N, D) through a block, to (M, Q, D)."""
    return torch.cat([block(some, rows=rows, turns=turns)[0] for some in x.split(_at_once(x[:1]) if len(x) else 1)])


def _rest(model: VisionTransformer, blocks: Sequence[Block], x: Tensor, turns: Turns) -> Tensor:
    """Logits (M, C) of pictures that enter the first of the last blocks."""
    for block in blocks:
        x = _through(block, x, model.read if block is blocks[-1] else EVERY, turns)
    return model.head(model.gather(x)[0])


def _at_once(x: Tensor) -> int:
    """How many pictures like this one (1, N, D) go through a block together."""
    return max(1, CACHED // x.numel())
