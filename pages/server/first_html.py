"""The HTML document: Streamlit's `index.html` with a text while scripts load, and with two scripts of the app."""

import re
from functools import cache
from pathlib import Path

import streamlit as st
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from pages.server.page_paths import PATHS
from pages.streamlit_internals import server

TITLE = "ViT attention explorer"
_THEMES = {"light": "(prefers-color-scheme: light)", "dark": "(prefers-color-scheme: dark)"}
# Without this, Streamlit first requests its backend below the page's own URL, which logs an error in the browser.
_SERVER = '<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href}</script>'
_SCRIPTS = ("history.js", "first_socket.js")
_STYLE_SHEETS = re.compile(r'<link rel="stylesheet"[^>]*>')
_ROOT = '<div id="root"></div>'  # React replaces its content


def routes() -> list[Route]:
    """Return a route for every page of the app; they take precedence over Streamlit's."""
    base = (st.get_option("server.baseUrlPath") or "").strip("/")
    start = f"/{base}/" if base else "/"
    return [Route(start + name, _answer) for name in PATHS]


def _answer(_request: Request) -> HTMLResponse:
    return HTMLResponse(_html(), headers={"Cache-Control": "no-cache"})


@cache
def _html() -> str:
    html = (server.static_folder() / "index.html").read_text(encoding="utf-8")
    opening = f'<div id="opening"><h1>{TITLE}</h1><p>Opening…</p></div>'
    html = html.replace(_ROOT, _ROOT.replace("><", f">{opening}<"), 1)
    html = html.replace("<title>Streamlit</title>", f"<title>{TITLE}</title>", 1)
    for style in _STYLE_SHEETS.findall(html):  # style sheets block rendering, so load them before the scripts
        html = html.replace(style, "", 1).replace("<head>", f"<head>\n{style}", 1)
    # Braces give each script its own scope.
    sources = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    scripts = "\n".join([_SERVER, *(f"<script>{{{source}}}</script>" for source in sources)])
    return html.replace("</head>", f"{scripts}\n<style>{_style()}</style>\n</head>", 1)


def _style() -> str:
    """Return CSS with the theme's colours and font for the opening text, and with styles for Streamlit's elements."""
    rules = [f"#opening {{font-family: {st.get_option('theme.font')}; position: fixed; inset: 0; padding: 4rem 2rem}}"]
    for theme, scheme in _THEMES.items():
        paper, ink = (st.get_option(f"theme.{theme}.{name}") for name in ("backgroundColor", "textColor"))
        rules.append(f"@media {scheme} {{#opening {{background: {paper}; color: {ink}}}}}")
    return " ".join([*rules, (Path(__file__).parent / "appearance.css").read_text(encoding="utf-8")])
