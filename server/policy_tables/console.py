"""[console]: how the console looks."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.policy_tables.kinds import ONE_LINE, Effect, limit


class ConsolePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the console looks."""

    theme: Annotated[
        str,
        limit(
            "Name of a theme in themes/.",
            Effect.AT_ONCE,
            allowed="1 to 64 characters",
            pattern=ONE_LINE,
            min_length=1,
            max_length=64,
        ),
    ] = "homebase-dark"
    refresh_hz: Annotated[
        float,
        limit("Screen updates per second.", Effect.NEXT_START, unit="Hz", ge=0.5, le=10),
    ] = 4.0
    ascii: Annotated[
        bool,
        limit("Draw with plain ASCII, for terminals whose font lacks block characters.", Effect.NEXT_START),
    ] = False
    mouse: Annotated[
        bool,
        limit("Take mouse clicks. Off leaves selecting text to the terminal.", Effect.NEXT_START),
    ] = True
