"""All that the console knows of a server: a snapshot, notices, the policy, and a few acts.

Three makes exist: in this process (`LocalSource`), canned for tests (in `tests/`), and later over HTTP.
No screen reads a server object past this seam.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from server.events import NumberedNotice
from server.policy import LimitValue
from server.policy_store import PolicyDraft, PolicyState
from server.snapshot import Snapshot


class Source(Protocol):
    """A server as the console sees it. Reading never blocks; acting is awaited and may raise HomebaseError."""

    def snapshot(self) -> Snapshot:
        """The newest snapshot; the same object until there is a newer one."""
        ...

    def notices(self, after: int) -> tuple[NumberedNotice, ...]:
        """Kept notices with a higher sequence number, oldest first."""
        ...

    def policy(self) -> PolicyState:
        """The policy in force, its file, and where each value comes from."""
        ...

    async def draft(self, changes: Mapping[str, LimitValue]) -> PolicyDraft:
        """What saving these dotted keys would do: the diff of the file, and keys that changed underneath."""
        ...

    async def save(self, changes: Mapping[str, LimitValue], etag: str) -> PolicyState:
        """Write and put in force; raises PolicyConflict when the file is no longer the one with `etag`."""
        ...

    async def undo(self) -> PolicyState:
        """Take back this console's last save; raises PolicyConflict when the file changed since."""
        ...

    async def stop(self, stream_id: str) -> bool:
        """End one stream, telling its client; False when it is already over."""
        ...
