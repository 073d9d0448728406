"""The official Python client against the application behind the real server, and against scripted parts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import openai
import pytest
from openai.types.responses import Response
from pydantic import BaseModel

from server.api.generation.asked import Asked, Caller, ChatPrompt
from server.api.generation.reply import Reply
from server.api.generation.transcript import Piece
from server.api.responses.answer import ResponsesAnswer
from server.api.responses.asking import build_asked
from server.api.responses.items import Item
from server.api.responses.output import Output
from server.api.responses.resource import Resource
from server.api.responses.wire import decode_responses
from server.text.answer import AnswerReader
from server.text.detokenizer import ByteDetokenizer
from server.text.markup import NO_MARKUP
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta

CALLER = Caller("req-1", {}, "", "")


class Weather(BaseModel):
    city: str
    degrees: int


LOOK: Any = {
    "type": "function",
    "name": "look",
    "description": "Looks at the sky.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}


@pytest.fixture
async def client(port: int) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
        yield client


class Scripted:
    """Answers each request with the next list of parts, and keeps what was asked."""

    def __init__(self, *answers: Sequence[Part]) -> None:
        self._answers = list(answers)
        self.asked: list[Asked] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body = decode_responses(request.content)
        given = [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
        items = [Item(f"input[{index}]", item) for index, item in enumerate(given)]
        asked, toolbox = build_asked(CALLER, len(request.content), body, items)
        self.asked.append(asked)
        resource = Resource(f"resp_{len(self.asked)}", "org/nano", 5, body, toolbox)
        answer = ResponsesAnswer(resource, Output(str(len(self.asked)), toolbox), lambda *_: None)
        return self._write(answer, [Piece(delta) for delta in self._answers.pop(0)], streaming=body.is_streaming)

    @staticmethod
    def _write(answer: ResponsesAnswer, pieces: list[Piece], *, streaming: bool) -> httpx.Response:
        reply = Reply(ByteDetokenizer([], frozenset()), AnswerReader(NO_MARKUP), 3)
        reply.finish_reason = "stop"
        if streaming:
            data = answer.begin() + answer.add(pieces) + answer.keep_alive() + answer.end(reply)
            return httpx.Response(200, content=data, headers={"content-type": "text/event-stream"})
        answer.keep(pieces)
        return httpx.Response(200, content=answer.build_whole(reply), headers={"content-type": "application/json"})

    @property
    def client(self) -> openai.AsyncOpenAI:
        http: Any = httpx.AsyncClient(transport=httpx.MockTransport(self))
        return openai.AsyncOpenAI(base_url="http://test/v1", api_key="none", http_client=http)


CALL: list[Part] = [
    ThoughtDelta("Hm."),
    TextDelta("I look.", 3),
    CallBegun(0, "call_a", "look"),
    CallDelta(0, '{"city": "Wien"}'),
    CallEnded(0),
]


async def test_it_creates(rig: Any, client: openai.AsyncOpenAI, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    response = await client.responses.create(model="nano", input="hi", instructions="Be brief.")
    assert response.output_text == "Hello wörld"
    assert response.status == "completed"
    assert response.usage is not None
    assert response.usage.input_tokens == len("Be brief.hi")
    Response.model_validate(response.model_dump())


async def test_it_streams_and_the_last_event_is_the_whole(rig: Any, client: openai.AsyncOpenAI, speak: Any) -> None:
    rig.engine.script = speak("Hello ", "wörld")
    async with client.responses.stream(model="nano", input="hi") as stream:
        events = [event async for event in stream]
        final = await stream.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "Hello wörld"
    assert final.output_text == "Hello wörld"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_conversation_is_kept_and_forgotten(rig: Any, client: openai.AsyncOpenAI, speak: Any) -> None:
    rig.engine.script = speak("one")
    first = await client.responses.create(model="nano", input="a")
    second = await client.responses.create(model="nano", input="b", previous_response_id=first.id)
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["a", "one", "b"]
    assert (await client.responses.retrieve(second.id)).output_text == "one"
    items = [item async for item in client.responses.input_items.list(second.id)]
    assert [item.type for item in items] == ["message"]
    with pytest.raises(openai.BadRequestError, match="over"):
        await client.responses.cancel(second.id)
    await client.responses.delete(second.id)
    with pytest.raises(openai.NotFoundError, match=second.id):
        await client.responses.retrieve(second.id)
    with pytest.raises(openai.BadRequestError) as caught:
        await client.responses.create(model="nano", input="c", previous_response_id=second.id)
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


async def test_what_it_was_given_can_be_sent_back(rig: Any, client: openai.AsyncOpenAI, speak: Any) -> None:
    rig.engine.script = speak("one")
    first = await client.responses.create(model="nano", input="a", store=False)
    history: Any = [{"role": "user", "content": "a"}, *first.output, {"role": "user", "content": "b"}]
    await client.responses.create(model="nano", input=history, store=False)
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["a", "one", "b"]


async def test_a_stream_is_cancelled_by_its_id(rig: Any, client: openai.AsyncOpenAI) -> None:
    stream = await client.responses.create(model="nano", input="hi", stream=True)
    kinds: list[str] = []
    async for event in stream:
        kinds.append(event.type)
        if event.type == "response.created":
            rig.engine.say(rig.engine.only, "Half")
        if event.type == "response.output_text.delta":
            response_id = f"resp_{rig.engine.only.removeprefix('req-')}"
            assert (await client.responses.cancel(response_id)).status == "cancelled"
    assert kinds[-1] == "response.failed"
    await rig.until(lambda: rig.admission.in_flight == 0)


async def test_a_failure_midway_ends_the_stream_once(rig: Any, client: openai.AsyncOpenAI) -> None:
    def break_down(engine: Any, request: Any) -> None:
        engine.say(request.id, "ab")
        engine.end(request.id, "failed", "Its scores are not numbers.")

    rig.engine.script = break_down
    events = [event async for event in await client.responses.create(model="nano", input="hi", stream=True)]
    last = events[-1]
    assert last.type == "response.failed"
    assert last.response.error is not None
    assert "not numbers" in last.response.error.message
    assert len(rig.engine.requests) == 1


async def test_faults_have_the_clients_own_classes(rig: Any, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="available: 'org/nano'"):
        await client.responses.create(model="gpt-4o", input="hi")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await client.responses.create(model="nano", input="hi", temperature=9)
    rig.set_policy(policy__max_in_flight=1)
    held = await client.responses.create(model="nano", input="hi", stream=True)
    with pytest.raises(openai.RateLimitError, match="1 of 1 in flight"):
        await client.responses.create(model="nano", input="hi")
    assert len(rig.refusals()) == 1, "the client came back by itself"
    await held.close()
    await rig.until(lambda: rig.admission.in_flight == 0)


async def test_a_tool_is_called_and_its_result_is_sent_back() -> None:
    script = Scripted(CALL, [TextDelta("Sunny.", 0)])
    async with script.client as client:
        first = await client.responses.create(model="nano", input="Wien?", tools=[LOOK])
        (call,) = [item for item in first.output if item.type == "function_call"]
        assert (call.name, call.arguments, call.call_id) == ("look", '{"city": "Wien"}', "call_a")
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
        history: Any = [{"role": "user", "content": "Wien?"}, *first.output, result]
        second = await client.responses.create(model="nano", input=history, tools=[LOOK])
    assert second.output_text == "Sunny."
    prompt = script.asked[-1].prompt
    assert isinstance(prompt, ChatPrompt)
    assert prompt.turns[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "Hm.",
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "look", "arguments": {"city": "Wien"}}}
            ],
        },
        {"role": "tool", "content": "sunny", "tool_call_id": "call_a"},
    ]


async def test_thoughts_text_and_calls_are_streamed() -> None:
    async with (
        Scripted(CALL).client as client,
        client.responses.stream(model="nano", input="?", tools=[LOOK]) as stream,
    ):
        events = [event async for event in stream]
        final = await stream.get_final_response()
    thoughts = [event.delta for event in events if event.type == "response.reasoning_summary_text.delta"]
    arguments = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
    assert (thoughts, arguments) == (["Hm."], ['{"city": "Wien"}'])
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]


async def test_a_schema_is_asked_for_and_read_back() -> None:
    script = Scripted([TextDelta('{"city": "Wien", "degrees": 31}', 0)])
    async with script.client as client:
        response = await client.responses.parse(model="nano", input="?", text_format=Weather)
    assert response.output_parsed == Weather(city="Wien", degrees=31)
    form = script.asked[0].format
    assert (form.kind, form.param) == ("json_schema", "text.format.schema")
    assert isinstance(form.schema, dict)
    assert set(form.schema["properties"]) == {"city", "degrees"}
