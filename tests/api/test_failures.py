"""Every error has its row, its status and its body, word for word."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from server import errors
from server.api.failures import ROWS, Dialect, RefusalStatus, build_failure, find_dialect, internal_error
from server.errors import HomebaseError


def all_errors(kind: type[HomebaseError] = HomebaseError) -> Iterator[type[HomebaseError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from all_errors(below)


def refusal(code: str) -> errors.Refusal:
    return errors.Refusal("Full.", code=code, limit=2, used=2, retry_after_s=7)


EXAMPLES: list[tuple[HomebaseError, int, str, str | None, str]] = [
    (errors.HomebaseError("x"), 500, "internal_error", None, "homebase_error"),
    (errors.StartupError("x"), 500, "internal_error", None, "startup_failed"),
    (errors.AddressInUse("h", 1), 500, "internal_error", None, "address_in_use"),
    (errors.AddressInvalid("h", 1, "r"), 500, "internal_error", None, "address_invalid"),
    (errors.TerminalUnfit("x"), 500, "internal_error", None, "terminal_unfit"),
    (errors.ModelError("x"), 500, "model_error", None, "model_error"),
    (errors.ModelNotFound("x"), 500, "model_error", None, "model_not_found"),
    (errors.ModelNotFetched("x"), 500, "model_error", None, "model_not_fetched"),
    (errors.CheckpointInvalid("x"), 500, "model_error", None, "checkpoint_invalid"),
    (errors.ModelUnsupported("x"), 500, "model_error", None, "model_unsupported"),
    (errors.PolicyError("x"), 400, "policy_error", None, "policy_error"),
    (errors.PolicyInvalid("x"), 400, "policy_error", None, "policy_invalid"),
    (errors.PolicyInvalid("x", key="k", line=3), 400, "policy_error", "k", "policy_invalid"),
    (errors.PolicyConflict("x"), 412, "policy_error", None, "policy_conflict"),
    (errors.PolicyUnwritable("x"), 500, "policy_error", None, "policy_unwritable"),
    (errors.HistoryError("x"), 500, "history_error", None, "history_unusable"),
    (errors.HistoryMissing("/h"), 404, "history_error", None, "history_missing"),
    (errors.RequestError("x", param="p"), 400, "invalid_request_error", "p", "invalid_request"),
    (errors.InvalidRequest("x", param="p"), 400, "invalid_request_error", "p", "invalid_request"),
    (errors.UnsupportedParameter("x", param="n"), 400, "invalid_request_error", "n", "unsupported_parameter"),
    (errors.UnknownModel("a", ("b",)), 404, "invalid_request_error", "model", "model_not_found"),
    (
        errors.ContextLengthExceeded(2000, 1000),
        400,
        "invalid_request_error",
        "messages",
        "context_length_exceeded",
    ),
    (errors.ResponseNotFound("resp_1"), 404, "invalid_request_error", None, "response_not_found"),
    (
        errors.PreviousResponseNotFound("resp_1"),
        400,
        "invalid_request_error",
        "previous_response_id",
        "previous_response_not_found",
    ),
    (errors.BodyTooLarge(5, 6), 413, "invalid_request_error", None, "body_too_large"),
    (errors.BodyTooSlow("x"), 408, "invalid_request_error", None, "body_too_slow"),
    (errors.HeadTooLarge("x"), 431, "invalid_request_error", None, "head_too_large"),
    (errors.RequestNotLive("x"), 404, "invalid_request_error", None, "request_not_live"),
    (errors.Forbidden("x"), 403, "permission_error", None, "forbidden"),
    (errors.KeyRejected("x"), 401, "authentication_error", None, "invalid_api_key"),
    (errors.KeyReadOnly("x"), 403, "permission_error", None, "key_is_read_only"),
    (errors.RouteNotFound("x"), 404, "invalid_request_error", None, "route_not_found"),
    (errors.MethodNotAllowed("x", ("GET",)), 405, "invalid_request_error", None, "method_not_allowed"),
    (refusal("in_flight_full"), 429, "admission_refused", None, "in_flight_full"),
    (errors.UpstreamError("x", "u"), 502, "upstream_error", None, "upstream_failed"),
    (errors.UpstreamFailed("x", "u"), 502, "upstream_error", None, "upstream_failed"),
    (errors.UpstreamUnavailable("x", "u"), 502, "upstream_error", None, "upstream_unavailable"),
    (errors.UpstreamSilent("x", "u"), 504, "upstream_error", None, "upstream_silent"),
    (errors.EngineError("x"), 500, "engine_error", None, "engine_error"),
    (errors.EngineDead("x"), 500, "engine_error", None, "engine_dead"),
    (errors.EngineStalled(60), 500, "engine_error", None, "engine_stalled"),
    (errors.SequenceFailed("x"), 500, "engine_error", None, "sequence_failed"),
    (errors.FormLost("x"), 400, "invalid_request_error", None, "form_lost"),
    (errors.StreamStopped("x"), 400, "stream_stopped", None, "stream_stopped"),
    (errors.ServerEnding(), 503, "stream_stopped", None, "stream_stopped"),
    (errors.ParentGone(), 400, "stream_stopped", None, "stream_stopped"),
]


def test_every_error_has_a_row_of_its_own_and_an_example_here() -> None:
    ours = {kind for kind in all_errors() if kind.__module__ == "server.errors"}
    assert ours == set(ROWS)
    assert ours == {type(error) for error, *_ in EXAMPLES}


@pytest.mark.parametrize(("error", "status", "kind", "param", "code"), EXAMPLES, ids=lambda v: type(v).__name__)
def test_an_error_is_answered_with_its_status_and_the_dialects_object(
    error: HomebaseError, status: int, kind: str, param: str | None, code: str
) -> None:
    failure = build_failure(error)
    assert failure.status == status
    assert json.loads(failure.body) == {"error": {"message": error.message, "type": kind, "param": param, "code": code}}
    assert failure.headers["content-type"] == "application/json"


ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    412: "invalid_request_error",
    413: "request_too_large",
    431: "invalid_request_error",
    429: "rate_limit_error",
    500: "api_error",
    502: "api_error",
    503: "api_error",
    504: "api_error",
}


@pytest.mark.parametrize(("error", "status", "_kind", "param", "code"), EXAMPLES, ids=lambda v: type(v).__name__)
def test_in_anthropics_dialect_an_error_has_the_same_status_and_headers_and_a_type_by_its_status(
    error: HomebaseError, status: int, _kind: str, param: str | None, code: str
) -> None:
    failure, openai = build_failure(error, "auto", "anthropic", "req-1"), build_failure(error)
    body = json.loads(failure.body)
    message = body["error"].pop("message")
    details = {"error_code": code} if param is None else {"error_code": code, "param": param}
    assert body == {
        "type": "error",
        "error": {"type": ANTHROPIC_KINDS[status], "details": details},
        "request_id": "req-1",
    }
    assert message == error.message or isinstance(error, errors.ContextLengthExceeded)
    assert (failure.status, failure.headers) == (openai.status, {**openai.headers, "request-id": "req-1"})


@pytest.mark.parametrize("at_least", [False, True])
def test_a_prompt_that_is_too_long_is_told_as_claude_code_looks_for_it(at_least: bool) -> None:
    error = errors.ContextLengthExceeded(240_000, 200_000, at_least=at_least)
    told = json.loads(build_failure(error, "auto", "anthropic", "req-1").body)["error"]["message"]
    found = re.search(r"prompt is too long[^0-9]*(\d+)\s*tokens?\s*>\s*(\d+)", told, re.IGNORECASE)
    assert found is not None
    assert found.groups() == ("240000", "199999")
    assert ("at least" in told) == at_least


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
@pytest.mark.parametrize("code", ["in_flight_full", "memory_budget_full", "draining", "model_loading"])
def test_a_refusal_with_status_400_has_nothing_that_agents_retry_on(dialect: Dialect, code: str) -> None:
    body = build_failure(refusal(code), 400, dialect, "req-1").body.decode()
    assert not re.search(r"rate.?limit|overloaded|unavailable|internal.?error|server.?error|too long", body)


@pytest.mark.parametrize(
    ("path", "dialect"),
    [
        ("/v1/messages", "anthropic"),
        ("/v1/messages/", "anthropic"),
        ("/v1/messages/count_tokens", "anthropic"),
        ("/v1/messages/batches/x", "anthropic"),
        ("/v1/messagesx", "openai"),
        ("/v1/chat/completions", "openai"),
        ("/v1/models", "openai"),
        ("/", "openai"),
    ],
)
def test_the_path_says_whose_error_it_is(path: str, dialect: Dialect) -> None:
    assert find_dialect(path) == dialect


@pytest.mark.parametrize(
    ("path", "dialect"),
    [("/v1/models", "anthropic"), ("/v1/mesages", "anthropic"), ("/v1/chat/completions", "openai")],
)
def test_a_header_of_anthropics_says_so_where_the_path_says_nothing(path: str, dialect: Dialect) -> None:
    assert find_dialect(path, {"anthropic-version"}) == dialect


@pytest.mark.parametrize(
    ("code", "refusal_status", "status", "headers"),
    [
        ("in_flight_full", "auto", 429, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 503, 503, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 409, 409, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 400, 400, {"x-should-retry": "false"}),
        ("draining", "auto", 503, {"retry-after": "7", "x-should-retry": "false"}),
        ("draining", 400, 400, {"x-should-retry": "false"}),
        ("model_loading", "auto", 503, {"retry-after": "7", "x-should-retry": "false"}),
        ("model_loading", 429, 429, {"retry-after": "7", "x-should-retry": "false"}),
        ("model_loading", 400, 400, {"x-should-retry": "false"}),
    ],
)
def test_a_refusal_has_the_policys_status_and_says_when_to_come_back(
    code: str, refusal_status: RefusalStatus, status: int, headers: dict[str, str]
) -> None:
    failure = build_failure(refusal(code), refusal_status)
    assert failure.status == status
    assert failure.headers == {"content-type": "application/json", **headers}


@pytest.mark.parametrize(("refusal_status", "status"), [("auto", 400), (400, 400), (429, 429), (503, 503)])
def test_a_refusal_that_lasts_names_no_time_to_come_back(refusal_status: RefusalStatus, status: int) -> None:
    lasting = errors.Refusal("Small.", code="memory_too_small", limit=2, used=2, retry_after_s=None)
    failure = build_failure(lasting, refusal_status)
    assert failure.status == status
    assert failure.headers["x-should-retry"] == "false"
    assert "retry-after" not in failure.headers


@pytest.mark.parametrize("error", [errors.EngineDead("x"), errors.StreamStopped("x"), errors.ModelNotFound("x")])
def test_what_does_not_get_better_by_itself_is_not_to_be_retried(error: HomebaseError) -> None:
    assert build_failure(error).headers["x-should-retry"] == "false"


def test_a_wrong_method_is_told_the_right_ones() -> None:
    assert build_failure(errors.MethodNotAllowed("x", ("GET", "HEAD"))).headers["allow"] == "GET, HEAD"


def test_faults_that_never_pass_are_never_5xx_or_429() -> None:
    for kind in all_errors(errors.RequestError):
        assert 400 <= ROWS[kind].status < 500
        assert ROWS[kind].status != 429


def test_an_error_made_elsewhere_is_answered_like_the_nearest_one_above() -> None:
    class Odd(errors.InvalidRequest):
        pass

    assert build_failure(Odd("x")).status == 400


def test_an_unforeseen_fault_tells_the_client_where_to_look_and_nothing_more() -> None:
    body: Any = json.loads(build_failure(internal_error("req-1")).body)
    assert body["error"]["code"] == "internal_error"
    assert "req-1" in body["error"]["message"]
