"""Every error that a caller may catch, as one tree. None of them knows HTTP.

HomebaseError                      anything we raise on purpose; carries `code` and a sentence
├── StartupError                   homebase-console cannot start; the message is all that the operator reads
│   ├── AddressInUse               another program has the port
│   ├── AddressInvalid             the host or port cannot be bound at all
│   └── TerminalUnfit              the terminal cannot show a full-screen program
├── ModelError                     a checkpoint cannot be served (also at start-up)
│   ├── ModelNotFound              no such folder, or no checkpoint in it
│   ├── ModelNotFetched            it is on Hugging Face, and could not be had from there
│   ├── CheckpointInvalid          wrong, missing or unreadable tensors or configuration
│   └── ModelUnsupported           an architecture or quantization that nothing here can run
├── PolicyError                    something about homebase.toml
│   ├── PolicyInvalid              does not parse, unknown key, wrong type, out of range
│   ├── PolicyConflict             the file changed underneath the edit
│   └── PolicyUnwritable           the file cannot be written
├── HistoryError                   the file of the history cannot be read or written
│   └── HistoryMissing             there is none
├── RequestError                   the request can never succeed as it is
│   ├── InvalidRequest             a field is missing, malformed or out of range
│   ├── UnsupportedParameter       a known parameter that is not built
│   ├── UnknownModel               a model id that is not served here
│   ├── ContextLengthExceeded      prompt (and output) do not fit the context limit
│   ├── ResponseNotFound           no response of this id is kept
│   ├── PreviousResponseNotFound   nor one that could be gone on from
│   ├── BodyTooLarge               more bytes than a body may have
│   ├── BodyTooSlow                the body did not arrive in time
│   ├── HeadTooLarge               more headers, or longer ones, than a request may have
│   ├── Forbidden                  foreign origin or host
│   │   ├── KeyRejected            wrong or missing key
│   │   └── KeyReadOnly            a key that may look, and would do something
│   ├── RequestNotLive             no request with this id is in flight
│   └── RouteNotFound              no such path
│       └── MethodNotAllowed       the path is there, but not by this method
├── Refusal                        admission said no: the request is fine, the moment or the memory budget is not
├── UpstreamError                  another server, which answers for the model, did not
│   ├── UpstreamUnavailable        it has just failed several times and is not asked, or its key is missing
│   ├── UpstreamFailed             it cannot be reached, or broke off
│   └── UpstreamSilent             it said nothing for too long
└── EngineError                    the engine failed at work that it had taken
    ├── EngineDead                 the engine thread has ended; nothing can be generated
    ├── EngineStalled              a step does not end; whoever waits for it is told, and not kept waiting
    ├── SequenceFailed             one sequence failed; the others go on
    │   └── FormLost               the form that was asked of its answer leads where it cannot be followed
    └── StreamStopped              the operator cut a stream that its client still reads
        ├── ParentGone             the end of its parent's did
        └── ServerEnding           the server's own end did
"""

from __future__ import annotations


class HomebaseError(Exception):
    """Base of all errors raised on purpose. `str(error)` is one plain sentence for people."""

    code: str = "homebase_error"
    """Stable, machine-readable name; part of the API, the log and the console."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class StartupError(HomebaseError):
    """homebase-console cannot start."""

    code = "startup_failed"


class AddressInUse(StartupError):
    """Another program listens at host and port."""

    code = "address_in_use"

    def __init__(self, host: str, port: int, holder: str | None = None) -> None:
        by = f" ({holder})" if holder else ""
        super().__init__(
            f"{host}:{port} is in use by another program{by}; stop it, or start with another --port "
            f"(or [server] port in homebase.toml)."
        )
        self.host, self.port, self.holder = host, port, holder


class AddressInvalid(StartupError):
    """The host or port cannot be bound."""

    code = "address_invalid"

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(
            f"Cannot listen at {host}:{port}: {reason}. Set --host and --port to an address of this machine."
        )
        self.host, self.port, self.reason = host, port, reason


class TerminalUnfit(StartupError):
    """The terminal cannot show a full-screen program."""

    code = "terminal_unfit"


class ModelError(HomebaseError):
    """A checkpoint cannot be served."""

    code = "model_error"


class ModelNotFound(ModelError):
    """There is no checkpoint where the operator said."""

    code = "model_not_found"


class ModelNotFetched(ModelError):
    """The checkpoint could not be had from Hugging Face: no network, no access, no room."""

    code = "model_not_fetched"


class CheckpointInvalid(ModelError):
    """The checkpoint's tensors or configuration are wrong, missing or unreadable."""

    code = "checkpoint_invalid"


