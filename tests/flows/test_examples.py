"""What the pages tell a newcomer to type, typed word for word against the real program on nano."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
ADDRESS = "http://127.0.0.1:11234"
FENCE = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def list_examples(page: str, language: str) -> list[str]:
    """Every block of a page that asks the server for something."""
    blocks = FENCE.findall((ROOT / page).read_text())
    return [text for kind, text in blocks if kind == language and ADDRESS in text and "export " not in text]


@pytest.fixture(scope="module")
def server(file_headless: Callable[..., Any]) -> Any:
    return file_headless()


@pytest.fixture
def type_in(server: Any) -> Callable[[list[str], str], str]:
    """What a command writes that is given this text, at the address of this test's server."""

    def run(command: list[str], text: str) -> str:
        typed = [*command, text.replace(ADDRESS, server.url)]
        ended = subprocess.run(typed, capture_output=True, text=True, timeout=90, check=False)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


SHELL = ["bash", "-c"]


def test_the_first_two_minutes(type_in: Callable[[list[str], str], str]) -> None:
    once, four = list_examples("README.md", "sh")
    assert type_in(SHELL, once).rstrip().endswith("data: [DONE]")
    (python,) = list_examples("README.md", "python")
    assert type_in([sys.executable, "-c"], python).strip()
    told = type_in(SHELL, four)
    refused = told.count("Refused by homebase admission: 2 of 2 in flight")
    assert refused >= 1, told
    assert told.count('"chat.completion"') == 4 - refused


def test_what_the_api_is_asked_by_hand(type_in: Callable[[list[str], str], str]) -> None:
    stream, form, call, count = (type_in(SHELL, text) for text in list_examples("docs/api.md", "sh"))
    assert '"usage":{' in stream.rstrip().removesuffix("data: [DONE]").rstrip().rpartition("data: ")[2]
    person = json.loads(json.loads(form)["choices"][0]["message"]["content"])
    assert person["name"] in {"Ada", "Grace"}
    message = json.loads(call)["choices"][0]["message"]
    (asked,) = message["tool_calls"]
    assert json.loads(asked["function"]["arguments"])["path"] in {"a.py", "b.py"}
    assert json.loads(count)["input_tokens"] > 0
