"""Say in one sentence why pydantic refuses a value."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from vit.untrusted import Unreadable, brief

_T = TypeVar("_T")
_RULES = {
    "greater_than": "must be more than {gt:,.10g}",
    "greater_than_equal": "must be at least {ge:,.10g}",
    "less_than": "must be less than {lt:,.10g}",
    "less_than_equal": "must be at most {le:,.10g}",
    "literal_error": "must be {expected}",
    "finite_number": "must be a finite number",
    "string_pattern_mismatch": "must match {pattern}",
    "missing": "is missing",
}
# the first part of an error's type, such as `int_parsing` or `int_from_float`
_KINDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "list": "must be a list",
    "tuple": "must be a list",
    "dict": "must be a table",
    "path": "must be a path",
}


def broken_rule(error: Mapping[str, Any]) -> str:
    """Return what a value must be, without the field's name: "must be at least 1".

    Args:
        error: of `ValidationError.errors()`, about a field.
    """
    kind = error["type"]
    if kind in _RULES:
        return _RULES[kind].format_map(error.get("ctx", {}))
    return _KINDS.get(kind.partition("_")[0], f"is invalid ({error['msg']})")


def sentence(error: ValidationError, name: str = "") -> str:
    """Return the first problem as a sentence, such as "epochs must be at least 1, not 0".

    Args:
        name: of the field; "" for the one that pydantic reports.
    """
    first = error.errors()[0]
    field = name or ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":  # raised by a validator of ours, whose message is a sentence
        return first["msg"].removeprefix("Value error, ")
    if first["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        return f"There is no setting '{brief(field)}'."
    if first["type"] == "missing":
        return f"{field} {broken_rule(first)}."
    value = brief(first["input"])
    return f"{field} {broken_rule(first)}, not {repr(value) if isinstance(first['input'], str) else value}."


def as_tuple(kind: type[_T], values: object, name: str) -> _T:
    """Convert a JSON object to a named tuple, with fields of the declared types.

    Args:
        name: of the file that the object was read from.

    Raises:
        Unreadable: a field is missing, unknown, or of another type.
    """
    try:
        if not isinstance(values, dict):
            raise TypeError("no object")
        return TypeAdapter(kind).validate_python(values)
    except (TypeError, ValidationError) as error:
        raise Unreadable(f"{name} cannot be read: it is damaged, or of another version.") from error


@contextmanager
def one_sentence_errors(name: str = "") -> Iterator[None]:
    """Convert pydantic's ValidationError into a ValueError with the message of `sentence`."""
    try:
        yield
    except ValidationError as error:
        raise ValueError(sentence(error, name)) from error
