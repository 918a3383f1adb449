"""Names in archives: their place in a tree, names to store them under, and class names."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from os.path import splitext
from posixpath import normpath

from vit.data.file_names import Parts, is_ignored, printable_name, printable_path
from vit.errors import InvalidDataset

MAX_DEPTH = 20  # nested folders
MAX_CLASS_NAME = 100  # [characters]
_MAX_PART = 255  # [characters] of a file's or folder's name, as on common file systems
_MAX_STORED, _MAX_SUFFIX = 200, 10  # [bytes] of a stored name without its suffix, and [characters] of this

_JOINERS = "\u200c\u200d"  # invisible, but part of words and emoji
_FORBIDDEN = '<>:"/\\|?*'  # on Windows
_RESERVED = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³]) *(\.|$)", re.IGNORECASE)  # there, too


def safe_path(name: str) -> Parts:
    """Split a path in an archive into its components, without those that lead out of its folder.

    Raises:
        InvalidDataset: it is nested too deeply.

    >>> safe_path("./cats/../../dogs//1.jpg. ")
    ('dogs', '1.jpg')
    """
    parts = tuple(part for part in normpath(f"/{name}").split("/") if part)
    if len(parts) > MAX_DEPTH:
        raise InvalidDataset(f"The archive has folders more than {MAX_DEPTH} deep. Pack the class folders only.")
    return tuple(map(_shortened, (*parts[:-1], *(part.rstrip(". ") or part for part in parts[-1:]))))


def _shortened(name: str) -> str:
    """Cut a name, since the time of normalising it grows quadratically."""
    stem, suffix = splitext(name)
    return name if len(name) <= _MAX_PART else stem[: _MAX_PART - _MAX_SUFFIX] + suffix[:_MAX_SUFFIX]


def stored_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Return a file or folder name for each of these: itself if every common file system can store it.

    They are distinct, also where case and the coding of accents do not count.

    Args:
        taken: other names in the same folder.

    >>> stored_names(["cat.jpg", "CAT.jpg", "con.jpg", "n/a", "../x", "b "])
    ['cat.jpg', 'CAT 2.jpg', '_con.jpg', 'n_a', '_.._x', 'b_']
    """
    seen, stored = Counter(map(_folded, taken)), []
    for name in names:
        own = "".join(c if c.isprintable() and c not in _FORBIDDEN else "_" for c in unicodedata.normalize("NFC", name))
        own = re.sub(r"[. ]+$", "_", own)
        own = f"_{own}" if _RESERVED.match(own) or is_ignored(own) else own
        stem, suffix = splitext(own)
        stem, suffix = (own, "") if len(suffix) > _MAX_SUFFIX else (stem, suffix)
        stem = stem.encode()[:_MAX_STORED].decode(errors="ignore")
        own, key = stem + suffix, _folded(stem + suffix)
        while _folded(own) in seen:
            seen[key] += 1
            own = f"{stem} {seen[key]}{suffix}"
        seen[_folded(own)] += 1
        stored.append(own)
    return stored


def _folded(name: str) -> str:
    """Return a key that is equal for names which some file system does not distinguish."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def check_class(name: str) -> str:
    """Return a class's name with composed accents (NFC).

    Raises:
        InvalidDataset: it has invisible characters, or is too long.
    """
    odd = [c for c in name if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in _JOINERS]
    if odd:
        codes = ", ".join(f"U+{ord(c):04X}" for c in odd[:3])
        raise InvalidDataset(
            f"The class {printable_name(name)!r} has unseen characters in its name ({codes}). Rename it."
        )
    if len(name) > MAX_CLASS_NAME or len(name.encode()) > 240:
        raise InvalidDataset(
            f"The class {printable_name(name)!r} has a name of {len(name)} characters; "
            f"the limit is {MAX_CLASS_NAME}. Rename it."
        )
    return unicodedata.normalize("NFC", name)


def unusual(path: tuple[str, ...], kind: str) -> InvalidDataset:
    """Return the error for an archive entry of an unsupported kind, such as "a link"."""
    return InvalidDataset(f"{printable_path(path)} in the archive is {kind}. Pack plain files only.")
