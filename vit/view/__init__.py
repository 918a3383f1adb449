"""What people see and take away of a record: payload, overlays, figures, films, files, sentences."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.view.explanation import Explanation, Prediction, answered, cost, explain, sizes
    from vit.view.payload import pack, unpack
    from vit.view.selection import Selection

_HOMES = {
    "explanation": ["Explanation", "Prediction", "answered", "cost", "explain", "sizes"],
    "payload": ["pack", "unpack"],
    "selection": ["Selection"],
}
__all__, __getattr__ = names_of(__name__, __path__, _HOMES)
