"""What the fuzzer starts from: good bodies of every route, values that are odd anywhere, schemas that mean harm."""

from __future__ import annotations

from typing import Any

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
COUNT_INPUT, COUNT_MESSAGES, TOKENIZE, DETOKENIZE = (
    "/v1/responses/input_tokens",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)

LENGTH_FIELDS = {
    CHAT: ("max_tokens", "max_completion_tokens"),
    COMPLETIONS: ("max_tokens",),
    RESPONSES: ("max_output_tokens",),
    MESSAGES: ("max_tokens",),
}
"""Of the routes that generate: what bounds an answer's length."""

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "lines": {"type": "integer", "minimum": 0}},
    "required": ["path"],
}
USER = {"role": "user", "content": "Write a Python class."}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "read_file", "arguments": '{"path": "a.py"}'}}
_CHAT_TOOL = {"type": "function", "function": {"name": "read_file", "description": "Reads.", "parameters": PARAMETERS}}
_RESPONSE_TOOL = {"type": "function", "name": "read_file", "description": "Reads.", "parameters": PARAMETERS}
_MESSAGES_TOOL = {"name": "read_file", "description": "Reads.", "input_schema": PARAMETERS}
_SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
_TURNS = [{"role": "system", "content": "Be brief."}, USER, {"role": "assistant", "content": "class A:"}, USER]
_CHAT_CALLS = [
    USER,
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": "class A: pass"},
]
_RESPONSE_CALLS = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "call_1", "name": "read_file", "arguments": '{"path": "a.py"}'},
    {"type": "function_call_output", "call_id": "call_1", "output": "class A: pass"},
]
_MESSAGES_CALLS = [
    {"role": "user", "content": [{"type": "text", "text": "Read it."}]},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "read_file", "input": {"path": "a"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "class A: pass"}]},
]
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_MESSAGES_BASES: tuple[dict[str, Any], ...] = (
    {"messages": [USER], "max_tokens": 4},
    {"messages": [USER], "max_tokens": 3, "stream": True, "system": [{"type": "text", "text": "Be brief."}]},
    {"messages": _MESSAGES_CALLS, "tools": [_MESSAGES_TOOL], "max_tokens": 2, "tool_choice": {"type": "auto"}},
    {"messages": [USER], "tools": [_MESSAGES_TOOL], "max_tokens": 4, "tool_choice": {"type": "any"}, "stream": True},
    {"messages": [USER], "max_tokens": 4, "thinking": {"type": "enabled", "budget_tokens": 2}},
    {"messages": [USER], "max_tokens": 4, "output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
)
_RESPONSES_BASES: tuple[dict[str, Any], ...] = (
    {"input": "Write a Python class.", "max_output_tokens": 4},
    {"input": _RESPONSE_CALLS, "tools": [_RESPONSE_TOOL], "max_output_tokens": 2, "stream": True},
    {"input": "Go on.", "instructions": "Be brief.", "max_output_tokens": 3, "store": False, "top_logprobs": 2},
    {"input": "Go.", "tools": [_RESPONSE_TOOL], "tool_choice": "required", "max_output_tokens": 4},
    {"input": "Go.", "reasoning": {"effort": "low", "summary": "auto"}, "max_output_tokens": 4, "stream": True},
    {
        "input": "Go.",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": _SCHEMA}},
        "max_output_tokens": 4,
    },
    {"input": [{"role": "user", "content": "Go."}], "tools": [{"type": "custom", "name": "c"}], "max_output_tokens": 2},
)

BASES: dict[str, tuple[dict[str, Any], ...]] = {
    CHAT: (
        {"messages": [USER], "max_tokens": 4},
        {"messages": _TURNS, "max_tokens": 4, **_STREAM},
        {"messages": _CHAT_CALLS, "tools": [_CHAT_TOOL], "tool_choice": "auto", "max_tokens": 2},
        {"messages": [USER], "tools": [_CHAT_TOOL], "tool_choice": "required", "max_tokens": 4, "stream": True},
        {
            "messages": [USER],
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": _SCHEMA}},
        },
        {"messages": [USER], "max_tokens": 3, "response_format": {"type": "json_object"}, "stream": True},
        {"messages": [USER], "max_tokens": 4, "logprobs": True, "top_logprobs": 3, "stop": ["\n", "def"], "seed": 7},
        {"messages": [USER], "max_tokens": 4, "reasoning_effort": "low", "thinking_budget": 2},
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Go."}]}],
            "max_completion_tokens": 2,
            "temperature": 1,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.05,
            "logit_bias": {"5": -100},
            "frequency_penalty": 0.5,
        },
    ),
    COMPLETIONS: (
        {"prompt": "def add(", "max_tokens": 4},
        {"prompt": [5, 6, 7], "max_tokens": 2, "logprobs": 3, **_STREAM},
        {"prompt": "class A:", "max_tokens": 3, "echo": True, "stop": "\n", "temperature": 0.5, "seed": 1},
    ),
    RESPONSES: _RESPONSES_BASES,
    COUNT_INPUT: _RESPONSES_BASES,
    MESSAGES: _MESSAGES_BASES,
    COUNT_MESSAGES: _MESSAGES_BASES,
    TOKENIZE: (
        {"prompt": "def add(a, b):", "return_token_strs": True},
        {"messages": _CHAT_CALLS, "tools": [_CHAT_TOOL]},
        {"content": "x = 1"},
    ),
    DETOKENIZE: ({"tokens": [5, 6, 7, 300]},),
}
"""Bodies that are taken as they are, by route."""

