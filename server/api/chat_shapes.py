"""What a chat answer looks like on the wire: the whole completion, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from server.api.reply import FinishReason, Piece, Usage
from server.api.scores import Scored
from server.api.sse import build_frame

UNLIKELY = -9999.0
"""The dialect's least log-probability: JSON has no infinity."""


class ChatAnswer:
    """Writes one answer's JSON; every piece carries the same id, time and model."""

    def __init__(
        self, request_id: str, model: str, created_s: int, spell: Callable[[int], bytes] | None = None
    ) -> None:
        self._id, self._model, self._created_s = request_id, model, created_s
        self._spell = spell
        """The bytes of a token, where log-probabilities are wanted; None where they are not."""

    def build_completion(
        self, text: str, scores: Sequence[msgspec.Raw], finish_reason: FinishReason, usage: Usage
    ) -> bytes:
        """The whole answer as one object; `scores` as `encode_scores` made them."""
        message = {"role": "assistant", "content": text, "refusal": None}
        logprobs = self._build_logprobs(scores)
        choice = {"index": 0, "message": message, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._encode("chat.completion", [choice], usage)

    def encode_scores(self, scores: Sequence[Scored]) -> list[msgspec.Raw]:
        """The entries of `logprobs`. Written as the tokens come: a long answer's at once would hold up the loop."""
        return [] if self._spell is None else [_encode_score(scored, self._spell) for scored in scores]

    def build_role_frame(self) -> bytes:
        """The first chunk of a stream."""
        return self._build_delta_frame({"role": "assistant", "content": ""}, None)

    def build_text_frame(self, piece: Piece) -> bytes:
        """A chunk with a piece of text."""
        return self._build_delta_frame(
            {"content": piece.text}, None, self._build_logprobs(self.encode_scores(piece.scores))
        )

    def build_finish_frame(self, finish_reason: FinishReason) -> bytes:
        """The chunk that says why the text ended."""
        return self._build_delta_frame({}, finish_reason)

    def build_usage_frame(self, usage: Usage) -> bytes:
        """The chunk without a choice that carries the token counts."""
        return build_frame(self._encode("chat.completion.chunk", [], usage))

    def _build_delta_frame(
        self, delta: dict[str, str], finish_reason: FinishReason | None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        return build_frame(self._encode("chat.completion.chunk", [choice], None))

    def _build_logprobs(self, scores: Sequence[msgspec.Raw]) -> dict[str, Any] | None:
        return None if self._spell is None else {"content": scores, "refusal": None}

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


def _encode_score(scored: Scored, spell: Callable[[int], bytes]) -> msgspec.Raw:
    score = scored.score
    entry = _build_likely(spell(scored.token_id), score.logprob)
    entry["top_logprobs"] = [_build_likely(spell(token_id), logprob) for token_id, logprob in score.top]
    return msgspec.Raw(msgspec.json.encode(entry))


def _build_likely(spelled: bytes, logprob: float) -> dict[str, Any]:
    """A token and its log-probability; a token that is part of a character has U+FFFD for its text."""
    return {"token": spelled.decode("utf-8", "replace"), "logprob": max(logprob, UNLIKELY), "bytes": list(spelled)}


def _build_usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
