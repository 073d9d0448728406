"""Where everything stands in a TOML text: each table header and each `key = value`, as offsets and line numbers.

Pure. tomllib says what a text means and whether it is TOML at all; it does not say where. This scanner is only ever
believed about texts that tomllib has read, and values that it finds are compared with what tomllib read there.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

import msgspec

Path = tuple[str, ...]
"""Names of a key from the root, e.g. `("policy", "max_in_flight")`."""


class Header(msgspec.Struct, frozen=True):
    """One `[table]` or `[[table]]` line."""

    path: Path
    array: bool
    start: int
    """Offset of the first bracket."""
    end: int
    """Offset after the last bracket."""
    line: int


class Entry(msgspec.Struct, frozen=True):
    """One `key = value`, at the start of a line or inside an inline table."""

    path: Path
    table: Path
    """What the written key is relative to: the header above it, or the inline table around it."""
    key: int
    """Offset of the key."""
    start: int
    end: int
    """Offsets of the value's first character and after its last."""
    line: int
    inline: bool
    """True inside an inline table."""


class ScanFailed(Exception):
    """The text does not read as TOML here; `line` is where the statement begins that fails."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}")
        self.line = line


class Scan(msgspec.Struct, frozen=True):
    """All of one text."""

    text: str
    statements: tuple[Header | Entry, ...]
    """In the order of the text; an inline table comes before the entries inside it."""

    @property
    def headers(self) -> tuple[Header, ...]:
        """The table headers."""
        return tuple(item for item in self.statements if isinstance(item, Header))

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The keys with their values."""
        return tuple(item for item in self.statements if isinstance(item, Entry))

    def find_entry(self, path: Path) -> Entry | None:
        """The entry that sets exactly this path."""
        return next((entry for entry in self.entries if entry.path == path), None)


def scan(text: str) -> Scan:
    """Find every statement of a TOML text; raises ScanFailed where it is none."""
    return _Scanner(text).run()


def scan_array(text: str, start: int) -> tuple[tuple[int, int], ...]:
    """Offsets of the elements of the array whose `[` stands at `start`."""
    scanner = _Scanner(text)
    scanner.at = start
    return tuple(scanner.read_array())


_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_REST_OF_LINE = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z)")
_KEY = re.compile(r"""[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r"""|"(?:[^"\\\n]|\\.)*"|'[^'\n]*'""", re.DOTALL
)
_SCALAR = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:[^\s,\]}#]*|[^\s,\]}#\"'\[{]+")


class _Scanner:
    """A cursor over one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.found: list[Header | Entry] = []
        self._newlines = [match.start() for match in re.finditer("\n", text)]
        self._statement = 0

    def run(self) -> Scan:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            self._statement = self.at
            if self.at == len(self.text):
                return Scan(self.text, tuple(self.found))
            if self.text[self.at] == "[":
                table = self._read_header()
            else:
                self._read_entry(table, inline=False)
            self._take(_REST_OF_LINE)

    def read_array(self) -> list[tuple[int, int]]:
        elements: list[tuple[int, int]] = []
        self._take_text("[")
        while True:
            self._skip(_BLANK)
            if self._next_is("]"):
                return elements
            start = self.at
            self._read_value(None)
            elements.append((start, self.at))
            self._skip(_BLANK)
            if not self._next_is(","):
                self._take_text("]")
                return elements

    def _read_header(self) -> Path:
        start, array = self.at, self.text.startswith("[[", self.at)
        self._take_text("[[" if array else "[")
        path = self._read_key()
        self._take_text("]]" if array else "]")
        self.found.append(Header(path, array, start, self.at, self._line(start)))
        return path

    def _read_entry(self, table: Path | None, *, inline: bool) -> None:
        key = self.at
        path = self._read_key()
        self._take_text("=")
        self._skip(_SPACE)
        start, place = self.at, len(self.found)
        self._read_value(None if table is None else table + path)
        if table is not None:
            self.found.insert(place, Entry(table + path, table, key, start, self.at, self._line(key), inline))

    def _read_key(self) -> Path:
        names: list[str] = []
        while True:
            self._skip(_SPACE)
            written = self._take(_KEY)
            names.append(self._unquote(written))
            self._skip(_SPACE)
            if not self._next_is("."):
                return tuple(names)

    def _unquote(self, written: str) -> str:
        if written[0] not in "\"'":
            return written
        try:
            return next(iter(tomllib.loads(f"{written} = 0")))
        except tomllib.TOMLDecodeError:
            raise self._fail() from None

    def _read_value(self, path: Path | None) -> None:
        """Move past a value; entries of an inline table are noted, unless it stands in an array (`path` None)."""
        match self.text[self.at : self.at + 1]:
            case "[":
                self.read_array()
            case "{":
                self._read_inline_table(path)
            case '"' | "'":
                self._take(_STRING)
            case _:
                self._take(_SCALAR)

    def _read_inline_table(self, path: Path | None) -> None:
        self._take_text("{")
        self._skip(_BLANK)
        while not self._next_is("}"):
            self._read_entry(path, inline=True)
            self._skip(_BLANK)
            if not self._next_is(","):
                self._take_text("}")
                return
            self._skip(_BLANK)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise self._fail()
        self.at = found.end()
        return found.group()

    def _next_is(self, text: str) -> bool:
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _take_text(self, text: str) -> None:
        if not self._next_is(text):
            raise self._fail()

    def _fail(self) -> ScanFailed:
        return ScanFailed(self._line(self._statement))

    def _line(self, offset: int) -> int:
        return bisect_right(self._newlines, offset - 1) + 1
