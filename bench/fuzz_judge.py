"""Judges an answer by our own OpenAPI document and by what docs/api.md says of errors."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec

from fuzz_cases import Case
from fuzz_client import Answer

REFUSALS = frozenset({"in_flight_full", "memory_budget_full", "draining", "model_loading", "too_many_connections"})
"""What admission says; the only codes that a 5xx may have here."""
FAULTS = frozenset({"internal_error", "engine_error", "engine_dead", "engine_stalled", "sequence_failed"})
"""Codes that no client may bring about."""
SENTENCE_CHARS = 1000
NO_HTTP = b"This is no HTTP/1.1 request"


class Judge:
    """Knows every documented answer."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._routes = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "/?"), operations)
            for path, operations in document["paths"].items()
        ]
        self._validators: dict[str, Any] = {}

    def find_fault(self, case: Case, answer: Answer) -> str | None:
        """What is wrong with an answer; None for what may be."""
        code = read_code(answer)
        if answer.status >= 500 and code not in REFUSALS:
            return f"status {answer.status}"
        if not answer.is_whole:
            return None
        if "x-request-id" not in answer.headers:
            return self._find_fault_without_id(case, answer)
        if answer.status == 204 and case.method == "OPTIONS":
            return None
        if case.method == "HEAD":
            return "a body in answer to HEAD" if answer.body else None
        return self._find_fault_in_body(case, answer)

    def _find_fault_without_id(self, case: Case, answer: Answer) -> str | None:
        """Only what is no HTTP request is answered without an id, in OpenAI's shape whatever it asked for."""
        if case.method == "HEAD" and answer.status == 400:
            return None
        if NO_HTTP not in answer.body and answer.status != 431:
            return "no x-request-id"
        return self._validate({"$ref": "#/components/schemas/Error"}, answer.body)

    def _find_fault_in_body(self, case: Case, answer: Answer) -> str | None:
        operation = self._find_operation(case)
        kind = answer.headers.get("content-type", "").partition(";")[0]
        if answer.status == 200 and case.method == "OPTIONS":
            return None
        if answer.status >= 400:
            return self._find_fault_in_error(case, answer, operation, kind)
        if operation is None or answer.status != 200:
            return f"undocumented status {answer.status}"
        media = operation["responses"]["200"]["content"].get(kind)
        if media is None:
            return None if kind == "application/openmetrics-text" else f"undocumented content type {kind}"
        if kind == "text/event-stream":
            return find_fault_in_stream(answer.body)
        if kind != "application/json":
            return None
        return self._validate(media["schema"], answer.body)

    def _find_fault_in_error(self, case: Case, answer: Answer, operation: Any, kind: str) -> str | None:
        if kind != "application/json":
            return f"an error as {kind or 'nothing'}"
        schema: Any = {"$ref": f"#/components/schemas/{_name_error(case)}"}
        if operation is not None:
            schema = operation["responses"][f"{answer.status // 100}XX"]["content"]["application/json"]["schema"]
        return self._validate(schema, answer.body) or _find_fault_in_sentence(answer.body)

    def _find_operation(self, case: Case) -> Any:
        for pattern, operations in self._routes:
            if pattern.fullmatch(case.path):
                return operations.get(case.method.lower())
        return None

    def _validate(self, schema: Any, body: bytes) -> str | None:
        key = repr(schema)
        if key not in self._validators:
            self._validators[key] = jsonschema_rs.validator_for({**schema, "components": self._document["components"]})
        try:
            given = msgspec.json.decode(body)
        except msgspec.DecodeError as fault:
            return f"not JSON: {fault}"
        found = next(iter(self._validators[key].iter_errors(given)), None)
        return None if found is None else f"against its schema: {found.message[:200]}"


def _name_error(case: Case) -> str:
    """Which shape an error has at a route that is none: Anthropic's at its paths, and for who speaks its dialect."""
    names = {name.lower() for name, _ in case.headers}
    ours = case.path.startswith(("/v1/chat/", "/v1/completions", "/v1/responses"))
    asks_for_it = "anthropic-version" in names and not ours
    return "MessagesError" if asks_for_it or f"{case.path}/".startswith("/v1/messages/") else "Error"


def read_code(answer: Answer) -> str:
    """The code of an answer that is an error, in either dialect; otherwise empty."""
    if answer.status < 400:
        return ""
    try:
        return _code_of(msgspec.json.decode(answer.body))
    except msgspec.DecodeError:
        return ""


def find_fault_in_stream(body: bytes) -> str | None:
    """What is wrong with server-sent events; None when nothing is."""
    frames = list(_read_frames(body))
    if not frames:
        return "a stream without an event"
    for frame in frames:
        if frame == b"[DONE]":
            continue
        try:
            event = msgspec.json.decode(frame)
        except msgspec.DecodeError as fault:
            return f"an event that is not JSON: {fault}"
        if (code := _code_of(event)) in FAULTS:
            return f"{code} in a stream"
    return None


def _read_frames(body: bytes) -> Iterator[bytes]:
    for line in body.split(b"\n"):
        if line.startswith(b"data: "):
            yield line[6:]


def _code_of(document: Any) -> str:
    if not isinstance(document, dict):
        return ""
    response = document.get("response")
    error = document.get("error") or (response.get("error") if isinstance(response, dict) else None)
    if not isinstance(error, dict):
        return str(document.get("code") or "") if document.get("type") == "error" else ""
    return str(error.get("code") or error.get("details", {}).get("error_code") or "")


def _find_fault_in_sentence(body: bytes) -> str | None:
    error = msgspec.json.decode(body).get("error")
    if not isinstance(error, dict):
        return None
    message = str(error["message"])
    if not 0 < len(message) <= SENTENCE_CHARS:
        return f"a message of {len(message)} characters"
    if any(unicodedata.category(letter) in ("Cc", "Cf", "Cs") for letter in message):
        return f"a message with invisible characters: {message[:200]!a}"
    return None
