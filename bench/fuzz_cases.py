"""Draws requests: good ones with extreme values, mutated ones, broken bytes, hostile schemas, odd heads and paths."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import schemathesis
from hypothesis import strategies as st
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from fuzz_bodies import (
    BASES,
    CHAT,
    COMPLETIONS,
    EXTREMES,
    HOSTILE_SCHEMAS,
    LENGTH_FIELDS,
    MESSAGES,
    PARAMETERS,
    RESPONSES,
    USER,
)
from fuzz_mutations import ANY_JSON, mutate
from fuzz_places import GET_PATHS, ID_PATHS, ODD_HEADERS, ODD_IDS, ODD_QUERIES

JSON_HEADERS = (("content-type", "application/json"),)
SHORT_TOKENS = 2
MOST_TOKENS = 12
"""An answer that may be longer is one that its client leaves."""
LONG_TOKENS = 1000, 9000
"""Drawn, because Hypothesis stops when it has drawn all that there is: a round would end early."""


class Case(msgspec.Struct, frozen=True):
    """One request, and what its client does meanwhile."""

    kind: str
    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = JSON_HEADERS
    body: bytes | None = None
    leaves: bool = False
    """The answer may be long: the client closes the connection after a while."""
    cancels: bool = False
    """Another connection cancels it as soon as its id is known."""

    @property
    def path(self) -> str:
        """Its target without the query."""
        return self.target.partition("?")[0]


def build_kinds(document: dict[str, Any]) -> list[tuple[float, st.SearchStrategy[Case]]]:
    """Each kind of case with its share of all; `document` is what /openapi.json answers."""
    return [
        (0.14, draw_extreme()),
        (0.45, draw_mutated()),
        (0.08, draw_hostile()),
        (0.13, draw_broken()),
        (0.15, draw_place()),
        (0.02, draw_left()),
        (0.03, draw_by_schema(document)),
    ]


@st.composite
def draw_extreme(draw: st.DrawFn) -> Case:
    """A good body with a few fields at the ends of their ranges."""
    path, body = draw(_draw_base())
    for name, values in draw(st.lists(st.sampled_from(EXTREMES), min_size=1, max_size=4)):
        body[name] = copy.deepcopy(draw(st.sampled_from(values)))
    return _build("extreme", path, body, draw(_draw_headers()))


@st.composite
def draw_mutated(draw: st.DrawFn) -> Case:
    """A good body with something in it replaced, left out, repeated or added."""
    path, body = draw(_draw_base())
    for _ in range(draw(st.integers(1, 3))):
        mutate(draw, body)
    return _build("mutated", path, body, draw(_draw_headers()))


@st.composite
def draw_hostile(draw: st.DrawFn) -> Case:
    """A schema that a grammar may choke on, as a tool's or as the answer's."""
    schema = draw(st.sampled_from(HOSTILE_SCHEMAS) | _draw_schema())
    if draw(st.booleans()):
        schema = {"type": "object", "properties": {"a": schema, "b": {"type": "string"}}, "required": ["a"]}
    path = draw(st.sampled_from((CHAT, CHAT, RESPONSES, MESSAGES, "/tokenize", "/v1/messages/count_tokens")))
    name = draw(st.sampled_from(("read_file", "f", "\u00fc", "", "a b", "x" * 70)))
    must = draw(st.booleans())
    format_first = draw(st.booleans())
    length = draw(st.sampled_from((1, 2, 3, 12)))
    return _build("hostile", path, _write_schema(path, schema, name, must, format_first) | _limit(path, length))


@st.composite
def draw_broken(draw: st.DrawFn) -> Case:
    """Bytes that are nearly JSON, or not at all."""
    path, base = draw(_draw_base())
    data = json.dumps(base).encode()
    place = draw(st.integers(0, len(data)))
    piece = draw(st.sampled_from(_PIECES) | st.binary(max_size=12))
    broken = {
        "cut": data[:place],
        "inserted": data[:place] + piece + data[place:],
        "overwritten": data[:place] + piece + data[place + len(piece) :],
        "doubled": b"{" + data[1:-1] + b"," + data[1:-1] + b"}",
        "marked": b"\xef\xbb\xbf" + data,
        "wide": data.decode().encode("utf-16"),
        "followed": data + piece,
        "alone": piece,
        "deep": data[:-1] + b', "x": ' + b"[" * 99 + b"]" * 99 + b"}",
        "deeper": data[:-1] + b', "messages": ' + b'[{"content":' * 5000 + b"]" * 5000 + b"}",
        "many": data[:-1] + b', "x": [' + b"1," * 30_000 + b"1]}",
        "digits": data[:-1] + b', "seed": ' + b"9" * 390 + b"}",
    }
    return _build("broken", path, broken[draw(st.sampled_from(sorted(broken)))], draw(_draw_headers()))


@st.composite
def draw_place(draw: st.DrawFn) -> Case:
    """Odd ids, queries, methods and headers."""
    if draw(st.booleans()):
        method, template = draw(st.sampled_from(ID_PATHS))
        target = template.format(draw(st.sampled_from(ODD_IDS)))
    else:
        method, target = "GET", draw(st.sampled_from((*GET_PATHS, *BASES)))
    method = draw(
        st.sampled_from((method, method, method, "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "POST", "BREW"))
    )
    headers = draw(_draw_headers(may_be_odd=0.5))
    body = draw(st.sampled_from((None, None, b"", b"{}", b"\xff")))
    return Case("place", method, target + draw(st.sampled_from(ODD_QUERIES)), headers, body)


@st.composite
def draw_left(draw: st.DrawFn) -> Case:
    """A long answer whose client hangs up, or has it cancelled."""
    path = draw(st.sampled_from((CHAT, COMPLETIONS, RESPONSES, MESSAGES)))
    body = copy.deepcopy(BASES[path][0]) | _limit(path, draw(st.integers(*LONG_TOKENS)))
    body["stream"] = draw(st.booleans())
    cancels = body["stream"] and draw(st.booleans())
    return Case("left", "POST", path, JSON_HEADERS, _dump(body), leaves=not cancels, cancels=cancels)


def draw_by_schema(document: dict[str, Any]) -> st.SearchStrategy[Case]:
    """What schemathesis makes of our document: by its schemas, and against them."""
    found = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    taking = [each for each in operations if each.method.upper() == "POST" and each.body]
    return st.one_of([each.as_strategy(generation_mode=mode) for each in taking for mode in GenerationMode]).map(
        lambda drawn: _build("schema", drawn.operation.path, drawn.body, JSON_HEADERS)
    )


def _build(kind: str, path: str, body: Any, headers: tuple[tuple[str, str], ...] = JSON_HEADERS) -> Case:
    if kind == "schema" and isinstance(body, dict):
        body = _shorten(path, body)
    data = body if isinstance(body, bytes) else _dump(body)
    return Case(kind, "POST", path, headers, data, leaves=_may_be_long(path, data))


def _dump(body: Any) -> bytes:
    """As JSON; a lone surrogate is written as its escape, NaN and Infinity by their names."""
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError):
        return str(body).encode("utf-8", "surrogatepass")


def _shorten(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with an answer of a few tokens, unless its length is at fault already."""
    fields = LENGTH_FIELDS.get(path, ())
    asked = [body[name] for name in fields if body.get(name) is not None]
    if fields and all(isinstance(each, int) and each > SHORT_TOKENS for each in asked):
        body = {name: value for name, value in body.items() if name not in fields} | _limit(path, SHORT_TOKENS)
    return body


