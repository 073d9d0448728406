"""What each client is told: what docs/clients.md saw working, with the limits of the policy."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from console.client_settings.clients import CLIENTS
from console.client_settings.merge import write_settings
from console.client_settings.shape import Given, Settings, build_given
from server.policy import validate_policy

ROOT = Path(__file__).parents[3]
URL = "http://127.0.0.1:11234/v1"


def build(name: str, context_tokens: int | None = 65536, **tables: Any) -> Settings:
    return CLIENTS[name].build(build_one(context_tokens, **tables))


def build_one(context_tokens: int | None = 65536, **tables: Any) -> Given:
    return build_given(validate_policy(tables), URL, "nano", context_tokens)


def read_documented(heading: str, language: str) -> str:
    """The block of code under a heading of docs/clients.md."""
    page = (ROOT / "docs" / "clients.md").read_text()
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_files_say_what_was_seen_to_work():
    assert build("codex").values == tomllib.loads(read_documented("Codex", "toml"))
    assert build("opencode").values == json.loads(read_documented("OpenCode", "json"))
    assert build("pi").values == json.loads(read_documented("pi", "json"))


def list_variables(lines: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", lines))


@pytest.mark.parametrize(("name", "heading"), [("qwen", "Qwen Code"), ("claude-code", "Claude Code")])
def test_variables_are_those_that_were_seen_to_work(name: str, heading: str):
    documented = read_documented(heading, "sh")
    told = list_variables("\n".join(build(name).shell))
    assert told == list_variables(documented)
    assert build(name).shell[-1] == documented.strip().splitlines()[-1]


def test_claude_codes_file_says_the_same_as_its_variables():
    settings = build("claude-code")
    assert settings.values["env"] == list_variables("\n".join(settings.shell))


@pytest.mark.parametrize(
    ("limits", "each", "whole"),
    [
        ({}, 1, 1),
        ({"max_in_flight": 4, "subagents": {"max_concurrent": 2, "sampling_limit": 3}}, 2, 3),
        ({"max_in_flight": 2, "subagents": {"max_concurrent": 5, "sampling_limit": 5}}, 1, 1),
        ({"max_in_flight": 1}, 1, 1),
    ],
)
@pytest.mark.parametrize("name", ["grok", "opengrok"])
def test_grok_holds_the_limits_for_children_itself(name: str, limits: dict[str, Any], each: int, whole: int):
    values = build(name, policy=limits).values
    assert values["subagents"] == {
        "max_concurrent": each,
        "sampling_limit": whole,
        "limit_behavior": "fail",
        "max_depth": 1,
    }
    assert values["ui"] == {"cancel_subagents_on_turn_cancel": "always_stop"}
    assert values["model"]["homebase"]["base_url"] == URL
    assert values["model"]["homebase"]["context_window"] == 65536


@pytest.mark.parametrize("name", ["max_concurrent", "sampling_limit", "max_depth"])
def test_grok_is_told_to_start_none_where_none_is_allowed(name: str):
    settings = build("grok", policy={"subagents": {name: 0}})
    assert "export GROK_SUBAGENTS=0" in settings.shell
    assert min(value for value in settings.values["subagents"].values() if isinstance(value, int)) == 1
    assert "export GROK_SUBAGENTS=0" not in build("grok").shell


def test_grok_leaves_children_running_where_the_policy_does():
    values = build("grok", policy={"subagents": {"cancel_on_turn_cancel": False}}).values
    assert values["ui"] == {"cancel_subagents_on_turn_cancel": "always_continue"}


@pytest.mark.parametrize("name", CLIENTS)
def test_no_key_is_written_and_none_is_called_unused_where_one_is_asked_for(name: str):
    settings = build(name, server={"api_key": "s3cret"})
    said = json.dumps(settings.values) + "\n".join(settings.shell)
    assert "s3cret" not in said
    assert "unused" not in said
    assert "HOMEBASE_API_KEY" in said


@pytest.mark.parametrize("name", CLIENTS)
def test_a_context_that_nobody_knows_is_left_out(name: str):
    said = json.dumps(build(name, context_tokens=None).values)
    assert "null" not in said
    assert "65536" not in said
    assert "65536" not in write_settings(build(name, context_tokens=None).values, "json")


def test_the_policys_own_context_limit_stands_in_for_a_server_that_does_not_run():
    assert build_one(None, policy={"max_context_tokens": 9000}).context_tokens == 9000
    assert build_one(None).context_tokens is None


def test_an_answer_is_no_longer_than_half_a_small_context():
    assert build_one(6000).output_tokens == 3000
    assert build_one(1).output_tokens == 1


def test_files_are_where_clients_look_for_them(tmp_path: Path):
    found = {name: client.find_file(tmp_path, {}) for name, client in CLIENTS.items()}
    assert found["codex"] == tmp_path / ".codex" / "config.toml"
    assert found["opencode"] == tmp_path / ".config" / "opencode" / "opencode.json"
    assert found["aider"] is None
    moved = {"CODEX_HOME": "/c", "XDG_CONFIG_HOME": "/x", "GROK_HOME": ""}
    assert CLIENTS["codex"].find_file(tmp_path, moved) == Path("/c/config.toml")
    assert CLIENTS["opencode"].find_file(tmp_path, moved) == Path("/x/opencode/opencode.json")
    assert CLIENTS["grok"].find_file(tmp_path, moved) == tmp_path / ".grok" / "config.toml"
