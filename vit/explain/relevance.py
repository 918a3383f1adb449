"""Class-specific relevance from attention and its gradient, computed without storing full attention matrices.

One forward and backward pass stores queries, keys, values and the gradient g of each head's output, all (H, N, K). The
gradient of a block's attention is then g v^T; it is computed for a few rows at a time and discarded.
"""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vit.errors import UserError
from vit.explain.maps import checked_index, discard_weakest, fuse, select_head
from vit.explain.record import AttentionRecord, read_by_head
from vit.explain.settings import Direction, Fusion
from vit.model.attention import EVERY, HeadInputs, Hook, fused_attention_with_gradient
from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer

# Matrix elements in memory at once while streaming over rows: 512 Ki in float32 are 2 MB, which fit into a CPU's cache.
_CHUNK_SCORES = {"cpu": 1 << 19, "cuda": 1 << 24}


@dataclass(frozen=True, kw_only=True)
class GradientRecord(AttentionRecord):
    """State of one picture's forward pass, and the backward pass from one class: 4 L*N*D numbers.

    Without a query, methods start at the tokens that the model's head reads.

    Attributes:
        target: class whose logit was differentiated.
        values: L tensors (H, N, K).
        gradients: L tensors (H, N, K): of the target's logit with respect to each head's output before the projection.
        read: (N,), weight of each token in the head's input, see `read_by_head`.
        input_gradient: (N,), norm of the gradient of the target's logit with respect to each patch's normalised pixels;
            0 for prefix tokens.
    """

    target: int
    values: tuple[Tensor, ...] = field(repr=False)
    gradients: tuple[Tensor, ...] = field(repr=False)
    read: Tensor = field(repr=False)
    input_gradient: Tensor = field(repr=False)

    def relevance(
        self, query: int | None = None, direction: Direction = "from", start_block: int = 0, own: bool = True
    ) -> Tensor:
        """Generic attention explainability: attention times the positive part of its gradient, through all blocks.

        Args:
            query: index of a token; None for the tokens that the head reads.
            direction: "from" for row `query` of the relevance matrix, "to" for its column.
            start_block: earlier blocks are left out.
            own: include the identity, each token's initial relevance to itself, which dominates the map of a token.

        Returns:
            (N,), not normalised.

        Raises:
            ValueError: no such token or block.

        Source: Chefer et al. 2021, arXiv 2103.15679, eq. 5 and 6: R = (I + A_L) ... (I + A_1), A_l the mean over heads
        of relu(dA * A).
        """
        relevance = self._chain(query, direction, start_block, lambda block, rows: self._mean_flow(block, rows, True))
        return relevance if own else (relevance - self._start_vector(query)).clamp_(min=0)

    def gradient_rollout(
        self, query: int | None = None, direction: Direction = "from", discard: float = 0.0, start_block: int = 0
    ) -> Tensor:
        """Rollout of relu(mean over heads of A * dA), with a share of one half for the skip connection.

        Args:
            query, direction, start_block: as for `relevance`.
            discard: share of the weakest patches of each row to leave out, see `vit.explain.maps.discard_weakest`.

        Returns:
            (N,); sums to 1 for "from".

        Raises:
            ValueError: no such token or block, or `discard` is out of range.

        Source: jacobgil/vit-explain, `vit_grad_rollout.py`, with its layers in order, rows divided by their own sums
        and all prefix tokens protected.
        """

        def flow(block: int, rows: Tensor) -> Tensor:
            return discard_weakest(self._mean_flow(block, rows, False).clamp_(min=0), discard, len(self.prefix))

        return self._chain(query, direction, start_block, flow, normalise=True)

    @onednn()
    def attention_gradient(
        self,
        query: int | None = None,
        block: int | Fusion = "mean",
        head: int | Fusion = "mean",
        direction: Direction = "from",
    ) -> Tensor:
        """Attention times the positive part of its gradient, relu(A * dA), of one block and head, or fused.

        Args:
            query: index of a token; None for the tokens that the head reads.
            block, head: an index, negative from the end, or how to fuse all of them: first heads, then blocks.
            direction: "from" for the token's row, "to" for its column.

        Returns:
            (N,)

        Raises:
            ValueError: no such token, block or head.
        """
        start = self._start_vector(query)
        maps = []
        for b in range(self.blocks) if isinstance(block, str) else [checked_index("block", block, self.blocks)]:
            weights = torch.zeros_like(start)
            for rows in self._rows(b, start if direction == "from" else None):
                heads = torch.stack([self._head_flow(b, h, rows) for h in range(self.heads)])  # (H, R, N)
                flow = select_head(heads, head)
                _add_product(weights, start, rows, flow, direction)
            maps.append(weights)
        return fuse(torch.stack(maps), block) if isinstance(block, str) else maps[0]

    def flow(self, block: int) -> Tensor:
        """Return the factor that `relevance` multiplies: the mean over heads of relu(dA * A), (N, N)."""
        matrix = torch.zeros(self.tokens, self.tokens)
        for rows in self._rows(block):
            matrix[rows.cpu()] = self._mean_flow(block, rows, positive=True).cpu()
        return matrix

    @onednn()
    def _chain(
        self,
        query: int | None,
        direction: Direction,
        start_block: int,
        flow: Callable[[int, Tensor], Tensor],
        normalise: bool = False,
    ) -> Tensor:
        """Return a row or column of (F_L + I) ... (F_1 + I), with each row of a factor normalised if `normalise`.

        Args:
            flow: computes rows (R, N) of F from the block and the row indices (R,).
        """
        vector = self._start_vector(query)
        blocks = range(checked_index("block", start_block, self.blocks), self.blocks)
        for block in reversed(blocks) if direction == "from" else blocks:
            arrived, staying = torch.zeros_like(vector), vector.clone()
            for rows in self._rows(block, vector if direction == "from" else None):
                flows = flow(block, rows)
                if normalise:
                    total = 1 + flows.sum(-1)
                    flows = flows / total[:, None]
                    staying[rows] /= total
                _add_product(arrived, vector, rows, flows, direction)
            vector = staying + arrived
        return vector

    def _start_vector(self, query: int | None) -> Tensor:
        if query is None:
            return self.read
        (query,) = self._check_tokens([query])
        start = torch.zeros_like(self.read)
        start[query] = 1
        return start

    def _rows(self, block: int, weights: Tensor | None = None) -> Iterator[Tensor]:
        """Yield indices (R,) of rows with a gradient, in chunks.

        Args:
            weights: (N,), rows with weight zero are left out, too.
        """
        live = self.gradients[block].any(-1).any(0)
        rows = (live if weights is None else live & (weights != 0)).nonzero()[:, 0]
        yield from rows.split(_rows_per_chunk(self.queries[block]))

    def _mean_flow(self, block: int, rows: Tensor, positive: bool) -> Tensor:
        """Return attention times its gradient, or times its positive part, averaged over the heads: (R, N)."""
        total = self.read.new_zeros(len(rows), self.tokens)
        for head in range(self.heads):
            attention, gradient = self._pair(block, head, rows)
            total.addcmul_(attention, gradient.clamp_(min=0) if positive else gradient)
        return total.div_(self.heads)

    def _head_flow(self, block: int, head: int, rows: Tensor) -> Tensor:
        """Return relu(A * dA) of one head: (R, N)."""
        attention, gradient = self._pair(block, head, rows)
        return gradient.clamp_(min=0).mul_(attention)

    def _pair(self, block: int, head: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return attention and its gradient, (R, N) each, for some rows of one head."""
        q, k, v, g = (each[block][head] for each in (self.queries, self.keys, self.values, self.gradients))  # (N, K)
        return (q[rows] * q.shape[-1] ** -0.5 @ k.T).softmax(-1), g[rows] @ v.T


def _rows_per_chunk(q: Tensor) -> int:
    """Return the number of rows of one head to compute at once, for queries (H, N, K)."""
    return max(1, _CHUNK_SCORES.get(q.device.type, _CHUNK_SCORES["cpu"]) // q.shape[1])


def _add_product(result: Tensor, vector: Tensor, rows: Tensor, flow: Tensor, direction: Direction) -> None:
    """Add to `result` (N,) the contribution of some rows (R, N) of a matrix to vector @ matrix, or matrix @ vector."""
    if direction == "from":
        result += vector[rows] @ flow
    else:
        result[rows] += flow @ vector


# --- The pass -------------------------------------------------------------------------------------------------


class BlockPass(NamedTuple):
    """A forward pass of one block, with its own autograd graph.

    Attributes:
        before: (1, N, D), tokens entering it.
        inputs: inputs of its heads.
        heads: (1, H, Q, K), their output.
        after: (1, Q, D), tokens leaving it.
    """

    before: Tensor
    inputs: HeadInputs
    heads: Tensor
    after: Tensor


def relevance_record(
    model: VisionTransformer, pixels: Tensor, target: int | None = None, hook: Hook | None = None
) -> GradientRecord:
    """Run one picture (1, channels, height, width) forward through the model, and backward from one class.

    The model is not modified: no hooks are registered and no parameter gets a gradient, so several threads can share
    one model. It computes in evaluation mode.

    Args:
        model: the model.
        pixels: (1, channels, height, width).
        target: class to explain; None for the predicted one.
        hook: on the heads' inputs, see `VisionTransformer.forward`. Gradients are with respect to the outputs before
            it.

    Raises:
        UserError: the model has no classes, or no such class.
        ValueError: more than one picture, or an unsupported shape.
    """
    with torch.inference_mode(False), torch.enable_grad(), onednn():
        model = frozen(model, pixels)
        rows = model.read if hook is None else EVERY  # a hook applies to all tokens
        passed = list(_pass_blocks(model, pixels, hook, every=hook is not None))
        last = passed[-1].after.detach().requires_grad_()
        features, pool_attention = model.pool_features(last if rows == model.read else last[:, model.read])
        logits = model.head(features)
        target = model.default_target(logits[0]) if target is None else target
        check_target(model.config, target)
        output = logits[0, target]
        if model.activation == "none":  # relevance multiplies gradients, so the output's unit would change the map
            (slope,) = torch.autograd.grad(output, features, retain_graph=True)
            output = output / slope.norm().clamp_min(1e-30)
        (back,) = torch.autograd.grad(output, last)
        blocks = []
        while passed:  # from the last block to the first; frees each block's memory
            before, inputs, heads, after = passed.pop()
            by_heads, back = torch.autograd.grad(after, (heads, before), back)
            q, k, v = (part.detach()[0].contiguous() for part in (inputs.q, inputs.k, inputs.v))
            g = torch.zeros_like(v)
            g[:, rows if len(passed) == model.config.depth - 1 else EVERY] = by_heads[0]
            blocks.append((q, k, v, g))
            del inputs, heads, after
        by_pixels = _input_gradient(model, pixels, back)
    queries, keys, values, gradients = zip(*reversed(blocks), strict=True)
    patch = model.config.patch_size
    pool_weights = None if pool_attention is None else pool_attention.detach()[0]
    return GradientRecord(
        logits=logits.detach(),
        target=target,
        queries=queries,
        keys=keys,
        values=values,
        gradients=gradients,
        prefix=model.config.prefix,
        grid=(pixels.shape[2] // patch, pixels.shape[3] // patch),
        pool_attention=pool_weights,
        read=read_by_head(model.config, queries[0], pool_weights),
        input_gradient=by_pixels,
    )


def legrad(
    model: VisionTransformer,
    pixels: Tensor,
    target: int | None = None,
    start_block: int = 0,
    hook: Hook | None = None,
) -> Tensor:
    """LeGrad: sensitivity of a class to attention in each block.

    A block's score is the class logit that the model's head computes from the tokens after it; the mean of all tokens
    replaces a class token, as in the authors' code. The positive part of its gradient is averaged over heads, queries
    and blocks.

    Args:
        model: the model.
        pixels: (1, channels, height, width).
        target: class to explain; None for the predicted one.
        start_block: earlier blocks are left out.
        hook: as for `relevance_record`.

    Returns:
        (N,), not normalised.

    Raises:
        UserError: the model has no classes, or no such class.
        ValueError: more than one picture, an unsupported shape, or no such block.

    Source: Bousselham et al. 2024, arXiv 2404.03214.
    """
    start_block = checked_index("block", start_block, model.config.depth)
    with torch.inference_mode(False), torch.enable_grad(), onednn():
        model = frozen(model, pixels)
        blocks: Iterable[BlockPass] = _pass_blocks(model, pixels, hook, every=True)
        if target is None:
            blocks = list(blocks)
            target = model.default_target(model.classify(blocks[-1].after[:, model.read])[0])
        check_target(model.config, target)
        maps = []
        for block, (_, inputs, heads, after) in enumerate(blocks):
            if block < start_block:
                continue
            tokens = after.mean(1, keepdim=True).expand_as(after) if model.config.pool in ("cls", "cls_dist") else after
            score = model.classify(tokens[:, model.read])[0, target]
            (g,) = torch.autograd.grad(score, heads)
            v = inputs.v.detach()[0]  # (H, N, K)
            gains = torch.zeros_like(v[0, :, 0])
            for queries, values in zip(g[0], v, strict=True):
                for rows in queries.split(_rows_per_chunk(v)):
                    gains += (rows @ values.T).clamp_(min=0).sum(0)
            maps.append(gains / g[0, ..., 0].numel())  # mean over heads and queries
    return torch.stack(maps).mean(0)


def frozen(model: VisionTransformer, pixels: Tensor) -> VisionTransformer:
    """Return a copy in evaluation mode that shares memory, with frozen parameters."""
    if not model.config.num_classes:
        raise UserError(
            "This model computes features and has no classes, so there is no class to explain. "
            "Choose another checkpoint, or a method that needs no class: attention or rollout."
        )
    if len(pixels) != 1:
        raise ValueError(f"A record holds one picture, not {len(pixels)}.")
    same = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    return copy.deepcopy(model, same).eval()


def _pass_blocks(model: VisionTransformer, pixels: Tensor, hook: Hook | None, every: bool) -> Iterator[BlockPass]:
    """Yield the forward pass of each block.

    Args:
        every: compute all tokens of the last block, not only those that the head reads.
    """
    captured: list[tuple[HeadInputs, Tensor]] = []

    def capture(index: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.output()
        captured.append((inputs, heads))
        return heads if hook is None else hook(index, inputs._replace(output=lambda: heads))

    with torch.no_grad():
        x, steps = model.walk(
            pixels.detach(), every=every, queries=EVERY, attend=fused_attention_with_gradient, hook=capture
        )
    for step in steps:
        before = x.detach().requires_grad_()
        x = step(before)
        yield BlockPass(before, *captured.pop(), x)


def _input_gradient(model: VisionTransformer, pixels: Tensor, back: Tensor) -> Tensor:
    """Compute `GradientRecord.input_gradient`.

    Args:
        back: (1, N, D), gradient with respect to the input of the first block.
    """
    side = model.config.patch_size
    pixels = pixels.detach().clone().requires_grad_()  # leaves inference mode, too
    (by_pixels,) = torch.autograd.grad(model.walk(pixels).x, pixels, back)
    patches = by_pixels[0].unflatten(2, (-1, side)).unflatten(1, (-1, side))  # (channels, rows, side, cols, side)
    lengths = patches.square().sum((0, 2, 4)).sqrt()
    return torch.cat([back.new_zeros(len(model.config.prefix)), lengths.flatten()])


def check_target(config: ViTConfig, target: int) -> None:
    """Raise `UserError` if the model has no such class."""
    if not 0 <= target < config.num_classes:
        raise UserError(f"There is no class {target}: they run from 0 to {config.num_classes - 1}.")
