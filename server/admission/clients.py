"""What is different for one client: its own table of limits, and the status that it is refused with. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from server.access import PLAIN_NAME
from server.admission.families import read_product, wants_400
from server.policy import AdmissionPolicy
from server.policy_tables.admission import ClientPolicy, RefusalStatus


def find_client_policy(policy: AdmissionPolicy, key: str, client: str) -> ClientPolicy | None:
    """The table [policy.clients.NAME] of a client, None when it has none.

    NAME is the name of its key, or else the name that its User-Agent begins with, in any case. `client` is the
    User-Agent or what a Place says, where the key's name stands before it.
    """
    if key in policy.clients:
        return policy.clients[key]
    product = name_product(key, client).casefold()
    return next((table for name, table in policy.clients.items() if name.casefold() == product), None)


def choose_refusal_status(policy: AdmissionPolicy, headers: Mapping[str, str], key: str) -> RefusalStatus:
    """The status for a refusal of this client: a number, or `auto` for what the refusal's own code says.

    Header names are in lower case; `key` is the key's name.
    """
    table = find_client_policy(policy, key, headers.get("user-agent", ""))
    asked = policy.refusal_status if table is None or table.refusal_status is None else table.refusal_status
    return 400 if asked == "auto" and wants_400(headers, policy.refuse_with_400) else asked


def name_product(key: str, client: str) -> str:
    """The name that the client's User-Agent begins with; `client` is as a Place has it."""
    return read_product(client.removeprefix(f"{key} ") if key and key != PLAIN_NAME else client)
