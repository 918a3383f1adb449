"""The viewer's own JavaScript, CSS and HTML, for whoever puts it on a page; needs no Streamlit."""

from pathlib import Path

_HERE = Path(__file__).parent
# Parts of one module, each builds on those before it.
VIEWER = ("registry.js", "payload.js", "words.js", "engine.js", "paint.js", "page.js", "viewer.js", "hands.js")
FEEDER = ("registry.js", "feeder.js")


def read(*names: str) -> str:
    """These files, one after the other."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
