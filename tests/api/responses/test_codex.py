"""What Codex sends, turn after turn, is understood: its tools in every form, its history, its way of going on."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.generation.asked import Asked, ChatPrompt
from server.api.generation.door import Door

EXEC = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command.",
    "strict": False,
    "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}, "required": ["cmd"]},
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin_patch hunk+ end_patch"},
}
AGENTS = {
    "type": "namespace",
    "name": "collaboration",
    "description": "Other agents.",
    "tools": [{"type": "function", "name": "spawn_agent", "parameters": {"type": "object", "properties": {}}}],
}
REQUEST: dict[str, Any] = {
    "instructions": "You are Codex.",
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>ask</permissions>"}],
        },
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}]},
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "Look first."}],
            "content": None,
            "encrypted_content": None,
        },
        {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "call_1"},
        {"type": "custom_tool_call", "status": "completed", "call_id": "call_2", "name": "apply_patch", "input": "***"},
        {
            "type": "function_call",
            "name": "spawn_agent",
            "namespace": "collaboration",
            "arguments": "{}",
            "call_id": "call_3",
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "a.py"},
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "Done."},
        {
            "type": "function_call_output",
            "call_id": "call_3",
            "output": [{"type": "input_text", "text": "Spawned."}, {"type": "input_image", "image_url": "data:"}],
        },
        {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "x"}},
        {"type": "configuration_update", "reasoning": {"effort": "high"}},
    ],
    "tools": [EXEC, PATCH, AGENTS, {"type": "web_search", "external_web_access": False}, {"type": "image_generation"}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0198-thread",
    "text": {"verbosity": "medium"},
    "client_metadata": {"x-codex-installation-id": "i"},
}
HEADERS = {"session_id": "0198", "thread_id": "0198-thread", "user_agent": "codex_exec/0.171.0"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What comes to the door."""
    seen: list[Asked] = []
    opened = Door.open

    async def open_and_note(door: Door, request: Asked) -> Any:
        seen.append(request)
        return await opened(door, request)

    monkeypatch.setattr(Door, "open", open_and_note)
    return seen


async def test_a_turn_in_the_middle_of_a_thread(
    rig: Any, ask: Any, speak: Any, read_events: Any, asked: list[Asked]
) -> None:
    rig.engine.script = speak("Fixed.")
    answer = await ask(REQUEST, **HEADERS)
    assert answer.status_code == 200
    events = read_events(await answer.get_data())
    assert events[-1]["type"] == "response.completed"
    assert [tool["type"] for tool in events[-1]["response"]["tools"]] == ["function", "custom", "namespace"]
    prompt = asked[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [tool.name for tool in prompt.tools] == ["exec_command", "apply_patch", "collaboration.spawn_agent"]
    assert [turn["role"] for turn in prompt.turns] == ["system", "user", "assistant", "tool", "tool", "tool"]
    system, _, answered, *results = prompt.turns
    assert system["content"] == "You are Codex.\n\n<permissions>ask</permissions>"
    assert answered["reasoning_content"] == "Look first."
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in answered["tool_calls"]] == [
        ("exec_command", {"cmd": "ls"}),
        ("apply_patch", {"input": "***"}),
        ("collaboration.spawn_agent", {}),
    ]
    assert [turn["content"] for turn in results] == [
        "a.py",
        "Done.",
        "Spawned.[image left out: this server takes text only]",
    ]
    assert rig.ends()[0].session == "0198-thread"


async def test_tools_that_come_as_an_item(rig: Any, ask: Any, speak: Any, asked: list[Asked]) -> None:
    plain = {"type": "namespace", "name": "functions", "description": "", "tools": [EXEC, PATCH]}
    brought = {"type": "additional_tools", "role": "developer", "tools": [plain, AGENTS, {"type": "web_search"}]}
    rig.engine.script = speak("Fixed.")
    answer = await ask({**REQUEST, "tools": [], "input": [brought, *REQUEST["input"]]}, **HEADERS)
    assert answer.status_code == 200
    prompt = asked[0].prompt
    assert isinstance(prompt, ChatPrompt)
    assert [tool.name for tool in prompt.tools] == ["exec_command", "apply_patch", "collaboration.spawn_agent"]
