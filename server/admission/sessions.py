"""Who is asking, as far as one request tells: which session it belongs to, and whether that is a child's. Pure.

Headers that agents send are tried in a fixed order and the first that speaks decides. A request without any gets a
session made from how its conversation begins. What earlier requests tell besides is `lineage`'s to know.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping

import msgspec

from server.access import PLAIN_NAME
from server.admission.families import OTHER, find_family
from server.events import Lane

NAME_CHARS = 64
"""Longer session ids are cut: they are shown, logged and kept."""

CLIENT_CHARS = 40
"""Longer client names are cut."""

_CODEX_CHILDREN = frozenset({"collab_spawn", "review"})
_CODEX_AUXILIARY = frozenset({"compact", "memory_consolidation"})
_CLAUDE_AUXILIARY = frozenset({"auxiliary", "compaction"})

_GROK_AUXILIARY = (
    "recap-",
    "perm-classifier-",
    "xai-perm-auto-",
    "promptsuggest-",
    "title-refresh-",
    "dream-",
    "flush-",
    "trace-classifier-",
)
"""How the ids of a conversation or a request begin that Grok's programs make beside the turn of a session."""


class BodyFacts(msgspec.Struct, frozen=True):
    """What of a request, other than its headers, tells one conversation from another."""

    system_text: str
    first_user_text: str
    api_key: str
    peer: str
    """Address of the other end of the connection."""
    key_name: str = ""
    """Of the key that the request carries; empty when none is asked for."""


class Identity(msgspec.Struct, frozen=True):
    """Who is asking; every text in it is safe to print."""

    session: str
    parent_session: str | None
    lane: Lane
    client: str
    """Whose key it is, where keys have names, and the User-Agent, short."""
    key: str = ""
    """The key's name. Sessions begin with it, so that nobody can take part in another key's."""
    family: str = OTHER
    is_named: bool = True
    """False when no header names the session, and it is only known by how its conversation begins."""
    names_parents: bool = True
    """True when a header of this family would name a parent, if there were one."""
    owner: str = ""
    """A digest of key and address: sessions of different owners have nothing to do with each other."""


class _Signal(msgspec.Struct, frozen=True):
    """What one family of headers says."""

    session: str
    parent: str | None = None
    lane: Lane | None = None
    """None when it follows from having a parent or not."""
    names_parents: bool = True


def identify(headers: Mapping[str, str], facts: BodyFacts) -> Identity:
    """Who sent a request. Header names are in lower case."""
    client, key = name_client(headers.get("user-agent", "")), facts.key_name
    if key and key != PLAIN_NAME:  # which is nobody's in particular
        client = f"{key} {client}"
    owner = _digest(facts.key_name, facts.api_key, facts.peer)
    unnamed = Identity(
        _own(key, f"conversation-{_fingerprint(facts)}"),
        None,
        "unknown",
        client,
        key,
        find_family(headers),
        is_named=False,
        names_parents=False,
        owner=owner,
    )
    signal = next((signal for read in _SIGNALS if (signal := read(headers)) is not None), None)
    return unnamed if signal is None else _settle(signal, unnamed)


def name_client(user_agent: str) -> str:
    """A short printable name for a User-Agent, e.g. `OpenAI/Python 3.57.0`; `unknown` when there is none."""
    words = user_agent.split()
    if not words:
        return "unknown"
    named = words[:2] if len(words) > 1 and re.match(r"v?\d+(\.\d+)+", words[1]) else words[:1]
    return make_printable(" ".join(named), CLIENT_CHARS)


def make_printable(text: str, most_chars: int) -> str:
    """The text with control and other unprintable characters written as escapes, cut to a length."""
    cut = text if len(text) <= most_chars else f"{text[: most_chars - 1]}…"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in cut)


def _own(key: str, session: str) -> str:
    """A session under the key that it came with; no name of a key has a slash."""
    return f"{key}/{session}" if key else session


