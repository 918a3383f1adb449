"""Files that pages offer to the browser through the media storage, which AppTest clears after each run."""

import json
from typing import Any

from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage
from streamlit.testing.v1 import AppTest, app_test

from vit.view.payload import unpack

_files: dict[str, bytes] = {}


class Storage(MemoryMediaFileStorage):
    """Streamlit's storage, without deletion."""

    def load_and_get_id(self, path_or_data: Any, *arguments: Any, **named: Any) -> str:
        file_id = super().load_and_get_id(path_or_data, *arguments, **named)
        _files[file_id] = path_or_data
        return file_id


app_test.MemoryMediaFileStorage = Storage  # type: ignore[misc]


def sent_to(page: AppTest, key: str = "viewer") -> dict[str, Any]:
    """Return the data that the page sent to the viewer of this key."""
    (message,) = json.loads(page.get_by_key(key).proto.json)
    return message


def payload_of(page: AppTest, key: str) -> bytes:
    """Return the payload that the feeder of this key offers to the browser."""
    address = json.loads(page.get_by_key(key).proto.json)["address"]
    return _files[address.rpartition("/")[2].partition(".")[0]]


def payload(page: AppTest, key: str = "feeder") -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header and the arrays of the payload that the feeder of this key offers."""
    return unpack(payload_of(page, key))
