"""[server]: where the API listens and whom it answers."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.policy_tables.kinds import CLIENT, KEY_NAME, NO_BLANKS, ORIGIN, VARIABLE, VISIBLE_ASCII, Effect, limit


class ServerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens and whom it answers."""

    host: Annotated[
        str,
        limit(
            "Address to listen at. 127.0.0.1 answers this machine only; anything wider needs a key (see below).",
            Effect.NEXT_START,
            allowed="1 to 255 characters, no blanks",
            pattern=NO_BLANKS,
            min_length=1,
            max_length=255,
        ),
    ] = "127.0.0.1"
    port: Annotated[int, limit("TCP port to listen at.", Effect.NEXT_START, ge=1, le=65535)] = 11234
    api_key: Annotated[
        str,
        limit(
            "When set, every request must carry it, or another key, as `Authorization: Bearer ...` or `x-api-key`.",
            Effect.NEXT_REQUEST,
            secret=True,
            allowed="up to 512 visible ASCII characters",
            pattern=VISIBLE_ASCII,
            max_length=512,
        ),
    ] = ""
    api_keys_env: Annotated[
        str,
        limit(
            "Environment variable with one key or several, separated by commas. Who sends the first is shown as key-1.",
            Effect.NEXT_REQUEST,
            allowed="an upper-case name of up to 128 characters, or empty",
            pattern=rf"{VARIABLE}|\A\Z",
            max_length=128,
        ),
    ] = ""
    allow_unauthenticated: Annotated[
        bool,
        limit(
            "Answer other machines without any key: whoever reaches the port may use the model and read the snapshot. "
            "With a key set it changes nothing.",
            Effect.NEXT_REQUEST,
        ),
    ] = False
    allowed_origins: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=ORIGIN, max_length=512)], ...],
        limit(
            "Web origins that a browser page may call from, as http://host:port. Empty: no page may.",
            Effect.NEXT_REQUEST,
            allowed="up to 64 origins like http://localhost:3000",
            max_length=64,
        ),
    ] = ()
    keep_alive_s: Annotated[
        float,
        limit(
            "While nothing can be sent yet (prefill, held-back text) a stream carries a comment this often.",
            Effect.NEXT_REQUEST,
            unit="s",
            ge=0.5,
            le=60,
        ),
    ] = 5.0
    hold_headers_for: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=CLIENT, max_length=64)], ...],
        limit(
            "Clients, by the name their User-Agent begins with, that get no headers before there is a token to show: "
            "they count the wait for it against a stream that has begun. All others get headers at once.",
            Effect.NEXT_REQUEST,
            allowed="up to 32 names like grok-shell",
            max_length=32,
        ),
    ] = ("grok-shell",)
    read_only_keys: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=KEY_NAME, max_length=32)], ...],
        limit(
            "Names of keys that may look (GET /homebase/..., /metrics, /v1/models, /health) and do nothing else.",
            Effect.NEXT_REQUEST,
            allowed="up to 64 names of [server.keys], or key-1 and so on",
            max_length=64,
        ),
    ] = ()
    keys: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=KEY_NAME, max_length=32)],
            Annotated[str, msgspec.Meta(pattern=VARIABLE, max_length=128)],
        ],
        limit(
            "A key for each who asks: a name, which the console shows, and the environment variable that has the key.",
            Effect.NEXT_REQUEST,
            allowed='up to 64 lines like alice = "HOMEBASE_KEY_ALICE"',
            max_length=64,
        ),
    ] = {}

    @property
    def wants_key(self) -> bool:
        """True when a request must carry a key."""
        return bool(self.api_key or self.api_keys_env or self.keys)
