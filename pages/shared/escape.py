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


def with_code(text: str) -> str:
    """Escape a message like `plain`, and show what stands between backticks as code.

    >>> with_code("`a_b` is *missing*.")
    '`a_b` is \\\\*missing\\\\*\\\\.'
    >>> with_code("a`b")
    'a\\\\`b'
    """
    parts = text.split("`")
    if len(parts) % 2 == 0 or not all(parts[1::2]):  # an unpaired backtick, or two in a row
        return plain(text)
    # Markdown interprets nothing inside of code.
    return "".join(f"`{visible(part)}`" if index % 2 else plain(part) for index, part in enumerate(parts))


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
