"""What a completion looks like on the wire: the whole one, and the chunks of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from server.api.failures import encode_error
from server.api.generation.likely import read_likely
from server.api.generation.reply import Reply
from server.api.generation.scores import Scored
from server.api.generation.transcript import Piece
from server.api.generation.usage import build_usage
from server.api.sse import DONE, build_comment, build_frame
from server.errors import HomebaseError
from server.text.parts import TextDelta


class CompletionAnswer:
    """Writes one completion's JSON; every piece carries the same id, time and model."""

    def __init__(
        self,
        completion_id: str,
        model: str,
        created_s: int,
        *,
        echo: str = "",
        spell: Callable[[int], bytes] | None = None,
        wants_usage: bool = False,
    ) -> None:
        self._id, self._model, self._created_s = completion_id, model, created_s
        self._echo = echo
        """The prompt, where it is wanted in front of what was generated."""
        self._spell = spell
        """The bytes of a token, where log-probabilities are wanted; None where they are not."""
        self._wants_usage = wants_usage
        self._logprobs = _Logprobs()

    def begin(self) -> bytes:
        """The prompt when it is wanted; else nothing but a sign that the stream has begun."""
        return self._build_frame(self._echo, None) if self._echo else build_comment()

    def add(self, pieces: Sequence[Piece]) -> bytes:
        """A chunk for each piece of text."""
        return b"".join(
            self._build_frame(piece.delta.text, self._score(piece.scores))
            for piece in pieces
            if isinstance(piece.delta, TextDelta)
        )

    def end(self, reply: Reply) -> bytes:
        """Why it ends, the token counts when they are wanted, and the dialect's last line."""
        usage = build_frame(self._encode([], reply)) if self._wants_usage else b""
        return self._build_frame("", None, reply.finish_reason) + usage + DONE

    def fail(self, error: HomebaseError) -> bytes:
        """The error object; no [DONE] follows, since the completion is not whole."""
        return build_frame(encode_error(error))

    def keep_alive(self) -> bytes:
        """A comment."""
        return build_comment()

    def keep(self, pieces: Sequence[Piece]) -> None:
        """Write log-probabilities as the tokens come."""
        for piece in pieces:
            self._logprobs.extend(self._score(piece.scores))

    def build_whole(self, reply: Reply) -> bytes:
        """The whole completion as one object."""
        logprobs = None if self._spell is None else self._logprobs.build()
        text = self._echo + reply.transcript.text
        return self._encode([_build_choice(text, logprobs, reply.finish_reason)], reply)

    def _score(self, scores: Sequence[Scored]) -> _Logprobs | None:
        if self._spell is None:
            return None
        logprobs = _Logprobs()
        for scored in scores:
            logprobs.add(scored, self._spell)
        return logprobs

    def _build_frame(self, text: str, logprobs: _Logprobs | None, finish_reason: str | None = None) -> bytes:
        built = None if logprobs is None else logprobs.build()
        return build_frame(self._encode([_build_choice(text, built, finish_reason)], None))

    def _encode(self, choices: list[dict[str, Any]], usage: Reply | None) -> bytes:
        fields: dict[str, Any] = {
            "id": self._id,
            "object": "text_completion",
            "created": self._created_s,
            "model": self._model,
            "choices": choices,
        }
        if usage is not None:
            fields["usage"] = build_usage(usage.usage)
        return msgspec.json.encode(fields)


class _Logprobs:
    """This dialect's four lists, side by side."""

    def __init__(self) -> None:
        self._tokens: list[str] = []
        self._chosen: list[float] = []
        self._top: list[dict[str, float]] = []
        self._starts: list[int] = []

    def add(self, scored: Scored, spell: Callable[[int], bytes]) -> None:
        """Take in a token's."""
        token, logprob = read_likely(spell(scored.token_id), scored.score.logprob)
        self._tokens.append(token)
        self._chosen.append(logprob)
        self._top.append(dict(read_likely(spell(token_id), each) for token_id, each in reversed(scored.score.top)))
        self._starts.append(scored.start)

    def extend(self, others: _Logprobs | None) -> None:
        """Take in those of later tokens."""
        if others is not None:
            self._tokens += others._tokens
            self._chosen += others._chosen
            self._top += others._top
            self._starts += others._starts

    def build(self) -> dict[str, Any]:
        """As the dialect writes them."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._chosen,
            "top_logprobs": self._top,
            "text_offset": self._starts,
        }


def _build_choice(text: str, logprobs: dict[str, Any] | None, finish_reason: str | None) -> dict[str, Any]:
    return {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
