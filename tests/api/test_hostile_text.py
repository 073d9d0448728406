"""Bytes that would steer a terminal, from a socket through the snapshot, the log and every screen."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from console.app import HomebaseApp
from console.themes import load_themes
from server.events import NumberedNotice
from server.log import log_to_file
from server.policy import LimitValue, Policy, list_limits
from server.policy_store import PolicyDraft, PolicyState
from server.snapshot import Snapshot

HOSTILE = [
    b"\x1b[2J\x1b[31mred",
    b"\x1b]0;title\x07",
    b"\x1b]52;c;cm0gLXJmIH4=\x07",
    b"\xc2\x9b31m",
    b"\x9b31m",
    b"\xe2\x80\xaetxt.exe\xe2\x81\xa6",
    b"ze\xe2\x80\x8bro\xef\xbb\xbfwidth\xe2\x80\x8d",
    b"[red]markup[/] [@click=app.quit]x[/]",
    b"a\tb\x08\x08\x7f",
]
FORBIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class RigSource:
    """The rig as the console sees it."""

    def __init__(self, rig: Any) -> None:
        self._rig = rig
        self._policy = PolicyState(
            Policy(), "/x/homebase.toml", True, "", None, {limit.key: "default" for limit in list_limits()}, False
        )

    def snapshot(self) -> Snapshot:
        return self._rig.build_snapshot()

    def notices(self, after: int) -> tuple[NumberedNotice, ...]:
        return self._rig.ring.after(after)

    def policy(self) -> PolicyState:
        return self._policy

    async def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        return PolicyDraft("", "", None)

    async def save(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        return self._policy

    async def undo(self) -> PolicyState:
        return self._policy

    async def stop(self, stream_id: str) -> bool:
        return self._rig.stop_stream(stream_id)


@pytest.fixture
def read_log(rig: Any, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Reads the file that the log of this test goes to; the ring gets it too."""
    root = logging.getLogger()
    handlers, level, raising = list(root.handlers), root.level, logging.raiseExceptions
    hooks = threading.excepthook, sys.unraisablehook
    setup = log_to_file(rig.ring, 7, tmp_path)
    yield (tmp_path / "homebase-7.log").read_text
    setup.close()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.raiseExceptions = raising
    logging.captureWarnings(False)
    threading.excepthook, sys.unraisablehook = hooks


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    return answer


