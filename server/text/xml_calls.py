"""Reads calls in the form of Qwen's coder models while they are generated: `<function=NAME>` around `<parameter=KEY>`.

Values of parameters that are text by the tool's schema are passed on as they come; others when they are complete.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from typing import Any, Protocol

from server.text.calls import Calls, Reading
from server.text.parts import CallDelta, CallEnded
from server.text.tape import Tape, collect_before, collect_run, wait_for_front
from server.text.tool_values import TEXT_ONLY, TEXT_OR_NULL, Kinds, escape_text, find_kinds, write_json, write_value

FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


def read_xml_call(tape: Tape, calls: Calls, end: str) -> Reading:
    """Read what stands between the call markers, and leave `end` on the tape. The result: it named a function."""
    name = yield from _find_function(tape, end)
    if not name:
        return False
    while name:
        yield from _read_function(tape, calls, name, end)
        name = yield from _find_function(tape, end)
    return True


def _find_function(tape: Tape, end: str) -> Generator[None, None, str]:
    """The name of the next function; empty when there is none before the end, where the tape stands then."""
    yield from collect_before(tape, FUNCTION, end)
    if not tape.begins_with(FUNCTION):
        return ""
    tape.take(FUNCTION)
    name = yield from _read_name(tape)
    if not name:
        yield from collect_before(tape, end)
    return name


def _read_name(tape: Tape) -> Generator[None, None, str]:
    """A name and the bracket that closes it; empty when the text ends in it, or when there is none."""
    yield from collect_run(tape, "blank")
    name = yield from collect_run(tape, "name")
    if tape.begins_with(">"):
        tape.take(">")
        return name
    return "" if tape.is_closed else name


def _read_function(tape: Tape, calls: Calls, name: str, end: str) -> Reading:
    """Read one function to its end. The result: it is complete."""
    begun = calls.begin(name)
    yield begun
    writer = ArgumentWriter(begun.index, calls.find_parameters(name))
    is_whole = yield from _read_parameters(tape, writer, end)
    if is_whole:
        yield writer.close()
        yield CallEnded(begun.index)
    return is_whole


def _read_parameters(tape: Tape, writer: ArgumentWriter, end: str) -> Reading:
    """Read parameters until the function ends. The result: it did, or the model ended its answer between two.

    What stands between two parameters is nothing.
    """
    while True:
        yield from collect_before(tape, PARAMETER, FUNCTION_END, end)
        if not tape.begins_with(PARAMETER):
            if tape.begins_with(FUNCTION_END):
                tape.take(FUNCTION_END)
            return not (tape.is_closed and tape.is_cut)
        tape.take(PARAMETER)
        name = yield from _read_name(tape)
        value = writer.open(name)
        is_whole = yield from _read_value(tape, value, end)
        if not is_whole:
            return False
        yield from value.close()


def _read_value(tape: Tape, value: Value, end: str) -> Generator[CallDelta | None, None, bool]:
    """Pass a value on up to its end, with the marker that ends it. The result: it is complete.

    A marker counts by what follows it. So a value may contain all of them, as a file about such calls does, unless
    it contains the end of one parameter and the beginning of the next.
    """
    follows = {PARAMETER_END: (PARAMETER, FUNCTION_END, end), FUNCTION_END: (end,)}
    while True:
        text, marker = tape.take_before(*follows)
        if tape.is_cut:
            return False
        yield from value.add(text)
        if marker is None:
            if tape.is_closed:
                return False
            yield None
            continue
        tape.take(marker)
        blank = yield from collect_run(tape, "blank")
        is_end = yield from wait_for_front(tape, *follows[marker])
        if is_end:
            return not tape.is_cut
        yield from value.add(marker + blank)


class Value(Protocol):
    """One parameter's value on its way into the arguments."""

    def add(self, text: str) -> Iterator[CallDelta]:
        """Take the next piece of what stands between the markers."""
        ...

    def close(self) -> Iterator[CallDelta]:
        """The value is complete."""
        ...


class ArgumentWriter:
    """Writes the JSON object of one call's arguments, piece by piece.

    Of a parameter that is given twice the first value counts: it is already sent when the second one comes.
    """

    def __init__(self, index: int, parameters: Mapping[str, Any]) -> None:
        self._index, self._parameters = index, parameters
        self._names: set[str] = set()

    def open(self, name: str) -> Value:
        """Where the value of the next parameter goes; nowhere, when it has no name or had a value before."""
        if not name or name in self._names:
            return SkippedValue()
        key = f"{', ' if self._names else '{'}{write_json(name)}: "
        self._names.add(name)
        kinds = find_kinds(self._parameters, name)
        if kinds == TEXT_ONLY:
            return TextValue(self._index, key)
        if kinds in TEXT_OR_NULL:
            return TextOrNull(self._index, key)
        return WholeValue(self._index, key, kinds)

    def close(self) -> CallDelta:
        """The arguments are complete."""
        return CallDelta(self._index, "}" if self._names else "{}")


class TextValue:
    """Passes text on as it comes, without one line break at each end."""

    def __init__(self, index: int, key: str) -> None:
        self._index, self._key = index, key
        self._is_first = True
        self._held = ""

    def add(self, text: str) -> Iterator[CallDelta]:
        """Pass on all but a line break at the end, which may be the last character."""
        if not text:
            return
        opening = ""
        if self._is_first:
            opening, self._is_first = f'{self._key}"', False
            text = text.removeprefix("\n")
        text = self._held + text
        self._held = "\n" if text.endswith("\n") else ""
        shown = opening + escape_text(text.removesuffix("\n"))
        if shown:
            yield CallDelta(self._index, shown)

    def close(self) -> Iterator[CallDelta]:
        """Close the string; a line break that is still held is no part of it."""
        yield CallDelta(self._index, f'{self._key}""' if self._is_first else '"')


class TextOrNull:
    """Passes text on as it comes, unless it is `null` and nothing else."""

    def __init__(self, index: int, key: str) -> None:
        self._whole, self._text = WholeValue(index, key, None), TextValue(index, key)
        self._front: str | None = ""

    def add(self, text: str) -> Iterator[CallDelta]:
        """Hold the piece while all that there is may still be `null`."""
        if self._front is None:
            yield from self._text.add(text)
            return
        self._front += text
        if not "null\n".startswith(self._front.removeprefix("\n").lower()):
            front, self._front = self._front, None
            yield from self._text.add(front)

    def close(self) -> Iterator[CallDelta]:
        """Pass on what is left."""
        if self._front is None:
            yield from self._text.close()
        else:
            yield from self._whole.add(self._front)
            yield from self._whole.close()


class WholeValue:
    """Collects a value, and converts it by its schema when it is complete."""

    def __init__(self, index: int, key: str, kinds: Kinds | None) -> None:
        self._index, self._key, self._kinds = index, key, kinds
        self._pieces: list[str] = []

    def add(self, text: str) -> Iterator[CallDelta]:
        """Keep the piece."""
        self._pieces.append(text)
        yield from ()

    def close(self) -> Iterator[CallDelta]:
        """Pass on the value, of what was written without one line break at each end."""
        text = "".join(self._pieces).removeprefix("\n").removesuffix("\n")
        yield CallDelta(self._index, self._key + write_value(text, self._kinds))


class SkippedValue:
    """Takes a value that goes nowhere."""

    def add(self, text: str) -> Iterator[CallDelta]:
        """Drop the piece."""
        yield from ()

    def close(self) -> Iterator[CallDelta]:
        """Nothing was kept."""
        yield from ()
