"""Read records and pictures back from viewer payloads."""

import io
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from vit.explain.attention_tensors import record_of_attention
from vit.explain.record import AttentionRecord
from vit.images.geometry import Box
from vit.view.payload import read_header, unpack


def record_of(payload: bytes) -> AttentionRecord:
    """Build a record from a viewer payload. It contains only attention, in the precision of the payload.

    Raises:
        ValueError: not a payload with a picture.
    """
    header, sections = unpack(payload)
    prefix, (rows, cols) = tuple(header["prefix"]), header["grid"]
    pool = torch.from_numpy(sections["pool"].copy()) if "pool" in sections else None
    if header["kind"] == "qk":
        queries = torch.from_numpy(sections["queries"].astype(np.float32)) * header["width"] ** 0.5
        keys = torch.from_numpy(sections["keys"].astype(np.float32))
        return AttentionRecord(
            torch.zeros(1, 0), tuple(queries), tuple(keys), prefix, (rows, cols), pool_attention=pool
        )
    patches = sections["maps"].astype(np.float32) * (sections["scales"][..., None] / 255)  # (L, H, N, P)
    full = np.concatenate([sections["prefix"].astype(np.float32), patches], -1)
    attention = torch.from_numpy(full / full.sum(-1, keepdims=True))  # 8 bits a patch do not sum to 1
    return replace(record_of_attention(attention, (rows, cols), prefix), pool_attention=pool)


def picture_of(payload: bytes) -> tuple[Image.Image, Box]:
    """Return the picture of a viewer payload, RGB and possibly scaled down, and the box of its patches [px].

    Raises:
        ValueError: not a payload with a picture.
    """
    header = read_header(payload)
    offset, length = header["sections"]["picture"]
    picture = Image.open(io.BytesIO(payload[offset : offset + length]), formats=("PNG", "JPEG")).convert("RGB")
    across, down = picture.width / header["picture"]["width"], picture.height / header["picture"]["height"]
    left, top, right, bottom = header["box"]
    return picture, Box(left * across, top * down, right * across, bottom * down)
