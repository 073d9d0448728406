"""What is said about limits: values, origins, consequences, and what a save did."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from console.editing import LIMITS
from console.limit_words import (
    DOTS,
    explain_consequence,
    explain_differences,
    explain_origin,
    explain_running,
    explain_saved,
    hide_secrets,
    short_origin,
    show_measure,
    show_value,
)
from server.policy import LimitValue, Policy
from server.policy_store import PolicyState


def state(**origins: str) -> PolicyState:
    return PolicyState(
        policy=Policy(),
        path="/home/ada/homebase.toml",
        exists=True,
        etag="e",
        problem=None,
        origins={key.replace("__", "."): origin for key, origin in origins.items()},
        can_undo=False,
    )


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("policy.max_in_flight", 1, "1 stream"),
        ("policy.max_in_flight", 2, "2 streams"),
        ("policy.subagents.max_concurrent", 1, "1 child"),
        ("policy.max_context_tokens", 131_072, "131,072 tokens"),
        ("server.port", 11234, "11234"),
        ("server.keep_alive_s", 5.0, "5.0 s"),
        ("console.ascii", False, "false"),
        ("policy.refusal_status", 429, "429"),
        ("server.api_key", "", "not set"),
        ("server.api_key", "x", DOTS),
        ("server.allowed_origins", (), "none"),
        ("server.allowed_origins", ("http://a:1", "http://b:2"), "http://a:1, http://b:2"),
    ],
)
def test_values_are_written_for_reading(key: str, value: LimitValue, shown: str) -> None:
    assert show_measure(LIMITS[key], value) == shown


def test_a_secret_has_the_same_look_whatever_its_length() -> None:
    limit = LIMITS["server.api_key"]
    assert show_value(limit, "x") == show_value(limit, "x" * 100)


@pytest.mark.parametrize(
    ("origin", "long", "short"),
    [
        ("homebase.toml:12", "homebase.toml line 12", "line 12"),
        ("--port", "--port, for this run only", "--port"),
        ("default", "default, not in the file", "default"),
        ("homebase.toml", "homebase.toml", "homebase.toml"),
    ],
)
def test_origins_are_told(origin: str, long: str, short: str) -> None:
    assert explain_origin(origin) == long
    assert short_origin(origin) == short


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("policy.max_in_flight", 1, "2 in flight, limit 1: none is cut; drains to 1."),
        ("policy.max_in_flight", 2, None),
        ("policy.max_context_tokens", 20_000, "1 in flight is longer: none is cut; new requests are held to 20,000."),
        ("policy.max_context_tokens", 10_000, "2 in flight are longer: none is cut; new requests are held to 10,000."),
        ("policy.max_context_tokens", 300_000, "The model itself ends at 262,144 tokens; that stays the limit."),
        ("policy.max_context_tokens", 0, None),
        ("server.host", "0.0.0.0", "Other machines will be answered; a key must be set as well."),
        ("server.allow_unauthenticated", True, "Where no key is set, whoever reaches the port is answered."),
        ("server.allow_unauthenticated", False, None),
        ("server.host", "127.0.0.2", None),
        ("server.port", 9000, "Clients must be pointed at port 9000 after the next start."),
        ("console.mouse", False, None),
    ],
)
def test_consequences_are_told(samples: Any, key: str, value: LimitValue, told: str | None) -> None:
    assert explain_consequence(key, value, samples.parent_and_child()) == told


def test_what_this_run_does_is_told_when_the_policy_waits_for_the_next_start(samples: Any) -> None:
    snapshot = samples.snapshot()
    assert explain_running("server.port", snapshot) is None
    waiting = msgspec.structs.replace(snapshot, port=9000)
    assert explain_running("server.port", waiting) == "this run goes on with 9000 until it is started again"
    assert explain_running("policy.max_in_flight", waiting) is None


def test_a_save_of_several_limits_tells_each_kind_apart() -> None:
    changes: dict[str, LimitValue] = {
        "policy.max_in_flight": 1,
        "policy.refusal_status": 503,
        "server.port": 9000,
        "model.dtype": "float32",
    }
    assert explain_saved(changes, state(server__port="--port")) == (
        "4 limits saved to homebase.toml: max_in_flight, refusal_status in force now; port behind --port of this run; "
        "dtype in force at the next start"
    )


def test_differences_are_cut_after_three() -> None:
    differences = tuple(("policy.max_in_flight", i, i + 1) for i in range(5))
    assert explain_differences(differences).endswith("max_in_flight 2 → 3, 2 more")
    assert explain_differences((("server.api_key", "a", "b"),)) == f"api_key {DOTS} → {DOTS}"


@pytest.mark.parametrize(
    "line",
    [
        '+api_key = "swordfish"',
        "-api_key='swordfish'  # the key",
        ' server = { api_key = "swordfish", port = 1 }',
        '+server.api_key = "sword\\"fish swordfish"',
        '+"api_key" = """swordfish"""',
    ],
)
def test_secrets_in_a_diff_become_dots(line: str) -> None:
    hidden = hide_secrets(line)
    assert "swordfish" not in hidden
    assert DOTS in hidden


@pytest.mark.parametrize("line", ['+api_key = ""', "-max_in_flight = 2", '+path = "nano"', '+api_key = "•••••• (new)"'])
def test_the_rest_of_a_diff_is_left_alone(line: str) -> None:
    assert hide_secrets(line) == line
