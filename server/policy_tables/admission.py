"""[policy]: when a request may start."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from server.policy_tables.kinds import CLIENT, KEY_NAME, ONE_LINE, Effect, limit

LimitBehavior = Literal["fail", "queue", "overflow"]
RefusalStatus = Literal["auto", 400, 409, 429, 503]


class SubagentPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What children of an agent may do."""

    max_concurrent: Annotated[
        int,
        limit(
            "Children in flight for one parent session. 0 allows none.",
            Effect.NEXT_DECISION,
            unit="children",
            ge=0,
            le=64,
        ),
    ] = 1
    sampling_limit: Annotated[
        int,
        limit(
            "Children in flight in the whole process. While max_in_flight is 2 or more, a child never takes the place "
            "that its parent needs to go on.",
            Effect.NEXT_DECISION,
            unit="children",
            ge=0,
            le=64,
        ),
    ] = 1
    max_depth: Annotated[
        int,
        limit(
            "How deep children may have children: 1 allows children of a parent, and none of their own.",
            Effect.NEXT_DECISION,
            unit="levels",
            ge=0,
            le=16,
        ),
    ] = 1
    cancel_on_turn_cancel: Annotated[
        bool,
        limit(
            "When a parent's stream is closed before its end, its children are cancelled 2 s later, unless the parent "
            "is back by then. A parent that ends normally cancels nobody.",
            Effect.AT_ONCE,
        ),
    ] = True


class ClientPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is different for one client; None leaves the policy's own limit."""

    max_in_flight: Annotated[int, msgspec.Meta(ge=0, le=64)] | None = None
    """Of this client's completions; never more than the policy's in all."""
    max_concurrent: Annotated[int, msgspec.Meta(ge=0, le=64)] | None = None
    max_depth: Annotated[int, msgspec.Meta(ge=0, le=16)] | None = None
    max_context_tokens: Annotated[int, msgspec.Meta(ge=0, le=16_777_216)] | None = None
    limit_behavior: LimitBehavior | None = None
    refusal_status: RefusalStatus | None = None


class AdmissionPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When a request may start."""

    max_in_flight: Annotated[
        int,
        limit(
            "Completions in flight at once, children included. More raises total tok/s and lowers each stream's.",
            Effect.NEXT_DECISION,
            unit="streams",
            ge=1,
            le=64,
        ),
    ] = 2
    limit_behavior: Annotated[
        LimitBehavior,
        limit(
            'What happens to a request over a limit. "fail" refuses it at once, "queue" lets it wait for a place, '
            '"overflow" sends it to the upstream named in overflow_to.',
            Effect.NEXT_DECISION,
        ),
    ] = "fail"
    queue_limit: Annotated[
        int,
        limit(
            'With "queue", how many may wait at once; who comes after them is refused.',
            Effect.NEXT_DECISION,
            unit="requests",
            ge=0,
            le=1024,
        ),
    ] = 8
    queue_wait_s: Annotated[
        float,
        limit(
            'With "queue", how long one may wait for a place before it is refused.',
            Effect.NEXT_DECISION,
            unit="s",
            ge=0,
            le=3600,
        ),
    ] = 120.0
    auxiliary_wait_s: Annotated[
        float,
        limit(
            "How long a side request of a session that has one in flight (its title, a recap) may wait for a place, "
            "whatever limit_behavior says; then it is refused. 0 treats it as any other.",
            Effect.NEXT_DECISION,
            unit="s",
            ge=0,
            le=600,
        ),
    ] = 20.0
    overflow_to: Annotated[
        str,
        limit(
            'With "overflow", the name of the upstream that takes what is over a limit here.',
            Effect.NEXT_DECISION,
            allowed="the name of an upstream, or empty",
            pattern=ONE_LINE,
            max_length=64,
        ),
    ] = ""
    max_context_tokens: Annotated[
        int,
        limit(
            "Prompt and output of one stream together, in tokens. 0 takes the model's own limit.",
            Effect.NEXT_REQUEST,
            unit="tokens",
            ge=0,
            le=16_777_216,
        ),
    ] = 0
    context_budget_tokens: Annotated[
        int,
        limit(
            "Contexts of all streams in flight together, each as long as it may grow. An output that the client "
            "leaves open is shortened to fit. 0 sets no such limit.",
            Effect.NEXT_DECISION,
            unit="tokens",
            ge=0,
            le=1_073_741_824,
        ),
    ] = 0
    min_decode_tps: Annotated[
        float,
        limit(
            "The decode rate under which a stream feels dead. A request is refused when, by the forecast, it or any "
            "stream in flight would fall below. 0 asks for no forecast.",
            Effect.NEXT_DECISION,
            unit="tok/s",
            ge=0,
            le=10_000,
        ),
    ] = 0.0
    refusal_status: Annotated[
        RefusalStatus,
        limit(
            'HTTP status of a refusal. "auto" is 400 for the clients that would retry or hide anything else, and 429 '
            "for all others; a number sets it for everyone.",
            Effect.NEXT_DECISION,
        ),
    ] = "auto"
    refuse_with_400: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=CLIENT, max_length=64)], ...],
        limit(
            'More clients, by the name their User-Agent begins with, that "auto" refuses with 400. Codex, OpenCode, '
            "the AI SDK and Qwen Code are known.",
            Effect.NEXT_DECISION,
            allowed="up to 32 names like my-agent",
            max_length=32,
        ),
    ] = ()
    spawn_tools: Annotated[
        tuple[Annotated[str, msgspec.Meta(pattern=CLIENT, max_length=64)], ...],
        limit(
            "More names of tools with which an agent starts a child; its prompt is how the child is recognised. "
            "spawn_subagent, task, agent, spawn_agent and delegate... are known.",
            Effect.NEXT_DECISION,
            allowed="up to 32 names like start_helper",
            max_length=32,
        ),
    ] = ()
    clients: Annotated[
        dict[Annotated[str, msgspec.Meta(pattern=KEY_NAME, max_length=64)], ClientPolicy],
        limit(
            "Other limits for one client, in a table [policy.clients.NAME]; NAME is the name of its key or the name "
            "its User-Agent begins with. It may set max_in_flight, max_concurrent, max_depth, max_context_tokens, "
            "limit_behavior and refusal_status.",
            Effect.NEXT_DECISION,
            allowed="up to 64 tables like [policy.clients.codex]",
            max_length=64,
        ),
    ] = {}
    subagents: SubagentPolicy = SubagentPolicy()
