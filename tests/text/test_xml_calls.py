from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mlx_lm.tool_parsers.qwen3_coder import parse_tool_call

from server.text.answer import AnswerReader
from server.text.markup import Markers, Markup
from server.text.parts import CallBegun, CallDelta, CallEnded
from server.text.tools import Tool

MARKUP = Markup(Markers("<think>", "</think>"), Markers("<tool_call>", "</tool_call>"), "qwen_xml", parse_tool_call)
SIZES = [1, 2, 5, None]


def write_call(name: str, *parameters: tuple[str, str]) -> str:
    """A call as the model writes it."""
    inside = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in parameters)
    return f"<tool_call>\n<function={name}>\n{inside}</function>\n</tool_call>"


def begin(tools: list[Tool]) -> AnswerReader:
    return AnswerReader(MARKUP, tools, build_id=lambda: "call_0")


def values_of(read: Any, text: str, at: int | None = None, **how: Any) -> Any:
    answer = read(text, at, **how)
    assert answer.text == ""
    assert [call.is_ended for call in answer.calls] == [True]
    return answer.calls[0].values


def test_a_call_is_told_while_it_is_written(tool: Any) -> None:
    reader = begin([tool("write", path={"type": "string"}, n={"type": "integer"})])
    assert reader.feed("<tool_call>\n<function=wri") == []
    assert reader.feed("te>") == [CallBegun(0, "call_0", "write")]
    assert reader.feed("\n<parameter=path>\nsrc/") == [CallDelta(0, '{"path": "src/')]
    assert reader.feed('"a"\n') == [CallDelta(0, '\\"a\\"')]
    assert reader.feed("b\n</para") == [CallDelta(0, "\\nb")]
    assert reader.feed("meter>\n<parameter=n>\n1") == [CallDelta(0, '"')]
    assert reader.feed("2\n</parameter>\n</f") == []
    assert reader.feed("unction>") == [CallDelta(0, ', "n": 12'), CallDelta(0, "}"), CallEnded(0)]
    assert reader.feed("\n</tool_call>") == []
    assert reader.finish(cut=False) == []


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    "value",
    [
        "",
        "\n",
        "\n\nx\n\n",
        " x ",
        "a\r\nb\r\n",
        "\x00\x1f",
        "null",
        "nu",
        "\ud83d",
        'x = "</parameter>"',
        "</parameter>",
        "</param> </parameter </function>",
        "</function>\n",
        "<tool_call>",
        "</tool_call>",
        "a </tool_call>\n<tool_call>\n<function=f>",
        "<parameter=path>\nb",
        "</parameter>\n</parameter>x",
        "<think>not now</think>",
        "{{ '</parameter>' }}\n{{ '</function>' }}\n{{ '</tool_call>' }}",
    ],
)
def test_text_is_kept_to_the_letter_whatever_it_contains(read: Any, at: int | None, value: str) -> None:
    call = write_call("write", ("path", value), ("lines", "3"))
    assert values_of(read, call, at) == {"path": value, "lines": 3}


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    ("written", "value"), [("x", "x"), ("\nx", "x"), ("x\n", "x"), ("\n", ""), ("\n\n", ""), ("", "")]
)
def test_one_line_break_at_each_end_is_no_part_of_a_value(read: Any, at: int | None, written: str, value: str) -> None:
    call = f"<tool_call><function=write><parameter=path>{written}</parameter></function></tool_call>"
    assert values_of(read, call, at) == {"path": value}


@pytest.mark.parametrize("at", SIZES)
def test_a_value_that_does_not_fit_its_type_is_delivered_as_text(read: Any, tool: Any, at: int | None) -> None:
    tools = [tool("f", x={"type": "integer"}, o={"type": "object"})]
    call = write_call("f", ("x", "2026-01-15"), ("o", "{not JSON"))
    assert values_of(read, call, at, tools=tools) == {"x": "2026-01-15", "o": "{not JSON"}


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("null", None),
        ("NULL", None),
        ("nullable", "nullable"),
        ("nul", "nul"),
        ("null\n", "null\n"),
        ("", ""),
        ("x", "x"),
    ],
)
def test_text_that_may_be_null_is_null_when_that_is_all_of_it(
    read: Any, at: int | None, value: str, expected: str | None
) -> None:
    assert values_of(read, write_call("look", ("note", value), ("new", value)), at) == {
        "note": expected,
        "new": expected,
    }


