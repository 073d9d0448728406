"""The tables of homebase.toml as frozen structs: each limit with meaning, range, unit and when it takes effect.

The description of each limit is the text that the console shows and that the template carries.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec


class Effect(StrEnum):
    """When a changed limit is felt. The values are the words that the console shows."""

    NEXT_DECISION = "at the next request's admission"
    NEXT_REQUEST = "at the next request"
    NEXT_STEP = "at the next engine step"
    AT_ONCE = "at once"
    NEXT_START = "at the next start"


def _limit(
    description: str,
    effect: Effect,
    *,
    unit: str = "",
    enforced: bool = True,
    secret: bool = False,
    allowed: str = "",
    **bounds: Any,
) -> msgspec.Meta:
    extra = {"unit": unit, "effect": effect, "enforced": enforced, "secret": secret, "allowed": allowed}
    return msgspec.Meta(description=description, extra=extra, **bounds)


LEAST_STALL_S = 20.0
"""Of `engine.stall_s`. No step is planned to take over a second, but the first has nothing to be planned by: 256 prompt
tokens, beside kernels that are compiled and weights that come from disk. A machine that reads 13 tokens a second takes
so long for it."""

_ONE_LINE = r"\A[^\x00-\x1f\x7f\ud800-\udfff]*\Z"
"""Text without control characters: it is shown in a terminal and pasted by hand."""

_NO_BLANKS = r"\A[^\s\x00-\x1f\x7f\ud800-\udfff]*\Z"

_VISIBLE_ASCII = r"\A[\x21-\x7e]*\Z"
"""What an HTTP header carries unchanged from every client."""

_KEY_NAME = r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z"

_VARIABLE = r"\A[A-Z_][A-Z0-9_]*\Z"
"""Of an environment variable: upper case only, so that a key pasted in its place is noticed and not looked up."""

_CLIENT = r"\A[A-Za-z0-9][A-Za-z0-9_.-]*\Z"
"""The name with which a User-Agent begins, up to its slash or blank."""

_ORIGIN = r"\A[A-Za-z][A-Za-z0-9+.-]*://[^\s/,\x00-\x1f\x7f\ud800-\udfff]+\Z"
"""Scheme, host and port, as a browser sends them: no path and no slash at the end, which would never match."""


class ServerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens and whom it answers."""

    host: Annotated[
        str,
        _limit(
            "Address to listen at. 127.0.0.1 answers this machine only; anything wider needs a key (see below).",
            Effect.NEXT_START,
            allowed="1 to 255 characters, no blanks",
            pattern=_NO_BLANKS,
            min_length=1,
            max_length=255,
        ),
    ] = "127.0.0.1"
    port: Annotated[int, _limit("TCP port to listen at.", Effect.NEXT_START, ge=1, le=65535)] = 11234
    api_key: Annotated[
        str,
        _limit(
            "When set, every request must carry it, or another key, as `Authorization: Bearer ...` or `x-api-key`.",
            Effect.NEXT_REQUEST,
            secret=True,
            allowed="up to 512 visible ASCII characters",
            pattern=_VISIBLE_ASCII,
            max_length=512,
        ),
    ] = ""
    api_keys_env: Annotated[
        str,
        _limit(
            "Environment variable with one key or several, separated by commas. Who sends the first is shown as key-1.",
            Effect.NEXT_REQUEST,
            allowed="an upper-case name of up to 128 characters, or empty",
            pattern=rf"{_VARIABLE}|\A\Z",
            max_length=128,
        ),
    ] = ""
    allow_unauthenticated: Annotated[
        bool,
        _limit(
            "Answer other machines without any key: whoever reaches the port may use the model and read the snapshot. "
            "With a key set it changes nothing.",
            Effect.NEXT_REQUEST,
        ),
    ] = False
    allowed_origins: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=_ORIGIN, max_length=512)], ...],
        _limit(
            "Web origins that a browser page may call from, as http://host:port. Empty: no page may.",
            Effect.NEXT_REQUEST,
            allowed="up to 64 origins like http://localhost:3000",
            max_length=64,
        ),
    ] = ()
    keep_alive_s: Annotated[
        float,
        _limit(
            "While nothing can be sent yet (prefill, held-back text) a stream carries a comment this often.",
            Effect.NEXT_REQUEST,
            unit="s",
            ge=0.5,
            le=60,
        ),
    ] = 5.0
    hold_headers_for: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=_CLIENT, max_length=64)], ...],
        _limit(
            "Clients, by the name their User-Agent begins with, that get no headers before there is a token to show: "
            "they count the wait for it against a stream that has begun. All others get headers at once.",
            Effect.NEXT_REQUEST,
            allowed="up to 32 names like grok-shell",
            max_length=32,
        ),
    ] = ("grok-shell",)
    keys: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=_KEY_NAME, max_length=32)],
            Annotated[str, msgspec.Meta(pattern=_VARIABLE, max_length=128)],
        ],
        _limit(
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


class ModelPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which checkpoint is served."""

    path: Annotated[
        str,
        _limit(
            "Folder of the checkpoint, or OWNER/NAME of one on Hugging Face, which is fetched once, or "
            '"nano": the small code-babbling model that ships inside, for trying the console.',
            Effect.NEXT_START,
            allowed="1 to 4,096 characters",
            pattern=_ONE_LINE,
            min_length=1,
            max_length=4096,
        ),
    ] = "nano"
    draft_path: Annotated[
        str,
        _limit(
            "Folder, file or OWNER/NAME of a drafting head that comes apart from its model. Empty takes the one in the "
            "checkpoint or beside it.",
            Effect.NEXT_START,
            allowed="up to 4,096 characters",
            pattern=_ONE_LINE,
            max_length=4096,
        ),
    ] = ""
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        _limit(
            'Number format of the weights. "auto" keeps the checkpoint\'s own on a GPU and takes float32 on a CPU.',
            Effect.NEXT_START,
        ),
    ] = "auto"


class EnginePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the engine spends its steps."""

    prefill_chunk_tokens: Annotated[
        int,
        _limit(
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
        _limit(
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
        _limit(
            'Tokens that the model\'s MTP head drafts ahead. "auto" drafts as deep as pays, stream by stream; a number '
            "drafts always that many. The text is the same either way.",
            Effect.NEXT_STEP,
        ),
    ] = "auto"
    memory_budget_gib: Annotated[
        float,
        _limit(
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
        _limit(
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
        _limit(
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
        _limit(
            "The same on disk, in the user's cache folder, where it survives a restart. 0 writes nothing.",
            Effect.NEXT_STEP,
            unit="GiB",
            ge=0,
            le=65536,
        ),
    ] = 0.0
    stall_s: Annotated[
        float,
        _limit(
            "When one step takes longer than this, the console and /health say so and open streams end with an error.",
            Effect.AT_ONCE,
            unit="s",
            ge=LEAST_STALL_S,
            le=3600,
        ),
    ] = 60.0


class SubagentPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What children of an agent may do. Read and shown now; enforced once admission knows agents."""

    max_concurrent: Annotated[
        int,
        _limit(
            "Children in flight for one parent session.",
            Effect.NEXT_DECISION,
            unit="children",
            enforced=False,
            ge=0,
            le=64,
        ),
    ] = 1
    sampling_limit: Annotated[
        int,
        _limit(
            "Children in flight in the whole process.",
            Effect.NEXT_DECISION,
            unit="children",
            enforced=False,
            ge=0,
            le=64,
        ),
    ] = 1
    max_depth: Annotated[
        int,
        _limit(
            "How deep children may have children: 1 allows children of a parent, and none of their own.",
            Effect.NEXT_DECISION,
            unit="levels",
            enforced=False,
            ge=0,
            le=16,
        ),
    ] = 1
    cancel_on_turn_cancel: Annotated[
        bool,
        _limit("Cancel the children when their parent's turn is cancelled.", Effect.AT_ONCE, enforced=False),
    ] = True


class AdmissionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request may start."""

    max_in_flight: Annotated[
        int,
        _limit(
            "Completions in flight at once, children included. More raises total tok/s and lowers each stream's.",
            Effect.NEXT_DECISION,
            unit="streams",
            ge=1,
            le=64,
        ),
    ] = 2
    limit_behavior: Annotated[
        Literal["fail"],
        _limit('What happens to a request over a limit. "fail" refuses it at once.', Effect.NEXT_DECISION),
    ] = "fail"
    max_context_tokens: Annotated[
        int,
        _limit(
            "Prompt and output of one stream together, in tokens. 0 takes the model's own limit.",
            Effect.NEXT_REQUEST,
            unit="tokens",
            ge=0,
            le=16_777_216,
        ),
    ] = 0
    refusal_status: Annotated[
        Literal["auto", 400, 409, 429, 503],
        _limit(
            'HTTP status of a refusal. "auto" is 429; a number sets it for everyone.',
            Effect.NEXT_DECISION,
        ),
    ] = "auto"
    subagents: SubagentPolicy = SubagentPolicy()


class ConsolePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the console looks."""

    theme: Annotated[
        str,
        _limit(
            "Name of a theme in themes/.",
            Effect.AT_ONCE,
            allowed="1 to 64 characters",
            pattern=_ONE_LINE,
            min_length=1,
            max_length=64,
        ),
    ] = "homebase-dark"
    refresh_hz: Annotated[
        float,
        _limit("Screen updates per second.", Effect.NEXT_START, unit="Hz", ge=0.5, le=10),
    ] = 4.0
    ascii: Annotated[
        bool,
        _limit("Draw with plain ASCII, for terminals whose font lacks block characters.", Effect.NEXT_START),
    ] = False
    mouse: Annotated[
        bool,
        _limit("Take mouse clicks. Off leaves selecting text to the terminal.", Effect.NEXT_START),
    ] = True


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of homebase.toml, validated. Missing tables and keys have their defaults."""

    server: ServerPolicy = ServerPolicy()
    model: ModelPolicy = ModelPolicy()
    engine: EnginePolicy = EnginePolicy()
    policy: AdmissionPolicy = AdmissionPolicy()
    console: ConsolePolicy = ConsolePolicy()


LimitValue = int | float | str | bool | tuple[str, ...]
"""What one limit may hold."""
