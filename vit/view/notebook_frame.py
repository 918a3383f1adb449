"""Embed a page in a notebook's output as a sandboxed iframe."""

import html

from PIL import Image
from torch import Tensor

from vit.images.encode import data_url, encode_image
from vit.images.geometry import Box
from vit.view.overlay import overlay, scaled

_STILL_SIDE = 320  # longer side of the static picture, shown in notebooks that are not trusted [px]
_STILL_QUALITY = 80
_STYLE = "width:100%;height:40rem;border:0;display:block"
# The page reports its height to the notebook, and receives the notebook's colour scheme.
_ON_LOAD = (
    "const tell=()=>this.contentWindow.postMessage({view:this.name,scheme:getComputedStyle(this).colorScheme},'*');"
    "if(!this.heard){this.heard=1;window.addEventListener('message',({source,data})=>{"
    "if(source!==this.contentWindow)return;if(data.height)this.style.height=data.height+'px';if(data.here)tell()})}"
    "tell()"
)
_THEMES = (
    '[data-jp-theme-light="true"] .vit-view,.vscode-light .vit-view{color-scheme:light}'
    '[data-jp-theme-light="false"] .vit-view,.vscode-dark .vit-view{color-scheme:dark}'
)


def framed(page: str, name: str, title: str, picture: Image.Image, box: Box, heatmap: Tensor, signed: bool) -> str:
    """Build the HTML of an iframe that shows a page.

    Args:
        page: from `vit.view.standalone_page.standalone`, with `name` as its cell.
        name: identifies the iframe in messages.
        title: for screen readers.
        picture, box, heatmap, signed: static fallback for notebooks that are not trusted, which remove iframes.
    """
    source = page.replace("&", "&amp;").replace('"', "&quot;")
    return (
        f'<style>{_THEMES}</style><iframe class="vit-view" name="{name}" sandbox="allow-scripts" allowfullscreen '
        f'title="{html.escape(title)}" style="{_STYLE}" onload="{_ON_LOAD}" srcdoc="{source}">'
        f"<p>Trust this notebook to use the interactive viewer.</p>{_still(picture, box, heatmap, signed)}</iframe>"
    )


def _still(picture: Image.Image, box: Box, heatmap: Tensor, signed: bool) -> str:
    """Build an `img` element with the map over the picture, at a small size."""
    if (factor := _STILL_SIDE / max(picture.size)) < 1:
        picture, box = scaled(picture, box, factor)
    still = encode_image(overlay(picture, heatmap.numpy(), box, signed=signed), "JPEG", quality=_STILL_QUALITY)
    return f'<img alt="The map" src="{data_url(still, "JPEG")}">'
