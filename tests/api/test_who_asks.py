"""Requests as agents send them: whose child each is, its lane, and what a refusal says to each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from server.admission.wording import build_loading_refusal
from server.events import Refused
from server.snapshot import StreamView

PROMPT = "Say in one line what UNIQUEPROMPT-17 in hello.py prints."

CODEX = {"user-agent": "codex_exec/0.171.0 (Ubuntu 24.4.0; x86_64)", "session-id": "T1", "x-codex-window-id": "T1:0"}
OPENCODE = {"user-agent": "opencode/1.18.33 ai-sdk/provider-utils/3.0 runtime/node.js/22", "x-session-affinity": "S1"}
QWEN = {"user-agent": "QwenCode/0.15.10 (linux; x64)"}
CLAUDE = {"user-agent": "claude-cli/2.1.197 (external, cli)", "x-claude-code-session-id": "C"}
PI = {"user-agent": "OpenAI/JS 6.26.0"}
GROK = {"user-agent": "grok-shell/1.0.8 (linux; x86_64)", "x-grok-agent-id": "machine"}


def tool(name: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"prompt": {"type": "string"}}}
    return {"name": name, "description": f"It is {name}.", "parameters": parameters}


def chat(text: str, *tools: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    offered = {"tools": [{"type": "function", "function": tool(name)} for name in tools]} if tools else {}
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **offered, **fields}


def responses(text: str, *tools: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    offered = {"tools": [{"type": "function", **tool(name)} for name in tools]} if tools else {}
    return "/v1/responses", {"input": [message], **offered, **fields}


def messages(text: str, *tools: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    read = [{"name": name, "input_schema": tool(name)["parameters"]} for name in tools]
    turn = {"role": "user", "content": [{"type": "text", "text": text}]}
    return "/v1/messages", {"messages": [turn], "max_tokens": 100, **({"tools": read} if tools else {}), **fields}


Wire = tuple[str, dict[str, Any]]
Ask = Callable[..., Awaitable[StreamView]]


@pytest.fixture
def ask(rig: Any, markup: None, speak: Any) -> Ask:
    """Sends a request, which the model answers with these pieces, and gives its row."""

    async def send(headers: Mapping[str, str], wire: Wire, *pieces: str) -> StreamView:
        rig.engine.script = speak(*(pieces or ("yes",)))
        path, body = wire
        answer = await rig.post({"model": "nano", **body}, headers, path)
        assert answer.status_code == 200, await answer.get_data()
        await answer.get_data()
        await rig.settle()
        return find_row(rig, answer.headers["x-request-id"])

    return send


@pytest.fixture
def hold(rig: Any) -> Callable[..., Awaitable[str]]:
    """Sends a request that stays in flight until its sequence is ended, and gives its id."""

    async def send(headers: Mapping[str, str], wire: Wire) -> str:
        rig.engine.script = None
        before = set(rig.engine.open)
        path, body = wire
        tasks.append(asyncio.create_task(rig.post({"model": "nano", **body}, headers, path)))
        await rig.until(lambda: set(rig.engine.open) - before)
        (request_id,) = set(rig.engine.open) - before
        return request_id

    tasks: list[asyncio.Task[Any]] = []
    return send


async def let_go(rig: Any) -> None:
    for request_id in list(rig.engine.open):
        rig.engine.end(request_id, "stop")
    await rig.until(lambda: not rig.admission.in_flight)
    await rig.settle()


def find_row(rig: Any, request_id: str) -> StreamView:
    (row,) = (row for row in rig.build_snapshot().streams if row.id == request_id)
    return row


def told(row: StreamView) -> tuple[str | None, int, str, str]:
    return row.parent_session, row.depth, row.lane, row.family


def write_call(name: str, prompt: str) -> str:
    return f"<tool_call>\n<function={name}>\n<parameter=prompt>\n{prompt}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("wire", "root", "child", "grandchild", "family"),
    [
        (
            responses,
            {**CODEX, "thread-id": "T1"},
            {**CODEX, "thread-id": "T2", "x-codex-parent-thread-id": "T1", "x-openai-subagent": "collab_spawn"},
            {**CODEX, "thread-id": "T3", "x-codex-parent-thread-id": "T2", "x-openai-subagent": "collab_spawn"},
            "codex",
        ),
        (
            chat,
            {**OPENCODE, "x-session-id": "S1"},
            {**OPENCODE, "x-session-id": "S2", "x-parent-session-id": "S1"},
            {**OPENCODE, "x-session-id": "S3", "x-parent-session-id": "S2"},
            "opencode",
        ),
        (
            messages,
            CLAUDE,
            {**CLAUDE, "x-claude-code-agent-id": "A"},
            {**CLAUDE, "x-claude-code-agent-id": "B", "x-claude-code-parent-agent-id": "A"},
            "claude-code",
        ),
        (
            chat,
            {"x-homebase-session": "p"},
            {"x-homebase-session": "c", "x-homebase-parent-session": "p"},
            {"x-homebase-session": "g", "x-homebase-parent-session": "c"},
            "other",
        ),
        (
            chat,
            {"x-dynamo-session-id": "p"},
            {"x-dynamo-session-id": "c", "x-dynamo-parent-session-id": "p"},
            {"x-dynamo-session-id": "g", "x-dynamo-parent-session-id": "c"},
            "other",
        ),
    ],
    ids=["codex", "opencode", "claude-code", "ours", "dynamo"],
)
async def test_headers_tell_a_child_and_its_child(
    rig: Any, ask: Ask, wire: Any, root: Any, child: Any, grandchild: Any, family: str
) -> None:
    rig.set_policy(policy__subagents__max_depth=2)
    rows = [await ask(headers, wire(text, "read")) for headers, text in ((root, "a"), (child, "b"), (grandchild, "c"))]
    assert [told(row) for row in rows] == [
        (None, 0, "parent", family),
        (rows[0].session, 1, "child", family),
        (rows[1].session, 2, "child", family),
    ]
    priorities = [rig.engine.requests[row.id].priority for row in rows]
    assert priorities[0] < priorities[1] == priorities[2]


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize(
    ("wire", "headers", "name"),
    [(chat, QWEN, "agent"), (chat, PI, "task"), (responses, PI, "spawn_agent"), (messages, PI, "Agent")],
    ids=["chat-qwen", "chat", "responses", "messages"],
)
async def test_a_child_without_any_header_is_known_by_the_prompt_that_it_was_handed(
    rig: Any, ask: Ask, wire: Any, headers: Any, name: str, is_streaming: bool
) -> None:
    call = write_call(name, PROMPT)
    parent = await ask(headers, wire("Do it.", "read", name, stream=is_streaming), call[:30], call[30:])
    child = await ask(headers, wire(f"<env>linux</env>\n{PROMPT}", "read"))
    stranger = await ask(headers, wire(PROMPT.replace("17", "18"), "read"))
    assert (parent.lane, parent.depth) == ("unknown", 0)
    assert (child.parent_session, child.depth, child.lane) == (parent.session, 1, "child")
    assert (stranger.parent_session, stranger.lane) == (None, "unknown")
    (seen,) = (one for one in rig.lineage.sessions() if one.session == parent.session)
    assert seen.children == (child.session,)


async def test_groks_child_has_a_session_and_no_parent_but_the_prompt(ask: Ask) -> None:
    names = {"x-grok-session-id": "G1", "x-grok-conv-id": "G1"}
    await ask({**GROK, **names}, chat("Do it.", "spawn_subagent"), write_call("spawn_subagent", PROMPT))
    child = await ask({**GROK, "x-grok-session-id": "G2", "x-grok-conv-id": "G2"}, chat(PROMPT, "read"))
    assert told(child) == ("G1", 1, "child", "grok")
    recap = await ask({**GROK, **names, "x-grok-conv-id": "recap-9"}, chat("Sum it up.", "read"))
    assert (recap.session, *told(recap)) == ("G1", None, 0, "auxiliary", "grok")


async def test_the_operator_may_name_more_tools_that_start_an_agent(rig: Any, ask: Ask) -> None:
    await ask(QWEN, chat("One.", "start_helper"), write_call("start_helper", PROMPT))
    assert (await ask(QWEN, chat(PROMPT))).lane == "unknown"
    rig.set_policy(policy__spawn_tools=("start_helper",))
    await ask(QWEN, chat("Two.", "start_helper"), write_call("start_helper", PROMPT + " Again."))
    assert (await ask(QWEN, chat(PROMPT + " Again."))).lane == "child"


async def test_a_prompt_that_a_cancelled_answer_wrote_starts_nobody(rig: Any, ask: Ask, hold: Any) -> None:
    request_id = await hold(QWEN, chat("Do it.", "agent"))
    rig.engine.say(request_id, write_call("agent", PROMPT))
    rig.engine.end(request_id, "cancelled")
    await rig.until(lambda: not rig.admission.in_flight)
    assert (await ask(QWEN, chat(PROMPT))).lane == "unknown"


@pytest.mark.parametrize("title_is_first", [True, False])
async def test_opencodes_title_is_auxiliary_before_its_work_and_beside_it(
    rig: Any, hold: Any, title_is_first: bool
) -> None:
    headers = {**OPENCODE, "x-session-id": "S1"}
    asked = [("title", chat("Generate a title.")), ("main", chat("Do it.", "task", "read"))]
    ids = {name: await hold(headers, wire) for name, wire in (asked if title_is_first else reversed(asked))}
    assert [find_row(rig, ids[name]).lane for name in ("main", "title")] == ["parent", "auxiliary"]
    assert rig.engine.requests[ids["title"]].priority > rig.engine.requests[ids["main"]].priority
    await let_go(rig)


async def test_a_side_request_without_tools_is_one_only_beside_another(rig: Any, hold: Any, ask: Ask) -> None:
    headers = {"x-homebase-session": "s"}
    main = await hold(headers, chat("Do it.", "read"))
    side = await hold(headers, chat("Sum it up."))
    assert (find_row(rig, main).lane, find_row(rig, side).lane) == ("parent", "auxiliary")
    await let_go(rig)
    assert (await ask(headers, chat("Sum it up."))).lane == "parent"


async def test_a_child_of_opencode_without_tools_is_no_title(ask: Ask) -> None:
    row = await ask({**OPENCODE, "x-session-id": "S2", "x-parent-session-id": "S1"}, chat("Think about it."))
    assert (row.lane, row.depth) == ("child", 1)


async def test_counting_tokens_and_bad_requests_leave_no_session_busy(rig: Any, ask: Ask) -> None:
    headers = {"x-homebase-session": "s"}
    path, body = messages("How long?", "read")
    assert (await rig.post({"model": "nano", **body}, headers, f"{path}/count_tokens")).status_code == 200
    assert rig.lineage.sessions() == ()
    assert (await rig.post({"model": "nano", **chat("x" * 5000)[1]}, headers)).status_code == 400
    assert (await ask(headers, chat("hi"))).lane == "parent"


@pytest.mark.parametrize(
    ("headers", "wire", "status"),
    [
        ({**CODEX, "thread-id": "T1"}, responses, 400),
        ({**OPENCODE, "x-session-id": "S1"}, chat, 400),
        ({"user-agent": "ai/6.0.326 ai-sdk/openai-compatible/2.0.92 runtime/node.js/22"}, chat, 400),
        (QWEN, chat, 400),
        (CLAUDE, messages, 429),
        (GROK, chat, 429),
        (PI, chat, 429),
        ({"user-agent": "curl/8.5"}, responses, 429),
    ],
    ids=["codex", "opencode", "ai-sdk", "qwen", "claude-code", "grok", "pi", "curl"],
)
@pytest.mark.parametrize("cause", ["full", "draining"])
async def test_a_refusal_has_the_status_that_its_client_does_not_retry(
    rig: Any, hold: Any, headers: Any, wire: Any, status: int, cause: str
) -> None:
    if cause == "full":
        await hold({}, chat("one"))
        await hold({}, chat("two"))
    else:
        rig.admission.drain()
        status = 503 if status == 429 else status
    path, body = wire("Do it.", "read")
    answer = await rig.post({"model": "nano", **body}, headers, path)
    (refused,) = rig.refusals()
    assert (answer.status_code, refused.status) == (status, status)
    assert answer.headers["x-should-retry"] == "false"
    assert ("retry-after" in answer.headers) == (status != 400)
    assert (refused.retry_after_s is not None) == (status != 400)
    if status != 400:
        assert 1 <= int(answer.headers["retry-after"]) <= 60
    else:
        assert b"rate_limit" not in await answer.get_data()
    await let_go(rig)


async def refuse(rig: Any, headers: Mapping[str, str], wire: Wire) -> Refused:
    path, body = wire
    answer = await rig.post({"model": "nano", **body}, headers, path)
    refused = rig.refusals()[-1]
    assert answer.status_code == refused.status
    return refused


async def test_a_refusal_names_the_place_of_who_was_refused(rig: Any) -> None:
    rig.admission.drain()
    headers = {**OPENCODE, "x-session-id": "S3", "x-parent-session-id": "S2"}
    refused = await refuse(rig, headers, chat("Do it.", "read"))
    assert (refused.session, refused.parent_session, refused.depth, refused.lane) == ("S3", "S2", 1, "child")
    assert refused.family == "opencode"
    (session,) = rig.lineage.sessions()
    assert (session.session, session.refused, session.admitted, session.last_outcome) == ("S3", 1, 0, "draining")


async def test_a_table_for_a_client_and_a_number_for_all_go_before_auto(rig: Any) -> None:
    rig.admission.drain()
    assert (await refuse(rig, QWEN, chat("1"))).status == 400
    rig.set_policy(policy__refusal_status=429)
    assert (await refuse(rig, QWEN, chat("2"))).status == 429
    rig.set_policy(policy__refusal_status="auto", policy__refuse_with_400=("curl",))
    assert (await refuse(rig, {"user-agent": "curl/8"}, chat("3"))).status == 400
    rig.set_policy(policy__clients={"qwencode": {"refusal_status": 409}})
    assert (await refuse(rig, QWEN, chat("4"))).status == 409


async def test_while_the_model_loads_any_route_answers_with_the_clients_status(rig: Any) -> None:
    class Loading:
        def __getattr__(self, name: str) -> Any:
            raise build_loading_refusal()

    rig.codec = Loading()
    path, body = messages("How long?")
    for headers, status in ((CODEX, 400), (CLAUDE, 503)):
        assert (await refuse(rig, headers, chat("hi"))).status == status
        counted = await rig.post({"model": "nano", **body}, headers, f"{path}/count_tokens")
        assert (counted.status_code, counted.headers["x-should-retry"]) == (status, "false")
        assert ("retry-after" in counted.headers) == (status == 503)


async def test_a_session_shows_what_it_cost(rig: Any, ask: Ask) -> None:
    headers = {"x-homebase-session": "s"}
    await ask(headers, chat("hello"), "abc")
    await ask(headers, chat("hello again"), "de")
    (session,) = rig.lineage.sessions()
    assert (session.requests, session.admitted, session.in_flight) == (2, 2, 0)
    assert (session.prompt_tokens, session.completion_tokens) == (16, 7)
    assert session.last_outcome == "stop"
