"""What people see and take away of a record: payload, overlays, figures, films, files, sentences.

Called, `vit.view(model, picture)` shows the viewer in a notebook, see `vit.view.notebook.view`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.view.explanation import Explanation, Prediction, answered, cost, expected_seconds, explain, sizes
    from vit.view.payload import pack, unpack
    from vit.view.selection import Selection

_HOMES = {
    "explanation": ["Explanation", "Prediction", "answered", "cost", "expected_seconds", "explain", "sizes"],
    "payload": ["pack", "unpack"],
    "selection": ["Selection"],
}
__all__, __getattr__ = names_of(__name__, __path__, _HOMES)


class _Callable(ModuleType):
    """The package is also what a notebook calls."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `vit.view.notebook.view`."""
        return import_module("vit.view.notebook").view(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
