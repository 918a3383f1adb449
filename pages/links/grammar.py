"""How the parts of a page's link are read and written: a dataclass says which parts there are and of which types.

Anybody may have written a link: a part that makes no sense becomes its default, and unknown names are left out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_args, get_origin, get_type_hints

LONGEST = 1000  # characters of a text

Query = Mapping[str, Sequence[str]]  # every value of every name
Names = tuple[str, ...]
Heads = tuple[tuple[int, int], ...]  # by block and head


class _Text(NamedTuple):
    """How one part stands in a link.

    Attributes:
        read: the part; ValueError if the text makes no sense.
        write: the text.
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
    """Heads by block, as `_write_heads` writes them; those that make no sense are left out.

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


_TEXTS: dict[Any, _Text] = {
    str: _Text(lambda text: text[:LONGEST], str),
    int | None: _Text(_whole, str),
    bool: _Text(_flag, lambda on: str(int(on))),
    Heads: _Text(_heads, _write_heads),
}


class _Part(NamedTuple):
    """An attribute of what a link says.

    Attributes:
        name: in the link; of a group what its names begin with; of what somebody else reads the names of that.
    """

    attribute: str
    kind: Any
    name: str | tuple[str, ...]
    default: Any

    def read(self, query: Query) -> Any:
        """The attribute's value."""
        if isinstance(self.name, tuple):
            return {name: query[name][-1][:LONGEST] for name in self.name if query.get(name)}
        if self.kind == Names:
            return tuple(dict.fromkeys(text[:LONGEST] for text in query.get(self.name, ())))
        if self.kind not in _TEXTS:
            return self.kind.from_query(
                {name.removeprefix(self.name): query[name] for name in query if name.startswith(self.name)}
            )
        values = query.get(self.name)
        try:
            return _TEXTS[self.kind].read(values[-1]) if values else self.default
        except ValueError:
            return self.default

    def write(self, value: Any) -> dict[str, list[str]]:
        """What the link says of it: nothing of a default."""
        if isinstance(self.name, tuple):
            return {name: [text] for name, text in value.items()}
        if self.kind not in (*_TEXTS, Names):
            return {self.name + name: texts for name, texts in value.to_query().items()}
        if value == self.default:
            return {}
        return {self.name: list(value) if self.kind == Names else [_TEXTS[self.kind].write(value)]}


@dataclass(frozen=True, kw_only=True)
class PageLink:
    """What a link says. A part is "", None, False or empty where the link says nothing of it.

    Attributes:
        page: its name.
    """

    page: ClassVar[str] = ""

    @classmethod
    def from_query(cls, query: Query) -> Self:
        """Read a link.

        Args:
            query: every value of every name.
        """
        return cls(**{part.attribute: part.read(query) for part in cls._parts()})

    def to_query(self) -> dict[str, list[str]]:
        """What the link is to say; nothing of what is at its default."""
        query: dict[str, list[str]] = {}
        for part in self._parts():
            query |= part.write(getattr(self, part.attribute))
        return query

    @classmethod
    @cache
    def names(cls) -> frozenset[str]:
        """All names that a link may have."""
        names = set[str]()
        for part in cls._parts():
            if isinstance(part.name, tuple):
                names.update(part.name)
            elif part.kind in (*_TEXTS, Names):
                names.add(part.name)
            else:
                names.update(part.name + name for name in part.kind.names())
        return frozenset(names)

    @classmethod
    @cache
    def _parts(cls) -> tuple[_Part, ...]:
        kinds = get_type_hints(cls, include_extras=True)
        parts = []
        for one in fields(cls):
            kind, name = kinds[one.name], one.name
            if get_origin(kind) is Annotated:
                kind, name = get_args(kind)
            parts.append(_Part(one.name, kind, name, one.default))
        return tuple(parts)
