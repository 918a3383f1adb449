"""What the viewer shows: payloads of attention records, overlays, captions, notebooks and the standalone page.

The package is callable: `vit.view(model, picture)` shows the viewer in a notebook, see `vit.view.notebook.view`.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.view.explanation import Explanation, cost, expected_seconds, explain, sizes, with_predictions
    from vit.view.payload import pack, unpack
    from vit.view.prediction import Prediction
    from vit.view.selection import Selection

__all__, __getattr__ = names_of(__name__, __path__)


class _Callable(ModuleType):
    """Make the package callable, for notebooks."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call `vit.view.notebook.view`."""
        return import_module("vit.view.notebook").view(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
