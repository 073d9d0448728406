from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.admission.sessions import BodyFacts, Identity, identify, make_printable, name_client

FACTS = BodyFacts("You are helpful.", "Write a parser.", "key", "127.0.0.1")


@pytest.mark.parametrize(
    ("headers", "session", "parent", "lane"),
    [
        ({"x-homebase-session": "a"}, "a", None, "parent"),
        ({"x-homebase-session": "b", "x-homebase-parent-session": "a"}, "b", "a", "child"),
        ({"x-homebase-session": "a", "x-homebase-parent-session": "a"}, "a", None, "parent"),
        ({"x-dynamo-session-id": "d", "x-dynamo-parent-session-id": "p"}, "d", "p", "child"),
        ({"x-claude-code-session-id": "c"}, "c", None, "parent"),
        ({"x-claude-code-session-id": "c", "x-claude-code-agent-id": "g"}, "g", "c", "child"),
        (
            {
                "x-claude-code-session-id": "c",
                "x-claude-code-agent-id": "h",
                "x-claude-code-parent-agent-id": "g",
            },
            "h",
            "g",
            "child",
        ),
        ({"session-id": "s", "thread-id": "t"}, "t", None, "parent"),
        ({"session-id": "s"}, "s", None, "parent"),
        ({"thread-id": "t", "x-codex-parent-thread-id": "r"}, "t", "r", "child"),
        ({"thread-id": "t", "x-openai-subagent": "collab_spawn"}, "t", None, "child"),
        ({"thread-id": "t", "x-openai-subagent": "review"}, "t", None, "child"),
        ({"thread-id": "t", "x-openai-subagent": "compact"}, "t", None, "auxiliary"),
        ({"thread-id": "t", "x-openai-subagent": "memory_consolidation"}, "t", None, "auxiliary"),
        ({"x-session-id": "o"}, "o", None, "parent"),
        ({"x-session-affinity": "o"}, "o", None, "parent"),
        ({"x-session-id": "o2", "x-parent-session-id": "o"}, "o2", "o", "child"),
        ({"x-session-id": "o", "x-homebase-session": "ours"}, "ours", None, "parent"),
        ({"x-claude-code-session-id": "c", "x-claude-code-request-class": "main"}, "c", None, "parent"),
        ({"x-claude-code-session-id": "c", "x-claude-code-request-class": "compaction"}, "c", None, "auxiliary"),
        ({"x-grok-session-id": "g", "x-grok-conv-id": "g", "x-grok-req-id": "r-1"}, "g", None, "parent"),
        ({"x-grok-session-id": "g", "x-grok-conv-id": "recap-g"}, "g", None, "auxiliary"),
        ({"x-grok-session-id": "g", "x-grok-req-id": "title-refresh-1"}, "g", None, "auxiliary"),
        ({"x-grok-session-id": "g", "x-grok-conv-id": "xai-perm-auto-1"}, "g", None, "auxiliary"),
        ({"x-grok-session-id": "g", "x-grok-conv-id": "g-recap-"}, "g", None, "parent"),
        ({"agent-session-id": "n", "goose-session-id": "o"}, "n", None, "parent"),
        ({"goose-session-id": "o"}, "o", None, "parent"),
    ],
)
def test_headers_of_each_family_name_session_and_parent(
    headers: dict[str, str], session: str, parent: str | None, lane: str
) -> None:
    found = identify(headers, FACTS)
    assert (found.session, found.parent_session, found.lane) == (session, parent, lane)


def test_without_headers_a_conversation_keeps_its_session_and_its_lane_is_unknown() -> None:
    first, later = identify({}, FACTS), identify({"user-agent": "x"}, FACTS)
    assert first.session == later.session
    assert first.session.startswith("conversation-")
    assert (first.parent_session, first.lane) == (None, "unknown")


@pytest.mark.parametrize("change", [{"system_text": ""}, {"first_user_text": "x"}, {"api_key": ""}, {"peer": "::1"}])
def test_without_headers_another_beginning_key_or_peer_is_another_session(change: Any) -> None:
    assert identify({}, msgspec.structs.replace(FACTS, **change)).session != identify({}, FACTS).session


def test_text_cannot_move_between_the_parts_of_a_fingerprint() -> None:
    assert identify({}, BodyFacts("ab", "c", "", "")) != identify({}, BodyFacts("a", "bc", "", ""))


def test_it_is_known_whether_a_header_would_name_a_parent_or_even_the_session() -> None:
    told = [identify({name: "s"}, FACTS) for name in ("x-session-id", "x-grok-session-id", "agent-session-id", "x")]
    assert [found.names_parents for found in told] == [True, False, False, False]
    assert [found.is_named for found in told] == [True, True, True, False]
    assert [found.family for found in told] == ["other", "grok", "goose", "other"]


@pytest.mark.parametrize("change", [{"key_name": "alice"}, {"api_key": "x"}, {"peer": "::1"}])
def test_another_key_or_address_is_another_owner_whatever_is_said(change: Any) -> None:
    said = msgspec.structs.replace(FACTS, system_text="x", first_user_text="y")
    mine, others = identify({}, said), identify({}, msgspec.structs.replace(FACTS, **change))
    assert mine.owner == identify({"x-session-id": "s"}, FACTS).owner != others.owner


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("", "unknown"),
        ("OpenAI/Python 3.57.0", "OpenAI/Python 3.57.0"),
        ("opencode/1.18.33 ai-sdk/provider-utils/3.0 runtime/node.js/22", "opencode/1.18.33"),
        ("QwenCode/0.15.10 (linux; x64)", "QwenCode/0.15.10"),
        ("python-httpx/0.28.1", "python-httpx/0.28.1"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("x" * 90, "x" * 39 + "…"),
    ],
)
def test_a_client_has_a_short_printable_name(user_agent: str, name: str) -> None:
    assert name_client(user_agent) == name


def test_what_a_client_sends_is_safe_to_print() -> None:
    found = identify({"x-homebase-session": "a\x1b]0;title\x07", "x-homebase-parent-session": "p\u202e"}, FACTS)
    assert found == Identity("a\\x1b]0;title\\x07", "p\\u202e", "child", "unknown", owner=found.owner)
    assert len(make_printable("s" * 500, 64)) == 64


@pytest.mark.parametrize("headers", [{}, {"x-session-id": "s"}, {"x-session-id": "s", "x-parent-session-id": "p"}])
def test_sessions_of_different_keys_never_meet(headers: dict[str, str]) -> None:
    alice, bob, nobody = (
        identify(headers, msgspec.structs.replace(FACTS, key_name=name)) for name in ("alice", "bob", "")
    )
    assert len({alice.session, bob.session, nobody.session}) == 3
    assert alice.session == f"alice/{nobody.session}"
    assert alice.parent_session == (f"alice/{nobody.parent_session}" if nobody.parent_session else None)
    assert (alice.key, alice.client, alice.lane) == ("alice", "alice unknown", nobody.lane)


def test_the_plain_key_is_nobodys_name() -> None:
    found = identify({"x-session-id": "s"}, msgspec.structs.replace(FACTS, key_name="api_key"))
    assert (found.client, found.session) == ("unknown", "api_key/s")


def test_a_session_that_claims_anothers_key_stays_ones_own() -> None:
    facts = msgspec.structs.replace(FACTS, key_name="bob")
    found = identify({"x-session-id": "alice/s", "x-parent-session-id": "alice/p"}, facts)
    assert (found.session, found.parent_session) == ("bob/alice/s", "bob/alice/p")
