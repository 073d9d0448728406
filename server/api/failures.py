"""The one table from an error to an HTTP status, and to each dialect's error object."""

from __future__ import annotations

from collections.abc import Container
from typing import Literal

import msgspec

from server import errors
from server.errors import ContextLengthExceeded, HomebaseError, MethodNotAllowed, PolicyInvalid, Refusal, RequestError

RefusalStatus = Literal["auto", 400, 409, 429, 503]
"""`policy.refusal_status`."""

Dialect = Literal["openai", "anthropic"]
"""Whose error object."""

ANTHROPIC_PATH = "/v1/messages"
"""Here and below it errors are Anthropic's."""

OPENAI_PATHS = ("/v1/chat/", "/v1/completions", "/v1/responses")
"""Here and below them errors are OpenAI's, whoever asks."""

ANTHROPIC_HEADER = "anthropic-version"
"""Anthropic's SDKs send it with each request: with it, the answer at a path that both dialects have is in theirs."""

ANTHROPIC_ID_HEADER = "request-id"
"""Where that dialect's SDKs look for the id of a request."""

ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
}
"""By status; any other is an `invalid_request_error` below 500 and an `api_error` from there. Not by what happened: a
refusal with status 400 must not contain `rate_limit`, at which some agents come back without end."""

NOT_READY_CODES = frozenset({"draining", "model_loading"})
"""Refusals that say 503 rather than 429: it is the server that is not ready, not its slots that are taken."""


class Row(msgspec.Struct, frozen=True):
    """How one kind of error is answered."""

    status: int
    type: str
    """The dialect's coarse class; the error's own `code` is the fine one."""
    can_retry: bool = True
    """False tells the SDKs that would try again by themselves not to."""


class Failure(msgspec.Struct, frozen=True):
    """An answer that says no."""

    status: int
    headers: dict[str, str]
    body: bytes


_BAD_REQUEST = Row(400, "invalid_request_error")
_NOT_FOUND = Row(404, "invalid_request_error")
_INTERNAL = Row(500, "internal_error")

ROWS: dict[type[HomebaseError], Row] = {
    errors.HomebaseError: _INTERNAL,
    errors.StartupError: _INTERNAL,
    errors.AddressInUse: _INTERNAL,
    errors.AddressInvalid: _INTERNAL,
    errors.TerminalUnfit: _INTERNAL,
    # A model that cannot be loaded stays so until the operator acts: asking again is in vain.
    errors.ModelError: Row(500, "model_error", can_retry=False),
    errors.ModelNotFound: Row(500, "model_error", can_retry=False),
    errors.ModelNotFetched: Row(500, "model_error", can_retry=False),
    errors.CheckpointInvalid: Row(500, "model_error", can_retry=False),
    errors.ModelUnsupported: Row(500, "model_error", can_retry=False),
    errors.PolicyError: Row(400, "policy_error"),
    errors.PolicyInvalid: Row(400, "policy_error"),
    errors.PolicyConflict: Row(412, "policy_error"),
    errors.PolicyUnwritable: Row(500, "policy_error"),
    errors.HistoryError: Row(500, "history_error", can_retry=False),
    errors.HistoryMissing: Row(404, "history_error", can_retry=False),
    errors.RequestError: _BAD_REQUEST,
    errors.InvalidRequest: _BAD_REQUEST,
    errors.UnsupportedParameter: _BAD_REQUEST,
    errors.UnknownModel: _NOT_FOUND,
    errors.ContextLengthExceeded: _BAD_REQUEST,
    errors.ResponseNotFound: _NOT_FOUND,
    errors.PreviousResponseNotFound: _BAD_REQUEST,
    errors.BodyTooLarge: Row(413, "invalid_request_error"),
    errors.BodyTooSlow: Row(408, "invalid_request_error", can_retry=False),
    errors.HeadTooLarge: Row(431, "invalid_request_error"),
    errors.RequestNotLive: _NOT_FOUND,
    errors.Forbidden: Row(403, "permission_error"),
    errors.KeyRejected: Row(401, "authentication_error"),
    errors.KeyReadOnly: Row(403, "permission_error"),
    errors.RouteNotFound: _NOT_FOUND,
    errors.MethodNotAllowed: Row(405, "invalid_request_error"),
    errors.Refusal: Row(429, "admission_refused", can_retry=False),
    errors.UpstreamError: Row(502, "upstream_error"),
    errors.UpstreamFailed: Row(502, "upstream_error"),
    # Asked again at once, it would be in vain.
    errors.UpstreamUnavailable: Row(502, "upstream_error", can_retry=False),
    errors.UpstreamSilent: Row(504, "upstream_error", can_retry=False),
    errors.EngineError: Row(500, "engine_error"),
    errors.EngineDead: Row(500, "engine_error", can_retry=False),
    errors.EngineStalled: Row(500, "engine_error", can_retry=False),
    errors.SequenceFailed: Row(500, "engine_error"),
    # The schema that was sent leads there: whoever takes it for the server's fault asks again and again.
    errors.FormLost: _BAD_REQUEST,
    # Not a fault of the server, and an agent that comes back at once would undo what the operator did.
    errors.StreamStopped: Row(400, "stream_stopped", can_retry=False),
    errors.ParentGone: Row(400, "stream_stopped", can_retry=False),
    errors.ServerEnding: Row(503, "stream_stopped", can_retry=False),
}


