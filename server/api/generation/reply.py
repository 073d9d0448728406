"""One answer as it grows out of engine events: its parts, why it ends, what it cost. Knows no HTTP and no JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from server.api.generation.scores import Scored, ScoreQueue
from server.api.generation.transcript import Piece, Transcript
from server.errors import StreamStopped
from server.events import EngineEvent, PrefillAdvanced, SequenceEnded, TokenLogprob, TokensEmitted
from server.text.answer import AnswerReader
from server.text.detokenizer import Detokenizer
from server.text.parts import CallDelta, CallEnded, Part, TextDelta, ThoughtDelta
from server.text.stops import StopMatcher

FinishReason = Literal["stop", "length", "tool_calls"]


class Usage(msgspec.Struct, frozen=True):
    """Token counts of one request."""

    prompt_tokens: int
    """The whole prompt, cached tokens included."""
    completion_tokens: int
    """Generated tokens, the one that ended the answer included."""
    cached_tokens: int
    thought_tokens: int = 0
    """Those of the generated tokens that were thought, not answer."""


class Reply:
    """Folds one generation's events into an answer; ends with a finish reason.

    Stop strings are looked for in the answer's text, not in thoughts and not in calls: they would end an agent's turn
    in the middle of a file that it writes.
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        reader: AnswerReader,
        prompt_tokens: int,
        *,
        stops: Sequence[str] = (),
        parallel_calls: bool = True,
    ) -> None:
        self._detokenizer, self._reader = detokenizer, reader
        self._stops = StopMatcher(stops)
        self._held_from = 0
        """Where the text that the matcher holds back begins."""
        self._scores = ScoreQueue()
        self._parallel_calls = parallel_calls
        self._has_calls = False
        self._prompt_tokens = prompt_tokens
        self._cached_tokens: int | None = None
        self._prefill_done_tokens = 0
        self._completion_tokens = 0
        self._thought_tokens = 0
        self.transcript = Transcript()
        """All that was shown so far."""
        self.finish_reason: FinishReason | None = None
        """None until the answer is complete; then nothing more may be folded in."""

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return Usage(self._prompt_tokens, self._completion_tokens, self._cached_tokens or 0, self._thought_tokens)

    @property
    def matched_stop(self) -> str | None:
        """The stop string that ended the answer."""
        return self._stops.matched

    @property
    def place(self) -> str:
        """Where the generation is, in words."""
        if self._completion_tokens:
            return f"in decode after {self._completion_tokens:,} tokens"
        percent = min(100, self._prefill_done_tokens * 100 // max(1, self._prompt_tokens))
        return f"in prefill at {percent} %"

    def fold(self, event: EngineEvent) -> list[Piece]:
        """What an event adds, to be shown at once. Raises StreamStopped when somebody else ended it."""
        match event:
            case PrefillAdvanced():
                self._note_prefill(event)
                return []
            case TokensEmitted():
                return self._show(self._add_tokens(event))
            case SequenceEnded():
                return self._show(self._finish(event))
            case _:
                return []

    def _note_prefill(self, event: PrefillAdvanced) -> None:
        if self._cached_tokens is None:
            self._cached_tokens = event.done_tokens - event.chunk_tokens
        # Tokens can also be taken over from another sequence later, in the middle of the prompt.
        self._cached_tokens = max(self._cached_tokens, event.cached_tokens)
        self._prefill_done_tokens = event.done_tokens

    def _show(self, deltas: Iterable[Part]) -> list[Piece]:
        """Pieces with their scores; what adds to the same text is one piece."""
        pieces = [Piece(delta, self._release_scores(delta)) for delta in _join(deltas)]
        self.transcript.add(pieces)
        return pieces

    def _release_scores(self, delta: Part) -> tuple[Scored, ...]:
        return self._scores.release(delta.start, len(delta.text)) if isinstance(delta, TextDelta) else ()

    def _add_tokens(self, event: TokensEmitted) -> Iterator[Part]:
        """The parts to be shown, token by token, up to a stop string or the last call that is allowed."""
        for index, token_id in enumerate(event.token_ids):
            self._completion_tokens += 1
            self._thought_tokens += self._reader.is_thinking
            text = self._detokenizer.add(token_id)
            self._note_score(token_id, event.logprobs[index] if event.logprobs else None, text)
            yield from self._pass_on(self._reader.feed(text) if text else ())
            if self.finish_reason is not None:
                return

    def _note_score(self, token_id: int, score: TokenLogprob | None, text: str) -> None:
        is_hidden = score is not None and self._detokenizer.hides(token_id)
        self._scores.add(token_id, None if is_hidden else score, text)

    def _pass_on(self, deltas: Iterable[Part]) -> Iterator[Part]:
        for delta in deltas:
            if isinstance(delta, TextDelta):
                yield from self._match_stops(delta)
            else:
                yield from self._release_text()
                yield delta
                self._note_call(delta)
            if self.finish_reason is not None:
                return

    def _match_stops(self, delta: TextDelta) -> Iterator[Part]:
        if not self._stops.has_stops:
            yield delta
            return
        start = self._held_from if self._stops.held_text else delta.start
        shown = self._stops.feed(delta.text)
        self._held_from = start + len(shown)
        if shown:
            yield TextDelta(shown, start)
        if self._stops.matched is not None:
            self.finish_reason = "stop"

    def _note_call(self, delta: Part) -> None:
        if isinstance(delta, CallEnded):
            self._has_calls = True
            if not self._parallel_calls:
                self.finish_reason = "tool_calls"

    def _release_text(self) -> Iterator[Part]:
        """A stop string ends where text ends: what was held back is none."""
        text = self._stops.release()
        if text:
            yield TextDelta(text, self._held_from)

    def _finish(self, event: SequenceEnded) -> Iterator[Part]:
        if event.outcome not in ("stop", "length"):
            raise StreamStopped("This stream was stopped at the server before it was complete.")
        yield from self._pass_on(self._reader.feed(self._detokenizer.finish()))
        if self.finish_reason is None:
            yield from self._pass_on(self._reader.finish(cut=event.outcome == "length"))
        if self.finish_reason is None:
            yield from self._release_text()
            self.finish_reason = "tool_calls" if self._has_calls and event.outcome == "stop" else event.outcome


def _join(deltas: Iterable[Part]) -> Iterator[Part]:
    """Neighbouring pieces of one text, thought or call as one."""
    last: Part | None = None
    for delta in deltas:
        joined = None if last is None else _add(last, delta)
        if joined is None and last is not None:
            yield last
        last = joined or delta
    if last is not None:
        yield last


def _add(first: Part, second: Part) -> Part | None:
    match first, second:
        case (TextDelta(text, start), TextDelta(more, at)) if start + len(text) == at:
            return TextDelta(text + more, start)
        case (ThoughtDelta(text), ThoughtDelta(more)):
            return ThoughtDelta(text + more)
        case (CallDelta(index, arguments), CallDelta(same, more)) if index == same:
            return CallDelta(index, arguments + more)
        case _:
            return None