def test_text_that_may_be_null_streams_as_soon_as_it_is_not(tool: Any) -> None:
    reader = begin([tool("f", a={"type": ["string", "null"]})])
    reader.feed("<tool_call><function=f>")
    assert reader.feed("<parameter=a>\nnul") == []
    assert reader.feed("lable") == [CallDelta(0, '{"a": "nullable')]


@pytest.mark.parametrize("at", SIZES)
def test_of_a_parameter_that_is_given_twice_the_first_counts(read: Any, at: int | None) -> None:
    call = write_call("write", ("path", "a"), ("lines", "1"), ("path", "b"), ("lines", "2"))
    answer = read(call, at)
    assert json.loads(answer.calls[0].arguments, object_pairs_hook=list) == [("path", "a"), ("lines", 1)]


@pytest.mark.parametrize("at", SIZES)
def test_a_function_that_was_not_offered_is_called_with_text(read: Any, at: int | None) -> None:
    answer = read(write_call("rm", ("path", "/"), ("n", "5")), at)
    assert (answer.calls[0].name, answer.calls[0].values) == ("rm", {"path": "/", "n": "5"})


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("<tool_call><function=write></function></tool_call>", {}),
        ("<tool_call><function=write></tool_call>", {}),
        (
            "<tool_call>well <function=write> so <parameter=path>a</parameter></function> on </tool_call>",
            {"path": "a"},
        ),
        ("<tool_call><function=write\n<parameter=path>a</parameter></function></tool_call>", {"path": "a"}),
        ("<tool_call><function= write ><parameter= path >a</parameter></function></tool_call>", {"path": " >a"}),
        ("<tool_call><function=write><parameter=>a</parameter></function></tool_call>", {}),
        ("<tool_call><function=write><parameter=path>a\n</function>\n</tool_call>", {"path": "a"}),
        ("<tool_call><function=write><parameter=path>\na\n</parameter>\n</tool_call>", {"path": "a"}),
        ("<tool_call><function=write><parameter=path>a</parameter></function>", {"path": "a"}),
        ("<tool_call><function=write><parameter=path>a</parameter></func", {"path": "a"}),
        ("<tool_call><function=write><parameter=path>a\n</parameter>\n", {"path": "a"}),
        ("<tool_call><function=write><parameter=path>a\n</function>\n", {"path": "a"}),
    ],
)
def test_calls_that_are_written_carelessly_are_read(read: Any, at: int | None, text: str, values: Any) -> None:
    assert values_of(read, text, at) == values


@pytest.mark.parametrize("at", SIZES)
def test_functions_that_share_their_call_markers_are_calls_each(read: Any, at: int | None) -> None:
    answer = read("<tool_call><function=a></function>\n<function=b></function></tool_call>", at)
    assert [(call.id, call.name, call.is_ended) for call in answer.calls] == [
        ("call_0", "a", True),
        ("call_1", "b", True),
    ]


WHOLE = write_call("write", ("path", "a.py"), ("lines", "5"))


@pytest.mark.parametrize("at", SIZES)
def test_a_call_that_is_cut_anywhere_stays_begun_and_never_ends(read: Any, at: int | None) -> None:
    named, closed = WHOLE.index("write>") + 6, WHOLE.index("</function>") + 11
    for size in range(len(WHOLE)):
        answer = read(WHOLE[:size], at, was_cut=True)
        assert len(answer.calls) == (size >= named)
        assert all(call.is_ended == (size >= closed) for call in answer.calls)
        assert all('{"path": "a.py", "lines": 5}'.startswith(call.arguments) for call in answer.calls)
        assert answer.text == (WHOLE[:size] if size < len("<tool_call>") else "")


def test_nothing_is_added_to_a_call_that_is_cut(tool: Any) -> None:
    for size in range(WHOLE.index("write>") + 6, len(WHOLE)):
        reader = begin([tool("write", path={"type": "string"}, lines={"type": "integer"})])
        reader.feed(WHOLE[:size])
        assert reader.finish(cut=True) == []


