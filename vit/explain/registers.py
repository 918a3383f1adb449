"""A register at test time: an extra token that takes over what makes some patch tokens far longer than the others.

A few neurons of early MLPs write these lengths. Their activations are moved from the patches to an empty token that is
added beside the prefix; no weight changes. The patches then keep their own content, and attention to them means them.

Source: Jiang et al. 2025, "Vision Transformers Don't Need Trained Registers", arXiv 2506.08010, section 4.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vit.explain.weight_views import outliers
from vit.model.cpu import exact_on_cpu, onednn
from vit.model.layers import MLP
from vit.model.transformer import Block, VisionTransformer, tokens_read

Neuron = tuple[int, int]  # block, number in its MLP
COUNT = 10  # neurons that are moved
LEAST = 3.0  # medians that a token is long which a register is worth; DINOv2-g's are 4 and more
_LEAST_SHARE = 0.01  # of what is added to the length of these tokens, for a neuron to count


class RegisterNeurons(NamedTuple):
    """The neurons that write the lengths of tokens that stand out.

    Attributes:
        neurons: those that write most, the strongest first; none where no token stands out.
        shares: of each, its part in what all neurons together add to the length of these tokens, 0 to 1.
        block: the first one after which tokens stand out; -1 where none does.
        tokens: how many patch tokens stand out there, in all pictures: far from the others (see
            `vit.explain.weight_views.outliers`) and `LEAST` times as long as the median.
    """

    neurons: tuple[Neuron, ...]
    shares: tuple[float, ...]
    block: int
    tokens: int


@torch.inference_mode()
def register_neurons(model: VisionTransformer, pictures: Sequence[Tensor], count: int = COUNT) -> RegisterNeurons:
    """Find the neurons that make patch tokens stand out by their length.

    A neuron counts by how much more active it is in these tokens than in the other patches, times the length of what it
    writes, in all blocks up to the first one after which at least half as many tokens stand out as after any.

    Args:
        pictures: (1, channels, height, width) each.
        count: of neurons, at most.
    """
    long = [_long(_lengths(model, pixels)) for pixels in pictures]  # (L, P) each
    counts = torch.stack([one.sum(1) for one in long]).sum(0)
    if not counts.any():
        return RegisterNeurons((), (), -1, 0)
    block = int((2 * counts >= counts.max()).int().argmax())
    sums = torch.zeros(2, block + 1, model.config.mlp_dim, dtype=torch.float64)  # in long tokens, and in the others
    for pixels, mask in zip(pictures, long, strict=True):

        def add(index: int, active: Tensor, mask: Tensor = mask[block]) -> None:
            patches = active[0, -len(mask) :].double().cpu()
            sums[0, index] += patches[mask].sum(0)
            sums[1, index] += patches[~mask].sum(0)

        _lengths(model, pixels, block, add)
    others = sum(one[block].numel() for one in long) - counts[block]
    more = (sums[0] / counts[block] - sums[1] / others).abs()  # (blocks, M)
    written = more * torch.stack([_written_lengths(model, index) for index in range(block + 1)])
    shares = written / written.sum()
    best = shares.flatten().topk(min(count, int((shares >= _LEAST_SHARE).sum()) or 1))
    neurons = tuple((number // shares.shape[1], number % shares.shape[1]) for number in best.indices.tolist())
    return RegisterNeurons(neurons, tuple(best.values.tolist()), block, int(counts[block]))


def with_register(model: VisionTransformer, neurons: Sequence[Neuron]) -> VisionTransformer:
    """The same model, on the same weights, with an empty token after its prefix that takes over some neurons.

    In each block, the token gets the largest activation that any patch has of such a neuron, and the patches get 0.

    Args:
        neurons: see `register_neurons`.
    """
    config, taken = model.config, set(model.config.prefix)
    name = next(f"reg{i}" for i in range(1, len(taken) + 2) if f"reg{i}" not in taken)
    changed = copy.copy(model)
    empty = model.prefix_tokens.new_zeros(1, 1, config.dim)
    changed._parameters = {
        **model._parameters,
        "prefix_tokens": nn.Parameter(torch.cat([model.prefix_tokens.detach(), empty], 1), requires_grad=False),
    }
    changed.config = replace(config, prefix=(*config.prefix, name))
    changed.read = tokens_read(changed.config)
    by_block = [[number for block, number in neurons if block == index] for index in range(config.depth)]

    def moving(index: int, mlp: MLP) -> nn.Module:
        return _MovingMLP(mlp, by_block[index], len(config.prefix)) if by_block[index] else mlp

    changed._modules = {**model._modules, "blocks": _blocks_with(model, moving)}
    return changed


def _blocks_with(model: VisionTransformer, replaced: Callable[[int, MLP], nn.Module]) -> nn.ModuleList:
    """The blocks with other MLPs, on the same weights; the model stays as it is, as others may use it meanwhile."""
    blocks = []
    for index, block in enumerate(cast(Iterable[Block], model.blocks)):
        one = copy.copy(block)
        one._modules = {**block._modules, "mlp": replaced(index, block.mlp)}
        blocks.append(one)
    return nn.ModuleList(blocks)


def _long(lengths: Tensor) -> Tensor:
    """Patch tokens that stand out so far that they hold something else than their patch: (L, P) to bool (L, P)."""
    return outliers(lengths) & (lengths > LEAST * lengths.median(-1, keepdim=True).values)


class _MovingMLP(nn.Module):
    """An MLP whose activations of some neurons are moved from the patches to one token."""

    def __init__(self, mlp: MLP, neurons: Sequence[int], token: int):
        super().__init__()
        self.mlp, self.neurons, self.token = mlp, list(neurons), token

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to what the MLP adds to them (B, N, D); patches begin after the token."""
        active = self.mlp.activations(x).clone()
        patches = active[:, self.token + 1 :, self.neurons]
        active[:, self.token, self.neurons] = patches.amax(1)
        active[:, self.token + 1 :, self.neurons] = 0
        return self.mlp.fc2(active)


