"""HTML index of many pictures with their maps. Thumbnails are embedded; full-size files are linked."""

import html
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, Self
from urllib.parse import quote

from PIL import Image

from vit.images.encode import data_url, encode_image
from vit.view.standalone_page import head

INDEX = "index.html"
THUMBNAIL_SIDE = 224  # longer side [px]
_QUALITY = 80

_STYLE = """
:root { color-scheme: light dark; }
body {
  margin: 0 auto; max-width: 82rem; padding: 1.5rem; line-height: 1.4;
  background: light-dark(#ffffff, #12181a); color: light-dark(#1b2326, #e6ecec);
  font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
h1 { font-size: 1.25rem; overflow-wrap: anywhere; }
ul { display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: 1.25rem; padding: 0; }
li { list-style: none; font-size: 0.8125rem; overflow-wrap: anywhere; }
a { color: inherit; text-decoration: none; }
img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain; margin-bottom: 0.4rem; }
small, p { font-size: 0.8125rem; opacity: 0.75; overflow-wrap: anywhere; }
"""


class Tile(NamedTuple):
    """A picture on the page.

    Attributes:
        thumbnail: JPEG.
        file: name of the linked file, in the page's folder.
        name: display name of the picture.
        label: predicted class; "" for none.
        probability: of the predicted class, 0 to 1; None for none.
    """

    thumbnail: bytes
    file: str
    name: str
    label: str
    probability: float | None

    @classmethod
    def of(cls, drawn: Image.Image, file: str, name: str, label: str = "", probability: float | None = None) -> Self:
        """Build a tile from a picture that was drawn with its map."""
        small = drawn.copy()
        small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
        return cls(encode_image(small, "JPEG", quality=_QUALITY), file, name, label, probability)


def index_page(title: str, tiles: Sequence[Tile], facts: Iterable[str] = ()) -> str:
    """Build the HTML page. Untrusted text is escaped, and a content security policy blocks scripts and requests.

    Args:
        facts: paragraphs printed below; empty ones are skipped.
    """
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    lines = [
        head(title, policy, _STYLE),
        f"<h1>{html.escape(title)}</h1>\n<ul>",
        *map(_item, tiles),
        "</ul>",
        *(f"<p>{html.escape(fact)}</p>" for fact in facts if fact),
        "</body>\n</html>\n",
    ]
    return "\n".join(lines)


def _item(tile: Tile) -> str:
    share = "" if tile.probability is None else f" {tile.probability:.1%}"
    prediction = f"{html.escape(tile.label)}{share}<br>" if tile.label else ""
    name = html.escape(tile.name)
    source = data_url(tile.thumbnail, "JPEG")
    return (
        f'<li><a href="{quote(tile.file)}"><img alt="{name}" loading="lazy" src="{source}">{prediction}'
        f"<small>{name}</small></a></li>"
    )


def unused_name(stem: str, taken: Collection[str]) -> str:
    """Return a name for a PNG file that is not in `taken`.

    >>> unused_name("cat", {"cat.png", "cat-2.png"})
    'cat-3.png'
    """
    name, number = f"{stem}.png", 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}.png"
    return name
