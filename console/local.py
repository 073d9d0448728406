"""The server in this process, as the console sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar

from server.events import NumberedNotice
from server.policy import LimitValue
from server.policy_store import PolicyDraft, PolicyState
from server.runtime import Runtime
from server.snapshot import Snapshot

Result = TypeVar("Result")


class LocalSource:
    """Reads frozen attributes of the runtime; acts on the server's loop and waits on the console's."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def snapshot(self) -> Snapshot:
        """The newest snapshot."""
        return self._runtime.snapshot

    def notices(self, after: int) -> tuple[NumberedNotice, ...]:
        """Kept notices with a higher sequence number, oldest first."""
        return self._runtime.ring.after(after)

    def policy(self) -> PolicyState:
        """The policy in force."""
        return self._runtime.store.state

    async def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        """The diff that saving these keys would make."""
        return await self._with_store(lambda: self._runtime.store.draft(changes))

    async def save(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        """Write and put in force."""
        return await self._with_store(lambda: self._runtime.store.edit(changes, etag))

    async def undo(self) -> PolicyState:
        """Take back the last save."""
        return await self._with_store(self._runtime.store.undo)

    async def stop(self, stream_id: str) -> bool:
        """End one stream; False when it is already over."""

        async def stop() -> bool:
            return self._runtime.stop_stream(stream_id)

        return await asyncio.wrap_future(self._runtime.call(stop))

    async def _with_store(self, act: Callable[[], Result]) -> Result:
        """On a thread beside the server's loop: a slow disk holds up neither the streams nor the screen."""
        return await asyncio.wrap_future(self._runtime.call(lambda: asyncio.to_thread(act)))
