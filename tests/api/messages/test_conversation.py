from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.messages.conversation import build_turns
from server.api.messages.thoughts import build_signature
from server.api.messages.wire import Block, Message
from server.errors import InvalidRequest, UnsupportedParameter

USER = {"role": "user", "content": "hi"}
BILLING = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={};"


def build(*messages: dict[str, Any], system: Any = None, must_be_answered: bool = True) -> list[dict[str, Any]]:
    blocks = msgspec.convert(system, str | list[Block] | None)
    return build_turns(blocks, msgspec.convert(list(messages), list[Message]), must_be_answered=must_be_answered)


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def assistant(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def answer(*blocks: dict[str, Any]) -> dict[str, Any]:
    """The turn that an assistant's blocks become."""
    return build(USER, assistant(*blocks), USER)[1]


@pytest.mark.parametrize("system", ["be brief", [text("be brief")], [text("be"), text(""), text("brief")]])
def test_a_system_prompt_is_a_string_or_blocks(system: Any) -> None:
    said = "be\n\nbrief" if isinstance(system, list) and len(system) > 1 else "be brief"
    assert build(USER, system=system) == [{"role": "system", "content": said}, USER]


def test_the_line_for_anthropics_accounting_never_reaches_the_prompt() -> None:
    prompts = [
        build(USER, system=[text(BILLING.format(nonce)), {**text("You are Claude Code."), "cache_control": {}}])
        for nonce in ("fa690", "0aaa9")
    ]
    prompts.append(build(USER, system=f"{BILLING.format('1')}\nYou are Claude Code."))
    assert prompts == [[{"role": "system", "content": "You are Claude Code."}, USER]] * 3
    assert build(USER, system=[text(BILLING.format("1"))]) == [USER]


def test_what_a_user_writes_about_that_line_stays() -> None:
    assert build({"role": "user", "content": BILLING})[0]["content"] == BILLING


def test_system_messages_before_all_others_join_the_system_prompt() -> None:
    turns = build(
        {"role": "system", "content": "two"}, {"role": "system", "content": [text("three")]}, USER, system="one"
    )
    assert turns == [{"role": "system", "content": "one\n\ntwo\n\nthree"}, USER]


def test_a_later_system_message_stays_where_it_is_so_that_the_prompt_begins_as_before() -> None:
    before = build(USER, {"role": "assistant", "content": "ok"}, USER, system="s")
    later = {"role": "system", "content": [text("Be careful."), {"type": "tool_removal", "tool": {"name": "x"}}]}
    after = build(USER, {"role": "assistant", "content": "ok"}, USER, later, system="s")
    assert after[:3] == before[:3]
    assert after[3] == {"role": "user", "content": "hi\n\n<system-reminder>\nBe careful.\n</system-reminder>"}


def test_a_system_message_that_only_changes_tools_adds_no_turn() -> None:
    change = {"role": "system", "content": [{"type": "tool_addition", "tool": {"name": "x"}}]}
    assert build(USER, assistant(text("ok")), change, USER) == build(USER, assistant(text("ok")), USER)


def test_neighbours_of_one_role_become_one_turn() -> None:
    turns = build(
        USER, {"role": "user", "content": [text("a"), text("b")]}, assistant(text("c")), assistant(text("d")), USER
    )
    assert [turn["content"] for turn in turns] == ["hi\n\na\n\nb", "cd", "hi"]


def test_results_are_turns_of_their_own_in_their_order_and_text_follows() -> None:
    results = [{"type": "tool_result", "tool_use_id": name, "content": f"of {name}"} for name in "ab"]
    calls = [{"type": "tool_use", "id": name, "name": "read", "input": {"path": name}} for name in "ab"]
    turns = build(USER, assistant(*calls), {"role": "user", "content": [*results, text("go on")]})
    functions = [{"name": "read", "arguments": {"path": name}} for name in "ab"]
    assert turns[1] == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": name, "type": "function", "function": function}
            for name, function in zip("ab", functions, strict=True)
        ],
    }
    assert turns[2:] == [
        {"role": "tool", "content": "of a", "tool_call_id": "a"},
        {"role": "tool", "content": "of b", "tool_call_id": "b"},
        {"role": "user", "content": "go on"},
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [("no such file", "Error: no such file"), ("<tool_use_error>x", "<tool_use_error>x"), (None, "Error: ")],
)
def test_a_result_that_is_an_error_says_so_once(content: Any, said: str) -> None:
    result = {"type": "tool_result", "tool_use_id": "a", "content": content, "is_error": True}
    assert build({"role": "user", "content": [result]})[0]["content"] == said


