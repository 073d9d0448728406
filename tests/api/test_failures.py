"""Every error has its row, its status and its body, word for word."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from server import errors
from server.api.failures import ROWS, RefusalStatus, build_failure, internal_error
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
    (errors.PolicyConflict("x"), 412, "policy_error", None, "policy_conflict"),
    (errors.PolicyUnwritable("x"), 500, "policy_error", None, "policy_unwritable"),
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
    (errors.BodyTooLarge(5, 6), 413, "invalid_request_error", None, "body_too_large"),
    (errors.BodyTooSlow("x"), 408, "invalid_request_error", None, "body_too_slow"),
    (errors.Forbidden("x"), 403, "permission_error", None, "forbidden"),
    (errors.KeyRejected("x"), 401, "authentication_error", None, "invalid_api_key"),
    (errors.RouteNotFound("x"), 404, "invalid_request_error", None, "route_not_found"),
    (errors.MethodNotAllowed("x", ("GET",)), 405, "invalid_request_error", None, "method_not_allowed"),
    (refusal("in_flight_full"), 429, "admission_refused", None, "in_flight_full"),
    (errors.EngineError("x"), 500, "engine_error", None, "engine_error"),
    (errors.EngineDead("x"), 500, "engine_error", None, "engine_dead"),
    (errors.EngineStalled(60), 500, "engine_error", None, "engine_stalled"),
    (errors.SequenceFailed("x"), 500, "engine_error", None, "sequence_failed"),
    (errors.StreamStopped("x"), 400, "stream_stopped", None, "stream_stopped"),
    (errors.ServerEnding(), 503, "stream_stopped", None, "stream_stopped"),
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


@pytest.mark.parametrize(
    ("code", "refusal_status", "status", "headers"),
    [
        ("in_flight_full", "auto", 429, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 503, 503, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 409, 409, {"retry-after": "7", "x-should-retry": "false"}),
        ("in_flight_full", 400, 400, {"x-should-retry": "false"}),
        ("draining", "auto", 503, {"retry-after": "7", "x-should-retry": "false"}),
        ("draining", 400, 400, {"x-should-retry": "false"}),
        ("model_loading", "auto", 503, {"retry-after": "7"}),
        ("model_loading", 429, 429, {"retry-after": "7"}),
    ],
)
def test_a_refusal_has_the_policys_status_and_says_when_to_come_back(
    code: str, refusal_status: RefusalStatus, status: int, headers: dict[str, str]
) -> None:
    failure = build_failure(refusal(code), refusal_status)
    assert failure.status == status
    assert failure.headers == {"content-type": "application/json", **headers}


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