@pytest.mark.parametrize("at", SIZES)
@pytest.mark.parametrize("size", [WHOLE.index(".py"), WHOLE.index("\n</parameter>"), WHOLE.index("nes>")])
def test_a_call_that_the_model_itself_leaves_in_the_middle_never_ends(read: Any, at: int | None, size: int) -> None:
    assert [call.is_ended for call in read(WHOLE[:size], at).calls] == [False]


FITTING: dict[str, tuple[dict[str, Any], st.SearchStrategy[str]]] = {
    "text": ({"type": "string"}, st.text(alphabet="ab\n\r \t\"\\<>/=é", max_size=12)),
    "whole": ({"type": "integer"}, st.integers(-(2**53), 2**53).map(str) | st.sampled_from(["5.0", " 7", "1e3"])),
    "number": ({"type": "number"}, st.floats(allow_nan=False, allow_infinity=False).map(str)),
    "switch": ({"type": "boolean"}, st.sampled_from(["true", "false", "True", "FALSE"])),
    "list": ({"type": "array"}, st.lists(st.integers() | st.text(max_size=3) | st.none(), max_size=3).map(json.dumps)),
    "table": ({"type": "object"}, st.dictionaries(st.text(max_size=3), st.booleans(), max_size=3).map(repr)),
    "open": ({"description": "?"}, st.sampled_from(["5", "[1]", '{"a": 1}', "null", "x", "[1", "true"])),
    "unknown": ({}, st.sampled_from(["5", "[1]", "null", "Null", "x", ""])),
}  # fmt: skip


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    """What stands between the call markers, with values that fit their types, and the name of the function."""
    names = draw(st.lists(st.sampled_from(sorted(FITTING)), unique=True))
    parts: list[str] = []
    for name in names:
        breaks = st.sampled_from(["", "\n"] if name == "switch" else ["", "\n", "\n\n"])
        before, after = draw(breaks), draw(breaks)
        parts.append(f"<parameter={name}>{before}{draw(FITTING[name][1])}{after}</parameter>")
    blank = draw(st.sampled_from(["", "\n", " \n"]))
    function = draw(st.sampled_from(["f", "unheard_of"]))
    return f"{blank}<function={function}>{blank}{blank.join(parts)}{blank}</function>\n", function


@settings(deadline=None, max_examples=400)
@given(call=calls())
def test_whole_calls_are_read_as_mlx_lm_reads_them(read: Any, tool: Any, call: tuple[str, str]) -> None:
    inside, name = call
    offered = tool("f", **{key: schema for key, (schema, _) in FITTING.items() if key != "unknown"})
    expected = parse_tool_call(inside, [offered.definition])
    read_call = read(f"<tool_call>{inside}</tool_call>", 3, tools=[offered]).calls[0]
    assert (read_call.name, read_call.values) == (name, expected["arguments"])


def measure_s(piece: str, times: int, size: int | None) -> float:
    """The time for a call whose only value is `piece`, so many times, in pieces of a size."""
    tool = Tool("f", {"properties": {"a": {"type": "string"}}}, {})
    text = f"<tool_call><function=f><parameter=a>{piece * times}</parameter></function></tool_call>"
    reader = begin([tool])
    start_s = time.process_time()
    for at in range(0, len(text), size or len(text)):
        reader.feed(text[at : at + (size or len(text))])
    assert reader.finish(cut=False) == []
    return time.process_time() - start_s


@pytest.mark.parametrize("size", [1, None])
@pytest.mark.parametrize("piece", ["a", "\n", "<", "</parameter>", "</parameter> \n\n", "</parameter>" + " " * 5000])
def test_the_work_is_linear_in_the_length_of_a_value(piece: str, size: int | None) -> None:
    times = 60_000 // len(piece) if size else 300_000 // len(piece)
    short_s = min(measure_s(piece, times // 4, size) for _ in range(3))
    long_s = min(measure_s(piece, times, size) for _ in range(3))
    assert long_s < 10 * short_s + 0.05, "four times the text took more than ten times the work"


@pytest.mark.slow
def test_a_megabyte_letter_by_letter_is_read(tool: Any) -> None:
    assert measure_s("x", 1_000_000, 1) < 60
