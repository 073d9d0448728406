"""Which of the operator's tables [policy.clients.NAME] holds for a client. Pure."""

from __future__ import annotations

from server.policy import AdmissionPolicy, ClientPolicy


def find_client_policy(policy: AdmissionPolicy, key: str, client: str) -> ClientPolicy | None:
    """The table that is named like the client's key, else the one named like its User-Agent; None when there is none.

    `client` is as `Identity` has it: the key's name may stand before the User-Agent. Case does not matter for the
    latter.
    """
    if not policy.clients:
        return None
    if key in policy.clients:
        return policy.clients[key]
    product = name_product(key, client).lower()
    return next((table for name, table in policy.clients.items() if name.lower() == product), None)


def name_product(key: str, client: str) -> str:
    """The name that the client's User-Agent begins with, up to its slash or blank."""
    words = client.removeprefix(f"{key} ").split(maxsplit=1) if key else client.split(maxsplit=1)
    return words[0].partition("/")[0] if words else ""