def find_dialect(path: str, headers: Container[str] = ()) -> Dialect:
    """In which dialect an error at a path is told, to whoever sends headers of these names."""
    if f"{path}/".startswith(f"{ANTHROPIC_PATH}/"):
        return "anthropic"
    return "anthropic" if ANTHROPIC_HEADER in headers and not path.startswith(OPENAI_PATHS) else "openai"


def build_failure(
    error: HomebaseError,
    refusal_status: RefusalStatus = "auto",
    dialect: Dialect = "openai",
    request_id: str = "",
) -> Failure:
    """The answer for an error."""
    row = find_row(error)
    status = refusal_status_of(error, refusal_status) if isinstance(error, Refusal) else row.status
    headers = {"content-type": "application/json"}
    if isinstance(error, Refusal):
        headers |= _refusal_headers(error, status)
    elif not row.can_retry:
        headers["x-should-retry"] = "false"
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    if dialect == "openai":
        return Failure(status, headers, encode_error(error))
    headers[ANTHROPIC_ID_HEADER] = request_id
    return Failure(status, headers, encode_anthropic_error(error, status, request_id))


def find_row(error: HomebaseError) -> Row:
    """The row of the error's class, or of the nearest class above it."""
    return next(ROWS[kind] for kind in type(error).__mro__ if kind in ROWS)


def refusal_status_of(error: Refusal, refusal_status: RefusalStatus) -> int:
    """The HTTP status of a refusal under a policy."""
    if refusal_status != "auto":
        return refusal_status
    if error.retry_after_s is None:  # nothing changes until the operator acts, and agents come back by themselves
        return 400
    return 503 if error.code in NOT_READY_CODES else ROWS[Refusal].status


def encode_error(error: HomebaseError) -> bytes:
    """OpenAI's error object: `{"error": {"message", "type", "param", "code"}}`."""
    param, kind = _find_param(error), find_row(error).type
    fields = {"message": error.message, "type": kind, "param": param, "code": error.code}
    return msgspec.json.encode({"error": fields})


def encode_anthropic_error(error: HomebaseError, status: int, request_id: str) -> bytes:
    """Anthropic's error object; our own code is where its SDKs look for one, in `error.details.error_code`."""
    details = {"error_code": error.code}
    if (param := _find_param(error)) is not None:
        details["param"] = param
    kind = ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    fields = {"type": kind, "message": _say_as_anthropic(error), "details": details}
    return msgspec.json.encode({"type": "error", "error": fields, "request_id": request_id})


def internal_error(request_id: str) -> HomebaseError:
    """What a client is told of a fault that nobody foresaw; the log has the rest under the same id."""
    error = HomebaseError(f"Something in the server broke while answering; its log has the details under {request_id}.")
    error.code = "internal_error"
    return error


def _find_param(error: HomebaseError) -> str | None:
    """The field or the limit at fault."""
    match error:
        case RequestError():
            return error.param
        case PolicyInvalid():
            return error.key
        case _:
            return None


def _say_as_anthropic(error: HomebaseError) -> str:
    """The error's own sentence, except where clients of this dialect act on Anthropic's.

    Claude Code shortens its conversation only when it reads `prompt is too long` with both numbers, without commas.
    """
    if not isinstance(error, ContextLengthExceeded):
        return error.message
    at_least = "at least " if error.is_at_least else ""
    return (
        f"prompt is too long: {at_least}{error.prompt_tokens} tokens > {error.context_limit_tokens - 1} maximum "
        f"(the context limit is {error.context_limit_tokens}, and an answer needs one)"
    )


def _refusal_headers(error: Refusal, status: int) -> dict[str, str]:
    # While a model loads, too: that takes minutes, and Grok's programs come back fourteen times after a 503.
    headers = {"x-should-retry": "false"}
    # 400 is for clients that never come back by themselves; a time to come back would only mislead them.
    if status != 400 and error.retry_after_s is not None:
        headers["retry-after"] = str(error.retry_after_s)
    return headers
