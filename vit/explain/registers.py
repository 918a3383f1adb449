"""Test-time registers: an extra token that absorbs the activations that turn patch tokens into high-norm outliers.

A few neurons of early MLPs cause the high norms. Their activations are moved from the patches to an empty token after
the prefix; no weight changes. Patch tokens then keep their local content, and attention maps lose these artefacts.

Source: Jiang et al. 2025, "Vision Transformers Don't Need Trained Registers", arXiv 2506.08010, section 4.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from vit.explain.weight_views import high_norm
from vit.model.cpu import onednn_for
from vit.model.layers import MLP
from vit.model.transformer import Block, VisionTransformer, tokens_read

Neuron = tuple[int, int]  # block, index in its MLP
COUNT = 10  # maximum number of neurons that are moved
_MIN_SHARE = 0.01  # minimum contribution of a neuron to the outliers' norms


class RegisterNeurons(NamedTuple):
    """Neurons that cause high-norm outlier tokens.

    Attributes:
        neurons: the strongest first; empty if there are no outliers.
        shares: share of each neuron in the contribution of all neurons to the outliers' norms, 0 to 1.
        block: first block after which there are outliers; -1 if there are none.
        tokens: number of outlier patch tokens there, in all pictures: see
            `vit.explain.weight_views.high_norm`.
        artefacts: share of such tokens among the patch tokens after the last block, for each picture.
    """

    neurons: tuple[Neuron, ...]
    shares: tuple[float, ...]
    block: int
    tokens: int
    artefacts: tuple[float, ...]


@torch.inference_mode()
def register_neurons(model: VisionTransformer, pictures: Sequence[Tensor]) -> RegisterNeurons:
    """Find the neurons that cause high-norm patch tokens.

    A neuron's score is the difference of its mean activation between outliers and other patches, times the norm of its
    output weights. Blocks up to the first one with at least half of the maximum number of outliers are searched.

    Args:
        pictures: (1, channels, height, width) each.
    """
    outlying = [high_norm(_norms(model, pixels)) for pixels in pictures]  # (L, P) each
    counts = torch.stack([mask.sum(1) for mask in outlying]).sum(0)
    artefacts = tuple(float(mask[-1].double().mean()) for mask in outlying)
    if not counts.any():
        return RegisterNeurons((), (), -1, 0, artefacts)
    block = int((2 * counts >= counts.max()).int().argmax())
    sums = torch.zeros(2, block + 1, model.config.mlp_dim, dtype=torch.float64)  # over outliers, and over the others
    for pixels, mask in zip(pictures, outlying, strict=True):

        def add(index: int, active: Tensor, mask: Tensor = mask[block]) -> None:
            patches = active[0, -len(mask) :].double().cpu()
            sums[0, index] += patches[mask].sum(0)
            sums[1, index] += patches[~mask].sum(0)

        _norms(model, pixels, block, add)
    others = sum(mask[block].numel() for mask in outlying) - counts[block]
    more = (sums[0] / counts[block] - sums[1] / others).abs()  # (blocks, M)
    written = more * torch.stack([_output_norms(model, index) for index in range(block + 1)])
    shares = written / written.sum()
    best = shares.flatten().topk(min(COUNT, int((shares >= _MIN_SHARE).sum()) or 1))
    neurons = tuple((number // shares.shape[1], number % shares.shape[1]) for number in best.indices.tolist())
    return RegisterNeurons(neurons, tuple(best.values.tolist()), block, int(counts[block]), artefacts)


def with_register(model: VisionTransformer, neurons: Sequence[Neuron]) -> VisionTransformer:
    """Return a model with a register token that absorbs the activations of some neurons. Weights are shared.

    For these neurons, the register gets the maximum activation over the patches, and the patches get 0.

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
    """Return copies of the blocks with replaced MLPs. The model is not modified, since other threads may use it."""
    blocks = []
    for index, block in enumerate(cast(Iterable[Block], model.blocks)):
        changed = copy.copy(block)
        changed._modules = {**block._modules, "mlp": replaced(index, block.mlp)}
        blocks.append(changed)
    return nn.ModuleList(blocks)


class _MovingMLP(nn.Module):
    """An MLP that moves the activations of some neurons from the patches to one token."""

    def __init__(self, mlp: MLP, neurons: Sequence[int], token: int):
        super().__init__()
        self.mlp, self.neurons, self.token = mlp, list(neurons), token

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, D) to the MLP's output (B, N, D). Patches follow the register token."""
        active = self.mlp.activations(x).clone()
        if x.shape[1] <= self.token + 1:  # the last block may compute only the tokens that the output reads
            return self.mlp.fc2(active)
        patches = active[:, self.token + 1 :, self.neurons]
        active[:, self.token, self.neurons] = patches.amax(1)
        active[:, self.token + 1 :, self.neurons] = 0
        return self.mlp.fc2(active)


class _ObservedMLP(nn.Module):
    """An MLP that passes its hidden activations to a callback."""

    def __init__(self, mlp: MLP, callback: Callable[[Tensor], None]):
        super().__init__()
        self.mlp, self.callback = mlp, callback

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (B, N, D) to the MLP's output (B, N, D)."""
        active = self.mlp.activations(x)
        self.callback(active)
        return self.mlp.fc2(active)


def _norms(
    model: VisionTransformer, pixels: Tensor, last: int = -1, callback: Callable[[int, Tensor], None] | None = None
) -> Tensor:
    """Compute the norms of the patch tokens after each block up to `last`: (L, P).

    Args:
        callback: called with each block's index and its hidden MLP activations (1, N, M).
    """
    if callback:
        observed, observe = copy.copy(model), callback
        blocks = _blocks_with(model, lambda index, mlp: _ObservedMLP(mlp, partial(observe, index)))
        observed._modules = {**model._modules, "blocks": blocks}
        model = observed
    first, norms = len(model.config.prefix), []
    x, steps = model.walk(pixels, every=True)
    with onednn_for(pixels):
        for step in steps[: last % len(steps) + 1]:
            x = step(x)
            norms.append(x[0, first:].norm(dim=-1))
    return torch.stack(norms)


def _output_norms(model: VisionTransformer, index: int) -> Tensor:
    """Compute the norm of each neuron's output weights in a block, LayerScale included: (M,)."""
    block = cast(Block, model.blocks[index])
    weight = block.mlp.fc2.weight.float()  # (D, M)
    return (weight if block.scale2 is None else weight * cast(Tensor, block.scale2)[:, None]).norm(dim=0).double().cpu()
