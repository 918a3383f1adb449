"""Read class names from a text file beside the weights, such as labels.txt: one name per line, or JSON."""

import re
from collections.abc import Iterable

from vit.checkpoints.formats.json_documents import read_json
from vit.untrusted import spend

_FILE = re.compile(r"(?i)(.*[\W_])?(labels?|class(es)?|categories|id2label|label2id|synsets?)([\W_].*)?\.(txt|json)")
_NUMBERED = (re.compile(r"(?P<i>\d{1,6})[\s:,=]+(?P<name>.+)"), re.compile(r"(?P<name>.+?)[\s:,=]+(?P<i>\d{1,6})"))


def holds_labels(name: str) -> bool:
    """Whether a file with this name may list classes.

    >>> [holds_labels(name) for name in ("labels.txt", "class_names.json", "imagenet_classes.txt", "requirements.txt")]
    [True, True, True, False]
    """
    return _FILE.fullmatch(name) is not None


def labels_of(name: str, content: bytes) -> list[str]:
    """Return the names that a file lists, in the order of their numbers if it numbers them; empty if it lists none.

    Raises:
        InvalidCheckpoint: a JSON file that is not valid.
    """
    if name.lower().endswith(".json"):
        listed = read_json(content, name, object)
        if isinstance(listed, dict):
            listed = next((listed[key] for key in ("id2label", "label2id") if key in listed), listed)
        if isinstance(listed, dict):
            by_number = all(map(_name, listed.values()))
            return _in_order((key, _name(value)) if by_number else (str(value), key) for key, value in listed.items())
        names = [_name(one) for one in listed] if isinstance(listed, list) else []
        return names if all(names) else []
    encoding = "utf-16" if content.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    lines = [line for text in content.decode(encoding, "replace").splitlines() if (line := text.strip(" \t{},"))]
    for form in _NUMBERED:
        matches = [match for line in lines if (match := form.fullmatch(line))]
        if len(matches) == len(lines) and (named := _in_order((match["i"], match["name"]) for match in matches)):
            lines = named
            break
    return [line.strip(" \t'\"") for line in lines]


def _name(value: object) -> str:
    """Return the name in "tench", ["n01440764", "tench"] or {"id": 0, "name": "tench"}; "" without one."""
    value = value.get("name") if isinstance(value, dict) else value[-1] if isinstance(value, list) and value else value
    return value if isinstance(value, str) else ""


def _in_order(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return names in the order of their numbers, which count from 0 or 1; empty for other numbers."""
    names: dict[int, str] = {}
    for number, name in pairs:
        spend()
        if not re.fullmatch(r"\d{1,6}", number):
            return []
        names[int(number)] = name
    first = min(names, default=0)
    return (
        [names[number] for number in sorted(names)] if first < 2 and max(names, default=0) < first + len(names) else []
    )
