from __future__ import annotations

import pytest

from server.policy import UpstreamPolicy
from server.upstreams.routing import find_overflow, find_route, find_upstream, list_names, resolve_alias


def table(name: str, *models: str) -> UpstreamPolicy:
    return UpstreamPolicy(name=name, base_url="http://h/v1", models=models)


def is_ours(name: str) -> bool:
    return name == "nano"


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("gpt-5", "exact"),
        ("gpt-6", "first"),
        ("org/gpt-6", None),
        ("org/x", "slash"),
        ("a.b", "dots"),
        ("aXb", None),
        ("[x]", "brackets"),
        ("x", None),
        ("begin-end", "middle"),
        ("beginend", None),
        ("", None),
    ],
)
def test_a_name_beats_a_pattern_and_an_earlier_table_a_later_one(model: str, found: str | None) -> None:
    tables = (
        table("first", "gpt-*"),
        table("second", "gpt-*"),
        table("exact", "gpt-5"),
        table("slash", "org/x*"),
        table("dots", "a.b*"),
        table("brackets", "[x]*"),
        table("middle", "begin-*end"),
    )
    upstream = find_upstream(model, tables)
    assert (upstream and upstream.name) == found


def test_a_star_alone_takes_everything_but_our_own_model() -> None:
    tables = (table("all", "*"),)
    assert find_route("anything/at:all", is_ours, {}, tables) is not None
    route = find_route("nano", is_ours, {}, tables)
    assert route is not None
    assert route.upstream is None


def test_aliases_are_followed_and_a_loop_ends() -> None:
    aliases = {"a": "b", "b": "c", "x": "y", "y": "x"}
    assert resolve_alias("a", aliases) == "c"
    assert resolve_alias("c", aliases) == "c"
    assert resolve_alias("x", aliases) in aliases


def test_an_alias_comes_before_our_own_name() -> None:
    route = find_route("nano", is_ours, {"nano": "far"}, (table("u", "far"),))
    assert route is not None
    assert route.upstream is not None
    assert (route.model, route.upstream.name) == ("far", "u")
    assert find_route("lost", is_ours, {"lost": "nowhere"}, (table("u", "far"),)) is None


@pytest.mark.parametrize(
    ("models", "asked", "sent"),
    [
        (("big", "small"), "nano", "big"),
        (("big-*", "small"), "nano", "small"),
        (("big", "small"), "small", "small"),
        (("big", "n*"), "nano", "nano"),
        (("big-*",), "nano", "nano"),
        ((), "nano", "nano"),
    ],
)
def test_an_overflow_asks_for_a_model_that_the_upstream_has(models: tuple[str, ...], asked: str, sent: str) -> None:
    route = find_overflow(asked, "u", (table("other", "x"), table("u", *models)))
    assert route is not None
    assert route.model == sent


def test_an_overflow_to_nobody_is_none() -> None:
    assert find_overflow("nano", "u", ()) is None


def test_names_are_listed_once_and_without_patterns() -> None:
    tables = (table("u", "far", "gpt-*", "nano"), table("v", "far", "near"))
    names = list_names(is_ours, {"mine": "nano", "far": "near", "g": "gpt-9", "lost": "nowhere"}, tables)
    listed = [(each.name, each.model, each.upstream and each.upstream.name) for each in names]
    assert listed == [
        ("mine", "nano", None),
        ("far", "near", "v"),
        ("g", "gpt-9", "u"),
        ("near", "near", "v"),
    ]
