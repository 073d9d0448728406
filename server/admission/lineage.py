"""The sessions that were seen lately: whose child each is, how deep, and what became of its requests.

Lives on the server loop and is touched by nothing else. Bounded in sessions and in time; holds no text of a request
but the prompts of the spawn book.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from server.admission.place import Place
from server.admission.sessions import Identity
from server.admission.spawns import SpawnBook
from server.events import Lane, Outcome
from server.snapshot import SessionView

SESSIONS_KEPT = 1_000
IDLE_KEPT_S = 86_400.0
"""A person comes back to a conversation the next morning, and its children are its children still."""

TITLES_WITHOUT_TOOLS = frozenset({"opencode"})
"""Families whose own turns always offer tools, and whose titles come first. Source: OpenCode 1.18.33, seen 2026-11-30:
two requests for one line of work, the title's without tools and under the same session, the turn's beside it."""

DEEPEST = 64
"""So far up parents are looked for; a header can say anything."""


class Spent(msgspec.Struct, frozen=True):
    """What one request cost, in tokens."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


@dataclass(slots=True)
class _Session:
    """One session while it is known."""

    parent: str | None
    is_child: bool
    lane: Lane
    client: str
    family: str
    key: str
    first_s: float
    last_s: float
    arriving: int = 0
    """Requests that are neither admitted nor refused yet."""
    in_flight: int = 0
    requests: int = 0
    admitted: int = 0
    refused: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    last_outcome: str = ""

    @property
    def is_busy(self) -> bool:
        return self.arriving + self.in_flight > 0


