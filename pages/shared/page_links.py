"""What a page shows, as its link says it: one value for each page, read from the address and written to it.

Anybody may have written a link: what makes no sense in it becomes the default, and names that the page does not have
are left out. Whether there is such a checkpoint or class is for the page to find out. Page Train's is a form, see
`pages.train_form.form`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, get_args, get_origin, get_type_hints

import streamlit as st

from pages.shared import session
from vit.view.selection import Selection

LONGEST = 1000  # characters of a text
_VIEWER = tuple(one.name for one in fields(Selection))
_VIEWERS = tuple(name for name in _VIEWER if name not in ("view", "hidden"))  # what two viewers share

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


@dataclass(frozen=True, kw_only=True)
class ClassesLink(PageLink):
    """Of classes from outside a checkpoint, see `pages.shared.class_source`.

    Attributes:
        source: "" for the checkpoint's own, typed phrases, examples, or likeness to a picture.
        phrases, template: what was typed, and how it is read.
        data: a dataset to learn from, "" for groups of pictures.
        pictures: how many of the dataset.
        groups: of pictures, each the key of its pictures, a space, and its name.
        classifier: how is learnt from them.
        like, name: a sample, or the key of an uploaded picture and what its file was called.
        patch: of it, as ROW,COL; "" for the whole picture.
    """

    source: Annotated[str, "from"] = ""
    phrases: Annotated[Names, "text"] = ()
    template: str = ""
    data: str = ""
    pictures: str = ""
    groups: Annotated[Names, "group"] = ()
    classifier: str = ""
    like: str = ""
    name: str = ""
    patch: str = ""


CLASSES = "classes_"  # where the names of these begin


def best_of_run(run_id: str) -> str:
    """What the best checkpoint of a run is called in links."""
    return f"run-{run_id}"


@dataclass(frozen=True, kw_only=True)
class ExploreLink(PageLink):
    """Of page Explore.

    Attributes:
        checkpoint, heads: what was chosen, and how many attention heads it has, where its files do not say.
        size: of the model's input [px], as `loading.pixels` writes it.
        precision: "" for float32.
        sample, upload, picture, frame: the picture: a sample, or the name and key of an upload, and its frame from 1.
        stretch: it is drawn over the whole range of its values.
        pictures: the key of several that were uploaded, this one among them.
        classes: where they come from, if not from the checkpoint.
        target, method: the class, and how it is explained.
        panel: what is below the viewer.
        over, statistic: of its panel Heads: over what, and of what.
        curves, ranking: of its panel *Is it true?*: what else is shown.
        off, instead, baseline, probe: of its panel *What if?*: heads that are off and what they give instead, what
            hidden patches become, and whether the patch under the pointer is replaced.
        register: of its panel Layers: a register is added at test time.
        features_block, features_with, features_pictures, foreground, features_blocks: of its panel Features: after
            which block, in one basis with what, the key of own pictures, of the foreground alone, and all blocks.
        tour: the step of the tour, from 1.
        viewer: see `vit.view.selection.Selection`.
    """

    page: ClassVar[str] = "explore"

    checkpoint: str = ""
    heads: int | None = None
    size: str = ""
    precision: str = ""
    sample: str = ""
    upload: str = ""
    picture: str = ""
    pictures: str = ""
    frame: int | None = None
    stretch: bool = False
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    target: str = ""
    method: str = ""
    panel: str = ""
    over: str = ""
    statistic: str = ""
    curves: bool = False
    ranking: bool = False
    off: Heads = ()
    instead: str = ""
    baseline: str = ""
    probe: bool = False
    register: bool = False
    features_block: str = ""
    features_with: str = ""
    features_pictures: str = ""
    foreground: bool = False
    features_blocks: bool = False
    tour: int | None = None
    viewer: Annotated[Mapping[str, str], _VIEWER] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SideLink(PageLink):
    """Of one side of page Compare.

    Attributes:
        source: a checkpoint, or an epoch of a run.
        checkpoint, sample, picture, which, size: of a checkpoint: with a sample, or the key of uploads, and which of
            them, from 1.
        run, example, epoch: of a run: which of its pictures, after which epoch.
        classes: where they come from, if not from the checkpoint.
        target, method: the class, and how it is explained.
        view: see `vit.view.selection.Selection`.
    """

    source: Annotated[str, "from"] = ""
    checkpoint: str = ""
    sample: str = ""
    picture: str = ""
    which: int | None = None
    size: str = ""
    run: str = ""
    example: Annotated[str, "probe"] = ""
    epoch: str = ""
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    target: str = ""
    method: str = ""
    view: str = ""


@dataclass(frozen=True, kw_only=True)
class SheetLink(PageLink):
    """Of a contact sheet.

    Attributes:
        checkpoint, source, count, pictures: what looks at which pictures, and how many; the key of those that were
            uploaded.
        method, block, head: the map; of attention, whose.
        classes: where they come from, if not from the checkpoint.
        order, first, show: in which order they stand, from which end, and which of them.
        part: of many pictures, those that are drawn at once, from 0.
        true: whether their maps are true is measured.
    """

    checkpoint: str = ""
    source: Annotated[str, "from"] = ""
    count: str = ""
    pictures: str = ""
    classes: Annotated[ClassesLink, CLASSES] = ClassesLink()
    method: str = ""
    block: str = ""
    head: str = ""
    order: Annotated[str, "sort"] = ""
    first: str = ""
    show: str = ""
    part: Annotated[str, "page"] = ""
    true: bool = False


@dataclass(frozen=True, kw_only=True)
class CompareLink(PageLink):
    """Of page Compare.

    Attributes:
        mode: two side by side, or many pictures.
        a, b: the left and the right side.
        apart: the right side has a picture, class and view of its own.
        sheet: of the many pictures.
        viewer: of both viewers, as the left one shows it.
    """

    page: ClassVar[str] = "compare"

    mode: str = ""
    a: Annotated[SideLink, "a_"] = SideLink()
    b: Annotated[SideLink, "b_"] = SideLink()
    apart: bool = False
    sheet: Annotated[SheetLink, "m_"] = SheetLink()
    viewer: Annotated[Mapping[str, str], _VIEWERS] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunsLink(PageLink):
    """Of page Runs.

    Attributes:
        runs: the ids of those that are shown.
        search: the id of the search that is shown, where no runs are.
        view: of one run.
        against: what the curves of several are drawn against.
        curves: see `pages.run_views.curves.View`.
    """

    page: ClassVar[str] = "runs"

    runs: Annotated[Names, "run"] = ()
    search: str = ""
    view: str = ""
    against: str = ""
    curves: Annotated[Mapping[str, str], ("smoothing", "log", "epochs", "minutes")] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointsLink(PageLink):
    """Of page Checkpoints.

    Attributes:
        name: of the checkpoint that is selected.
        fetch: what the form to fetch one begins with.
    """

    page: ClassVar[str] = "checkpoints"

    name: str = ""
    fetch: str = ""


_KINDS = {kind.page: kind for kind in (ExploreLink, CompareLink, RunsLink, CheckpointsLink)}
_NAMES = frozenset[str]().union(*(kind.names() for kind in _KINDS.values()))
Link = TypeVar("Link", bound=PageLink)


def read(kind: type[Link]) -> Link:
    """What the address says."""
    return kind.from_query(address())


def change(kind: type[PageLink], **parts: Any) -> None:
    """Change parts of what the address says, as one step of the browser's Back; see `rewrite`.

    Args:
        parts: attributes of the kind.
    """
    show(replace(read(kind), **parts))


def show(link: PageLink) -> None:
    """Let the address say this, and nothing else."""
    _write(link.to_query())


def text(name: str) -> str:
    """What the link says of a part, by its name there; "" for nothing. For controls, whose options others know.

    Raises:
        LookupError: the page's link has no part of that name, so that no choice would stay.
    """
    return (texts(name) or [""])[-1]


def texts(name: str) -> list[str]:
    """The same of a part that several things may be said of."""
    if (kind := _KINDS.get(session.of(session.Visit).entered)) and name not in kind.names():
        raise LookupError(f"{kind.__name__} has no part {name!r}: a control needs one to keep what is chosen in it.")
    return list(understood().get(name, []))


def understood() -> Query:
    """What the page understands of the link: values by their names there."""
    return _understood(address())


def rewrite(parts: Mapping[str, str | Sequence[str] | None]) -> None:
    """Change parts of the page's link, as one step of the browser's Back; none where it says that already.

    Streamlit makes a step of every change, so that what somebody does in one go is to be written in one go.

    Args:
        parts: by their names there what the link is to say, several times where it is several; None for nothing.

    Raises:
        LookupError: no page's link has such a part. What another page's has is left out, as a browser may still send
            what was chosen on the page that it left.
    """
    unknown = {name for name, value in parts.items() if value} - _NAMES
    if unknown and session.of(session.Visit).entered in _KINDS:
        raise LookupError(f"No page's link has a part {min(unknown)!r}.")
    texts = {name: [value] if isinstance(value, str) else list(value or ()) for name, value in parts.items()}
    _write(_understood({name: values for name, values in (address() | texts).items() if values}))


def address() -> dict[str, list[str]]:
    """The link as it is, which anybody may have written."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _understood(query: Query) -> Query:
    """What the page understands of a link; all of it on a page whose link is no value of this module."""
    kind = _KINDS.get(session.of(session.Visit).entered)
    return _parsed(kind, tuple((name, tuple(values)) for name, values in query.items())) if kind else query


@lru_cache(maxsize=256)  # every control asks
def _parsed(kind: type[PageLink], query: tuple[tuple[str, tuple[str, ...]], ...]) -> Query:
    return kind.from_query(dict(query)).to_query()


def _write(query: Query) -> None:
    if query != address():
        st.query_params.from_dict(query)