class ModelUnsupported(ModelError):
    """Nothing here can run this architecture or quantization."""

    code = "model_unsupported"


class PolicyError(HomebaseError):
    """Something about homebase.toml."""

    code = "policy_error"


class PolicyInvalid(PolicyError):
    """A policy file or edit that cannot be used; `key` is dotted, `line` counts from 1, both when known."""

    code = "policy_invalid"

    def __init__(self, message: str, *, key: str | None = None, line: int | None = None) -> None:
        super().__init__(message)
        self.key, self.line = key, line


class PolicyConflict(PolicyError):
    """homebase.toml changed since the edit began; `keys` are those that both sides changed."""

    code = "policy_conflict"

    def __init__(self, message: str, keys: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.keys = keys


class PolicyUnwritable(PolicyError):
    """homebase.toml cannot be written; the running policy is unchanged."""

    code = "policy_unwritable"


class HistoryError(HomebaseError):
    """The file of the history cannot be used."""

    code = "history_unusable"


class HistoryMissing(HistoryError):
    """Nothing was ever remembered at this place."""

    code = "history_missing"

    def __init__(self, path: object) -> None:
        super().__init__(
            f"There is no history at {path}: no server has written one. [history] path says where it is, and "
            "[history] off = true keeps none."
        )


class RequestError(HomebaseError):
    """The request can never succeed as it is. `param` names the offending field, dotted, when there is one."""

    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(RequestError):
    """A field is missing, malformed or out of range."""

    code = "invalid_request"


class UnsupportedParameter(RequestError):
    """A parameter of the dialect that this server does not honour yet, and so refuses."""

    code = "unsupported_parameter"


class UnknownModel(RequestError):
    """A model id that is not served here; `available` lists those that are."""

    code = "model_not_found"

    def __init__(self, model: str, available: tuple[str, ...]) -> None:
        served = ", ".join(repr(name) for name in available) or "nothing yet"
        super().__init__(f"The model {model!r} is not served here; available: {served}.", param="model")
        self.model, self.available = model, available


class ContextLengthExceeded(RequestError):
    """The prompt leaves no room for an answer in the context limit; decided before any prefill."""

    code = "context_length_exceeded"

    def __init__(
        self,
        prompt_tokens: int,
        context_limit_tokens: int,
        *,
        at_least: bool = False,
        because: str = "",
    ) -> None:
        """`because` is a sentence on where the limit comes from, when it is not the model's own."""
        super().__init__(
            f"This model's maximum context length is {context_limit_tokens:,} tokens, but the prompt has "
            f"{'at least ' if at_least else ''}{prompt_tokens:,} tokens. "
            f"{because}{' ' if because else ''}Shorten the prompt; an answer needs room for one token at least.",
            param="messages",
        )
        self.prompt_tokens, self.context_limit_tokens = prompt_tokens, context_limit_tokens
        self.is_at_least = at_least


class ResponseNotFound(RequestError):
    """No response of this id is kept here for this caller."""

    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id {_cut_id(response_id)!r} not found: it is not kept here (any more).")
        self.response_id = response_id


class PreviousResponseNotFound(RequestError):
    """The response that a request goes on from is not kept here for this caller."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"Previous response with id {_cut_id(response_id)!r} not found: it is not kept here (any more). "
            "Send the whole conversation as `input`.",
            param="previous_response_id",
        )
        self.response_id = response_id


def _cut_id(response_id: str) -> str:
    return response_id if len(response_id) <= 100 else f"{response_id[:100]}…"


class BodyTooLarge(RequestError):
    """The body has more bytes than are read."""

    code = "body_too_large"

    def __init__(self, limit_bytes: int, given_bytes: int | None = None) -> None:
        given = f"this one has {given_bytes:,}" if given_bytes is not None else "this one has more"
        super().__init__(f"A request body may have at most {limit_bytes:,} bytes; {given}.")
        self.limit_bytes, self.given_bytes = limit_bytes, given_bytes


class BodyTooSlow(RequestError):
    """The body did not arrive in the time that is given for it."""

    code = "body_too_slow"


class HeadTooLarge(RequestError):
    """More headers, or more bytes of them, than a request may have."""

    code = "head_too_large"


class Forbidden(RequestError):
    """The caller may not do this: foreign origin or host."""

    code = "forbidden"


class KeyRejected(Forbidden):
    """The API key is missing or wrong."""

    code = "invalid_api_key"


class KeyReadOnly(Forbidden):
    """The key may look at the operator's pages and do nothing else (server.read_only_keys)."""

    code = "key_is_read_only"


class RequestNotLive(RequestError):
    """No request with this id is in flight: never seen, over, or somebody else's."""

    code = "request_not_live"


class RouteNotFound(RequestError):
    """No such path."""

    code = "route_not_found"


class MethodNotAllowed(RouteNotFound):
    """The path exists, but not by this method; `allowed` lists those that it has."""

    code = "method_not_allowed"

    def __init__(self, message: str, allowed: tuple[str, ...]) -> None:
        super().__init__(message)
        self.allowed = allowed


class Refusal(HomebaseError):
    """Admission said no, before any work. The sentence states the limit, its use and what ends it."""

    code = "in_flight_full"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        limit: float | None,
        used: float | None,
        retry_after_s: int | None,
        key: str = "",
        overflow: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.limit, self.used = limit, used
        """None where no limit says no."""
        self.retry_after_s = retry_after_s
        """Whole seconds, 1..60: when asking again is likely to succeed. None: not before the operator acts."""
        self.key = key
        """Dotted key of the limit."""
        self.waited_s = 0.0
        """In line, before it was refused."""
        self.overflow = overflow
        """True when the policy wants it answered by the upstream that takes what is over a limit here."""


class UpstreamError(HomebaseError):
    """Another server, which answers for the model, did not; `upstream` is its name in homebase.toml."""

    code = "upstream_failed"

    def __init__(self, message: str, upstream: str) -> None:
        super().__init__(message)
        self.upstream = upstream


class UpstreamUnavailable(UpstreamError):
    """It is not asked at all: it has just failed several times, or its key is missing."""

    code = "upstream_unavailable"


class UpstreamFailed(UpstreamError):
    """It cannot be reached, or broke off before or within its answer."""

    code = "upstream_failed"


class UpstreamSilent(UpstreamError):
    """It said nothing for longer than its silence_timeout_s."""

    code = "upstream_silent"


class EngineError(HomebaseError):
    """The engine failed at work that it had taken."""

    code = "engine_error"


class EngineDead(EngineError):
    """The engine thread has ended; every stream, in flight and later, is told so."""

    code = "engine_dead"


class EngineStalled(EngineError):
    """A step takes longer than `engine.stall_s`; the engine may come back, and this stream is not kept waiting."""

    code = "engine_stalled"

    def __init__(self, stall_s: float) -> None:
        super().__init__(f"The engine is stalled: no step has ended for {stall_s:g} s (engine.stall_s).")
        self.stall_s = stall_s


class SequenceFailed(EngineError):
    """One sequence failed; the others go on."""

    code = "sequence_failed"


class FormLost(SequenceFailed):
    """The form that was asked of an answer cannot be kept up any further. It would be the same again."""

    code = "form_lost"


class StreamStopped(EngineError):
    """A stream that its client still reads was cut by the operator, or because the server ends."""

    code = "stream_stopped"


class ParentGone(StreamStopped):
    """A child's stream was cut because its parent's was, and the parent did not come back."""

    code = "stream_stopped"

    def __init__(self) -> None:
        super().__init__(
            "This stream was cancelled with its parent's, which was closed before its end "
            "(policy.subagents.cancel_on_turn_cancel)."
        )


class ServerEnding(StreamStopped):
    """The server ends in good order, and a stream that was open with it. Nothing is broken."""

    code = "stream_stopped"

    def __init__(self) -> None:
        super().__init__("homebase-console is shutting down, which ended this stream.")
