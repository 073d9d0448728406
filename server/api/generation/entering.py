"""In front of a model, whoever runs it: taking a slot, waiting for one in sight, and counting who gets none."""

from __future__ import annotations

import asyncio
import time

from server.admission.clients import choose_refusal_status
from server.admission.decide import Asked as Wanted
from server.admission.place import Place
from server.admission.slots import Permit
from server.api.failures import refusal_status_of
from server.api.generation.asked import Caller
from server.api.services import Services
from server.errors import HomebaseError, ParentGone, Refusal, StreamStopped
from server.events import Refused
from server.telemetry import StreamIdentity


async def enter(services: Services, wanted: Wanted, identity: StreamIdentity) -> Permit:
    """Take a slot, after a wait where the policy grants one. Raises any HomebaseError.

    Nothing is sent while it lasts: a refusal that comes of it must still be one. A hang-up ends the task, and so the
    wait.
    """
    watcher, request_id = services.telemetry, wanted.request_id
    try:
        return await services.admission.enter(
            wanted, services.read_policy().policy, lambda: watcher.stream_waiting(request_id, identity)
        )
    except asyncio.CancelledError:
        watcher.stream_left(request_id, "cancelled", "client closed the connection while it waited for a place")
        raise
    except StreamStopped as stopped:
        told = "cancelled with its parent" if isinstance(stopped, ParentGone) else "stopped at the server"
        watcher.stream_left(request_id, "cancelled", f"{told} while it waited for a place")
        raise
    except Refusal as refusal:
        refusal.waited_s = watcher.stream_left(request_id)
        raise
    except HomebaseError as error:
        watcher.stream_left(request_id, "failed", error.message)
        raise


def count_refusal(
    services: Services,
    refusal: Refusal,
    caller: Caller,
    place: Place,
    *,
    model: str,
    prompt_tokens: int | None,
    max_tokens: int | None,
) -> None:
    """Note that a request was refused, with all that is known of it; not where an upstream takes it instead."""
    if refusal.overflow:
        return
    policy = services.read_policy().policy
    status = refusal_status_of(refusal, choose_refusal_status(policy, caller.headers, caller.key_name))
    services.lineage.refused(place, refusal.code)
    services.telemetry.refused(
        Refused(
            time_s=time.time(),
            request_id=caller.request_id,
            code=refusal.code,
            message=refusal.message,
            status=status,
            retry_after_s=None if status == 400 else refusal.retry_after_s,
            limit=refusal.limit,
            used=refusal.used,
            session=place.session,
            lane=place.lane,
            client=place.client,
            prompt_tokens=prompt_tokens,
            max_tokens=max_tokens,
            arrived_s=caller.arrived_s,
            parent_session=place.parent_session,
            depth=place.depth,
            family=place.family,
            key=place.key,
            model=model,
            waited_s=refusal.waited_s,
            limit_key=refusal.key,
        )
    )
