from __future__ import annotations

from server.api.generation.turns import list_opening_texts


def test_what_a_conversation_begins_with_ends_at_the_first_answer() -> None:
    turns = [
        {"role": "system", "content": "You are."},
        {"role": "user", "content": "one"},
        {"role": "user", "content": None},
        {"role": "user", "content": "two"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "three"},
    ]
    assert list_opening_texts(turns) == ["one", "", "two"]
    assert list_opening_texts([]) == []
