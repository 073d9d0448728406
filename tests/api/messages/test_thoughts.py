from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.messages.thoughts import build_signature, read_signature


@given(st.text())
def test_a_hidden_thought_comes_back_whole(thought: str) -> None:
    assert read_signature(build_signature(thought)) == thought


def test_a_signature_is_never_empty() -> None:
    assert build_signature()


@pytest.mark.parametrize(
    "signature", ["", "ErUBCkYIBxgCIkD", "homebase.@", "homebase.abc", "homebase._w==", "homebase.é"]
)
def test_a_signature_of_another_server_or_a_broken_one_has_no_thought(signature: str) -> None:
    assert read_signature(signature) == ""
