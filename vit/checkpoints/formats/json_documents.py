"""JSON of checkpoints: parsed without trust, written deterministically."""

import json
from typing import Any

from vit.errors import InvalidCheckpoint
from vit.untrusted import spend

_MAX_VALUES = 1_000_000  # 100,000 class names and their numbers are 400,000


def read_json(text: bytes | str, name: str, kind: type = dict) -> Any:
    """Parse JSON; reject duplicate keys, and more than a million values, as two bytes of each fill a lot of memory.

    Raises:
        InvalidCheckpoint: not JSON, or not of this kind.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        spend()
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name occurs twice")
        return dict(pairs)

    try:
        raw = text if isinstance(text, bytes) else text.encode()
        if sum(map(raw.count, (b",", b"[", b"{"))) > _MAX_VALUES:
            raise ValueError("there are too many values")
        # Python writes NaN and Infinity, which JSON lacks.
        value = json.loads(text, object_pairs_hook=unique, parse_constant=lambda name: None)
        dump_json(value).encode()  # neither a lone surrogate nor 1e999 could be written again
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpoint(f"{name} is not valid JSON.") from error
    if not isinstance(value, kind):
        raise InvalidCheckpoint(f"{name} is not a JSON {'object' if kind is dict else 'list'}.")
    return value


def dump_json(value: object, indent: int | None = None) -> str:
    """Serialise a value as JSON, deterministically."""
    return json.dumps(value, indent=indent, sort_keys=indent is not None, ensure_ascii=False, allow_nan=False) + (
        "\n" if indent else ""
    )
