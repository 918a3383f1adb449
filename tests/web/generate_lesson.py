"""Regenerate lesson_cases.json: `.venv/bin/python tests/web/generate_lesson.py`.

Models are computed here in float64 by definition, independently of torch and JavaScript. Preprocessed pictures come
from Pillow, and only the packed bytes from the package.
"""

import base64
import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))

from generate import softmax
from tiny import fill

from vit.images.preprocess import Preprocess
from vit.lesson.page import as_text
from vit.lesson.weights import MIDDLE, pack_weights
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

FILE = Path(__file__).with_name("lesson_cases.json")
PLAIN: dict[str, Any] = {
    "image_size": (8, 12), "patch_size": 4, "num_classes": 3, "dim": 16, "depth": 2, "heads": 2, "mlp_dim": 72
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "class token": PLAIN,
    "mean of patches, scaled branches, narrow heads": PLAIN | {
        "dim": 12, "heads": 3, "mlp_dim": 90, "prefix": ("reg1", "reg2"), "pool": "mean", "norm": "after_pool",
        "layer_scale": 0.5, "qkv_bias": False,
    },
}  # fmt: skip
SIZES = {
    "smaller": ((11, 7), (4, 4), "bilinear"),
    "larger": ((3, 5), (8, 8), "bicubic"),
    "smaller, lanczos": ((13, 17), (5, 6), "lanczos"),
    "as wide as before": ((6, 9), (6, 6), "bilinear"),
    "halves": ((7, 4), (4, 4), "bilinear"),
}


def numbers(values: np.ndarray) -> Any:
    """Return nested lists of numbers with seven digits."""
    return json.loads(
        json.dumps(np.asarray(values, float).tolist()), parse_float=lambda text: float(f"{float(text):.7g}")
    )


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float) -> np.ndarray:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * weight + bias


def gelu(x: np.ndarray) -> np.ndarray:
    return x * np.vectorize(lambda value: (1 + math.erf(value / math.sqrt(2))) / 2)(x)


def forward(config: ViTConfig, state: dict[str, np.ndarray], pixels: np.ndarray) -> dict[str, Any]:
    """Compute every activation of a pass, from pixels (channels, height, width)."""
    side, heads, eps = config.patch_size, config.heads, config.eps
    rows, cols = config.grid
    patches = [
        pixels[:, r * side : (r + 1) * side, c * side : (c + 1) * side].ravel()
        for r in range(rows)
        for c in range(cols)
    ]
    embedded = np.stack(patches) @ state["patch_embed.weight"].reshape(config.dim, -1).T + state["patch_embed.bias"]
    x = np.concatenate([state["prefix_tokens"][0], embedded + state["pos_embed"][0]])
    blocks = []
    for index in range(config.depth):
        part = {name.split(".", 2)[2]: value for name, value in state.items() if name.startswith(f"blocks.{index}.")}
        normed = layer_norm(x, part["norm1.weight"], part["norm1.bias"], eps)
        qkv = normed @ part["attn.qkv.weight"].T + part.get("attn.qkv.bias", 0)
        q, k, v = (one.reshape(len(x), heads, -1).swapaxes(0, 1) for one in np.split(qkv, 3, -1))  # (H, N, K)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        attention = softmax(scores)
        mixed = attention @ v  # (H, N, K)
        weight, scale1, scale2 = part["attn.proj.weight"], part.get("scale1", 1), part.get("scale2", 1)
        width = q.shape[-1]
        alone = [(mixed[h] @ weight[:, h * width : (h + 1) * width].T) * scale1 for h in range(heads)]
        added = sum(alone) + part["attn.proj.bias"] * scale1
        between = x + added
        inner = layer_norm(between, part["norm2.weight"], part["norm2.bias"], eps)
        neurons = gelu(inner @ part["mlp.fc1.weight"].T + part["mlp.fc1.bias"])
        mlp = (neurons @ part["mlp.fc2.weight"].T + part["mlp.fc2.bias"]) * scale2
        blocks.append(
            {"x": x, "normed": normed, "q": q, "k": k, "v": v, "scores": scores, "attention": attention, "mixed": mixed,
             "alone": np.stack(alone), "added": added, "between": between, "neurons": neurons, "mlp": mlp,
             "out": between + mlp}
        )  # fmt: skip
        x = between + mlp
    last = layer_norm(x, state["norm.weight"], state["norm.bias"], eps) if config.norm == "before_pool" else x
    pooled = last[config.prefix.index("cls")] if config.pool == "cls" else last[len(config.prefix) :].mean(0)
    if config.norm == "after_pool":
        pooled = layer_norm(pooled, state["norm.weight"], state["norm.bias"], eps)
    return {"blocks": blocks, "probabilities": softmax(pooled @ state["head.weight"].T + state["head.bias"])}


