"""Parameters of the Messages dialect that are known and not honoured: refused by name unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from server.errors import UnsupportedParameter

UNBUILT = frozenset({"mcp_servers", "container", "thread", "compaction"})
"""What only Anthropic's own servers have: tools that they run, files and conversations that they keep."""

HARMLESS = frozenset(
    {
        "anthropic_beta",
        "anthropic_version",
        "betas",
        "billing_policy",
        "cache_control",
        "context_management",
        "diagnostics",
        "fallback_credit_token",
        "fallbacks",
        "inference_geo",
        "metadata",
        "service_tier",
        "speed",
        "user_profile_id",
        "workspace_id",
    }
)
"""Known, accepted and without effect here.

`context_management` would have old tool results and thoughts left out of a long prompt. Claude Code sends it with every
request; here the prompt stays whole, which is also what lets the next turn go on from the last one.
"""


def refuse_unbuilt(document: Mapping[str, Any]) -> None:
    """Raise UnsupportedParameter for the first parameter that asks for what is not built."""
    for name in sorted(UNBUILT & document.keys()):
        if document[name] not in (None, [], {}):
            raise UnsupportedParameter(
                f"`{name}` is not supported by this server; leave it out (it is never accepted and ignored).",
                param=name,
            )
