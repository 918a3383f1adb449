"""Serialise dataclasses as URL query parameters. Fields and their types define the parameters.

Links are untrusted: an invalid value becomes the default, and unknown parameters are ignored.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

LONGEST = 1000  # characters of a text

Query = Mapping[str, Sequence[str]]  # every value of every name
Names = tuple[str, ...]
Heads = tuple[tuple[int, int], ...]  # (block, head)


class _Codec(NamedTuple):
    """Conversion between a field's value and its text in the URL.

    Attributes:
        read: parse the text; ValueError if it is invalid.
        write: format the value.
    """

    read: Callable[[str], Any]
    write: Callable[[Any], str]


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 5):
        raise ValueError(f"{text[:20]!r} is no small number.")
    return int(text)


def _flag(text: str) -> bool:
    if text != "1":
        raise ValueError(f"{text[:20]!r} is not 1.")
    return True


def _heads(text: str) -> Heads:
    """Parse the output of `_write_heads`; invalid entries are dropped.

    >>> _heads("3-1.0-2.x.3-1")
    ((0, 2), (3, 1))
    """
    heads = set()
    for part in text[:LONGEST].split("."):
        block, _, head = part.partition("-")
        if all(number.isascii() and number.isdecimal() and len(number) < 5 for number in (block, head)):
            heads.add((int(block), int(head)))
    return tuple(sorted(heads))


def _write_heads(heads: Heads) -> str:
    return ".".join(f"{block}-{head}" for block, head in sorted(heads))


_CODECS: dict[Any, _Codec] = {
    str: _Codec(lambda text: text[:LONGEST], str),
    int | None: _Codec(_whole, str),
    bool: _Codec(_flag, lambda on: str(int(on))),
    Heads: _Codec(_heads, _write_heads),
}


class _Part(NamedTuple):
    """A field of a `PageLink`.

    Attributes:
        name: parameter name; for a nested `PageLink` the prefix of its names; for a mapping, which is passed on
            unparsed, the names of its keys.
    """

    attribute: str
    kind: Any
    name: str | tuple[str, ...]
    default: Any

    def read(self, query: Query) -> Any:
        """Parse the field's value."""
        if isinstance(self.name, tuple):
            return {name: query[name][-1][:LONGEST] for name in self.name if query.get(name)}
        if self.kind == Names:
            return tuple(dict.fromkeys(text[:LONGEST] for text in query.get(self.name, ())))
        if self.kind not in _CODECS:
            return self.kind.from_query(
                {name.removeprefix(self.name): query[name] for name in query if name.startswith(self.name)}
            )
        values = query.get(self.name)
        try:
            return _CODECS[self.kind].read(values[-1]) if values else self.default
        except ValueError:
            return self.default

    def write(self, value: Any) -> dict[str, list[str]]:
        """Return the field's query parameters; none for a default."""
        if isinstance(self.name, tuple):
            return {name: [text] for name, text in value.items()}
        if self.kind not in (*_CODECS, Names):
            return {self.name + name: texts for name, texts in value.to_query().items()}
        if value == self.default:
            return {}
        return {self.name: list(value) if self.kind == Names else [_CODECS[self.kind].write(value)]}


@dataclass(frozen=True, kw_only=True)
class PageLink:
    """Base class of links. A field that the link does not set is "", None, False or empty.

    Attributes:
        page: name of the page.
    """

    page: ClassVar[str] = ""

    @classmethod
    def from_query(cls, query: Query) -> Self:
        """Parse query parameters.

        Args:
            query: all values by parameter name.
        """
        return cls(**{part.attribute: part.read(query) for part in cls._parts()})

    def to_query(self) -> dict[str, list[str]]:
        """Return the query parameters; fields at their defaults are left out."""
        query: dict[str, list[str]] = {}
        for part in self._parts():
            query |= part.write(getattr(self, part.attribute))
        return query

    @classmethod
    @cache
    def names(cls) -> frozenset[str]:
        """Return the names of all parameters."""
        names = set[str]()
        for part in cls._parts():
            if isinstance(part.name, tuple):
                names.update(part.name)
            elif part.kind in (*_CODECS, Names):
                names.add(part.name)
            else:
                names.update(part.name + name for name in part.kind.names())
        return frozenset(names)

    @classmethod
    @cache
    def _parts(cls) -> tuple[_Part, ...]:
        kinds = get_type_hints(cls, include_extras=True)
        parts = []
        for field in fields(cls):
            kind, name = kinds[field.name], field.name
            if get_origin(kind) is Annotated:
                kind, name = get_args(kind)
            parts.append(_Part(field.name, kind, name, field.default))
        return tuple(parts)
