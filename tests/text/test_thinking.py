from __future__ import annotations

from typing import Any

import pytest

from server.errors import InvalidRequest
from server.text.thinking import plan_thinking

QWEN = "{% if reasoning_effort == 'low' %}a{% elif reasoning_effort in (\"medium\", 'xhigh') %}b{% endif %}"
OPENAI = "{% if reasoning_effort in ['low', 'medium', 'high'] %}"
SILENT = "{{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("template", "effort", "word"),
    [
        (QWEN, "minimal", "low"),
        (QWEN, "low", "low"),
        (QWEN, "medium", "medium"),
        (QWEN, "high", "xhigh"),
        (QWEN, "xhigh", "xhigh"),
        (QWEN, "max", "xhigh"),
        (OPENAI, "minimal", "low"),
        (OPENAI, "high", "high"),
        (OPENAI, "xhigh", "high"),
        (OPENAI, "max", "high"),
        (SILENT, "minimal", "minimal"),
        (SILENT, "xhigh", "xhigh"),
    ],
)
def test_an_effort_is_said_in_the_word_that_the_template_knows(template: str, effort: str, word: str) -> None:
    assert plan_thinking(effort, template) == {"enable_thinking": True, "reasoning_effort": word}


@pytest.mark.parametrize("template", [QWEN, OPENAI, ""])
def test_no_effort_is_no_thought(template: str) -> None:
    expected: dict[str, Any] = {"enable_thinking": False}
    assert plan_thinking("none", template) == expected


@pytest.mark.parametrize("effort", ["", "High", "turbo", "x" * 5000])
def test_any_other_word_is_refused_with_those_that_are_known(effort: str) -> None:
    with pytest.raises(InvalidRequest, match="none, minimal, low, medium, high, xhigh") as told:
        plan_thinking(effort, QWEN)
    assert told.value.param == "reasoning_effort"
    assert len(told.value.message) < 200
