"""Checkpoint downloads as streamed ZIP files. A Streamlit download would hold the file in memory twice."""

from pathlib import Path
from urllib.parse import quote

import streamlit as st
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from vit.checkpoints import manage
from vit.checkpoints.hub import models as hub
from vit.errors import UserError
from vit.training.loop import run_folder
from vit.training.runs import registry

CHECKPOINT, RUN = "checkpoint", "run"


def link(label: str, kind: str, name: str, help: str) -> None:
    """Draw a button that downloads a checkpoint.

    Args:
        kind: `CHECKPOINT` for one in the checkpoint folder or the Hub cache, `RUN` for the best one of a run.
        name: name of the checkpoint, or id of the run.
    """
    st.link_button(label, f"{_path(kind)}?name={quote(name, safe='')}", help=help)


def routes() -> list[Route]:
    """Return the routes of the download links."""
    return [Route(_path(CHECKPOINT), _checkpoint), Route(_path(RUN), _run)]


def _path(kind: str) -> str:
    base = (st.get_option("server.baseUrlPath") or "").strip("/")
    return f"/{base}/download/{kind}" if base else f"/download/{kind}"


def _checkpoint(request: Request) -> Response:
    name = request.query_params.get("name", "")
    folders = {folder.name: folder for folder, _ in manage.folders()} | {
        str(one.name): one.folder for one in hub.cached()
    }
    return _sent(folders[name], folders[name].name) if name in folders else _missing()


def _run(request: Request) -> Response:
    try:
        run = registry.find_run(request.query_params.get("name", ""))
    except UserError:
        return _missing()
    return _sent(run.best, run_folder.slug(run.name) or run.id) if run.best else _missing()


def _sent(folder: Path, name: str) -> Response:
    try:
        content = manage.zip_chunks(folder, name)
    except OSError:  # deleted or replaced in the meantime
        return _missing()
    disposition = f"attachment; filename*=UTF-8''{quote(name, safe='')}.zip"
    return StreamingResponse(content, media_type="application/zip", headers={"Content-Disposition": disposition})


def _missing() -> Response:
    return PlainTextResponse("There is no such checkpoint. It may have been deleted or renamed.", 404)
