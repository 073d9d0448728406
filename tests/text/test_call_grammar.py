from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from mlx_lm.tool_parsers import qwen3_coder

from server.errors import InvalidRequest, UnsupportedParameter
from server.text.call_grammar import CallMarkers, build_call_grammar
from server.text.grammar import Grammar
from server.text.tools import Tool, ToolForm

if TYPE_CHECKING:
    from tests.text.conftest import Accepts

TOKENS = CallMarkers("<tool_call>", "</tool_call>", 5, 6)
WORDS = CallMarkers("[CALL]", "[/CALL]")

READ = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "mode": {"enum": ["text", "hex", 3]},
        "ranges": {"type": "array", "items": {"$ref": "#/$defs/range"}},
    },
    "required": ["path"],
    "$defs": {"range": {"type": "object", "properties": {"from": {"type": "integer"}}, "required": ["from"]}},
}


def build_tool(name: str, parameters: dict[str, Any]) -> Tool:
    definition = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return Tool(name, parameters, definition)


TOOLS = [build_tool("read", READ), build_tool("read_all", {}), build_tool("ask", {"type": "object", "properties": {}})]


def build(
    tools: list[Tool] | None = None, form: ToolForm = "qwen_xml", markers: CallMarkers = TOKENS, **more: Any
) -> Grammar:
    return build_call_grammar(TOOLS if tools is None else tools, form, markers, "tools", **more)


def call(body: str, name: str = "read") -> str:
    return f"<tool_call>\n<function={name}>\n{body}</function>\n</tool_call>"


def give(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


PATH = give("path", "/a b/c.py")


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        (call(PATH), True),
        ("\n\n" + call(PATH), True),
        ("Let me see. " + call(PATH), False),
        (call(PATH) + " Done.", False),
        (call(""), False),
        (call(PATH + PATH), False),
        (call(give("path", "")), True),
        (call(give("path", "\n\tif a < b:\n\n")), True),
        (call(give("path", "</param>\n</parameter")), True),
        (call(give("path", "a</parameter>b")), False),
        (call(give("path", "null\n</function>\n")), True),
        (call(PATH + give("limit", "10")), True),
        (call(give("limit", "10") + PATH), False),
        (call(PATH + give("limit", "0")), False),
        (call(PATH + give("limit", "ten")), False),
        (call(PATH + give("limit", "1" + "0" * 19)), False),
        (call(PATH + give("mode", "hex")), True),
        (call(PATH + give("mode", "3")), True),
        (call(PATH + give("mode", '"hex"')), False),
        (call(PATH + give("ranges", '[{"from": 1}]')), True),
        (call(PATH + give("ranges", '[{"to": 1}]')), False),
        (call(PATH + give("other", "1")), False),
        (call("", "read_all"), True),
        (call("", "ask"), True),
        (call("", "write"), False),
        ("<tool_call>\n<function=read>\n" + PATH, False),
    ],
)
def test_calls_in_xml(accepts: Accepts, text: str, fits: bool) -> None:
    assert accepts(build(), text) is fits
    if fits:
        inner = text.strip().removeprefix("<tool_call>").removesuffix("</tool_call>").strip()
        assert qwen3_coder.parse_tool_call(inner, [tool.definition for tool in TOOLS])


@pytest.mark.parametrize(
    ("schema", "value", "fits"),
    [
        (True, "any <b> text", True),
        ({}, "any text", True),
        ({"type": ["string", "null"]}, "any text", True),
        ({"type": ["integer", "null"]}, "any text", False),
        ({"type": ["integer", "null"]}, "null", True),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "any text", True),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "any text", False),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", True),
        ({"$ref": "#/$defs/text"}, "any text", True),
        ({"$ref": "#/$defs/round"}, "5", True),
        ({"allOf": [{"$ref": "#/$defs/colour"}]}, "any text", True),
        ({"$ref": "#/$defs/colour"}, "red", True),
        ({"$ref": "#/$defs/colour"}, "blue", False),
        ({"const": 'a/b "c" \\ é'}, 'a/b "c" \\ é', True),
        ({"type": "object", "properties": {"s": {"type": "string"}}}, '{"s": "any"}', True),
        ({"type": "boolean"}, "True", False),
        ({"type": "number"}, "-12.75", True),
        ({"type": "number"}, "1e999", False),
        ({"type": "array", "items": {"not": {}, "if": {}}}, "[1]", True),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "1", True),
    ],
)
def test_a_value_is_text_where_a_string_may_stand_and_json_elsewhere(
    accepts: Accepts, schema: Any, value: str, fits: bool
) -> None:
    whole = {
        "properties": {"v": schema},
        "required": ["v"],
        "$defs": {
            "text": {"$ref": "#/$defs/inner"},
            "inner": {"type": "string"},
            "round": {"anyOf": [{"$ref": "#/$defs/round"}, {"$ref": "#/$defs/round"}, {"type": "integer"}]},
            "colour": {"enum": ["red", "green"]},
        },
    }
    assert accepts(build([build_tool("f", whole)]), call(give("v", value), "f")) is fits


