from __future__ import annotations

import json
import warnings
from typing import Any

import pytest

from server.text.tool_values import TEXT_ONLY, convert, escape_text, find_kinds, write_value


def find(schema: Any, **root: Any) -> Any:
    kinds = find_kinds({"properties": {"x": schema}, **root}, "x")
    return kinds if kinds is None else set(kinds)


@pytest.mark.parametrize(
    ("schema", "kinds"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": "string", "enum": ["a"]}, {"string"}),
        ({"type": " Varchar "}, {"string"}),
        ({"type": "int32"}, {"integer"}),
        ({"type": "double"}, {"number"}),
        ({"type": "list[str]"}, {"array"}),
        ({"type": ["string", "null"]}, {"string", "null"}),
        ({"type": "money"}, {"any"}),
        ({"anyOf": [{"type": "integer"}, {"oneOf": [{"type": "null"}, {"const": 1}]}]}, {"integer", "null"}),
        ({"allOf": [{"$ref": "#/$defs/A~1b"}]}, {"array"}),
        ({"$ref": "https://example.org/schema"}, set()),
        ({"$ref": "#/$defs/none"}, set()),
        ({"enum": ["a", 1, 2.5, None, [1]]}, {"string", "integer", "number", "null", "any"}),
        ({"description": "any of it"}, set()),
        ({}, None),
        (True, None),
        ("string", None),
    ],
)  # fmt: skip
def test_what_a_schema_says_of_a_parameter(schema: Any, kinds: set[str] | None) -> None:
    assert find(schema, **{"$defs": {"A/b": {"type": "array"}}}) == kinds


@pytest.mark.parametrize(
    "parameters", [{}, {"properties": None}, {"properties": []}, {"properties": {"y": {"type": "string"}}}]
)
def test_a_parameter_that_no_schema_tells_of(parameters: dict[str, Any]) -> None:
    assert find_kinds(parameters, "x") is None


def test_schemas_that_go_in_circles_or_very_deep_end() -> None:
    choices = {f"A{n}": {"anyOf": [{"$ref": f"#/d/A{n + 1}"}, {"$ref": f"#/d/A{n + 1}"}]} for n in range(60)}
    circle = choices | {"A60": {"anyOf": [{"$ref": "#/d/A0"}, {"type": "integer"}]}}
    assert find({"$ref": "#/d/A0"}, d=circle) == {"integer"}
    deep: dict[str, Any] = {"type": "boolean"}
    for _ in range(20_000):
        deep = {"anyOf": [deep]}
    assert find(deep) == {"boolean"}


@pytest.mark.parametrize(
    ("kinds", "text", "value"),
    [
        ("integer", "5", 5),
        ("integer", " -5 ", -5),
        ("integer", "5.0", 5),
        ("integer", "9007199254740993", 9007199254740993),
        ("integer", "2026-01-15", "2026-01-15"),
        ("integer", "5.5", "5.5"),
        ("integer", "1e999", "1e999"),
        ("integer", "nan", "nan"),
        ("integer", "9" * 5000, "9" * 5000),
        ("integer", "", ""),
        ("integer", "null", None),
        ("number", "2.50", 2.5),
        ("number", "3.0", 3),
        ("number", "1e300", 1e300),
        ("number", "inf", "inf"),
        ("number", "two", "two"),
        ("boolean", "true", True),
        ("boolean", "False", False),
        ("boolean", "yes", "yes"),
        ("object", '{"a": [1, null]}', {"a": [1, None]}),
        ("object", '{"a": "x\ny"}', {"a": "x\ny"}),
        ("object", "{'a': True}", {"a": True}),
        ("object", "{a: 1}", "{a: 1}"),
        ("object", "[1]", "[1]"),
        ("array", '["a"]', ["a"]),
        ("array", "('a', 'b')", ["a", "b"]),
        ("array", "a, b", "a, b"),
        ("array", '{"a": NaN}', '{"a": NaN}'),
        ("array", "[1e999]", "[1e999]"),
        ("array", "[" * 100_000, "[" * 100_000),
        ("array", "[{1}]", "[{1}]"),
        ("any", "[b'x']", "[b'x']"),
        ("any", "'\\d'", "\\d"),
        ("any", "some words", "some words"),
        ("any", "-" * 50_000 + "1", "-" * 50_000 + "1"),
        ("null", "null", None),
        ("null", "nothing", "nothing"),
        ("string", "null", "null"),
        ("string", "5", "5"),
        ("string null", "NULL", None),
        ("string null", "nullable", "nullable"),
        ("string integer", "5", 5),
        ("string integer", "null", "null"),
        ("string integer", "five", "five"),
        ("string array", '["a"]', ["a"]),
        ("string array", "a", "a"),
        ("integer null", "5", 5),
        ("integer boolean", "true", True),
        ("", '{"a": 1}', {"a": 1}),
        ("", "5", "5"),
        ("", "null", None),
        (None, '{"a": 1}', '{"a": 1}'),
        (None, "Null", None),
    ],
)
def test_text_becomes_the_first_kind_that_it_fits_or_stays_text(kinds: str | None, text: str, value: Any) -> None:
    written = write_value(text, None if kinds is None else frozenset(kinds.split()))
    result = json.loads(written)
    assert result == value
    assert type(result) is type(value)


def test_what_python_says_of_a_literal_goes_nowhere() -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert convert("['\\d']", frozenset({"array"})) == ["\\d"]
    assert told == []


def test_text_is_escaped_piece_by_piece_as_in_one_go() -> None:
    text = 'a"b\\c\n\r\t\x00\x1f\x7f é 日 😀 \u2028 \ud83d\ude00 \ud800'
    pieces = "".join(map(escape_text, text))
    assert pieces == escape_text(text)
    pieces.encode()
    assert json.loads(f'"{pieces}"') == text.replace("\ud83d\ude00", "😀")
    assert "é 日 😀" in pieces


def test_half_a_character_inside_a_value_can_be_sent() -> None:
    written = write_value('["\\ud800"]', frozenset({"array"}))
    written.encode()
    assert json.loads(written) == ["\ud800"]


def test_only_text_streams() -> None:
    assert find({"type": "string"}) == set(TEXT_ONLY)
