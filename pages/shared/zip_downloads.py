"""Checkpoint downloads as streamed ZIP files. A Streamlit download would hold the file in memory twice."""

from pathlib import Path
from urllib.parse import quote

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pages.shared import trained_models
from vit.checkpoints import manage
from vit.checkpoints.hub import models as hub
from vit.paths import name_of_folder


def link(label: str, name: str, help: str) -> None:
    """Draw a button that downloads a checkpoint.

    Args:
        name: of a checkpoint in links: in the checkpoint folder, in the Hub cache, or the best one of a run.
    """
    st.link_button(label, f"{_path()}?name={quote(name, safe='')}", help=help)


def routes() -> list[Route]:
    """Return the route of the download links."""
    return [Route(_path(), _checkpoint)]


def _path() -> str:
    base = (st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}/download/checkpoint" if base else "/download/checkpoint"


def _checkpoint(request: Request) -> Response:
    name = request.query_params.get("name", "")
    folders = {folder.name: folder for folder, _ in manage.folders()} | {
        str(one.name): one.folder for one in hub.cached()
    }
    if name in folders:
        return _sent(folders[name], name_of_folder(folders[name]))
    model = trained_models.find(name)
    return _sent(model.best, model.file_name) if model and model.best else _missing()


def _sent(folder: Path, name: str) -> Response:
    try:
        content = manage.zip_chunks(folder, name)
    except OSError:  # deleted or replaced in the meantime
        return _missing()
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}.zip"
    return StreamingResponse(content, media_type="application/zip", headers={"Content-Disposition": disposition})


def _missing() -> Response:
    return PlainTextResponse("There is no such checkpoint. It may have been deleted or renamed.", 404)