def _settle(signal: _Signal, unnamed: Identity) -> Identity:
    session = _own(unnamed.key, make_printable(signal.session, NAME_CHARS))
    parent = _own(unnamed.key, make_printable(signal.parent, NAME_CHARS)) if signal.parent else None
    if parent == session:
        parent = None  # its own parent: the root of its conversation
    return msgspec.structs.replace(
        unnamed,
        session=session,
        parent_session=parent,
        lane=signal.lane or ("child" if parent else "parent"),
        is_named=True,
        names_parents=signal.names_parents,
    )


def _read_plain(session_name: str, parent_name: str) -> Callable[[Mapping[str, str]], _Signal | None]:
    """A family that names the session in one header and its parent in another."""

    def read(headers: Mapping[str, str]) -> _Signal | None:
        session = headers.get(session_name, "").strip()
        return _Signal(session, headers.get(parent_name, "").strip() or None) if session else None

    return read


def _read_lone(session_name: str) -> Callable[[Mapping[str, str]], _Signal | None]:
    """A family that names the session, and never a parent."""

    def read(headers: Mapping[str, str]) -> _Signal | None:
        session = headers.get(session_name, "").strip()
        return _Signal(session, names_parents=False) if session else None

    return read


def _read_claude_code(headers: Mapping[str, str]) -> _Signal | None:
    """Claude Code names a spawned agent; that agent's parent only when it is itself an agent.

    The class of a request it only tells with `CLAUDE_CODE_GATEWAY_HINT_HEADERS=1`.
    """
    session = headers.get("x-claude-code-session-id", "").strip()
    agent = headers.get("x-claude-code-agent-id", "").strip()
    if not session:
        return None
    kind = headers.get("x-claude-code-request-class", "").strip()
    lane: Lane | None = "auxiliary" if kind in _CLAUDE_AUXILIARY else None
    if not agent:
        return _Signal(session, lane=lane)
    return _Signal(agent, headers.get("x-claude-code-parent-agent-id", "").strip() or session, lane)


def _read_codex(headers: Mapping[str, str]) -> _Signal | None:
    """Codex names a thread, its parent thread, and what kind of helper it is."""
    session = (headers.get("thread-id") or headers.get("session-id") or "").strip()
    if not session:
        return None
    kind = headers.get("x-openai-subagent", "").strip()
    parent = headers.get("x-codex-parent-thread-id", "").strip() or None
    if kind in _CODEX_AUXILIARY:
        return _Signal(session, parent, "auxiliary")
    return _Signal(session, parent, "child" if parent or kind in _CODEX_CHILDREN else None)


def _read_grok(headers: Mapping[str, str]) -> _Signal | None:
    """Grok's programs name the session, a child's too, and tell a side request by how its own ids begin."""
    session = headers.get("x-grok-session-id", "").strip()
    if not session:
        return None
    ids = (headers.get("x-grok-conv-id", "").strip(), headers.get("x-grok-req-id", "").strip())
    is_auxiliary = any(own.startswith(_GROK_AUXILIARY) for own in ids)
    return _Signal(session, lane="auxiliary" if is_auxiliary else None, names_parents=False)


_SIGNALS: tuple[Callable[[Mapping[str, str]], _Signal | None], ...] = (
    _read_plain("x-homebase-session", "x-homebase-parent-session"),
    _read_plain("x-dynamo-session-id", "x-dynamo-parent-session-id"),
    _read_claude_code,
    _read_codex,
    _read_plain("x-session-id", "x-parent-session-id"),
    _read_plain("x-session-affinity", "x-parent-session-id"),
    _read_grok,
    _read_lone("agent-session-id"),
    _read_lone("goose-session-id"),
)
"""In the order in which they are believed: ours, Dynamo's, Claude Code's, Codex's, OpenCode's, Grok's, goose's."""


def _fingerprint(facts: BodyFacts) -> str:
    """The same for every turn of one conversation, whatever is said later."""
    return _digest(facts.system_text, facts.first_user_text, facts.api_key, facts.peer)


def _digest(*parts: str) -> str:
    digest = hashlib.sha256()
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()[:10]
