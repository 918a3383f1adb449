"""The viewer as one HTML file that works without server and network: its code, the payload and the selection.

Untrusted text is escaped, and JSON contains no "<". The file's content security policy allows only its own script and
no requests.
"""

import base64
import gzip
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from vit.errors import UserError
from vit.view.payload import read_header
from vit.view.selection import Selection
from vit.view.web import joined, read

MAX_PAYLOAD = 100_000_000  # [bytes]; base64 makes a third more of them in the file

# Colours as in .streamlit/config.toml, so that the file looks like the app.
STYLE = """
:root {
  color-scheme: light dark;
  --st-primary-color: #2b6f77; --st-background-color: #ffffff; --st-text-color: #1b2326;
  --st-font: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --st-button-radius: 0.4rem;
}
@media (prefers-color-scheme: dark) {
  :root { --st-primary-color: #6cc3c9; --st-background-color: #12181a; --st-text-color: #e6ecec; }
}
@supports (color: light-dark(red, red)) { /* follows a notebook's scheme; Safari before 17.5 lacks it */
  :root {
    --st-primary-color: light-dark(#2b6f77, #6cc3c9);
    --st-background-color: light-dark(#ffffff, #12181a);
    --st-text-color: light-dark(#1b2326, #e6ecec);
  }
}
body > #too-old { margin: 1.5rem; }
#too-old ~ * { display: none; }
body { margin: 0; background: var(--st-background-color); color: var(--st-text-color); font-family: var(--st-font); }
main { max-width: 82rem; margin: auto; padding: 1.5rem; }
h1 { margin: 0 0 1.25rem; font-size: 1.25rem; overflow-wrap: anywhere; }
.facts { margin: 1.5rem 0 0; font-size: 0.8125rem; line-height: 1.5; opacity: 0.75; overflow-wrap: anywhere; }
"""
# What the viewer needs of a browser; the sentence names the first versions that have all of it.
NEEDS = "window.DecompressionStream && window.CSS && CSS.supports('color', 'color-mix(in srgb, red, red)')"
_TOO_OLD = "This page needs JavaScript, and at least Safari 16.4, Chrome 111, Edge 111 or Firefox 113."
# Smaller margins and fonts in a notebook cell.
_IN_CELL = """
main { max-width: none; padding: 0.25rem; }
h1 { margin-bottom: 0.75rem; font-size: 0.9375rem; }
.facts { margin-top: 0.75rem; }
"""


def standalone(
    payload: bytes,
    selection: Selection,
    title: str,
    facts: Sequence[str] = (),
    *,
    computed: Mapping[str, Any] | None = None,
    method: Mapping[str, Any] | None = None,
    chain: bytes | None = None,
    masks: bytes | None = None,
    features: bytes | None = None,
    answers: Mapping[str, Any] | None = None,
    cell: str = "",
) -> bytes:
    """Build an HTML file with the viewer and all of its data.

    Args:
        payload: from `vit.view.payload.pack`.
        selection: initial selection.
        title: of the page.
        facts: paragraphs printed below.
        computed, method: see `pages.components.viewer.show`; `method["chain"]` is set here.
        chain: from `pack_chain`, for a method whose maps the browser computes.
        masks: from `pack_masks`, with which the browser judges maps.
        features: from `pack_features`, for the selected view and block.
        answers: see `pages.components.viewer.Answers`.
        cell: in a notebook, the name that identifies the page in messages, see `vit.view.notebook`.

    Raises:
        UserError: the payload is too large for a browser to open the file.
        ValueError: `payload` is not a payload.
    """
    if len(payload) + len(chain or b"") > MAX_PAYLOAD:
        raise UserError(
            f"The attention of this picture takes {len(payload) / 1e6:,.0f} MB; a page holds {MAX_PAYLOAD / 1e6:.0f}. "
            "Choose a smaller input size."
        )
    read_header(payload)
    parts = {"payload": payload, "chain": chain, "masks": masks, "features": features}
    payloads = {name: part for name, part in parts.items() if part}
    if computed is not None:
        computed = {**computed, "values": [float(f"{float(value):.6g}") for value in computed["values"]]}
    if method is not None:
        method = {**method, "chain": "chain" if chain else ""}
    data = {
        "name": cell or "viewer",
        "payload": "payload",
        "seed": asdict(selection),
        "revision": 1,
        "computed": computed,
        "method": method,
        "group": "",
        "compact": False,
        "paintable": False,
        "occlusion": None,
        "masks": "masks" if masks else "",
        "features": "features" if features else None,
        "answers": answers,
        "alone": True,
    }
    script = "\n" + joined("notebook.js" if cell else "standalone.js")
    assert "</script" not in script.lower()
    notice, key = too_old(_TOO_OLD, NEEDS)
    scripts = f"'{digest(script)}' '{key}'"
    policy = f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src blob: data:"
    data_json = json.dumps({"data": data, "payloads": list(payloads)}).replace("<", "\\u003c")
    lines = [
        head(title, policy, f"{STYLE}{_IN_CELL if cell else ''}{read('viewer.css')}"),
        "<main>",
        f"<h1>{html.escape(title)}</h1>",
        notice,
        read("viewer.html"),
        *(f'<p class="facts">{html.escape(fact)}</p>' for fact in facts),
        f'</main>\n<script type="application/json" id="data">{data_json}</script>',
        *(f'<script type="text/plain" id="{name}">{_packed(content)}</script>' for name, content in payloads.items()),
        f'<script type="module">{script}</script>\n</body>\n</html>\n',
    ]
    return "\n".join(lines).encode("utf-8", "replace")


def _packed(content: bytes) -> str:
    """Compress and encode as base64, reproducibly: `mtime=0` leaves out the time."""
    return base64.b64encode(gzip.compress(content, 6, mtime=0)).decode()


def head(title: str, policy: str, style: str, language: str = "en", charset: str = "utf-8") -> str:
    """Return the start of an HTML file, up to the body.

    Args:
        policy: its content security policy.
        style: CSS.
    """
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="{language}">\n<head>\n<meta charset="{charset}">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{html.escape(title)}</title>\n<style>{style}</style>\n</head>\n<body>",
        ]
    )


def too_old(sentence: str, needs: str) -> tuple[str, str]:
    """Return HTML that replaces the page by a sentence unless the browser meets `needs`, and its script's digest.

    The script is ES5 and no module, so that it runs in every browser; without JavaScript the sentence stays.
    """
    script = f"if ({needs}) {{ var old = document.getElementById('too-old'); old.parentNode.removeChild(old); }}"
    return f'<p id="too-old">{html.escape(sentence)}</p>\n<script>{script}</script>', digest(script)


def digest(script: str) -> str:
    """Return the hash by which a content security policy allows an inline script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
