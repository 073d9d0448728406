"""Whether a request of a governed upstream may start: the same admission as for our own model."""

from __future__ import annotations

import time

from server.admission.decide import Asked as Wanted
from server.admission.sessions import BodyFacts, Identity, identify
from server.admission.slots import Permit
from server.api.failures import refusal_status_of
from server.api.generation.asked import Caller
from server.api.services import Services
from server.errors import Refusal
from server.events import Refused
from server.upstreams.asking import Asking


def find_identity(caller: Caller, asking: Asking) -> Identity:
    """Who asks."""
    opening = BodyFacts(asking.system_text, asking.first_user_text, caller.api_key, caller.peer, caller.key_name)
    return identify(caller.headers, opening)


async def admit_governed(services: Services, caller: Caller, identity: Identity, asking: Asking) -> Permit:
    """Take a slot for a request that another server on this machine answers. A refusal is counted, and raised.

    The length of its prompt is an estimate, and its output is as long as it asks for.
    """
    wanted = Wanted(identity.lane, asking.prompt_tokens, asking.max_tokens, asking.max_tokens or 0)
    try:
        return services.admission.admit(wanted, services.read_policy().policy)
    except Refusal as refusal:
        if not refusal.overflow:
            _count(services, refusal, caller, identity, asking)
        raise


def _count(services: Services, refusal: Refusal, caller: Caller, identity: Identity, asking: Asking) -> None:
    status = refusal_status_of(refusal, services.read_policy().policy.refusal_status)
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
            session=identity.session,
            lane=identity.lane,
            client=identity.client,
            prompt_tokens=asking.prompt_tokens,
            max_tokens=asking.max_tokens,
        )
    )
