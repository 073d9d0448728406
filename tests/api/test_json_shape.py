"""Bodies that are small to send and dear to decode are refused for what they are, soon, and nothing else is."""

from __future__ import annotations

import contextlib
import json
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api import json_shape
from server.api.body import LIMIT_BYTES
from server.api.decoding import decode_object
from server.api.json_shape import MOST_DEPTH, MOST_DIGITS, MOST_VALUES, check_shape
from server.errors import InvalidRequest

FULL = LIMIT_BYTES - 100


def nest(depth: int) -> bytes:
    return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}"


@pytest.mark.parametrize(
    "body",
    [
        nest(MOST_DEPTH),
        b'{"a":[' + b"{}," * (MOST_VALUES // 2 - 10) + b"{}]}",
        b'{"a":' + b"1" * MOST_DIGITS + b"}",
        b'{"a":"' + b"[{," * MOST_VALUES + b'"}',
        b'{"a":"' + b'\\"[' * MOST_VALUES + b'"}',
        b'{"a":"' + b"[" * 500 + b'","b":"\\\\","c":"' + b"1" * 500 + b'"}',
        b'{"a":"\\\\\\"' + b"[" * 500 + b'"}',
    ],
    ids=["depth", "values", "digits", "text", "escapes", "three texts", "backslash"],
)
def test_what_is_just_within_or_stands_in_a_string_is_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    for piece_bytes in (64 * 1024, 7):
        monkeypatch.setattr(json_shape, "PIECE_BYTES", piece_bytes)
        if len(body) < 10_000 or piece_bytes > 7:
            check_shape(body)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (nest(MOST_DEPTH + 1), "nested too deeply; at most 100 levels"),
        (b'{"a":' + b"[" * MOST_DEPTH, "nested too deeply"),
        (b'{"a":' * (MOST_DEPTH + 1) + b"1" + b"}" * (MOST_DEPTH + 1), "nested too deeply"),
        (b'{"a":[' + b'[{"b":"]"}],' * 50 + nest(MOST_DEPTH) + b"]}", "nested too deeply"),
        (b'{"a":[' + b"1," * MOST_VALUES + b"1]}", "more than 200,000 values"),
        (b"{" + b",".join(b'"%d":1' % n for n in range(MOST_VALUES)) + b"}", "more than 200,000 values"),
        (b'{"a":' + b"[" * 90 + b"]" * FULL, "more than 200,000 values"),
        (b'"' * LIMIT_BYTES, "more than 200,000 values"),
        (b'{"a":' + b"1" * (MOST_DIGITS + 1) + b"}", "more than 400 digits"),
        (b'{"a":-1.' + b"9" * (MOST_DIGITS + 1) + b"e5}", "more than 400 digits"),
    ],
    ids=["lists", "open lists", "objects", "among others", "list", "names", "closing", "quotes", "digits", "decimals"],
)
def test_what_is_beyond_is_refused_with_the_limit(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        decode_object(body)


def measure_depth(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if children is None else 1 + max(map(measure_depth, children), default=0)


TEXTS = st.text(st.sampled_from(['"', "\\", "[", "]", "{", ",", ":", "a", "é", "\n"]), max_size=12)
VALUES = st.recursive(
    TEXTS | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)


@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.integers(1, 6), st.integers(1, 40), st.booleans())
def test_depth_is_that_of_the_decoded_value_wherever_the_text_is_cut(
    document: dict[str, Any], most: int, piece_bytes: int, is_ascii: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_shape, "MOST_DEPTH", most)
        patch.setattr(json_shape, "PIECE_BYTES", piece_bytes)
        body = json.dumps(document, ensure_ascii=is_ascii).encode()
        if measure_depth(document) > most:
            with pytest.raises(InvalidRequest, match="deeply"):
                check_shape(body)
        else:
            check_shape(body)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "empty lists": lambda: b'{"a":[' + b"[]," * (FULL // 3) + b"[]]}",
    "open lists": lambda: b'{"a":' + b"[" * FULL,
    "deep lists": lambda: b'{"a":' + b"[" * (FULL // 2) + b"]" * (FULL // 2) + b"}",
    "closing brackets": lambda: b'{"a":' + b"[" * 90 + b"]" * FULL,
    "a million names": lambda: b"{" + b",".join(b'"%d":1' % n for n in range(1_000_000)) + b"}",
    "one number": lambda: b'{"a":' + b"1" * FULL + b"}",
    "one decimal": lambda: b'{"a":1.' + b"1" * FULL + b"}",
    "long numbers": lambda: b'{"a":[' + b",".join([b"1" * 4300] * 7000) + b"]}",
    "numbers": lambda: b'{"a":[' + b",".join([b"1." + b"7" * 150] * 190_000) + b"]}",
    "one text": lambda: b'{"a":"' + b"x" * FULL + b'"}',
    "one escaped text": lambda: b'{"a":"' + b'\\"' * (FULL // 2) + b'"}',
    "no end": lambda: b'{"a":"' + b'\\"' * (FULL // 2),
    "backslashes": lambda: b'{"a":"' + b"\\" * FULL + b'"}',
    "blanks": lambda: b'{"a":' + b" " * FULL + b"1}",
    "texts": lambda: b'{"a":[' + b'"",' * (FULL // 3) + b'""]}',
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_body_costs_bounded_time_and_memory(kind: str) -> None:
    body = HOSTILE[kind]()
    tracemalloc.start()
    start_s = time.thread_time()
    with contextlib.suppress(InvalidRequest):
        decode_object(body)
    taken_s = time.thread_time() - start_s
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken_s < 2, "0.6 s on a slow core, most of it a piece at a time"
    assert most_bytes < 4 * LIMIT_BYTES, "eleven million lists took 700 MB"
