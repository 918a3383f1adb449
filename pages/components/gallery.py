"""Mounts the gallery on a Streamlit page."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TypedDict

import streamlit as st
from PIL import Image

from vit.images import samples
from vit.images.encode import data_url, encode_image

_HERE = Path(__file__).parent
SIDE = 112  # twice the displayed height, for high-density displays [px]
_gallery = st.components.v2.component(
    "vit_gallery",
    css=(_HERE / "gallery.css").read_text(encoding="utf-8"),
    js=(_HERE / "gallery.js").read_text(encoding="utf-8"),
)


class Thumbnail(TypedDict):
    """A picture in the gallery.

    Attributes:
        name: identifier, passed to `on_choose`.
        credit: caption.
        source: URL of a small square picture.
    """

    name: str
    credit: str
    source: str


def show(
    key: str,
    chosen: str | None,
    on_choose: Callable[[str], None],
    pictures: tuple[Thumbnail, ...] = (),
    label: str = "Sample pictures",
    preview: int = 0,
) -> None:
    """Draw pictures as a strip of buttons.

    Args:
        key: of this gallery.
        chosen: name of the picture to mark, if any.
        on_choose: called with a picture's name before the rerun that a click causes.
        pictures: a tuple, because Streamlit would pass a list to pandas. By default the samples; their strip also
            passes a pasted picture to the file uploader.
        label: label of the strip for screen readers.
        preview: number of thumbnails on a button that opens all of them; 0 draws the whole strip.
    """
    strip = pictures or thumbnails()

    def clicked() -> None:
        name = (st.session_state.get(key) or {}).get("sample")
        if isinstance(name, str) and any(name == one["name"] for one in strip):
            on_choose(name)

    data = {"samples": strip, "chosen": chosen, "label": label, "pastes": not pictures, "preview": preview}
    _gallery(key=key, data=data, on_sample_change=clicked, width="content")


@cache
def thumbnails() -> tuple[Thumbnail, ...]:
    """Return the thumbnails of the samples."""
    strip = []
    for sample in samples.SAMPLES.values():
        credit = f"{sample.title}. {sample.credit}, {sample.licence}"
        picture = Image.open(sample.path, formats=("JPEG",))
        strip.append(Thumbnail(name=sample.name, credit=credit, source=address_of(picture)))
    return tuple(strip)


def address_of(picture: Image.Image) -> str:
    """Crop and scale a picture to a small square, and return it as a data URL."""
    side = min(picture.size)
    left, top = (picture.width - side) // 2, (picture.height - side) // 2
    small = picture.crop((left, top, left + side, top + side)).resize((SIDE, SIDE))
    return data_url(encode_image(small.convert("RGB"), "JPEG", quality=80), "JPEG")
