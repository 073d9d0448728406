"""`tool_choice` in every form: what may be called, and what must."""

from __future__ import annotations

from typing import Any

import pytest

from server.api.generation.asked import ToolRule
from server.api.responses.choice import apply_choice
from server.api.responses.tools import Given, Toolbox, read_toolbox
from server.errors import InvalidRequest, UnsupportedParameter

LOOK = {"type": "function", "name": "look"}
PATCH = {"type": "custom", "name": "apply_patch"}
SEND = {"type": "namespace", "name": "mail", "tools": [{"type": "function", "name": "send"}]}
TOOLBOX = read_toolbox([Given("tools[0]", LOOK), Given("tools[1]", PATCH), Given("tools[2]", SEND)])


def choose(choice: Any, parallel: bool | None = None, toolbox: Toolbox = TOOLBOX) -> ToolRule:
    return apply_choice(toolbox, choice, parallel)[1]


@pytest.mark.parametrize(
    ("choice", "rule"),
    [
        (None, ToolRule("auto")),
        ("auto", ToolRule("auto")),
        ("none", ToolRule("none")),
        ("required", ToolRule("required")),
        (LOOK, ToolRule("required", "look", parallel=False)),
        (PATCH, ToolRule("required", "apply_patch", parallel=False)),
        ({"type": "function", "name": "send"}, ToolRule("required", "mail.send", parallel=False)),
        ({"type": "function", "name": "send", "namespace": "mail"}, ToolRule("required", "mail.send", parallel=False)),
        ({"type": "allowed_tools", "mode": "required", "tools": [LOOK]}, ToolRule("required")),
    ],
)
def test_a_choice_is_a_rule(choice: Any, rule: ToolRule) -> None:
    assert choose(choice) == rule


def test_one_call_at_a_time_when_it_is_asked_for() -> None:
    assert [choose("auto", parallel).parallel for parallel in (None, True, False)] == [True, True, False]


def test_of_allowed_tools_the_model_is_told_of_no_others() -> None:
    entries = [LOOK, {"type": "function", "name": "send"}, {"type": "web_search"}]
    allowed, rule = apply_choice(TOOLBOX, {"type": "allowed_tools", "mode": "auto", "tools": entries}, None)
    assert [tool.name for tool in allowed.tools] == ["look", "mail.send"]
    assert rule == ToolRule("auto")


@pytest.mark.parametrize(
    ("choice", "error", "words"),
    [
        ("any", InvalidRequest, "must be"),
        ({"type": "function"}, InvalidRequest, "must be"),
        ({"type": "allowed_tools", "mode": "none", "tools": []}, InvalidRequest, "must be"),
        ({"type": "function", "name": "fly"}, InvalidRequest, "none of the `tools`"),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "fly"}]},
            InvalidRequest,
            "none of the `tools`",
        ),
        ({"type": "allowed_tools", "mode": "required", "tools": []}, InvalidRequest, "no `tools`"),
        ({"type": "web_search_preview"}, UnsupportedParameter, "web_search_preview"),
    ],
)
def test_a_choice_of_what_is_not_there_is_refused(choice: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        choose(choice)
    assert getattr(caught.value, "param", None) == "tool_choice"


def test_a_call_cannot_be_required_when_all_tools_were_left_out() -> None:
    with pytest.raises(InvalidRequest, match="no `tools`"):
        choose("required", toolbox=read_toolbox([Given("tools[0]", {"type": "web_search"})]))


def test_a_name_twice_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="twice"):
        choose(None, toolbox=read_toolbox([Given("tools[0]", LOOK), Given("tools[1]", LOOK)]))
