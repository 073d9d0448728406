"""[history]: what is remembered of requests after they are over."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.policy_tables.kinds import ONE_LINE, Effect, limit


class HistoryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered of requests after they are over: facts and figures, never their text."""

    path: Annotated[
        str,
        limit(
            "The database file. Empty keeps it in the user's data folder.",
            Effect.NEXT_START,
            allowed="up to 4,096 characters",
            pattern=ONE_LINE,
            max_length=4096,
        ),
    ] = ""
    keep_days: Annotated[
        int,
        limit("Older entries are deleted.", Effect.AT_ONCE, unit="days", ge=1, le=3650),
    ] = 30
    off: Annotated[
        bool,
        limit("Remember nothing; what is in the file stays.", Effect.NEXT_START),
    ] = False
