"""Foreign text on a page: shown as it is, never as markdown or HTML."""

import html
import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!:$<>~|&])")


def plain(text: str) -> str:
    """Escape text for a place where Streamlit reads markdown.

    >>> plain("![x](http://e)")
    '\\\\!\\\\[x\\\\]\\\\(http\\\\://e\\\\)'
    """
    return _MARKDOWN.sub(r"\\\1", visible(text))


def visible(text: str) -> str:
    """For a place that shows text as it is, such as the options of a list or the viewer: what cannot be seen is named.

    >>> visible("T-shirt\\n(blue)")
    'T-shirtU+000A(blue)'
    """
    return "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in text)


def for_plotly(text: str) -> str:
    """For a chart, where plotly reads some HTML.

    >>> for_plotly("<b>T-shirt</b>")
    '&lt;b&gt;T-shirt&lt;/b&gt;'
    """
    return html.escape(visible(text), quote=False)
