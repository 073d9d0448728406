"""Numbers, times, rates and foreign text as the console writes them. Pure: no clock is read and no widget is known."""

from __future__ import annotations

import json
import math
import time
import unicodedata

from rich.cells import cell_len, set_cell_size

NOT_YET = "-"
"""Stands where a number is not known yet; a zero would be a claim."""

_NAMED_CONTROLS = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")

_NICE_STEPS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0)


def format_count(number: int | None) -> str:
    """A whole number with thousands separated by commas."""
    return NOT_YET if number is None else f"{number:,}"


def format_rate(rate: float | None) -> str:
    """A rate with three or more significant digits: `8.25`, `58.4`, `1,377`."""
    if rate is None or not math.isfinite(rate):
        return NOT_YET
    if rate == 0:
        return "0"
    if rate >= 999.5:
        return f"{rate:,.0f}"
    return f"{rate:.1f}" if rate >= 9.995 else f"{rate:.2f}"


def format_ratio(ratio: float | None) -> str:
    """A ratio 0..1 as whole percent, never rounded up to 100 nor down to 0."""
    if ratio is None or not math.isfinite(ratio):
        return NOT_YET
    percent = ratio * 100
    if 99 < percent < 100:
        return "99 %"
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"


def format_bytes(number: float) -> str:
    """Bytes in the largest binary unit that keeps a digit before the point."""
    size = float(number)
    for unit in _BYTE_UNITS:
        if size < 1023.95 or unit == _BYTE_UNITS[-1]:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes any size")


def format_parameters(number: int) -> str:
    """A parameter count: `1.9 M`, `35 B`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            shown = number / size
            return f"{shown:.0f} {unit}" if shown >= 9.95 else f"{shown:.1f} {unit}"
    return str(number)


def format_duration(seconds: float | None) -> str:
    """A span as a clock: `0:41`, `3:12:44`, `2d 03:12`."""
    if seconds is None:
        return NOT_YET
    whole = max(0, int(seconds))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}d {hour:02}:{minute:02}"
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def format_seconds(seconds: float | None) -> str:
    """A short span with its unit: `0.42 s`, `19 s`, `2 min 05 s`."""
    if seconds is None:
        return NOT_YET
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 9.95:
        return f"{seconds:.2f} s" if seconds < 0.995 else f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 120 else f"{whole // 60} min {whole % 60:02} s"


def format_ago(seconds: float | None) -> str:
    """How long ago, in whole seconds so that it does not flicker: `3 s ago`."""
    return f"{max(0, int(seconds))} s ago" if seconds is not None else NOT_YET


def format_clock(time_s: float) -> str:
    """A Unix time as local time of day."""
    return time.strftime("%H:%M:%S", time.localtime(time_s))


def count_noun(number: int, noun: str) -> str:
    """`1 stream`, `3 streams`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def safe_text(text: str) -> str:
    """Foreign text that cannot move the cursor, hide or reorder anything: such characters are shown escaped.

    Joiners and variation selectors go too, because terminals disagree about the width of what they join.
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(_safe_character(character) for character in text)


def _safe_character(character: str) -> str:
    if character in _NAMED_CONTROLS:
        return _NAMED_CONTROLS[character]
    if "\ufe00" <= character <= "\ufe0f":
        return ""
    if character == " " or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}:
        return character
    if unicodedata.category(character) == "Zs":
        return " "
    point = ord(character)
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"


def short_id(id: str) -> str:
    """Enough of a request's id to tell it from the others on the screen."""
    return safe_text(id.removeprefix("req-"))[:8]


def cut(text: str, width: int) -> str:
    """The text in at most `width` cells, its end replaced by `…` when it is longer."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    return set_cell_size(text, width - 1).rstrip() + "…"


def cut_middle(text: str, width: int) -> str:
    """The text in at most `width` cells, its middle replaced by `…`: for paths, whose end says most."""
    if cell_len(text) <= width:
        return text
    if width <= 4:
        return cut(text, width)
    tail = text
    while cell_len(tail) > (width - 1) * 2 // 3:
        tail = tail[1:]
    return set_cell_size(text, width - 1 - cell_len(tail)).rstrip() + "…" + tail


def pad(text: str, width: int) -> str:
    """The text cut or filled with blanks to exactly `width` cells, at the left."""
    return set_cell_size(cut(text, width), max(0, width))


def pad_left(text: str, width: int) -> str:
    """The text cut or filled with blanks to exactly `width` cells, at the right."""
    shown = cut(text, width)
    return " " * (width - cell_len(shown)) + shown


def wrap_words(text: str, width: int) -> list[str]:
    """The text in lines of at most `width` cells, broken at blanks; a longer word is cut."""
    lines = [""]
    for word in text.split(" "):
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return [cut(line, width) for line in lines]


def nice_max(value: float, floor: float = 10.0) -> float:
    """The smallest round number that is not below `value` nor `floor`: the top of a plot's fixed scale."""
    wanted = max(value, floor)
    if not math.isfinite(wanted) or wanted <= 0:
        return floor
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(step * power for step in _NICE_STEPS if step * power >= wanted * (1 - 1e-9))


def base_url(host: str, port: int) -> str:
    """Where a client on this machine points its OpenAI base URL; wildcard addresses become the loopback one."""
    reachable = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{reachable}]:{port}/v1" if ":" in reachable else f"http://{reachable}:{port}/v1"


def curl_example(url: str, model: str, asks_key: bool) -> tuple[str, ...]:
    """A streamed chat completion for a shell, as the lines of one command."""
    body = json.dumps(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": "def fib(n):"}]}, ensure_ascii=False
    )
    head, _, tail = body.partition(' "messages"')
    quoted = [part.replace("'", "'\\''") for part in (head, f'"messages"{tail}')]
    lines = [f"curl -N {url}/chat/completions \\", "  -H 'Content-Type: application/json' \\"]
    if asks_key:
        lines.append('  -H "Authorization: Bearer $HOMEBASE_API_KEY" \\')
    return (*lines, f"  -d '{quoted[0]}", f"       {quoted[1]}'")
