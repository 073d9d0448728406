from __future__ import annotations

import pytest

from server.admission.clients import find_client_policy, name_product
from server.policy import AdmissionPolicy, ClientPolicy

ALICE, CODEX = ClientPolicy(max_depth=1), ClientPolicy(max_depth=2)
POLICY = AdmissionPolicy(clients={"alice": ALICE, "Codex_CLI_rs": CODEX})


@pytest.mark.parametrize(
    ("key", "client", "found"),
    [
        ("alice", "alice goose/1.0", ALICE),
        ("alice", "alice codex_cli_rs/0.1", ALICE),
        ("bob", "bob codex_cli_rs/0.1", CODEX),
        ("", "codex_cli_rs/0.1 extra", CODEX),
        ("", "CODEX_CLI_RS", CODEX),
        ("", "alice/1", ALICE),
        ("Alice", "Alice x/1", None),
        ("", "codex_cli/0.1", None),
        ("", "unknown", None),
        ("", "", None),
    ],
)
def test_a_key_goes_before_the_name_of_a_program(key: str, client: str, found: ClientPolicy | None) -> None:
    assert find_client_policy(POLICY, key, client) is found
    assert find_client_policy(AdmissionPolicy(), key, client) is None


def test_a_programs_name_ends_at_its_slash_and_the_keys_is_left_out() -> None:
    assert name_product("alice", "alice OpenAI/Python 3.57.0") == "OpenAI"
    assert name_product("", "OpenAI/Python 3.57.0") == "OpenAI"
