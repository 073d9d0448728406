"""What a chat answer looks like on the wire: the whole completion, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from server.api.failures import encode_error
from server.api.generation.likely import encode_score
from server.api.generation.reply import Reply
from server.api.generation.transcript import Call, Piece, Transcript
from server.api.generation.usage import build_usage
from server.api.sse import DONE, build_comment, build_frame
from server.errors import HomebaseError
from server.text.parts import CallBegun, CallDelta, Part, TextDelta, ThoughtDelta


class ChatAnswer:
    """Writes one answer's JSON; every piece carries the same id, time and model."""

    def __init__(
        self,
        completion_id: str,
        model: str,
        created_s: int,
        spell: Callable[[int], bytes] | None = None,
        *,
        wants_usage: bool = False,
    ) -> None:
        self._id, self._model, self._created_s = completion_id, model, created_s
        self._spell = spell
        """The bytes of a token, where log-probabilities are wanted; None where they are not."""
        self._wants_usage = wants_usage
        self._scores: list[msgspec.Raw] = []
        self._before_text, self._after_text = self._build_frame({"content": msgspec.Raw(b"\0")}).split(b"\0")

    def begin(self) -> bytes:
        """The role, before there is any text."""
        return self._build_frame({"role": "assistant", "content": ""})

    def add(self, pieces: Sequence[Piece]) -> bytes:
        """A chunk for each piece."""
        return b"".join(self._build_piece(piece) for piece in pieces)

    def end(self, reply: Reply) -> bytes:
        """Why it ends, the token counts when they are wanted, and the dialect's last line."""
        usage = self._build_frame(None, usage=reply) if self._wants_usage else b""
        return self._build_frame({}, finish_reason=reply.finish_reason) + usage + DONE

    def fail(self, error: HomebaseError) -> bytes:
        """The error object; no [DONE] follows, since the answer is not whole."""
        return build_frame(encode_error(error))

    def keep_alive(self) -> bytes:
        """A comment."""
        return build_comment()

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Write log-probabilities as the tokens come: a long answer's at once would hold up the loop."""
        for piece in pieces:
            self._scores += self._encode_scores(piece)

    def build_whole(self, reply: Reply) -> bytes:
        """The whole answer as one object."""
        choice = {
            "index": 0,
            "message": _build_message(reply.transcript),
            "logprobs": self._build_logprobs(self._scores),
            "finish_reason": reply.finish_reason,
        }
        return self._encode("chat.completion", [choice], reply)

    def _build_piece(self, piece: Piece) -> bytes:
        if self._spell is None and isinstance(piece.delta, TextDelta):
            # Nearly every frame of a stream, and all but its text is the same each time.
            return b"".join((self._before_text, msgspec.json.encode(piece.delta.text), self._after_text))
        delta = _build_delta(piece.delta)
        if delta is None:
            return b""
        return self._build_frame(delta, self._encode_scores(piece) if "content" in delta else None)

    def _encode_scores(self, piece: Piece) -> list[msgspec.Raw]:
        return [] if self._spell is None else [encode_score(scored, self._spell) for scored in piece.scores]

    def _build_frame(
        self,
        delta: dict[str, Any] | None,
        scores: Sequence[msgspec.Raw] | None = None,
        finish_reason: str | None = None,
        usage: Reply | None = None,
    ) -> bytes:
        choice = {
            "index": 0,
            "delta": delta,
            "logprobs": None if scores is None else self._build_logprobs(scores),
            "finish_reason": finish_reason,
        }
        return build_frame(self._encode("chat.completion.chunk", [] if delta is None else [choice], usage))

    def _build_logprobs(self, scores: Sequence[msgspec.Raw]) -> dict[str, Any] | None:
        return None if self._spell is None else {"content": scores, "refusal": None}

    def _encode(self, kind: str, choices: list[dict[str, Any]], usage: Reply | None) -> bytes:
        fields: dict[str, Any] = {
            "id": self._id,
            "object": kind,
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }
        if usage is not None:
            fields["usage"] = build_usage(usage.usage)
        return msgspec.json.encode(fields)


def _build_delta(delta: Part) -> dict[str, Any] | None:
    """A part as a chunk's delta; None for what this dialect does not say."""
    match delta:
        case TextDelta(text, _):
            return {"content": text}
        case ThoughtDelta(text):
            return {"reasoning_content": text}
        case CallBegun(index, call_id, name):
            function = {"name": name, "arguments": ""}
            return {"tool_calls": [{"index": index, "id": call_id, "type": "function", "function": function}]}
        case CallDelta(index, arguments):
            return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
        case _:
            return None


def _build_message(transcript: Transcript) -> dict[str, Any]:
    calls = transcript.calls
    message: dict[str, Any] = {"role": "assistant", "content": transcript.text or (None if calls else "")}
    message["refusal"] = None
    if transcript.thought:
        message["reasoning_content"] = transcript.thought
    if calls:
        message["tool_calls"] = [_build_call(call) for call in calls]
    return message


def _build_call(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
