from __future__ import annotations

import pytest

from server.admission.families import find_family, read_product, wants_400


@pytest.mark.parametrize(
    ("headers", "family", "with_400"),
    [
        ({"user-agent": "codex_exec/0.171.0 (Ubuntu 24.4.0; x86_64) unknown"}, "codex", True),
        ({"user-agent": "codex_cli_rs/0.171.0"}, "codex", True),
        ({"user-agent": "mine/1.0", "x-codex-window-id": "w:0"}, "codex", True),
        ({"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/3.0 runtime/node.js/22"}, "opencode", True),
        ({"user-agent": "ai/6.0.326 ai-sdk/openai-compatible/2.0.92 runtime/node.js/22"}, "ai-sdk", True),
        ({"user-agent": "ai-sdk/openai-compatible/2.0.92 ai-sdk/provider-utils/4.0"}, "ai-sdk", True),
        ({"user-agent": "Cline/3.40 ai-sdk/openai-compatible/2.0.92"}, "cline", True),
        ({"user-agent": "QwenCode/0.15.10 (linux; x64)"}, "qwen", True),
        ({"user-agent": "claude-cli/2.1.197 (external, cli)"}, "claude-code", False),
        ({"user-agent": "OpenAI/JS 6.26.0", "x-claude-code-session-id": "c"}, "claude-code", False),
        ({"user-agent": "grok-shell/1.0.8 (linux; x86_64)", "x-grok-session-id": "g"}, "grok", False),
        ({"user-agent": "opengrok/2", "x-grok-session-id": "g"}, "grok", False),
        ({"user-agent": "my-build", "x-grok-conv-id": "g"}, "grok", False),
        ({"user-agent": "OpenAI/JS 6.26.0"}, "openai-sdk", False),
        ({"user-agent": "AsyncOpenAI/Python 3.57.0"}, "openai-sdk", False),
        ({"user-agent": "Anthropic/Python 2.14.0"}, "anthropic-sdk", False),
        ({"user-agent": "pi/0.73.1"}, "pi", False),
        ({"user-agent": "pip/25"}, "other", False),
        ({"user-agent": "goose/1.2"}, "goose", False),
        ({"agent-session-id": "g"}, "goose", False),
        ({"user-agent": "aider/0.90"}, "aider", False),
        ({"user-agent": "curl/8.5"}, "other", False),
        ({}, "other", False),
    ],
)
def test_a_client_is_known_by_its_name_or_by_what_it_alone_sends(
    headers: dict[str, str], family: str, with_400: bool
) -> None:
    assert find_family(headers) == family
    assert wants_400(headers) == with_400


@pytest.mark.parametrize(
    ("user_agent", "listed"),
    [("my-agent/1.0", True), ("My-Agent 1.0", True), ("my-agents/1.0", False), ("x my-agent/1", False), ("", False)],
)
def test_more_names_are_refused_with_400_when_the_user_agent_begins_with_one(user_agent: str, listed: bool) -> None:
    assert wants_400({"user-agent": user_agent}, ("MY-agent",)) == listed


def test_a_product_ends_at_a_slash_or_a_blank() -> None:
    assert [read_product(agent) for agent in ("a/1 b/2", "a b", "  a/1", "")] == ["a", "a", "a", ""]
