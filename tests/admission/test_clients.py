from __future__ import annotations

from typing import Any

import pytest

from server.admission.clients import choose_refusal_status, find_client_policy, name_product
from server.policy import AdmissionPolicy
from server.policy_tables.admission import ClientPolicy

FIRST, SECOND = ClientPolicy(max_in_flight=1), ClientPolicy(max_in_flight=2)
TABLES = AdmissionPolicy(clients={"alice": FIRST, "My-Agent": SECOND})


@pytest.mark.parametrize(
    ("key", "client", "found"),
    [
        ("alice", "alice my-agent/1.0", FIRST),
        ("alice", "my-agent/1.0", FIRST),
        ("bob", "bob my-agent/1.0", SECOND),
        ("bob", "my-agent 1.0", SECOND),
        ("", "MY-AGENT/1.0", SECOND),
        ("api_key", "my-agent/1.0", SECOND),
        ("api_key", "api_key my-agent/1.0", None),
        ("", "my-agents/1.0", None),
        ("", "x my-agent/1.0", None),
        ("ALICE", "curl/8", None),
        ("", "", None),
    ],
)
def test_a_client_is_found_by_its_keys_name_and_else_by_its_own(
    key: str, client: str, found: ClientPolicy | None
) -> None:
    assert find_client_policy(TABLES, key, client) is found


CODEX, CURL = {"user-agent": "codex_exec/0.171.0"}, {"user-agent": "curl/8"}


@pytest.mark.parametrize(
    ("headers", "general", "own", "status"),
    [
        (CODEX, "auto", None, 400),
        (CURL, "auto", None, "auto"),
        (CODEX, 429, None, 429),
        (CURL, 503, None, 503),
        (CODEX, 400, 429, 429),
        (CURL, "auto", 409, 409),
        (CODEX, 503, "auto", 400),
        (CURL, 503, "auto", "auto"),
    ],
)
def test_the_clients_own_status_goes_first_then_the_policys_and_auto_knows_who_needs_400(
    headers: dict[str, str], general: Any, own: Any, status: Any
) -> None:
    name = headers["user-agent"].partition("/")[0]
    policy = AdmissionPolicy(refusal_status=general, clients={name: ClientPolicy(refusal_status=own)})
    assert choose_refusal_status(policy, headers, "") == status


def test_the_operator_may_list_more_clients_for_400() -> None:
    assert choose_refusal_status(AdmissionPolicy(refuse_with_400=("curl",)), CURL, "") == 400


def test_a_programs_name_ends_at_its_slash_and_the_keys_is_left_out() -> None:
    assert name_product("alice", "alice OpenAI/Python 3.57.0") == "OpenAI"
    assert name_product("", "OpenAI/Python 3.57.0") == "OpenAI"
