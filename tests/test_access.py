"""Whose keys there are, and when nobody has to have one."""

from __future__ import annotations

from typing import Any

import pytest

from server.access import KeyRing, KeySource, answers_strangers, check_access, is_loopback, list_warnings, load_keys
from server.errors import PolicyInvalid
from server.policy import ServerPolicy, validate_policy

ENVIRONMENT = {
    "ONE": "k-one",
    "MANY": " k-1 ,, k-2,\n",
    "ALICE": "k-alice\n",
    "BLANK": "  ",
    "COMMAS": " , ,",
    "ODD": "k\x7f",
}


def server(**fields: Any) -> ServerPolicy:
    return validate_policy({"server": fields}).server


def refusal_of(**fields: Any) -> PolicyInvalid:
    with pytest.raises(PolicyInvalid) as caught:
        check_access(server(**fields), ENVIRONMENT)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "held"),
    [
        ({}, {}),
        ({"api_key": "k"}, {"api_key": "k"}),
        ({"api_keys_env": "ONE"}, {"key-1": "k-one"}),
        ({"api_keys_env": "MANY"}, {"key-1": "k-1", "key-2": "k-2"}),
        ({"keys": {"alice": "ALICE"}}, {"alice": "k-alice"}),
        (
            {"api_key": "k", "api_keys_env": "ONE", "keys": {"alice": "ALICE"}},
            {"api_key": "k", "key-1": "k-one", "alice": "k-alice"},
        ),
    ],
)
def test_keys_come_from_the_file_and_from_the_environment_each_with_a_name(
    fields: dict[str, Any], held: dict[str, str]
) -> None:
    keys = load_keys(server(**fields), ENVIRONMENT)
    assert keys.names == tuple(held)
    assert server(**fields).wants_key == bool(held)
    assert {name: keys.find(key) for name, key in held.items()} == {name: name for name in held}
    assert [keys.find(other) for other in ("", "k-", "K-ONE", "k-one ", "\ud800")] == [None] * 5


@pytest.mark.parametrize(
    ("fields", "limit", "words"),
    [
        ({"api_keys_env": "GONE"}, "server.api_keys_env", "environment variable GONE is not set"),
        ({"api_keys_env": "BLANK"}, "server.api_keys_env", "environment variable BLANK is empty"),
        ({"api_keys_env": "COMMAS"}, "server.api_keys_env", "environment variable COMMAS is empty"),
        ({"keys": {"bob": "GONE"}}, "server.keys", "environment variable GONE is not set"),
        ({"keys": {"bob": "BLANK"}}, "server.keys", "environment variable BLANK is empty"),
        ({"keys": {"bob": "ODD"}}, "server.keys", "visible ASCII"),
        ({"keys": {"alice": "ALICE", "bob": "ALICE"}}, "server.keys", "bob has the same key as alice"),
        ({"api_key": "k-one", "api_keys_env": "ONE"}, "server.api_keys_env", "key-1 has the same key as api_key"),
        ({"api_keys_env": "ONE", "keys": {"key-1": "ALICE"}}, "server.keys", "goes by the name key-1 already"),
        ({"api_key": "k", "keys": {"api_key": "ALICE"}}, "server.keys", "goes by the name api_key already"),
        ({"keys": {"alice": "ALICE"}, "read_only_keys": ["alcie"]}, "server.read_only_keys", "there are: alice."),
        ({"read_only_keys": ["alice"]}, "server.read_only_keys", "there are: none."),
    ],
)
def test_a_key_that_cannot_be_had_is_a_fault_and_never_no_key_needed(
    fields: dict[str, Any], limit: str, words: str
) -> None:
    error = refusal_of(**fields)
    assert error.key == limit
    assert error.message.startswith(f"{limit}: ")
    assert words in error.message
    assert not [key for key in ("k-one", "k-alice", "k\x7f") if key in error.message]


def test_every_key_is_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(other)
        return one == other

    monkeypatch.setattr("server.access.hmac.compare_digest", compare)
    keys = KeyRing({"a": "1", "b": "22", "c": "333"})
    for given in ("1", "333", "none of them"):
        compared.clear()
        keys.find(given)
        assert len(compared) == 3
        assert {len(digest) for digest in compared} == {32}


def test_what_holds_the_keys_gives_none_away() -> None:
    keys = KeyRing({"a": "very-secret"})
    assert "very-secret" not in f"{keys!r} {vars(keys)}"


def test_keys_are_read_anew_when_the_policy_is_another_one() -> None:
    environment = {"ONE": "k-one"}
    source, policy = KeySource(environment), server(api_keys_env="ONE")
    assert source.read(policy).find("k-one") == "key-1"
    assert source.read(policy) is source.read(policy)
    assert source.read(server(api_key="k")).names == ("api_key",)
    assert source.read(server()).names == ()


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("0.0.0.0", False),
        ("0", False),
        ("::", False),
        ("10.0.0.4", False),
        ("box.local", False),
        ("localhost.evil.example", False),
        ("a.localhost", False),
    ],
)
def test_only_loopback_counts_as_this_machine_alone(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.local", "0"])
def test_an_address_for_others_needs_a_key_or_the_word_that_it_needs_none(host: str) -> None:
    error = refusal_of(host=host)
    assert error.key == "server.host"
    for way_out in (
        "server.api_key",
        "server.api_keys_env",
        "[server.keys]",
        "127.0.0.1",
        "server.allow_unauthenticated = true",
    ):
        assert way_out in error.message
    for fields in ({"api_key": "k"}, {"api_keys_env": "ONE"}, {"keys": {"alice": "ALICE"}}):
        check_access(server(host=host, **fields), ENVIRONMENT)
        assert not answers_strangers(host, server(**fields, allow_unauthenticated=True))
    check_access(server(host=host, allow_unauthenticated=True), ENVIRONMENT)
    assert answers_strangers(host, server(allow_unauthenticated=True))


def test_only_a_server_that_answers_strangers_is_warned_of() -> None:
    def warn(**fields: Any) -> tuple[str, ...]:
        return list_warnings(validate_policy({"server": fields}))

    assert len(warn(host="0.0.0.0", allow_unauthenticated=True)) == 1
    assert "0.0.0.0" in warn(host="0.0.0.0", allow_unauthenticated=True)[0]
    assert warn(allow_unauthenticated=True) == warn(host="0.0.0.0", api_key="k", allow_unauthenticated=True) == ()
