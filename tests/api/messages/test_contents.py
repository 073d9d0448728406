from __future__ import annotations

from typing import Any

import msgspec
import pytest

from server.api.messages.contents import read_result, read_text
from server.api.messages.wire import Block
from server.errors import InvalidRequest


def read(**fields: Any) -> str | None:
    return read_text(msgspec.convert(fields, Block), "here")


@pytest.mark.parametrize(
    ("block", "text"),
    [
        ({"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}, "citations": []}, "a"),
        (
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "d"}},
            "T\nd",
        ),
        ({"type": "document", "source": {"type": "content", "content": "d"}}, "d"),
        (
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": t} for t in "ab"]}},
            "a\nb",
        ),
        ({"type": "document", "source": {"type": "content", "content": [{"type": "image", "source": {}}]}}, None),
        ({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "x"}}, None),
        ({"type": "document", "source": {"type": "url", "url": "https://a/b.pdf"}}, None),
        (
            {"type": "search_result", "title": "T", "source": "s", "content": [{"type": "text", "text": "found"}]},
            "T\ns\nfound",
        ),
        ({"type": "compaction", "content": "What was said."}, "What was said."),
        ({"type": "compaction", "content": None}, ""),
        ({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "x"}}, None),
        ({"type": "hologram"}, None),
    ],
)
def test_whatever_has_text_is_read_and_nothing_else(block: dict[str, Any], text: str | None) -> None:
    assert read(**block) == text


def test_a_text_block_without_text_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(type="text")
    assert caught.value.param == "here.text"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, ""),
        ("plain", "plain"),
        ([], ""),
        ([{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "b"}], "a\n\nb"),
        ([{"type": "tool_reference", "tool_name": "Grep"}], "Tool found: Grep"),
        (
            [{"type": "text", "text": "a.png"}, {"type": "image", "source": {}}],
            "a.png\n\n['image' is left out: this model reads text only.]",
        ),
        ([{"type": "holo\n"}], "['holo\\n' is left out: this model reads text only.]"),
    ],
)
def test_a_tools_result_becomes_text_and_says_what_it_lost(content: Any, text: str) -> None:
    assert read_result(msgspec.convert(content, str | list[Block] | None), "here") == text


def test_a_result_that_is_an_object_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="list of content blocks"):
        read_result({"type": "text"}, "here")
