"""What a payload of the viewer holds, to compute with."""

import io

import numpy as np
import torch
from PIL import Image

from vit.explain.record import AttentionRecord
from vit.images.geometry import Box
from vit.view.payload import read_header, unpack

# --- What a payload holds -------------------------------------------------------------------------------------


def record_of(payload: bytes) -> AttentionRecord:
    """The attention in a viewer's payload, to compute with; nothing else of its picture's pass is there.

    Rounded as the payload is: see `vit.view.payload`.

    Raises:
        ValueError: not a payload with a picture.
    """
    header, sections = unpack(payload)
    prefix, (rows, cols) = tuple(header["prefix"]), header["grid"]
    if header["kind"] == "qk":
        queries = torch.from_numpy(sections["queries"].astype(np.float32)) * header["width"] ** 0.5
        keys = torch.from_numpy(sections["keys"].astype(np.float32))
    else:  # attention is that of its own logarithms as queries, and of the unit vectors as keys
        patches = sections["maps"].astype(np.float32) * (sections["scales"][..., None] / 255)  # (L, H, N, P)
        full = torch.from_numpy(np.concatenate([sections["prefix"].astype(np.float32), patches], -1))
        tokens = full.shape[-1]
        queries = full.clamp_min(torch.finfo(torch.float32).tiny).log() * tokens**0.5
        keys = torch.eye(tokens).expand(*full.shape)
    pool = torch.from_numpy(sections["pool"].copy()) if "pool" in sections else None
    return AttentionRecord(
        logits=torch.zeros(1, 0),
        queries=tuple(queries),
        keys=tuple(keys),
        prefix=prefix,
        grid=(rows, cols),
        pool_attention=pool,
    )


def picture_of(payload: bytes) -> tuple[Image.Image, Box]:
    """The picture in a viewer's payload, RGB and perhaps smaller than the original, and where its patches lie [px].

    Raises:
        ValueError: not a payload with a picture.
    """
    header = read_header(payload)
    offset, length = header["sections"]["picture"]
    picture = Image.open(io.BytesIO(payload[offset : offset + length]), formats=("PNG", "JPEG")).convert("RGB")
    across, down = picture.width / header["picture"]["width"], picture.height / header["picture"]["height"]
    left, top, right, bottom = header["box"]
    return picture, Box(left * across, top * down, right * across, bottom * down)
