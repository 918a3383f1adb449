"""Between the kernel of a notebook and the frames that show a view: what is chosen there, and what is to be shown.

anywidget carries the messages. It is optional; without it a view is shown all the same, and nobody hears of it.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple

from vit.view.web import joined


class Told(NamedTuple):
    """What the viewer is to show.

    Attributes:
        message: fields of the view's data that are new, see docs/viewer.md.
        payloads: bytes by the ids that the message names.
    """

    message: dict[str, Any]
    payloads: dict[str, bytes]


class KernelLink:
    """The kernel's end.

    Args:
        view: name of the view.
        state: what a frame that has just opened is told.
        chosen: called with what somebody chose in a frame.
    """

    def __init__(self, view: str, state: Callable[[], Told], chosen: Callable[[Mapping[str, Any]], None]):
        self._widget = _widget(view)
        self._state, self._chosen = state, chosen
        self._widget.on_msg(self._hear)

    def tell(self, told: Told) -> None:
        """Send something to every frame of the view."""
        content = {"told": told.message, "ids": list(told.payloads)}
        self._widget.send(content, buffers=list(told.payloads.values()))

    def close(self) -> None:
        """Hear and say nothing more."""
        self._widget.close()

    def _hear(self, widget: object, content: Any, buffers: object) -> None:
        """A message from the browser, which is not trusted to be one of ours."""
        if not isinstance(content, Mapping):
            return
        if content.get("asks") == "all":
            self.tell(self._state())
        elif isinstance(content.get("chosen"), Mapping):
            self._chosen(content["chosen"])


def can_link() -> bool:
    """Whether this process is the kernel of a notebook, and anywidget is there."""
    return "ipykernel" in sys.modules and find_spec("anywidget") is not None


def _widget(view: str) -> Any:
    import anywidget  # noqa: PLC0415 # optional
    import traitlets  # noqa: PLC0415 # comes with it

    class Link(anywidget.AnyWidget):
        """A widget without anything to see."""

        _esm = joined("kernel_link.js")
        view = traitlets.Unicode().tag(sync=True)

    return Link(view=view)
