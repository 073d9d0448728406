"""What of a request's body an upstream's part needs to know, in any dialect; the rest is passed on unread. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from server.errors import InvalidRequest

CHARS_A_TOKEN = 4
"""Of a prompt whose tokenizer is another server's: what vendors name for English text. The usage that the server
reports takes its place."""

MOST_TOKENS = 2**31
"""Of an answer; a larger number is taken for this one."""

_TOKENS = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]', re.DOTALL)
_VALUE = re.compile(rb'\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")', re.DOTALL)
_ENCODED = re.compile(rb"[A-Za-z0-9+/]{2000,}={0,2}")
"""Pictures and files, whose characters are no text."""


class _Said(msgspec.Struct, frozen=True):
    """A message, as far as it is looked at."""

    role: str = ""
    content: Any = None


class _Body(msgspec.Struct, frozen=True):
    """The fields that are looked at. What is not as expected makes the whole unread; its server will say why."""

    model: str | None = None
    stream: bool | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    messages: msgspec.Raw = msgspec.Raw(b"")
    input: msgspec.Raw = msgspec.Raw(b"")
    prompt: msgspec.Raw = msgspec.Raw(b"")
    system: msgspec.Raw = msgspec.Raw(b"")
    instructions: msgspec.Raw = msgspec.Raw(b"")
    tools: msgspec.Raw = msgspec.Raw(b"")


class Asking(msgspec.Struct, frozen=True):
    """One request, as far as it is known."""

    model: str | None
    is_streaming: bool
    max_tokens: int | None
    prompt_tokens: int
    """Estimated."""
    system_text: str
    first_user_text: str
    """How the conversation begins, by which it is recognised."""
    has_tools: bool = False


def read_asking(body: bytes) -> Asking | None:
    """What a body asks; None when it cannot be read, which is the endpoint's to explain."""
    try:
        found = msgspec.json.decode(body, type=_Body)
        said = list(_read_messages(found.messages or found.input))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    prompt = (found.messages, found.input, found.prompt, found.system, found.instructions, found.tools)
    return Asking(
        model=found.model,
        is_streaming=bool(found.stream),
        max_tokens=_bound(found.max_completion_tokens or found.max_output_tokens or found.max_tokens),
        prompt_tokens=sum(_count_chars(bytes(part)) for part in prompt) // CHARS_A_TOKEN,
        system_text=_read_text(found.system or found.instructions) or _first(said, "system", "developer"),
        first_user_text=_first(said, "user") or bytes(found.prompt)[:1000].decode("utf-8", "replace"),
        has_tools=bytes(found.tools).strip() not in (b"", b"[]", b"null"),
    )


def rename_model(body: bytes, model: str) -> bytes:
    """The body with another model's name, every other byte as it was. Raises InvalidRequest where it has none."""
    value, parts, at = msgspec.json.encode(model), [], 0
    for start, end in _find_model(body):
        parts += [body[at:start], value]
        at = end
    if not parts:
        raise InvalidRequest("`model` must be a string.", param="model")
    return b"".join((*parts, body[at:]))


def _bound(asked: int | None) -> int | None:
    """What can be reckoned with and shown; what is odd about it is its server's to say."""
    return None if asked is None else min(max(0, asked), MOST_TOKENS)


def _find_model(body: bytes) -> Iterator[tuple[int, int]]:
    """Where the values of the outermost object's `model` are; more than one only where the name is there again."""
    depth = 0
    for token in _TOKENS.finditer(body):
        sign = token[0]
        if sign in (b"{", b"["):
            depth += 1
        elif sign in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and len(sign) <= _LONGEST_NAME and (value := _VALUE.match(body, token.end())):
            is_model = msgspec.json.decode(sign) == "model"
            yield from [value.span(1)] if is_model else []


_LONGEST_NAME = len('"model"') * 6
"""With each letter written as an escape."""


def _count_chars(part: bytes) -> int:
    return len(part) - sum(len(match[0]) for match in _ENCODED.finditer(part))


def _read_messages(raw: msgspec.Raw) -> Iterator[_Said]:
    """Messages of a conversation, or the one that a plain text is."""
    if not bytes(raw):
        return
    document = msgspec.json.decode(raw)
    if isinstance(document, str):
        yield _Said("user", document)
    for each in document if isinstance(document, list) else ():
        if isinstance(each, dict) and isinstance(each.get("role"), str):
            yield _Said(each["role"], each.get("content"))


def _first(said: list[_Said], *roles: str) -> str:
    """The first text that one of these roles says."""
    return next((text for each in said if each.role in roles and (text := _join(each.content))), "")


def _read_text(raw: msgspec.Raw) -> str:
    return _join(msgspec.json.decode(raw)) if bytes(raw) else ""


def _join(content: Any) -> str:
    """A text, or the texts of its parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str))
