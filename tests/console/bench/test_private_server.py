"""The limits of either half; what of the operator's file the bench's server must not have."""

from __future__ import annotations

import tomli_w

from console.bench.private_server import build_config
from server.policy import validate_policy

OPERATORS = validate_policy(
    {
        "server": {"host": "0.0.0.0", "port": 80, "api_key": "secret", "api_keys_env": "KEYS"},
        "model": {"path": "/models/big"},
        "engine": {"mtp": 2, "prefix_cache_disk_gib": 9.0},
        "policy": {
            "max_in_flight": 3,
            "min_decode_tps": 25.0,
            "context_budget_tokens": 100_000,
            "clients": {"codex": {"max_in_flight": 1}},
            "subagents": {"max_concurrent": 0},
        },
    }
)


def test_on_has_the_operators_limits():
    policy = validate_policy(build_config(OPERATORS, 4000, "on", 8))
    assert policy.policy == OPERATORS.policy
    assert policy.model == OPERATORS.model
    assert policy.engine.mtp == 2


def test_off_lets_everybody_in():
    limits = validate_policy(build_config(OPERATORS, 4000, "off", 8)).policy
    assert limits.max_in_flight == 8
    assert (limits.min_decode_tps, limits.context_budget_tokens, dict(limits.clients)) == (0, 0, {})
    assert min(limits.subagents.max_concurrent, limits.subagents.sampling_limit, limits.subagents.max_depth) >= 8


def test_nothing_of_either_reaches_other_machines_or_the_operators_files():
    for mode in ("off", "on"):
        policy = validate_policy(build_config(OPERATORS, 4000, mode, 8))
        assert (policy.server.host, policy.server.port, policy.server.api_key) == ("127.0.0.1", 4000, "")
        assert policy.server.api_keys_env == ""
        assert policy.engine.prefix_cache_disk_gib == 0
        assert policy.history.off
        assert policy.upstreams == ()


def test_either_can_be_written_as_toml():
    for mode in ("off", "on"):
        assert "max_in_flight" in tomli_w.dumps(build_config(OPERATORS, 4000, mode, 8))