@pytest.mark.parametrize("markers", [TOKENS, WORDS], ids=["tokens", "words"])
@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ('BEGIN\n{"name": "read", "arguments": {"path": "/a", "limit": 3}}\nEND', True),
        ('BEGIN\n{"name": "read_all", "arguments": {}}\nEND', True),
        ('BEGIN\n{"name": "read_all", "arguments": {"a": 1}}\nEND', False),
        ('BEGIN\n{"name": "read", "arguments": {"path": "/a", "extra": 3}}\nEND', False),
        ('BEGIN\n{"name": "read", "arguments": {"limit": 3}}\nEND', False),
        ('BEGIN\n{"name": "write", "arguments": {}}\nEND', False),
        ('BEGIN\n{"name": "ask", "arguments": {}}', False),
    ],
)
def test_calls_in_json(accepts: Accepts, markers: CallMarkers, text: str, fits: bool) -> None:
    whole = text.replace("BEGIN", markers.begin).replace("END", markers.end)
    assert accepts(build(form="json", markers=markers), whole) is fits


def test_a_free_object_of_arguments_stays_free_when_its_schema_says_so(accepts: Accepts) -> None:
    free = build_tool("f", {"type": "object", "additionalProperties": True})
    assert accepts(build([free], "json"), '<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>')


def test_markers_that_are_no_tokens_are_words_and_end_a_value(accepts: Accepts) -> None:
    grammar = build(markers=WORDS)
    inner = call(PATH).removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert accepts(grammar, f"[CALL]{inner}[/CALL]")
    assert not accepts(grammar, call(PATH))
    assert not accepts(grammar, f"[CALL]{inner.replace('/a b', '[/CALL]')}[/CALL]")


def test_one_call_or_any_number(accepts: Accepts) -> None:
    two = f"{call(PATH)}\n{call('', 'ask')}"
    assert accepts(build(), two)
    assert accepts(build(), two + call(PATH))
    assert accepts(build(parallel=False), call(PATH))
    assert not accepts(build(parallel=False), two)
    assert not accepts(build(), "")


def test_one_tool_by_its_name(accepts: Accepts) -> None:
    assert accepts(build(name="ask"), call("", "ask"))
    assert not accepts(build(name="ask"), call("", "read_all"))


def test_parameters_of_all_parts_of_a_schema_may_be_given(accepts: Accepts) -> None:
    parts = {
        "allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}],
        "anyOf": [{"properties": {"b": {"type": "integer"}}, "required": ["b"]}, {"properties": {"c": False}}],
        "required": ["d"],
    }
    grammar = build([build_tool("f", parts)])
    assert accepts(grammar, call(give("a", "x") + give("b", "1") + give("d", "y"), "f"))
    assert accepts(grammar, call(give("a", "x") + give("d", "y"), "f"))
    assert not accepts(grammar, call(give("b", "1") + give("d", "y"), "f"))
    assert not accepts(grammar, call(give("a", "x") + give("c", "1") + give("d", "y"), "f"))


@pytest.mark.parametrize(
    ("tools", "form", "name", "said", "param"),
    [
        ([], "qwen_xml", None, "tool_choice asks for a tool call, but tools is empty.", "tool_choice"),
        (TOOLS, "json", "rm", "names the tool 'rm', which is not in tools ('read', 'read_all', 'ask')", "tool_choice"),
        ([build_tool("f", {"properties": 5})], "qwen_xml", None, "properties of tool 'f' is no object", "tools"),
        ([build_tool("f", {"required": [5]})], "qwen_xml", None, "required of tool 'f' has no names", "tools"),
        ([build_tool("f", {"required": "a"})], "qwen_xml", None, "required of tool 'f' is no list", "tools"),
        ([build_tool("f", {"required": ["a b"]})], "qwen_xml", None, "'a b' of tool 'f' has", "tools"),
        ([build_tool("f", {"$ref": "a.json"})], "json", None, "nothing is fetched for a schema", "tools"),
    ],
)
def test_what_cannot_be_called_is_refused(
    tools: list[Tool], form: ToolForm, name: str | None, said: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        build(tools, form, name=name)
    assert said in refusal.value.message
    assert refusal.value.param == param


def test_a_schema_that_grows_without_end_is_refused_early() -> None:
    big = {"enum": [f"value {count}" for count in range(15_000)]}
    tool = build_tool(
        "f", {"properties": {f"p{count}": {"$ref": "#/$defs/big"} for count in range(2_000)}, "$defs": {"big": big}}
    )
    with pytest.raises(InvalidRequest, match="grow to more than 1,600,000 characters"):
        build([tool])
    several = {f"p{count}": {"type": "array", "items": {"$ref": "#/$defs/big"}} for count in range(2_000)}
    with pytest.raises(InvalidRequest, match="grow to more than 1,600,000 characters"):
        build([build_tool("f", {"properties": several, "$defs": {"big": big}})])


def test_a_form_that_is_not_known_cannot_be_enforced() -> None:
    with pytest.raises(UnsupportedParameter, match="use tool_choice auto"):
        build(form="other")


def test_each_line_says_whose_it_is() -> None:
    grammar = build()
    lines = grammar.text.splitlines()
    assert len(lines) == len(grammar.owners)
    assert {owner for line, owner in zip(lines, grammar.owners, strict=True) if "limit" in line} == {
        "The schema of tool 'read'"
    }
