"""The limits themselves: what is accepted, what is refused, and in which words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.errors import PolicyInvalid
from server.policy import (
    Effect,
    LimitValue,
    Policy,
    apply_changes,
    find_limit,
    list_foreign_tables,
    list_limits,
    parse_limit,
    read_limit,
    validate_policy,
)

NUMBERS = [limit for limit in list_limits() if limit.kind in ("int", "float")]


def document(key: str, value: Any) -> dict[str, Any]:
    return apply_changes({}, {key: value})


def refusal_of(tables: Mapping[str, Any]) -> PolicyInvalid:
    with pytest.raises(PolicyInvalid) as caught:
        validate_policy(tables)
    return caught.value


def test_empty_document_means_all_defaults() -> None:
    assert validate_policy({}) == Policy()
    assert Policy().policy.max_in_flight == 2
    assert Policy().server.port == 11234
    assert Policy().model.path == "nano"


def test_every_limit_is_complete() -> None:
    for limit in list_limits():
        assert limit.description.endswith("."), limit.key
        assert limit.allowed, limit.key
        assert read_limit(Policy(), limit.key) == limit.default
        assert limit.kind == "table" or validate_policy(document(limit.key, limit.default)) == Policy()
        assert (limit.minimum is None) == (limit.kind not in ("int", "float"))


def test_find_limit_knows_kind_range_and_effect() -> None:
    limit = find_limit("policy.max_in_flight")
    assert (limit.kind, limit.minimum, limit.maximum, limit.allowed) == ("int", 1, 64, "1 to 64")
    assert limit.effect is Effect.NEXT_DECISION
    assert find_limit("policy.refusal_status").allowed == '"auto", 400, 409, 429, 503'
    with pytest.raises(KeyError):
        find_limit("policy.nothing")


@pytest.mark.parametrize("limit", NUMBERS, ids=lambda limit: limit.key)
def test_bounds_are_inclusive_and_nothing_lies_beyond(limit: Any) -> None:
    kind = int if limit.kind == "int" else float
    for bound in (limit.minimum, limit.maximum):
        assert read_limit(validate_policy(document(limit.key, kind(bound))), limit.key) == bound
    for beyond in (kind(limit.minimum - 1), kind(limit.maximum + 1)):
        error = refusal_of(document(limit.key, beyond))
        assert error.key == limit.key
        assert limit.allowed in error.message


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("policy.max_in_flight", True, "true is not a whole number; allowed: 1 to 64."),
        ("policy.max_in_flight", "4", '"4" is not a whole number'),
        ("policy.max_in_flight", 2.0, "2.0 is not a whole number"),
        pytest.param("policy.max_in_flight", 10**5000, "the huge number is not allowed", id="huge"),
        ("policy.max_in_flight", {"a": 1}, "a table is not a whole number"),
        ("engine.stall_s", True, "true is not a number"),
        ("engine.stall_s", float("nan"), "nan is not allowed"),
        ("engine.stall_s", float("inf"), "inf is not allowed"),
        ("engine.stall_s", 10**400, "the huge number is not allowed"),
        ("console.ascii", 1, "1 is not allowed; allowed: true or false."),
        ("console.ascii", "true", '"true" is not allowed'),
        ("policy.refusal_status", "429", '"429" is not allowed'),
        ("policy.refusal_status", 429.0, "429.0 is not allowed"),
        ("policy.refusal_status", 418, "418 is not allowed"),
        ("policy.limit_behavior", "Fail", '"Fail" is not allowed; allowed: "fail", "queue", "overflow".'),
        ("server.host", 5, "5 is not text"),
        ("server.host", "", '"" is not allowed'),
        ("server.host", "a b", '"a b" is not allowed'),
        ("model.path", "a\x1b[2Jb", "'a\\x1b[2Jb' is not allowed"),
        ("server.allowed_origins", "http://a", '"http://a" is not a list'),
        ("server.allowed_origins", [1], "a list is not allowed"),
        ("server.allowed_origins", ["http://a/"], "a list is not allowed"),
        ("server.allowed_origins", ["*"], "a list is not allowed"),
        ("server.allowed_origins", ["http://a"] * 65, "allowed: up to 64 origins"),
    ],
)
def test_wrong_type_or_value_is_refused_in_words(key: str, value: Any, said: str) -> None:
    error = refusal_of(document(key, value))
    assert error.key == key
    assert error.message.startswith(f"{key}: ")
    assert said in error.message
    assert error.message.isprintable()


def test_whole_number_is_fine_where_any_number_is() -> None:
    value = validate_policy(document("engine.stall_s", 25)).engine.stall_s
    assert (value, type(value)) == (25.0, float)


@pytest.mark.parametrize("value", [5, "x y", "é" * 3, "k" * 513])
def test_wrong_secret_is_never_repeated(value: Any) -> None:
    message = refusal_of(document("server.api_key", value)).message
    assert str(value) not in message.replace("512", "")
    assert "what is given" in message


@pytest.mark.parametrize(
    ("tables", "key", "suggestion"),
    [
        ({"polcy": {"max_in_flight": 1}}, "polcy", "did you mean policy?"),
        ({"Policy": {}}, "Policy", "did you mean policy?"),
        ({"subagents": {"max_depth": 1}}, "subagents", "did you mean policy.subagents?"),
        ({"policy": {"max_inflight": 1}}, "policy.max_inflight", "did you mean policy.max_in_flight?"),
        ({"policy": {"max_depth": 1}}, "policy.max_depth", "did you mean policy.subagents.max_depth?"),
        ({"max_in_flight": 1}, "max_in_flight", "did you mean policy.max_in_flight?"),
        ({"server": {"zzz": 1}}, "server.zzz", "known here: host, port, api_key"),
        ({"policy": {"a.b": 1}}, 'policy."a.b"', "known here"),
        (
            {"title": "mine"},
            "title",
            "known here: server, model, engine, policy, console, history, aliases, upstreams.",
        ),
    ],
)
def test_unknown_key_is_refused_with_the_nearest_one(tables: dict[str, Any], key: str, suggestion: str) -> None:
    error = refusal_of(tables)
    assert error.key == key
    assert suggestion in error.message


def test_unknown_key_is_quoted_in_a_line() -> None:
    error = refusal_of({"a" * 60_000: 1})
    assert len(error.message) < 300
    assert error.key == "a" * 60_000


@pytest.mark.parametrize("value", [3, [{"api_key": "k"}], "x", [1]])
def test_table_must_be_a_table_and_its_value_is_not_repeated(value: Any) -> None:
    message = refusal_of({"server": value}).message
    assert message.startswith("server must be a table ([server]), not ")
    assert "api_key" not in message


def test_tables_of_other_programs_are_left_aside() -> None:
    tables = {"tool": {"x": {"port": float("nan")}}, "notes": [{"a": 1}], "policy": {"max_in_flight": 3}}
    assert list_foreign_tables(tables) == ("tool", "notes")
    assert list_foreign_tables({"mine": {}, "code": {}}) == ("mine", "code"), "no slips of the pen for engine and model"
    assert validate_policy(tables).policy.max_in_flight == 3


def test_near_misses_and_lone_keys_are_not_foreign() -> None:
    assert (
        list_foreign_tables({"polcy": {}, "policies": {}, "servers": {}, "models": [{}], "x": 1, "y": [], "z": [1]})
        == ()
    )


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("sk-pasted", "server.keys: what is given is not a table; allowed: up to 64 lines"),
        ({"alice": "sk-pasted"}, "server.keys: not all of it is allowed; allowed: up to 64 lines"),
        ({"a/b": "A"}, "server.keys: not all of it is allowed"),
        ({"alice": 1}, "server.keys: not all of it is allowed"),
        ({f"n{n}": "A" for n in range(65)}, "server.keys: not all of it is allowed"),
    ],
)
def test_a_table_of_keys_is_judged_without_quoting_what_may_be_a_key(value: Any, words: str) -> None:
    error = refusal_of({"server": {"keys": value}})
    assert error.message.startswith(words)
    assert error.key == "server.keys"
    assert "pasted" not in error.message


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        (
            {"policy": {"clients": {"codex": {"max_in_flight": 65}}}},
            "policy.clients: max_in_flight: expected `int` <= 64;",
        ),
        ({"policy": {"clients": {"codex": {"x": 1}}}}, "policy.clients: not all of it is allowed;"),
        ({"upstreams": [{"name": "a", "base_url": "ftp://b"}]}, "upstreams: not all of it is allowed;"),
        ({"upstreams": 3}, "upstreams: 3 is not a table;"),
    ],
)
def test_a_table_of_the_operators_own_is_judged_by_its_rows(tables: dict[str, Any], words: str) -> None:
    assert refusal_of(tables).message.startswith(words)


def test_tables_of_the_operators_own_read_as_a_line_for_each_name() -> None:
    policy = validate_policy(
        {
            "aliases": {"gpt-5": "nano"},
            "policy": {"clients": {"codex": {"max_in_flight": 1}}},
            "upstreams": [{"name": "brain", "base_url": "http://127.0.0.1:1234/v1", "models": ["qwen*"]}],
        }
    )
    assert read_limit(policy, "aliases") == ("gpt-5 = nano",)
    assert read_limit(policy, "policy.clients") == ("codex: max_in_flight = 1",)
    assert read_limit(policy, "upstreams")[0].startswith("name = brain, base_url = http://127.0.0.1:1234/v1")  # pyright: ignore


def test_a_key_in_the_place_of_a_variables_name_is_not_quoted() -> None:
    error = refusal_of({"server": {"api_keys_env": "sk-pasted"}})
    assert error.message.startswith("server.api_keys_env: what is given is not allowed")


def test_a_table_reads_as_its_lines_and_is_typed_in_the_file_only() -> None:
    tables = {"server": {"keys": {"alice": "KEY_A", "bob": "KEY_B"}}}
    lines = ("alice = KEY_A", "bob = KEY_B")
    assert read_limit(validate_policy(tables), "server.keys") == lines
    assert apply_changes({}, {"server.keys": lines}) == tables
    with pytest.raises(PolicyInvalid, match="edit it in the file"):
        parse_limit("server.keys", "alice = KEY_A")


def test_apply_changes_copies_and_makes_tables() -> None:
    before: dict[str, Any] = {"policy": {"max_in_flight": 1}}
    after = apply_changes(before, {"policy.max_in_flight": 3, "server.allowed_origins": ("http://a",)})
    assert before == {"policy": {"max_in_flight": 1}}
    assert after == {"policy": {"max_in_flight": 3}, "server": {"allowed_origins": ["http://a"]}}
    with pytest.raises(PolicyInvalid, match="policy must be a table, not text"):
        apply_changes({"policy": "secret"}, {"policy.max_in_flight": 1})


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("policy.max_in_flight", " 2 ", 2),
        ("policy.max_in_flight", "+3", 3),
        ("policy.max_context_tokens", "-0", 0),
        ("policy.max_context_tokens", "32_768", 32768),
        ("engine.stall_s", "50", 50.0),
        ("engine.stall_s", "1e2", 100.0),
        ("engine.stall_s", "22.5", 22.5),
        ("console.refresh_hz", ".5", 0.5),
        ("console.ascii", "true", True),
        ("policy.refusal_status", "429", 429),
        ("policy.refusal_status", "auto", "auto"),
        ("policy.refusal_status", '"auto"', "auto"),
        ("server.allowed_origins", "", ()),
        ("server.allowed_origins", "http://a, http://b:3000 ,", ("http://a", "http://b:3000")),
        ("server.api_key", "", ""),
        ("model.path", "/models/my model", "/models/my model"),
    ],
)
def test_typed_text_becomes_the_value(key: str, text: str, value: LimitValue) -> None:
    parsed = parse_limit(key, text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("policy.max_in_flight", "", "nothing was given; allowed: 1 to 64."),
        ("policy.max_in_flight", "abc", "'abc' is not a whole number"),
        ("policy.max_in_flight", "-1", "-1 is not allowed"),
        ("policy.max_in_flight", "-0", "0 is not allowed"),
        ("policy.max_in_flight", "1e9", "'1e9' is not a whole number"),
        ("policy.max_in_flight", "2.5", "'2.5' is not a whole number"),
        ("policy.max_in_flight", "2.0", "'2.0' is not a whole number"),
        ("policy.max_in_flight", "+-2", "'+-2' is not a whole number"),
        ("policy.max_in_flight", "1,024", "'1,024' is not a whole number"),
        ("policy.max_in_flight", "0x10", "'0x10' is not a whole number"),
        ("policy.max_in_flight", "_1", "'_1' is not a whole number"),
        ("policy.max_in_flight", "٣", "'٣' is not a whole number"),
        ("policy.max_in_flight", "²", "'²' is not a whole number"),
        ("policy.max_in_flight", "2\n3", "'2\\n3' is not a whole number"),
        ("policy.max_in_flight", "9" * 6000, "99999999999999999999... is not allowed"),
        ("policy.max_in_flight", "true", "'true' is not a whole number"),
        ("engine.stall_s", "nan", "'nan' is not a number"),
        ("engine.stall_s", "inf", "'inf' is not a number"),
        ("engine.stall_s", "1e400", "inf is not allowed"),
        ("engine.stall_s", "٣", "'٣' is not a number"),
        ("engine.stall_s", "0.5", "0.5 is not allowed; allowed: 20 to 3,600."),
        ("console.ascii", "yes", "'yes' is not a valid value; allowed: true or false."),
        ("console.ascii", "1", "'1' is not a valid value"),
        ("policy.refusal_status", "418", "'418' is not a valid value"),
        ("policy.refusal_status", "", "nothing was given"),
        ("server.host", "", '"" is not allowed'),
        ("server.host", "a\nb", "'a\\nb' is not allowed"),
        ("server.allowed_origins", "localhost", "allowed: up to 64 origins"),
        ("model.path", "p" * 5000, "allowed: up to 4,096 characters"),
    ],
)
def test_typed_nonsense_is_refused_with_the_range(key: str, text: str, said: str) -> None:
    with pytest.raises(PolicyInvalid) as caught:
        parse_limit(key, text)
    assert said in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 200


ALONE = [limit.key for limit in list_limits() if limit.key != "policy.overflow_to"]
"""Limits that are right or wrong whatever else the file says."""


@given(st.sampled_from(ALONE), st.text(max_size=30))
def test_any_typed_text_is_valid_or_refused_by_one_sentence(key: str, text: str) -> None:
    try:
        value = parse_limit(key, text)
    except PolicyInvalid as caught:
        error = caught
    else:
        assert read_limit(validate_policy(document(key, value)), key) == value
        return
    assert error.key == key
    assert "\n" not in error.message


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from([limit.key for limit in list_limits()] + ["policy", "server", "policy.subagents", "x"]),
)
def test_any_value_anywhere_is_accepted_or_refused_by_policy_invalid(value: Any, key: str) -> None:
    try:
        message = f"{validate_policy(document(key, value))}."
    except PolicyInvalid as error:
        message = error.message
    assert message.endswith((".", "?"))
