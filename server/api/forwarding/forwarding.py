"""Decides who answers a request, our own model or an upstream, and passes on what is an upstream's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

from quart import Response

from server.admission.decide import Asked as Wanted
from server.admission.lineage import Spent
from server.admission.place import Place
from server.admission.sessions import BodyFacts, identify, make_printable
from server.admission.slots import Permit
from server.api.forwarding.call import KINDS, Call
from server.api.forwarding.failing import answer_failure, build_error_event
from server.api.forwarding.flight import Flight
from server.api.generation.asked import Caller
from server.api.generation.door import LARGE_BODY_BYTES
from server.api.generation.entering import count_refusal, enter
from server.api.generation.plan import MODEL_CHARS, cut_name, is_served
from server.api.json_shape import check_shape
from server.api.services import Services
from server.errors import HomebaseError, Refusal, UnknownModel, UpstreamError, UpstreamFailed
from server.events import Outcome
from server.policy import Policy
from server.telemetry import StreamIdentity
from server.text.pool import TextPool
from server.upstreams.asking import Asking, read_asking, rename_model
from server.upstreams.exchange import Exchange, Outgoing
from server.upstreams.headers import build_request_headers, has_been_at
from server.upstreams.meter import Lines, Meter
from server.upstreams.routing import Route, find_overflow, find_route, list_names

Answerer = Callable[[Caller, bytes], Awaitable[Response]]


class Forwarding:
    """Stands before the endpoints that read prompts."""

    def __init__(self, services: Services, pool: TextPool) -> None:
        self._services, self._pool = services, pool

    async def answer(self, call: Call, answer_here: Answerer) -> Response:
        """What our own model answers, or an upstream. Raises any HomebaseError before a first byte is sent."""
        policy = self._services.read_policy()
        if call.path not in KINDS or not (policy.upstreams or policy.aliases):
            return await answer_here(call.caller, call.body)
        asking = await self._read(call.body)
        if asking is None:
            return await answer_here(call.caller, call.body)
        route = self._find_route(asking, policy)
        try:
            if route.upstream is not None:
                return await self._forward(call, asking, route)
            return await answer_here(call.caller, call.body)
        except Refusal as refusal:
            overflow = find_overflow(route.model, policy.policy.overflow_to, policy.upstreams)
            if not refusal.overflow or overflow is None or self._has_been_here(call):
                raise  # where two servers overflow to each other, both are full
        return await self._forward(call, asking, overflow)

    async def _read(self, body: bytes) -> Asking | None:
        def read() -> Asking | None:
            check_shape(body)
            return read_asking(body)

        return await self._pool.run(read) if len(body) > LARGE_BODY_BYTES else read()

    def _find_route(self, asking: Asking, policy: Policy) -> Route:
        """Raises UnknownModel. A request that names no model is our own one's."""
        model = self._services.read_model()
        if not asking.model and model.state != "none":
            return Route("", None)
        route = find_route(asking.model or "", lambda name: is_served(name, model), policy.aliases, policy.upstreams)
        if route is None:
            listed = list_names(lambda name: is_served(name, model), policy.aliases, policy.upstreams)
            ours = () if model.state == "none" else (model.id,)
            raise UnknownModel(cut_name(asking.model or ""), (*ours, *(each.name for each in listed)))
        return route

    async def _forward(self, call: Call, asking: Asking, route: Route) -> Response:
        """The upstream's answer, or a failure's."""
        try:
            return await self._pass_on(call, asking, route)
        except UpstreamError as error:
            return answer_failure(error, call, self._services.read_policy().policy.refuse_with_400)

    async def _pass_on(self, call: Call, asking: Asking, route: Route) -> Response:
        assert route.upstream is not None, "our own model's requests are not passed on"
        if self._has_been_here(call):
            name = route.upstream.name
            raise UpstreamFailed(
                f"The upstream {name} leads back to this server, where this request has been before. "
                "Set its base_url to another server.",
                name,
            )
        body = call.body
        if route.model != asking.model:
            rename = rename_model
            body = await self._pool.run(lambda: rename(call.body, route.model))
        if call.kind == "count":
            return await self._pass_on_count(call, route, body)
        flight = await self._open(call, asking, route)
        try:
            exchange = await self._send(call, route, body, flight)
            if exchange.is_stream:
                return _build_response(exchange, _relay(exchange, flight, call))
            whole = await exchange.read_whole()
            flight.meter.read_whole(whole)
            if exchange.status >= 400:
                flight.fail(_describe_status(exchange))
            else:
                flight.complete()
        except HomebaseError as error:
            flight.fail(error)
            await flight.close()
            raise
        await flight.close()
        return _build_response(exchange, whole)

    def _has_been_here(self, call: Call) -> bool:
        return has_been_at(call.caller.headers, self._services.upstreams.hop)

    async def _pass_on_count(self, call: Call, route: Route, body: bytes) -> Response:
        """What only counts a prompt's tokens is no stream, and takes no slot."""
        exchange = await self._send(call, route, body)
        try:
            return _build_response(exchange, await exchange.read_whole())
        finally:
            await exchange.close()

    async def _open(self, call: Call, asking: Asking, route: Route) -> Flight:
        """Its row, and its slot where it needs one. Raises Refusal."""
        assert route.upstream is not None, "our own model's requests are not passed on"
        services, request_id = self._services, call.caller.request_id
        place = _find_place(services, call.caller, asking)
        identity = _identify_stream(place, call.caller, asking, route)
        services.came(place)
        permit = await self._enter(call.caller, place, asking, identity) if route.upstream.governed else None
        flights = services.upstreams.flights

        def note_over(flight: Flight, outcome: Outcome) -> None:
            flights.remove(request_id)
            usage = flight.meter.usage
            spent = Spent(usage.prompt_tokens or asking.prompt_tokens, usage.cached_tokens or 0, flight.tokens)
            services.lineage.ended(request_id, outcome, spent)

        flight = Flight(request_id, services.telemetry, Meter(call.kind), permit, note_over)
        services.telemetry.stream_opened(request_id, identity)
        services.lineage.started(request_id, place)
        task = asyncio.current_task()
        assert task is not None, "requests are answered in tasks"
        flight.follow(task)
        return flight

    async def _enter(self, caller: Caller, place: Place, asking: Asking, identity: StreamIdentity) -> Permit:
        """A slot for a request that another server on this machine answers. Raises Refusal, which is counted.

        The length of its prompt is an estimate, and its output as long as it asks for.
        """
        services = self._services
        most = asking.max_tokens
        services.lineage.arrived(place)
        try:
            return await enter(
                services, Wanted(place, asking.prompt_tokens, most, most or 0, caller.request_id), identity
            )
        except Refusal as refusal:
            count_refusal(
                services,
                refusal,
                caller,
                place,
                model=identity.model,
                prompt_tokens=asking.prompt_tokens,
                max_tokens=most,
            )
            raise
        finally:
            services.lineage.left(place)

    async def _send(self, call: Call, route: Route, body: bytes, flight: Flight | None = None) -> Exchange:
        """The exchange, with the head of its answer."""
        assert route.upstream is not None, "our own model's requests are not passed on"
        upstreams = self._services.upstreams
        key = upstreams.read_key(route.upstream)
        headers = build_request_headers(call.caller.headers, key, call.dialect, upstreams.hop)
        exchange = upstreams.begin(route.upstream)
        try:
            if flight is not None:
                flight.carry(exchange)
                upstreams.flights.add(call.caller.request_id, flight.stop)
            await exchange.send(Outgoing(call.upstream_path, headers, body))
        except BaseException:
            await exchange.close()
            raise
        return exchange


