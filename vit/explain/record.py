"""Attention on demand: any row, column or matrix of any block, computed from the queries and keys of one pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.explain.maps import checked_index, fuse, fuse_rows, select_head
from vit.explain.settings import Direction, Fusion
from vit.model.attention import Hook, attention_weights
from vit.model.config import ViTConfig
from vit.model.cpu import onednn, onednn_for
from vit.model.transformer import VisionTransformer

Precision = Literal["float32", "bfloat16"]

# Attention scores per chunk when streaming over rows; 4 Mi float32 numbers are 16 MB.
_CHUNK_SCORES = 1 << 22


@dataclass(frozen=True)
class AttentionRecord:
    """Record of one picture's forward pass, from which all its attention can be computed. Stores L*N*D numbers.

    Attributes:
        logits: (1, C), of the same pass as the queries and keys.
        queries, keys: L tensors (H, N, K), in the dtype of the pass; attention is computed in float32.
        prefix: names of the tokens before the patches.
        grid: (rows, cols) of patches.
        features: (N, D), tokens after the last block; None if not recorded.
        pool_attention: (H, N), attention of the pooling query; None for models without attention pooling.
        pooled: (1, D or 2 D), input of the head, in the dtype of the pass; None if not recorded.
        read: (N,), weight of each token in the head's input, see `read_by_head`; None if not recorded.
        norms: (N,), norms of the tokens after the last block, before any LayerNorm; None if not recorded.
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
    norms: Tensor | None = None
    _log_sums: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def blocks(self) -> int:
        """Number of blocks, L."""
        return len(self.queries)

    @property
    def heads(self) -> int:
        """Number of heads per block, H."""
        return self.queries[0].shape[0]

    @property
    def tokens(self) -> int:
        """Number of tokens N, prefix included."""
        return self.queries[0].shape[1]

    def rows(self, block: int, queries: Sequence[int]) -> Tensor:
        """Compute the attention of these query tokens: (H, Q, N); rows sum to 1.

        Raises:
            ValueError: unknown token.
            IndexError: unknown block.
        """
        q, k = self.queries[block], self.keys[block].float()
        return attention_weights(q[:, self._check_tokens(queries)].float(), k)

    def columns(self, block: int, keys: Sequence[int]) -> Tensor:
        """Compute the attention to these key tokens: (H, N, Q); entry [h, i, j] is that of token i to `keys[j]`.

        Raises:
            ValueError: unknown token.
            IndexError: unknown block.
        """
        q, k = self.queries[block].float(), self.keys[block][:, self._check_tokens(keys)].float()
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return (scores - self.log_sums(block)[..., None]).exp()

    @onednn()
    def full(self, block: int) -> Tensor:
        """Compute the full attention matrix of one block (H, N, N)."""
        return attention_weights(self.queries[block].float(), self.keys[block].float())

    def weights(
        self, query: int | Tensor, block: int | Fusion = -1, head: int | Fusion = "mean", direction: Direction = "from"
    ) -> Tensor:
        """Compute the attention of one token, of one head and block, or fused: first over heads, then over blocks.

        Args:
            query: token index, or weights of all tokens (N,).
            block, head: an index, negative from the end, or how to fuse all of them.
            direction: "from" for attention from the token to others, "to" for attention from others to it.

        Returns:
            (N,)

        Raises:
            ValueError: unknown token, block or head.
        """
        blocks = range(self.blocks) if isinstance(block, str) else [checked_index("block", block, self.blocks)]
        maps = []
        for b in blocks:
            maps.append(select_head(self.of_heads(query, b, direction), head))
        return fuse(torch.stack(maps), block) if isinstance(block, str) else maps[0]

    def of_heads(self, query: int | Tensor, block: int, direction: Direction) -> Tensor:
        """Compute the attention of one token in every head of a block: (H, N).

        Args:
            query: token index, or weights of all tokens (N,).
            direction: "from" for attention from the token to others, "to" for attention from others to it.

        Raises:
            ValueError: unknown token.
        """
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
        """Compute raw attention of the last block, averaged over heads.

        Args:
            query: token index; None for the tokens that the head reads, or the pooling query if there is one.
            direction: "from" for attention from the token to others, "to" for attention from others to it.

        Returns:
            (N,)

        Raises:
            ValueError: unknown token, or `read` was not recorded.
        """
        if query is not None:
            return self.weights(query, direction=direction)
        if self.pool_attention is not None:
            return self.pool_attention.mean(0)
        if self.read is None:
            raise ValueError("This record does not hold what the head reads.")
        return self.weights(self.read)

    def heatmap(self, weights: Tensor) -> Tensor:
        """Arrange the patches' part of (..., N) numbers as (..., rows, cols)."""
        return weights[..., len(self.prefix) :].unflatten(-1, self.grid)

    def patch(self, row: int, col: int) -> int:
        """Return the token index of a patch.

        Raises:
            ValueError: the patch lies outside of the grid.
        """
        rows, cols = self.grid
        if not (0 <= row < rows and 0 <= col < cols):
            raise ValueError(f"There is no patch {row},{col}: rows run from 0 to {rows - 1}, columns to {cols - 1}.")
        return len(self.prefix) + row * cols + col

    @onednn()
    def log_sums(self, block: int) -> Tensor:
        """Return the logarithm of each row's softmax denominator, (H, N). Cached per block."""
        if block not in self._log_sums:
            q, k = self.queries[block].float(), self.keys[block].float()
            scores = (rows @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 for rows in q.split(self._rows_per_chunk, 1))
            self._log_sums[block] = torch.cat([s.logsumexp(-1) for s in scores], 1)
        return self._log_sums[block]

    def similarity(self, token: int) -> Tensor:
        """Compute the cosine similarity (N,) of each token's features after the last block with those of one token.

        Raises:
            ValueError: unknown token, or features were not recorded.
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
        """Compute attention rollout of one token by vector-matrix products, without a full N x N matrix in memory.

        Args:
            query: token index, or weights of all tokens (N,).
            residual: share of the skip connection, 0 to 1.
            direction: "from" for row `query` of the rollout matrix, the tokens that contributed to it;
                "to" for column `query`, the tokens that it contributed to.
            fusion: how heads are fused; rows are normalised again before the residual is added.
            discard: share of each row's weakest patches that is set to 0 after the fusion, see `discard_weakest`.

        Returns:
            (N,); sums to 1 for "from".

        Raises:
            ValueError: unknown token, or `discard` is out of range.

        Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1. Fusion and discarding follow jacobgil/vit-explain, but
        apply to each row separately.
        """
        # The rollout matrix is the product M_L ... M_1 of M = (1 - residual) A + residual I. One row of it is a row
        # vector times the matrices from the last block to the first, one column the matrices from the first to the last
        # times a column vector. Either takes L products of a vector and a matrix, whose rows are computed in chunks and
        # dropped.
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
        """Yield all attention rows of a block in chunks: the index of the first row, and (H, R, N)."""
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
    """Run one picture (1, channels, height, width) through the model and record its queries and keys.

    Args:
        precision: "float32" is exact. "bfloat16" runs under autocast: logits and attention differ slightly, and the
            record is half as large. It is faster if `vit.model.cpu.has_bfloat16`.
        hook: replaces head outputs, see `VisionTransformer.forward`.

    Raises:
        ValueError: more than one picture, or a shape that does not fit the model.
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
        norms=output.norms[0].float(),
    )


