"""Answers read in any pieces, what their parts say together; grammars and guides with nano's vocabulary."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from llguidance import LLMatcher, LLTokenizer
from mlx_lm.tool_parsers import json_tools, qwen3_coder
from tokenizers import Tokenizer

import server.text.tokenizer as tokenizer_module
from server.text.answer import AnswerReader
from server.text.grammar import Grammar
from server.text.guide import GuideBuilder
from server.text.markup import Markers, Markup
from server.text.parts import CallBegun, CallDelta, CallEnded, Part, TextDelta, ThoughtDelta
from server.text.tools import Tool

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"
THINK = Markers("<think>", "</think>")
CALL = Markers("<tool_call>", "</tool_call>")
XML = Markup(THINK, CALL, "qwen_xml", qwen3_coder.parse_tool_call)
JSON = Markup(THINK, CALL, "json", json_tools.parse_tool_call)

Accepts = Callable[[Grammar, str], bool]


class ReadCall(msgspec.Struct):
    """One call as a client puts it together."""

    id: str
    name: str
    arguments: str = ""
    is_ended: bool = False

    @property
    def values(self) -> Any:
        return json.loads(self.arguments)


class ReadAnswer(msgspec.Struct):
    """An answer as a client puts it together."""

    thought: str = ""
    text: str = ""
    calls: list[ReadCall] = []
    order: list[str] = []
    """The kinds of parts in their order, repeats left out."""

    def add(self, part: Part) -> None:
        match part:
            case ThoughtDelta():
                self.thought += part.text
            case TextDelta():
                self.text += part.text
            case CallBegun():
                assert part.index == len(self.calls)
                self.calls.append(ReadCall(part.id, part.name))
            case CallDelta():
                assert not self.calls[part.index].is_ended
                self.calls[part.index].arguments += part.arguments
            case CallEnded():
                self.calls[part.index].is_ended = True
        kind = type(part).__name__
        if self.order[-1:] != [kind]:
            self.order.append(kind)


def build_tool(name: str, parameters: dict[str, Any] | None = None, **properties: Any) -> Tool:
    """A tool by the schemas of its parameters."""
    schema = parameters or {"type": "object", "properties": properties}
    return Tool(name, schema, {"type": "function", "function": {"name": name, "parameters": schema}})


TOOLS = (
    build_tool("write", path={"type": "string"}, text={"type": "string"}, lines={"type": "integer"}),
    build_tool("look", note={"anyOf": [{"type": "string"}, {"type": "null"}]}, all={"type": "boolean"}),
)


def cut(text: str, at: Sequence[int] | int | None) -> list[str]:
    """The pieces of a text: of one size, between given places, or the whole."""
    if at is None:
        return [text]
    places = list(range(at, len(text), at)) if isinstance(at, int) else sorted(at)
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def read_answer(
    text: str,
    at: Sequence[int] | int | None = None,
    *,
    markup: Markup = XML,
    tools: Sequence[Tool] = TOOLS,
    opens_thought: bool = False,
    was_cut: bool = False,
) -> ReadAnswer:
    """Read a whole answer in the pieces that `at` makes, and check where its text is said to stand."""
    numbers = count()
    reader = AnswerReader(markup, tools, opens_thought=opens_thought, build_id=lambda: f"call_{next(numbers)}")
    answer, came = ReadAnswer(), ""
    for piece in [*cut(text, at), None]:
        came += piece or ""
        for part in reader.feed(piece) if piece is not None else reader.finish(cut=was_cut):
            answer.add(part)
            if isinstance(part, TextDelta):
                assert part.text
                assert came[part.start : part.start + len(part.text)] == part.text
    assert reader.calls_begun == len(answer.calls)
    return answer


@pytest.fixture(scope="session")
def read() -> Callable[..., ReadAnswer]:
    return read_answer


@pytest.fixture(scope="session")
def tool() -> Callable[..., Tool]:
    return build_tool


@pytest.fixture(scope="session")
def json_markup() -> Markup:
    return JSON


@pytest.fixture(scope="session")
def accepts() -> Accepts:
    """Whether a text is one of a grammar's, whole; names of special tokens in it stand for those."""
    vocabulary = LLTokenizer((NANO / "tokenizer.json").read_text(), n_vocab=3072, eos_token=[2, 0])

    def check(grammar: Grammar, text: str) -> bool:
        matcher = LLMatcher(vocabulary, grammar.text, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = vocabulary.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()

    return check


@pytest.fixture(scope="session")
def backend() -> Tokenizer:
    """Nano's."""
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.fixture(scope="session")
def builder(backend: Tokenizer) -> GuideBuilder:
    """For nano."""
    return GuideBuilder(backend, 3072, frozenset({0, 2}))
