"""Finds the children of agents that name no parent: by the prompt that a call handed to them.

When an answer ends with a call of a tool that starts an agent, the call's prompt is remembered for its session; a new
conversation that says the same is that session's child. Seen 2026-11-30: OpenCode 1.18.33 sends the prompt as the
child's first message, Qwen Code 0.15.10 within one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

LEAST_CHARS = 24
"""Of a prompt, blanks at its ends not counted: anybody may say something shorter by themselves."""

MOST_CHARS = 16_384
"""A longer prompt is known by its beginning."""

ENTRIES_KEPT = 1_000
KEPT_S = 3_600.0

TEXT_CHARS = 262_144
"""So much of a conversation's beginning is looked through."""

COMPARED_MOST = 20_000
"""Comparisons for one conversation. Far more than honest texts need: without a bound, a thousand prompts and a text
that repeat one letter would keep the server's loop for minutes."""

_STRIDE = 12
"""Of a text every twelfth place is looked up, and of a prompt the pieces that begin at its first twelve: where the text
has the prompt, one of the pieces lies on such a place. With pieces as long, the shortest prompt has them all. Source:
measured 2026-11-30, x86-64: 200 KB against 1,000 prompts of 10 KB takes 2.1 ms, and 3.3 where all begin alike."""

_NAMES = frozenset({"spawn_subagent", "task", "agent", "spawn_agent"})
"""Tools that start an agent, in lower case: Grok's spawn_subagent, OpenCode's task, Claude Code's Task and Agent, Qwen
Code's agent, Codex's spawn_agent; and all that begin with `_NAME_START`."""

_NAME_START = "delegate"

_PROMPT_NAMES = frozenset(
    {"prompt", "prompts", "message", "task", "tasks", "instructions", "instruction", "query", "goal", "objective"}
)
"""Arguments that are the prompt; where there is one, no other is taken."""

_NO_PROMPTS = frozenset(
    {"subagent_type", "agent_type", "type", "role", "model", "name", "title", "id", "task_id", "session_id", "agent_id"}
    | {"cwd", "path", "workdir", "working_directory", "isolation", "mode"}
)
"""Arguments that are none, however long."""

_DEEPEST = 4
_PROMPTS_MOST = 64
"""Of one answer."""


class _Entry(msgspec.Struct, frozen=True, eq=False):
    """A prompt that was handed to a child."""

    number: int
    """Rises with every entry."""
    session: str
    owner: str
    prompt: str
    at_s: float


class SpawnBook:
    """Prompts handed to children lately, and by which session."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, entries: int = ENTRIES_KEPT, kept_s: float = KEPT_S
    ) -> None:
        self._clock, self._most, self._kept_s = clock, entries, kept_s
        self._entries: deque[_Entry] = deque()
        self._pieces: dict[str, deque[tuple[_Entry, int]]] = {}
        """The pieces that prompts begin with: whose, and where in it. A prompt may have one at several places."""
        self._count = 0

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, session: str, prompt: str, owner: str = "") -> None:
        """A session has started a child with this prompt. Too short a one is passed over."""
        prompt = prompt.strip()[:MOST_CHARS]
        if len(prompt) < LEAST_CHARS:
            return
        self._count += 1
        entry = _Entry(self._count, session, owner, prompt, self._clock())
        self._entries.append(entry)
        for offset in range(_STRIDE):
            self._pieces.setdefault(prompt[offset : offset + _STRIDE], deque()).append((entry, offset))
        while len(self._entries) > self._most:
            self._forget(self._entries.popleft())

    def match(self, user_texts: Iterable[str], session: str = "", owner: str = "") -> str | None:
        """The session that started a conversation with these texts, the newest if there are several.

        None when there is none; `session` is the conversation's own, which never started itself.
        """
        self._drop_old()
        best: _Entry | None = None
        left, compared = TEXT_CHARS, 0
        for text in user_texts:
            for place, entry, offset in self._candidates(text[:left]):
                compared += 1
                if compared > COMPARED_MOST:
                    return best.session if best else None
                if entry.owner != owner or entry.session == session or (best and entry.number < best.number):
                    continue
                if place >= offset and text.startswith(entry.prompt, place - offset):
                    best = entry
            left -= len(text)
            if left <= 0:
                break
        return best.session if best else None

    def _candidates(self, text: str) -> Iterator[tuple[int, _Entry, int]]:
        """Where the text has a piece of a prompt: its place, whose, and the piece's place in that prompt."""
        pieces = self._pieces
        if not pieces:
            return
        for place in range(0, len(text) - _STRIDE + 1, _STRIDE):
            for entry, offset in pieces.get(text[place : place + _STRIDE], ()):
                yield place, entry, offset

    def _drop_old(self) -> None:
        oldest_s = self._clock() - self._kept_s
        while self._entries and self._entries[0].at_s < oldest_s:
            self._forget(self._entries.popleft())

    def _forget(self, entry: _Entry) -> None:
        """Entries are forgotten in the order in which they came, so that each is the first wherever it stands."""
        for offset in range(_STRIDE):
            piece = entry.prompt[offset : offset + _STRIDE]
            holders = self._pieces[piece]
            holders.popleft()
            if not holders:
                del self._pieces[piece]


class SpawnCall(msgspec.Struct, frozen=True):
    """A call of a tool that an answer ends with."""

    name: str
    arguments: str
    """JSON text."""


def find_spawn_prompts(calls: Iterable[SpawnCall], extra_names: Sequence[str] = ()) -> list[str]:
    """The prompts that these calls hand to agents. `extra_names` are more tools that start one, in any case.

    Of a call's arguments these are the ones named prompt, message, task, instructions and the like, in lists of tasks
    too. Where none is, every text of at least `LEAST_CHARS` is taken that is no path, address or id.
    """
    names = _NAMES | {name.lower() for name in extra_names}
    found: list[str] = []
    for call in calls:
        if _starts_agent(call.name, names):
            arguments = _decode(call.arguments)
            texts = list(_walk(arguments))
            prompts = [text for name, text in texts if name in _PROMPT_NAMES]
            found += prompts or [text for name, text in texts if name not in _NO_PROMPTS and _says_something(text)]
    return found[:_PROMPTS_MOST]


def _starts_agent(name: str, names: frozenset[str]) -> bool:
    """Whether a tool does, alone or in a namespace (`collaboration.spawn_agent`, `mcp__team__delegate`)."""
    whole = name.lower()
    last = whole.replace("__", ".").replace("/", ".").replace(":", ".").rpartition(".")[2]
    return whole in names or last in names or last.startswith(_NAME_START)


def _decode(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return None  # the answer was cut in it, or the model wrote something else


def _walk(value: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Every text that is long enough, with the name of the argument that it is or stands in."""
    if isinstance(value, str):
        if len(value.strip()) >= LEAST_CHARS:
            yield name, value
    elif depth < _DEEPEST:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from _walk(inner, str(key).lower(), depth + 1)
        elif isinstance(value, list):
            for inner in value:
                yield from _walk(inner, name, depth + 1)


def _says_something(text: str) -> bool:
    """False for what is written in one piece of plain letters: a path, an address, an id."""
    return len(text.split()) > 1 or not text.isascii()
