"""The rows of the history, each field a column of the same name. None of them holds a word of a prompt or an answer."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from server.events import Lane, Outcome

ADMITTED = "admitted"
"""The decision on a request that was let in; any other is the code of its refusal."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One request that was admitted and is over, or was refused. Texts are safe to print."""

    arrived_s: float
    """Unix time at which its head had been read."""
    request_id: str
    session: str
    parent_session: str | None = None
    lane: Lane
    depth: int = 0
    """Parents above its session; 0 where none is known."""
    client: str
    key: str = ""
    """Name of the key that it came with; empty when none is asked for."""
    model: str
    upstream: str = ""
    """Who answered it; empty for the model in this process."""
    prompt_tokens: int | None = None
    """None when it was refused before its prompt was counted."""
    cached_tokens: int = 0
    completion_tokens: int = 0
    max_tokens: int | None = None
    """What was granted to an admitted one; what a refused one asked for, None when it left that open."""
    decision: str
    """`admitted`, or the code of the refusal."""
    limit_key: str = ""
    """Dotted key of the limit that said no; empty where no limit did."""
    limit_value: float | None = None
    used_value: float | None = None
    """That limit and its use at that moment, in bytes for memory; None where no limit did."""
    status: int | None = None
    """HTTP status of a refusal."""
    retry_after_s: int | None = None
    waited_s: float = 0.0
    """For a slot."""
    ttft_s: float | None = None
    """From the admission on; None when no token came."""
    prefill_tps: float | None = None
    """Computed prompt tokens per second of the clock, other prompts' turns included."""
    decode_tps: float | None = None
    """From its first token to its last."""
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    outcome: Outcome | None = None
    """None for a refused one."""
    detail: str = ""
    """Of the outcome, in words."""
    duration_s: float = 0.0
    """From its admission to its end; 0 for a refused one."""

    @property
    def was_admitted(self) -> bool:
        """False when it was refused."""
        return self.decision == ADMITTED

    @property
    def acceptance_ratio(self) -> float | None:
        """Accepted over drafted, over the whole stream; None when nothing was drafted."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None


class PolicyChangeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One limit that got a new value; values as TOML writes them, secrets as dots."""

    time_s: float
    limit_key: str
    old_value: str
    new_value: str
    origin: Literal["console", "api", "file", "undo"]
    by: str = ""
    """Whose key or address it came with over HTTP."""


class BenchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of a bench measured."""

    time_s: float
    kind: str
    """Which bench, e.g. `fan-out`."""
    document: dict[str, Any]
    """As the bench wrote it, in JSON's types."""


Record = RequestRecord | PolicyChangeRecord | BenchRecord


class RefusalCount(msgspec.Struct, frozen=True):
    """How often one code refused in one span of time."""

    time_s: float
    """When the span begins, a multiple of its length in Unix time."""
    code: str
    count: int