@pytest.mark.parametrize(
    ("given", "arguments"),
    [
        ({"path": "a"}, {"path": "a"}),
        (None, {}),
        ('{"path": "a"}', {"path": "a"}),
        ('{"path": ', {"arguments": '{"path": '}),
        ([1], {"arguments": "[1]"}),
        (7, {"arguments": "7"}),
    ],
)
def test_whatever_a_call_was_made_with_never_ends_the_conversation(given: Any, arguments: Any) -> None:
    turn = answer({"type": "tool_use", "id": "a", "name": "read", "input": given})
    assert turn["tool_calls"][0]["function"]["arguments"] == arguments


def test_thoughts_come_back_from_text_or_signature_and_not_from_what_others_encrypted() -> None:
    shown = {"type": "thinking", "thinking": "hm", "signature": build_signature()}
    hidden = {"type": "thinking", "thinking": "", "signature": build_signature("so")}
    foreign = {"type": "thinking", "thinking": "", "signature": "ErUB"}
    redacted = {"type": "redacted_thinking", "data": "xyz"}
    assert answer(shown, text("ok"))["reasoning_content"] == "hm"
    assert answer(hidden, text("ok"))["reasoning_content"] == "so"
    assert "reasoning_content" not in answer(foreign, redacted, text("ok"))


def test_what_anthropics_own_tools_left_in_a_conversation_is_left_out() -> None:
    kept = answer(
        text("Let me look. "),
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {
            "type": "web_search_tool_result",
            "tool_use_id": "srvtoolu_1",
            "content": [{"type": "web_search_result", "title": "T", "url": "https://a", "encrypted_content": "x"}],
        },
        {"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"type": "code_execution_result"}},
        {"type": "mcp_tool_use", "id": "m", "name": "n", "server_name": "s", "input": {}},
        {"type": "a_kind_of_next_year", "stuff": [1]},
        text("Found."),
    )
    assert kept == {"role": "assistant", "content": "Let me look. Found."}
    result = {"type": "mcp_tool_result", "tool_use_id": "m", "is_error": False, "content": "x"}
    assert build({"role": "user", "content": [result, text("hi")]}) == [USER]


def test_an_assistants_empty_message_is_no_turn() -> None:
    assert len(build(USER, {"role": "assistant", "content": ""}, USER)) == 1
    assert build({"role": "user", "content": ""}) == [{"role": "user", "content": ""}]


@pytest.mark.parametrize("kind", ["image", "document", "container_upload", "a_kind_of_next_year"])
def test_what_is_no_text_is_refused_in_what_the_user_and_the_system_say(kind: str) -> None:
    with pytest.raises(InvalidRequest, match="text only") as caught:
        build(USER, system=[{"type": kind}])
    assert caught.value.param == "system[0].type"
    with pytest.raises(InvalidRequest, match="text only") as caught:
        build({"role": "user", "content": [text("look"), {"type": kind}]})
    assert caught.value.param == "messages[0].content[1].type"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": [{"type": "tool_result", "content": "x"}]}, "tool_use_id"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}, "name"),
    ],
)
def test_a_call_without_name_and_a_result_without_call_are_refused(message: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        build(message, USER)
    assert caught.value.param == f"messages[0].content[0].{param}"


def test_an_answer_cannot_be_begun_for_the_model_but_counted() -> None:
    messages = (USER, {"role": "assistant", "content": "The answer is ("})
    with pytest.raises(UnsupportedParameter, match="prefill") as caught:
        build(*messages)
    assert caught.value.param == "messages"
    assert build(*messages, must_be_answered=False)[-1]["content"] == "The answer is ("


@pytest.mark.timeout(60)  # each text put to all before it took minutes
@pytest.mark.parametrize("role", ["user", "assistant"])
def test_many_texts_of_one_turn_are_joined_once(role: str) -> None:
    said = {"role": role, "content": "x" * 800}
    (*_, turn) = build(USER, *[said] * 30_000, must_be_answered=False)
    assert len(turn["content"]) >= 800 * 30_000
    thought = [{"type": "thinking", "thinking": "x" * 800, "signature": ""}] * 30_000
    assert len(answer(*thought)["reasoning_content"]) == 800 * 30_000
