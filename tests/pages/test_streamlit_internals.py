"""Streamlit's private names used in pages/streamlit_internals exist, and nothing else in the project uses any."""

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import streamlit

ROOT = Path(__file__).parents[2]
PUBLIC = {"streamlit", "streamlit.errors"}

# Every name in use, by module, with the parameters that calls pass or replacements have.
NAMES = {
    "cli_util": {"open_browser": ["url"]},
    "config": {"is_manually_set": ["option_name"]},
    "delta_generator": {"DeltaGenerator": None},
    "file_util": {"get_static_dir": []},
    "proto.BackMsg_pb2": {"BackMsg.type": None, "BackMsg.file_urls_request": None, "BackendOperationRequest": None},
    "proto.ClientState_pb2": {"ClientState.page_script_hash": None, "ClientState.fragment_id": None},
    "proto.ForwardMsg_pb2": {
        "BackendOperationResponse.deferred_file": None,
        "BackendOperationResponse.error_msg": None,
        "ForwardMsg.FINISHED_SUCCESSFULLY": None,
        "ForwardMsg.file_urls_response": None,
        "ForwardMsg.script_finished": None,
        "ForwardMsg.type": None,
    },
    "runtime": {"exists": [], "get_instance": []},
    "runtime.app_session": {
        "AppSession._client_state": None,
        "AppSession._fragment_storage": None,
        "AppSession._pages_manager": None,
        "AppSession.id": None,
        "AppSession.request_rerun": ["self", "client_state"],
        "AppSession.session_state": None,
        "ForwardMsgQueue": [],
    },
    "runtime.backend_operation_handler": {
        "DeferredFileHandler._get_media_file_mgr": None,
        "DeferredFileHandler.handle": ["self", "request", "session_id"],
    },
    "runtime.forward_msg_queue": {
        "ForwardMsgQueue._delta_index_map": None,
        "ForwardMsgQueue._queue": None,
        "ForwardMsgQueue.clear": ["self", "retain_lifecycle_msgs", "fragment_ids_this_run"],
    },
    "runtime.fragment": {
        "FragmentStorage.has_ancestor_in": ["self", "fragment_id", "candidate_ids"],
        "MemoryFragmentStorage.clear": ["self"],
        "MemoryFragmentStorage.clear_outside_wrappers": ["self"],
    },
    "runtime.media_file_manager": {
        "MediaFileManager.add": ["self", "path_or_data", "mimetype", "coordinates", "file_name"],
        "MediaFileManager.execute_deferred": ["self", "file_id"],
        "MediaFileManager.remove_orphaned_files": ["self"],
    },
    "runtime.memory_uploaded_file_manager": {
        "MemoryUploadedFileManager.add_file": ["self", "session_id", "file"],
        "MemoryUploadedFileManager.file_storage": None,
        "MemoryUploadedFileManager.get_files": ["self", "session_id", "file_ids"],
        "MemoryUploadedFileManager.remove_file": ["self", "session_id", "file_id"],
    },
    "runtime.pages_manager": {"PagesManager.main_script_hash": None},
    "runtime.runtime": {
        "Runtime._session_mgr": None,
        "Runtime.close_session": ["self", "session_id"],
        "Runtime.is_active_session": ["self", "session_id"],
        "Runtime.media_file_mgr": None,
        "Runtime.uploaded_file_mgr": None,
    },
    "runtime.scriptrunner": {"get_script_run_ctx": []},
    "runtime.scriptrunner.script_runner": {
        "ScriptRunner._is_in_script_thread": ["self"],
        "ScriptRunner._maybe_handle_execution_control_request": ["self"],
    },
    "runtime.scriptrunner_utils.script_run_context": {
        "RunLocation.CALLBACK": None,
        "ScriptRunContext.is_history_navigation": None,
        "ScriptRunContext.session_id": None,
        "ScriptRunContext.uploaded_file_mgr": None,
        "ThreadState.get": [],
        "FragmentThreadState.fragment_id": None,
        "FragmentThreadState.run_location": None,
        "ScriptRunContext.fragment_storage": None,
        "ScriptRunContext.script_requests": None,
    },
    "runtime.scriptrunner_utils.script_requests": {
        "RerunData.fragment_id_queue": None,
        "ScriptRequestType.RERUN": None,
        "ScriptRequests._rerun_data": None,
        "ScriptRequests._state": None,
    },
    "runtime.secrets": {"Secrets.load_if_toml_exists": ["self"]},
    "runtime.session_manager": {"SessionManager.list_sessions": ["self"], "SessionInfo.session": None},
    "runtime.state.session_state": {
        "SessionState._new_widget_state": None,
        "SessionState.clear": ["self"],
        "WStates": [],
    },
    "runtime.uploaded_file_manager": {"UploadedFile": None, "UploadedFileRec": ["file_id", "name", "type", "data"]},
    "web.server.server_util": {"get_display_address": ["address"], "get_url": ["host_ip"], "is_xsrf_enabled": []},
    "web.server.starlette.starlette_app_utils": {"validate_xsrf_token": ["supplied_token", "xsrf_cookie"]},
    "web.server.starlette.starlette_server_config": {"XSRF_COOKIE_NAME": None},
}


