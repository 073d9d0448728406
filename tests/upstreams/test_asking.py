from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import InvalidRequest
from server.upstreams.asking import read_asking, rename_model

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=8), PLAIN, max_size=6), st.text(), st.text(), st.booleans(), st.integers(0, 4))
def test_renaming_changes_the_outermost_model_and_no_other_byte(
    others: dict[str, Any], old: str, new: str, plain: bool, indent: int
) -> None:
    document = {**others, "model": old, "metadata": {"model": "kept"}, "list": [{"model": "kept"}]}
    body = json.dumps(document, ensure_ascii=plain, indent=indent or None).encode("utf-8", "surrogatepass")
    renamed = rename_model(body, new)
    assert json.loads(renamed) == {**document, "model": new}
    spelled = json.dumps(old, ensure_ascii=plain).encode("utf-8", "surrogatepass")
    assert len(renamed) - len(body) == len(json.dumps(new, ensure_ascii=False).encode()) - len(spelled)


def test_every_model_is_renamed_where_the_name_is_there_twice_or_written_with_escapes() -> None:
    body = b'{"model":"a","\\u006dodel" : "b", "x":{"model":"a"}}'
    assert rename_model(body, "c") == b'{"model":"c","\\u006dodel" : "c", "x":{"model":"a"}}'


def test_where_there_is_no_model_nothing_can_be_renamed() -> None:
    for body in (b"{}", b'{"x": {"model": "a"}}', b'{"model": null}'):
        with pytest.raises(InvalidRequest):
            rename_model(body, "c")


@pytest.mark.parametrize(
    ("fields", "system", "user"),
    [
        ({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]}, "S", "U"),
        ({"messages": [{"role": "developer", "content": [{"type": "text", "text": "S"}]}]}, "S", ""),
        ({"system": "S", "messages": [{"role": "user", "content": [{"text": "U"}, {"text": "V"}]}]}, "S", "UV"),
        ({"system": [{"type": "text", "text": "S"}], "messages": [{"role": "user", "content": "U"}]}, "S", "U"),
        ({"instructions": "S", "input": "U"}, "S", "U"),
        ({"input": [{"type": "message", "role": "user", "content": [{"text": "U"}]}, {"type": "x"}]}, "", "U"),
        ({"prompt": "U"}, "", '"U"'),
        ({"messages": [3, {"role": 4}, {"role": "user", "content": {"odd": 1}}]}, "", ""),
    ],
)
def test_how_a_conversation_begins_is_read_in_every_dialect(fields: dict[str, Any], system: str, user: str) -> None:
    asking = read_asking(json.dumps({"model": "m", **fields}).encode())
    assert asking is not None
    assert (asking.system_text, asking.first_user_text) == (system, user)


def test_what_is_asked_for() -> None:
    asking = read_asking(b'{"model":"m","stream":true,"max_completion_tokens":7,"max_tokens":9,"tools":[{"a":1}]}')
    assert asking is not None
    assert (asking.model, asking.is_streaming, asking.max_tokens, asking.has_tools) == ("m", True, 7, True)
    asking = read_asking(b'{"tools": []}')
    assert asking is not None
    assert (asking.model, asking.is_streaming, asking.max_tokens, asking.has_tools) == (None, False, None, False)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b'{"model": 3}', b'{"stream": "yes"}', b"\xff", b'{"max_tokens": "9"}']
)
def test_what_cannot_be_read_is_left_to_others(body: bytes) -> None:
    assert read_asking(body) is None


def test_a_prompt_is_estimated_by_its_characters_and_pictures_are_no_text() -> None:
    def count(text: str) -> int:
        asking = read_asking(json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
        assert asking is not None
        return asking.prompt_tokens

    empty = count("")
    assert count("word " * 800) == pytest.approx(empty + 1000, abs=1)
    assert count("data:image/png;base64," + "QUJD" * 100_000) < 50
