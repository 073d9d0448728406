"""What a policy must be as a whole: names in it that mean one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from server.errors import PolicyInvalid

if TYPE_CHECKING:
    from server.policy_tables import Policy


def check_whole(policy: Policy) -> None:
    """Raise PolicyInvalid for two upstreams of one name, for an overflow to nobody, and for aliases in a loop."""
    names = [upstream.name for upstream in policy.upstreams]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise PolicyInvalid(f"upstreams: two tables have the name {twice}; give each its own.", key="upstreams")
    overflow = policy.policy.overflow_to
    if overflow and overflow not in names:
        known = ", ".join(names) or "there is none"
        raise PolicyInvalid(
            f"policy.overflow_to: no [[upstreams]] table has the name {overflow}; known: {known}.",
            key="policy.overflow_to",
        )
    _check_aliases(policy.aliases)


def _check_aliases(aliases: Mapping[str, str]) -> None:
    for first in aliases:
        way = [first]
        while way[-1] in aliases:
            way.append(aliases[way[-1]])
            if way[-1] in way[:-1]:
                told = " -> ".join(way)
                raise PolicyInvalid(f"aliases: {told} leads back to itself, so no model would answer.", key="aliases")
