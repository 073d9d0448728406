from __future__ import annotations

from typing import Any

import pytest

from server.access import KeyRing
from server.api.guard import (
    check_head,
    check_host,
    check_key,
    check_origin,
    check_reach,
    preflight_headers,
    read_authority,
    read_bearer,
    read_keys,
)
from server.errors import Forbidden, HeadTooLarge, KeyReadOnly, KeyRejected
from server.policy import ServerPolicy

HERE = "127.0.0.1"


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
        "localhost.:11234",
        "localhost:",
        "[FE80::1%eth0]:1",
        " 127.0.0.1 ",
    ],
)
def test_honest_hosts_are_answered(host: str) -> None:
    check_host(host, "127.0.0.1")


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:11234",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil:1:2",
        "[evil]:1",
        "evil.example.",
        "EVIL.example",
        "localhost..",
        "127.0.0.1@evil.example",
        "localhost@evil.example:80",
        "user:localhost@evil.example",
        "evil.example@localhost",
        "[::1]evil.example",
        "[::1].evil.example",
        "127.0.0.1:80@evil.example",
        "127.0.0.1:evil.example",
        "localhost/evil.example",
        "localhost\\evil.example",
        "localhost evil.example",
        "localhost,evil.example",
        "xn--lcalhost-8cf",
        "l\u043ecalhost",
        ".localhost.evil.example",
        "::1",
        "127.1",
        "2130706433",
        "host.docker.internal.evil.example",
        "@",
        ":80",
        "[]",
        "null",
    ],
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
    assert preflight_headers("x-a, \x1b[31mx-b\xff")["access-control-allow-headers"] == "x-a, 31mx-b"


def check(given: tuple[str, ...], keys: dict[str, str], host: str = HERE, **policy: Any) -> str:
    return check_key(given, KeyRing(keys), ServerPolicy(**policy), host)


def test_no_key_is_asked_for_when_none_is_set() -> None:
    assert check((), {}) == ""
    assert check(("anything",), {}) == ""
    assert check((), {}, "0.0.0.0", allow_unauthenticated=True) == ""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "box.local"])
def test_a_server_for_others_whose_last_key_was_taken_away_answers_nobody(host: str) -> None:
    for given in ((), ("anything",)):
        with pytest.raises(KeyRejected, match="no key left"):
            check(given, {}, host)


@pytest.mark.parametrize(
    ("method", "path", "may"),
    [
        ("GET", "/homebase/snapshot", True),
        ("HEAD", "/homebase/events", True),
        ("GET", "/metrics", True),
        ("GET", "/v1/models/org/nano", True),
        ("GET", "/health/", True),
        ("PUT", "/homebase/policy", False),
        ("POST", "/homebase/drain", False),
        ("get", "/metrics", False),
        ("GET", "/healthy", False),
        ("GET", "/v1/models\n", False),
        ("GET", "/v1/chat/completions", False),
        ("GET", "//homebase/snapshot", False),
        ("DELETE", "/v1/models", False),
    ],
)
def test_a_read_only_key_reads_what_is_listed_and_no_other_key_is_held_back(method: str, path: str, may: bool) -> None:
    server = ServerPolicy(read_only_keys=("board",))
    for name in ("alice", "", "BOARD"):
        check_reach(name, method, path, server)
    if may:
        check_reach("board", method, path, server)
    else:
        with pytest.raises(KeyReadOnly, match="The key board may only read"):
            check_reach("board", method, path, server)


def test_the_name_of_the_key_says_who_asks() -> None:
    keys = {"api_key": "geheim-\u011b", "alice": "k-a"}
    assert check(("geheim-\u011b",), keys) == "api_key"
    assert check(("k-a",), keys, "0.0.0.0") == "alice"
    assert check(("unused", "k-a"), keys) == "alice"


@pytest.mark.parametrize(
    ("given", "words"),
    [((), "missing"), (("wrong",), "not the right one"), (("k-", "k-a ", "K-A"), "not the right one")],
)
@pytest.mark.parametrize("host", [HERE, "0.0.0.0"])
def test_another_key_does_not_open(given: tuple[str, ...], words: str, host: str) -> None:
    with pytest.raises(KeyRejected, match=words):
        check(given, {"alice": "k-a"}, host, allow_unauthenticated=True)


@pytest.mark.parametrize(
    ("authorization", "x_api_key", "keys"),
    [
        (None, None, ()),
        ("", "", ()),
        ("Bearer a", None, ("a",)),
        ("bearer  a", " b ", ("a", "b")),
        ("Basic a", "b", ("b",)),
        ("Bearer", "b", ("b",)),
    ],
)
def test_keys_are_read_where_openai_and_anthropic_clients_put_them(
    authorization: str | None, x_api_key: str | None, keys: tuple[str, ...]
) -> None:
    assert read_keys(authorization, x_api_key) == keys


@pytest.mark.parametrize(
    ("target", "authority"),
    [
        (b"/v1/models", ""),
        (b"//evil.example/v1/models", ""),
        (b"*", ""),
        (b"http://evil.example/v1/models", "evil.example"),
        (b"HTTP://Evil.Example:80", "evil.example:80"),
        (b"http://127.0.0.1@evil.example/", "127.0.0.1@evil.example"),
        (b"http://[bad", ""),
    ],
)
def test_the_authority_of_a_target_in_absolute_form_is_a_host_too(target: bytes, authority: str) -> None:
    assert read_authority(target) == authority


def test_a_head_has_its_limits() -> None:
    check_head([("x", "y")] * 100)
    with pytest.raises(HeadTooLarge, match="at most 100 headers; this one has 101"):
        check_head([("x", "y")] * 101)
    check_head([("cookie", "y" * 16_000)])
    with pytest.raises(HeadTooLarge, match="16,384 bytes; this one has 16,401"):
        check_head([("x", "y" * 16_400)])


@pytest.mark.parametrize(
    "origin",
    [
        "http://127.0.0.1:1@evil.example",
        "http://127.0.0.1:1.evil.example",
        "http://evil.example#127.0.0.1:1",
        "http://127.0.0.1:2",
        "http://127.0.0.1",
        "http://localhost:1",
        "file://",
        "null",
        "http://127.0.0.1:1, http://evil.example",
    ],
)
def test_only_the_very_same_host_and_port_is_a_page_of_our_own(origin: str) -> None:
    with pytest.raises(Forbidden):
        check_origin(origin, "127.0.0.1:1", ())


def test_the_token_is_read_from_the_header() -> None:
    assert read_bearer("Bearer abc") == "abc"
    assert read_bearer("abc") == ""
