"""The HTML that a browser gets first: Streamlit's own, with words to read while its programs load, and two of ours."""

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
# Streamlit seeks its server below the page's own address first, which is an error in the browser's log.
_SERVER = '<script>window.__streamlit = {BACKEND_BASE_URL: new URL(".", location.href).href}</script>'
_PROGRAMS = ("history.js", "first_socket.js")
_STYLE_SHEETS = re.compile(r'<link rel="stylesheet"[^>]*>')
_ROOT = '<div id="root"></div>'  # React replaces what is in it


def routes() -> list[Route]:
    """Every page of the app, before Streamlit answers for it."""
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
    for style in _STYLE_SHEETS.findall(html):  # without them, a browser draws nothing: they come before the programs
        html = html.replace(style, "", 1).replace("<head>", f"<head>\n{style}", 1)
    # Each in a block: its names are its own.
    programs = [(Path(__file__).parent / name).read_text(encoding="utf-8") for name in _PROGRAMS]
    scripts = "\n".join([_SERVER, *(f"<script>{{{program}}}</script>" for program in programs)])
    return html.replace("</head>", f"{scripts}\n<style>{_style()}</style>\n</head>", 1)


def _style() -> str:
    """The colours and letters of the page that comes, and what Streamlit's own parts look like there."""
    rules = [f"#opening {{font-family: {st.get_option('theme.font')}; position: fixed; inset: 0; padding: 4rem 2rem}}"]
    for theme, scheme in _THEMES.items():
        paper, ink = (st.get_option(f"theme.{theme}.{name}") for name in ("backgroundColor", "textColor"))
        rules.append(f"@media {scheme} {{#opening {{background: {paper}; color: {ink}}}}}")
    return " ".join([*rules, (Path(__file__).parent / "appearance.css").read_text(encoding="utf-8")])