def has(owner: Any, attribute: str) -> bool:
    """Whether a class has an attribute: its own, of its instances, or a field of its protobuf message."""
    if message := getattr(owner, "DESCRIPTOR", None):
        return attribute in {*message.fields_by_name, *message.oneofs_by_name} or hasattr(owner, attribute)
    source = "".join(inspect.getsource(one) for one in owner.__mro__ if one.__module__.startswith("streamlit"))
    return hasattr(owner, attribute) or bool(
        re.search(rf"^    {attribute}: |self\.{attribute}\b", source, re.MULTILINE)
    )


def missing(module: str, name: str, parameters: list[str] | None) -> str:
    """Return what is missing of a name, as a sentence; "" if nothing is."""
    full = f"streamlit.{module}.{name}"
    owner, _, attribute = name.rpartition(".")
    try:
        found: Any = importlib.import_module(f"streamlit.{module}")
        found = getattr(found, owner) if owner else found
    except (ImportError, AttributeError):
        return f"Streamlit {streamlit.__version__} has no {full}, which pages/streamlit_internals uses."
    if not (has(found, attribute) if owner else hasattr(found, attribute)):
        return f"Streamlit {streamlit.__version__} has no {full}, which pages/streamlit_internals uses."
    if parameters is None:
        return ""
    takes = inspect.signature(getattr(found, attribute)).parameters.values()
    needed = {one.name for one in takes if one.default is one.empty and "VAR" not in one.kind.name}
    if needed <= set(parameters) <= {one.name for one in takes}:
        return ""
    return f"{full} of Streamlit {streamlit.__version__} takes ({', '.join(map(str, takes))}), not {parameters}."


def test_streamlit_has_all_names_in_use() -> None:
    every = ((module, name, parameters) for module, names in NAMES.items() for name, parameters in names.items())
    assert not list(filter(None, (missing(*one) for one in every)))


def test_names_removed_by_an_upgrade_are_reported() -> None:
    assert "has no streamlit.config.is_set," in missing("config", "is_set", [])
    assert "has no streamlit.gone.anything," in missing("gone", "anything", None)
    assert "has no streamlit.runtime.runtime.Runtime._sessions," in missing(
        "runtime.runtime", "Runtime._sessions", None
    )
    assert "takes (option_name: 'str'), not" in missing("config", "is_manually_set", ["option", "value"])


def private_names(file: Path) -> set[tuple[str, str]]:
    """Return the private Streamlit modules and names that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "streamlit":
            found |= {(node.module, one.name) for one in node.names}
        elif isinstance(node, ast.Import):
            found |= {(one.name, "") for one in node.names if one.name.split(".")[0] == "streamlit"}
    return {one for one in found if one[0] not in PUBLIC or (one[0] == "streamlit" and one[1])}


def test_private_modules_are_used_in_one_folder_and_each_name_is_listed() -> None:
    internals = ROOT / "pages" / "streamlit_internals"
    for file in [ROOT / "app.py", *(ROOT / "pages").rglob("*.py")]:
        used = private_names(file)
        if internals not in file.parents:
            assert not used, f"{file.relative_to(ROOT)} uses private modules of Streamlit: move it to {internals.name}"
            continue
        for module, name in used:
            inside = module.removeprefix("streamlit").lstrip(".")
            listed = {one.split(".")[0] for one in NAMES.get(inside, {})}
            is_module = any(one == f"{inside}.{name}".lstrip(".") for one in NAMES)
            assert name in listed or is_module, f"{module}.{name} of {file.name} is not in NAMES"