def traced(block: dict[str, np.ndarray], head: int, token: int, other: int) -> dict[str, Any]:
    """Return the trace of one token in a block."""
    q, k = block["q"][head, token], block["k"][head, other]
    found = {
        "x": block["x"][token], "normed": block["normed"][token], "query": q, "key": k,
        "value": block["v"][head, other],
        "products": q * k, "scores": block["scores"][head, token], "weights": block["attention"][head, token],
        "mixed": block["mixed"][head, token], "headAdds": block["alone"][head, token],
        "attentionAdds": block["added"][token], "between": block["between"][token], "neurons": block["neurons"][token],
        "mlpAdds": block["mlp"][token], "out": block["out"][token],
    }  # fmt: skip
    return {name: numbers(values) for name, values in found.items()}


def tops(attentions: np.ndarray, split: int) -> list[float]:
    """Return the ends of the shared scales, from (L, H, N, N): medians of the maxima, rounded up to round multiples."""
    tokens = attentions.shape[-1]
    looks = attentions[..., split:].max(-1).reshape(-1, tokens)
    looked_at = attentions[:, :, split:].max(2).reshape(-1, tokens)
    medians = np.median(np.concatenate([looks, looked_at], 1), axis=0) * tokens
    steps = [4, 5, 6, 8, 10, 12, 15, 20]
    return [min(next(step for step in steps if step >= median - 1e-9) / tokens, 1.0) for median in medians]


def model_case(name: str, changes: dict[str, Any]) -> dict[str, Any]:
    model = fill(VisionTransformer(ViTConfig(**changes)))
    config = model.config
    weights = pack_weights(model)
    pixels = np.random.default_rng(3).normal(size=(config.channels, *config.image_size)).astype(np.float32)
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    passed = forward(config, state, pixels.astype(float))
    last = config.depth - 1
    return {
        "name": name,
        "config": asdict(config),
        "tensors": weights.tensors,
        "middle": MIDDLE,
        "packed": base64.b64encode(weights.packed).decode(),
        "pixels": base64.b64encode(pixels.tobytes()).decode(),
        "probabilities": numbers(passed["probabilities"]),
        "tops": tops(np.stack([block["attention"] for block in passed["blocks"]]), len(config.prefix)),
        "attentions": [numbers(block["attention"]) for block in passed["blocks"]],
        "traces": [
            {"block": block, "head": head, "token": token, "other": other,
             "numbers": traced(passed["blocks"][block], head, token, other)}
            for block, head, token, other in ((0, 0, 1, 4), (last, config.heads - 1, 0, config.tokens - 1))
        ],
    }  # fmt: skip


def picture_case(
    name: str, size: tuple[int, int], to: tuple[int, int], interpolation: Any, channels: int, rounding: Any = "down"
) -> dict[str, Any]:
    width, height = size
    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=np.uint8))
    preprocess = Preprocess(
        to, interpolation=interpolation, mean=(0.5,) * channels, std=(0.25,) * channels, rounding=rounding
    )
    return {
        "name": name,
        "width": width,
        "height": height,
        "pixels": base64.b64encode(np.asarray(picture.convert("RGBA")).tobytes()).decode(),
        "preprocess": asdict(preprocess),
        "input": numbers(preprocess(picture)[0].numpy()),
        "box": list(preprocess.geometry(picture).box),
    }


def main() -> None:
    """Write the file."""
    every = np.arange(1 << 16, dtype="<u2").tobytes()[: 1 << 8] + bytes(range(256)) + b"\x24\x24\x00\xd8\xff\xdf<\x00"
    cases = {
        "models": [model_case(name, changes) for name, changes in MODELS.items()],
        "pictures": [picture_case(name, *of, 3) for name, of in SIZES.items()]
        + [picture_case("grey", (9, 8), (4, 4), "bilinear", 1)]
        + [picture_case("halves, to even", (7, 4), (4, 4), "bilinear", 3, "even")],
        "texts": [{"bytes": base64.b64encode(every).decode(), "text": as_text(every)}],
    }
    lines = (f'  "{name}": [\n    ' + ",\n    ".join(map(json.dumps, every)) + "\n  ]" for name, every in cases.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
