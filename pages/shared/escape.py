"""Foreign text on a page: shown as it is, never as markdown or HTML."""

import re

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!:$<>~|&])")


def plain(text: str) -> str:
    """Escape text for a place where Streamlit reads markdown.

    >>> plain("![x](http://e)")
    '\\\\!\\\\[x\\\\]\\\\(http\\\\://e\\\\)'
    """
    visible = "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in text)
    return _MARKDOWN.sub(r"\\\1", visible)
