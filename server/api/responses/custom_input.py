"""The text of a custom tool's call, read out of the arguments of the function as which the model knows the tool."""

from __future__ import annotations

import re

import msgspec

from server.api.responses.tools import CUSTOM_INPUT

_OPENING = re.compile(rf'\s*\{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
_OPENING_CHARS = 64
"""What is longer and does not open with the text is no call that can be told before its end."""

_WHOLE = re.compile(
    r'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}'
    r"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})*"
)
"""The inside of a JSON string, up to its end or to an escape that is cut."""


def read_custom_input(arguments: str) -> str:
    """The text in whole arguments.

    A model may name the argument otherwise, or write the text without any: an only string is the text, and what is no
    object is it as it stands.
    """
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    values = list(decoded.values()) if isinstance(decoded, dict) else []
    text = decoded.get(CUSTOM_INPUT, values[0] if len(values) == 1 else None) if isinstance(decoded, dict) else decoded
    return text if isinstance(text, str) else arguments


class CustomInput:
    """The text as its arguments grow; a patch is long, and its reader wants to see it come."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._unread = ""
        self._is_open = False
        self._shown: list[str] = []

    @property
    def shown_text(self) -> str:
        """All that `feed` has given."""
        return "".join(self._shown)

    def feed(self, piece: str) -> str:
        """What a piece of arguments adds to the text; nothing while that cannot be told."""
        self._pieces.append(piece)
        if not self._is_open and len(self._unread) > _OPENING_CHARS:
            return ""
        self._unread += piece
        if not self._is_open:
            opening = _OPENING.match(self._unread)
            if opening is None:
                return ""
            self._is_open, self._unread = True, self._unread[opening.end() :]
        return self._read()

    def finish(self) -> tuple[str, str]:
        """The whole text, and what of it `feed` has not given."""
        text = read_custom_input("".join(self._pieces))
        return text, text.removeprefix(self.shown_text)

    def _read(self) -> str:
        whole = _WHOLE.match(self._unread)
        assert whole is not None, "it matches nothing, too"
        self._unread = self._unread[whole.end() :]
        try:
            text: str = msgspec.json.decode(f'"{whole.group()}"')
        except msgspec.DecodeError:  # a bare control character or half a surrogate: told at the end, as it stands
            self._is_open, self._unread = False, " " * (_OPENING_CHARS + 1)
            return ""
        self._shown.append(text)
        return text
