"""Labels of packed pictures: numbers from 0, or names, which are numbered in alphabetical order."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

from vit.data.layouts.class_names import FILE as CLASSES
from vit.data.layouts.class_names import MAX_NAME
from vit.untrusted import Unreadable, brief, brief_list, parse_json, read_bytes

HIDDEN = -1  # label of test pictures on the Hugging Face Hub


class NoLabel(Enum):
    """Why a picture has no label, as the end of a sentence with "because"."""

    MISSING = "their label is missing or hidden (-1)"
    INVALID = f"their label is neither a whole number nor a name of at most {MAX_NAME} characters"
    NAMED = "their label is a name, and most labels are numbers"
    ALONE = "no KEY.cls with the class is beside KEY.jpg. If the folders in a tar are the classes, unpack it"
    NO_BYTES = "their bytes are not in the column of pictures, which may hold names of files only. Embed the pictures"


Label = int | str | NoLabel


def checked(value: object) -> Label:
    """Return a value as a label; a list is read as its only element, and a fraction of zero is ignored."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or isinstance(value, NoLabel):
        return value or NoLabel.MISSING
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is int:
        return value
    name = str(value).strip() if isinstance(value, str | bool) else ""
    return name if 0 < len(name) <= MAX_NAME else NoLabel.INVALID


def numbered(labels: Sequence[Label], names: tuple[str, ...]) -> tuple[list[int | None], tuple[str, ...]]:
    """Return the number of each label, None without one, and the names of the classes.

    Args:
        labels: numbers, or names; the names are numbered if they are the majority, and left out otherwise.
        names: of the classes, if the labels are numbers.
    """
    known = [label for label in labels if not isinstance(label, NoLabel)]
    if 2 * sum(isinstance(label, str) for label in known) <= len(known):
        return [label if isinstance(label, int) else None for label in labels], names
    names = tuple(sorted(set(map(str, known))))
    places = {name: place for place, name in enumerate(names)}
    return [None if isinstance(label, NoLabel) else places[str(label)] for label in labels], names


def notes_on_unlabelled(left_out: Iterable[tuple[Path, Label]]) -> tuple[str, ...]:
    """Count pictures without a label, given as their files and labels, by the reason."""
    by_reason: dict[str, list[str]] = {}
    for file, label in left_out:
        reason = label if isinstance(label, NoLabel) else NoLabel.NAMED
        by_reason.setdefault(reason.value, []).append(file.name)
    return tuple(
        f"Pictures left out of {brief_list(map(brief, sorted(set(own))))}: {len(own):,}, because {reason}."
        for reason, own in by_reason.items()
    )


def class_names(folder: Path, count: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names from `classes.json`, else from the files, else numbers."""
    names_by_label: Any = {}
    with suppress(OSError, Unreadable, ValueError):
        names_by_label = parse_json(read_bytes(folder / CLASSES, 1 << 20))
    if isinstance(names_by_label, list):
        names_by_label = {str(number): name for number, name in enumerate(names_by_label)}
    names_by_label = names_by_label if isinstance(names_by_label, dict) else {}
    known = [names_by_label.get(str(i), names[i] if i < len(names) else str(i)) for i in range(max(count, len(names)))]
    texts = tuple(str(name)[:100] for name in known)
    return texts if len(set(texts)) == len(texts) else tuple(map(str, range(len(texts))))
