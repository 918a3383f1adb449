"""Regenerate the generated part of cases.json: `.venv/bin/python tests/web/generate.py`.

Expected values are computed here in float64 by definition, independently of the package and the viewer. Only the
payload's bytes come from the package.
"""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))

from vit.explain.record import AttentionRecord
from vit.view.payload import pack, pack_masks

FILE = Path(__file__).with_name("cases.json")
GRAY = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, axis=1)
FUSE = {"mean": np.mean, "max": np.max, "min": np.min}


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def rollout(attention: np.ndarray, prefix: int, residual: float, fusion: str, discard: float) -> np.ndarray:
    """Return the product of all blocks (N, N), from attention (L, H, N, N)."""
    tokens = attention.shape[-1]
    product = np.eye(tokens)
    for heads in attention:
        fused = FUSE[fusion](heads, axis=0)
        for row in fused:
            weakest = sorted(range(prefix, tokens), key=lambda patch: row[patch])[: int(discard * (tokens - prefix))]
            row[weakest] = 0
        fused /= fused.sum(-1, keepdims=True)
        product = (residual * np.eye(tokens) + (1 - residual) * fused) @ product
    return product


def numbers(values: np.ndarray) -> list[float]:
    return [float(f"{value:.5g}") for value in values]


def payload_case(
    name: str, shape: tuple[int, int, int], prefix: tuple[str, ...], grid: tuple[int, int], features: int, pooled: bool
) -> dict[str, Any]:
    """Pack a record and compute its maps by definition."""
    blocks, heads, width = shape
    tokens = len(prefix) + grid[0] * grid[1]
    random = np.random.default_rng(7)
    q, k = random.normal(size=(2, blocks, heads, tokens, width)).astype(np.float32)
    attention = softmax(q.astype(float) @ k.astype(float).swapaxes(-1, -2) / width**0.5)  # (L, H, N, N)
    vectors = random.normal(size=(tokens, features)).astype(np.float32)
    pool = softmax(random.normal(size=(heads, tokens))).astype(np.float32)
    record = AttentionRecord(
        torch.zeros(1, 2), tuple(map(torch.from_numpy, q)), tuple(map(torch.from_numpy, k)), prefix, grid,
        torch.from_numpy(vectors) if features else None, torch.from_numpy(pool) if pooled else None,
    )  # fmt: skip
    payload = pack(record, Image.new("RGB", (2, 2)), (0, 0, 2, 2), {"gray": GRAY})

    def row(block: int | str, head: int | str, token: int, direction: str) -> dict[str, Any]:
        every = attention[:, :, token] if direction == "from" else attention[..., token]  # (L, H, N)
        per_block = FUSE[head](every, axis=1) if isinstance(head, str) else every[:, head]
        values = FUSE[block](per_block, axis=0) if isinstance(block, str) else per_block[block]
        return {"block": block, "head": head, "token": token, "direction": direction, "values": numbers(values)}

    def rolled(token: int, direction: str, **settings: Any) -> dict[str, Any]:
        product = rollout(attention, len(prefix), **settings)
        values = product[token] if direction == "from" else product[:, token]
        return {"token": token, "direction": direction, **settings, "values": numbers(values)}

    last = tokens - 1
    rows = [row(blocks - 1, heads - 1, last, "from"), row(0, 0, len(prefix), "to")]
    small = tokens < 50
    if small:
        rows += [row(0, 1, 0, "from"), row(1, 0, 1, "to"), row("max", "min", 3, "from"), row("mean", 1, last, "to")]
        rows += [row("min", "mean", 0, "from"), row(1, "max", 4, "to")]
    directions = vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) if features else vectors
    return {
        "name": name,
        "payload": base64.b64encode(payload).decode(),
        "rows": rows,
        "rollouts": [
            rolled(token, direction, residual=residual, fusion=fusion, discard=discard)
            for token, direction, residual, fusion, discard in (
                (0, "from", 0.5, "mean", 0.0), (3, "to", 0.5, "mean", 0.0), (last, "from", 0.2, "max", 0.35),
                (2, "to", 0.3, "min", 0.9), (1, "from", 0.0, "mean", 0.5), (4, "to", 0.95, "max", 0.5),
            )
        ] if small else [],
        "cosines": [{"token": t, "values": numbers(directions @ directions[t])} for t in (0, last) if features],
        "pool": [numbers(weights) for weights in pool] if pooled else [],
    }  # fmt: skip


def counterparts(here: dict[str, Any], there: dict[str, Any]) -> dict[str, Any]:
    """Return each token's counterpart: the patch that contains its centre; the prefix token of its name, or 0."""
    tokens = [there["prefix"].index(name) if name in there["prefix"] else 0 for name in here["prefix"]]
    (rows, cols), (other_rows, other_cols) = here["grid"], there["grid"]
    for row in range(rows):
        for col in range(cols):
            down = max(r for r in range(other_rows) if r * 2 * rows <= (2 * row + 1) * other_rows)
            right = max(c for c in range(other_cols) if c * 2 * cols <= (2 * col + 1) * other_cols)
            tokens.append(len(there["prefix"]) + down * other_cols + right)
    return {"here": here, "there": there, "tokens": tokens}


