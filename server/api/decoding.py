"""Strict decoding of JSON bodies; a fault is a sentence that names the field, the value and what is allowed."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from server.admission.sessions import make_printable
from server.api.json_shape import check_shape
from server.errors import InvalidRequest

T = TypeVar("T")

log = logging.getLogger(__name__)

SHOWN_CHARS = 80
"""A value that is quoted back is cut to this."""

_UTF8_MARK = b"\xef\xbb\xbf"
_MISSING = re.compile(r"Object missing required field `(?P<name>[^`]+)`")


def decode_object(body: bytes, content_type: str = "") -> dict[str, Any]:
    """The JSON object in a body. Raises InvalidRequest.

    Bounded in time and memory: `server.api.json_shape` looks first. Strict: UTF-8, no NaN or Infinity, no lone
    surrogate. The content type is only used to explain a failure.
    """
    if not body.strip():
        raise InvalidRequest("The request body is empty; send a JSON object.")
    check_shape(body)
    try:
        document = msgspec.json.decode(body.removeprefix(_UTF8_MARK))
    except msgspec.ValidationError:
        raise InvalidRequest("The request body has a number that is too large to be used.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidRequest(_explain_json(body, str(fault), content_type)) from None
    if not isinstance(document, dict):
        raise InvalidRequest(f"The request body must be a JSON object, not {_kind(document)}.")
    return document


def convert(document: Mapping[str, Any], into: type[T], expected: Mapping[str, str]) -> T:
    """The struct that a decoded object means. Raises InvalidRequest.

    `expected` says in words what each field may be, by its dotted path with `[]` for any place in a list.
    """
    try:
        return msgspec.convert(document, into, strict=True)
    except msgspec.ValidationError as fault:
        raise _explain_field(str(fault), document, expected) from None


def describe_field(param: str, document: Mapping[str, Any], expected: Mapping[str, str]) -> InvalidRequest:
    """The error for a field whose value is not allowed."""
    allowed = expected.get(re.sub(r"\[\d+\]", "[]", param), "of another type")
    return InvalidRequest(
        f"`{param}` must be {allowed}; {show_value(_look_up(document, param))} was given.", param=param
    )


def log_unknown(document: Mapping[str, Any], known: Collection[str]) -> None:
    """Name the fields that have no effect in the log, for whoever wonders why."""
    unknown = document.keys() - known
    if unknown:
        names = ", ".join(ascii(name[:40]) for name in sorted(unknown)[:20])
        log.debug("fields without effect in a request: %s", names)


def show_value(value: Any) -> str:
    """A value as JSON writes it, short; containers by their kind, because their content may be long or private."""
    if isinstance(value, dict | list):
        return _kind(value)
    text = msgspec.json.encode(value).decode() if not isinstance(value, int) or abs(value) < 2**63 else "a huge number"
    return make_printable(text, SHOWN_CHARS)


def _explain_field(fault: str, document: Mapping[str, Any], expected: Mapping[str, str]) -> InvalidRequest:
    reason, _, where = fault.partition(" - at `")
    path = where.rstrip("`").removeprefix("$").removeprefix(".")
    missing = _MISSING.match(reason)
    if missing:
        param = f"{path}.{missing['name']}" if path else missing["name"]
        allowed = expected.get(re.sub(r"\[\d+\]", "[]", param), "given")
        return InvalidRequest(f"`{param}` is missing; it must be {allowed}.", param=param)
    return describe_field(path, document, expected)


def _explain_json(body: bytes, reason: str, content_type: str) -> str:
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as fault:
        return f"The request body is not UTF-8: byte {fault.start} cannot be read."
    if "surrogate" in reason or re.search(rb"\\u[dD][89abAB]", body):
        return "The request body has half of a surrogate pair (\\ud800..\\udfff), which is no character."
    hint = ""
    if content_type and "json" not in content_type:
        hint = f" The content type is {content_type[:SHOWN_CHARS]!r}; send JSON as application/json."
    return f"The request body is not valid JSON: {reason.removeprefix('JSON is malformed: ')}.{hint}"


def _look_up(document: Any, param: str) -> Any:
    """The value at a dotted path, as far down as there is one."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", param):
        try:
            document = document[int(index)] if index else document[name]
        except (KeyError, IndexError, TypeError):
            return document
    return document


def _kind(value: Any) -> str:
    match value:
        case dict():
            return "an object" if value else "an empty object"
        case list():
            return "a list" if value else "an empty list"
        case str():
            return "a string"
        case bool():
            return "a boolean"
        case None:
            return "null"
        case _:
            return "a number"