@torch.inference_mode()
def with_logits(record: AttentionRecord, model: VisionTransformer) -> AttentionRecord:
    """Return the record with the logits of another head, without a new forward pass.

    Args:
        record: with `pooled`.
        model: the model of the pass with any head, see `VisionTransformer.with_head`.
    """
    assert record.pooled is not None, "a record with what the head reads"
    pooled, rounded = record.pooled, record.queries[0].dtype is torch.bfloat16
    with (
        torch.autocast(pooled.device.type, torch.bfloat16, enabled=rounded),
        onednn_for(pooled),  # must follow autocast, which it checks
    ):
        return replace(record, logits=model.head(pooled).float())


def read_by_head(config: ViTConfig, like: Tensor, pool_attention: Tensor | None = None) -> Tensor:
    """Compute the weight of each token in the head's input, (N,), at least float32; sums to 1.

    1 for the class token if the head reads only that; equal weights for tokens that are averaged; the pooling query's
    attention for attention pooling.

    Args:
        like: (..., N, K), a tensor with the number of tokens, the device and the dtype.
        pool_attention: (H, N), see `AttentionRecord`.
    """
    if pool_attention is not None:
        return pool_attention.mean(0)
    tokens, prefix, parts = like.shape[-2], len(config.prefix), config.pool.split("_")
    read = like.new_zeros(tokens, dtype=torch.promote_types(like.dtype, torch.float32))
    for part in parts:
        if part == "mean":
            read[prefix:] += 1 / (len(parts) * (tokens - prefix))
        elif part == "all":
            read += 1 / tokens
        else:
            read[config.prefix.index(part)] += 1 / len(parts)
    return read
