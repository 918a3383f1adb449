"""Display names of a folder's classes: chosen by people, WordNet names for WordNet ids, or the folders' names.

`classes.json` beside the class folders stores chosen names, {folder: name}. `imagenet_synsets.txt` lists the WordNet
ids of ImageNet-1k in the order of its classes, as defined by the 2012 challenge (Russakovsky et al. 2015, arXiv
1409.0575); torchvision has the names in the same order.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from vit.errors import InvalidDataset
from vit.files import replaced
from vit.untrusted import Unreadable, is_text, parse_json, read_bytes

FILE = "classes.json"
MAX_NAME = 100  # [characters]
_MAX_BYTES = 1 << 20
_WORDNET_ID = re.compile(r"n\d{8}")
_IMAGENET = 1000  # classes
_AGREEING = 900  # least names at the same place as in ImageNet's list; published lists differ in 2 of them


def names_of(folder: Path, classes: Sequence[str]) -> tuple[str, ...]:
    """Return the display names of classes, in the order of their folders' names.

    A file of names that is damaged, or that gives two classes the same name, is ignored.
    """
    renamed: Mapping[str, object] = {}
    with suppress(OSError, Unreadable, ValueError):
        document = parse_json(read_bytes(folder / FILE, _MAX_BYTES))
        renamed = document if isinstance(document, dict) else {}
    names = []
    for folder_name, usual in zip(classes, _default_names(classes), strict=True):
        own = renamed.get(folder_name)
        name = own.strip() if isinstance(own, str) and is_text(own) else ""
        names.append(name if 0 < len(name) <= MAX_NAME else usual)
    return tuple(names) if len(set(names)) == len(names) else tuple(classes)


def rename(folder: Path, classes: Sequence[str], names: Sequence[str]) -> None:
    """Rename classes.

    Args:
        classes: the folders' names.
        names: one for each of them, "" for the default.

    Raises:
        InvalidDataset: two classes would have the same name, a name is too long, or the file cannot be written.
    """
    defaults = _default_names(classes)
    chosen = [name.strip() or usual for usual, name in zip(defaults, names, strict=True)]
    twice = [name for name, count in Counter(chosen).items() if count > 1]
    if twice:
        raise InvalidDataset(f"Two classes cannot both be called {twice[0]!r}. Give each a name of its own.")
    if any(len(name) > MAX_NAME for name in chosen):
        raise InvalidDataset(f"A name has at most {MAX_NAME} characters. Shorten it.")
    every = zip(classes, defaults, chosen, strict=True)
    renamed = {own: name for own, usual, name in every if usual != name}
    try:
        with replaced(folder / FILE) as file:
            file.write(json.dumps(renamed, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise InvalidDataset(f"The names cannot be written into {str(folder)!r}: {error.strerror}.") from error


def first_name(name: str) -> str:
    """Return the first of a class's names.

    >>> first_name("tench, Tinca tinca")
    'tench'
    """
    return name.partition(",")[0].strip()


def plain_name(name: str) -> str:
    """Return the first of a class's names in lower case, without underscores.

    >>> plain_name("Great_white_shark, white shark")
    'great white shark'
    """
    return first_name(name).casefold().replace("_", " ")


def wordnet_ids(names: Sequence[str]) -> tuple[str, ...]:
    """Return the WordNet ids of classes: their names, or those of ImageNet-1k if these are its classes in its order."""
    if all(map(_WORDNET_ID.fullmatch, names)):
        return tuple(names)
    if len(names) != _IMAGENET:
        return ()
    usual = _wordnet_names()
    agreeing = sum(plain_name(own) == plain_name(name) for own, name in zip(names, usual.values(), strict=True))
    return tuple(usual) if agreeing >= _AGREEING else ()


def _default_names(classes: Sequence[str]) -> list[str]:
    """Return the default names of folders."""
    words = _wordnet_names() if all(map(_WORDNET_ID.fullmatch, classes)) else {}
    return [words.get(name, name) for name in classes]


@cache
def _wordnet_names() -> dict[str, str]:
    """Map WordNet ids to the names of ImageNet's classes."""
    from torchvision.models._meta import _IMAGENET_CATEGORIES  # noqa: PLC0415 # imports torch's compiler: 2 s

    ids = Path(__file__).with_name("imagenet_synsets.txt").read_text().split()
    return dict(zip(ids, _IMAGENET_CATEGORIES, strict=True))
