"""Mounts the gallery on a Streamlit page."""

import base64
import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import streamlit as st
from PIL import Image

from vit.images import samples

_HERE = Path(__file__).parent
_HEIGHT = 112  # [px], twice what is shown
_gallery = st.components.v2.component(
    "vit_gallery",
    css=(_HERE / "gallery.css").read_text(encoding="utf-8"),
    js=(_HERE / "gallery.js").read_text(encoding="utf-8"),
)


def show(key: str, chosen: str | None, on_choose: Callable[[str], None]) -> None:
    """Draw the samples as a strip of buttons.

    Args:
        key: of this gallery.
        chosen: the sample to mark, if any.
        on_choose: called with a sample's name before the rerun that a click causes.
    """

    def clicked() -> None:
        name = (st.session_state.get(key) or {}).get("sample")
        if name in samples.SAMPLES:
            on_choose(name)

    _gallery(key=key, data={"samples": thumbnails(), "chosen": chosen}, on_sample_change=clicked)


@cache
def thumbnails() -> tuple[dict[str, str], ...]:
    """The samples as the browser gets them, small and square; of a list, Streamlit would ask pandas what it is."""
    strip = []
    for sample in samples.SAMPLES.values():
        picture: Image.Image = Image.open(sample.path, formats=("JPEG",))
        side = min(picture.size)
        left, top = (picture.width - side) // 2, (picture.height - side) // 2
        picture = picture.crop((left, top, left + side, top + side)).resize((_HEIGHT, _HEIGHT))
        out = io.BytesIO()
        picture.save(out, "JPEG", quality=80)
        address = "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
        credit = f"{sample.title}. {sample.credit}, {sample.licence}"
        strip.append({"name": sample.name, "credit": credit, "source": address})
    return tuple(strip)
