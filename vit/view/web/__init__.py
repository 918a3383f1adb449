"""The viewer's own JavaScript, CSS and HTML, for whoever puts it on a page; needs no Streamlit."""

from pathlib import Path

_HERE = Path(__file__).parent
# Parts of one module, each builds on those before it.
VIEWER = (
    "payload_registry.js", "payload.js", "captions.js", "engine.js", "canvas.js", "layout.js", "viewer.js", "input.js",
)  # fmt: skip
FEEDER = ("payload_registry.js", "feeder.js")


def read(*names: str) -> str:
    """These files, one after the other."""
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
