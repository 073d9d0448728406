"""What a Messages answer looks like on the wire: the whole message, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from server.api.failures import encode_anthropic_error, find_row
from server.api.generation.reply import Reply, Usage
from server.api.generation.transcript import Piece
from server.api.messages.blocks import Blocks, Event
from server.api.sse import build_frame
from server.errors import HomebaseError

PING = build_frame(b'{"type":"ping"}', "ping")
"""Counts as life with clients that count events, where a comment would not."""


class MessageAnswer:
    """Writes one answer's JSON."""

    def __init__(
        self,
        request_id: str,
        model: str,
        prompt_tokens: int,
        context_limit_tokens: int,
        *,
        hides_thoughts: bool = False,
    ) -> None:
        self._request_id, self._model = request_id, model
        self._prompt_tokens, self._context_limit_tokens = prompt_tokens, context_limit_tokens
        self._blocks = Blocks(hides_thoughts=hides_thoughts)

    def begin(self) -> bytes:
        """The message without content, and a first sign of life."""
        usage = build_usage(Usage(self._prompt_tokens, 0, 0))
        return _encode_event({"type": "message_start", "message": self._build_message([], usage)}) + PING

    def add(self, pieces: Sequence[Piece]) -> bytes:
        """What the pieces do to the content blocks."""
        return _encode_events(event for piece in pieces for event in self._blocks.add(piece.delta))

    def end(self, reply: Reply) -> bytes:
        """The end of the open block, why the answer ends, and the token counts."""
        delta = {"type": "message_delta", "delta": self._build_stop(reply), "usage": build_usage(reply.usage)}
        return _encode_events((*self._blocks.close(), delta, {"type": "message_stop"}))

    def fail(self, error: HomebaseError) -> bytes:
        """The error event; no message_stop follows, since the answer is not whole."""
        return build_frame(encode_anthropic_error(error, find_row(error).status, self._request_id), "error")

    def keep_alive(self) -> bytes:
        """A ping."""
        return PING

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Collect the blocks as they come: their order is not in the transcript."""
        for piece in pieces:
            for _ in self._blocks.add(piece.delta):
                pass

    def build_whole(self, reply: Reply) -> bytes:
        """The whole answer as one object."""
        message = self._build_message(self._blocks.build_content(), build_usage(reply.usage))
        return msgspec.json.encode({**message, **self._build_stop(reply)})

    def _build_message(self, content: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request_id.removeprefix('req-')}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def _build_stop(self, reply: Reply) -> dict[str, Any]:
        return {"stop_reason": self._find_stop_reason(reply), "stop_sequence": reply.matched_stop}

    def _find_stop_reason(self, reply: Reply) -> str:
        match reply.finish_reason:
            case "tool_calls":
                return "tool_use"
            case "length":
                usage = reply.usage
                is_full = usage.prompt_tokens + usage.completion_tokens >= self._context_limit_tokens
                return "model_context_window_exceeded" if is_full else "max_tokens"
            case _:
                return "end_turn" if reply.matched_stop is None else "stop_sequence"


def build_usage(usage: Usage) -> dict[str, Any]:
    """`usage` of the dialect: all three kinds of input tokens together are the prompt.

    None count as written to a cache: that is what a client would pay more for, and nothing here costs more.
    """
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.thought_tokens},
    }


def _encode_events(events: Iterable[Event]) -> bytes:
    return b"".join(_encode_event(event) for event in events)


def _encode_event(event: Event) -> bytes:
    return build_frame(msgspec.json.encode(event), event["type"])
