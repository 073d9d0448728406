"""Takes requests to the engine and its events back to whoever reads them. Server loop only; imports no MLX."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from server.engine.request import EngineRequest
from server.errors import EngineDead, FormLost, HomebaseError, SequenceFailed
from server.events import EngineDied, EngineEvent, PrefillAdvanced, SequenceEnded, TokenLogprob, TokensEmitted


class EngineInbox(Protocol):
    """What the dispatcher needs of an engine."""

    def submit(self, request: EngineRequest) -> None:
        """Hand over a request; raises EngineDead."""
        ...

    def cancel(self, request_id: str) -> None:
        """End a sequence at the next step boundary; an unknown id is fine."""
        ...


class _Mailbox:
    """Unread events of one generation, merged as they come: never more than one of a kind, and max_tokens ids."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        self.on_left = on_left
        self.wake: Callable[[], None] | None = None
        """Tells the reader that there is something new; None while nobody reads."""
        self.cancelled = False
        self.failure: HomebaseError | None = None
        self.finished = False
        self._prefill: PrefillAdvanced | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._tokens_at_s = 0.0
        self._ended: SequenceEnded | None = None

    def put(self, event: EngineEvent) -> None:
        """Keep one event for the reader."""
        match event:
            case PrefillAdvanced():
                self._prefill = _merge_prefill(self._prefill, event)
            case TokensEmitted():
                self._token_ids.extend(event.token_ids)
                self._logprobs.extend(event.logprobs)
                self._tokens_at_s = event.at_s
            case SequenceEnded(outcome="failed"):
                failure = FormLost if event.has_lost_form else SequenceFailed
                self.fail(failure(event.error or "This sequence failed."))
            case SequenceEnded():
                self._ended, self.finished = event, True
            case _:
                return
        self._tell()

    def fail(self, failure: HomebaseError) -> None:
        """The reader gets what is unread, then this error."""
        self.failure, self.finished = failure, True
        self._tell()

    def _tell(self) -> None:
        if self.wake is not None:
            self.wake()

    def take(self, request_id: str) -> EngineEvent | None:
        """The oldest unread event, None when there is none."""
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            return prefill
        if self._token_ids:
            token_ids, self._token_ids = tuple(self._token_ids), []
            logprobs, self._logprobs = tuple(self._logprobs), []
            return TokensEmitted(request_id, token_ids, self._tokens_at_s, logprobs=logprobs)
        ended, self._ended = self._ended, None
        return ended


def _merge_prefill(unread: PrefillAdvanced | None, newer: PrefillAdvanced) -> PrefillAdvanced:
    if unread is None:
        return newer
    return PrefillAdvanced(
        newer.request_id,
        newer.done_tokens,
        unread.chunk_tokens + newer.chunk_tokens,
        unread.seconds + newer.seconds,
        newer.cached_tokens,
    )


class Generation:
    """One request's events, read by one task: prefill advances, tokens, the end.

    A slow reader finds the events it missed merged into one of each kind. One that is dropped unread is cancelled by
    itself; whoever stops reading should still say `cancel`.
    """

    def __init__(self, request_id: str, mailbox: _Mailbox, cancel: Callable[[str], None]) -> None:
        self.id = request_id
        self._mailbox = mailbox
        self._cancel = cancel
        weakref.finalize(self, cancel, request_id).atexit = False

    def cancel(self) -> None:
        """End it at the next step boundary; calling it again, or after the end, changes nothing."""
        self._cancel(self.id)

    async def read(self, take: Callable[[EngineEvent], bool]) -> None:
        """Give `take` each event as it comes, until it says True or nothing more will come.

        `take` is called where the event arrives, without a turn of the loop in between, and so must not wait. What it
        raises is raised here. Raises SequenceFailed in place of an end that failed, and EngineDead when the engine has
        died, both after everything that came before. Can be called again, for what follows.
        """
        mailbox = self._mailbox
        assert mailbox.wake is None, "a generation has one reader"
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def advance() -> None:
            if over.done():  # its task was cancelled and has not run since
                return
            try:
                is_over = self._take_unread(take)
            except Exception as error:  # the reader's own, for the reader's task
                mailbox.wake = None
                over.set_exception(error)
            else:
                if is_over:
                    mailbox.wake = None
                    over.set_result(None)

        mailbox.wake = advance
        try:
            advance()
            await over
        finally:
            mailbox.wake = None

    def _take_unread(self, take: Callable[[EngineEvent], bool]) -> bool:
        """True when the reader wants no more, or there is no more."""
        mailbox = self._mailbox
        while (event := mailbox.take(self.id)) is not None:
            if take(event):
                return True
        if mailbox.failure is not None:
            raise mailbox.failure
        return mailbox.finished