def _may_be_long(path: str, data: bytes) -> bool:
    """True when the answer to a body may be longer than a few tokens."""
    fields = LENGTH_FIELDS.get(path)
    if fields is None:
        return False
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return False  # nor is it one for the server
    asked = [body.get(name) for name in fields] if isinstance(body, dict) else []
    given = [each for each in asked if each is not None]
    return not given or any(isinstance(each, int | float) and each > MOST_TOKENS for each in given)


def _limit(path: str, tokens: int) -> dict[str, Any]:
    fields = LENGTH_FIELDS.get(path, ())
    return {fields[0]: tokens} if fields else {}


@st.composite
def _draw_base(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    path = draw(st.sampled_from(_WEIGHED_PATHS))
    body = copy.deepcopy(draw(st.sampled_from(BASES[path])))
    for name in LENGTH_FIELDS.get(path, ()):
        if name in body and draw(st.booleans()):
            body[name] = 1
    return path, body


_WEIGHED_PATHS = (CHAT, CHAT, CHAT, RESPONSES, RESPONSES, MESSAGES, MESSAGES, COMPLETIONS, *BASES)


@st.composite
def _draw_headers(draw: st.DrawFn, may_be_odd: float = 0.08) -> tuple[tuple[str, str], ...]:
    if draw(st.integers(0, 99)) >= 100 * may_be_odd:
        return JSON_HEADERS
    return (*JSON_HEADERS, *draw(st.lists(st.sampled_from(ODD_HEADERS), min_size=1, max_size=3)))


@st.composite
def _draw_schema(draw: st.DrawFn) -> dict[str, Any]:
    """A schema of known keywords with values that may not fit them."""
    keywords = draw(st.lists(st.sampled_from(_KEYWORDS), min_size=1, max_size=4, unique=True))
    return {name: draw(st.sampled_from(HOSTILE_SCHEMAS[:12]) | ANY_JSON) for name in keywords}


_KEYWORDS = (
    *("type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf", "not", "$ref", "$defs"),
    *("pattern", "format", "minLength", "maxLength", "minimum", "maximum", "minItems", "maxItems", "default"),
    *("additionalProperties", "patternProperties", "prefixItems", "title", "description", "if", "then", "x-guidance"),
)


def _write_schema(path: str, schema: Any, name: str, must: bool, format_first: bool) -> dict[str, Any]:
    """A body with the schema at one of the places of its dialect."""
    match path:
        case "/v1/chat/completions" if format_first:
            form = {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}
            return {"messages": [USER], "response_format": form}
        case "/v1/responses" if format_first:
            return {"input": "Go.", "text": {"format": {"type": "json_schema", "name": name, "schema": schema}}}
        case "/v1/messages" | "/v1/messages/count_tokens" if format_first:
            return {"messages": [USER], "output_config": {"format": {"type": "json_schema", "schema": schema}}}
        case "/v1/responses":
            tools = [{"type": "function", "name": name, "parameters": schema}]
            return {"input": "Go.", "tools": tools, "tool_choice": "required" if must else "auto"}
        case "/v1/messages" | "/v1/messages/count_tokens":
            tools = [{"name": name, "input_schema": schema}]
            return {"messages": [USER], "tools": tools, "tool_choice": {"type": "any" if must else "auto"}}
        case _:
            tools = [{"type": "function", "function": {"name": name, "parameters": schema}}]
            tools += [{"type": "function", "function": {"name": "other", "parameters": PARAMETERS}}]
            return {"messages": [USER], "tools": tools, "tool_choice": "required" if must else "auto"}


_PIECES = (
    b"NaN",
    b"-Infinity",
    b"1e400",
    b"\\ud800",
    b"\\u0000",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\x00",
    b"]}",
    b'"',
    b"\\",
    b"/* */",
    b"'",
    b",",
    b"{}",
    b"0123",
    b"-",
)
