"""[engine]: how the engine spends its steps."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from server.policy_tables.kinds import Effect, limit

LEAST_STALL_S = 20.0
"""Of `engine.stall_s`. No step is planned to take over a second, but the first has nothing to be planned by: 256 prompt
tokens, beside kernels that are compiled and weights that come from disk. A machine that reads 13 tokens a second takes
so long for it."""


class EnginePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the engine spends its steps."""

    prefill_chunk_tokens: Annotated[
        int,
        limit(
            "Most prompt tokens in one step. Fewer run where a step would take over a second, or longer than "
            "decode_stall_ms while others decode.",
            Effect.NEXT_STEP,
            unit="tokens",
            ge=1,
            le=16384,
        ),
    ] = 2048
    decode_stall_ms: Annotated[
        int,
        limit(
            "While streams decode, a step with a piece of someone's prompt in it may take this long: the longest gap "
            "between their tokens. Longer reads prompts faster; no step is planned to take over a second.",
            Effect.NEXT_STEP,
            unit="ms",
            ge=10,
            le=1000,
        ),
    ] = 500
    mtp: Annotated[
        Literal["auto", "off", 1, 2, 3, 4],
        limit(
            'Tokens that the model\'s MTP head drafts ahead. "auto" drafts as deep as pays, stream by stream; a number '
            "drafts always that many. The text is the same either way.",
            Effect.NEXT_STEP,
        ),
    ] = "auto"
    memory_budget_gib: Annotated[
        float,
        limit(
            "Memory for the weights, all contexts and the prefix cache together. A request whose context does not fit "
            "is refused; the prefix cache gives way first. -1 takes what the device allows, 0 watches nothing.",
            Effect.NEXT_DECISION,
            unit="GiB",
            ge=-1,
            le=4096,
        ),
    ] = -1.0
    wired_limit_gib: Annotated[
        float,
        limit(
            "On a Mac, memory that the system may not move to disk while the model waits. It keeps the first token "
            "after a pause quick, and has crashed machines where it left too little for the rest. 0 is off.",
            Effect.NEXT_START,
            unit="GiB",
            ge=0,
            le=4096,
        ),
    ] = 0.0
    prefix_cache_gib: Annotated[
        float,
        limit(
            "Memory for what was computed of earlier prompts and replies, so that nobody pays for it twice. -1 takes a "
            "quarter of what the model leaves free; 0 keeps nothing.",
            Effect.NEXT_STEP,
            unit="GiB",
            ge=-1,
            le=4096,
        ),
    ] = -1.0
    prefix_cache_disk_gib: Annotated[
        float,
        limit(
            "The same on disk, in the user's cache folder, where it survives a restart. 0 writes nothing.",
            Effect.NEXT_STEP,
            unit="GiB",
            ge=0,
            le=65536,
        ),
    ] = 0.0
    stall_s: Annotated[
        float,
        limit(
            "When one step takes longer than this, the console and /health say so and open streams end with an error.",
            Effect.AT_ONCE,
            unit="s",
            ge=LEAST_STALL_S,
            le=3600,
        ),
    ] = 60.0
