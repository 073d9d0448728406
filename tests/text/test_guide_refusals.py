"""Schemas that are wrong or hostile: told in a sentence before the engine, or bounded work in it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
from tokenizers import Tokenizer

from server.engine.guide import allows
from server.errors import FormLost, InvalidRequest, SequenceFailed
from server.text.call_grammar import CallMarkers, build_call_grammar
from server.text.grammar import Grammar, build_schema_grammar
from server.text.guide import GuideBuilder
from server.text.tools import Tool

T = TypeVar("T")

CALL, END_CALL = 5, 6
VOCAB = 3072
STOPS = frozenset({0, 2})


def refuse(builder: GuideBuilder, grammar: Grammar) -> str:
    with pytest.raises(InvalidRequest) as refusal:
        builder.build(grammar)
    assert refusal.value.param == grammar.param
    assert "\n" not in refusal.value.message
    return refusal.value.message


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "wat"}, "The schema cannot be enforced: Invalid type: wat."),
        (
            {"type": "string", "pattern": "x(?=a)"},
            "The schema cannot be enforced: regex parse error: look-around, including look-ahead and look-behind, is "
            "not supported in x(?=a).",
        ),
        (
            {"type": "string", "pattern": "(a"},
            "The schema cannot be enforced: regex parse error: unclosed group in (a.",
        ),
        ({"type": "\x00\u202e"}, r"The schema cannot be enforced: Invalid type: \x00\u202e."),
        ({"type": "object", "properties": 5}, "properties must be an object"),
        ({"not": {"type": "string"}}, 'The schema cannot be enforced: Unimplemented keys: ["not"].'),
        ({"if": {}, "then": {}}, "Unimplemented keys"),
        ({"type": "string", "format": "weird"}, "Unknown format: weird"),
        ({"type": "string", "pattern": "(?=a)b"}, "regex parse error"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf constraints are not supported"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$ref": "#"}, "The schema cannot be enforced: no text satisfies it."),
        ({"type": "string", "minLength": 5, "maxLength": 3}, "Unsatisfiable schema"),
    ],
)
def test_a_schema_that_cannot_be_kept_is_told_in_a_sentence(builder: GuideBuilder, schema: Any, said: str) -> None:
    assert said in refuse(builder, build_schema_grammar(schema, "response_format"))


def test_the_tool_at_fault_is_named(builder: GuideBuilder) -> None:
    tools = [Tool("good", {}, {}), Tool("bad", {"properties": {"a": {"type": "wat"}}}, {})]
    grammar = build_call_grammar(tools, "json", CallMarkers("", "", CALL, END_CALL), "tools")
    assert refuse(builder, grammar) == "The schema of tool 'bad' cannot be enforced: Invalid type: wat."


def write_wide(keys: int, of: str = "key") -> dict[str, Any]:
    return {"type": "object", "properties": {f"{of}{number}": {"type": "string"} for number in range(keys)}}


MANY = {"anyOf": [write_wide(1_900, "a"), write_wide(1_900, "b")]}
"""More ways to go on at its first key than are followed."""
TOO_WIDE = (
    "cannot be enforced: too many keys or choices may come at one place of it; "
    "require more of the keys, or offer fewer."
)


def follow(builder: GuideBuilder, backend: Tokenizer, schema: Any, text: str) -> None:
    guide = builder.build(build_schema_grammar(schema, "response_format"))
    assert guide is not None
    for token in backend.encode(text, add_special_tokens=False).ids:
        (row,) = guide.look(())
        assert allows(row, token)
        guide.take(token)


def test_a_thousand_optional_keys_are_kept(builder: GuideBuilder, backend: Tokenizer) -> None:
    follow(builder, backend, write_wide(1_000), '{"key0": "a", "key7": "b", "key999": "c"}')
    within = {"type": "object", "properties": {"deep": {"type": "array", "items": write_wide(1_000)}}}
    follow(builder, backend, within, '{"deep": [{"key5": "a"}, {"key998": "", "key999": ""}]}')


@pytest.mark.parametrize("form", ["json", "qwen_xml"])
def test_a_tool_of_a_thousand_optional_parameters_is_kept(builder: GuideBuilder, form: Any) -> None:
    tools = [Tool("small", write_wide(2), {}), Tool("wide", write_wide(1_000), {})]
    assert builder.build(build_call_grammar(tools, form, CallMarkers("", "", CALL, END_CALL), "tools")) is not None


@pytest.mark.parametrize("schema", [MANY, {"type": "array", "items": MANY}])
def test_a_schema_that_leads_nowhere_at_its_first_key_is_refused_before_the_answer(
    builder: GuideBuilder, schema: Any
) -> None:
    assert refuse(builder, build_schema_grammar(schema, "response_format")) == f"The schema {TOO_WIDE}"


def test_a_tool_that_leads_nowhere_at_its_first_argument_is_named(builder: GuideBuilder) -> None:
    tools = [Tool("good", {}, {}), Tool("wide", MANY, {})]
    grammar = build_call_grammar(tools, "json", CallMarkers("", "", CALL, END_CALL), "tools")
    assert refuse(builder, grammar) == f"The schema of tool 'wide' {TOO_WIDE}"
    spelled = build_call_grammar(tools, "json", CallMarkers("<call>", "</call>"), "tools")
    assert refuse(builder, spelled) == f"The schema of tool 'wide' {TOO_WIDE}"
    asked = build_call_grammar(tools[:1], "json", CallMarkers("", "", CALL, END_CALL), "response_format", answer=MANY)
    assert refuse(builder, asked) == f"The schema of the answer {TOO_WIDE}"


def test_what_leads_nowhere_further_on_ends_its_answer_alone_with_a_code_of_its_own(
    builder: GuideBuilder, backend: Tokenizer
) -> None:
    schema = {"type": "object", "properties": {"deep": MANY}, "required": ["deep"]}
    with pytest.raises(FormLost, match="too many keys or choices may come at one place"):
        follow(builder, backend, schema, '{"deep": {"a0": ""}}')


def write_hostile() -> dict[str, Any]:
    round_trip = {f"x{j}": {"allOf": [{"$ref": f"#/$defs/d{j}"}, {"$ref": "#/$defs/d0"}]} for j in range(30)}
    return {
        "nested quantifiers": {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        "a far look back": {"type": "string", "pattern": "(.*a.{20000}b)"},
        "ambiguous quantifiers": {"type": "string", "pattern": "^(a|aa|aaa)*.*(x+x+)+y$"},
        "exponential states": {"type": "string", "pattern": "[ab]*a[ab]{25}"},
        "unicode classes": {"type": "string", "pattern": "(\\w{1,500}\\s){1,500}(\\p{L}{3,999}|[^x]{900})"},
        "a long string": {"type": "string", "minLength": 10**8, "maxLength": 2 * 10**9},
        "many items": {"type": "array", "minItems": 10**6, "items": {"type": "array", "minItems": 10**6}},
        "a large enum": {"enum": [f"value-{i}-{i * 7919}" for i in range(15_000)]},
        "optional keys": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(2_000)}},
        "a product of choices": {
            "allOf": [
                {"anyOf": [{"type": "object", "properties": {f"a{i}{j}": {"type": "string"}}} for j in range(4)]}
                for i in range(12)
            ]
        },
        "a ring": {
            "$ref": "#/$defs/a",
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}] * 2}, "b": {"$ref": "#/$defs/a"}},
        },
        "many rings": {
            "$ref": "#/$defs/d0",
            "$defs": {f"d{i}": {"type": "object", "properties": round_trip} for i in range(30)},
        },
        "a large prime": {"type": "integer", "multipleOf": 999_999_937},
        "many patterns": {
            "type": "array",
            "items": {"anyOf": [{"type": "string", "pattern": f"^.*{i}.*$"} for i in range(500)]},
        },
    }


def measure(work: Callable[[], T]) -> tuple[T | None, float, str]:
    """What it gives, the processor time that it takes, and what it says where it cannot be."""
    began_s = time.thread_time()
    try:
        return work(), time.thread_time() - began_s, ""
    except (InvalidRequest, SequenceFailed) as fault:
        return None, time.thread_time() - began_s, fault.message


@pytest.mark.parametrize("name", list(write_hostile()))
def test_a_hostile_schema_takes_bounded_work_and_ends_at_worst_its_own_answer(builder: GuideBuilder, name: str) -> None:
    dice = random.Random(1)
    grammar = build_schema_grammar(write_hostile()[name], "response_format")
    guide, seconds, said = measure(lambda: builder.build(grammar))
    assert seconds < 5
    for _ in range(60):
        if guide is None:
            break
        rows, seconds, said = measure(lambda: guide.look(()))
        assert seconds < 1
        choices = [token for token in range(VOCAB) if allows(rows[0], token) and token not in STOPS] if rows else []
        if not choices:
            break
        _, seconds, said = measure(partial(guide.take, dice.choice(choices)))
        assert seconds < 1
    assert "\n" not in said
