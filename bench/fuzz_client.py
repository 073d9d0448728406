"""Sends one drawn request over a connection that is kept, as bare as a client can be, with a deadline for the whole."""

from __future__ import annotations

import contextlib
import http.client
import time

import msgspec

from fuzz_cases import Case

DEADLINE_S = 60.0
"""From the request's first byte to the answer's last. On a machine that does much else, a prompt of 3,000 tokens beside
five others took 30 s."""
LEAVES_AFTER_S = 0.3
READ_BYTES = 65536


class Answer(msgspec.Struct, frozen=True):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float
    is_whole: bool = True
    """False when the client hung up before its end."""


class NoAnswer(Exception):
    """The server closed the connection without an answer, or did not answer in time."""


class FuzzClient:
    """One connection at a time to a server on this machine."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def ask(self, case: Case) -> Answer:
        """Send a case and read its answer, or leave as it says. Raises NoAnswer."""
        began_s = time.monotonic()
        is_kept = self._connection is not None
        try:
            return self._ask(case, began_s)
        except (ConnectionError, http.client.HTTPException) as fault:
            self.close()
            if not is_kept:
                raise NoAnswer(f"{type(fault).__name__}: {fault}") from fault
        except TimeoutError as fault:
            self.close()
            if not case.leaves:
                raise NoAnswer(f"not within {DEADLINE_S:g} s") from fault
            return Answer(0, {}, b"", time.monotonic() - began_s, is_whole=False)
        # A kept connection may be closed by the server at any time between two requests.
        return self.ask(case)

    def close(self) -> None:
        """Hang up."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, case: Case, began_s: float) -> Answer:
        connection = self._send(case)
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        if case.cancels and response.status == 200:
            self._cancel(headers["x-request-id"])
        body, is_whole = self._read(response, began_s + (LEAVES_AFTER_S if case.leaves else DEADLINE_S))
        if not is_whole and not case.leaves:
            raise TimeoutError
        if not is_whole or response.will_close:
            self.close()
        return Answer(response.status, headers, body, time.monotonic() - began_s, is_whole)

    def _send(self, case: Case) -> http.client.HTTPConnection:
        timeout_s = LEAVES_AFTER_S if case.leaves else DEADLINE_S
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
            self._connection.connect()
        connection = self._connection
        connection.sock.settimeout(timeout_s)
        connection.putrequest(case.method, case.target, skip_host=True, skip_accept_encoding=True)
        names = {name for name, _ in case.headers}
        if "host" not in names:
            connection.putheader("host", f"127.0.0.1:{self._port}")
        for name, value in case.headers:
            connection.putheader(name, value.encode("latin-1"))
        if case.body is not None:
            connection.putheader("content-length", str(len(case.body)))
        connection.endheaders(case.body)
        return connection

    def _read(self, response: http.client.HTTPResponse, until_s: float) -> tuple[bytes, bool]:
        pieces: list[bytes] = []
        while time.monotonic() < until_s:
            with contextlib.suppress(TimeoutError):
                piece = response.read1(READ_BYTES)
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
        return b"".join(pieces), False

    def _cancel(self, request_id: str) -> None:
        other = FuzzClient(self._port)
        answer = other.ask(Case("cancel", "POST", f"/v1/requests/{request_id}/cancel", ()))
        other.close()
        if answer.status not in (200, 404):
            raise NoAnswer(f"cancelling was answered with {answer.status}: {answer.body[:200]!r}")
