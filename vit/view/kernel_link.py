"""Messages between the kernel of a notebook and the frames that show a view: selections and updates.

anywidget transports the messages. It is optional: without it, views are displayed but do not communicate.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from vit.view.web import joined


class Update(NamedTuple):
    """A change of what the viewer shows.

    Attributes:
        message: changed fields of the view's data, see docs/viewer.md.
        payloads: bytes by the ids that the message refers to.
    """

    message: dict[str, Any]
    payloads: dict[str, bytes]


class KernelLink:
    """The kernel's end of the connection.

    Args:
        view: name of the view.
        full_state: returns the complete state, for a frame that has just opened.
        on_selection: called with what a user selected in a frame.
    """

    def __init__(self, view: str, full_state: Callable[[], Update], on_selection: Callable[[Mapping[str, Any]], None]):
        self._widget = _widget(view)
        self._full_state, self._on_selection = full_state, on_selection
        self._widget.on_msg(self._on_message)

    def send(self, update: Update) -> None:
        """Send an update to every frame of the view."""
        content = {"update": update.message, "ids": list(update.payloads)}
        self._widget.send(content, buffers=list(update.payloads.values()))

    def close(self) -> None:
        """Close the connection."""
        self._widget.close()

    def _on_message(self, widget: object, content: Any, buffers: object) -> None:
        """Handle a message from the browser, which is untrusted."""
        if not isinstance(content, Mapping):
            return
        if content.get("request") == "all":
            self.send(self._full_state())
        elif isinstance(content.get("chosen"), Mapping):
            self._on_selection(content["chosen"])


def can_link() -> bool:
    """Whether this process is the kernel of a notebook and anywidget is installed."""
    return "ipykernel" in sys.modules and find_spec("anywidget") is not None


def _widget(view: str) -> Any:
    import anywidget  # noqa: PLC0415 # optional
    import traitlets  # noqa: PLC0415 # a dependency of anywidget

    class Link(anywidget.AnyWidget):
        """An invisible widget that relays messages."""

        _esm = joined("kernel_link.js")
        view = traitlets.Unicode().tag(sync=True)

    return Link(view=view)
