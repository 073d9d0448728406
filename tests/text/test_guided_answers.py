"""Grammars, guides and the engine together, on the embedded model: what comes out is what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mlx_lm.tool_parsers import qwen3_coder
from msgspec.structs import replace

import server.text.tokenizer as tokenizer_module
from server.engine.request import EngineRequest, Sampling
from server.engine.step import StepRunner
from server.events import EngineEvent, PrefillAdvanced, SequenceEnded, TokensEmitted
from server.models.cache import ServedModel
from server.models.loader import load_model
from server.policy import EnginePolicy
from server.text.call_grammar import CallMarkers, build_call_grammar
from server.text.grammar import Grammar, build_schema_grammar
from server.text.guide import GuideBuilder, Thought
from server.text.tokenizer import TextCodec, load_text_codec
from server.text.tools import Tool

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"
CALL, END_CALL, END_THINK = 5, 6, 4
MARKERS = CallMarkers("<tool_call>", "</tool_call>", CALL, END_CALL)
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=1.0, top_p=0.95, seed=11),
    "wild": Sampling(temperature=2.0, seed=5, frequency_penalty=0.5, logit_bias=((14, 20.0), (100, -50.0))),
}

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["module", "function", "class"]},
        "lines": {"type": "integer", "minimum": 1, "maximum": 500},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "is_new": {"type": "boolean"},
    },
    "required": ["kind", "lines", "tags", "is_new"],
    "additionalProperties": False,
}


def build_tool(name: str, parameters: dict[str, Any]) -> Tool:
    definition = {"type": "function", "function": {"name": name, "parameters": parameters}}
    return Tool(name, parameters, definition)


TOOLS = [
    build_tool(
        "edit",
        {
            "type": "object",
            "properties": {
                "path": {"enum": ["a.py", "b.py"]},
                "line": {"type": "integer"},
                "share": {"type": "number"},
                "force": {"type": "boolean"},
                "marks": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 3},
            },
            "required": ["path", "line"],
        },
    ),
    build_tool("stop", {}),
]


@pytest.fixture(scope="module")
def nano() -> ServedModel:
    return load_model("nano", "float32")


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(NANO)


@pytest.fixture(scope="module")
def builder(codec: TextCodec) -> GuideBuilder:
    return GuideBuilder(codec._backend, codec.vocab_size, codec.stop_ids)


class Asker:
    """Requests with guides of their own, as often as wanted."""

    def __init__(self, codec: TextCodec, builder: GuideBuilder) -> None:
        self._codec, self._builder = codec, builder

    def ask(
        self, name: str, grammar: Grammar | None, sampling: Sampling, thought: Thought | None = None, tokens: int = 120
    ) -> EngineRequest:
        prompt = self._codec.encode_chat([{"role": "user", "content": f"Write {name} as it was asked for."}])
        guide = self._builder.build(grammar, thought)
        return EngineRequest(name, prompt.token_ids, tokens, sampling, self._codec.stop_ids, guide=guide)


@pytest.fixture
def asker(codec: TextCodec, builder: GuideBuilder) -> Asker:
    return Asker(codec, builder)


def run(runner: StepRunner, mtp: object, *requests: EngineRequest) -> list[EngineEvent]:
    events = [event for request in requests for event in runner.add(request)]
    while not runner.idle:
        events += runner.run_step(EnginePolicy(prefill_chunk_tokens=64, mtp=mtp))  # type: ignore[arg-type]
    return events


def read_tokens(events: list[EngineEvent], name: str) -> list[int]:
    return [
        t for event in events if isinstance(event, TokensEmitted) and event.request_id == name for t in event.token_ids
    ]


def read_end(events: list[EngineEvent], name: str) -> str:
    (end,) = (event for event in events if isinstance(event, SequenceEnded) and event.request_id == name)
    assert end.error is None
    return end.outcome


def spell(codec: TextCodec, ids: list[int]) -> str:
    return b"".join(codec.spell(token) for token in ids if token not in codec.stop_ids).decode()


def check_point(text: str) -> None:
    value = json.loads(text)
    assert list(value) == ["kind", "lines", "tags", "is_new"]
    assert value["kind"] in ("module", "function", "class")
    assert type(value["lines"]) is int
    assert 1 <= value["lines"] <= 500
    assert len(value["tags"]) <= 3
    assert all(isinstance(tag, str) and len(tag) <= 12 for tag in value["tags"])
    assert isinstance(value["is_new"], bool)


def split_calls(text: str) -> Iterator[dict[str, Any]]:
    first, *calls = text.split("<tool_call>")
    assert not first.strip()
    for call in calls:
        inner, after = call.split("</tool_call>")
        assert not after.strip()
        yield qwen3_coder.parse_tool_call(inner.strip(), [tool.definition for tool in TOOLS])


def check_calls(text: str) -> None:
    for call in split_calls(text):
        arguments = call["arguments"]
        assert call["name"] in ("edit", "stop")
        assert arguments == {} if call["name"] == "stop" else arguments["path"] in ("a.py", "b.py")
        if call["name"] == "edit":
            assert type(arguments["line"]) is int
            assert isinstance(arguments.get("share", 0), int | float)
            assert isinstance(arguments.get("force", True), bool)
            assert all(0 <= mark < 100 for mark in arguments.get("marks", []))


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS.keys())
def test_answers_keep_their_form_and_are_the_same_at_every_depth(
    nano: ServedModel, codec: TextCodec, asker: Asker, sampling: Sampling
) -> None:
    point = build_schema_grammar(SCHEMA, "response_format")
    calls = build_call_grammar(TOOLS, "qwen_xml", MARKERS, "tools", parallel=False)
    thought = Thought((END_THINK,), budget_tokens=9)

    def ask() -> list[EngineRequest]:
        return [
            asker.ask("a value", point, sampling),
            asker.ask("a call", calls, sampling),
            asker.ask("a thought", point, sampling, thought),
            asker.ask("free text", None, sampling, tokens=30),
        ]

    plain: dict[str, list[int]] = {}
    for request in ask():
        events = run(StepRunner(nano), "off", request)
        plain[request.id] = read_tokens(events, request.id)
        is_whole = read_end(events, request.id) == "stop"
        text = spell(codec, plain[request.id])
        if request.id == "a call" and is_whole:
            check_calls(text)
            assert text.strip().startswith("<tool_call>")
        elif request.id != "free text" and is_whole:
            if request.guide is not None and request.id == "a thought":
                thinking, _, text = text.partition("</think>")
                assert len(codec._encode(thinking)) <= 12
            check_point(text)
        elif request.guide is not None:
            assert len(plain[request.id]) == request.max_tokens
    for mtp in (1, 2, 3):
        events = run(StepRunner(nano), mtp, *ask())
        assert {name: read_tokens(events, name) for name in plain} == plain
    (alone, *_) = ask()
    assert read_tokens(run(StepRunner(nano), 3, alone), alone.id) == plain[alone.id]


def test_most_answers_come_to_their_end(nano: ServedModel, codec: TextCodec, asker: Asker) -> None:
    """Or the checks above would have nothing to check."""
    point = build_schema_grammar(SCHEMA, "response_format")
    calls = build_call_grammar(TOOLS, "qwen_xml", MARKERS, "tools", parallel=False)
    whole = 0
    for seed in range(4):
        sampling = Sampling(temperature=1.3, seed=seed)
        requests = [asker.ask(f"p{seed}", point, sampling), asker.ask(f"c{seed}", calls, sampling)]
        events = run(StepRunner(nano), 2, *requests)
        for request, check in zip(requests, (check_point, check_calls), strict=True):
            if read_end(events, request.id) == "stop":
                whole += 1
                check(spell(codec, read_tokens(events, request.id)))
    assert whole >= 5


def test_a_second_turn_from_the_prefix_cache_is_the_same(nano: ServedModel, asker: Asker) -> None:
    point = build_schema_grammar(SCHEMA, "response_format")
    runner, sampling = StepRunner(nano), SAMPLINGS["sampled"]
    first = asker.ask("a value " * 60, point, sampling)
    second, third = (replace(first, id=name, guide=asker.ask("x", point, sampling).guide) for name in ("2", "3"))
    plain = read_tokens(run(StepRunner(nano), "off", first), first.id)
    assert read_tokens(run(runner, 3, second), "2") == plain
    events = run(runner, 3, third)
    assert any(isinstance(event, PrefillAdvanced) and event.cached_tokens for event in events)
    assert read_tokens(events, "3") == plain
