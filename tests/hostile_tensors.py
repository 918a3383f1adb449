"""State dicts of every family, as shapes, and changes of a single tensor that damage or hostility may cause."""

from collections.abc import Iterator

import torch
from torch import Tensor

from vit.checkpoints.families.family import Family

DIM, HEADS, MLP, PATCH = 192, 3, 384, 8
Shapes = dict[str, tuple[int, ...]]


def shapes_of(family: Family) -> Iterator[tuple[str, Shapes]]:
    """Yield (variant, shapes by our names before `adjust`) of small models of a family; 4 x 4 patches."""
    ours = {name for name, _ in family.keys}
    plain = _plain(family, ours)
    yield "plain", plain
    if "pool.probe" in ours:
        yield "learnt query", _with_query(family, plain, ours)
    if "head_dist" in ours:
        shapes = {**plain, "prefix.dist": (1, 1, DIM), "pos_embed": (1, 18, DIM)}
        yield "distilled", {**shapes, "head_dist.weight": (5, DIM), "head_dist.bias": (5,)}
    if "rope.freqs" in ours:
        yield "mixed", {**plain, "rope.freqs": (2, 2, HEADS, 32)}
    if "position_bias" in ours:
        shared = {name: shape for name, shape in plain.items() if "position_bias" not in name}
        yield "shared biases", {**shared, "position_bias": (52, HEADS)}
    if "blocks.{i}.attn.q.bias" in ours:
        shapes = {name: shape for name, shape in plain.items() if not name.endswith("qkv.bias")}
        yield "no key bias", shapes | {f"blocks.{i}.attn.{letter}.bias": (DIM,) for i in range(2) for letter in "qv"}
    if "fc_norm" in ours:
        after = {f"fc_{name}": shape for name, shape in plain.items() if name.startswith("norm.")}
        yield "norm after pool", {name: shape for name, shape in plain.items() if not name.startswith("norm.")} | after
    if "blocks.{i}.attn.q.{h}" in ours:
        shapes = {name: shape for name, shape in plain.items() if ".qkv." not in name}
        for start in (f"blocks.{i}.attn.{letter}.{h}." for i in range(2) for letter in "qkv" for h in range(HEADS)):
            shapes |= {f"{start}weight": (DIM // HEADS, DIM), f"{start}bias": (DIM // HEADS,)}
        yield "layers of heads", shapes
    if family.name == "Google":
        first = {name: shape for name, shape in plain.items() if name.startswith("blocks.0.")}
        stacked = {name.replace("blocks.0.", "blocks."): (2, *shape) for name, shape in first.items()}
        yield "stacked blocks", {name: s for name, s in plain.items() if not name.startswith("blocks.")} | stacked


def _plain(family: Family, ours: set[str]) -> Shapes:
    google, clip = family.name == "Google", family.name in ("CLIP", "OpenAI CLIP")
    rows = 16 + ("prefix.cls" in ours)

    def layer(name: str, out: int, into: int) -> Shapes:
        return {f"{name}.weight": (into, out) if google else (out, into), f"{name}.bias": (out,)}

    def norm(name: str) -> Shapes:
        return {f"{name}.weight": (DIM,), f"{name}.bias": (DIM,)}

    shapes: Shapes = {"patch_embed.weight": (PATCH, PATCH, 3, DIM) if google else (DIM, 3, PATCH, PATCH)}
    shapes |= norm("norm_pre") if clip else {"patch_embed.bias": (DIM,)}
    if "prefix.cls" in ours:
        shapes["prefix.cls"] = (DIM,) if clip else (1, 1, DIM)
    if "pos_embed" in ours:
        shapes["pos_embed"] = (rows, DIM) if clip or family.name == "SigLIP" else (1, rows, DIM)
    if "DINOv3" in family.name:
        shapes["prefix.reg"] = (1, 4, DIM)
    for block in ("blocks.0", "blocks.1"):
        shapes |= norm(f"{block}.norm1") | norm(f"{block}.norm2")
        if {"blocks.{i}.attn.qkv", "blocks.{i}.attn.qkv.weight"} & ours:
            shapes |= layer(f"{block}.attn.qkv", 3 * DIM, DIM)
        else:
            for letter in "qkv":
                shapes |= layer(f"{block}.attn.{letter}", DIM, DIM)
        shapes |= layer(f"{block}.attn.proj", DIM, DIM)
        if google:
            shapes |= _google_attention(f"{block}.attn")
        shapes |= layer(f"{block}.mlp.{'up' if family.name == 'DINOv3' else 'fc1'}", MLP, DIM)
        shapes |= layer(f"{block}.mlp.fc2", DIM, MLP)
        if "blocks.{i}.scale1" in ours and family.name not in ("saved", "Meta MAE"):
            shapes |= {f"{block}.scale1": (DIM,), f"{block}.scale2": (DIM,)}
        if family.name == "transformers BEiT":
            shapes[f"{block}.attn.position_bias"] = (52, HEADS)
    shapes |= norm("norm") if "norm" in ours else {}
    shapes |= layer("head", 5, DIM) if "head" in ours else {}
    shapes |= {"proj": (DIM, 5)} if "proj" in ours else {}
    return {name: shape for name, shape in shapes.items() if not (family.name == "CLIP" and name == "head.bias")}


def _google_attention(start: str) -> Shapes:
    single = DIM // HEADS
    shapes: Shapes = {f"{start}.{letter}.weight": (DIM, HEADS, single) for letter in "qkv"}
    shapes |= {f"{start}.{letter}.bias": (HEADS, single) for letter in "qkv"}
    return shapes | {f"{start}.proj.weight": (HEADS, single, DIM), f"{start}.proj.bias": (DIM,)}


def _with_query(family: Family, plain: Shapes, ours: set[str]) -> Shapes:
    google = family.name == "Google"
    shapes = {name: shape for name, shape in plain.items() if name != "prefix.cls"}
    shapes |= {"pool.probe": (1, 1, DIM), "pos_embed": (*plain["pos_embed"][:-2], 16, DIM)}
    if google:
        shapes |= _google_attention("pool")
    elif "pool.qkv.weight" in ours:
        shapes |= {"pool.qkv.weight": (3 * DIM, DIM), "pool.qkv.bias": (3 * DIM,)}
    else:
        shapes |= {"pool.q.weight": (DIM, DIM), "pool.q.bias": (DIM,)}
        shapes |= {"pool.kv.weight": (2 * DIM, DIM), "pool.kv.bias": (2 * DIM,)}
    if not google:
        shapes |= {"pool.proj.weight": (DIM, DIM), "pool.proj.bias": (DIM,)}
    shapes |= {
        "pool.norm.weight": (DIM,),
        "pool.norm.bias": (DIM,),
        "pool.mlp.fc1.bias": (MLP,),
        "pool.mlp.fc2.bias": (DIM,),
    }
    shapes["pool.mlp.fc1.weight"], shapes["pool.mlp.fc2.weight"] = ((MLP, DIM), (DIM, MLP))[:: -1 if google else 1]
    return {name: shape for name, shape in shapes.items() if family.name != "SigLIP" or not name.startswith("head.")}


def in_file(family: Family, shapes: Shapes) -> dict[str, Tensor]:
    """Return tensors on the meta device under the family's names."""
    return family.rename_back({name: torch.empty(shape, device="meta") for name, shape in shapes.items()})


DTYPES = (
    torch.int64, torch.int8, torch.uint8, torch.uint16, torch.bool, torch.float16, torch.bfloat16, torch.float64,
    torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip


def changed(tensors: dict[str, Tensor], name: str) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Yield (what, tensors) with one of them left out, doubled, of another shape or of another dtype."""
    tensor = tensors[name]
    shape = tuple(tensor.shape)
    yield "left out", {other: one for other, one in tensors.items() if other != name}
    for other in (f"{name}_2", f"model.{name}", f"{name}.weight", "fc.weight", "mean", "std", "decoder.weight"):
        yield f"again as {other}", {**tensors, other: tensor}
    shapes = {
        (),
        (0,),
        (1, *shape),
        (2, *shape),
        (*shape, 1),
        shape[::-1],
        (tensor.numel(),),
        (1,) * 8,
        (0,) * len(shape),
    }
    shapes |= {tuple(2 * side for side in shape), tuple(side // 2 for side in shape), tuple(side + 1 for side in shape)}
    shapes |= {(1 << 40 // max(1, len(shape)),) * max(1, len(shape))}
    for i, side in enumerate(shape):
        shapes |= {(*shape[:i], other, *shape[i + 1 :]) for other in (0, 1, side + 1, 2 * side, 7 * side + 3)}
    for each in sorted(shapes - {shape}):
        empty = torch.empty(each, device="meta")
        yield f"of shape {each}", {**tensors, name: empty}
        yield f"beside one of shape {each}", {**tensors, f"{name}_2": empty, "fc.weight": empty}
    for dtype in DTYPES:
        yield f"of {dtype}", {**tensors, name: torch.empty(shape, dtype=dtype, device="meta")}
