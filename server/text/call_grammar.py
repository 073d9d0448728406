"""Calls of a client's tools as a grammar, in the two forms that models were trained to write them. Pure.

What JSON schema has and llguidance has not is left aside in a tool's parameters: an agent sends the same tools with
each request, and one keyword of one of them should not cost it all of them. A regular expression that llguidance cannot
read (look-around) is no keyword, and is refused. In the XML form a value that is JSON may have `</parameter>` inside of
a string, which a parser of that form may take for its end: JSON has no way to forbid a word.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from server.errors import InvalidRequest, UnsupportedParameter
from server.text.grammar import (
    LEAD,
    SCHEMA_CHARS,
    Grammar,
    Probe,
    check_schema,
    join_lines,
    list_probes,
    write_json_rule,
)
from server.text.parameters import Parameter, read_parameters
from server.text.tools import Tool, ToolForm

GRAMMAR_CHARS = 4 * SCHEMA_CHARS
"""Parameters that refer to the same part of a schema each bring it along."""

END_OF_VALUE = "</parameter>"
_TAIL = f"\n{END_OF_VALUE}\n"

_XML_NAME = re.compile(r"[^\s<>]+")
_OPEN_ENDED = ("$ref", "allOf", "anyOf", "oneOf", "patternProperties", "additionalProperties")
"""A schema with one of these may take keys that its properties do not name."""


class CallMarkers(msgspec.Struct, frozen=True):
    """What stands before and after a call."""

    begin: str
    end: str
    """May be empty."""
    begin_id: int | None = None
    end_id: int | None = None
    """The tokens that they are, where the vocabulary has one for each; then their letters in a value mean nothing."""


def build_call_grammar(
    tools: Sequence[Tool],
    form: ToolForm,
    markers: CallMarkers,
    param: str,
    *,
    name: str | None = None,
    parallel: bool = True,
    answer: Mapping[str, Any] | None = None,
) -> Grammar:
    """Nothing but calls: of any of the tools, or of the one by that name; one, or with `parallel` one or more.

    With the schema of an `answer` the model may as well write that, JSON, and call nothing.

    In the XML form parameters come in the schema's order, each at most once, and a string's own limits (pattern,
    length) are not kept. Raises InvalidRequest, and UnsupportedParameter for a form that is not known here.
    """
    if form == "other":
        raise UnsupportedParameter(
            "The served model has a form of tool calls that cannot be enforced; use tool_choice auto.",
            param="tool_choice",
        )
    chosen = _choose(tools, name)
    check_schema({tool.name: dict(tool.parameters) for tool in chosen}, param)
    frame = _write_frame(len(chosen), form, markers, parallel=parallel, may_answer=answer is not None)
    lines = [(line, "The list of tools") for line in frame]
    if answer is not None:
        check_schema(answer, param)
        lines.append((f"answer: {write_json_rule(answer)}", "The schema of the answer"))
    written = 0
    for number, tool in enumerate(chosen):
        for line in _write_xml(tool, number, param) if form == "qwen_xml" else _write_json(tool, number):
            lines.append((line, _name_owner(tool)))
            written += len(line)
            if written > GRAMMAR_CHARS:
                raise InvalidRequest(
                    f"The schemas in {param} grow to more than {GRAMMAR_CHARS:,} characters when each parameter is "
                    "written out with what it refers to; offer fewer tools or simpler ones.",
                    param=param,
                )
    probes = [probe for tool in chosen for probe in _list_probes(tool, form, markers)]
    if answer is not None:
        probes += list_probes("The schema of the answer")
    return join_lines(lines, param, tuple(probes))


def _list_probes(tool: Tool, form: ToolForm, markers: CallMarkers) -> Iterator[Probe]:
    """A call up to its first argument."""
    begin = markers.begin if markers.begin_id is None else ""
    text = _write_xml_head(tool) + "<parameter=" if form == "qwen_xml" else _write_json_head(tool) + '{"'
    yield Probe(begin + text, _name_owner(tool), () if markers.begin_id is None else (markers.begin_id,))


def _name_owner(tool: Tool) -> str:
    return f"The schema of tool {tool.name[:60]!r}"


def _choose(tools: Sequence[Tool], name: str | None) -> list[Tool]:
    chosen = [tool for tool in tools if name in (None, tool.name)]
    if chosen:
        return chosen
    if name is None:
        raise InvalidRequest("tool_choice asks for a tool call, but tools is empty.", param="tool_choice")
    known = ", ".join(repr(tool.name[:60]) for tool in tools[:20]) or "none"
    raise InvalidRequest(
        f"tool_choice names the tool {name[:60]!r}, which is not in tools ({known}).", param="tool_choice"
    )


def _write_frame(
    count: int, form: ToolForm, markers: CallMarkers, *, parallel: bool, may_answer: bool
) -> Iterator[str]:
    calling = 'call ("\\n"? call)*' if parallel else "call"
    yield f"start: {LEAD} ({calling} | answer)" if may_answer else f"start: {LEAD} {calling}"
    begin = _quote(markers.begin) if markers.begin_id is None else f"<[{markers.begin_id}]>"
    end = _quote(markers.end) if markers.end_id is None else f"<[{markers.end_id}]>"
    calls = " | ".join(f"call_{number}" for number in range(count))
    yield f"call: {begin} ({calls}) {end}"
    if form == "qwen_xml":
        enders = [END_OF_VALUE, *([markers.end] if markers.end_id is None and markers.end else [])]
        without = " & ".join(f"~/(?s:.*){_escape(ender)}(?s:.*)/" for ender in enders)
        # One terminal with its end: the longest match is taken, and text by itself would run on into the end.
        yield f"RAW: (/(?s:.*)/ & {without}) {_quote(_TAIL)}"


def _write_xml(tool: Tool, number: int, param: str) -> Iterator[str]:
    _check_name(tool.name, tool, param)
    terms: list[str] = []
    for place, each in enumerate(read_parameters(tool.parameters, f"tool {tool.name[:60]!r}", param)):
        _check_name(each.key, tool, param)
        rule = f"value_{number}_{place}"
        terms.append(rule if each.required else f"{rule}?")
        yield from _write_value(rule, each)
    head, tail = _quote(_write_xml_head(tool)), _quote("</function>\n")
    yield " ".join((f"call_{number}:", head, *terms, tail))


def _write_xml_head(tool: Tool) -> str:
    return f"\n<function={tool.name}>\n"


def _write_json_head(tool: Tool) -> str:
    return f'\n{{"name": {json.dumps(tool.name)}, "arguments": '


def _check_name(name: str, tool: Tool, param: str) -> None:
    if not _XML_NAME.fullmatch(name):
        raise InvalidRequest(
            f"A name in a call to this model has no blanks, < or >; {name[:60]!r} of tool {tool.name[:60]!r} has.",
            param=param,
        )


def _write_value(rule: str, parameter: Parameter) -> Iterator[str]:
    """One of its literals, or raw text where a string may stand, or else JSON."""
    head = _quote(f"<parameter={parameter.key}>\n")
    literals = [literal for literal in parameter.literals if END_OF_VALUE not in literal]
    if literals:
        yield f"{rule}: {head} {rule.upper()}"
        yield f"{rule.upper()}: ({' | '.join(map(_quote, literals))}) {_quote(_TAIL)}"
    elif parameter.is_text:
        yield f"{rule}: {head} RAW"
    else:
        yield f"{rule}: {head} {write_json_rule(parameter.schema, lenient=True)} {_quote(_TAIL)}"


def _write_json(tool: Tool, number: int) -> Iterator[str]:
    head = _write_json_head(tool)
    arguments = write_json_rule(_close(tool.parameters), lenient=True)
    yield f"call_{number}: {_quote(head)} {arguments} {_quote('}' + chr(10))}"


def _close(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """A schema of arguments that takes no others than it names, unless it says so itself."""
    if any(key in parameters for key in _OPEN_ENDED):
        return parameters
    return {"type": "object", **parameters, "additionalProperties": False}


def _quote(text: str) -> str:
    """A text as a term of a grammar."""
    return json.dumps(text)


def _escape(text: str) -> str:
    """A text inside of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/")
