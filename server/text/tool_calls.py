"""Reads calls between a family's call markers: by our own reader where it has one, otherwise by mlx-lm's parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from server.text.calls import Calls, Reading
from server.text.markup import CallParser, Markup
from server.text.parts import CallDelta, CallEnded, Part
from server.text.tape import Tape, collect_before
from server.text.tool_values import write_json
from server.text.xml_calls import FUNCTION, read_xml_call

CALL_OPENINGS = {"qwen_xml": FUNCTION, "json": "{", "other": ""}
"""What a call begins with behind its marker, by form; that tells a call from a marker that is only talked about."""

_PARSER_FAULTS = (ValueError, TypeError, LookupError, AttributeError, SyntaxError, RecursionError, MemoryError)
"""What mlx-lm's parsers raise for text that they cannot read."""


class _ParsedCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str
    """JSON text of an object."""
    id: str | None


def read_calls(tape: Tape, calls: Calls, markup: Markup) -> Reading:
    """Read what stands behind a call marker, and leave the end marker on the tape.

    One result for all forms: False when no call could be read of it. Then no part of it was yielded.
    """
    assert markup.call is not None, "calls are read where they are marked"
    if markup.tool_form == "qwen_xml":
        return (yield from read_xml_call(tape, calls, markup.call.end))
    ends = (markup.call.end,) if markup.call.end else ()
    inside = yield from collect_before(tape, *ends)
    if tape.is_cut:
        return False
    parsed = _parse(inside, calls, markup.parse_call)
    for call in parsed:
        yield from _build_parts(call, calls)
    return bool(parsed)


def _parse(inside: str, calls: Calls, parse: CallParser | None) -> list[_ParsedCall]:
    """All calls that stand in the text; none when one of them cannot be read."""
    if parse is None:
        return []
    try:
        found = parse(inside, list(calls.definitions))
        return [_read_parsed(call) for call in (found if isinstance(found, list) else [found])]
    except _PARSER_FAULTS:
        return []


def _read_parsed(call: Any) -> _ParsedCall:
    """What mlx-lm's parser made of a call. Raises ValueError unless it has a name and an object of arguments."""
    name, arguments = call["name"], call.get("arguments")
    if isinstance(arguments, str):
        arguments = json.loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(name, str) or not name or not isinstance(arguments, Mapping):
        raise ValueError("no call")
    call_id = call.get("id")
    return _ParsedCall(name, write_json(arguments), call_id if isinstance(call_id, str) else None)


def _build_parts(call: _ParsedCall, calls: Calls) -> Iterator[Part]:
    begun = calls.begin(call.name, call.id)
    yield begun
    yield CallDelta(begun.index, call.arguments)
    yield CallEnded(begun.index)
