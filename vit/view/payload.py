"""Binary format for one picture and all its attention, which the browser reads without parsing.

    "vit1", length of the header (uint32), header (JSON), sections (each starts at a multiple of 8 bytes)

Little-endian. The header names each section with its offset from the start and its length [bytes]:

    section     numbers                         what
    picture     JPEG or PNG                     the picture for display
    colormap:X  uint8 (256, 3)                  one colour map
    prefix      float16 (L, H, N, S)            kind "maps": attention to the prefix tokens
    scales      float32 (L, H, N)               kind "maps": largest attention of each row to a patch
    maps        uint8 (L, H, N, P)              kind "maps": attention to patches, 255 is the row's scale
    queries     float16 (L, H, N, K)            kind "qk": queries / sqrt(K)
    keys        float16 (L, H, N, K)            kind "qk": keys minus their mean, which does not change the softmax
    log_sums    float32 (L, H, N)               kind "qk": attention[i, j] = exp(queries[i] . keys[j] - log_sums[i])
    tops        float32 (2, N)                  end of the shared colour scale: from each token, to each token
    features    int8 (N, D)                     tokens after the last block, each scaled to a maximum of 127
    units       float32 (N)                     cosine[i, j] = features[i] . features[j] * units[i] * units[j]
    pool        float32 (H, N)                  attention of the pooling query

`features`, `units` and `pool` are absent if the record has none. Quantising features to int8 changes a cosine by about
0.0003, and by at most 0.007 in a model with a few huge channels, which is below the two digits that are displayed, at
half the size of float16.

The matrices of a class-specific chain are in a second payload, kind "chain", because they depend on the class:

    matrices    float16 (L, N, N)               divided by the block's scale
    scales      float32 (L)
    start       float32 (N)                     initial row for the model's output

Masks and score drops of a class are in a payload of kind "masks", see `vit.explain.faithfulness_correlation`. Its
header has the grid, the name of the class, the `ceiling` of all maps, and `decidable`, whether maps can be judged:

    masks       uint8 (M, P / 8)                a bit per patch, lowest first, 1 if it is covered
    drops       float32 (M)                     of the class's log-probability

A map that the server improves while it is shown is in a payload of kind "map":

    values      float32 (N)                     in the unit of the method

Tokens after one block are in a payload of kind "features", with `features` and `units` as above. Its header has the
`block` from 0, and with colours the explained variance ratios `shares` and the number of `pictures`:

    colours     uint8 (P, 3)                    components as red, green and blue, see `vit.explain.components`

Prefix tokens have a section of their own, because a class token that takes most of a row would leave only a few of the
255 steps to the patches. Reading needs no torch, so that pages that only show stored data load quickly.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vit.images.encode import encode_image
from vit.model import cpu
from vit.untrusted import parse_json

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.record import AttentionRecord
    from vit.explain.relevance import GradientRecord

MAGIC = b"vit1"
CHAIN_UP_TO = 1 << 21  # maximum matrix elements of a chain that the browser computes on hover; 4 MB, 3 ms
MAPS_UP_TO = 256  # tokens; with more, queries and keys are smaller than the maps

# End of the colour scale that all blocks and heads share for a query: this quantile of the heads' strongest patches. A
# few sharp heads saturate, so that the others can be distinguished. Prefix tokens are excluded, or a class token that
# takes most of the attention would turn every patch dark. The end is at least 4 times uniform attention, or a uniform
# head would look strong, and a round multiple of it, so that the scale rarely changes as the query moves.
_TOP_QUANTILE = 0.5
_MIN_TOP = 4.0
_ROUND_TOPS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
_CHUNK_SCORES = 1 << 21  # scores per chunk; 8 MB, which fit into a CPU cache

_PICTURE_SIDES = (1600, 1280, 1024, 800, 640, 480)  # longer side of the displayed picture; the first that fits [px]
_PICTURE_BYTES = 120_000  # size limit of the displayed picture
_JPEG_QUALITY = 88


def pack(
    record: AttentionRecord,
    picture: Image.Image,
    box: tuple[float, float, float, float],
    colormaps: dict[str, np.ndarray],
) -> bytes:
    """Pack everything the viewer needs for one picture.

    Args:
        record: attention of the picture.
        picture: upright, original size; it is scaled down for display.
        box: (left, top, right, bottom) of the patch grid in pixels of `picture`; may extend beyond it.
        colormaps: (256, 3) uint8 each, by name; the first is the default.

    Raises:
        ValueError: a colour map or the box has the wrong shape, or the record does not fit its own grid.
    """
    left, top, right, bottom = (float(side) for side in box)
    if not (np.isfinite([left, top, right, bottom]).all() and left < right and top < bottom):
        raise ValueError(f"box must be (left, top, right, bottom), not {box!r}.")
    if not colormaps:
        raise ValueError("The viewer needs at least one colour map.")
    if len(record.prefix) + record.grid[0] * record.grid[1] != record.tokens:
        raise ValueError(f"Prefix {record.prefix} and grid {record.grid} do not make {record.tokens} tokens.")

    image, kind = _encode_picture(picture)
    sections: dict[str, bytes | memoryview] = {"picture": image}
    for name, colors in colormaps.items():
        if colors.shape != (256, 3) or colors.dtype != np.uint8:
            raise ValueError(f"Colour map {name!r} must be (256, 3) uint8, not {colors.shape} {colors.dtype}.")
        sections[f"colormap:{name}"] = colors.tobytes()
    small = record.tokens <= max(MAPS_UP_TO, record.queries[0].shape[-1])  # maps are no larger than queries and keys
    attention = (_all_maps if small else _queries_keys)(record)
    if record.features is not None:
        attention |= _packed_features(_as_numpy(record.features))
    sections |= {name: numbers.reshape(-1).view(np.uint8).data for name, numbers in attention.items()}
    header: dict[str, Any] = {
        "kind": "maps" if "maps" in attention else "qk",
        "blocks": record.blocks,
        "heads": record.heads,
        "tokens": record.tokens,
        "width": record.queries[0].shape[-1],  # K
        "prefix": list(record.prefix),
        "grid": list(record.grid),
        "picture": {"width": picture.width, "height": picture.height, "type": kind},
        "box": [left, top, right, bottom],
        "colormaps": list(colormaps),
    }
    if record.pool_attention is not None:
        pool = _as_numpy(record.pool_attention)  # (H, N)
        sections["pool"] = pool.tobytes()
        header["pool_top"] = float(_scale_end(pool[:, len(record.prefix) :].max(-1), record.tokens))
    if record.norms is not None:
        from vit.explain.weight_views import high_norm  # noqa: PLC0415 # imports torch, which readers do not need

        split = len(record.prefix)
        if artefacts := high_norm(record.norms[None, split:])[0].nonzero()[:, 0].tolist():
            header["artefacts"] = [split + patch for patch in artefacts]
    return join_sections(header, sections)


def chain_fits(record: AttentionRecord) -> bool:
    """Whether the browser computes the maps of the method "relevance" from a chain."""
    return record.blocks * record.tokens**2 <= CHAIN_UP_TO


def relevance_chain(record: GradientRecord) -> bytes:
    """Pack the chain of the method "relevance"."""
    return pack_chain([record.flow(block) for block in range(record.blocks)], record.read)


def pack_chain(matrices: Sequence[Tensor], start: Tensor) -> bytes:
    """Pack the matrices A of a chain r <- r (I + A) through all blocks.

    Args:
        matrices: L of (N, N), at least 0.
        start: (N,), initial row for the model's output.
    """
    arrays = [_as_numpy(matrix) for matrix in matrices]
    scales = np.array([max(float(array.max()), float(np.finfo(np.float32).tiny)) for array in arrays], np.float32)
    sections = {
        "matrices": b"".join(
            (array / scale).astype(np.float16).tobytes() for array, scale in zip(arrays, scales, strict=True)
        ),
        "scales": scales.tobytes(),
        "start": _as_numpy(start).tobytes(),
    }
    return join_sections({"kind": "chain", "blocks": len(arrays), "heads": 1, "tokens": len(start)}, sections)


def pack_map(values: Tensor) -> bytes:
    """Pack a map (N,) that later payloads of the same name replace."""
    header = {"kind": "map", "blocks": 1, "heads": 1, "tokens": len(values)}
    return join_sections(header, {"values": _as_numpy(values).tobytes()})


def pack_masks(
    masks: Tensor,
    drops: Tensor,
    grid: tuple[int, int],
    target: str,
    *,
    ceiling: float,
    decidable: bool,
    complete: bool = True,
) -> bytes:
    """Pack masks and score drops, with which the viewer judges maps.

    Args:
        masks: bool (M, P), all covering the same number of patches.
        drops: (M,), at least three, see `vit.explain.faithfulness_correlation.score_drops`.
        grid: (rows, cols).
        target: display name of the class.
        ceiling: maximum correlation of an additive map, see `vit.explain.faithfulness_correlation.Removal`.
        decidable: whether maps can be judged, see `vit.explain.faithfulness_correlation.masks_are_informative`.
        complete: whether these are all masks.
    """
    sections = {
        "masks": np.packbits(masks.cpu().numpy(), axis=1, bitorder="little").tobytes(),
        "drops": _as_numpy(drops).tobytes(),
    }
    header = {"kind": "masks", "blocks": 1, "heads": 1, "tokens": masks.shape[1], "grid": list(grid)}
    return join_sections(
        header | {"target": target, "ceiling": ceiling, "decidable": decidable, "complete": complete}, sections
    )


def pack_features(
    features: Tensor,
    grid: tuple[int, int],
    block: int,
    colours: Tensor | None = None,
    shares: Sequence[float] = (),
    pictures: int = 1,
) -> bytes:
    """Pack tokens after a block, with which the viewer compares and colours patches.

    Args:
        features: (N, D), see `vit.explain.components.token_features`.
        grid: (rows, cols).
        block: from 0.
        colours, shares: (rows, cols, 3) and (3,), see `vit.explain.components.Components`.
        pictures: number of pictures that share the basis.
    """
    packed = _packed_features(_as_numpy(features))
    sections = {name: numbers.tobytes() for name, numbers in packed.items()}
    if colours is not None:
        sections["colours"] = (colours * 255).round().byte().cpu().numpy().tobytes()
    header = {"kind": "features", "blocks": 1, "heads": 1, "tokens": len(features), "grid": list(grid)}
    return join_sections(header | {"block": block, "shares": list(shares), "pictures": pictures}, sections)


def unpack(payload: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Parse a payload into header and sections, like `payload.js`.

    Raises:
        ValueError: not a payload.
    """
    header = read_header(payload)
    sizes = (header["blocks"], header["heads"], header["tokens"])
    prefix = len(header.get("prefix", ()))
    kinds: dict[str, tuple[Any, tuple[int, ...]]] = {
        "prefix": (np.float16, (*sizes, prefix)),
        "scales": (np.float32, sizes[:1] if header["kind"] == "chain" else sizes),
        "maps": (np.uint8, (*sizes, sizes[2] - prefix)),
        "queries": (np.float16, (*sizes, -1)),
        "keys": (np.float16, (*sizes, -1)),
        "log_sums": (np.float32, sizes),
        "tops": (np.float32, (2, sizes[2])),
        "features": (np.int8, (sizes[2], -1)),
        "units": (np.float32, sizes[2:]),
        "colours": (np.uint8, (-1, 3)),
        "pool": (np.float32, sizes[1:]),
        "matrices": (np.float16, (sizes[0], sizes[2], sizes[2])),
        "start": (np.float32, sizes[2:]),
        "values": (np.float32, sizes[2:]),
        "masks": (np.uint8, (-1, -(-sizes[2] // 8))),
        "drops": (np.float32, (-1,)),
    }
    sections = {}
    for name, (offset, length) in header["sections"].items():
        dtype, shape = kinds.get(name, (np.uint8, (256, 3) if name.startswith("colormap:") else (-1,)))
        sections[name] = np.frombuffer(payload, np.uint8, length, offset).view(dtype).reshape(shape)
    return header, sections


def read_header(payload: bytes) -> dict[str, Any]:
    """Read only the header of a payload.

    Raises:
        ValueError: not a payload.
    """
    if payload[:4] != MAGIC:
        raise ValueError("These bytes are not a viewer payload.")
    header: dict[str, Any] = parse_json(payload[8 : 8 + int.from_bytes(payload[4:8], "little")])
    return header


def _all_maps(record: AttentionRecord) -> dict[str, np.ndarray]:
    """Compute and quantise all maps, one block at a time."""
    split = len(record.prefix)
    blocks, strongest = [], []
    for block in range(record.blocks):
        full = _as_numpy(record.full(block))  # (H, N, N)
        patches = full[..., split:]
        scales = np.maximum(patches.max(-1), np.finfo(np.float32).tiny)
        maps = np.rint(patches * (255 / scales[..., None].astype(np.float64))).astype(np.uint8)
        blocks.append((full[..., :split].astype(np.float16), scales, maps))
        strongest.append(np.stack([scales, full[:, split:].max(1)]))
    prefix, scales, maps = (np.stack(part) for part in zip(*blocks, strict=True))
    return {"prefix": prefix, "scales": scales, "maps": maps, "tops": _scale_ends(strongest)}


def _queries_keys(record: AttentionRecord) -> dict[str, np.ndarray]:
    """Round queries and keys to float16; the row sums are those of the rounded numbers, which the browser uses."""
    split = len(record.prefix)
    shape = (record.blocks, *record.queries[0].shape)
    queries, keys, log_sums = np.empty(shape, np.float16), np.empty(shape, np.float16), np.empty(shape[:3], np.float32)
    strongest = []
    with cpu.onednn():
        for block, (q, k) in enumerate(zip(record.queries, record.keys, strict=True)):
            q, k = q.float(), k.float()
            # float16 has 11 bits and a small range. Each step leaves the softmax of q k as it is, and makes rounding
            # cheaper: the scale moves into q, so that the browser does not multiply; the mean key is subtracted, which
            # adds a constant to each row; and a power of two, which is exact, is moved between q and k until both have
            # the same range.
            q = q * q.shape[-1] ** -0.5
            k = k - k.mean(1, keepdim=True)
            balance = _balance(q, k)
            q, k = (q * balance).half(), (k / balance).half()
            sums, log_tops = _sums_and_peaks(q, k, split)
            queries[block], keys[block], log_sums[block] = q.cpu().numpy(), k.cpu().numpy(), _as_numpy(sums)
            strongest.append(_as_numpy(log_tops.exp()))
    return {"queries": queries, "keys": keys, "log_sums": log_sums, "tops": _scale_ends(strongest)}


def _sums_and_peaks(queries: Tensor, keys: Tensor, split: int) -> tuple[Tensor, Tensor]:
    """Compute log row sums (H, N), and logs of each token's maximum attention (2, H, N): to patches, from patches."""
    heads, tokens = queries.shape[:2]
    rows_per_chunk = max(1, _CHUNK_SCORES // tokens)
    sums = queries.new_empty(heads, tokens).float()
    tops = sums.new_full((2, heads, tokens), -math.inf)
    for head in range(heads):
        q, k = queries[head].float(), keys[head].float().T
        for first in range(0, tokens, rows_per_chunk):
            part = slice(first, first + rows_per_chunk)
            scores = q[part] @ k  # (rows, N)
            logs = scores.log_softmax(-1)
            sums[head, part] = scores[:, 0] - logs[:, 0]
            tops[0, head, part] = logs[:, split:].amax(-1)
            patches = logs[max(0, split - first) :]  # queries that are patches
            if len(patches):
                tops[1, head] = tops[1, head].maximum(patches.amax(0))
    return sums, tops


def _balance(q: Tensor, k: Tensor) -> Tensor:
    """Compute a power of two per head (H, 1, 1) that balances the ranges of queries and keys, so both fit float16."""
    tiny = np.finfo(np.float32).tiny.item()
    ratio = k.abs().amax((1, 2)).clamp_min(tiny) / q.abs().amax((1, 2)).clamp_min(tiny)
    return ratio.log2().div(2).round().exp2()[:, None, None]


def _scale_ends(strongest: list[np.ndarray]) -> np.ndarray:
    """Compute the ends of the shared colour scale (2, N) from the maxima of every head: L of (2, H, N)."""
    every = np.concatenate(strongest, 1)  # (2, L*H, N)
    return _scale_end(every.swapaxes(0, 1), every.shape[-1])


def _scale_end(strongest: np.ndarray, tokens: int) -> np.ndarray:
    """Compute the end of a shared colour scale from the maximum of each map: (maps, ...) to (...)."""
    multiples = np.maximum(np.quantile(strongest, _TOP_QUANTILE, axis=0) * tokens, _MIN_TOP)
    power = 10 ** np.floor(np.log10(multiples))
    steps = np.asarray(_ROUND_TOPS)
    rounded = steps[np.minimum(np.searchsorted(steps, multiples / power - 1e-6), len(steps) - 1)] * power
    return np.minimum(rounded / tokens, 1).astype(np.float32)


def _packed_features(features: np.ndarray) -> dict[str, np.ndarray]:
    """Quantise tokens (N, D) to int8, with the inverse norms that turn products into cosines; 0 for a zero token."""
    tiny = np.finfo(np.float32).tiny
    small = np.rint(features / np.maximum(np.abs(features).max(-1, keepdims=True), tiny) * 127).astype(np.int8)
    lengths = np.linalg.norm(small.astype(np.float32), axis=-1)
    units = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return {"features": small, "units": units}


def _as_numpy(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().numpy()


def _encode_picture(picture: Image.Image) -> tuple[bytes, str]:
    """Encode the picture for display: small ones as PNG, others as a JPEG within `_PICTURE_BYTES` if possible."""
    picture = picture.convert("RGB")
    if max(picture.size) <= 128:
        return encode_image(picture, "PNG", optimize=True), "image/png"
    for side in _PICTURE_SIDES:
        share = min(1.0, side / max(picture.size))
        size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
        # Shrinks the previous, already smaller picture, which is faster.
        picture = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=1.0)
        image = encode_image(picture, "JPEG", quality=_JPEG_QUALITY)
        if len(image) <= _PICTURE_BYTES:
            break
    return image, "image/jpeg"


def join_sections(header: dict[str, Any], sections: Mapping[str, bytes | memoryview]) -> bytes:
    """Join a header and sections to a payload in the format that the module docstring describes.

    The header contains the sections' offsets, which depend on its own length, so it is padded to a fixed length.
    """
    room = len(json.dumps(header)) + 64 * (len(sections) + 1) + sum(map(len, sections))
    start = at = _round_up(8 + room)
    table, body = {}, []
    for name, data in sections.items():
        table[name] = [at, len(data)]
        at = _round_up(at + len(data))
        body += [data, bytes(at - table[name][0] - len(data))]
    text = json.dumps(header | {"sections": table}).encode().ljust(start - 8)
    return b"".join([MAGIC, len(text).to_bytes(4, "little"), text, *body])


def _round_up(size: int) -> int:
    return (size + 7) // 8 * 8
