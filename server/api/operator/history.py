"""GET /homebase/history: what was asked of the server and what came of it, from its own record."""

from __future__ import annotations

import asyncio
import time

import msgspec
from quart import Quart, Response, request

from server.api.services import Services
from server.errors import HistoryMissing, InvalidRequest
from server.history.file import find_file
from server.history.moments import parse_moment
from server.history.reader import HistoryReader
from server.history.records import RequestRecord
from server.policy import HistoryPolicy

DEFAULT_SINCE, DEFAULT_LIMIT, MOST = "1h", 100, 10_000
"""Of an answer: the last hour's newest, and no more than can be sent at once."""


class HistoryList(msgspec.Struct, frozen=True):
    """Requests by arrival, oldest first."""

    requests: tuple[RequestRecord, ...]


def add_history(app: Quart, services: Services) -> None:
    """Register the route. The file is read beside the loop."""

    async def show_history() -> Response:
        since_s, limit = _read_since(), _read_limit()
        policy = services.read_policy().history
        found = await asyncio.to_thread(_read, policy, since_s, limit)
        return Response(msgspec.json.encode(HistoryList(found)), content_type="application/json")

    app.add_url_rule("/homebase/history", view_func=show_history, methods=["GET"])


def _read(policy: HistoryPolicy, since_s: float, limit: int) -> tuple[RequestRecord, ...]:
    try:
        with HistoryReader(find_file(policy.path)) as reader:
            return tuple(reader.read_requests(since_s, newest=limit))
    except HistoryMissing:
        if policy.off:
            raise
        return ()  # nothing is over yet


def _read_since() -> float:
    try:
        return parse_moment(request.args.get("since", DEFAULT_SINCE), time.time())
    except ValueError as error:
        raise InvalidRequest(f"`since`: {error}", param="since") from None


def _read_limit() -> int:
    given = request.args.get("limit", str(DEFAULT_LIMIT))
    if not given.isascii() or not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= MOST:
        raise InvalidRequest(f"`limit` is 1 to {MOST:,} requests, not {given[:20]!r}.", param="limit")
    return int(given)
