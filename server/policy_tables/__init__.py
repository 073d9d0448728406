"""The tables of homebase.toml as frozen structs: each limit with meaning, range, unit and when it takes effect.

The description of each limit is the text that the console shows and that the template carries.
"""

from __future__ import annotations

import msgspec

from server.policy_tables.admission import AdmissionPolicy, ClientPolicy, SubagentPolicy
from server.policy_tables.console import ConsolePolicy
from server.policy_tables.engine import LEAST_STALL_S, EnginePolicy
from server.policy_tables.history import HistoryPolicy
from server.policy_tables.kinds import Effect, LimitValue
from server.policy_tables.model import ModelPolicy
from server.policy_tables.serving import ServerPolicy
from server.policy_tables.upstreams import Aliases, UpstreamPolicy, Upstreams

__all__ = [
    "LEAST_STALL_S",
    "AdmissionPolicy",
    "ClientPolicy",
    "ConsolePolicy",
    "Effect",
    "EnginePolicy",
    "HistoryPolicy",
    "LimitValue",
    "ModelPolicy",
    "Policy",
    "ServerPolicy",
    "SubagentPolicy",
    "UpstreamPolicy",
]


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of homebase.toml, validated. Missing tables and keys have their defaults."""

    server: ServerPolicy = ServerPolicy()
    model: ModelPolicy = ModelPolicy()
    engine: EnginePolicy = EnginePolicy()
    policy: AdmissionPolicy = AdmissionPolicy()
    console: ConsolePolicy = ConsolePolicy()
    history: HistoryPolicy = HistoryPolicy()
    aliases: Aliases = {}
    upstreams: Upstreams = ()
