from __future__ import annotations

import pytest

from server.api.guard import check_host, check_key, check_origin, preflight_headers, read_bearer
from server.errors import Forbidden, KeyRejected


@pytest.mark.parametrize(
    "host",
    [
        "",
        "127.0.0.1:11234",
        "127.0.0.1",
        "localhost",
        "LOCALHOST:11234",
        "a.localhost:1",
        "[::1]:11234",
        "[::1]",
        "192.168.1.4:11234",
        "host.docker.internal:11234",
    ],
)
def test_honest_hosts_are_answered(host: str) -> None:
    check_host(host, "127.0.0.1")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:11234", "localhost.evil.example", "127.0.0.1.evil.example", "evil:1:2", "[evil]:1"],
)
@pytest.mark.parametrize("bound", ["127.0.0.1", "::1", "localhost"])
def test_a_foreign_name_for_this_machine_is_refused(host: str, bound: str) -> None:
    with pytest.raises(Forbidden, match=r"127\.0\.0\.1 or localhost"):
        check_host(host, bound)


def test_any_name_is_fine_for_a_server_that_listens_to_others() -> None:
    check_host("mac-studio.local:11234", "0.0.0.0")


def test_a_request_that_no_page_sent_gets_no_cors_headers() -> None:
    assert check_origin(None, "127.0.0.1:1", ()) == {}


def test_a_page_of_the_servers_own_is_no_stranger() -> None:
    assert check_origin("http://127.0.0.1:1", "127.0.0.1:1", ()) == {}


def test_a_page_whose_own_name_was_pointed_here_is_refused() -> None:
    with pytest.raises(Forbidden):
        check_origin("http://evil.example:1", "evil.example:1", ())


@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:3000", "", "http://[bad"])
def test_a_page_from_elsewhere_is_refused_and_told_which_key_allows_it(origin: str) -> None:
    with pytest.raises(Forbidden, match="allowed_origins"):
        check_origin(origin, "localhost:11234", ("http://localhost:3001",))


def test_a_listed_origin_is_named_in_the_answer_and_never_a_wildcard() -> None:
    headers = check_origin("http://localhost:3000", "127.0.0.1:1", ("http://LOCALHOST:3000/",))
    assert headers["access-control-allow-origin"] == "http://localhost:3000"
    assert headers["vary"] == "Origin"
    assert "retry-after" in headers["access-control-expose-headers"]


def test_a_preflight_allows_what_the_browser_asked_for() -> None:
    assert preflight_headers("authorization,x-stainless-os")["access-control-allow-headers"] == (
        "authorization,x-stainless-os"
    )
    assert "POST" in preflight_headers(None)["access-control-allow-methods"]


def test_no_key_is_asked_for_when_none_is_set() -> None:
    check_key(None, "")


def test_the_right_key_opens() -> None:
    check_key("Bearer geheim-ě", "geheim-ě")
    check_key("bearer  geheim", "geheim")


@pytest.mark.parametrize(
    ("header", "words"),
    [(None, "missing"), ("", "missing"), ("Basic geheim", "missing"), ("Bearer wrong", "not the right one")],
)
def test_another_key_does_not(header: str | None, words: str) -> None:
    with pytest.raises(KeyRejected, match=words):
        check_key(header, "geheim")


def test_the_token_is_read_from_the_header() -> None:
    assert read_bearer("Bearer abc") == "abc"
    assert read_bearer("abc") == ""
