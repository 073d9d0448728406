from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import server.text.chat_template as template_module
from server.errors import InvalidRequest
from server.text.chat_template import closes_thought, opens_thought
from server.text.markup import Markers
from server.text.tokenizer import TextCodec, load_text_codec
from server.text.tools import Tool

NANO = Path(template_module.__file__).parents[1] / "models" / "nano"
USER = {"role": "user", "content": "hi"}
THINK = Markers("<think>", "</think>")


def build_tool(name: str, **properties: Any) -> Tool:
    parameters = {"type": "object", "properties": properties}
    definition = {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}
    return Tool(name, parameters, definition)


READ = build_tool("read_file", path={"type": "string"})


@pytest.fixture(scope="module")
def nano() -> TextCodec:
    return load_text_codec(NANO)


def load_with(folder: Path, template: str, **config: Any) -> TextCodec:
    """Nano's tokenizer with another template."""
    for name in ("tokenizer.json", "config.json", "generation_config.json"):
        shutil.copy(NANO / name, folder / name)
    changed = json.loads((NANO / "tokenizer_config.json").read_text()) | {"chat_template": template} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(changed))
    return load_text_codec(folder)


def render(codec: TextCodec, *messages: dict[str, Any], tools: tuple[Tool, ...] = (), **kwargs: Any) -> str:
    prompt = codec.encode_chat(messages or [USER], tools=tools, template_kwargs=kwargs)
    return codec.decode(prompt.token_ids)


def test_tools_are_shown_to_the_model_as_they_were_defined(nano: TextCodec) -> None:
    text = render(nano, USER, tools=(READ, build_tool("other")))
    assert json.dumps(READ.definition) in text
    assert text.index("read_file") < text.index('"other"') < text.index("hi")


def test_a_call_and_its_answer_are_rendered_in_the_models_own_form(nano: TextCodec) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "read_file", "arguments": {"path": "a.py", "n": 3}}}
    asked = {"role": "assistant", "content": "Reading.", "tool_calls": [call]}
    text = render(nano, USER, asked, {"role": "tool", "content": "x = 1", "tool_call_id": "c"}, tools=(READ,))
    assert "<function=read_file>\n<parameter=path>\na.py\n</parameter>\n<parameter=n>\n3\n</parameter>" in text
    assert "<tool_response>\nx = 1\n</tool_response>" in text


@pytest.mark.parametrize("content", ["hi", "read_file"])
def test_a_template_that_shows_no_tools_refuses_them(tmp_path: Path, content: str) -> None:
    codec = load_with(tmp_path, "{% for m in messages %}{{ m.content }}{% endfor %}")
    assert render(codec) == "hi"
    with pytest.raises(InvalidRequest, match="does not show tools") as told:
        render(codec, {"role": "user", "content": content}, tools=(READ,))
    assert told.value.param == "tools"


def test_a_template_that_takes_no_trial_message_is_believed_to_show_tools(tmp_path: Path) -> None:
    template = "{% if messages|length < 2 %}{{ raise_exception('two') }}{% endif %}{{ tools }}"
    assert "read_file" in render(load_with(tmp_path, template), USER, USER, tools=(READ,))


def test_thinking_is_as_the_template_has_it_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    template = "{{ 'unset' if enable_thinking is not defined else enable_thinking }}"
    codec = load_with(tmp_path, template)
    assert render(codec) == "unset"
    assert render(codec, enable_thinking=False) == "False"
    assert render(codec, enable_thinking=True) == "True"


def test_switches_reach_the_template(nano: TextCodec) -> None:
    thought = {"role": "assistant", "content": "yes", "reasoning_content": "because"}
    assert "because" in render(nano, USER, thought, USER)
    assert "because" not in render(nano, USER, thought, USER, preserve_thinking=False)
    assert render(nano, reasoning_effort="low").endswith("<think>\n")
    assert render(nano, enable_thinking=True).endswith("<think>\n")
    assert render(nano, reasoning_effort="low", enable_thinking=False).endswith("</think>\n\n")
    assert render(nano).endswith("</think>\n\n")


@pytest.mark.parametrize(
    "name",
    [
        "messages", "conversation", "tools", "documents", "chat_template", "tokenize", "add_generation_prompt",
        "continue_final_message", "return_dict", "return_tensors", "truncation", "max_length", "padding",
        "tokenizer_kwargs", "sanitize_control_tokens", "eos_token", "self", "raise_exception",
    ],
)  # fmt: skip
def test_names_that_the_server_sets_itself_are_refused_by_name(nano: TextCodec, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}', which this server sets itself") as told:
        nano.encode_chat([USER], template_kwargs={name: "x"})
    assert told.value.param == f"chat_template_kwargs.{name}"


@pytest.mark.parametrize("value", [None, {"a": [1]}, [[]], "x" * 10_000, -1, float("inf")])
def test_any_value_of_any_other_name_breaks_nothing(nano: TextCodec, value: Any) -> None:
    assert "hi" in render(nano, reasoning_effort=value, preserve_thinking=value, something=value)


def test_a_prompt_says_whether_it_ends_inside_a_thought(nano: TextCodec) -> None:
    assert nano.encode_chat([USER], template_kwargs=nano.plan_thinking("low")).opens_thought
    assert not nano.encode_chat([USER], template_kwargs=nano.plan_thinking("none")).opens_thought
    assert not nano.encode_chat([USER]).opens_thought


@pytest.mark.parametrize("content", ["what is <think>?", "<think>", "</think><think>\n"])
def test_what_a_message_says_of_thoughts_opens_none(tmp_path: Path, nano: TextCodec, content: str) -> None:
    message = {"role": "user", "content": content}
    bare = load_with(tmp_path, "{% for m in messages %}<|im_start|>{{ m.content }}\n{% endfor %}"
                     "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")  # fmt: skip
    assert not nano.encode_chat([message]).opens_thought
    assert not bare.encode_chat([message]).opens_thought
    closed = {"role": "user", "content": "</think>"}
    assert nano.encode_chat([closed], template_kwargs=nano.plan_thinking("high")).opens_thought


@pytest.mark.parametrize(
    ("prompt", "turn", "opens"),
    [
        ("<s>user hi<s>assistant<think>\n", "<s>", True),
        ("<s>user hi<s>assistant<think>\nFirst, ", "<s>", True),
        ("<s>user hi<s>assistant<think></think>\n<think>", "<s>", True),
        ("<s>user <think><s>assistant", "<s>", False),
        ("user hi assistant <think>\n\n", "", True),
        ("user <think> hi assistant", "", False),
        ("<think>", "<s>", True),
        ("", "", False),
    ],
)
def test_only_the_last_turn_opens_a_thought(prompt: str, turn: str, opens: bool) -> None:
    assert opens_thought(prompt, THINK, turn) is opens
    assert not opens_thought(prompt, None, turn)


@pytest.mark.parametrize(
    ("prompt", "closes"),
    [
        ("<s>assistant<think>\n\n</think>\n\n", True),
        ("<s>assistant<think>\n", False),
        ("<s>user </think><s>assistant", False),
        ("", False),
    ],
)
def test_a_thought_that_is_over_at_the_very_end_is_closed(prompt: str, closes: bool) -> None:
    assert closes_thought(prompt, THINK) is closes
    assert not closes_thought(prompt, None)
