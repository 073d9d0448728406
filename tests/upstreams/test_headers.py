from __future__ import annotations

import pytest

from server.upstreams.headers import HOPS, build_request_headers, build_response_headers, has_been_at


@pytest.mark.parametrize(
    "name",
    [
        *("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "proxy-authorization"),
        *("x-auth-token", "x-amz-security-token", "x-forwarded-for", "forwarded", "x-real-ip", "via"),
        *("connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "expect", "proxy-connection"),
        *("host", "content-length", "origin", "referer", "sec-fetch-mode", "x_api_key", "x-client-secret"),
    ],
)
def test_what_is_for_us_or_of_the_connection_stays_here(name: str) -> None:
    assert build_request_headers({name: "v"}, "", "openai") == {"accept-encoding": "identity"}


@pytest.mark.parametrize(
    "name",
    [
        *("accept", "content-type", "user-agent", "anthropic-version", "anthropic-beta", "openai-organization"),
        *("x-session-id", "x-parent-session-id", "x-claude-code-session-id", "x-grok-session-id", "thread-id"),
        *("x-stainless-retry-count", "idempotency-key", "x-codex-turn-metadata", "http-referer", "x-title"),
    ],
)
def test_what_speaks_of_the_request_goes_on(name: str) -> None:
    assert build_request_headers({name: "v"}, "", "openai")[name] == "v"


def test_the_upstreams_key_takes_the_place_of_the_clients() -> None:
    given = {"authorization": "Bearer mine", "x-api-key": "mine"}
    sent = build_request_headers(given, "theirs", "openai")
    assert sent == {"accept-encoding": "identity", "authorization": "Bearer theirs"}
    assert build_request_headers(given, "theirs", "anthropic") == {"accept-encoding": "identity", "x-api-key": "theirs"}


def test_headers_that_a_connection_names_are_its_own_both_ways() -> None:
    assert "x-hop" not in build_request_headers({"connection": "close, X-Hop", "x-hop": "1"}, "", "openai")
    back = [("Connection", "X-Hop"), ("X-Hop", "1"), ("X-Their", "2"), ("Set-Cookie", "c"), ("Content-Length", "3")]
    assert build_response_headers(back) == [("x-their", "2")]


def test_a_header_that_is_there_twice_comes_back_twice() -> None:
    assert build_response_headers([("Link", "a"), ("link", "b")]) == [("link", "a"), ("link", "b")]


def test_each_server_on_the_way_is_named_once_and_found_again() -> None:
    once = build_request_headers({}, "", "openai", "a1")
    twice = build_request_headers(once, "", "openai", "b2")
    assert (once[HOPS], twice[HOPS]) == ("a1", "a1, b2")
    assert [has_been_at(twice, hop) for hop in ("a1", "b2", "b", "")] == [True, True, False, False]
    assert not has_been_at({}, "a1")
