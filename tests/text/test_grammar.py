from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from llguidance import LLMatcher

from server.errors import InvalidRequest
from server.text.grammar import SCHEMA_CHARS, Grammar, build_object_grammar, build_schema_grammar

if TYPE_CHECKING:
    from tests.text.conftest import Accepts

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}


def compile_fault(grammar: Grammar) -> str:
    return LLMatcher.validate_grammar(grammar.text)


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("{}", True),
        ('{"a": [1, {"b": null}]}', True),
        ('\n\n{\n  "a": 1,\n  "b": 2\n}', True),
        ("[]", False),
        ('"a"', False),
        ('{"a": 1', False),
        ('{"a":          1}', False),
        ("\n\n\n{}", False),
    ],
)
def test_a_json_object_is_any_object_and_no_blanks_without_end(accepts: Accepts, text: str, fits: bool) -> None:
    assert accepts(build_object_grammar("response_format"), text) is fits


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('{"x": 1, "y": 2.5}', True),
        ('{"x":-7}', True),
        ('{"y": 2.5}', False),
        ('{"x": 1.5}', False),
        ('{"x": 1, "z": 2}', False),
        ('{"x": 1, "x": 2}', False),
    ],
)
def test_a_schema_is_kept(accepts: Accepts, text: str, fits: bool) -> None:
    assert accepts(build_schema_grammar(POINT, "response_format"), text) is fits


def test_references_inside_of_a_schema_are_followed_and_may_recur(accepts: Accepts) -> None:
    tree = {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["children"],
            }
        },
    }
    assert accepts(build_schema_grammar(tree, "f"), '{"children": [{"children": []}, {"children": []}]}')
    assert not accepts(build_schema_grammar(tree, "f"), '{"children": [{}]}')


def nest(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ([], "response_format.schema is no JSON schema: an object is needed."),
        (nest(51), "nested 100 levels deep"),
        (
            {"type": "array", "items": {"properties": {f"k{i}": {} for i in range(2_003)}, "required": ["k0", "k1"]}},
            "An object of a schema may have 2,000 keys that are not required; one in response_format.schema has 2,001. "
            "Require some, or sort them into objects of their own.",
        ),
        (nest(50_000), "nested 100 levels deep"),
        ({"enum": ["x" * SCHEMA_CHARS]}, "Schemas may have 400,000 characters together; response_format.schema has"),
        ({"items": {"$ref": "https://example.com/a.json"}}, "points at 'https://example.com/a.json', and nothing is"),
        ({"const": float("inf")}, "holds a number that JSON cannot write"),
    ],
)
def test_what_no_grammar_is_made_of_is_told_at_once(schema: Any, said: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        build_schema_grammar(schema, "response_format.schema")
    assert said in refusal.value.message
    assert refusal.value.message.endswith(".")
    assert refusal.value.param == "response_format.schema"


def test_a_schema_as_deep_as_may_be_compiles() -> None:
    assert compile_fault(build_schema_grammar(nest(49), "f")) == ""


def test_a_schema_cannot_loosen_how_it_is_compiled(accepts: Accepts) -> None:
    sly = {**POINT, "uniqueItems": True, "x-guidance": {"lenient": True, "whitespace_pattern": "(a|b)*"}}
    assert "Unimplemented keys" in compile_fault(
        build_schema_grammar({"not": {}, "x-guidance": sly["x-guidance"]}, "f")
    )
    del sly["uniqueItems"]
    assert not accepts(build_schema_grammar(sly, "f"), '{abab"x":1}')


def test_each_line_says_what_it_was_made_of(accepts: Accepts) -> None:
    grammar = build_schema_grammar({"const": "a\nb\u2028c"}, "f")
    assert len(grammar.text.splitlines()) == len(grammar.owners) == 1
    assert accepts(grammar, json.dumps("a\nb\u2028c", ensure_ascii=False))
