"""What if: heads knocked out, patches hidden, and the answer read after every block.

The model stays as it is, so that several people can do this with one model at once.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from vit.model.attention import EVERY
from vit.model.cpu import onednn
from vit.model.transformer import Block, Change, VisionTransformer
from vit.pace import Kind, doing, expected

Head = tuple[int, int]  # block, head
Cover = Literal["mean", "blur", "noise"]
Progress = Callable[[float], None]

Turns = tuple[Tensor, Tensor] | None  # cosine and sine (N, K) of rotary positions

_BATCH = 1 << 20  # numbers of a residual stream in one block at once; 4 MB, which with the MLP's stay in caches
_HELD = 1 << 25  # and held between blocks; 128 MB
_BLUR = 0.1  # deviation, in sides of the picture
_HEADS, _PATCHES = "heads", "patches"  # kinds of work


# --- Heads ----------------------------------------------------------------------------------------------------


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
    with onednn(), doing(model, Kind(_HEADS, _size(pixels)), _passes(model)):
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
    """How long `importance` will take for an input (height, width) [px], see `vit.pace` [s]."""
    return expected(model, Kind(_HEADS, size), _passes(model), at_once=_together(model, size))


def _passes(model: VisionTransformer) -> float:
    """As which `importance` counts: each picture begins at its own block."""
    return model.config.depth * model.config.heads / 2


def _size(pixels: Tensor) -> tuple[int, int]:
    return pixels.shape[2], pixels.shape[3]


def _together(model: VisionTransformer, size: tuple[int, int]) -> int:
    """How many pictures go through a block together."""
    patches = (size[0] // model.config.patch_size) * (size[1] // model.config.patch_size)
    return max(1, _BATCH // (patches * model.config.dim))


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
    return max(1, _BATCH // x.numel())


# --- Patches --------------------------------------------------------------------------------------------------


def hidden(pixels: Tensor, patches: Collection[int], patch_size: int, cover: Cover = "mean", seed: int = 0) -> Tensor:
    """The picture with patches covered.

    Args:
        pixels: (1, channels, height, width), normalised.
        patches: numbers from 0, row by row.
        cover: the picture's mean colour, the picture blurred, or noise of its mean and deviation.

    Raises:
        ValueError: there is no such patch.
    """
    rows, cols = pixels.shape[2] // patch_size, pixels.shape[3] // patch_size
    if any(not 0 <= patch < rows * cols for patch in patches):
        raise ValueError(f"Patches run from 0 to {rows * cols - 1}.")
    mask = torch.zeros(rows * cols, dtype=torch.bool, device=pixels.device)
    mask[list(patches)] = True
    mask = mask.view(rows, cols).repeat_interleave(patch_size, 0).repeat_interleave(patch_size, 1)
    mean = pixels.mean((2, 3), keepdim=True)
    if cover == "mean":
        other = mean
    elif cover == "blur":
        from torchvision.transforms.v2.functional import gaussian_blur  # brings torch's compiler along: 2 s

        sigma = max(pixels.shape[2:]) * _BLUR
        kernel = min(2 * round(2 * sigma) + 1, 2 * min(pixels.shape[2:]) - 1)  # what reflection at the border allows
        other = gaussian_blur(pixels, [kernel, kernel], [sigma, sigma])
    else:
        noise = torch.randn(pixels.shape, generator=torch.Generator().manual_seed(seed)).to(pixels)
        other = mean + noise * pixels.std((2, 3), keepdim=True)
    return torch.where(mask, other, pixels)


@torch.inference_mode()
def occlusion(
    model: VisionTransformer,
    pixels: Tensor,
    cover: Cover = "mean",
    change: Change | None = None,
    hide: Collection[int] = (),
    progress: Progress = lambda share: None,
) -> Tensor:
    """What the model answers when one patch is covered, for every patch by itself.

    Args:
        pixels: (1, channels, height, width), normalised.
        cover: see `hidden`.
        change: of what the heads give, see `VisionTransformer.forward`.
        hide: patches that are covered all the time.
        progress: called with the share that is done.

    Returns:
        (P, C) probabilities.

    Source: Zeiler and Fergus 2014, arXiv 1311.2901, section 4.2; with the model's own patches.
    """
    side = model.config.patch_size
    rows, cols = pixels.shape[2] // side, pixels.shape[3] // side
    other = hidden(pixels, range(rows * cols), side, cover)
    pixels = hidden(pixels, hide, side, cover)
    at_once, answers = _together(model, _size(pixels)), []
    with onednn(), doing(model, Kind(_PATCHES, _size(pixels)), rows * cols):
        for some in torch.arange(rows * cols).split(at_once):
            pictures = pixels.repeat(len(some), 1, 1, 1)
            for picture, patch in zip(pictures, some.tolist(), strict=True):
                down, right = (slice(at * side, (at + 1) * side) for at in divmod(patch, cols))
                picture[:, down, right] = other[0, :, down, right]
            answers.append(model(pictures, change=change).logits.softmax(-1))
            progress((int(some[-1]) + 1) / (rows * cols))
    return torch.cat(answers)


def occlusion_seconds(model: VisionTransformer, size: tuple[int, int]) -> float:
    """How long `occlusion` will take for an input (height, width) [px], see `vit.pace` [s]."""
    patches = (size[0] // model.config.patch_size) * (size[1] // model.config.patch_size)
    return expected(model, Kind(_PATCHES, size), patches, at_once=_together(model, size))


# --- After every block ----------------------------------------------------------------------------------------


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
    x, turns = model.enter(pixels)
    copies = len(model.config.prefix) + 1  # a head that reads several tokens finds the same one in each place
    kept = []
    with onednn():
        for block in model.blocks:
            x, _ = block(x, turns=turns)
            answer = model.head(model.gather(x[:, model.read])[0])[0].softmax(-1)
            every = []
            for some in x[0].split(max(1, _BATCH // (copies * x.shape[2] + model.config.num_classes))):
                alone = some[:, None].expand(-1, copies, -1)[:, model.read]
                every.append(model.head(model.gather(alone)[0]).softmax(-1))
            each = torch.cat(every)  # (N, C)
            best = each.max(-1)
            kept.append((answer, best.indices, best.values, each[:, target], x[0].norm(dim=-1)))
    return Lens(*(torch.stack(part) for part in zip(*kept, strict=True)))
