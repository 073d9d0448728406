"""Settings are merged into what is there: comments, order and everything else stay."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.client_settings.merge import merge_settings, overlay, write_settings
from server.errors import StartupError

VALUES = {"model": "nano", "provider": {"homebase": {"url": "http://x/v1", "n": 3}}}

TOML = """\
# mine
model = "other"  # dear to me

[provider.else]
url = "http://y"  # stays

[tool]
list = [
  1, # one
]
"""


def test_toml_keeps_its_comments_and_the_rest():
    merged = merge_settings(TOML, VALUES, "toml", "f")
    for kept in ("# mine", "# dear to me", '[provider.else]\nurl = "http://y"  # stays', "  1, # one\n"):
        assert kept in merged
    assert tomllib.loads(merged) == overlay(tomllib.loads(TOML), VALUES)
    assert merge_settings(merged, VALUES, "toml", "f") == merged


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[a]\nb = 1\n",
        'provider = { homebase = { url = "old", kept = 1 } }\n',
        'provider.homebase.url = "old"\n[a]\n',
        '[provider.homebase]\nurl = "old"\n[a]\n[provider.later]\nx = 1\n',
        "model = [1]\r\n[provider]\r\n",
        "provider = 4\n",
    ],
)
def test_toml_of_any_form_ends_up_with_both(text: str):
    assert tomllib.loads(merge_settings(text, VALUES, "toml", "f")) == overlay(tomllib.loads(text), VALUES)


def test_json_keeps_the_rest_and_its_indent():
    text = '{\n    "theme": "ü",\n    "provider": {"else": [1, 2]}\n}'
    merged = merge_settings(text, VALUES, "json", "f")
    assert json.loads(merged) == overlay(json.loads(text), VALUES)
    assert merged.startswith('{\n    "theme": "ü"')
    assert not merged.endswith("\n")
    assert merge_settings(merged, VALUES, "json", "f") == merged


@pytest.mark.parametrize("text", ['{\n  // mine\n  "a": 1\n}', '{"a": 1, /* x */ "b": 2}', '{"a": [1,]}'])
def test_json_with_comments_is_left_alone(text: str):
    with pytest.raises(StartupError, match=r"f has comments .* by hand"):
        merge_settings(text, VALUES, "json", "f")


@pytest.mark.parametrize(
    ("text", "format", "told"),
    [("{", "json", "not valid JSON"), ("[]", "json", "not an object"), ("a = ", "toml", "TOML"), ("x", "yaml", "YAML")],
)
def test_a_file_that_cannot_be_merged_is_told(text: str, format: Any, told: str):
    with pytest.raises(StartupError, match=told):
        merge_settings(text, VALUES, format, "f")


NAMES = st.sampled_from(["model", "provider", "homebase", "a b", "ü"])
TABLES = st.dictionaries(
    NAMES,
    st.recursive(
        st.integers(-9, 9) | st.sampled_from(["", 'q"', "ü\n"]) | st.booleans(),
        lambda deeper: st.dictionaries(NAMES, deeper, max_size=3) | st.lists(st.integers(0, 9), max_size=3),
        max_leaves=8,
    ),
    max_size=4,
)


@given(before=TABLES, values=TABLES)
def test_whatever_is_there_both_are_there_after_or_it_is_refused(before: dict[str, Any], values: dict[str, Any]):
    wanted = overlay(before, values)
    assert json.loads(merge_settings(json.dumps(before), values, "json", "f")) == wanted
    try:
        merged = merge_settings(write_settings(before, "toml"), values, "toml", "f")
    except StartupError:
        return
    assert tomllib.loads(merged) == wanted
