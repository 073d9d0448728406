"""Requests as coding agents send them, cut down to their fields: each is answered, and its session is told."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

PARAMETERS = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {"prompt": {"type": "string"}, "subagent_type": {"type": "string"}},
    "required": ["prompt"],
    "additionalProperties": False,
}
CHAT_TOOL = {"type": "function", "function": {"name": "task", "description": "Starts it.", "parameters": PARAMETERS}}
CHAT_TURNS = [
    {"role": "system", "content": "You are a coding agent."},
    {"role": "user", "content": [{"type": "text", "text": "Say what hello.py prints."}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "task", "arguments": "{}"}}],
    },
    {"role": "tool", "content": 'print("hello")\n', "tool_call_id": "call_1"},
]
CHAT = {"model": "nano", "messages": CHAT_TURNS, "stream": True, "stream_options": {"include_usage": True}}

PI = {**CHAT, "store": False, "max_completion_tokens": 8, "tools": [CHAT_TOOL]}
OPENCODE = {**CHAT, "max_tokens": 8, "tools": [CHAT_TOOL], "tool_choice": "auto"}
QWEN = {**CHAT, "max_tokens": 8, "tools": [CHAT_TOOL]}
CODEX = {
    "model": "nano",
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Read only."}]},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Say it."}]},
        {
            "type": "function_call",
            "status": "completed",
            "id": "fc_1",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": '{"message": "Read hello.py."}',
            "call_id": "call_1",
        },
        {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": '{"agent_id": "t2"}'},
    ],
    "tools": [
        {"type": "function", "name": "exec_command", "strict": False, "parameters": PARAMETERS},
        {
            "type": "namespace",
            "name": "multi_agent_v1",
            "description": "Other agents.",
            "tools": [{"type": "function", "name": "spawn_agent", "strict": False, "parameters": PARAMETERS}],
        },
        {"type": "web_search", "external_web_access": False},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "t1",
    "client_metadata": {"session_id": "t1", "thread_id": "t1"},
    "max_output_tokens": 8,  # the one field that Codex does not send: nano would not end
}
CLAUDE = {
    "model": "nano",
    "system": [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Say it.", "cache_control": {"type": "ephemeral"}}]},
        {"role": "system", "content": "Available agent types: general-purpose."},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "call_1", "name": "Agent", "input": {"prompt": "Read hello.py."}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "call_1",
                    "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": "agentId: a1"}],
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
    "tools": [{"name": "Agent", "description": "Starts one.", "input_schema": PARAMETERS}],
    "metadata": {"user_id": '{"device_id":"d","account_uuid":"","session_id":"c1"}'},
    "max_tokens": 8,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
CHILD = {"thread-id": "t2", "session-id": "t1", "x-codex-parent-thread-id": "t1", "x-openai-subagent": "collab_spawn"}


@pytest.mark.parametrize(
    ("path", "body", "headers", "session", "parent", "lane"),
    [
        ("chat/completions", PI, {"user-agent": "OpenAI/JS 6.26.0"}, "conversation-", None, "unknown"),
        ("chat/completions", QWEN, {"user-agent": "QwenCode/0.15.10"}, "conversation-", None, "unknown"),
        ("chat/completions", OPENCODE, {"x-session-id": "s1", "x-session-affinity": "s1"}, "s1", None, "parent"),
        ("chat/completions", OPENCODE, {"x-session-id": "s2", "x-parent-session-id": "s1"}, "s2", "s1", "child"),
        ("responses", CODEX, {"thread-id": "t1", "session-id": "t1"}, "t1", None, "parent"),
        ("responses", CODEX, CHILD, "t2", "t1", "child"),
        ("messages?beta=true", CLAUDE, {"x-claude-code-session-id": "c1"}, "c1", None, "parent"),
        (
            "messages?beta=true",
            CLAUDE,
            {"x-claude-code-session-id": "c1", "x-claude-code-agent-id": "a1"},
            "a1",
            "c1",
            "child",
        ),
    ],
    ids=["pi", "qwen", "opencode", "opencode-child", "codex", "codex-child", "claude", "claude-child"],
)
def test_what_an_agent_sends_is_answered_and_its_session_told(
    idle: Any, path: str, body: Any, headers: dict[str, str], session: str, parent: str | None, lane: str
) -> None:
    answer = httpx.post(f"{idle.url}/v1/{path}", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "error" not in [line.removeprefix("event: ") for line in answer.text.splitlines()]
    request_id = answer.headers["x-request-id"]
    (row,) = (row for row in idle.snapshot()["streams"] if row["id"] == request_id)
    assert row["session"].startswith(session)
    assert (row["parent_session"], row["lane"]) == (parent, lane)
    assert row["phase"] == "finished"


def test_a_child_that_names_nobody_is_known_by_the_prompt_that_the_model_wrote(idle: Any) -> None:
    prompt = "Say in one line what hello.py prints, and nothing else."
    schema = {"type": "object", "properties": {"prompt": {"type": "string", "enum": [prompt]}}, "required": ["prompt"]}
    headers = {"user-agent": "QwenCode/0.15.10 (linux; x64)"}

    def ask(text: str, **fields: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        body = {"model": "nano", "messages": [{"role": "user", "content": text}], **fields}
        answer = httpx.post(f"{idle.url}/v1/chat/completions", json=body, headers=headers, timeout=60)
        assert answer.status_code == 200, answer.text
        request_id = answer.headers["x-request-id"]
        (row,) = (row for row in idle.snapshot()["streams"] if row["id"] == request_id)
        return answer.json(), row

    tools = [{"type": "function", "function": {"name": "agent", "parameters": schema}}]
    answer, parent = ask("Have hello.py looked at.", tools=tools, tool_choice="required", parallel_tool_calls=False)
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    assert prompt in call["function"]["arguments"]
    _, child = ask(f"<environment>linux</environment>\n{prompt}", max_tokens=4)
    _, stranger = ask("Say in one line what world.py prints, and nothing else.", max_tokens=4)
    assert (child["parent_session"], child["lane"], child["depth"]) == (parent["session"], "child", 1)
    assert (parent["lane"], stranger["lane"]) == ("unknown", "unknown")
