"""What an answer is held to, on nano's own tokenizer and template."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import server.text.tokenizer as tokenizer_module
from server.api.generation.asked import Asked, Caller, ChatPrompt, ToolRule
from server.api.generation.prompt import build_guide, encode_prompt
from server.api.generation.sampling import SamplingFields
from server.api.generation.thinking import Thinking
from server.engine.guide import allows
from server.text.tokenizer import TextCodec, load_text_codec
from server.text.tools import Tool

NANO = Path(tokenizer_module.__file__).parents[1] / "models" / "nano"
CALL, THINK = 5, 3


@pytest.fixture(scope="module")
def codec() -> TextCodec:
    return load_text_codec(NANO)


def build_first_row(codec: TextCodec, thinking: Thinking, rule: ToolRule) -> Any:
    """What the guide says of the answer's first token; None for anything."""
    schema: Any = {"type": "object", "properties": {}}
    tool = Tool("look", schema, {"type": "function", "function": {"name": "look", "parameters": schema}})
    prompt = ChatPrompt([{"role": "user", "content": "hi"}], (tool,), thinking)
    caller = Caller("req-1", {}, "", "")
    asked = Asked(caller=caller, body_bytes=1, model=None, prompt=prompt, sampling=SamplingFields(), tool_rule=rule)
    guide = build_guide(asked, codec, encode_prompt(asked, codec, None))
    return None if guide is None else guide.look(())[0]


def test_a_call_that_must_come_is_not_put_off_by_a_thought_that_the_prompt_has_closed(codec: TextCodec) -> None:
    row = build_first_row(codec, Thinking(), ToolRule("required"))
    assert allows(row, CALL)
    assert not allows(row, THINK)


def test_a_thought_that_the_prompt_has_opened_goes_before_the_call(codec: TextCodec) -> None:
    row = build_first_row(codec, Thinking(effort="low"), ToolRule("required"))
    assert allows(row, 100)


def test_an_answer_that_owes_no_form_is_free(codec: TextCodec) -> None:
    assert build_first_row(codec, Thinking(), ToolRule("auto")) is None
