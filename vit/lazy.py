"""Lazy imports for packages, so that code that does not need torch does not wait for it."""

import ast
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any


class LazyModule(ModuleType):
    """A proxy that imports its module on first attribute access."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self.__name__), name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(import_module(self.__name__), name, value)

    def __delattr__(self, name: str) -> None:
        delattr(import_module(self.__name__), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call a callable module, such as `vit.view`."""
        module: Any = import_module(self.__name__)
        return module(*args, **kwargs)

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        return import_module(self.__name__).__dict__


def names_of(package: str, path: Sequence[str]) -> tuple[list[str], Callable[[str], Any]]:
    """Return `__all__` and `__getattr__` for a package that imports its submodules on first use.

    With them, `from package import module` returns a `LazyModule` and costs nothing, so it can stand at the top of any
    file. The names that the package's `__init__.py` imports under `if TYPE_CHECKING:`, for type checkers, are its
    public names: `from package import name` imports the module that defines the name.

    Args:
        package: the package's `__name__`.
        path: the package's `__path__`.

    Source: PEP 562.
    """
    home = _type_checking_imports(Path(path[0]) / "__init__.py")
    modules = {name: LazyModule(f"{package}.{name}") for _, name, _ in iter_modules(path)}

    def get(name: str) -> Any:
        if name in home:
            return getattr(import_module(home[name]), name)
        if name in modules:
            return modules[name]
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return list(home), get


def _type_checking_imports(file: Path) -> dict[str, str]:
    """Return the modules of the names that a file imports under `if TYPE_CHECKING:`."""
    return {
        one.name: str(node.module)
        for block in ast.parse(file.read_bytes()).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for one in node.names
    }
