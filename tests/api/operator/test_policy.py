"""Reading and changing the limits over HTTP, with a real file behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server.events import PolicyChanged
from server.policy import list_limits

PATH = "/homebase/policy"


def read(file: Path) -> str:
    return file.read_text()


def write(file: Path, text: str) -> None:
    file.write_text(text)


def changed_at(file: Path) -> int:
    return file.stat().st_mtime_ns


async def get(rig: Any) -> tuple[dict[str, Any], str]:
    answer = await rig.client.get(PATH)
    assert answer.status_code == 200
    return json.loads(await answer.get_data()), answer.headers["etag"]


async def put(rig: Any, body: Any, **headers: str) -> tuple[int, dict[str, Any], Any]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = await rig.client.put(PATH, data=data, headers={"content-type": "application/json", **sent})
    return answer.status_code, json.loads(await answer.get_data()), answer.headers


async def test_every_limit_is_told_with_its_range_and_where_its_value_comes_from(rig: Any, file: Path) -> None:
    report, etag = await get(rig)
    assert etag == f'"{report["etag"]}"'
    assert (report["path"], report["exists"], report["problem"]) == (str(file), True, None)
    limits = {limit["key"]: limit for limit in report["limits"]}
    assert list(limits) == [limit.key for limit in list_limits()]
    slots = limits["policy.max_in_flight"]
    assert (slots["value"], slots["default"], slots["source"]) == (2, 2, "homebase.toml:6")
    assert (slots["minimum"], slots["maximum"], slots["allowed"], slots["unit"]) == (1, 64, "1 to 64", "streams")
    assert slots["effect"] == "at the next request's admission"
    assert (limits["server.port"]["value"], limits["server.port"]["source"]) == (12000, "--port")
    assert limits["server.host"]["source"] == "default"
    assert "very-secret" not in json.dumps(report)


async def test_a_change_is_in_file_and_force_with_comments_kept_and_named(rig: Any, file: Path) -> None:
    _, etag = await get(rig)
    status, told, headers = await put(rig, {"policy.max_in_flight": 3, "server.keep_alive_s": 4}, if_match=etag)
    assert status == 200
    assert told["changes"] == [
        {"key": "policy.max_in_flight", "old": 2, "new": 3, "in_force": 3, "effect": "at the next request's admission"},
        {"key": "server.keep_alive_s", "old": 5.0, "new": 4.0, "in_force": 4.0, "effect": "at the next request"},
    ]
    assert told["notes"] == []
    assert headers["etag"] == f'"{told["etag"]}"' == (await get(rig))[1]
    assert "max_in_flight = 3   # parent + 1\n" in read(file)
    assert read(file).startswith("# ada's machine\n")
    assert rig.store.state.policy.policy.max_in_flight == 3
    (changed,) = [each.notice for each in rig.ring.after(0) if isinstance(each.notice, PolicyChanged)]
    assert (changed.origin, changed.by) == ("api", "someone")


async def test_a_flag_that_goes_before_the_file_is_told(rig: Any, file: Path) -> None:
    status, told, _ = await put(rig, {"server.port": 13000})
    assert status == 200
    (change,) = told["changes"]
    assert (change["old"], change["new"], change["in_force"]) == (11234, 13000, 12000)
    assert told["notes"] == ["--port 12000 goes before server.port in the file for this run."]
    assert "port = 13000" in read(file)


async def test_a_stale_etag_is_412_with_what_differs_and_nothing_is_saved(rig: Any, file: Path) -> None:
    _, etag = await get(rig)
    write(file, read(file).replace("= 2", "= 4").replace("very-secret", "their-secret"))
    status, told, headers = await put(rig, {"policy.max_in_flight": 3}, if_match=etag)
    assert (status, told["error"]["code"]) == (412, "policy_conflict")
    assert "policy.max_in_flight was 2 there and is 4" in told["error"]["message"]
    assert told["differs"] == [
        {"key": "server.api_key", "now": "••••••"},
        {"key": "policy.max_in_flight", "now": 4, "asked": 3},
    ]
    assert "their-secret" not in json.dumps(told)
    assert "max_in_flight = 4   # parent + 1" in read(file)
    assert headers["etag"] == (await get(rig))[1] != etag
    status, told, _ = await put(rig, {"policy.max_in_flight": 3}, if_match=headers["etag"])
    assert (status, told["changes"][0]["old"]) == (200, 4)


async def test_a_comment_that_was_changed_makes_another_file_too(rig: Any, file: Path) -> None:
    _, etag = await get(rig)
    write(file, read(file).replace("ada", "bob"))
    status, told, _ = await put(rig, {"policy.max_in_flight": 3}, if_match=etag)
    assert (status, told["differs"]) == (412, [])
    assert "no limit differs" in told["error"]["message"]


@pytest.mark.parametrize("headers", [{}, {"if_match": "*"}])
async def test_without_an_etag_the_keys_are_set_in_whatever_file_there_is(
    rig: Any, file: Path, headers: dict[str, str]
) -> None:
    write(file, read(file).replace("= 2", "= 4") + "max_context_tokens = 9_000\n")
    status, told, _ = await put(rig, {"policy.max_in_flight": 3}, **headers)
    assert (status, told["changes"][0]["old"], told["changes"][0]["new"]) == (200, 4, 3)
    assert "max_in_flight = 3   # parent + 1\nmax_context_tokens = 9_000\n" in read(file)


async def test_the_value_that_is_there_already_leaves_the_file_alone(rig: Any, file: Path) -> None:
    before = changed_at(file)
    status, told, _ = await put(rig, {"policy.max_in_flight": 2})
    assert (status, told["changes"][0]["old"], told["changes"][0]["new"]) == (200, 2, 2)
    assert changed_at(file) == before


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"policy.max_in_flight": 99}, "policy.max_in_flight", "99 is not allowed; allowed: 1 to 64."),
        ({"policy.max_in_flight": "3"}, "policy.max_in_flight", "not a whole number; allowed: 1 to 64."),
        ({"policy.max_in_flight": None}, "policy.max_in_flight", "null is not allowed; allowed: 1 to 64."),
        ({"policy.max_in_flight": [1]}, "policy.max_in_flight", "allowed: 1 to 64."),
        ({"policy.max_in_flight": {"a": 1}}, "policy.max_in_flight", "allowed: 1 to 64."),
        ({"policy.refusal_status": 418}, "policy.refusal_status", "418 is not allowed"),
        ({"policy.max_inflight": 3}, "policy.max_inflight", "did you mean policy.max_in_flight?"),
        ({"policy": {"max_in_flight": 3}}, "policy", "policy must be a table"),
        ({"policy.max_in_flight.x": 3}, "policy.max_in_flight", "not a whole number"),
        ({"": 3}, '""', "Unknown key"),
        ({"server.allowed_origins": [3]}, "server.allowed_origins", "allowed: up to 64 origins"),
        ({"server.keys": ["a = B"]}, "server.keys", "edit it in the file"),
        ({"server.keys": [1]}, "server.keys", "edit it in the file"),
        ({"server.host": "0.0.0.0", "server.api_key": ""}, "server.host", "no key is set"),
        ({"server.read_only_keys": ["alice"]}, "server.read_only_keys", "alice is no key's name"),
        ({}, None, "Nothing is to be changed"),
        ([], None, "must be a JSON object"),
        (b"{", None, "not valid JSON"),
    ],
)
async def test_what_is_not_allowed_is_400_with_the_range_and_saves_nothing(
    rig: Any, file: Path, body: Any, param: str | None, words: str
) -> None:
    before = read(file)
    status, told, _ = await put(rig, body)
    assert (status, told["error"]["param"]) == (400, param)
    assert words in told["error"]["message"]
    assert read(file) == before


async def test_a_body_that_no_limits_need_is_too_large(rig: Any, file: Path) -> None:
    status, told, _ = await put(rig, {"policy.max_in_flight": 3, "x" * 262_144: 1})
    assert (status, told["error"]["code"]) == (413, "body_too_large")
    assert "max_in_flight = 2" in read(file)


async def test_one_key_that_is_wrong_keeps_all_from_being_saved(rig: Any, file: Path) -> None:
    before = read(file)
    status, _, _ = await put(rig, {"policy.max_in_flight": 3, "server.keep_alive_s": 0})
    assert status == 400
    assert read(file) == before


@pytest.mark.parametrize("etag", ["abc", 'W/"abc"', '"a", "b"', '"'])
async def test_an_etag_in_another_form_is_said_to_be_one(rig: Any, file: Path, etag: str) -> None:
    status, told, _ = await put(rig, {"policy.max_in_flight": 3}, if_match=etag)
    assert status == 400
    assert "If-Match" in told["error"]["message"]


async def test_a_file_that_is_not_in_order_is_never_written_over(rig: Any, file: Path) -> None:
    write(file, "max = [\n")
    status, told, _ = await put(rig, {"policy.max_in_flight": 3})
    assert status == 400
    assert "Nothing was saved, as the file is not in order: homebase.toml:1" in told["error"]["message"]
    assert read(file) == "max = [\n"
    assert (await get(rig))[0]["problem"].startswith("homebase.toml:1")


async def test_a_secret_is_dots_before_and_after(rig: Any, file: Path) -> None:
    status, told, _ = await put(rig, {"server.api_key": "new-secret"})
    assert status == 200
    assert (told["changes"][0]["old"], told["changes"][0]["new"]) == ("••••••", "••••••")
    assert 'api_key = "new-secret"' in read(file)


@pytest.mark.usefixtures("file")
async def test_who_changed_it_is_named_by_their_key(rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_A", "k-alice")
    rig.set_policy(server__keys=("alice = KEY_A",))
    assert (await put(rig, {"policy.max_in_flight": 3}))[0] == 401
    assert (await put(rig, {"policy.max_in_flight": 3}, x_api_key="k-alice"))[0] == 200
    (changed,) = [each.notice for each in rig.ring.after(0) if isinstance(each.notice, PolicyChanged)]
    assert changed.by == "alice"
