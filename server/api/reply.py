"""The text of one answer as it grows out of engine events. Knows no HTTP and no JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from server.api.scores import Scored, ScoreQueue
from server.errors import StreamStopped
from server.events import EngineEvent, PrefillAdvanced, SequenceEnded, TokenLogprob, TokensEmitted
from server.text.detokenizer import Detokenizer
from server.text.stops import StopMatcher

FinishReason = Literal["stop", "length"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    """The whole prompt, cached tokens included."""
    completion_tokens: int
    """Generated tokens, the one that ended the answer included."""
    cached_tokens: int


class Piece(msgspec.Struct, frozen=True):
    """What an answer has grown by."""

    text: str = ""
    scores: tuple[Scored, ...] = ()
    """Of the tokens that the text is made of, when the engine told them; without text there are none."""


NOTHING = Piece()


class Reply:
    """Folds one generation's events into text; ends with a finish reason."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str], prompt_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._stops = StopMatcher(stops)
        self._scores = ScoreQueue()
        self._prompt_tokens = prompt_tokens
        self._cached_tokens: int | None = None
        self._prefill_done_tokens = 0
        self._completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        """None until the answer is complete; then nothing more may be folded in."""

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens or 0)

    @property
    def place(self) -> str:
        """Where the generation is, in words."""
        if self._completion_tokens:
            return f"in decode after {self._completion_tokens:,} tokens"
        percent = min(100, self._prefill_done_tokens * 100 // max(1, self._prompt_tokens))
        return f"in prefill at {percent} %"

    def fold(self, event: EngineEvent) -> Piece:
        """What an event adds, to be shown at once. Raises StreamStopped when somebody else ended it."""
        match event:
            case PrefillAdvanced():
                self._note_prefill(event)
                return NOTHING
            case TokensEmitted():
                return self._show("".join(self._add_tokens(event)))
            case SequenceEnded():
                return self._show(self._finish(event))
            case _:
                return NOTHING

    def _note_prefill(self, event: PrefillAdvanced) -> None:
        if self._cached_tokens is None:
            self._cached_tokens = event.done_tokens - event.chunk_tokens
        # Tokens can also be taken over from another sequence later, in the middle of the prompt.
        self._cached_tokens = max(self._cached_tokens, event.cached_tokens)
        self._prefill_done_tokens = event.done_tokens

    def _show(self, text: str) -> Piece:
        return Piece(text, self._scores.release(text)) if text else NOTHING

    def _add_tokens(self, event: TokensEmitted) -> Iterator[str]:
        """The text to be shown, token by token, up to a stop string."""
        for index, token_id in enumerate(event.token_ids):
            self._completion_tokens += 1
            text = self._detokenizer.add(token_id)
            self._note_score(token_id, event.logprobs[index] if event.logprobs else None, text)
            yield self._stops.feed(text)
            if self._stops.matched is not None:
                self.finish_reason = "stop"
                return

    def _note_score(self, token_id: int, score: TokenLogprob | None, text: str) -> None:
        if score is None or self._detokenizer.hides(token_id):
            self._scores.add(None, text)
        else:
            self._scores.add(Scored(token_id, score), text)

    def _finish(self, event: SequenceEnded) -> str:
        if event.outcome not in ("stop", "length"):
            raise StreamStopped("This stream was stopped at the server before it was complete.")
        tail = self._stops.feed(self._detokenizer.finish())
        if self._stops.matched is None:
            tail += self._stops.release()
        self.finish_reason = "stop" if self._stops.matched is not None else event.outcome
        return tail