def judged(name: str, grid: tuple[int, int], count: int, noise: float) -> dict[str, Any]:
    """Return masks with their drops, and the verdicts on some maps by comparison with all their copies."""
    random = np.random.default_rng(11)
    patches, each = grid[0] * grid[1], max(1, round(0.3 * grid[0] * grid[1]))
    masks = np.zeros((count, patches), bool)
    for mask in masks:
        mask[random.permutation(patches)[:each]] = True
    weights = random.normal(size=patches)
    drops = (masks @ weights + noise * random.normal(size=count)).astype(np.float32)

    def correlation(values: np.ndarray) -> float:
        sums = masks @ values
        return 0.0 if np.ptp(sums) < 1e-12 else float(np.corrcoef(sums, drops.astype(float))[0, 1])

    def verdict(values: np.ndarray) -> dict[str, Any]:
        heatmap = values.reshape(grid)
        copies = [
            np.roll(one, (down, right), (0, 1)).ravel()
            for one in (heatmap, heatmap[:, ::-1])
            for down in range(grid[0])
            for right in range(grid[1])
        ][1:]
        value, others = correlation(values), [correlation(one) for one in copies]
        p = (1 + sum(other >= value - 1e-12 for other in others)) / (1 + len(others))
        reach = float(np.quantile(others, 0.95)) if others else 0.0
        return {"values": values.tolist(), "correlation": value, "p": p, "reach": reach}

    bytes_ = pack_masks(
        torch.from_numpy(masks), torch.from_numpy(drops), grid, "cat", ceiling=0.5, decidable=bool(noise)
    )
    maps = [weights, -weights, random.random(patches), np.full(patches, 0.1), np.eye(patches)[0]]
    return {
        "name": name,
        "grid": grid,
        "masks": masks.astype(int).tolist(),
        "drops": drops.tolist(),
        "ceiling": 0.5,
        "decidable": bool(noise),
        "payload": base64.b64encode(bytes_).decode(),
        "maps": [verdict(np.float32(values).astype(float)) for values in maps],
    }


def matched(name: str, source: tuple[int, int], target: tuple[int, int], prefix: int, width: int) -> dict[str, Any]:
    """Return quantised features of two pictures, and the matches of each patch of the first in the second."""
    random = np.random.default_rng(5)
    one, other = (
        random.integers(-127, 128, (prefix + rows * cols, width)).astype(float) for rows, cols in (source, target)
    )
    other[prefix : prefix + 3] = one[prefix + 2 : prefix + 5] + random.integers(-3, 4, (3, width))  # in both pictures
    other, one = other.clip(-127, 127), one.clip(-127, 127)
    directions = [vectors / np.linalg.norm(vectors, axis=-1, keepdims=True) for vectors in (one, other)]
    cosines = directions[0] @ directions[1].T
    of_patches = cosines[prefix:, prefix:]
    expected = []
    for patch in range(len(of_patches)):
        best = sorted(range(of_patches.shape[1]), key=lambda j: -of_patches[patch, j])[:5]
        mutual = [max(range(len(of_patches)), key=lambda i: of_patches[i, j]) == patch for j in best]
        row = [float(value) for value in cosines[prefix + patch]]
        expected.append({"patch": patch, "cosines": row, "best": best, "mutual": mutual})
    features = {"source": one.astype(int).tolist(), "target": other.astype(int).tolist()}
    grids = {"grids": {"source": source, "target": target}, "prefix": [f"reg{i + 1}" for i in range(prefix)]}
    return {"name": name, **grids, **features, "matches": expected}


def main() -> None:
    """Write the file."""
    text = FILE.read_text(encoding="utf-8")
    by_hand = text.split(',\n  "generated"')[0].rstrip().removesuffix("}").rstrip()
    made = {
        "generated": [
            payload_case("maps", (2, 2, 4), ("cls", "reg1"), (2, 3), 6, True),
            payload_case("queries and keys", (1, 2, 3), ("cls",), (16, 17), 0, False),
        ],
        "generated_judged": [
            judged("few masks", (3, 4), 8, 1.0),
            judged("without noise", (3, 3), 20, 0.0),
            judged("one row", (1, 5), 12, 0.3),
        ],
        "generated_matches": [
            matched("as many patches", (2, 3), (2, 3), 1, 8),
            matched("fewer than five patches", (3, 3), (2, 2), 0, 5),
            matched("another grid, two registers", (3, 4), (4, 5), 2, 13),
        ],
        "generated_counterparts": [
            counterparts({"prefix": ["cls", "dist"], "grid": [14, 14]}, {"prefix": ["cls"], "grid": [16, 16]}),
            counterparts({"prefix": ["cls"], "grid": [5, 7]}, {"prefix": ["reg1", "cls"], "grid": [3, 2]}),
        ],
    }
    for name, every in made.items():
        lines = ",\n    ".join(map(json.dumps, every))
        by_hand += f',\n  "{name}": [\n    {lines}\n  ]'
    FILE.write_text(by_hand + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