def build_request(text: bytes, body: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    head = b"POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n" % path
    names = (b"User-Agent", b"X-Homebase-Session", b"X-Homebase-Parent-Session", b"X-Api-Key")
    head += b"".join(b"%s: %d%s\r\n" % (name, i, text) for i, name in enumerate(names))
    return head + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def find_forbidden(text: str) -> set[str]:
    return {c for c in text if c != "\n" and unicodedata.category(c) in FORBIDDEN}


def list_texts(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case dict():
            for name, inner in value.items():
                yield name
                yield from list_texts(inner)
        case list():
            for inner in value:
                yield from list_texts(inner)
        case _:
            pass


def read_screen(app: HomebaseApp) -> str:
    strips = app.screen._compositor.render_strips()
    return "\n".join("".join(segment.text for segment in strip) for strip in strips)


async def test_what_a_client_calls_itself_reaches_neither_terminal_nor_log_raw(
    rig: Any, port: int, speak: Any, chat_body: Any, read_log: Callable[[], str]
) -> None:
    rig.set_policy(policy__max_in_flight=1, policy__auxiliary_wait_s=0.0)
    rig.engine.script = speak("ok")
    for text in HOSTILE:
        word = text.decode("latin-1")
        fine = json.dumps(chat_body("hi", **{word: word})).encode()
        wrong = [json.dumps({**chat_body(), name: word}).encode() for name in ("model", "tools", "tool_choice")]
        for body in (fine, *wrong):
            answer = await ask(port, build_request(text, body))
            assert not find_forbidden(answer.decode("latin-1").partition("\r\n\r\n")[2].encode("latin-1").decode())
        quoted = b"".join(b"%%%02x" % byte for byte in text)
        await ask(port, build_request(text, b"", b"/v1/requests/%s/cancel" % quoted))
        await ask(port, build_request(text, b"", b"/%s" % quoted))
    rig.engine.script = None
    held = asyncio.create_task(ask(port, build_request(HOSTILE[0], json.dumps(chat_body()).encode())))
    await rig.until(lambda: rig.engine.open)
    for text in HOSTILE:
        assert b" 429 " in (await ask(port, build_request(text, json.dumps(chat_body()).encode())))[:20]

    snapshot = json.loads(msgspec.json.encode(rig.build_snapshot()))
    assert len(snapshot["streams"]) == len(HOSTILE) + 1
    assert len(snapshot["admission"]["recent_refusals"]) == len(HOSTILE)
    assert {c for text in list_texts(snapshot) for c in find_forbidden(text)} == set()
    assert "\\x1b[2J" in snapshot["streams"][0]["client"]

    app = HomebaseApp(
        RigSource(rig), themes=load_themes(), policy=Policy().console, clock=lambda: 0.0, auto_refresh=False
    )
    app.animation_level = "none"
    async with app.run_test(size=(160, 50)) as pilot:
        shown = ""
        for keys in ([], ["v"], ["enter"], ["x"], ["escape"], ["escape"], ["2"], ["4"], ["question_mark"]):
            await pilot.press(*keys)
            app.tick()
            await pilot.pause()
            assert find_forbidden(read_screen(app)) == set()
            shown += read_screen(app)
        assert "\\x1b[2J" in shown
        assert "[red]markup[/]" in shown
    rig.stop_stream(rig.engine.only)
    await held
    logged = read_log()
    assert "\\x1b]52" in logged
    assert find_forbidden(logged) == set()


async def test_no_text_of_a_request_is_logged_at_any_level(
    rig: Any, port: int, speak: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    rig.engine.script = speak("sesame-answer")
    said = {"role": "user", "content": "sesame-prompt"}
    bodies = [
        {"model": "nano", "messages": [said], "stop": ["sesame-stop"], "stream": streaming}
        for streaming in (True, False)
    ]
    for body in (
        *bodies,
        {"messages": [said], "tools": [{"sesame": 1}]},
        {"messages": [said], "sesame": "sesame-value"},
    ):
        await ask(port, build_request(b"x", json.dumps(body).encode()))
    await ask(port, build_request(b"x", b'{"messages": "sesame-broken'))
    await ask(port, b"GET / sesame HTTP/1.1\r\nsesame\r\n\r\n")
    logged = "\n".join(record.getMessage() for record in caplog.records)
    assert "sesame" not in logged.replace("fields without effect in a request: 'sesame'", "")
    assert "sesame" not in str(rig.ring.after(0))


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: evil.example\r\n", 403),
        (b"GET http://evil.example/health HTTP/1.1\r\nHost: 127.0.0.1\r\n", 403),
        (b"GET http://localhost@evil.example/health HTTP/1.1\r\nHost: 127.0.0.1\r\n", 403),
        (b"GET http://127.0.0.1/health HTTP/1.1\r\nHost: 127.0.0.1\r\n", 200),
        (b"GET http://127.0.0.1/health HTTP/1.1\r\nHost: evil.example\r\n", 403),
        (b"GET //evil.example/health HTTP/1.1\r\nHost: 127.0.0.1\r\n", 404),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\n", 200),
        (
            b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: http://127.0.0.1\r\nOrigin: http://evil.example\r\n",
            403,
        ),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: null\r\n", 403),
        (b"GET /health HTTP/1.1\r\nHost: [::1]\r\n", 200),
        (b"GET /health HTTP/1.1\r\nHost: LOCALHOST.:80\r\n", 200),
        (b"GET /health HTTP/1.0\r\n", 200),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 120, 431),
        (b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"y" * 17_000 + b"\r\n", 431),
    ],
)
async def test_heads_by_which_a_page_might_come_in(port: int, head: bytes, status: int) -> None:
    answer = await ask(port, head + b"Connection: close\r\n\r\n")
    assert int(answer.split(b" ", 2)[1]) == status