def _find_place(services: Services, caller: Caller, asking: Asking) -> Place:
    """Who asks, with what earlier requests tell of it."""
    opening = BodyFacts(asking.system_text, asking.first_user_text, caller.api_key, caller.peer, caller.key_name)
    identity = identify(caller.headers, opening)
    return services.lineage.place(identity, [asking.first_user_text], asking.has_tools)


def _identify_stream(place: Place, caller: Caller, asking: Asking, route: Route) -> StreamIdentity:
    assert route.upstream is not None, "our own model's requests are not passed on"
    return StreamIdentity(
        session=place.session,
        parent_session=place.parent_session,
        lane=place.lane,
        client=place.client,
        key=place.key,
        depth=place.depth,
        family=place.family,
        model=make_printable(route.model, MODEL_CHARS),
        prompt_tokens=asking.prompt_tokens,
        cached_tokens=0,
        max_tokens=asking.max_tokens or 0,
        context_limit_tokens=0,
        streaming=asking.is_streaming,
        arrived_s=caller.arrived_s,
        upstream=route.upstream.name,
        governed=route.upstream.governed,
    )


async def _relay(exchange: Exchange, flight: Flight, call: Call) -> AsyncIterator[bytes]:
    """The answer's bytes as they come, line by line; read no faster than the client takes them."""
    lines = Lines()
    try:
        while data := await exchange.read():
            if given := lines.add(data):
                flight.count(given)
                yield given
        rest = lines.finish()
        flight.count(rest + b"\n")
        if exchange.status >= 400:
            flight.fail(_describe_status(exchange))
        elif flight.meter.outcome is None:
            raise exchange.break_off()
        flight.complete()
        if rest:
            yield rest
    except HomebaseError as error:
        if flight.meter.outcome is not None and isinstance(error, UpstreamError):
            flight.complete()  # all of it came; only the connection did not end well
            return
        flight.fail(error)
        yield lines.end_event() + build_error_event(error, call, flight.meter.response_id)
    finally:
        await flight.close()


def _build_response(exchange: Exchange, body: bytes | AsyncIterator[bytes]) -> Response:
    response = Response(body, status=exchange.status)
    response.headers.clear()
    for name, value in exchange.headers:
        response.headers.add(name, value)
    if isinstance(body, bytes):
        response.headers["content-length"] = str(len(body))
    else:
        response.headers["x-accel-buffering"] = "no"
        response.timeout = None  # Quart would end it after 60 s
    return response


def _describe_status(exchange: Exchange) -> HomebaseError:
    return UpstreamError(
        f"the upstream {exchange.upstream.name} answered with status {exchange.status}", exchange.upstream.name
    )
