"""Escape untrusted text, so that it is never interpreted as markdown or HTML."""

import html
import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!:$<>~|&])")


def plain(text: str) -> str:
    """Escape text for Streamlit elements that interpret markdown.

    >>> plain("![x](http://e)")
    '\\\\!\\\\[x\\\\]\\\\(http\\\\://e\\\\)'
    """
    return _MARKDOWN.sub(r"\\\1", visible(text))


def visible(text: str) -> str:
    """Replace invisible characters by their code points, for elements without markdown such as options of a list.

    >>> visible("T-shirt\\n(blue)")
    'T-shirtU+000A(blue)'
    """
    return "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in text)


def for_plotly(text: str) -> str:
    """Escape text for plotly, which interprets some HTML.

    >>> for_plotly("<b>T-shirt</b>")
    '&lt;b&gt;T-shirt&lt;/b&gt;'
    """
    return html.escape(visible(text), quote=False)
