"""[[upstreams]] and [aliases]: other servers that answer for some models, and other names of models."""

from __future__ import annotations

from typing import Annotated

import msgspec

from server.policy_tables.kinds import KEY_NAME, NO_BLANKS, VARIABLE, Effect, limit

URL = r"\Ahttps?://[^\s/?#@\x00-\x1f\x7f\ud800-\udfff]+(/[^\s?#\x00-\x1f\x7f\ud800-\udfff]*)?\Z"
"""No user or password in it (a key has a variable of its own), no query."""


class UpstreamPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Another server that speaks OpenAI's or Anthropic's API."""

    name: Annotated[str, msgspec.Meta(pattern=KEY_NAME, max_length=64)]
    base_url: Annotated[str, msgspec.Meta(pattern=URL, max_length=512)]
    """As clients are given it: up to and with `/v1`."""
    models: Annotated[tuple[Annotated[str, msgspec.Meta(max_length=256)], ...], msgspec.Meta(max_length=256)] = ()
    """Names, or patterns with `*`, of the models that it answers for."""
    api_key_env: Annotated[str, msgspec.Meta(pattern=rf"{VARIABLE}|\A\Z", max_length=128)] = ""
    """Environment variable with its key; the client's own key is never passed on."""
    governed: bool = False
    """True for a server that shares this machine's GPU: admission, lanes and cancelling hold for it as for our own."""
    connect_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=600)] = 5.0
    silence_timeout_s: Annotated[float, msgspec.Meta(gt=0, le=86_400)] = 600.0
    """Longest wait for its next byte."""


Upstreams = Annotated[
    tuple[UpstreamPolicy, ...],
    limit(
        "Other servers, each in a table [[upstreams]] with name, base_url and models (names or patterns that it "
        "answers for), and if need be api_key_env, governed = true for one that shares this GPU, connect_timeout_s and "
        "silence_timeout_s.",
        Effect.NEXT_REQUEST,
        allowed="up to 32 tables",
        max_length=32,
    ),
]

Aliases = Annotated[
    dict[
        Annotated[str, msgspec.Meta(pattern=NO_BLANKS, min_length=1, max_length=256)],
        Annotated[str, msgspec.Meta(pattern=NO_BLANKS, min_length=1, max_length=256)],
    ],
    limit(
        "Other names of models: a name that clients ask for, and the model that answers.",
        Effect.NEXT_REQUEST,
        allowed='up to 256 lines like gpt-5 = "nano"',
        max_length=256,
    ),
]
