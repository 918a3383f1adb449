"""Read class names from a text file beside the weights, such as labels.txt: one name per line, or JSON."""

import re
from collections.abc import Iterable

from vit.checkpoints.json_documents import read_json
from vit.untrusted import spend

_FILE = re.compile(
    r"(?i)(.*[\W_])?(labels?|class(es)?|categories|id2label|label2id|synsets?|names)([\W_].*)?\.(txt|json)"
)
_NUMBER_FIRST = re.compile(r"(\d{1,6})[\s:,=]+(.+)")
_NUMBER_LAST = re.compile(r"(.+?)[\s:,=]+(\d{1,6})")


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
            pairs = [(str(key), str(value)) for key, value in listed.items()]
            return _in_order(pairs) or _in_order((value, key) for key, value in pairs)
        return [str(one) for one in listed] if isinstance(listed, list) else []
    lines = [line for text in content.decode("utf-8-sig", "replace").splitlines() if (line := text.strip(" \t{},"))]
    first, last = (
        [match for line in lines if (match := form.fullmatch(line))] for form in (_NUMBER_FIRST, _NUMBER_LAST)
    )
    numbered = _in_order((match[1], match[2]) for match in first) if len(first) == len(lines) else []
    numbered = numbered or (_in_order((match[2], match[1]) for match in last) if len(last) == len(lines) else [])
    return [label.strip(" \t'\"") for label in numbered or lines]


def _in_order(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """Return names in the order of their numbers, which count from 0 or 1; empty for other numbers."""
    names: dict[int, str] = {}
    for number, name in pairs:
        spend()
        if not re.fullmatch(r"\d{1,6}", number):
            return []
        names[int(number)] = name
    return (
        [names[number] for number in sorted(names)]
        if max(names, default=0) - min(names, default=0) < len(names)
        else []
    )
