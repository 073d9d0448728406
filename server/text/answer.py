"""From generated text, in pieces of any size, to thoughts, text and calls. Pure: knows no tokens and no model.

No marker is ever shown as text, and nothing that is no marker is ever lost.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence

from server.text.calls import Calls, build_call_id
from server.text.markup import Markup
from server.text.parts import Part, TextDelta, ThoughtDelta
from server.text.tape import Tape, collect_before, collect_run, wait_for_front
from server.text.tool_calls import CALL_OPENINGS, read_calls
from server.text.tools import Tool

BLANK = " \t\r\n"
"""White space that belongs to neither side where it stands between a thought, text and calls."""


class AnswerReader:
    """Reads one answer. What the parts say together does not depend on how the text was cut into pieces.

    Calls are looked for only when tools were offered; otherwise their markup is text. Thoughts are always looked for
    where the model marks them, the one that the prompt opened and any that the answer opens.
    """

    def __init__(
        self,
        markup: Markup,
        tools: Sequence[Tool] = (),
        *,
        opens_thought: bool = False,
        build_id: Callable[[], str] = build_call_id,
    ) -> None:
        self._markup = markup
        self._think = markup.think
        self._call = markup.call if tools else None
        self._calls = Calls(tools, build_id)
        self._tape = Tape()
        self._text = Trimmed(holds_blank=self._think is not None or self._call is not None)
        self.is_thinking = opens_thought and self._think is not None
        """True while what comes next is thought."""
        self._reading = self._read(opens_thought=opens_thought)

    @property
    def calls_begun(self) -> int:
        """How many calls the answer has so far, complete or not."""
        return self._calls.count

    def feed(self, text: str) -> list[Part]:
        """What the next piece of text adds."""
        self._tape.add(text)
        return self._advance()

    def finish(self, *, cut: bool) -> list[Part]:
        """What is left when no more text comes; `cut` when the model had not ended its answer itself.

        What may have become a marker is text now. A call that has begun and is not complete stays so: nothing is
        added to it. One that was cut before it had begun is dropped, because half a call is no text either; when the
        model itself ended within it, it is one that cannot be read, and shown as text.
        """
        self._tape.close(cut=cut)
        return self._advance()

    def _advance(self) -> list[Part]:
        parts: list[Part] = []
        for part in self._reading:
            if part is None:
                break
            parts.append(part)
        return parts

    def _read(self, *, opens_thought: bool) -> Generator[Part | None, None, None]:
        """The whole answer. Yields None whenever it wants more text."""
        if opens_thought and self._think is not None:
            yield from self._read_thought()
        while marker := (yield from self._read_text()):
            if self._think is not None and marker == self._think.start:
                yield from self._read_thought()
            elif marker in self._call_starts:
                yield from self._read_call()
            else:
                self._text.end()

    def _read_text(self) -> Generator[Part | None, None, str]:
        """Text up to the next marker, which is taken; empty when the answer is over.

        The end of a thought that was never opened is a marker too, of nothing: models repeat the one in the prompt.
        """
        markers = (*self._think_markers, *self._call_starts)
        while True:
            text, marker = self._tape.take_before(*markers)
            yield from map(_build_text, self._text.add(text, self._tape.offset - len(text)))
            if marker is not None:
                self._tape.take(marker)
                return marker
            if self._tape.is_closed:
                yield from map(_build_text, self._text.release())
                return ""
            yield None

    @property
    def _think_markers(self) -> tuple[str, ...]:
        return (self._think.start, self._think.end) if self._think is not None else ()

    @property
    def _call_starts(self) -> tuple[str, ...]:
        return (self._call.start,) if self._call is not None else ()

    def _read_thought(self) -> Generator[Part | None, None, None]:
        """A thought up to its end, or up to a call: models forget to end their thoughts before they call.

        A call is one here only when it begins as one; a marker that is merely thought about stays in the thought.
        """
        assert self._think is not None, "thoughts are read where they are marked"
        self._text.end()
        self.is_thinking = True
        thought = Trimmed(holds_blank=True, skips_blank=True)
        while True:
            text, marker = self._tape.take_before(*self._think_markers, *self._call_starts)
            yield from map(_build_thought, thought.add(text, self._tape.offset - len(text)))
            if marker is None:
                if self._tape.is_closed:
                    return
                yield None
                continue
            self._tape.take(marker)
            if marker == self._think.end:
                self.is_thinking = False
                return
            if marker in self._call_starts:
                blank = yield from self._read_opening()
                if blank is None:
                    self.is_thinking = False
                    yield from self._read_call()
                    return
                yield from map(_build_thought, thought.add(marker + blank, self._tape.offset - len(marker + blank)))

    def _read_opening(self) -> Generator[None, None, str | None]:
        """None when a call begins here; otherwise the white space that stands here."""
        blank = yield from collect_run(self._tape, "blank")
        opens = yield from wait_for_front(self._tape, CALL_OPENINGS[self._markup.tool_form or "other"])
        return None if opens and not self._tape.is_closed else blank

    def _read_call(self) -> Generator[Part | None, None, None]:
        """What stands between call markers, as calls, or as text when it cannot be read as such."""
        assert self._call is not None, "calls are read where tools were offered"
        start = self._tape.offset
        self._tape.record()
        is_read = yield from read_calls(self._tape, self._calls, self._markup)
        inside = self._tape.end_record()
        if is_read:
            self._text.end()
        elif not self._tape.is_cut:
            yield from map(_build_text, self._text.add(inside, start))
        if self._call.end:
            yield from collect_before(self._tape, self._call.end)
            if self._tape.begins_with(self._call.end):
                self._tape.take(self._call.end)


class Trimmed:
    """Holds white space back until something follows that it belongs to. Works on runs: where one starts, and it."""

    def __init__(self, *, holds_blank: bool, skips_blank: bool = False) -> None:
        self._holds_blank, self._skips_blank = holds_blank, skips_blank
        self._held: list[tuple[int, str]] = []

    def add(self, text: str, start: int) -> Iterator[tuple[int, str]]:
        """What may be shown now that `text` follows."""
        if self._skips_blank:
            size = len(text)
            text = text.lstrip(BLANK)
            start += size - len(text)
        if not text:
            return
        self._skips_blank = False
        shown = text.rstrip(BLANK) if self._holds_blank else text
        if shown and not self._held:
            yield start, shown
        elif shown:
            self._held.append((start, shown))
            yield from self.release()
        if len(shown) < len(text):
            self._held.append((start + len(shown), text[len(shown) :]))

    def release(self) -> Iterator[tuple[int, str]]:
        """Everything that is held back, in as few runs as it stands together."""
        held, self._held = self._held, []
        first, pieces, end = 0, list[str](), 0
        for start, text in held:
            if pieces and start != end:
                yield first, "".join(pieces)
                pieces = []
            if not pieces:
                first = start
            pieces.append(text)
            end = start + len(text)
        if pieces:
            yield first, "".join(pieces)

    def end(self) -> None:
        """Something else begins here: white space on either side of it is dropped."""
        self._held, self._skips_blank = [], True


def _build_text(run: tuple[int, str]) -> TextDelta:
    return TextDelta(run[1], run[0])


def _build_thought(run: tuple[int, str]) -> ThoughtDelta:
    return ThoughtDelta(run[1])
