"""Packages that hand out names and modules without importing them, so that describing a model waits for no torch."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """Stands for a module, which is imported when something of it is first used."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(import_module(self.__name__), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(self.__name__), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call a module that can be called, such as `vit.view`."""
        module: Any = import_module(self.__name__)
        return module(*args, **kwargs)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return import_module(self.__name__).__dict__


def names_of(
    package: str, path: Sequence[str], homes: Mapping[str, Sequence[str]] | None = None
) -> tuple[list[str], Callable[[str], Any]]:
    """`__all__` and `__getattr__` of a package that imports nothing until it is used.

    `from package import module` and `from package import name` then stand at the top of a file whatever they bring;
    the first gives a `LazyModule`, the second imports where the name lives.

    Args:
        package: its `__name__`.
        path: its `__path__`.
        homes: of each module, relative to the package as in `from .module import`, the names of it that the package
            hands out.

    Source: PEP 562.
    """
    home = {name: module for module, names in (homes or {}).items() for name in names}
    modules = {name: LazyModule(f"{package}.{name}") for _, name, _ in iter_modules(path)}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(f".{home[name]}", package), name)
        if name in modules:
            return modules[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(home), get
