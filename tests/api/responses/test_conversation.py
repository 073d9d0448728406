"""Turns that go on from what is kept, through the whole application."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import msgspec
import pytest

from server.api.generation.door import LARGE_BODY_BYTES
from server.api.responses import conversation as module
from server.api.responses.store import Kept


async def read_error(answer: Any) -> dict[str, Any]:
    return json.loads(await answer.get_data())["error"]


async def test_a_turn_goes_on_from_the_one_before_without_its_instructions(
    rig: Any, ask: Any, speak: Any, read_response: Any
) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a", "instructions": "Be brief."})).get_data())
    rig.engine.script = speak("two")
    second = read_response(await (await ask({"input": "b", "previous_response_id": first["id"]})).get_data())
    await ask(
        {"input": [{"role": "user", "content": "c"}], "previous_response_id": second["id"], "instructions": "Sing."}
    )
    assert second["previous_response_id"] == first["id"]
    assert [[(turn["role"], turn["content"]) for turn in seen] for seen in rig.codec.seen] == [
        [("system", "Be brief."), ("user", "a")],
        [("user", "a"), ("assistant", "one"), ("user", "b")],
        [("system", "Sing."), ("user", "a"), ("assistant", "one"), ("user", "b"), ("assistant", "two"), ("user", "c")],
    ]


async def test_a_turn_that_was_cut_can_be_gone_on_from(rig: Any, ask: Any, speak: Any, read_response: Any) -> None:
    rig.engine.script = speak("on", outcome="length")
    first = read_response(await (await ask({"input": "a"})).get_data())
    assert (await ask({"input": "b", "previous_response_id": first["id"]})).status_code == 200
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["a", "on", "b"]


async def test_what_is_not_to_be_kept_cannot_be_gone_on_from(
    rig: Any, ask: Any, speak: Any, read_response: Any
) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a", "store": False})).get_data())
    answer = await ask({"input": "b", "previous_response_id": first["id"]})
    assert (await read_error(answer))["code"] == "previous_response_not_found"
    assert (await rig.client.get(f"/v1/responses/{first['id']}")).status_code == 404


async def test_one_key_never_goes_on_from_anothers(rig: Any, ask: Any, speak: Any, read_response: Any) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a"}, authorization="Bearer k1")).get_data())
    follow = {"input": "b", "previous_response_id": first["id"]}
    reference = {"input": [{"role": "user", "content": "b"}, {"id": first["output"][0]["id"]}]}
    for body in (follow, reference):
        assert (await ask(body, authorization="Bearer k2")).status_code == 400
        assert (await ask(body)).status_code == 400
        assert (await ask(body, authorization="Bearer k1")).status_code == 200


async def test_references_to_kept_items_are_what_they_refer_to(
    rig: Any, ask: Any, speak: Any, read_response: Any
) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a"})).get_data())
    listed = json.loads(await (await rig.client.get(f"/v1/responses/{first['id']}/input_items")).get_data())
    items = [
        {"type": "item_reference", "id": listed["data"][0]["id"]},
        {"id": first["output"][0]["id"]},
        {"role": "user", "content": "b"},
    ]
    second = read_response(await (await ask({"input": items})).get_data())
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["a", "one", "b"]
    # It keeps what was referred to, not the reference.
    await rig.client.delete(f"/v1/responses/{first['id']}")
    await ask({"input": "c", "previous_response_id": second["id"]})
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["a", "one", "b", "one", "c"]


async def test_the_length_of_the_conversation_counts_as_the_bodys(
    rig: Any, ask: Any, speak: Any, read_response: Any
) -> None:
    rig.model = msgspec.structs.replace(rig.model, context_limit_tokens=200_000)
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "x" * 100_000})).get_data())
    rig.engine.script = None
    rig.set_policy(policy__max_in_flight=1)
    held = asyncio.create_task(ask({"input": "hi"}))
    await rig.until(lambda: rig.admission.in_flight)
    seen = len(rig.codec.seen)
    answer = await ask({"input": "b", "previous_response_id": first["id"]})
    assert answer.status_code == 429
    assert len(rig.codec.seen) == seen, "a prompt was made for a request that is refused"
    rig.engine.end(rig.engine.only, "stop")
    await held


async def test_an_item_is_read_once_however_often_it_is_referred_to(
    rig: Any, ask: Any, speak: Any, read_response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a"})).get_data())
    reads: list[Kept] = []
    read_output = Kept.read_output
    monkeypatch.setattr(Kept, "read_output", lambda kept: reads.append(kept) or read_output(kept))
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    assert (await ask({"input": [{"role": "user", "content": "b"}, *[reference] * 50]})).status_code == 200
    assert [turn["content"] for turn in rig.codec.seen[-1]] == ["b", *["one"] * 50]
    assert len(reads) == 1


async def test_references_bring_no_more_along_than_a_body_may_have(
    rig: Any, ask: Any, speak: Any, read_response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.script = speak("one")
    sent = {"role": "user", "content": "a", "note": "x" * 1000}
    first = read_response(await (await ask({"input": [sent]})).get_data())
    monkeypatch.setattr(module, "LIMIT_BYTES", 5000)
    reference = {"type": "item_reference", "id": f"msg_{first['id'].removeprefix('resp_')}_in0"}
    assert (await ask({"input": [reference] * 4})).status_code == 200
    error = await read_error(await ask({"input": [reference] * 6}))
    assert (error["code"], error["param"]) == ("invalid_request", "input")
    assert "5,000 bytes" in error["message"]


@pytest.mark.parametrize("limit", ["LIMIT_BYTES", "MOST_VALUES"])
async def test_a_conversation_that_grew_longer_than_a_body_is_begun_anew(
    rig: Any, ask: Any, speak: Any, read_response: Any, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    rig.engine.script = speak("one")
    first = read_response(await (await ask({"input": "a"})).get_data())
    monkeypatch.setattr(module, limit, 5)
    error = await read_error(await ask({"input": "b", "previous_response_id": first["id"]}))
    assert (error["code"], error["param"]) == ("invalid_request", "previous_response_id")
    assert "begin a new one" in error["message"]


async def test_what_is_long_is_read_beside_the_loop(
    rig: Any, ask: Any, speak: Any, read_response: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.engine.script = speak("one")
    long = "a" * (LARGE_BODY_BYTES - 1000)
    sent = {"role": "user", "content": "a", "note": long}
    first = read_response(await (await ask({"input": [sent]})).get_data())
    second = read_response(await (await ask({"input": [sent], "previous_response_id": first["id"]})).get_data())
    threads: set[str] = set()
    read_items = Kept.read_items
    monkeypatch.setattr(
        Kept, "read_items", lambda kept: threads.add(threading.current_thread().name) or read_items(kept)
    )
    assert (await ask({"input": "b", "previous_response_id": second["id"]})).status_code == 200
    assert threads
    assert threading.main_thread().name not in threads