class Dispatcher:
    """Knows every generation that the engine holds, from `submit` until the engine has let go of it."""

    def __init__(self, engine: EngineInbox, observe: Callable[[tuple[EngineEvent, ...]], None]) -> None:
        self._engine = engine
        self._observe = observe
        self._open: dict[str, _Mailbox] = {}
        self._closed: HomebaseError | None = None
        """Why nothing more is taken."""

    @property
    def open_ids(self) -> tuple[str, ...]:
        """Ids of what the engine holds, oldest first."""
        return tuple(self._open)

    def submit(self, request: EngineRequest, on_left: Callable[[], None]) -> Generation:
        """Start generating. Raises EngineDead or what `close` was given, and then never calls `on_left`.

        `on_left` is called once, when the engine holds nothing of the request any more.
        """
        if self._closed is not None:
            raise self._closed
        assert request.id not in self._open, f"request id {request.id} is in use"
        self._engine.submit(request)
        mailbox = self._open[request.id] = _Mailbox(on_left)
        return Generation(request.id, mailbox, self.cancel)

    def cancel(self, request_id: str) -> None:
        """Ask the engine once to end a sequence; its reader then gets the end `cancelled`."""
        mailbox = self._open.get(request_id)
        if mailbox is not None and not mailbox.cancelled:
            mailbox.cancelled = True
            self._engine.cancel(request_id)

    def end(self, request_id: str, failure: HomebaseError) -> None:
        """The same, with an error of its own for the reader, who gets it at once."""
        if (mailbox := self._open.get(request_id)) is not None:
            mailbox.fail(failure)
            self.cancel(request_id)

    def fail_open(self, failure: HomebaseError) -> None:
        """Tell every reader this error and cancel what it waits for; slots come free when the engine lets go."""
        for request_id in self.open_ids:
            self.end(request_id, failure)

    def close(self, failure: HomebaseError) -> None:
        """Let go of everything without waiting for the engine: readers and later submits get this error."""
        with ExitStack() as afterwards:
            for on_left in self._let_go(failure):
                afterwards.callback(on_left)

    def receive(self, events: tuple[EngineEvent, ...]) -> None:
        """Take in what one step did. A fault in `observe` or an `on_left` is raised when everyone has been told."""
        left = [on_left for event in events for on_left in self._route(event)]
        with ExitStack() as afterwards:
            for on_left in left:
                afterwards.callback(on_left)
            self._observe(events)

    def _route(self, event: EngineEvent) -> list[Callable[[], None]]:
        """Give an event to its readers; what is to be called for those that have left the engine."""
        match event:
            case EngineDied():
                return self._let_go(EngineDead(event.reason))
            case PrefillAdvanced() | TokensEmitted() | SequenceEnded() if event.request_id in self._open:
                self._open[event.request_id].put(event)
                return [self._open.pop(event.request_id).on_left] if isinstance(event, SequenceEnded) else []
            case _:
                return []

    def _let_go(self, failure: HomebaseError) -> list[Callable[[], None]]:
        """Fail everyone who waits and take nothing more; what is to be called for them."""
        self._closed = self._closed or failure
        for mailbox in self._open.values():
            mailbox.fail(failure)
        return [self._open.pop(request_id).on_left for request_id in self.open_ids]