class Lineage:
    """Tells whose request it is, from its headers and from what was seen before."""

    def __init__(
        self,
        spawns: SpawnBook | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        sessions: int = SESSIONS_KEPT,
    ) -> None:
        self._spawns = spawns or SpawnBook(clock)
        self._clock, self._wall, self._most = clock, wall, sessions
        self._sessions: dict[str, _Session] = {}
        """The one that was seen last stands last."""
        self._started: dict[str, str] = {}
        """Requests in flight and their sessions."""

    def place(self, identity: Identity, user_texts: Iterable[str] = (), has_tools: bool = False) -> Place:
        """Where a request stands. Changes nothing.

        `user_texts` are what its conversation begins with. They are looked at once, when a session is new: a header
        that names a parent is believed first, and a child stays one whatever later requests say.
        """
        known = self._find(identity.session)
        parent = identity.parent_session or (known.parent if known else None)
        lacks_parent = parent is None and (identity.lane == "child" or not identity.names_parents)
        if lacks_parent and known is None:
            parent = self._spawns.match(user_texts, identity.session, identity.owner)
        is_child = parent is not None or identity.lane == "child" or (known is not None and known.is_child)
        return Place(
            identity.session,
            parent,
            len(self._list_ancestors(identity.session, parent)) or int(is_child),
            self._choose_lane(identity, known, is_child, has_tools),
            identity.client,
            identity.family,
            identity.key,
        )

    def arrived(self, place: Place) -> None:
        """A request has come and is being looked at; `left` is called for it in any case, once."""
        session = self._see(place)
        session.arriving += 1
        session.requests += 1

    def left(self, place: Place) -> None:
        """A request was looked at: it is in flight, or refused, or was none."""
        if (session := self._sessions.get(place.session)) is not None:
            session.arriving = max(0, session.arriving - 1)

    def started(self, request_id: str, place: Place) -> None:
        """A request was admitted."""
        session = self._see(place)
        session.in_flight += 1
        session.admitted += 1
        self._started[request_id] = place.session

    def ended(self, request_id: str, outcome: Outcome, spent: Spent) -> None:
        """A request that was admitted is over; the first word counts."""
        name = self._started.pop(request_id, "")
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._sessions[name] = session
        session.last_s = self._clock()
        session.in_flight = max(0, session.in_flight - 1)
        session.last_outcome = outcome
        session.prompt_tokens += spent.prompt_tokens
        session.cached_tokens += spent.cached_tokens
        session.completion_tokens += spent.completion_tokens

    def refused(self, place: Place, code: str) -> None:
        """A request was refused."""
        session = self._see(place)
        session.refused += 1
        session.last_outcome = code

    def spawned(self, identity: Identity, prompts: Iterable[str]) -> None:
        """A session has started children with these prompts."""
        for prompt in prompts:
            self._spawns.remember(identity.session, prompt, identity.owner)

    def sessions(self) -> tuple[SessionView, ...]:
        """All that are known, the one that was seen last first."""
        self._drop_idle()
        children: dict[str, list[str]] = defaultdict(list)
        for name, session in self._sessions.items():
            if session.parent is not None:
                children[session.parent].append(name)
        now_s, now = self._clock(), self._wall()
        return tuple(
            self._view(name, session, now - now_s, tuple(children[name]))
            for name, session in reversed(self._sessions.items())
        )

    def _view(self, name: str, session: _Session, to_unix_s: float, children: tuple[str, ...]) -> SessionView:
        ancestors = self._list_ancestors(name, session.parent)
        return SessionView(
            session=name,
            parent_session=session.parent,
            root_session=ancestors[-1] if ancestors else name,
            depth=len(ancestors) or int(session.is_child),
            lane=session.lane,
            client=session.client,
            family=session.family,
            key=session.key,
            first_seen_s=session.first_s + to_unix_s,
            last_seen_s=session.last_s + to_unix_s,
            requests=session.requests,
            in_flight=session.in_flight,
            admitted=session.admitted,
            refused=session.refused,
            prompt_tokens=session.prompt_tokens,
            cached_tokens=session.cached_tokens,
            completion_tokens=session.completion_tokens,
            last_outcome=session.last_outcome,
            children=children,
        )

    def _choose_lane(self, identity: Identity, known: _Session | None, is_child: bool, has_tools: bool) -> Lane:
        """Only a session that a header names has side requests: two that begin alike may be two strangers."""
        is_beside = identity.is_named and not has_tools and known is not None and known.is_busy
        is_title = identity.family in TITLES_WITHOUT_TOOLS and not has_tools and not is_child
        if identity.lane == "auxiliary" or is_beside or (identity.is_named and is_title):
            return "auxiliary"
        return "child" if is_child else identity.lane

    def _list_ancestors(self, session: str, parent: str | None) -> list[str]:
        """The parent, its parent and so on, as far as they are known; each once, though they may name each other."""
        found: list[str] = []
        while parent is not None and parent != session and parent not in found and len(found) < DEEPEST:
            found.append(parent)
            known = self._sessions.get(parent)
            parent = known.parent if known else None
        return found

    def _find(self, session: str) -> _Session | None:
        self._drop_idle()
        return self._sessions.get(session)

    def _see(self, place: Place) -> _Session:
        """The session of a request, and those above it, seen now."""
        now_s = self._clock()
        for name in reversed(self._list_ancestors(place.session, place.parent_session)):
            if (above := self._sessions.pop(name, None)) is not None:
                above.last_s, self._sessions[name] = now_s, above
        session = self._sessions.pop(place.session, None)
        if session is None:
            session = _Session(None, False, "unknown", "", "", place.key, now_s, now_s)
            self._make_room()
        self._sessions[place.session] = session
        session.last_s = now_s
        # A request that was placed earlier may be told of later than one that knew more.
        session.parent = place.parent_session or session.parent
        session.is_child = session.is_child or place.depth > 0
        session.client, session.family = place.client, place.family
        own: Lane = "parent" if place.lane == "auxiliary" else place.lane
        session.lane = "child" if session.is_child else own
        return session

    def _make_room(self) -> None:
        """For one more: those that have nothing in flight go first, the one that was seen longest ago before others."""
        while len(self._sessions) >= self._most:
            idle = (name for name, session in self._sessions.items() if not session.is_busy)
            del self._sessions[next(idle, next(iter(self._sessions)))]

    def _drop_idle(self) -> None:
        for name in list(self._list_idle()):
            del self._sessions[name]

    def _list_idle(self) -> Iterator[str]:
        """Sessions without a request for so long; they are in the order in which they were seen."""
        oldest_s = self._clock() - IDLE_KEPT_S
        for name, session in self._sessions.items():
            if session.last_s >= oldest_s:
                return
            if not session.is_busy:
                yield name