class _TappedMLP(nn.Module):
    """An MLP that hands on what its neurons give."""

    def __init__(self, mlp: MLP, hand_on: Callable[[Tensor], None]):
        super().__init__()
        self.mlp, self.hand_on = mlp, hand_on

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (B, N, D) to what the MLP adds to them (B, N, D)."""
        active = self.mlp.activations(x)
        self.hand_on(active)
        return self.mlp.fc2(active)


def _lengths(
    model: VisionTransformer, pixels: Tensor, last: int = -1, hand_on: Callable[[int, Tensor], None] | None = None
) -> Tensor:
    """Lengths of the patch tokens after the blocks up to the last that is wanted: (L, P).

    Args:
        hand_on: called with each block's number and what its neurons give, (1, N, M).
    """
    if hand_on:
        tapped, every = copy.copy(model), hand_on
        blocks = _blocks_with(model, lambda index, mlp: _TappedMLP(mlp, partial(every, index)))
        tapped._modules = {**model._modules, "blocks": blocks}
        model = tapped
    first, lengths = len(model.config.prefix), []
    x, steps = model.walk(pixels, every=True)
    with onednn() if exact_on_cpu(pixels) else nullcontext():
        for step in steps[: last % len(steps) + 1]:
            x = step(x)
            lengths.append(x[0, first:].norm(dim=-1))
    return torch.stack(lengths)


def _written_lengths(model: VisionTransformer, block: int) -> Tensor:
    """Length of what each neuron of a block writes when it gives 1: (M,)."""
    one = cast(Block, model.blocks[block])
    weight = one.mlp.fc2.weight.float()  # (D, M)
    return (weight if one.scale2 is None else weight * cast(Tensor, one.scale2)[:, None]).norm(dim=0).double().cpu()
