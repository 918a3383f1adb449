"""The files that pages offer to the browser beside their messages; AppTest forgets them after each run."""

import json
from typing import Any

from streamlit.runtime.memory_media_file_storage import MemoryMediaFileStorage
from streamlit.testing.v1 import AppTest, app_test

_files: dict[str, bytes] = {}


class Storage(MemoryMediaFileStorage):
    """Streamlit's own, which keeps everything."""

    def load_and_get_id(self, path_or_data: Any, *arguments: Any, **named: Any) -> str:
        file_id = super().load_and_get_id(path_or_data, *arguments, **named)
        _files[file_id] = path_or_data
        return file_id


app_test.MemoryMediaFileStorage = Storage  # type: ignore[misc]


def sent_to(page: AppTest, key: str = "viewer") -> dict[str, Any]:
    """What the page told the viewer of this key."""
    (message,) = json.loads(page.get_by_key(key).proto.json)
    return message


def fed(page: AppTest, key: str) -> bytes:
    """The payload that the feeder of this key has the browser fetch."""
    address = json.loads(page.get_by_key(key).proto.json)["address"]
    return _files[address.rpartition("/")[2].partition(".")[0]]


def have_all_masks(page: AppTest) -> None:
    """Do as a browser that asks for more masks as long as there are some."""
    while (offer := json.loads(page.get_by_key("masks feeder").proto.json))["more"]:
        page.session_state["Explore"].more_masks = offer["name"]
        page.run()
        assert not page.exception
