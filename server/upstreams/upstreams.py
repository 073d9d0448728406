"""The upstreams of the policy in force: a client for each, its key, its health, and what is in flight there."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence

from server.errors import HomebaseError, UpstreamUnavailable
from server.policy import UpstreamPolicy
from server.snapshot import UpstreamView
from server.upstreams.exchange import Exchange, explain_fault, say_time
from server.upstreams.flights import Flights
from server.upstreams.health import Health
from server.upstreams.http_library import httpx

LOOK_TIMEOUT_S = 10.0
"""For an upstream to say which models it has. Some are slow to answer anything while they read a long prompt."""

IDLE_S = 2.0
"""How long a connection is kept for the next request: less than servers keep theirs, whose end it would run into."""

IDLE_CONNECTIONS = 16
"""Kept at most, for each upstream."""

_KEY = re.compile(r"[\x21-\x7e]{1,4096}")


class Upstreams:
    """Begins exchanges, and knows how each upstream is. Server loop only, but for its making."""

    def __init__(
        self,
        read_policies: Callable[[], Sequence[UpstreamPolicy]],
        environment: Mapping[str, str] = os.environ,
        build_health: Callable[[], Health] = Health,
    ) -> None:
        self._read_policies, self._environment, self._build_health = read_policies, environment, build_health
        self.flights = Flights()
        self.hop = secrets.token_hex(8)
        """What this run of the server is called in the headers of those that it asks."""
        self._clients: dict[str, httpx.AsyncClient] = {}
        self._health: dict[str, Health] = {}
        self._watches: dict[str, asyncio.Task[None]] = {}

    def read_key(self, upstream: UpstreamPolicy) -> str:
        """The key that an upstream wants, empty for none. Raises UpstreamUnavailable, which never quotes it."""
        if not upstream.api_key_env:
            return ""
        key = self._environment.get(upstream.api_key_env, "").strip()
        if not _KEY.fullmatch(key):
            what = "holds no key that can be sent" if key else "is not set"
            raise UpstreamUnavailable(
                f"The upstream {upstream.name} is not asked: the environment variable {upstream.api_key_env} {what}. "
                "Set it and start the server again.",
                upstream.name,
            )
        return key

    def begin(self, upstream: UpstreamPolicy) -> Exchange:
        """A new exchange, to be closed by who asked for it. Raises UpstreamUnavailable while it is left alone."""
        health = self._find_health(upstream.name)
        health.begin(upstream)
        self._watch(upstream)
        return Exchange(upstream, self._find_client(upstream.name), health)

    def views(self) -> tuple[UpstreamView, ...]:
        """How each is, in the order of the policy."""
        return tuple(self._find_health(upstream.name).view(upstream) for upstream in self._read_policies())

    def stop(self, request_id: str, error: HomebaseError) -> bool:
        """End one request; False when none of that id is with an upstream."""
        return self.flights.stop(request_id, error)

    async def close(self) -> None:
        """Close every connection and look at nobody any more."""
        for watch in self._watches.values():
            watch.cancel()
        self._watches.clear()
        clients, self._clients = tuple(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    def _find_health(self, name: str) -> Health:
        return self._health.setdefault(name, self._build_health())

    def _find_client(self, name: str) -> httpx.AsyncClient:
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = _build_client()
        return client

    def _watch(self, upstream: UpstreamPolicy) -> None:
        watch = self._watches.get(upstream.name)
        if watch is None or watch.done():
            self._watches[upstream.name] = asyncio.create_task(self._keep_watch(upstream.name), name="upstream")

    async def _keep_watch(self, name: str) -> None:
        health = self._find_health(name)
        while health.is_watched:
            await asyncio.sleep(health.next_look_s)
            upstream = next((table for table in self._read_policies() if table.name == name), None)
            if upstream is None:
                return
            await health.look(functools.partial(self._look, upstream))

    async def _look(self, upstream: UpstreamPolicy) -> str:
        """Why an upstream is not well, in a sentence; empty when it is."""
        headers = {"user-agent": "homebase-console", "accept-encoding": "identity"}
        try:
            if key := self.read_key(upstream):
                headers |= {"authorization": f"Bearer {key}", "x-api-key": key, "anthropic-version": "2023-06-01"}
            timeout = httpx.Timeout(LOOK_TIMEOUT_S, connect=upstream.connect_timeout_s, pool=None).as_dict()
            url = f"{upstream.base_url.rstrip('/')}/models"
            request = httpx.Request("GET", url, headers=headers, extensions={"timeout": timeout})
            answer = await self._find_client(upstream.name).send(request, stream=True)
            await answer.aclose()
        except UpstreamUnavailable as missing:
            return missing.message
        except httpx.ReadTimeout:
            return f"It did not say within {say_time(LOOK_TIMEOUT_S)} which models it has."
        except httpx.HTTPError as fault:
            return explain_fault(fault, upstream).message
        return "" if answer.status_code < 500 else f"It answered with status {answer.status_code}."


def _build_client() -> httpx.AsyncClient:
    """Follows no redirect: the key would go along. Takes neither a proxy nor a password from the environment."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=IDLE_CONNECTIONS, keepalive_expiry=IDLE_S)
    return httpx.AsyncClient(limits=limits, follow_redirects=False, trust_env=False, verify=_trust())


@functools.cache
def _trust() -> ssl.SSLContext:
    """Whose certificates are believed: those that come with the library, and this machine's own."""
    context = httpx.create_ssl_context(trust_env=False)
    context.load_default_certs()
    return context
