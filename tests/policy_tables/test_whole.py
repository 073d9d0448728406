from __future__ import annotations

from typing import Any

import pytest

from server.errors import PolicyInvalid
from server.policy import parse_limit, validate_policy

FAR = {"name": "far", "base_url": "http://h/v1", "models": ["m"]}


def refusal_of(document: dict[str, Any]) -> tuple[str | None, str]:
    with pytest.raises(PolicyInvalid) as caught:
        validate_policy(document)
    return caught.value.key, caught.value.message


def test_two_upstreams_of_one_name() -> None:
    key, message = refusal_of({"upstreams": [FAR, {**FAR, "base_url": "http://other/v1"}]})
    assert (key, message) == ("upstreams", "upstreams: two tables have the name far; give each its own.")


@pytest.mark.parametrize(("tables", "known"), [([], "there is none"), ([FAR], "far")])
def test_an_overflow_to_nobody(tables: list[Any], known: str) -> None:
    key, message = refusal_of({"upstreams": tables, "policy": {"overflow_to": "fra"}})
    assert key == "policy.overflow_to"
    assert message == f"policy.overflow_to: no [[upstreams]] table has the name fra; known: {known}."


@pytest.mark.parametrize(
    ("aliases", "way"),
    [
        ({"a": "a"}, "a -> a"),
        ({"a": "b", "b": "c", "c": "a"}, "a -> b -> c -> a"),
        ({"x": "a", "a": "b", "b": "a"}, "x -> a -> b -> a"),
    ],
)
def test_aliases_in_a_loop(aliases: dict[str, str], way: str) -> None:
    key, message = refusal_of({"aliases": aliases})
    assert key == "aliases"
    assert message == f"aliases: {way} leads back to itself, so no model would answer."


def test_what_means_one_another_is_fine() -> None:
    document = {"upstreams": [FAR], "policy": {"overflow_to": "far"}, "aliases": {"a": "b", "b": "c", "d": "c"}}
    assert validate_policy(document).policy.overflow_to == "far"


def test_a_value_alone_is_not_judged_by_a_file_that_is_not_there() -> None:
    assert parse_limit("policy.overflow_to", "far") == "far"
