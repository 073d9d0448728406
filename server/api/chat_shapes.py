"""What a chat answer looks like on the wire: the whole completion, and the chunks of a stream."""

from __future__ import annotations

from typing import Any

import msgspec

from server.api.reply import FinishReason, Usage
from server.api.sse import build_frame


class ChatAnswer:
    """Writes one answer's JSON; every piece carries the same id, time and model."""

    def __init__(self, request_id: str, model: str, created_s: int) -> None:
        self._id, self._model, self._created_s = request_id, model, created_s

    def build_completion(self, text: str, finish_reason: FinishReason, usage: Usage) -> bytes:
        """The whole answer as one object."""
        message = {"role": "assistant", "content": text, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}
        return self._encode("chat.completion", [choice], usage)

    def build_role_frame(self) -> bytes:
        """The first chunk of a stream."""
        return self._build_delta_frame({"role": "assistant", "content": ""}, None)

    def build_text_frame(self, text: str) -> bytes:
        """A chunk with a piece of text."""
        return self._build_delta_frame({"content": text}, None)

    def build_finish_frame(self, finish_reason: FinishReason) -> bytes:
        """The chunk that says why the text ended."""
        return self._build_delta_frame({}, finish_reason)

    def build_usage_frame(self, usage: Usage) -> bytes:
        """The chunk without a choice that carries the token counts."""
        return build_frame(self._encode("chat.completion.chunk", [], usage))

    def _build_delta_frame(self, delta: dict[str, str], finish_reason: FinishReason | None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return build_frame(self._encode("chat.completion.chunk", [choice], None))

    def _encode(self, kind: str, choices: list[dict[str, Any]], usage: Usage | None) -> bytes:
        fields: dict[str, Any] = {
            "id": self._id,
            "object": kind,
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }
        if usage is not None:
            fields["usage"] = _build_usage(usage)
        return msgspec.json.encode(fields)


def _build_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
