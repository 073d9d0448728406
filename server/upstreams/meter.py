"""Reads an upstream's answer beside its way to the client: how many tokens came, why it ended, what it cost. Pure.

Each event that carries text, a thought or a piece of a call counts as a token, until the server tells its own count.
"""

from __future__ import annotations

from typing import Any, Literal, cast

import msgspec

from server.events import Outcome

Kind = Literal["chat", "completions", "responses", "messages", "count"]
"""The dialect of an answer; `count` is one that only counts a prompt."""

LINE_MOST_BYTES = 1024 * 1024
"""A longer line is passed on in parts. The end of a response repeats all of it in one line."""

MOST_TOKENS = 2**31
"""A count that is larger is none, and could not be written into a snapshot."""


class Usage(msgspec.Struct, frozen=True):
    """Token counts as the upstream told them; None what it did not."""

    prompt_tokens: int | None = None
    """The whole prompt, cached tokens included."""
    completion_tokens: int | None = None
    cached_tokens: int | None = None


class Lines:
    """Bytes as whole lines: what has come of the last one waits for its end.

    So a client never gets half a line, and what has to be said after an upstream broke off is not read as its other
    half.
    """

    def __init__(self) -> None:
        self._held = bytearray()
        self._last = b""

    def add(self, data: bytes) -> bytes:
        """What can be passed on now."""
        self._held += data
        end = len(self._held) if len(self._held) > LINE_MOST_BYTES else self._held.rfind(b"\n") + 1
        given = bytes(self._held[:end])
        del self._held[:end]
        self._last = (self._last + given)[-4:]
        return given

    def end_event(self) -> bytes:
        """What ends the event that is under way, so that another can follow; what is held of it is dropped."""
        self._held.clear()
        if not self._last or self._last.endswith((b"\n\n", b"\r\n\r\n")):
            return b""
        return b"\n" if self._last.endswith(b"\n") else b"\n\n"

    def finish(self) -> bytes:
        """What is left at a good end."""
        given, self._held = bytes(self._held), bytearray()
        return given


class Meter:
    """One answer's counts so far."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._rest = b""
        self.usage = Usage()
        self.outcome: Outcome | None = None
        """How the upstream said that it ends; None until then."""
        self.response_id = ""
        """Of a response in the Responses dialect."""
        self.error = ""
        """What the upstream said has failed, in a stream that had begun."""

    def read(self, lines: bytes) -> int:
        """Tokens that these lines of a stream bring."""
        *whole, self._rest = (self._rest + lines).split(b"\n")
        tokens = 0
        for line in whole:
            if line.startswith(b"data:"):
                tokens += self._read_data(line[5:].strip())
        if len(self._rest) > LINE_MOST_BYTES:  # in parts; nothing of it can be read
            self._rest = b""
        return tokens

    def read_whole(self, body: bytes) -> None:
        """What an answer in one piece tells."""
        self._note(_decode(body))
        self.outcome = self.outcome or "stop"

    def _read_data(self, data: bytes) -> int:
        if data == b"[DONE]":
            self.outcome = self.outcome or "stop"
            return 0
        event = _decode(data)
        self._note(event)
        return int(self._brings_token(event))

    def _brings_token(self, event: dict[str, Any]) -> bool:
        match self._kind:
            case "chat":
                deltas = [_object(choice.get("delta")) for choice in _objects(event.get("choices"))]
                return any(delta.get(name) for delta in deltas for name in _CHAT_TEXTS)
            case "completions":
                return any(choice.get("text") for choice in _objects(event.get("choices")))
            case "responses":
                return str(event.get("type")).endswith(".delta") and bool(event.get("delta"))
            case "messages":
                return event.get("type") == "content_block_delta"
            case _:
                return False

    def _note(self, event: dict[str, Any]) -> None:
        """Counts, the end and its reason, wherever this dialect tells them."""
        response, message = _object(event.get("response")), _object(event.get("message"))
        for holder in (event, response, message):
            self.usage = _merge(self.usage, _object(holder.get("usage")))
        self.response_id = self.response_id or str(response.get("id") or "")
        for reason in (
            *(choice.get("finish_reason") for choice in _objects(event.get("choices"))),
            _object(event.get("delta")).get("stop_reason"),
            event.get("stop_reason"),
        ):
            if reason:
                self.outcome = "length" if reason in ("length", "max_tokens") else "stop"
        self._note_event(str(event.get("type")), response or event)
        if event.get("error") and self._kind != "responses":
            self._fail(event.get("error"))

    def _note_event(self, name: str, holder: dict[str, Any]) -> None:
        match name:
            case "message_stop":
                self.outcome = self.outcome or "stop"
            case "response.completed":
                self.outcome = "stop"
            case "response.incomplete":
                self.outcome = "length"
            case "response.failed" | "error":
                self._fail(holder.get("error") or holder)
            case _:
                if holder.get("object") == "response" and holder.get("status") == "incomplete":
                    self.outcome = "length"

    def _fail(self, error: Any) -> None:
        self.outcome = "failed"
        self.error = str(_object(error).get("message") or error)[:200]


_CHAT_TEXTS = ("content", "reasoning_content", "reasoning", "tool_calls", "refusal")


def _decode(data: bytes) -> dict[str, Any]:
    """An object; empty for what is none."""
    try:
        return _object(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _objects(value: Any) -> list[dict[str, Any]]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [_object(item) for item in items]


def _merge(known: Usage, told: dict[str, Any]) -> Usage:
    """The newest word on each count. Anthropic's prompts are told in three parts, ours and OpenAI's in one."""
    if not told:
        return known
    prompt = _count(told, "prompt_tokens")
    cached = _count(_object(told.get("prompt_tokens_details") or told.get("input_tokens_details")), "cached_tokens")
    if prompt is None and (prompt := _count(told, "input_tokens")) is not None:
        read, written = _count(told, "cache_read_input_tokens"), _count(told, "cache_creation_input_tokens")
        prompt, cached = prompt + (read or 0) + (written or 0), cached if read is None else read
    completion = _count(told, "completion_tokens")
    completion = _count(told, "output_tokens") if completion is None else completion
    return Usage(
        known.prompt_tokens if prompt is None else prompt,
        known.completion_tokens if completion is None else completion,
        known.cached_tokens if cached is None else cached,
    )


def _count(told: dict[str, Any], name: str) -> int | None:
    value = told.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MOST_TOKENS else None
