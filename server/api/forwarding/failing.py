"""What a client is told when an upstream did not answer: before a first byte, and within a stream."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from quart import Response

from server.admission.families import wants_400
from server.api.failures import build_failure, encode_anthropic_error, encode_error, find_row
from server.api.forwarding.call import Call
from server.api.sse import build_frame
from server.errors import HomebaseError, UpstreamError


def answer_failure(error: HomebaseError, call: Call, retrying: Sequence[str] = ()) -> Response:
    """The answer for an error of an upstream.

    Clients that ask a 5xx again up to thirty times, whatever it says, get the status that they show at once: the same
    as with refusals, and `retrying` are more of them by the names that their User-Agents begin with.
    """
    failure = build_failure(error, "auto", call.dialect, call.caller.request_id)
    if isinstance(error, UpstreamError) and wants_400(call.caller.headers, retrying):
        body = failure.body
        if call.dialect == "anthropic":
            body = encode_anthropic_error(error, 400, call.caller.request_id)
        headers = {**failure.headers, "x-should-retry": "false"}
        failure = msgspec.structs.replace(failure, status=400, headers=headers, body=body)
    return Response(failure.body, status=failure.status, headers=failure.headers)


def build_error_event(error: HomebaseError, call: Call, response_id: str) -> bytes:
    """The event by which a stream of this dialect says that it ends with an error."""
    request_id = call.caller.request_id
    match call.kind:
        case "messages":
            return build_frame(encode_anthropic_error(error, find_row(error).status, request_id), "error")
        case "responses":
            failed = {
                "id": response_id or f"resp_{request_id.removeprefix('req-')}",
                "object": "response",
                "status": "failed",
                "error": {"code": error.code, "message": error.message},
                "output": [],
            }
            event = {"type": "response.failed", "response": failed}
            return build_frame(msgspec.json.encode(event), "response.failed")
        case _:
            return build_frame(encode_error(error))
