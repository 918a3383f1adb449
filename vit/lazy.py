"""Packages that hand out names without importing what they come from, so that describing a model waits for no torch."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def names_of(package: str, homes: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package whose modules are imported on first use.

    Args:
        package: its `__name__`.
        homes: of each module, relative to the package as in `from .module import`, the names that it has.

    Source: PEP 562.
    """
    home = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{home[name]}", package), name)

    return list(home), get
