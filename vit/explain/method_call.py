"""A call of an explanation method as Python code, for the snippets that people copy."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """Arguments of a method call in a code snippet.

    Attributes:
        query: Python code such as "query=3", with the direction if it is not the default; "" for the model's output.
        target: index of the class.
        settings: settings with non-default values.
    """

    query: str
    target: int
    settings: Mapping[str, Any]

    def arguments(self, *names: str, start: bool = False, more: str = "") -> str:
        """Format the arguments of a call as Python code.

        Args:
            names: settings that the called function accepts.
            start: add "query=record.read" if there is no query, for functions without a class.
            more: an argument that is always added.

        >>> Call("", 3, {"start_block": 2}).arguments("start_block", more="own=False")
        'start_block=2, own=False'
        """
        query = self.query or ("query=record.read" if start else "")
        settings = (f"{name}={literal(self.settings[name])}" for name in names if name in self.settings)
        return ", ".join(filter(None, (query, *settings, more)))


def literal(value: str | float) -> str:
    """Format a value as Python code, with double quotes for strings without special characters.

    >>> literal("cat"), literal('a"b'), literal(3)
    ('"cat"', '\\'a"b\\'', '3')
    """
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'\\")
    return f'"{value}"' if plain else repr(value)
