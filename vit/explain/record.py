"""Attention on demand: any row, column or full map of any block, from the queries and keys of one forward pass."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.explain.maps import checked_index, fuse, fuse_rows, select_head
from vit.explain.settings import Direction, Fusion
from vit.model.attention import Hook, attention_weights
from vit.model.config import ViTConfig
from vit.model.cpu import exact_on_cpu, onednn
from vit.model.transformer import VisionTransformer

Precision = Literal["float32", "bfloat16"]

# Scores held at once while streaming over rows; 4 Mi float32 numbers are 16 MB.
_CHUNK_SCORES = 1 << 22


@dataclass(frozen=True)
class AttentionRecord:
    """What one picture's forward pass leaves behind: enough for all its attention in L*N*D numbers.

    Attributes:
        logits: (1, C), of the very pass that the queries and keys come from.
        queries, keys: L tensors (H, N, K), in the precision of the pass; attention is computed in float32.
        prefix: names of the tokens before the patches.
        grid: (rows, cols) of patches.
        features: (N, D), the tokens after the last block; None if nobody kept them.
        pool_attention: (H, N), where the query of a model that pools by attention looks; None for other models.
        pooled: (1, D or 2 D), what the head reads, in the precision of the pass; None if nobody kept it.
        read: (N,), how much of each token the head reads, see `read_by_head`; None if nobody kept it.
    """

    logits: Tensor
    queries: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    prefix: tuple[str, ...]
    grid: tuple[int, int]
    features: Tensor | None = None
    pool_attention: Tensor | None = None
    pooled: Tensor | None = None
    read: Tensor | None = None
    _log_sums: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def blocks(self) -> int:
        """How many blocks the record is of, L."""
        return len(self.queries)

    @property
    def heads(self) -> int:
        """How many heads each block has, H."""
        return self.queries[0].shape[0]

    @property
    def tokens(self) -> int:
        """How many tokens there are, N, prefix included."""
        return self.queries[0].shape[1]

    def rows(self, block: int, queries: Sequence[int]) -> Tensor:
        """Where these tokens look: (H, Q, N), each row summing to 1.

        Raises:
            ValueError: there is no such token.
            IndexError: there is no such block.
        """
        q, k = self.queries[block], self.keys[block].float()
        return attention_weights(q[:, self._check_tokens(queries)].float(), k)

    def columns(self, block: int, keys: Sequence[int]) -> Tensor:
        """Who looks at these tokens: (H, N, Q); entry [h, i, j] is the share that token i gives to `keys[j]`.

        Raises:
            ValueError: there is no such token.
            IndexError: there is no such block.
        """
        q, k = self.queries[block].float(), self.keys[block][:, self._check_tokens(keys)].float()
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (scores - self.log_sums(block)[..., None]).exp()

    @onednn()
    def full(self, block: int) -> Tensor:
        """The whole matrix of one block (H, N, N)."""
        return attention_weights(self.queries[block].float(), self.keys[block].float())

    def weights(
        self, query: int | Tensor, block: int | Fusion = -1, head: int | Fusion = "mean", direction: Direction = "from"
    ) -> Tensor:
        """Attention of one token, of one head and block or fused: first over heads, then over blocks.

        Args:
            query: the token asked about, or how much of each (N,).
            block, head: an index, negative from the end, or how to fuse all of them.
            direction: "from" is where the token looks, "to" is who looks at it.

        Returns:
            (N,)

        Raises:
            ValueError: there is no such token, block or head.
        """
        blocks = range(self.blocks) if isinstance(block, str) else [checked_index("block", block, self.blocks)]
        maps = []
        for b in blocks:
            every = self._of_heads(query, b, direction)
            maps.append(select_head(every, head))
        return fuse(torch.stack(maps), block) if isinstance(block, str) else maps[0]

    def _of_heads(self, query: int | Tensor, block: int, direction: Direction) -> Tensor:
        """Attention of a token, or of a mixture of them, in every head of a block: (H, N)."""
        if not isinstance(query, Tensor):
            return self.rows(block, [query])[:, 0] if direction == "from" else self.columns(block, [query])[:, :, 0]
        attention = query.new_zeros(self.heads, self.tokens)
        for start, rows in self.row_chunks(block):  # (H, R, N)
            part = slice(start, start + rows.shape[1])
            if direction == "from":
                attention += query[part] @ rows
            else:
                attention[:, part] = rows @ query
        return attention

    def last_attention(self, query: int | None = None, direction: Direction = "from") -> Tensor:
        """Raw attention of the last block, mean of heads; of the answer, where whatever the head reads looks.

        Args:
            query: the token asked about; None for the answer.
            direction: of a token, "from" is where it looks, "to" who looks at it.

        Returns:
            (N,)

        Raises:
            ValueError: there is no such token, or nobody kept what the head reads.
        """
        if query is not None:
            return self.weights(query, direction=direction)
        if self.pool_attention is not None:  # the last to look is the pooling query
            return self.pool_attention.mean(0)
        if self.read is None:
            raise ValueError("This record does not hold what the head reads.")
        return self.weights(self.read)

    def heatmap(self, weights: Tensor) -> Tensor:
        """The patches' part of (..., N) numbers, laid out as (..., rows, cols)."""
        return weights[..., len(self.prefix) :].unflatten(-1, self.grid)

    def patch(self, row: int, col: int) -> int:
        """The token of a patch.

        Raises:
            ValueError: the grid has no such patch.
        """
        rows, cols = self.grid
        if not (0 <= row < rows and 0 <= col < cols):
            raise ValueError(f"There is no patch {row},{col}: rows run from 0 to {rows - 1}, columns to {cols - 1}.")
        return len(self.prefix) + row * cols + col

    @onednn()
    def log_sums(self, block: int) -> Tensor:
        """The logarithm of each row's softmax denominator, (H, N)."""
        if block not in self._log_sums:
            q, k = self.queries[block].float(), self.keys[block].float()
            scores = (rows @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 for rows in q.split(self._rows_per_chunk, 1))
            self._log_sums[block] = torch.cat([s.logsumexp(-1) for s in scores], 1)
        return self._log_sums[block]

    def similarity(self, token: int) -> Tensor:
        """How alike each token's features are to those of this one after the last block: cosines (N,), -1 to 1.

        Raises:
            ValueError: there is no such token, or nobody kept the features.
        """
        (token,) = self._check_tokens([token])
        if self.features is None:
            raise ValueError("This record holds no features.")
        directions = F.normalize(self.features.float(), dim=-1)
        return directions @ directions[token]

    @onednn()
    def rollout(
        self,
        query: int | Tensor,
        residual: float = 0.5,
        direction: Direction = "from",
        fusion: Fusion = "mean",
        discard: float = 0.0,
    ) -> Tensor:
        """Attention rollout of one token as a chain of vector products; no N x N matrix of all rows is ever held.

        Args:
            query: the token asked about, or how much of each (N,).
            residual: share of the skip connection, 0 to 1.
            direction: "from" says where the token's content came from, row `query` of the rollout matrix;
                "to" says which tokens it reached, column `query`.
            fusion, discard: see `vit.explain.attention_rollout.rollout`.

        Returns:
            (N,); sums to 1 for "from".

        Raises:
            ValueError: there is no such token, or `discard` is no share.

        Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
        """
        vector = (query if isinstance(query, Tensor) else self._one_hot(query)).float()
        for block in reversed(range(self.blocks)) if direction == "from" else range(self.blocks):
            mixed = torch.zeros_like(vector)
            for first, rows in self.row_chunks(block):  # rows: (H, R, N)
                part = slice(first, first + rows.shape[1])
                if fusion != "mean" or discard:
                    rows = fuse_rows(rows, fusion, discard, len(self.prefix))[None]
                if direction == "from":
                    mixed += (vector[part] @ rows).mean(0)
                else:
                    mixed[part] = (rows @ vector).mean(0)
            vector = (1 - residual) * mixed + residual * vector
        return vector

    @property
    def _rows_per_chunk(self) -> int:
        return max(1, _CHUNK_SCORES // (self.heads * self.tokens))

    def row_chunks(self, block: int) -> Iterator[tuple[int, Tensor]]:
        """All rows of a block, a few at a time: the first one's number, and (H, R, N)."""
        for start in range(0, self.tokens, self._rows_per_chunk):
            yield start, self.rows(block, range(start, min(start + self._rows_per_chunk, self.tokens)))

    def _one_hot(self, token: int) -> Tensor:
        start = self.queries[0].new_zeros(self.tokens, dtype=torch.float32)
        start[self._check_tokens([token])] = 1
        return start

    def _check_tokens(self, tokens: Sequence[int]) -> list[int]:
        for token in tokens:
            if not 0 <= token < self.tokens:
                raise ValueError(f"There is no token {token}: tokens run from 0 to {self.tokens - 1}.")
        return list(tokens)


@torch.inference_mode()
def record(
    model: VisionTransformer, pixels: Tensor, precision: Precision = "float32", hook: Hook | None = None
) -> AttentionRecord:
    """Run one picture (1, channels, height, width) through the model and keep its queries and keys.

    Args:
        precision: "float32" is exact. "bfloat16" rounds what goes into each product to 8 bits: logits and attention
            are then those of a slightly other pass, and the record is half as large. Faster where
            `vit.model.cpu.has_bfloat16`.
        hook: on what the heads compute with, see `VisionTransformer.forward`.

    Raises:
        ValueError: more than one picture, or a shape that the model does not take.
    """
    if len(pixels) != 1:
        raise ValueError(f"A record holds one picture, not {len(pixels)}.")
    with torch.autocast(pixels.device.type, torch.bfloat16, enabled=precision == "bfloat16"):
        output = model(pixels, output_queries_keys=True, hook=hook)
    patch = model.config.patch_size
    pool_attention = None if output.pool_attention is None else output.pool_attention[0].float()
    return AttentionRecord(
        logits=output.logits.float(),
        queries=tuple(q[0] for q in output.queries),
        keys=tuple(k[0] for k in output.keys),
        prefix=model.config.prefix,
        grid=(pixels.shape[2] // patch, pixels.shape[3] // patch),
        features=output.tokens[0].float(),
        pool_attention=pool_attention,
        pooled=output.pooled,
        read=read_by_head(model.config, output.queries[0], pool_attention),
    )


@torch.inference_mode()
def answered(record: AttentionRecord, model: VisionTransformer) -> AttentionRecord:
    """The same pass read by another head on the same weights, without a pass of its own.

    Args:
        record: with `pooled`.
        model: that of the pass, with any head, see `VisionTransformer.with_head`.
    """
    assert record.pooled is not None, "a record with what the head reads"
    pooled, rounded = record.pooled, record.queries[0].dtype is torch.bfloat16
    with (
        torch.autocast(pooled.device.type, torch.bfloat16, enabled=rounded),
        onednn() if exact_on_cpu(pooled) else nullcontext(),  # asked within the former
    ):
        return replace(record, logits=model.head(pooled).float())


def read_by_head(config: ViTConfig, like: Tensor, pool_attention: Tensor | None = None) -> Tensor:
    """How much of each token a model's head reads, (N,), sums to 1; never in half precision.

    1 for the class token where only that is read, equal shares of the patches where their mean is, the pooling query's
    attention where it gathers.

    Args:
        like: (..., N, K), for the number of tokens and the device.
        pool_attention: (H, N), see `AttentionRecord`.
    """
    if pool_attention is not None:
        return pool_attention.mean(0)
    tokens, prefix, parts = like.shape[-2], len(config.prefix), config.pool.split("_")
    read = like.new_zeros(tokens, dtype=torch.promote_types(like.dtype, torch.float32))
    for part in parts:
        if part == "mean":
            read[prefix:] += 1 / (len(parts) * (tokens - prefix))
        else:
            read[config.prefix.index(part)] += 1 / len(parts)
    return read
