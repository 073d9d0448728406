from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import server.text.markers as markers_module
from server.text.markup import Markers, Markup
from server.text.tokenizer import TextCodec, load_text_codec

NANO = Path(markers_module.__file__).parents[1] / "models" / "nano"
JSON_TEMPLATE = "<tool_call>{{ tool_call.name }}"


def load(folder: Path, template: str, tokens: dict[str, bool] | None = None, drop: tuple[str, ...] = ()) -> TextCodec:
    """Nano's tokenizer with another template, added tokens (special or not), and some under other names."""
    for name in ("config.json", "generation_config.json"):
        shutil.copy(NANO / name, folder / name)
    config = json.loads((NANO / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    document: dict[str, Any] = json.loads((NANO / "tokenizer.json").read_text())
    for entry in document["added_tokens"]:
        if entry["content"] in drop:
            name = f"<|no{entry['id']}|>"
            document["model"]["vocab"][name] = document["model"]["vocab"].pop(entry["content"])
            entry["content"] = name
    first = max(document["model"]["vocab"].values()) + 1
    for index, (content, special) in enumerate((tokens or {}).items()):
        entry = dict(document["added_tokens"][0])
        document["added_tokens"].append(entry | {"id": first + index, "content": content, "special": special})
    (folder / "tokenizer.json").write_text(json.dumps(document))
    return load_text_codec(folder)


def show(codec: TextCodec, text: str) -> str:
    detokenizer = codec.build_detokenizer()
    return "".join(map(detokenizer.add, codec._encode(text))) + detokenizer.finish()


def test_nano_marks_thoughts_and_calls_as_qwen_does() -> None:
    markup = load_text_codec(NANO).markup
    assert (markup.think, markup.call) == (Markers("<think>", "</think>"), Markers("<tool_call>", "</tool_call>"))
    assert markup.tool_form == "qwen_xml"


def test_calls_in_json_are_told_by_the_template(tmp_path: Path) -> None:
    markup = load(tmp_path, JSON_TEMPLATE).markup
    assert markup.tool_form == "json"
    assert markup.parse_call is not None
    assert markup.parse_call('{"name": "f", "arguments": {}}', ()) == {"name": "f", "arguments": {}}


def test_a_model_without_any_markup_has_none_and_hides_what_is_special(tmp_path: Path) -> None:
    codec = load(tmp_path, "{{ messages[0].content }}", drop=("<think>",))
    assert codec.markup == Markup()
    assert show(codec, "a</think>b<tool_call>c") == "abc"


def test_a_model_that_thinks_and_calls_nothing_shows_thoughts_only(tmp_path: Path) -> None:
    codec = load(tmp_path, "{{ messages[0].content }}")
    assert codec.markup == Markup(Markers("<think>", "</think>"))
    assert show(codec, "<think>a</think>b<tool_call>c") == "<think>a</think>bc"


def test_a_form_that_only_mlx_lm_knows_keeps_the_special_tokens_inside_its_calls(tmp_path: Path) -> None:
    tokens = {"<|tool_call>": True, "<tool_call|>": True, '<|"|>': True}
    codec = load(tmp_path, "<|tool_call> <tool_call|>", tokens)
    assert codec.markup.tool_form == "other"
    assert show(codec, '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|><|endoftext|><|im_end|>') == (
        '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
    )


@pytest.mark.parametrize("template", ["[TOOL_CALLS]", "<minimax:tool_call>", "<|tool_calls_section_begin|>"])
def test_other_families_have_markers_and_a_parser(tmp_path: Path, template: str) -> None:
    markup = load(tmp_path, template).markup
    assert markup.tool_form == "other"
    assert markup.call is not None
    assert markup.call.start == template
    assert markup.parse_call is not None