ODD_TEXTS = (
    "",
    " ",
    "\x00",
    "\u202e\u2066\ufeff",
    "e\u0301\u0301\u0301" * 20,
    "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\ufffd\uffff",
    "<|im_start|>system\n<|im_end|>",
    "<think></think><tool_call>",
    "{{ 7 * 7 }}{% raw %}",
    "../../etc/passwd",
    "a" * 700,
    "word " * 300,
    "null",
    "1e999",
    "-1",
)
ODD_NUMBERS = (
    0,
    -0.0,
    -1,
    1,
    2,
    0.5,
    1e-308,
    5e-324,
    1.7e308,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    -(2**63),
    2**64,
    10**30,
)
ODD_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], [None], {"": None}, *ODD_TEXTS, *ODD_NUMBERS)
"""What a mutation puts in the place of something else."""

EXTREMES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("temperature", (0, 5e-324, 1e-9, 2, 2.0, 1.9999)),
    ("top_p", (5e-324, 1e-12, 1, 0.5)),
    ("top_k", (-1, 0, 1, 2, 1024)),
    ("min_p", (0, 1, 5e-324)),
    ("seed", (0, 1, 2**63 - 1, 2**53)),
    ("frequency_penalty", (-2, 2, 0)),
    ("presence_penalty", (-2, 2)),
    ("repetition_penalty", (5e-324, 2, 0.1)),
    ("repeat_penalty", (1e-300, 2)),
    ("logit_bias", ({}, {"0": 100}, {"5": -100, "6": 100}, {str(token): -100 for token in range(400)})),
    ("stop", ("", "\n", [], ["a"] * 16, ["x" * 512], ["\ufffd", "\x00"])),
    ("stop_sequences", ([], ["\n"], ["a", "b"])),
    ("stream", (True, False, None)),
    ("stream_options", ({}, {"include_usage": False}, None)),
    ("user", ("u" * 1000,)),
    ("metadata", ({}, {"a": "b"}, {"user_id": "x"})),
    ("parallel_tool_calls", (True, False)),
    ("tool_choice", ("none", "auto", "required", {"type": "none"}, {"type": "any"})),
    ("reasoning_effort", ("none", "minimal", "low", "medium", "high", "xhigh")),
    ("enable_thinking", (True, False)),
    ("thinking_budget", (0, 1, 2**53)),
    ("chat_template_kwargs", ({}, {"enable_thinking": False}, {"tools": 5}, {"messages": 1}, {"x" * 99: [{}]})),
    ("top_logprobs", (0, 1, 20)),
    ("logprobs", (True, False, 0, 20)),
    ("store", (True, False)),
    ("include", ([], ["message.output_text.logprobs"], ["reasoning.encrypted_content"])),
    ("truncation", ("auto", "disabled")),
    ("previous_response_id", ("resp_none", "")),
    ("service_tier", ("auto", "flex")),
    ("model", ("nano", "", None)),
)
"""Fields with values at the ends of what is allowed."""


def _nest(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE_SCHEMAS: tuple[Any, ...] = (
    True,
    False,
    {},
    {"type": "nonsense"},
    {"type": ["string", "null", "object"]},
    {"type": "object", "properties": []},
    {"type": "object", "properties": {"": {}, " ": {}, "\x00": {}, "</parameter>": {"type": "string"}}},
    {"type": "object", "required": ["not there"]},
    {"type": "object", "required": "path"},
    {"type": "object", "additionalProperties": {"$ref": "#"}},
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    {"$ref": "#/nowhere"},
    {"$ref": "http://127.0.0.1/schema.json"},
    {"$ref": 5},
    {"$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}, "$ref": "#/$defs/n"},
    {"type": "string", "pattern": "^(a+)+$"},
    {"type": "string", "pattern": "((((("},
    {"type": "string", "pattern": r"(?=a)\b\1"},
    {"type": "string", "pattern": "[a-z]{1,100000}"},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "format": "nonsense"},
    {"type": "integer", "minimum": 10**30, "maximum": -(10**30)},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "number", "minimum": 1.5, "exclusiveMaximum": 1.5},
    {"type": "array", "minItems": 10**8},
    {"type": "array", "items": False, "minItems": 1},
    {"type": "array", "uniqueItems": True, "prefixItems": [{}, {}]},
    {"enum": []},
    {"enum": [f"value {number}" for number in range(150)]},
    {"const": {"deep": [[[[1]]]]}},
    {"not": {}},
    {"allOf": [{"type": "string"}, {"type": "object"}]},
    {"oneOf": [{"type": "string"}, {"type": "string"}]},
    {"anyOf": [_nest(5)] * 30},
    {"if": {"type": "string"}, "then": {"minLength": 3}, "else": False},
    {"type": "object", "patternProperties": {"^(x+x+)+y$": {}}},
    {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(60)}},
    {"x-guidance": {"whitespace_pattern": "a*"}, "type": "object"},
    {"type": "object", "properties": {"%json {}": {"type": "string", "description": '"""\n%import x'}}},
    _nest(40),
    _nest(60),
)
"""Schemas that a grammar may choke on: empty, without an end, contradictory, huge, or of the wrong kind."""
