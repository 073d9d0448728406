"""Values of a call's arguments: from the text that a model wrote to JSON, by the schema of the tool. Pure."""

from __future__ import annotations

import ast
import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Kinds = frozenset[str]
"""JSON types that a parameter may have: null, boolean, integer, number, array, object, string, and `any`."""

TEXT_ONLY: Kinds = frozenset({"string"})
TEXT_OR_NULL: frozenset[Kinds | None] = frozenset({None, frozenset({"string", "null"})})
"""What is text unless it is the word `null`: also where the schema says nothing."""

_KINDS_BY_NAME = {
    "string": "string str text varchar char enum",
    "boolean": "boolean bool binary",
    "object": "object",
    "array": "array arr",
    "null": "null none",
}
"""Type names that stand in schemas beside JSON's own."""

_KIND_OF_NAME = {name: kind for kind, names in _KINDS_BY_NAME.items() for name in names.split()}

_KIND_OF_BEGINNING = (
    (("int", "uint", "long", "short", "unsigned"), "integer"),
    (("num", "float", "double"), "number"),
    (("dict",), "object"),
    (("list",), "array"),
)
"""By how a type's name begins: `int32`, `list[str]`. Both tables take what mlx-lm's parser for this form takes."""

_SURROGATE = re.compile("[\ud800-\udfff]")

_UNFIT = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, OverflowError)
"""What text raises that is not of a type; Python's own parser tells deep nesting by MemoryError."""


def find_kinds(parameters: Mapping[str, Any], name: str) -> Kinds | None:
    """What a tool's schema says of a parameter: None when it says nothing at all, empty when it names no type."""
    properties = parameters.get("properties")
    schema = properties.get(name) if isinstance(properties, Mapping) else None
    if not isinstance(schema, Mapping) or not schema:
        return None
    return frozenset(_walk(schema, parameters))


def convert(text: str, kinds: Kinds | None) -> Any:
    """The value that `text` stands for: of the first of `kinds` that it fits, the most special first.

    Text that fits none of them is the value itself, for the client to complain of: a call is worth more with one
    wrong value than not at all. Parameters that no schema tells of are text too, except `null`.
    """
    if text.lower() == "null" and (not kinds or "string" not in kinds or "null" in kinds):
        return None
    if not kinds:
        return text if kinds is None else _read_first(text, (_read_container,))
    return _read_first(text, (read for kind, read in _READERS if kind in kinds))


def write_json(value: Any) -> str:
    """JSON text that any client can read. Raises ValueError or TypeError for a value that JSON does not have."""
    return _escape_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))


def escape_text(text: str) -> str:
    """What stands between the quotes of a JSON string. Pieces of a text may be escaped one by one."""
    return _escape_surrogates(json.dumps(text, ensure_ascii=False)[1:-1])


def write_value(text: str, kinds: Kinds | None) -> str:
    """JSON text of the value that `text` stands for."""
    try:
        return write_json(convert(text, kinds))
    except _UNFIT:  # Python's literals have values that JSON does not: sets, bytes, numbers without end
        return write_json(text)


def _escape_surrogates(text: str) -> str:
    """Half of a character cannot be sent as UTF-8; as an escape it can."""
    return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", text)


def _walk(schema: Any, root: Mapping[str, Any]) -> Iterator[str]:
    """The kinds of a schema and of all that it is a choice of. Clients write schemas: any may be deep, or a circle."""
    waiting, seen = [schema], set[str]()
    while waiting:
        part = waiting.pop()
        if not isinstance(part, Mapping):
            continue
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(_resolve(reference, root))
        waiting += [choice for key in ("anyOf", "oneOf", "allOf") for choice in _listed(part, key)]
        yield from _own_kinds(part)


def _own_kinds(schema: Mapping[str, Any]) -> Iterator[str]:
    """By its type, or else by the values that it allows."""
    named = schema.get("type")
    if named is not None:
        yield from map(_kind_of_name, named if isinstance(named, list) else [named])
        return
    yield from map(_kind_of_value, _listed(schema, "enum"))
    if "const" in schema:
        yield _kind_of_value(schema["const"])


def _listed(schema: Mapping[str, Any], key: str) -> list[Any]:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def _resolve(reference: str, root: Any) -> Any:
    """What a reference within the same schema points to; None for any other."""
    if not reference.startswith("#/"):
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, Mapping) else None
    return root


def _kind_of_name(name: Any) -> str:
    lower = str(name).strip().lower()
    beginnings = (kind for starts, kind in _KIND_OF_BEGINNING if lower.startswith(starts))
    return _KIND_OF_NAME.get(lower) or next(beginnings, "any")


def _kind_of_value(value: Any) -> str:
    kinds: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}
    return kinds.get(type(value), "any")


def _read_first(text: str, readers: Any) -> Any:
    for read in readers:
        try:
            return read(text)
        except _UNFIT:
            continue
    return text


def _read_boolean(text: str) -> bool:
    word = text.strip().lower()
    return word == "true" if word in ("true", "false") else _no()


def _read_integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = float(text)
        return int(number) if number.is_integer() else _no()


def _read_number(text: str) -> float:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if not math.isfinite(number):
        return _no()
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _read_array(text: str) -> list[Any]:
    value = _read_json_or_literal(text)
    return list(value) if isinstance(value, list | tuple) else _no()


def _read_object(text: str) -> dict[Any, Any]:
    value = _read_json_or_literal(text)
    return value if isinstance(value, dict) else _no()


def _read_container(text: str) -> Any:
    value = json.loads(text)
    return value if isinstance(value, dict | list) else _no()


def _read_json_or_literal(text: str) -> Any:
    """JSON, raw line breaks in strings allowed, or a literal of Python, which models write as well."""
    try:
        return json.loads(text, strict=False)
    except ValueError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a backslash that escapes nothing, which is the model's affair
            return ast.literal_eval(text)


def _read_text(text: str) -> str:
    return text


def _no() -> Any:
    raise ValueError("the text is of another type")


_READERS: tuple[tuple[str, Callable[[str], Any]], ...] = (
    ("integer", _read_integer),
    ("number", _read_number),
    ("boolean", _read_boolean),
    ("object", _read_object),
    ("array", _read_array),
    ("any", _read_json_or_literal),
    ("string", _read_text),
)
"""From the most special kind to text, which fits everything."""
